"""Calls of functions in what a model writes: one family of models a file, all in `registry`."""
