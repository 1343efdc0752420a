"""The prompts by whose attention a pot is distilled (CaP), by name."""

from __future__ import annotations

PRESETS = {
    "general": "Summarize the important information in the text above.",
    "general-1": "Write down the key points of the text above, with the names, numbers and dates that matter.",
    "general-2": "What is the text above about? Explain it to somebody who has not read it.",
    "facts": "List every number, code, key, name and date that must be remembered.",
    "unrelated": "Write a short poem about the sea on a windy day.",
    "repeat": "Repeat the text above word for word:",
}
"""Prompts by the kinds of the paper's Table 2, one that asks for what stands only once, and one for the text itself (policy kvzip). Two
more kinds have no fixed words: `question` (the question itself) and `plain` (no instruction: the newest tokens of the text, read once more)."""
BEGUN = {"facts": "1. "}
"""How the answer to a preset begins, where that is read too: what follows is what the last rows of the catalyst look for."""

KINDS = (*PRESETS, "question", "plain")
