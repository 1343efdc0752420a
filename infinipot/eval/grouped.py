"""Tables of scores of questions, many of which share a document."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from infinipot.eval.results import Record
from infinipot.eval.stats import grouped_difference, mean
from infinipot.eval.tables import markdown, name_key, names, number

Scores = dict[str, dict[str, dict[str, float]]]
"""Task -> document -> question -> score, 0 .. 100."""


def place(record: Record) -> tuple[str, str]:
    """The document of a record."""
    return record["task"], record["document"]


def by_fit(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records by what a title says of their documents: those that the pot of some method does
    not hold with question and answer, and those that every pot holds. Without a pot they are not
    told apart."""
    if all(record["fits"] is None for record in records):
        return {"": list(records)}
    longer = {place(record) for record in records if record["fits"] is False}
    found: dict[str, list[Record]] = {}
    for record in records:
        title = " that fit into the pot"
        if place(record) in longer:
            title = " longer than the pot"
        found.setdefault(title, []).append(record)
    return dict(sorted(found.items()))


def method_names(records: Sequence[Record]) -> dict[str, str]:
    """`name_key` -> `infinipot (known)`, in order of appearance. Options are in a name only if they
    tell methods of the same mode apart."""
    found: dict[str, str] = {}
    for mode in {record["question"] for record in records}:
        found |= names([record for record in records if record["question"] == mode])
    order = dict.fromkeys(name_key(record) for record in records)
    return {key: re.sub(r", question (known|unknown)", r" (\1)", found[key]) for key in order}


@dataclass(frozen=True)
class Table:
    """Scores of the questions that every method has answered.

    scores: by name of the method. rows: (task, document, question) -> row of the table. full: the
    name of full context among the methods, if it is there. left_out: questions that some method has
    not answered.
    """

    scores: dict[str, Scores]
    rows: dict[tuple[str, str, str], str]
    full: str | None
    left_out: int

    @classmethod
    def of(cls, records: Sequence[Record], by: str) -> Table:
        """by: the field of the rows, `task` or `kind`."""
        name_of = method_names(records)
        points: dict[str, dict[tuple[str, str, str], float]] = {}
        rows: dict[tuple[str, str, str], str] = {}
        for record in records:
            asked = (*place(record), f"{record['id']} {record['digest']}")
            points.setdefault(name_of[name_key(record)], {})[asked] = record["score"]
            rows[asked] = record[by]
        shared = set.intersection(*[set(answered) for answered in points.values()])
        scores: dict[str, Scores] = {}
        for name, answered in points.items():
            tasks = scores.setdefault(name, {})
            for one in (one for one in rows if one in shared):
                task, document, question = one
                tasks.setdefault(task, {}).setdefault(document, {})[question] = answered[one]
        full = [name_of[name_key(record)] for record in records if record["method"] == "full"]
        kept = {one: row for one, row in rows.items() if one in shared}
        return cls(scores, kept, next(iter(full), None), len(rows) - len(shared))

    def means(self, name: str) -> dict[str, float]:
        """The mean of each row over its questions."""
        cells: dict[str, list[float]] = {}
        for (task, document, question), row in self.rows.items():
            cells.setdefault(row, []).append(self.scores[name][task][document][question])
        return {row: sum(values) / len(values) for row, values in cells.items()}

    def total(self, name: str) -> float:
        """The mean of task means, each over all its questions."""
        means = []
        for documents in self.scores[name].values():
            values = [score for questions in documents.values() for score in questions.values()]
            means.append(sum(values) / len(values))
        return sum(means) / len(means)

    def text(self, first: str, last: str) -> str:
        """Rows down, methods across; at the end the total, and its share of full context's.

        first: the head of the first column. last: the name of the total.
        """
        means = {name: self.means(name) for name in self.scores}
        lines = []
        for row in dict.fromkeys(self.rows.values()):
            inside = [question for question, name in self.rows.items() if name == row]
            documents = len({(task, document) for task, document, _ in inside})
            cells = [number(values[row]) for values in means.values()]
            lines.append([row or "–", str(documents), str(len(inside)), *cells])
        totals = [self.total(name) for name in self.scores]
        documents = len({(task, document) for task, document, _ in self.rows})
        bold = [f"**{number(total)}**" for total in totals]
        lines.append([f"**{last}**", str(documents), str(len(self.rows)), *bold])
        if self.full is not None and (best := self.total(self.full)) > 0:
            shares = [number(100 * total / best) for total in totals]
            lines.append(["share of full context, %", "", "", *shares])
        return markdown([first, "documents", "questions", *self.scores], lines)

    def differences(self, against: str) -> str:
        """For every other method: its total less that of `against`, with an interval by document."""
        lines = []
        for name, scores in self.scores.items():
            if name == against:
                continue
            gap, interval = grouped_difference(self.scores[against], scores)
            cells = ["– (a task has one document)", "–"]
            if interval:
                low, high = interval
                cells = [f"{low:+.1f} to {high:+.1f}", "yes" if low > 0 or high < 0 else "no"]
            lines.append([name, f"{gap:+.1f}", *cells])
        head = [f"against {against}", "difference", "95 % interval by document", "beyond chance"]
        return markdown(head, lines)


def seconds(records: Sequence[Record]) -> str:
    """How long each method took: the mean of readings and of answers, in seconds."""
    name_of = method_names(records)
    lines = []
    for key, name in name_of.items():
        own = [record for record in records if name_key(record) == key]
        readings = {
            (*place(record), record["id"] if record["question"] == "known" else ""): record
            for record in own
        }
        lines.append(
            [
                name,
                str(len(readings)),
                number(mean([record["read_s"] for record in readings.values()]), 2),
                number(mean([record["answer_s"] for record in own]), 2),
                number(mean([record["distillations"] for record in readings.values()])),
            ]
        )
    head = ["seconds", "readings", "a reading", "an answer", "distillations"]
    return markdown(head, lines)


def report(
    records: Sequence[Record], title: str, against: str | None = None, by: str = "task"
) -> str:
    """The table and the differences.

    Known and unknown questions have tables of their own if they are not the same questions.
    against: label of a method; None for the first one. by: the field of the table's rows.
    """
    models = ", ".join(sorted({record["model"] for record in records}))
    texts = []
    for mode, some in parts(records).items():
        table = Table.of(some, by)
        head = " · ".join([title, *mode, models])
        if not table.rows:
            texts.append(f"{head}: no question has been answered by every method yet")
            continue
        if table.left_out:
            head += (
                f" · left out, as not every method has answered them: {table.left_out} questions"
            )
        last = {"task": "mean of tasks", "kind": "all"}[by]
        text = f"{head}\n\n{table.text(by, last)}"
        if len(table.scores) > 1:
            text += f"\n{table.differences(reference(some, against))}"
        texts.append(text)
    return "\n\n".join(texts)


def parts(records: Sequence[Record]) -> dict[tuple[str, ...], list[Record]]:
    """All records, or those of unknown and of known questions apart if these are not the same
    questions. Methods that do not use a question are in both parts."""
    asked: dict[str | None, set[tuple[str, ...]]] = {}
    for record in records:
        asked.setdefault(record["question"], set()).add((*place(record), record["id"]))
    modes = [mode for mode in ("unknown", "known") if mode in asked]
    if len(modes) < 2 or asked["known"] == asked["unknown"]:
        return {(): list(records)}
    return {
        (f"question {mode}",): [record for record in records if record["question"] in (None, mode)]
        for mode in modes
    }


def reference(records: Sequence[Record], against: str | None) -> str:
    """The name of the method to compare with: the first one with this label, else the first."""
    name_of = method_names(records)
    matches = [record for record in records if record["method"] == against]
    return name_of[name_key([*matches, *records][0])]
