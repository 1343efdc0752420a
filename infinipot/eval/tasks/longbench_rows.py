"""The rows, tasks and prompts of LongBench (arXiv 2308.14508)."""

from __future__ import annotations

import functools
import gzip
import importlib.resources
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from infinipot.checks import known
from infinipot.text.chat_template import Dialogue
from infinipot.text.special_tokens import spans, starting_ids

FIELDS = ("input", "context", "answers", "all_classes", "dataset", "_id")
GENUINE = "LongBench"
STYLE = "LongBench style"
"""The kinds of rows: LongBench's own, and others in the same style. Never in one table."""


@dataclass(frozen=True)
class Task:
    """The facts of a task, as published with LongBench.

    prompt: a template with {context} and {input}. chat: whether the chat template goes around it.
    """

    group: str
    metric: str
    max_tokens: int
    chat: bool
    first_line: bool
    prompt: str


@functools.cache
def tasks() -> dict[str, Task]:
    """The 21 tasks by name, in the order of the paper's table."""
    folder = importlib.resources.files("infinipot.eval.tasks")
    text = folder.joinpath("longbench.json").read_text("utf-8")
    return {name: Task(**facts) for name, facts in json.loads(text).items()}


@dataclass(frozen=True)
class Row:
    """A row of LongBench. number: its line in the file, from 0."""

    task: str
    id: str
    number: int
    context: str
    input: str
    answers: tuple[str, ...]
    classes: tuple[str, ...]
    length: int


def read_rows(folder: Path, names: Sequence[str] | None = None) -> list[Row]:
    """All rows of the .jsonl and .jsonl.gz files of a folder, in LongBench's published format.

    names: only these tasks. Raises ValueError for unknown tasks, missing fields, and duplicates.
    """
    for name in names or ():
        known("task", name, tasks())
    if not folder.is_dir():
        raise ValueError(
            f"there is no folder {folder}: give the folder with LongBench's .jsonl files"
        )
    rows: dict[tuple[str, str], Row] = {}
    for path in sorted([*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")]):
        for number, line in enumerate(_lines(path)):
            row = _row(path, number, line)
            if names and row.task not in names:
                continue
            if rows.setdefault((row.task, row.id), row) is not row:
                raise ValueError(
                    f"{path}, line {number + 1}: row {row.id} of {row.task} is there twice: delete "
                    "one of the two"
                )
    if not rows:
        if names:
            what = f" of {', '.join(names)}"
        else:
            what = ""
        raise ValueError(f"{folder} has no rows{what}: files must end in .jsonl or .jsonl.gz")
    place = {name: number for number, name in enumerate(tasks())}
    return sorted(rows.values(), key=lambda row: place[row.task])


def _lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        yield from (line.decode("utf-8") for line in file if line.strip())


def _row(path: Path, number: int, line: str) -> Row:
    try:
        fields = json.loads(line)
        missing = [name for name in FIELDS if name not in fields]
        if missing:
            raise ValueError(f"the row lacks {', '.join(missing)}")
        known("task", fields["dataset"], tasks())
    except (ValueError, TypeError) as problem:
        raise ValueError(f"{path}, line {number + 1}: {problem}") from None
    return Row(
        fields["dataset"],
        str(fields["_id"]),
        number,
        fields["context"],
        fields["input"],
        tuple(fields["answers"]),
        tuple(fields["all_classes"] or ()),
        int(fields.get("length") or 0),
    )


@dataclass(frozen=True)
class Prompt:
    """The ids of a row's prompt: the text, and the rest of the prompt with the question."""

    text: list[int]
    question: list[int]


def prompt_ids(
    tokenizer: PreTrainedTokenizerBase,
    row: Row,
    longest_question: int,
    max_length: int | None = None,
) -> Prompt:
    """The official prompt, encoded as a whole and split at the end of the context.

    longest_question: most ids of the question, without the end of the chat template. A longer
    question exists in some few-shot and code tasks; its start then goes to the text. max_length: of
    a longer prompt the middle is cut out, in LongBench's way: decode both halves, join them, and
    encode again. The head of the chat template is not included, because the session reads it.
    """
    task = tasks()[row.task]
    prompt = task.prompt.format(context=row.context, input=row.input)
    behind = task.prompt.format(context="\0", input=row.input).partition("\0")[2]
    ids, ends = _encoded(tokenizer, prompt, not task.chat)
    if max_length is not None and len(ids) > max_length:
        half = max_length // 2
        prompt = "".join(
            str(tokenizer.decode(part, skip_special_tokens=True))
            for part in (ids[:half], ids[-half:])
        )
        ids, ends = _encoded(tokenizer, prompt, not task.chat)
    if prompt.endswith(behind):
        start = len(prompt) - len(behind)
    else:
        start = 0
    cut = sum(end <= start for end in ends)
    cut = min(max(cut, len(ids) - longest_question, 1), len(ids) - 1)
    question = ids[cut:]
    if task.chat:
        dialogue = Dialogue(tokenizer, None, True)
        question += dialogue.own_ids(dialogue.template.ask)
    return Prompt(ids[:cut], question)


def _encoded(
    tokenizer: PreTrainedTokenizerBase, text: str, special: bool
) -> tuple[list[int], list[int]]:
    """The ids, and the end of each token in the text.

    special: with the tokens that the tokenizer puts before a text.
    """
    start: list[int] = []
    if special:
        start = starting_ids(tokenizer)
    ids, places = spans(tokenizer, text)
    return start + ids, [0] * len(start) + [end for _, end in places]
