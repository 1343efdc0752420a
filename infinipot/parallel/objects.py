"""Calls as bytes: objects that all ranks have are sent as numbers, tensors by the device's own
broadcast."""

from __future__ import annotations

import io
import pickle
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Known:
    """Objects of rank 0 that the other ranks have, too, by number. It does not keep them alive."""

    def __init__(self, kinds: tuple[type, ...]) -> None:
        """kinds: classes of such objects."""
        self.kinds = kinds
        self.numbers: dict[int, tuple[str, int]] = {}
        """By `id` of an object: what it is, and its number."""
        self.gone: list[int] = []
        """Numbers of objects that rank 0 has no more."""

    def add(self, number: int, thing: Any) -> None:
        """Note an object, if it is of the kinds."""
        if not isinstance(thing, self.kinds):
            return
        parts = {"object": thing}
        if hasattr(thing, "last_ids"):
            parts["newest"] = thing.last_ids
        for word, part in parts.items():
            self.numbers[id(part)] = (word, number)
        keys = [id(part) for part in parts.values()]
        weakref.finalize(thing, self._forget, number, keys).atexit = False

    def _forget(self, number: int, keys: Iterable[int]) -> None:
        for key in keys:
            self.numbers.pop(key, None)
        self.gone.append(number)

    def take_gone(self) -> list[int]:
        gone = self.gone
        self.gone = []
        return gone


class Sender(pickle.Pickler):
    """Writes a call. `tensors`: those that have to be broadcast."""

    def __init__(self, file: io.BytesIO, known: Known) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.known = known
        self.tensors: list[Tensor] = []

    def persistent_id(self, thing: Any) -> Any:
        place = self.known.numbers.get(id(thing))
        if place is not None:
            return place
        if isinstance(thing, self.known.kinds):
            raise pickle.PicklingError(f"a {type(thing).__name__} that other ranks do not have")
        if isinstance(thing, Tensor) and thing.is_cuda:
            self.tensors.append(thing)
            return ("tensor", tuple(thing.shape), thing.dtype)
        return None


class Receiver(pickle.Unpickler):
    """Reads a call. objects: those of this rank, by number."""

    def __init__(self, file: io.BytesIO, objects: dict[int, Any], device: torch.device) -> None:
        super().__init__(file)
        self.objects = objects
        self.device = device
        self.tensors: list[Tensor] = []

    def persistent_load(self, place: Any) -> Any:
        word, *what = place
        if word == "tensor":
            shape, dtype = what
            self.tensors.append(torch.empty(shape, dtype=dtype, device=self.device))
            return self.tensors[-1]
        thing = self.objects[what[0]]
        if word == "newest":
            return thing.newest
        return thing


def packed(call: Any, known: Known) -> tuple[bytes, list[Tensor]]:
    """A call as bytes, and the tensors in it, which `broadcast` sends."""
    file = io.BytesIO()
    sender = Sender(file, known)
    sender.dump(call)
    return file.getvalue(), sender.tensors


def broadcast(tensors: Sequence[Tensor]) -> None:
    """Send the tensors of rank 0 to all ranks, which have others of the same shapes."""
    for tensor in tensors:
        dist.broadcast(tensor.contiguous(), src=0)
