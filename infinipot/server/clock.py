"""How long a device works."""

from __future__ import annotations

import time

import torch


class Stopwatch:
    """Measures the work that a device is given between `__init__` and `stop`, in seconds.

    A GPU works on while the host goes on: nothing waits until `seconds` is asked for.
    """

    def __init__(self, device: torch.device) -> None:
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        self._started = time.perf_counter()
        self._stopped = self._started
        if device.type == "cuda":
            self._stream = torch.cuda.current_stream(device)
            self._events = (
                torch.cuda.Event(enable_timing=True),
                torch.cuda.Event(enable_timing=True),
            )
            self._events[0].record(self._stream)

    def stop(self) -> None:
        self._stopped = time.perf_counter()
        if self._events is not None:
            self._events[1].record(self._stream)

    @property
    def done(self) -> bool:
        """Whether the device has done the work."""
        return self._events is None or self._events[1].query()

    @property
    def seconds(self) -> float:
        """How long it took. Waits until it is done."""
        if self._events is None:
            return self._stopped - self._started
        begin, end = self._events
        end.synchronize()
        return begin.elapsed_time(end) / 1000
