"""A transformers model that reads into a pot."""
