"""The metadata of a GGUF file: its key-value fields, and a check of its length."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType


def read_metadata(path: Path) -> dict[str, Any]:
    """All key-value fields of a GGUF file. Arrays become lists.

    Raises FileNotFoundError, or ValueError if the file is damaged or of an unknown kind. A tensor
    behind the end of the file counts as damage. For a vocabulary of 262,144 tokens this function
    takes half a second, and `gguf.GGUFReader` takes ten seconds.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file. Give the path of a GGUF file.")
    with path.open("rb") as file:
        magic = file.read(4)
        if magic != b"GGUF":
            raise ValueError(
                f"{path}: not a GGUF file: it starts with {magic!r} instead of b'GGUF'. "
                "Give a GGUF file."
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Reader(data).fields()
            except (struct.error, EOFError) as error:
                raise ValueError(
                    f"{path}: the file is cut off or damaged ({error}; {len(data):,} bytes). "
                    "Download it again."
                ) from error
            except (NotImplementedError, UnicodeDecodeError) as error:
                raise ValueError(
                    f"{path}: the file is damaged, or of an unknown kind of GGUF ({error}). "
                    "Download it again, or load the model from its Hub folder."
                ) from error


class _Reader:
    """Reads little-endian GGUF 2 and 3, from the start to the end of the list of tensors."""

    SCALARS = "BbHhIif?  Qqd"  # struct layout by GGUF type number; 8 is a string, 9 an array
    STRING = 8
    ARRAY = 9

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 4

    def fields(self) -> dict[str, Any]:
        (version,) = self.scalars("I")
        if version not in (2, 3):
            raise NotImplementedError(f"GGUF version {version}; allowed are 2 and 3, little-endian")
        tensors, keys = self.scalars("QQ")
        fields: dict[str, Any] = {}
        for _ in range(keys):
            key = self.string()
            fields[key] = self.value(*self.scalars("I"))
        ends = [self.tensor_end() for _ in range(tensors)]
        alignment = int(fields.get("general.alignment", 32))
        start = -(-self.at // alignment) * alignment
        stop = start + max(ends, default=0)
        if stop > len(self.data):
            raise EOFError(f"its tensors end at byte {stop:,}")
        return fields

    def scalars(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return values

    def string(self) -> str:
        (length,) = self.scalars("Q")
        if self.at + length > len(self.data):
            raise EOFError(f"a string ends at byte {self.at + length:,}")
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def value(self, kind: int) -> Any:
        if kind == self.STRING:
            return self.string()
        if kind != self.ARRAY:
            return self.scalars(self.layout(kind))[0]
        inner, count = self.scalars("IQ")
        if count > len(self.data) - self.at:
            raise EOFError(f"an array of {count:,} items")
        if inner in (self.STRING, self.ARRAY):
            return [self.value(inner) for _ in range(count)]
        return list(self.scalars(f"{count}{self.layout(inner)}"))

    def layout(self, kind: int) -> str:
        if kind >= len(self.SCALARS):
            raise NotImplementedError(f"value type {kind}")
        return self.SCALARS[kind]

    def tensor_end(self) -> int:
        """The end of the next tensor in the list, in bytes after the start of the first tensor."""
        self.string()
        (dimensions,) = self.scalars("I")
        elements = 1
        for size in self.scalars(f"{dimensions}Q"):
            elements *= size
        kind, offset = self.scalars("IQ")
        try:
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except ValueError as error:
            raise NotImplementedError(f"tensor type {kind}") from error
        return int(offset + elements // block * block_bytes)
