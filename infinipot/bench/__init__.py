"""What reading in a pot costs, beside stock transformers on the same model and text."""
