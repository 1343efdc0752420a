"""The prompts by whose attention a pot is distilled (CaP), by name."""

from __future__ import annotations

PRESETS = {
    "general": "Summarize the important information in the text above.",
    "facts": "List every number, code, key, name and date that must be remembered.",
    "unrelated": "Write a short poem about the sea on a windy day.",
    "repeat": "Repeat the text above word for word:",
}
"""Prompts by the kinds of the paper's Table 2, one that asks for what stands only once, and one for
the text itself (policy kvzip). Two more kinds have no fixed words: `question` (the question itself)
and `plain` (no instruction: the newest tokens of the text, read once more)."""
ANSWER_PREFIXES = {"facts": "1. "}
"""How the answer to a preset begins, where that is read too: what follows is what the last rows of
the catalyst look for."""

REMOVED = ("general-1", "general-2")
"""Names of prompts that only a study uses (eval/studies.py)."""

KINDS = (*PRESETS, "question", "plain")
