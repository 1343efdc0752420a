"""An OpenAI-compatible server whose every conversation lives in a pot of fixed size."""
