"""Tensors that stay in their safetensors file until they are needed, a few rows at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from infinipot.model.folder import tensors_of

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""safetensors' names of types."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file. It is read, not mapped: mapped pages would count as this process's memory.

    start: its first byte. whole: whether it is read as soon as it is indexed, as transformers does.
    """

    path: Path
    start: int
    dtype: torch.dtype
    shape: torch.Size
    whole: bool

    def rows(self, first: int, stop: int) -> Tensor:
        """Rows `first` to `stop`, of its own type."""
        width = math.prod(self.shape[1:])
        size = self.dtype.itemsize
        content = np.fromfile(
            self.path,
            dtype=np.uint8,
            count=(stop - first) * width * size,
            offset=self.start + first * width * size,
        )
        return torch.from_numpy(content).view(self.dtype).view(-1, *self.shape[1:])

    def read(self) -> Tensor:
        if not self.shape or 0 in self.shape:
            count = math.prod(self.shape) * self.dtype.itemsize
            content = np.fromfile(self.path, dtype=np.uint8, count=count, offset=self.start)
            return torch.from_numpy(content).view(self.dtype).view(self.shape)
        return self.rows(0, self.shape[0])

    def __getitem__(self, _: Any) -> Any:
        return self.read() if self.whole else self

    def to(self, *args: Any, **kwargs: Any) -> StoredTensor:
        return self

    def get_dtype(self) -> str:
        return next(name for name, dtype in TYPES.items() if dtype == self.dtype)

    def get_shape(self) -> list[int]:
        return list(self.shape)


def stored_tensors(shards: list[Path], in_parts: set[str]) -> dict[str, StoredTensor]:
    """The tensors of safetensors files by name. in_parts: those that are read a few rows at a time."""
    found = {}
    for path in shards:
        with path.open("rb") as file:
            base = 8 + int.from_bytes(file.read(8), "little")
        for name, about in tensors_of(path).items():
            found[name] = StoredTensor(
                path,
                base + about["data_offsets"][0],
                TYPES[about["dtype"]],
                torch.Size(about["shape"]),
                name not in in_parts,
            )
    return found
