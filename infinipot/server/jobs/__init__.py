"""What the engine is asked to do: a prompt and its answer, an echo, a text to read."""
