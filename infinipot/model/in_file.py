"""Embeddings whose rows stay in their file until a text has their tokens."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from infinipot.model.groups import GroupedWeight, finite
from infinipot.model.rounding import CPU, Groups, factors_of, slices

LEAST_WEIGHTS = 1 << 26
"""Smaller embeddings are read whole: they take little memory, and looking up a token takes a larger
part of a small model's time."""


class Place(NamedTuple):
    """Where a matrix begins in a file, and the bytes of a row."""

    path: Path
    start: int
    width: int


class WeightInFile(GroupedWeight):
    """A weight on the CPU that takes no memory. It comes into memory when it is moved, copied or
    saved.

    The rows are read, not mapped: mapped pages would count as this process's memory. The file stays
    open, so another one may take its name meanwhile.
    """

    def __init__(
        self,
        place: Place,
        shape: tuple[int, int],
        form: str,
        convert: Callable[[np.ndarray], Groups],
    ) -> None:
        """convert: rows [n, bytes] of the file -> rows as `GroupedWeight` holds them."""
        nn.Module.__init__(self)
        self.place = place
        self.convert = convert
        self.file = os.open(place.path, os.O_RDONLY)
        self.close = weakref.finalize(self, os.close, self.file)
        self.written = state(self.file)
        self._shape = shape
        self._form = form
        self.width = shape[1]
        self.dtype = torch.float32

    @property
    def form(self) -> str:
        return self._form

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._shape)

    @property
    def device(self) -> torch.device:
        return CPU

    def part(self, rows: slice | Tensor) -> Groups:
        if isinstance(rows, slice):
            first, stop, _ = rows.indices(self._shape[0])
            return self.convert(self._read(first, stop - first))
        ids, places = rows.unique(return_inverse=True)
        if ids.numel() and not 0 <= int(ids[0]) <= int(ids[-1]) < self._shape[0]:
            raise IndexError(
                f"ids from {ids[0]} to {ids[-1]} are not allowed: the embedding has {self._shape[0]} rows"
            )
        read = [self._read(row, 1) for row in ids.tolist() or [0]]  # nothing cannot be converted
        numbers, scale, low = self.convert(np.concatenate(read))
        return numbers[places], scale[places], low if low is None else low[places]

    def _read(self, first: int, count: int) -> np.ndarray:
        """Rows as the file has them: uint8 [count, bytes]. Raises OSError if it was written to."""
        if state(self.file) != self.written:
            raise self._changed()
        content = np.empty(count * self.place.width, np.uint8)
        left = content.data
        at = self.place.start + first * self.place.width
        while left:
            got = os.preadv(self.file, [left], at)
            if not got:
                raise self._changed()
            left = left[got:]
            at += got
        return content.reshape(count, self.place.width)

    def _changed(self) -> OSError:
        return OSError(
            f"{self.place.path} was changed while its model was in use: load the model again. A file "
            "that takes its name does no harm"
        )

    def finite(self) -> bool:
        parts = (self.part(rows) for rows in slices(*self._shape, CPU))
        return all(finite(x) for part in parts for x in factors_of(part))

    def into_memory(self) -> None:
        whole = GroupedWeight.by_rows(self._shape, self._form, CPU, self.part)
        whole.compute_in(self.dtype)
        self.close()
        self.__class__ = GroupedWeight  # type: ignore[assignment]
        self.__dict__ = whole.__dict__

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GroupedWeight:
        sample = fn(torch.empty(0, dtype=self.dtype))
        if sample.device == CPU:
            self.dtype = sample.dtype
            return self
        self.into_memory()
        return self._apply(fn, recurse)

    def _save_to_state_dict(self, *args: Any) -> None:
        self.into_memory()
        self._save_to_state_dict(*args)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.into_memory()
        return self.__reduce_ex__(protocol)


def state(file: int) -> tuple[int, int]:
    """Size and time of the last change of an open file."""
    found = os.fstat(file)
    return found.st_size, found.st_mtime_ns


def stays_in_file(
    model: PreTrainedModel, name: str, module: nn.Module, device: torch.device
) -> bool:
    """Whether a weight of this name is left in its file: that of a large embedding on a CPU, which no
    output layer shares."""
    if device != CPU or not isinstance(module, nn.Embedding) or not hasattr(os, "preadv"):
        return False
    tied = any(name in pair for pair in model.all_tied_weights_keys.items())
    large = math.prod(module.weight.shape) >= LEAST_WEIGHTS  # type: ignore[arg-type]
    return large and not tied
