"""The tests of the evaluation, one file per test."""
