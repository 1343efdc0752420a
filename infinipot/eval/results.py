"""Results: JSON lines, added one by one, so that a run that was interrupted goes on where it ended."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def identity(record: Record, key: Sequence[str]) -> str:
    """What a record is about, without what came out."""
    return json.dumps([record[name] for name in key], sort_keys=True, ensure_ascii=False)


def lines(path: Path) -> list[Record]:
    """All whole lines of a file. A last line without its end, left by a process that was killed, is
    no result."""
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1].decode("utf-8")
    try:
        return [json.loads(line) for line in whole.splitlines()]
    except ValueError as problem:
        raise ValueError(
            f"{path} is damaged: {problem}. Move it away, or repair the line"
        ) from None


def read(place: Path, name: str, key: Sequence[str]) -> list[Record]:
    """The results of one evaluation in a folder, those of all shards together; each is there once."""
    found: dict[str, Record] = {}
    for path in sorted([*place.glob(f"{name}.jsonl"), *place.glob(f"{name}.*-of-*.jsonl")]):
        for record in lines(path):
            about = identity(record, key)
            if found.setdefault(about, record) != record:
                raise ValueError(
                    f"{path} has another result than the other files for {about}: keep one of them"
                )
    return list(found.values())


class Results:
    """The file that a run writes, NAME.jsonl in a folder, or NAME.I-of-N.jsonl for one of several
    shards; nothing is written twice.

    key: the fields that say what a record is about.
    """

    def __init__(
        self, folder: Path, name: str, key: Sequence[str], shard: tuple[int, int] = (1, 1)
    ) -> None:
        self.folder = folder
        self.name = name
        self.key = tuple(key)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / (
            f"{name}.jsonl" if shard[1] == 1 else f"{name}.{shard[0]}-of-{shard[1]}.jsonl"
        )
        if self.path.exists():
            self._drop_torn_end()
        self.done = {identity(record, self.key) for record in read(folder, name, self.key)}

    def _drop_torn_end(self) -> None:
        text = self.path.read_bytes()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            with open(self.path, "rb+") as file:
                file.truncate(whole)

    def has(self, record: Record) -> bool:
        return identity(record, self.key) in self.done

    def add(self, records: Iterable[Record]) -> None:
        """Append records, whole lines at once, so that a killed run leaves at most one torn line."""
        new = [record for record in records if not self.has(record)]
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in new)
        with open(self.path, "a", encoding="utf-8", newline="\n") as file:
            file.write(text)
        self.done |= {identity(record, self.key) for record in new}

    def settle(self, order: Iterable[Record]) -> None:
        """Put this file's records in the order of the plan, whatever order they came in; what the
        plan does not know stays behind them."""
        if not self.path.exists():
            return
        place = {identity(record, self.key): number for number, record in enumerate(order)}
        found = lines(self.path)
        wanted = sorted(found, key=lambda record: place.get(identity(record, self.key), len(place)))
        if wanted != found:
            write_whole(
                self.path,
                "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in wanted),
            )

    def all(self) -> list[Record]:
        return read(self.folder, self.name, self.key)


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
