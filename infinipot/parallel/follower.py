"""A rank that follows: it does what rank 0 does, with its own part of the model."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import warnings
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from infinipot.parallel.followers import classes, join, named
from infinipot.parallel.objects import Receiver, broadcast

MODEL = 1
"""The number of the first call, which loads the model."""


class Follower:
    """Runs the calls of rank 0, and keeps their results as long as rank 0 does."""

    def __init__(self, pipe: Connection, device: torch.device) -> None:
        self.pipe = pipe
        self.device = device
        self.kinds = classes()
        self.objects: dict[int, Any] = {}

    def follow(self) -> None:
        """Run calls until rank 0 ends."""
        while message := self.pipe.recv_bytes():
            number = int.from_bytes(message[:8], "big")
            count = int.from_bytes(message[8:16], "big")
            start = 16 + 8 * count
            for place in range(16, start, 8):
                self.objects.pop(int.from_bytes(message[place : place + 8], "big"), None)
            try:
                self._call(number, message[start:])
            except Exception as problem:
                text = f"{type(problem).__name__}: {problem}"
                self.pipe.send(("failed", number, type(problem).__name__, text))

    def _call(self, number: int, text: bytes) -> None:
        receiver = Receiver(io.BytesIO(text), self.objects, self.device)
        name, args, kwargs = receiver.load()
        broadcast(receiver.tensors)
        result = named(name)(*args, **kwargs)
        if isinstance(result, self.kinds):
            self.objects[number] = result
        if number == MODEL:
            self.pipe.send(("loaded", number))


def end_with_rank_0(life: int) -> None:
    """End this process as soon as rank 0 ends."""
    os.read(life, 1)
    os._exit(0)


def main() -> None:
    """The process: the connection and the pipe `life` are its arguments, as file numbers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")  # rank 0 warns
    pipe = Connection(int(sys.argv[1]))
    threading.Thread(target=end_with_rank_0, args=(int(sys.argv[2]),), daemon=True).start()
    rank, count, device, store = pipe.recv()
    place = torch.device(device)
    join(rank, count, place, store)
    if place.type == "cuda":
        place = torch.device("cuda", rank)
    with torch.no_grad():
        Follower(pipe, place).follow()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
