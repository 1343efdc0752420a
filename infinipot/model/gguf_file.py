"""A GGUF file: its key-value fields, its tensors, and a check of its length."""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from infinipot.model.folder import check_file

LENGTH = struct.Struct("<Q")
"""How long a string is. A vocabulary has many."""
TOGETHER = 8
"""Rows that gguf unpacks as one, where their number allows: it is much faster with longer rows."""


@dataclass(frozen=True)
class TensorEntry:
    """A tensor in the file. shape: as torch has it. start: bytes from the first tensor."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    size: int


@dataclass(frozen=True)
class GGUFFile:
    """path: the file. fields: its keys and values. start: byte where the first tensor begins."""

    path: Path
    fields: dict[str, Any]
    tensors: dict[str, TensorEntry]
    start: int

    @property
    def architecture(self) -> str:
        return str(self.fields.get("general.architecture"))

    def array(self, name: str) -> np.ndarray:
        """A tensor's numbers, float32, unpacked."""
        entry = self.tensors[name]
        content = np.fromfile(
            self.path, dtype=np.uint8, count=entry.size, offset=self.start + entry.start
        )
        count = math.prod(entry.shape[:-1])
        rows = content.reshape(count // math.gcd(count, TOGETHER), -1)
        return dequantize(rows, entry.kind).reshape(entry.shape).astype(np.float32, copy=False)

    def rows(self, name: str, first: int, stop: int) -> np.ndarray:
        """Rows of a matrix as the file packs them: uint8 [rows, bytes]."""
        entry = self.tensors[name]
        width = entry.size // entry.shape[0]
        start = self.start + entry.start + first * width
        count = (stop - first) * width
        content = np.fromfile(self.path, dtype=np.uint8, count=count, offset=start)
        return content.reshape(-1, width)

    def numbers(self, name: str) -> list[float]:
        return [float(x) for x in self.array(name).flatten()]


def read_metadata(path: Path) -> dict[str, Any]:
    """All key-value fields of a GGUF file, as `read_file` does."""
    return read_file(path).fields


def read_file(path: Path) -> GGUFFile:
    """Metadata and list of tensors of a GGUF file. Arrays become lists.

    Raises FileNotFoundError, or ValueError if the file is damaged or of an unknown kind. A tensor
    behind the end of the file counts as damage. For a vocabulary of 262,144 tokens this function
    takes half a second, and `gguf.GGUFReader` takes ten seconds.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file. Give the path of a GGUF file.")
    check_file(path)
    with path.open("rb") as file:
        magic = file.read(4)
        if magic != b"GGUF":
            raise ValueError(
                f"{path}: not a GGUF file: it starts with {magic!r} instead of b'GGUF'. "
                "Give a GGUF file."
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Reader(data).file(path)
            except (struct.error, EOFError) as error:
                raise ValueError(
                    f"{path}: the file is cut off or damaged ({error}; {len(data):,} bytes). "
                    "Download it again."
                ) from error
            except (UnknownKind, UnicodeDecodeError, RecursionError) as error:
                raise ValueError(
                    f"{path}: the file is damaged, or of an unknown kind of GGUF ({error}). "
                    "Download it again, or load the model from its Hub folder."
                ) from error


class UnknownKind(Exception):
    """Something in a file that this reader does not know."""


class _Reader:
    """Reads little-endian GGUF 2 and 3, from the start to the end of the list of tensors."""

    SCALARS = "BbHhIif?  Qqd"  # struct layout by GGUF type number; 8 is a string, 9 an array
    STRING = 8
    ARRAY = 9

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 4

    def file(self, path: Path) -> GGUFFile:
        (version,) = self.scalars("I")
        if version not in (2, 3):
            raise UnknownKind(f"GGUF version {version}; allowed are 2 and 3, little-endian")
        tensors, keys = self.scalars("QQ")
        fields: dict[str, Any] = {}
        for _ in range(keys):
            key = self.string()
            fields[key] = self.value(*self.scalars("I"))
        entries = dict(self.tensor() for _ in range(tensors))
        alignment = fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise UnknownKind(f"general.alignment {alignment!r:.50}")
        start = -(-self.at // alignment) * alignment
        stop = start + max((entry.start + entry.size for entry in entries.values()), default=0)
        if stop > len(self.data):
            raise EOFError(f"its tensors end at byte {stop:,}")
        return GGUFFile(path, fields, entries, start)

    def scalars(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return values

    def string(self) -> str:
        start = self.at + LENGTH.size
        (length,) = LENGTH.unpack_from(self.data, self.at)
        self.at = start + length
        if self.at > len(self.data):
            raise EOFError(f"a string ends at byte {self.at:,}")
        return self.data[start : self.at].decode()

    def value(self, kind: int) -> Any:
        if kind == self.STRING:
            return self.string()
        if kind != self.ARRAY:
            return self.scalars(self.layout(kind))[0]
        inner, count = self.scalars("IQ")
        if count > len(self.data) - self.at:
            raise EOFError(f"an array of {count:,} items")
        if inner == self.STRING:
            return [self.string() for _ in range(count)]
        if inner == self.ARRAY:
            return [self.value(inner) for _ in range(count)]
        return list(self.scalars(f"{count}{self.layout(inner)}"))

    def layout(self, kind: int) -> str:
        if kind >= len(self.SCALARS):
            raise UnknownKind(f"value type {kind}")
        return self.SCALARS[kind]

    def tensor(self) -> tuple[str, TensorEntry]:
        """Name and place of the next tensor in the list."""
        name = self.string()
        (dimensions,) = self.scalars("I")
        shape = tuple(reversed(self.scalars(f"{dimensions}Q")))
        kind, offset = self.scalars("IQ")
        try:
            number = GGMLQuantizationType(kind)
        except ValueError as error:
            raise UnknownKind(f"tensor type {kind}") from error
        block, block_bytes = GGML_QUANT_SIZES[number]
        size = math.prod(shape) // block * block_bytes
        return name, TensorEntry(shape, number, offset, size)
