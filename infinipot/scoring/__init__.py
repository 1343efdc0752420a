"""The paper's maths: how representative and how novel an entry is, and which survive. Plain torch,
no model."""
