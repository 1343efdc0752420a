"""Which documents are read by which methods, with which questions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

from infinipot.eval.methods import Method, method
from infinipot.eval.runner import Model
from infinipot.eval.tasks.document_rows import Document, Question
from infinipot.eval.tasks.documents import Reading


def variants(
    methods: Iterable[Method], base: Mapping[str, Any], preset: str | None, mode: str
) -> list[Method]:
    """The methods in the modes `known`, `unknown` or `both`, as far as each has them.

    A method that does not use a question stays as it is. methods: as made with a question. Raises
    ValueError for a method that does not have the only mode.
    """
    found: list[Method] = []
    for one in methods:
        pair = {one.question: one}
        if one.question == "known":
            other = _without_question(one, base, preset)
            pair.setdefault(other.question, other)
        chosen = [
            pair[name]
            for name in ("unknown", "known", None)
            if name in pair and mode in ("both", name or mode)
        ]
        if not chosen:
            (has,) = pair
            raise ValueError(
                f"--question {mode} is not possible with {one.label}: for it the question is "
                f"always {has}; leave the policy out, or give --question {has}"
            )
        found += chosen
    return found


def _without_question(one: Method, base: Mapping[str, Any], preset: str | None) -> Method:
    """The method for unknown questions. It stays as it is if its catalyst is the question by the
    user's choice."""
    try:
        return method(one.label, base, False, preset)
    except ValueError:
        return one


def plan(
    model: Model,
    methods: Iterable[Method],
    documents: Iterable[Document],
    *,
    limit: int | None = None,
    marked: bool = False,
    max_length: int | None = None,
) -> list[Reading]:
    """All readings. All methods read a document before the next one, and every task gets a document
    before any task gets its next one.

    limit: documents of a task. marked: only questions that the rows mark, `core` for unknown
    questions, `known` for known ones. max_length: see `Reading`.
    """
    listed = list(methods)
    units = []
    for document in _taking_turns(documents, limit):
        for one in listed:
            questions = document.questions
            if marked:
                questions = tuple(question for question in questions if _is_marked(question, one))
            parts = [questions]
            if one.aware:
                parts = [(question,) for question in questions]
            window = None
            if one.windowed:
                window = max_length
            units += [
                Reading(
                    model=model, method=one, document=document, questions=part, max_length=window
                )
                for part in parts
                if part
            ]
    return units


def _is_marked(question: Question, one: Method) -> bool:
    if one.aware:
        return bool(question.known)
    return bool(question.core)


def _taking_turns(documents: Iterable[Document], limit: int | None) -> Iterator[Document]:
    """The first document of every task, then the second of every task, and so on."""
    queues: dict[str, list[Document]] = {}
    for document in documents:
        queues.setdefault(document.task, []).append(document)
    for turn in zip_longest(*[queue[:limit] for queue in queues.values()]):
        yield from (document for document in turn if document is not None)


def of_half(documents: Iterable[Document], half: str | None) -> list[Document]:
    """The documents with `even` or `odd` numbers, or all of them."""
    return [
        document for document in documents if half in (None, ("even", "odd")[document.number % 2])
    ]
