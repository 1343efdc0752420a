"""Catalysts: the prompts whose attention selects the survivors (CaP), by name."""

from __future__ import annotations

PROMPTS = {
    "general": "Summarize the important information in the text above.",
    "facts": "List every number, code, key, name and date that must be remembered.",
    "unrelated": "Write a short poem about the sea on a windy day.",
    "repeat": "Repeat the text above word for word:",
}
"""general, unrelated: kinds of the paper's Table 2. facts: for single facts. repeat: for the whole
text (policy kvzip). Two more kinds have no fixed text: `question` (the question itself) and `plain`
(the newest tokens of the text, read again)."""
ANSWER_PREFIXES = {"facts": "1. "}
"""The start of the answer to a prompt, read behind it: the last rows of the catalyst then attend to
what comes next."""

REMOVED = ("general-1", "general-2")
"""Names of prompts that only a study uses (eval/studies.py)."""

KINDS = (*PROMPTS, "question", "plain")
