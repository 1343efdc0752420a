"""Speed and memory of reading into a pot, compared with stock transformers on the same text."""
