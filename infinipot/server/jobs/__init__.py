"""Jobs of the engine: a prompt and its answer, an echo, a text for a named pot."""
