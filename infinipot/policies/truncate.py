"""Truncation as in LongBench (arXiv 2308.14508): only the start and the end of the text are read.

The start fills half the pot. The end is read before an answer. A text that fits with its question
is read whole, and its middle is cut out only when the answer gets too long for the pot. From a
longer text so much is cut that the question and an answer of max_tokens fit.
"""

from __future__ import annotations

from dataclasses import dataclass

from infinipot.policies.base import Policy


@dataclass(frozen=True, kw_only=True)
class Truncate(Policy):
    name = "truncate"
    summary = "the text's two ends; the middle is cut out unread (LongBench)"
    paper = "arXiv 2308.14508"
    bounded = False
    cuts = True
