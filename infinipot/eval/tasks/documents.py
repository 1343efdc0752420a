"""Documents with several questions each: read once and asked often, or read for every question."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from infinipot.eval import grouped
from infinipot.eval.methods import Method
from infinipot.eval.results import Record
from infinipot.eval.runner import Model, Replica
from infinipot.eval.tasks.document_rows import Document, Question
from infinipot.eval.teacher_forcing import head_tokens, open_session
from infinipot.session import Session
from infinipot.text.chat_template import Dialogue
from infinipot.text.tokens import fragment

NAME = "documents"
KEY = (
    "model",
    "dtype",
    "method",
    "question",
    "options",
    "max_length",
    "task",
    "document",
    "id",
    "digest",
)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One document, read once by one method, with questions of which each meets the same pot.

    A method whose catalyst is the question has one question. max_length: most tokens of the text,
    its questions aside, for methods that the model's window limits; None for that window.
    """

    model: Model
    method: Method
    document: Document
    questions: tuple[Question, ...]
    max_length: int | None = None

    @property
    def title(self) -> str:
        name = f"{self.document.task} {self.document.number + 1}"
        if self.method.aware:
            name += f", question {self.questions[0].id}"
        return f"{self.method.label} · {name}"

    def keys(self) -> list[Record]:
        return [
            {
                **self.model.about,
                "method": self.method.label,
                "question": self.method.question,
                "options": self.method.options,
                "max_length": self.max_length,
                "task": self.document.task,
                "document": self.document.id,
                "id": question.id,
                "digest": self.document.digest(question),
            }
            for question in self.questions
        ]

    def run(self, replica: Replica) -> list[Record]:
        text, tokens = self._text(replica)
        session = open_session(replica, self.method.config)
        asked = None
        if self.method.aware:
            asked = self.questions[0].prompt
        started = time.perf_counter()
        session.append(text, question=asked)
        read_s = seconds_since(started)
        return [
            {
                **key,
                "number": self.document.number,
                "kind": question.kind,
                **answered(session, question, question.prompt),
                "text_tokens": tokens,
                "fits": self._fits(replica, tokens, question),
                "read_s": read_s,
            }
            for key, question in zip(self.keys(), self.questions, strict=True)
        ]

    def _text(self, replica: Replica) -> tuple[str, int]:
        """The text, and its number of tokens. What exceeds the window is cut out of its middle, in
        LongBench's way: decode both halves, and join them."""
        tokenizer = replica.tokenizer
        cache = f"document {hash(self.document.text)}"
        if cache not in replica.cache:
            for name in [name for name in replica.cache if name.startswith("document ")]:
                del replica.cache[name]
            replica.cache[cache] = fragment(tokenizer, self.document.text)
        ids = replica.cache[cache]
        longest = self._longest(replica)
        if longest is None or len(ids) <= longest:
            return self.document.text, len(ids)
        half = longest // 2
        halves = [
            tokenizer.decode(part, skip_special_tokens=True) for part in (ids[:half], ids[-half:])
        ]
        return "".join(map(str, halves)), len(ids)

    def _longest(self, replica: Replica) -> int | None:
        """The most tokens of the text, None for no limit."""
        if not self.method.windowed or self.max_length is not None:
            return self.max_length
        config = replica.runner.model.config.get_text_config()
        window: int | None = getattr(config, "max_position_embeddings", None)
        if window is None:
            return None
        return max(2, window - max(self._around(replica, question) for question in self.questions))

    def _around(self, replica: Replica, question: Question) -> int:
        """The tokens beside the text: chat template, question and answer."""
        dialogue = Dialogue(replica.tokenizer, None, True)
        dialogue.in_text = True
        asked = len(dialogue.question(question.prompt))
        return head_tokens(replica) + asked + question.max_tokens

    def _fits(self, replica: Replica, tokens: int, question: Question) -> bool | None:
        """Whether the pot holds all of the text, question and answer. None without a pot."""
        if not (self.method.policy.bounded or self.method.policy.cuts):
            return None
        return tokens + self._around(replica, question) <= self.method.config.pot_size


def seconds_since(started: float) -> float:
    """Seconds since `started`, with the work that a GPU still has to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return round(time.perf_counter() - started, 3)


def answered(session: Session, question: Any, prompt: str | list[int]) -> Record:
    """Ask the session, and score the answer. question: has `max_tokens`, and `score`, which rates an
    answer from 0 to 1."""
    started = time.perf_counter()
    answer = session.stream(prompt, max_tokens=question.max_tokens)
    text = "".join(answer)
    answer_s = seconds_since(started)
    stats = session.stats
    return {
        "score": round(100 * question.score(text), 4),
        "answer": text,
        "tokens": len(answer.ids),
        "tokens_read": stats.tokens_read,
        "distillations": stats.distillations,
        "peak_entries": stats.peak_entries,
        "answer_s": answer_s,
    }


def write(
    records: Sequence[Record], folder: Path, against: str | None = None
) -> tuple[str, list[Path]]:
    """Write the tables. Documents that every pot holds entirely have tables of their own."""
    texts = [
        grouped.report(some, f"{half_of(records)}documents{title}", against)
        for title, some in grouped.by_fit(records).items()
    ]
    text = "\n\n".join([*texts, *cut_by_window(records), grouped.seconds(records)])
    (folder / f"{NAME}.md").write_text(text, "utf-8")
    return text, [folder / f"{NAME}.md"]


def half_of(records: Iterable[Record]) -> str:
    """Which half the documents are, if they are one: options that were chosen on one half are
    reported on the other."""
    numbers = {record["number"] for record in records}
    odd = {number % 2 for number in numbers}
    if len(odd) == 2 or numbers == {0}:
        return ""
    return {0: "even ", 1: "odd "}[odd.pop()]


def cut_by_window(records: Iterable[Record]) -> list[str]:
    """A sentence about documents of which full context has not read all."""
    cut = {
        grouped.place(record)
        for record in records
        if record["fits"] is None and record["tokens_read"] < record["text_tokens"]
    }
    if not cut:
        return []
    return [
        f"Full context has read start and end of {len(cut)} documents that exceed the model's "
        "window, or --max-length.\n"
    ]
