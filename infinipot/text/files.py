"""Texts from files: several in order, folders, patterns, documents. Each is read block by block."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import glob
import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from infinipot.text.documents import check_converter, document_text, kind_of, undecided

BLOCK_BYTES = 1 << 14
SHOWN = 5
"""How many files a message names."""
LONGEST_NAME = 4096
"""Characters of the longest name that a file has."""
IN_MEMORY = 1 << 24
"""Bytes of a document from a pipe that stay in memory; a larger one goes to a temporary file."""


class FileText:
    """An iterator over the text of an open file. Raises ValueError where it is no text.

    name: as messages name it. waiting: a context for each read, which may wait for a pipe.
    """

    def __init__(
        self,
        file: BinaryIO,
        name: str,
        waiting: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self.file = file
        self.name = name
        self.waiting = waiting
        self.bytes_read = 0

    def _block(self) -> bytes:
        with self.waiting():
            block: bytes = self.file.read1(BLOCK_BYTES)  # type: ignore[attr-defined]
        self.bytes_read += len(block)
        return block

    def _blocks(self, start: bytes) -> Iterator[bytes]:
        while start:
            yield start
            start = self._block()

    def __iter__(self) -> Iterator[str]:
        start = self._block()
        while undecided(start) and (more := self._block()):
            yield ""
            start += more
        kind = kind_of(start, self.name)
        if kind is None:
            yield from decoded(self._blocks(start), self.name)
        elif self.file.seekable():
            self.file.seek(0)
            yield from document_text(kind, self.file, self.name)
        else:
            import tempfile

            with tempfile.SpooledTemporaryFile(IN_MEMORY) as copy:
                for block in self._blocks(start):
                    copy.write(block)
                copy.seek(0)
                yield from document_text(kind, copy, self.name)  # type: ignore[arg-type]


def decoded(blocks: Iterable[bytes], name: str) -> Iterator[str]:
    """UTF-8 as text, without a byte order mark. What stands before a wrong byte is given; then
    ValueError says where the byte is."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    first = True
    place = 0
    for block in itertools.chain(blocks, (b"",)):
        waiting = len(decoder.getstate()[0])  # bytes of a character that goes on in this block
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as problem:
            byte = problem.object[problem.start]
            yield problem.object[: problem.start].decode("utf-8")
            raise ValueError(
                f"{name} is not UTF-8 at byte {place - waiting + problem.start:,} "
                f"(0x{byte:02x}); convert it first"
            ) from None
        place += len(block)
        if first:
            first = not text
            text = text.removeprefix("\ufeff")
        yield text


def file_text(path: Path) -> Iterator[str]:
    """The text of one file, also .gz. Raises ValueError where it is no text."""
    if path.suffix == ".gz":
        import gzip

        with gzip.open(path, "rb") as unpacked:
            yield from FileText(unpacked, str(path))  # type: ignore[arg-type]
        return
    with path.open("rb") as file:
        yield from FileText(file, str(path))


@dataclasses.dataclass
class Selection:
    """Files in the order in which they are read, and what was left out, as sentences."""

    files: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def add(self, name: str, given: str) -> None:
        """given: the argument that names the file, or its folder or pattern."""
        if name not in self.files:
            self.files.append(name)
        elif name == given:
            self.notes.append(f"{name} is given twice, and read once")


def select(names: Iterable[str]) -> Selection:
    """The files of these names: files, folders with all that lies in them, and patterns (`*.md`).

    `-` is kept as it is. Hidden files and folders are left out of folders. Raises
    FileNotFoundError for a name of nothing, ValueError for folders and patterns without texts.
    """
    selection = Selection()
    for name in names:
        if name == "-" or os.path.isfile(name) or is_stream(name):
            selection.add(name, name)
        elif os.path.isdir(name):
            add_folder(selection, name, files_in(name))
        elif glob.has_magic(name):
            add_folder(selection, name, matches(name))
        else:
            raise FileNotFoundError(f"there is no file {name}")
    return selection


def is_stream(name: str) -> bool:
    """Whether this is a pipe or a device."""
    return os.path.exists(name) and not os.path.isdir(name)


def files_in(folder: str) -> Iterator[str]:
    """All files below a folder, sorted, without hidden ones. Links to folders are given, too, but
    not followed, as they may lead in a circle."""

    def refuse(problem: OSError) -> None:
        raise ValueError(f"cannot read the folder {problem.filename}: {problem.strerror}")

    for root, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        for name in sorted([*names, *links]):
            if not name.startswith("."):
                yield os.path.normpath(os.path.join(root, name))


def matches(pattern: str) -> Iterator[str]:
    for path in sorted(glob.glob(pattern, recursive=True)):
        if os.path.isdir(path):
            yield from files_in(path)
        else:
            yield path


def add_folder(selection: Selection, given: str, paths: Iterator[str]) -> None:
    """Add the texts and documents among these files, and note the others."""
    added = False
    others = []
    for path in paths:
        problem = problem_of(path)
        if problem is None:
            selection.add(path, given)
            added = True
        else:
            others.append(f"{path} ({problem})")
    note = f"left out of {given}: {', '.join(others[:SHOWN])}"
    if len(others) > SHOWN:
        note += f" and {len(others) - SHOWN:,} more"
    if others and not added:
        raise ValueError(f"{given} names no text that can be read; {note}")
    if not added:
        raise ValueError(f"{given} names no file (hidden ones do not count)")
    if others:
        selection.notes.append(note)


def problem_of(path: str) -> str | None:
    """Why a file of a folder is not read; None if it can be."""
    if os.path.isdir(path):
        return "a link to a folder"
    if not os.path.isfile(path):
        return "no file"
    try:
        with open(path, "rb") as file:
            start = file.read(BLOCK_BYTES)
            if not start:
                return "empty"
            kind = kind_of(start, path)
            if kind is not None:
                check_converter(kind, path)
            else:
                file.seek(0)
                for _ in decoded(iter(lambda: file.read(1 << 20), b""), path):
                    pass
    except OSError as problem:
        return problem.strerror or str(problem)
    except ValueError as problem:
        return str(problem).removeprefix(f"{path} is ").partition(". What")[0]
    return None


def mark(name: str, first: bool) -> str:
    """The line that names a file among several."""
    if first:
        return f"[file: {name}]\n\n"
    return f"\n\n[file: {name}]\n\n"


def files_text(paths: Iterable[os.PathLike[str]]) -> Iterator[str]:
    """The text of files and folders, for `Session.append`. Warns of files that it leaves out.

    Raises FileNotFoundError or ValueError at once for files that are missing, empty or no text,
    and for wrong bytes when it comes to them.
    """
    names = []
    for path in paths:
        if not isinstance(path, os.PathLike):
            raise TypeError(f"{path!r:.60} stands among paths: make it a Path, too")
        names.append(os.fspath(path))
    selection = select(names)
    for note in selection.notes:
        warnings.warn(note, stacklevel=5)
    for name in selection.files:
        if is_stream(name) and not os.path.isfile(name):
            continue  # a pipe is read once
        check_file(name)
    return _texts(selection.files)


def warn_of_name(text: str) -> None:
    """Warn of a text that is only the name of a file: its reader would know the name alone."""
    if len(text) < LONGEST_NAME and os.path.isfile(text):
        warnings.warn(
            f"the text is {text!r}, the name of a file, and only this name is read: "
            "append(Path(...)) reads the file",
            stacklevel=4,
        )


def check_file(name: str) -> None:
    """As `check_start`, for a file by its name."""
    with open(name, "rb") as file:
        check_start(file.read(BLOCK_BYTES), name)


def check_start(start: bytes, name: str) -> None:
    """Raise ValueError for a file that is empty, binary, or a document without its converter."""
    if not start:
        raise ValueError(f"{name} is empty: there is nothing to read")
    kind = kind_of(start, name)
    if kind is not None:
        check_converter(kind, name)


def _texts(names: list[str]) -> Iterator[str]:
    for number, name in enumerate(names):
        if len(names) > 1:
            yield mark(name, first=number == 0)
        with open(name, "rb") as file:
            yield from FileText(file, name)
