"""Results as JSON lines. They are added one by one, so an interrupted run can continue."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from infinipot.pot_file import destination, put
from infinipot.text.json_text import json_text

Record = dict[str, Any]
TIMES = ("read_s", "answer_s")
"""Fields that differ between equal runs."""


def identity(record: Record, key: Sequence[str]) -> str:
    """The fields of `key` as one string: what was measured, without the outcome. Fields that came later
    than a record count as None."""
    return json.dumps([record.get(name) for name in key], sort_keys=True, ensure_ascii=False)


def lines(path: Path) -> list[Record]:
    """All complete lines of a file. The process may have stopped inside the last line, so a last
    line without a newline is ignored."""
    text = path.read_bytes()
    complete = text[: text.rfind(b"\n") + 1].decode("utf-8")
    try:
        return [json.loads(line) for line in complete.split("\n")[:-1]]
    except ValueError as problem:
        raise ValueError(f"{path} is damaged: {problem}. Move the file, or repair it") from None


def read(place: Path, name: str, key: Sequence[str]) -> list[Record]:
    """The results of one evaluation in a folder, from all shards, without duplicates."""
    records: dict[str, Record] = {}
    for path in sorted([*place.glob(f"{name}.jsonl"), *place.glob(f"{name}.*-of-*.jsonl")]):
        for record in lines(path):
            about = identity(record, key)
            if _outcome(records.setdefault(about, record)) != _outcome(record):
                raise ValueError(
                    f"{path} has another result than the other files for {about}: delete one of "
                    "the two"
                )
    return list(records.values())


def _outcome(record: Record) -> Record:
    return {name: value for name, value in record.items() if name not in TIMES}


class Results:
    """The result file of a run. No result is written twice.

    The file is NAME.jsonl in the folder, or NAME.I-of-N.jsonl for one of several shards. key: the
    fields that identify a record.
    """

    def __init__(
        self, folder: Path, name: str, key: Sequence[str], shard: tuple[int, int] = (1, 1)
    ) -> None:
        self.folder = folder
        self.name = name
        self.key = tuple(key)
        folder.mkdir(parents=True, exist_ok=True)
        number, count = shard
        if count == 1:
            ending = "jsonl"
        else:
            ending = f"{number}-of-{count}.jsonl"
        self.path = folder / f"{name}.{ending}"
        if self.path.exists():
            self._drop_incomplete_line()
        self.done = {identity(record, self.key) for record in read(folder, name, self.key)}

    def _drop_incomplete_line(self) -> None:
        text = self.path.read_bytes()
        complete = text.rfind(b"\n") + 1
        if complete < len(text):
            with open(self.path, "rb+") as file:
                file.truncate(complete)

    def has(self, record: Record) -> bool:
        return identity(record, self.key) in self.done

    def add(self, records: Iterable[Record]) -> None:
        """Append records in one write, so a killed run leaves at most one incomplete line."""
        new = [record for record in records if not self.has(record)]
        text = _as_lines(new)
        with open(self.path, "a", encoding="utf-8", newline="\n") as file:
            file.write(text)
        self.done |= {identity(record, self.key) for record in new}

    def settle(self, order: Iterable[Record]) -> None:
        """Sort the file's records by the order of the plan. Records outside the plan come last."""
        if not self.path.exists():
            return
        place = {identity(record, self.key): number for number, record in enumerate(order)}
        records = lines(self.path)
        ordered = sorted(records, key=lambda r: place.get(identity(r, self.key), len(place)))
        if ordered != records:
            write_whole(self.path, _as_lines(ordered))

    def all(self) -> list[Record]:
        return read(self.folder, self.name, self.key)


def _as_lines(records: Iterable[Record]) -> str:
    return "".join(json_text(record) + "\n" for record in records)


def write_whole(path: Path, text: str) -> None:
    """Write a file completely or not at all. Raises PotFileError for devices, pipes and folders."""
    put(destination(path), text.encode())
