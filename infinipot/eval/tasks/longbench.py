"""LongBench (arXiv 2308.14508): its rows, prompts, lengths and rules, answered by sessions."""

from __future__ import annotations

import functools
import gzip
import importlib.resources
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from infinipot.checks import known
from infinipot.engine.sampling import end_tokens
from infinipot.eval.methods import Method
from infinipot.eval.metrics import score
from infinipot.eval.results import Record
from infinipot.eval.runner import Model, Replica
from infinipot.eval.teacher_forcing import open_session
from infinipot.text.chat_template import Dialogue

NAME = "longbench"
KEY = ("model", "dtype", "method", "question", "options", "rows", "max_length", "task", "id")
FIELDS = ("input", "context", "answers", "all_classes", "dataset", "_id")
GENUINE = "LongBench"
STYLE = "LongBench style"
"""What rows are: LongBench's own, or others made in its image. Never in one table."""

CLOSING = 32
"""Room kept for the end of a chat template's turn."""


@dataclass(frozen=True)
class Task:
    """Facts published with LongBench. prompt: with {context} and {input}. chat: whether the chat
    template stands around it."""

    group: str
    metric: str
    max_tokens: int
    chat: bool
    first_line: bool
    prompt: str


@functools.cache
def tasks() -> dict[str, Task]:
    """The 21 tasks by name, in the order of the paper's table."""
    text = (
        importlib.resources.files("infinipot.eval.tasks")
        .joinpath("longbench.json")
        .read_text("utf-8")
    )
    return {name: Task(**facts) for name, facts in json.loads(text).items()}


@dataclass(frozen=True)
class Row:
    """number: its place in its file, from 0."""

    task: str
    id: str
    number: int
    context: str
    input: str
    answers: tuple[str, ...]
    classes: tuple[str, ...]
    length: int


def read_rows(folder: Path, wanted: Sequence[str] | None = None) -> list[Row]:
    """All rows of the .jsonl and .jsonl.gz files of a folder, as LongBench publishes them.

    wanted: only these tasks. ValueError for unknown tasks, missing fields, and rows that are there
    twice.
    """
    for name in wanted or ():
        known("task", name, tasks())
    if not folder.is_dir():
        raise ValueError(
            f"there is no folder {folder}: give the one that holds LongBench's .jsonl files"
        )
    rows: dict[tuple[str, str], Row] = {}
    for path in sorted([*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")]):
        for number, line in enumerate(_lines(path)):
            row = _row(path, number, line)
            if wanted and row.task not in wanted:
                continue
            if rows.setdefault((row.task, row.id), row) is not row:
                raise ValueError(
                    f"{path}, line {number + 1}: row {row.id} of {row.task} is there twice"
                )
    if not rows:
        raise ValueError(
            f"{folder} holds no rows"
            + (f" of {', '.join(wanted)}" if wanted else "; files must end in .jsonl or .jsonl.gz")
        )
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
    """A row's prompt in ids: the text that is read, and what follows it, with the question in it,
    up to where the answer begins."""

    text: list[int]
    question: list[int]


def prompt_ids(
    tokenizer: PreTrainedTokenizerBase,
    row: Row,
    longest_question: int,
    max_length: int | None = None,
) -> Prompt:
    """The official prompt, encoded as a whole and cut where the context ends.

    longest_question: most ids of the question, the template's end not counted: of a longer one
    (some few-shot and code tasks) the beginning goes with the text. max_length: a prompt of more
    ids has its middle cut out, officially: both halves decoded, put together, encoded again. The
    chat template's head is not among the ids: the session reads it.
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
    closing = Dialogue(tokenizer, None, True)
    return Prompt(ids[:cut], ids[cut:] + (closing.ids(closing.template.ask) if task.chat else []))


def _encoded(
    tokenizer: PreTrainedTokenizerBase, text: str, special: bool
) -> tuple[list[int], list[int]]:
    """Ids, and where each one's characters end. special: with the tokens that the tokenizer puts
    around a text."""
    encoded = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
    return list(encoded["input_ids"]), [end for _, end in encoded["offset_mapping"]]


@dataclass(frozen=True, kw_only=True)
class RowUnit:
    """One row, answered by one method."""

    model: Model
    method: Method
    rows: str
    row: Row
    max_length: int | None = None

    @property
    def title(self) -> str:
        return f"{self.row.task} {self.row.number + 1} · {self.method.label}"

    def keys(self) -> list[Record]:
        return [
            {
                **self.model.about,
                "method": self.method.label,
                "question": self.method.question,
                "options": self.method.options,
                "rows": self.rows,
                "max_length": self.max_length,
                "task": self.row.task,
                "id": self.row.id,
            }
        ]

    def _longest(self, replica: Replica, task: Task) -> int | None:
        """Most ids of the prompt: without a bound on the pot, those that the model was trained for,
        less the template and the answer."""
        if not self.method.windowed or self.max_length is not None:
            return self.max_length
        window: int | None = getattr(
            replica.host.model.config.get_text_config(), "max_position_embeddings", None
        )
        around = len(Dialogue(replica.tokenizer, None, True).head()) + len(
            Dialogue(replica.tokenizer, None, True).question(None)
        )
        if window is None:
            return None
        return max(2, window - task.max_tokens - around)

    def run(self, replica: Replica) -> list[Record]:
        task = tasks()[self.row.task]
        config = self.method.config
        room = config.pot_size
        # the catalyst beside the survivors and some text; with the answer in half of the pot where
        # it is truncated
        if self.method.bounded:
            room = max(
                1,
                min(
                    (config.pot_size - config.survivors) // 2,
                    config.pot_size // 2 - task.max_tokens - CLOSING,
                ),
            )
        prompt = prompt_ids(replica.tokenizer, self.row, room, self._longest(replica, task))
        session = open_session(replica, config, template=task.chat)
        session.append(prompt.text, question=prompt.question if self.method.aware else None)
        newline = replica.tokenizer.encode("\n", add_special_tokens=False)[-1]
        ends = end_tokens(replica.host.model, replica.tokenizer) | {newline}
        # officially: a newline ends it, and it has at least one token
        if self.row.task == "samsum":
            options: dict[str, Any] = {"stop_ids": ends, "pick": NotFirst(ends)}
        else:
            options = {"pick": lambda logits: int(logits.argmax())}
        said = list(session.stream_ids(prompt.question, max_tokens=task.max_tokens, **options))
        text = str(replica.tokenizer.decode(said, skip_special_tokens=True))
        points = score(task.metric, text, self.row.answers, self.row.classes, task.first_line)
        stats = session.stats
        outcome = {
            "number": self.row.number,
            "score": round(100 * points, 4),
            "pred": text,
            "prompt_tokens": len(prompt.text) + len(prompt.question),
            "distillations": stats.distillations,
            "peak_entries": stats.peak_entries,
        }
        return [{**self.keys()[0], **outcome}]


class NotFirst:
    """Greedy, but the first token is none of those that would end the answer."""

    def __init__(self, ends: set[int]) -> None:
        self.ends: list[int] = sorted(ends)

    def __call__(self, logits: Tensor) -> int:
        if self.ends:
            logits = logits.index_fill(-1, logits.new_tensor(self.ends).long(), float("-inf"))
            self.ends = []
        return int(logits.argmax())


def plan(
    model: Model,
    methods: Iterable[Method],
    data: Sequence[tuple[str, Sequence[Row]]],
    *,
    limit: int | None = None,
    half: str | None = None,
    max_length: int | None = None,
) -> list[RowUnit]:
    """All methods on a row before the next row, and a row of every task before the next of any:
    what is done by then can be compared.

    data: (GENUINE or STYLE, rows). limit: rows of a task. half: `even` or `odd` row numbers only,
    so that one half can choose options and the other tell what they are worth. max_length: longest
    prompt for methods that the model's window limits, None for that window; the others read
    everything.
    """
    units = []
    for kind, rows in data:
        chosen: dict[str, list[Row]] = {}
        for row in rows:
            if half is None or row.number % 2 == ("even", "odd").index(half):
                chosen.setdefault(row.task, []).append(row)
        queues = [queue[:limit] for queue in chosen.values()]
        for turn in range(max((len(queue) for queue in queues), default=0)):
            for row in (queue[turn] for queue in queues if turn < len(queue)):
                for method in methods:
                    if method.windowed:
                        longest = max_length
                    else:
                        longest = None
                    units.append(
                        RowUnit(model=model, method=method, rows=kind, row=row, max_length=longest)
                    )
    return units
