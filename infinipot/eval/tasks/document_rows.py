"""Documents with several questions each, from JSON lines."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infinipot.checks import known
from infinipot.eval.short_answers import ALL_METRICS
from infinipot.eval.tasks.document_fields import (
    asked,
    check_answers,
    check_names,
    limit_of,
    mark_of,
    options_of,
    text_of,
    texts_of,
)

MAX_TOKENS = {
    "choice": 12,
    "place": 12,
    "count": 12,
    "retrieval": 12,
    "retrieval_zh": 12,
    "exact": 32,
    "contains": 32,
    "classification": 64,
    "code": 64,
    "f1": 64,
    "f1_zh": 64,
    "parts": 128,
    "rouge": 256,
    "rouge_zh": 256,
}
"""Most tokens of an answer, for rows that do not say it."""
ENDINGS = (".jsonl", ".jsonl.gz")
FIELDS = (
    "task", "doc", "id", "document", "context", "intro", "ask", "metric", "max_tokens", "choices",
    "questions",
)  # fmt: skip
QUESTION_FIELDS = (
    "id", "question", "answers", "kind", "options", "metric", "max_tokens", "core", "known",
)  # fmt: skip


@dataclass(frozen=True)
class Question:
    """prompt: the question as it is asked. classes: the texts that the metric chooses among. core,
    known: the row's marks, for a question that is asked of the pot, or with a reading of its own,
    in a short run; None without a mark."""

    id: str
    prompt: str
    answers: tuple[str, ...]
    metric: str
    max_tokens: int
    classes: tuple[str, ...] = ()
    kind: str = ""
    core: bool | None = None
    known: bool | None = None

    def score(self, prediction: str) -> float:
        """The best score over all right answers, 0 .. 1."""
        measure = ALL_METRICS[self.metric]
        return max(measure(prediction, answer, self.classes) for answer in self.answers)


@dataclass(frozen=True)
class Document:
    """number: its place among the documents of its task, from 0. text: introduction and document."""

    task: str
    id: str
    number: int
    text: str
    questions: tuple[Question, ...]

    def digest(self, question: Question) -> str:
        """What text, question and answers are, in eight letters: results of changed rows are not
        mixed."""
        content = [self.text, question.prompt, question.answers, question.metric]
        whole = json.dumps([*content, question.max_tokens, question.classes])
        return hashlib.sha256(whole.encode()).hexdigest()[:8]


def read_documents(place: Path, names: Sequence[str] | None = None) -> list[Document]:
    """The documents of the .jsonl and .jsonl.gz files of a folder, or of one file.

    names: only these tasks. Raises ValueError, with file and line, for a row that is not in the
    form, and for a document that is there twice.
    """
    seen: dict[tuple[str, str], str] = {}
    documents: list[Document] = []
    counts: dict[str, int] = {}
    for path in files(place):
        for number, line in lines(path):
            where = f"{path}, line {number}"
            try:
                row = Row(line, path, number)
                task = row.task
                document = row.document(counts.get(task, 0))
            except ValueError as problem:
                raise ValueError(f"{where}: {problem}") from None
            for what in (document.id, hashlib.sha256(document.text.encode()).hexdigest()):
                before = seen.setdefault((task, what), where)
                if before != where:
                    raise ValueError(
                        f"{where}: document {document.id!r} of {task} is there twice, the first "
                        f"time in {before}: delete one of the two"
                    )
            counts[task] = counts.get(task, 0) + 1
            documents.append(document)
    for name in names or ():
        known("task", name, counts)
    if not documents:
        raise ValueError(f"{place} has no documents: its files are empty")
    return [document for document in documents if not names or document.task in names]


def files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise ValueError(f"there is no folder {place}: give a folder with .jsonl files")
    paths = sorted(path for path in place.iterdir() if path.name.endswith(ENDINGS))
    if not paths:
        raise ValueError(f"{place} has no documents: files must end in {' or '.join(ENDINGS)}")
    return paths


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, with their numbers from 1."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as problem:
        raise ValueError(f"cannot read {path}: {problem}") from None
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            text = line.decode("utf-8").removeprefix("\ufeff")
        except UnicodeDecodeError as problem:
            raise ValueError(
                f"{path}, line {number}: the line is not UTF-8 ({problem.reason}); convert it first"
            ) from None
        if text.strip():
            yield number, text


class Row:
    """A line of a file. Its members raise ValueError that says what is wrong."""

    def __init__(self, line: str, path: Path, number: int) -> None:
        try:
            fields = json.loads(line)
        except ValueError as problem:
            raise ValueError(f"the line is no JSON: {problem}") from None
        if not isinstance(fields, dict):
            raise ValueError("the line must be an object, {...}")
        self.fields = fields
        check_names(fields, FIELDS)
        stem = re.sub(r"\.jsonl(\.gz)?$", "", path.name)
        self.task = text_of(fields, "task", stem.removeprefix("rows_"))
        self.default_id = f"{stem}-{number}"

    def document(self, number: int) -> Document:
        fields = self.fields
        source = "context"
        if "context" in fields and "document" in fields:
            raise ValueError("there are `context` and `document`: give the text once")
        if "context" not in fields:
            source = "document"
        text = text_of(fields, source)
        if not text.strip():
            raise ValueError(f"`{source}` is empty: there is nothing to read")
        name = text_of(fields, "doc", text_of(fields, "id", self.default_id))
        questions = self.questions()
        return Document(self.task, name, number, text_of(fields, "intro", "") + text, questions)

    def questions(self) -> tuple[Question, ...]:
        listed = self.fields.get("questions")
        if not isinstance(listed, list) or not listed:
            raise ValueError("`questions` must be a list of at least one question")
        found: dict[str, Question] = {}
        for number, item in enumerate(listed):
            try:
                question = self.question(item, str(number))
                if question.id in found:
                    raise ValueError(f"the id {question.id!r} is there twice")
            except ValueError as problem:
                raise ValueError(f"question {number + 1}: {problem}") from None
            found[question.id] = question
        return tuple(found.values())

    def question(self, item: Any, number: str) -> Question:
        if not isinstance(item, dict):
            raise ValueError('it must be an object, {"question": ..., "answers": [...]}')
        check_names(item, QUESTION_FIELDS)
        shared = {**self.fields, **item}
        metric = text_of(shared, "metric")
        known("metric", metric, ALL_METRICS)
        options = options_of(item.get("options"))
        answers = texts_of(item, "answers")
        classes = tuple(options) or texts_of(shared, "choices", optional=True)
        check_answers(metric, answers, classes)
        return Question(
            id=text_of(item, "id", number),
            prompt=asked(text_of(shared, "ask", "{question}"), text_of(item, "question"), options),
            answers=answers,
            metric=metric,
            max_tokens=limit_of(shared, MAX_TOKENS[metric]),
            classes=classes,
            kind=text_of(item, "kind", ""),
            core=mark_of(item, "core"),
            known=mark_of(item, "known"),
        )
