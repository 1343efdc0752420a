"""Tables and figures from all results in a folder."""

from __future__ import annotations

from pathlib import Path

from infinipot.eval import report, results, scores
from infinipot.eval.tasks import chat, documents, facts, lm_harness, longbench, needle, perplexity


def redraw(folder: Path, out: Path) -> tuple[str, list[Path]]:
    """Write tables and figures. Returns the tables as text, and the paths of the files.

    Raises ValueError if the folder has no results.
    """
    out.mkdir(parents=True, exist_ok=True)
    texts: list[str] = []
    files: list[Path] = []
    for name, key, write in (
        (needle.NAME, needle.KEY, report.write),
        (facts.NAME, facts.KEY, facts.write),
        (chat.NAME, chat.KEY, chat.write),
        (documents.NAME, documents.KEY, documents.write),
        (longbench.NAME, longbench.KEY, scores.write),
        (perplexity.NAME, perplexity.KEY, perplexity.write),
        (lm_harness.NAME, lm_harness.KEY, lm_harness.write),
    ):
        records = results.read(folder, name, key)
        if records:
            text, paths = write(records, out)
            texts.append(text)
            files += paths
    if not texts:
        raise ValueError(
            f"{folder} has no results: give a folder with needle.jsonl, facts.jsonl, "
            "documents.jsonl, chat.jsonl, longbench.jsonl, perplexity.jsonl or lm.jsonl"
        )
    return "\n\n".join(texts), files
