"""The paper's scores, representativeness and novelty, and the choice of survivors.

Plain torch, without a model.
"""
