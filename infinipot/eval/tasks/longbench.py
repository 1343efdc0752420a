"""LongBench (arXiv 2308.14508), answered by sessions under LongBench's own rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from torch import Tensor

from infinipot.engine.sampling import end_tokens
from infinipot.eval.methods import Method
from infinipot.eval.metrics import score
from infinipot.eval.results import Record
from infinipot.eval.runner import Model, Replica
from infinipot.eval.tasks.longbench_rows import (
    GENUINE,
    STYLE,
    Prompt,
    Row,
    Task,
    prompt_ids,
    read_rows,
    tasks,
)
from infinipot.eval.teacher_forcing import open_session
from infinipot.session import Session
from infinipot.text.chat_template import Dialogue

__all__ = [
    "GENUINE",
    "KEY",
    "NAME",
    "STYLE",
    "NotFirst",
    "Prompt",
    "Row",
    "RowUnit",
    "Task",
    "plan",
    "prompt_ids",
    "read_rows",
    "tasks",
]

NAME = "longbench"
KEY = ("model", "dtype", "method", "question", "options", "rows", "max_length", "task", "id")
CLOSING = 32
"""Room in tokens for the end of the user's turn in the chat template."""
ANSWERING = ("Single-document QA", "Multi-document QA")
"""The groups of tasks that the paper calls question answering."""


@dataclass(frozen=True, kw_only=True)
class RowUnit:
    """One row, answered by one method.

    rows: the kind of rows. more: further rows with the same text. It is read once, and every
    question is answered from a copy.
    """

    model: Model
    method: Method
    rows: str
    row: Row
    more: tuple[Row, ...] = ()
    max_length: int | None = None

    @property
    def title(self) -> str:
        return f"{self.row.task} {self.row.number + 1} · {self.method.label}"

    def keys(self) -> list[Record]:
        shared = {
            **self.model.about,
            "method": self.method.label,
            "question": self.method.question,
            "options": self.method.options,
            "rows": self.rows,
            "max_length": self.max_length,
            "task": self.row.task,
        }
        return [{**shared, "id": row.id} for row in (self.row, *self.more)]

    @property
    def in_task(self) -> Method:
        """The method with the catalyst of this task."""
        return in_task(self.method, self.row)

    def _longest(self, replica: Replica, task: Task) -> int | None:
        """The most ids of the prompt, None for no limit.

        A method without a bound on memory is limited to the length of the model's training, less
        the chat template and the answer.
        """
        if not self.method.windowed or self.max_length is not None:
            return self.max_length
        config = replica.runner.model.config.get_text_config()
        window: int | None = getattr(config, "max_position_embeddings", None)
        if window is None:
            return None
        head = Dialogue(replica.tokenizer, None, True).head()
        ask = Dialogue(replica.tokenizer, None, True).question(None)
        return max(2, window - task.max_tokens - len(head) - len(ask))

    def _longest_question(self, task: Task) -> int:
        """The most ids of the question.

        In a bounded pot the question must fit as the catalyst, next to the survivors and some text.
        With the answer, it must also fit into half of the pot, for policies that truncate the text.
        """
        config = self.method.config
        if not self.method.bounded:
            return config.pot_size
        beside_survivors = (config.pot_size - config.mean_budget) // 2
        in_half = config.pot_size // 2 - task.max_tokens - CLOSING
        return max(1, min(beside_survivors, in_half))

    def _options(self, replica: Replica) -> dict[str, Any]:
        """How to pick tokens: greedily, and in samsum by LongBench's rule for that task.

        There a newline ends the answer, and the answer has at least one token.
        """
        if self.row.task != "samsum":
            return {"pick": lambda logits: int(logits.argmax())}
        newline = replica.tokenizer.encode("\n", add_special_tokens=False)[-1]
        ends = end_tokens(replica.runner.model, replica.tokenizer) | {newline}
        return {"stop_ids": ends, "pick": NotFirst(ends)}

    def run(self, replica: Replica) -> list[Record]:
        records = []
        session = None
        read: list[int] = []
        for key, row in zip(self.keys(), (self.row, *self.more), strict=True):
            prompt = self._prompt(replica, row)
            if session is None or read != prompt.text:
                session = self._reading(replica, prompt)
                read = prompt.text
            asked = session
            if row is not (self.row, *self.more)[-1]:
                asked = session.fork()
            records.append({**key, **self._outcome(replica, asked, row, prompt)})
        return records

    def _prompt(self, replica: Replica, row: Row) -> Prompt:
        task = tasks()[row.task]
        longest_question = self._longest_question(task)
        return prompt_ids(replica.tokenizer, row, longest_question, self._longest(replica, task))

    def _reading(self, replica: Replica, prompt: Prompt) -> Session:
        """A session that has read the text of a prompt."""
        method = self.in_task
        task = tasks()[self.row.task]
        pinned = len(Dialogue(replica.tokenizer, None, task.chat).head())
        session = open_session(replica, method.beside(pinned), template=task.chat)
        session.append(prompt.text, question=prompt.question if method.aware else None)
        return session

    def _outcome(self, replica: Replica, session: Session, row: Row, prompt: Prompt) -> Record:
        task = tasks()[row.task]
        options = self._options(replica)
        ids = list(session.stream_ids(prompt.question, max_tokens=task.max_tokens, **options))
        text = str(replica.tokenizer.decode(ids, skip_special_tokens=True))
        points = score(task.metric, text, row.answers, row.classes, task.first_line)
        stats = session.stats
        return {
            "number": row.number,
            "score": round(100 * points, 4),
            "pred": text,
            "prompt_tokens": len(prompt.text) + len(prompt.question),
            "distillations": stats.distillations,
            "peak_entries": stats.peak_entries,
        }


def in_task(method: Method, row: Row) -> Method:
    """The method with the catalyst of a row's task, as in the paper's Table 1."""
    return method.of_task(tasks()[row.task].group in ANSWERING)


class NotFirst:
    """Picks the most likely token. The first token is never one that ends the answer."""

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
    """All units, in an order that makes partial results comparable.

    All methods answer a row before the next row. Every task gets a row before any task gets its
    next one.

    data: pairs of a kind (GENUINE or STYLE) and its rows. limit: rows per task. half: only `even`
    or only `odd` row numbers; options can be chosen on one half and tested on the other.
    max_length: longest prompt for methods that the model's window limits, None for that window.
    Other methods read everything.
    """
    units = [
        RowUnit(
            model=model,
            method=method,
            rows=kind,
            row=row,
            max_length=max_length if method.windowed else None,
        )
        for kind, rows in data
        for row in _taking_turns(_of_half(rows, half), limit)
        for method in methods
    ]
    return _one_reading_a_text(units)


def _one_reading_a_text(units: Iterable[RowUnit]) -> list[RowUnit]:
    """The units, with those joined whose text can be read once: the same text in the same task,
    read by a method that does not know the question. They stand where the first of them stood."""
    joined: dict[Any, RowUnit] = {}
    for unit in units:
        key: Any = (unit.rows, unit.method.label, unit.row.task, unit.row.context)
        if unit.in_task.aware:
            key += (unit.row.id,)
        first = joined.setdefault(key, unit)
        if first is not unit:
            joined[key] = replace(first, more=(*first.more, unit.row))
    return list(joined.values())


def _of_half(rows: Iterable[Row], half: str | None) -> list[Row]:
    if half is None:
        return list(rows)
    odd = ("even", "odd").index(half)
    return [row for row in rows if row.number % 2 == odd]


def _taking_turns(rows: Iterable[Row], limit: int | None) -> Iterator[Row]:
    """The first row of every task, then the second of every task, and so on."""
    queues: dict[str, list[Row]] = {}
    for row in rows:
        queues.setdefault(row.task, []).append(row)
    for turn in zip_longest(*[queue[:limit] for queue in queues.values()]):
        yield from (row for row in turn if row is not None)
