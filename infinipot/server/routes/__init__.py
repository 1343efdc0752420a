"""HTTP routes beside those of the OpenAI API."""
