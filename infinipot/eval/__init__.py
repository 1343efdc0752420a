"""The paper's evaluation, on sessions only: needles, LongBench, perplexity, what survives, and the
studies made of them."""
