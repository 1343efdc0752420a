"""Tensor parallelism: one process decides, the others follow."""
