"""Rank 0: it starts the other ranks, lets them do what it does, and ends if one of them ends."""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing import Pipe
from typing import Any, NoReturn, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from infinipot.parallel.objects import Known, broadcast, packed

T = TypeVar("T")
GRACE_S = 20.0
"""How long one rank may take to fail after another has failed in the same call."""
END_S = 10.0
"""How long the other ranks may take to end."""
LATEST = timedelta(hours=2)
"""Loading takes ranks very different times."""
BACKENDS = {"cuda": "nccl", "cpu": "gloo"}
OBJECTS = (
    "infinipot.model.runner:ModelRunner",
    "infinipot.cache.pot:Pot",
    "infinipot.cache.pot:Mark",
    "infinipot.engine.distill:Distiller",
    "infinipot.engine.observe:Seen",
    "transformers:PreTrainedModel",
)
"""Classes of the objects that all ranks have. Results of other classes are of rank 0 alone."""
QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""Rank 0 shows progress, and warns."""


def classes() -> tuple[type, ...]:
    return tuple(map(named, OBJECTS))


def named(name: str) -> Any:
    """What "module:qualified name" names."""
    module, words = name.split(":")
    thing: Any = importlib.import_module(module)
    for word in words.split("."):
        thing = getattr(thing, word)
    return thing


def join(rank: int, count: int, device: torch.device, store: str) -> None:
    """Join the process group. store: a file that all ranks see."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count))
    own: torch.device | None = None
    if device.type == "cuda":
        own = torch.device("cuda", rank)
        torch.cuda.set_device(own)
    dist.init_process_group(
        BACKENDS[device.type],
        init_method=f"file://{store}",
        rank=rank,
        world_size=count,
        timeout=LATEST,
        device_id=own,
    )


class Rank:
    """One of the other ranks: its process, and the connection to it."""

    def __init__(self, number: int, count: int) -> None:
        self.number = number
        self.pipe, theirs = Pipe()
        life, self.life = os.pipe()
        """Its end of the pipe `life` stays open as long as rank 0 lives."""
        files = (theirs.fileno(), life)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "infinipot.parallel.follower", *map(str, files)],
            pass_fds=files,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for rank 0
            env={**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.name = f"process {number} of {count} of the model (tensor parallel)"
        theirs.close()
        os.close(life)
        self.loaded = threading.Event()
        self.failures: dict[int, str] = {}
        """By number of a call: the class of the exception that it raised."""

    def fate(self) -> str:
        """How it ended, in words."""
        try:
            code = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with code {code}"


class Followers:
    """The other ranks of a model, for rank 0."""

    def __init__(self, count: int, device: torch.device) -> None:
        """count: ranks in all."""
        self.count = count
        self.known = Known(classes())
        self.calls = 0
        self.failed: dict[int, str] = {}
        """As `Rank.failures`, of this rank."""
        self._lock = threading.RLock()
        self._owner: int | None = None
        self._closed = False
        self._folder = tempfile.mkdtemp(prefix="infinipot-ranks-")
        store = os.path.join(self._folder, "store")
        self.ranks = [Rank(number, count) for number in range(1, count)]
        for rank in self.ranks:
            threading.Thread(target=self._watch, args=(rank,), daemon=True).start()
            rank.pipe.send((rank.number, count, str(device), store))
        atexit.register(self.close)
        join(0, count, device, store)

    # ---------------------------------------------------------------- calls

    @property
    def at_work(self) -> bool:
        """Whether this thread is inside a function that runs on all ranks."""
        return self._owner == threading.get_ident()

    def run(self, name: str, work: Callable[[], T], args: Any, kwargs: Any) -> T:
        """Let all other ranks call the function `name` ("module:qualified name") with these
        arguments, while this one does `work`, which is the same.

        An exception is raised here if all ranks raise one. If only some do, nobody can go on: this
        process ends.
        """
        with self._lock, uninterrupted():
            if self._closed:
                raise RuntimeError("the processes of this model (tensor parallel) have ended")
            self._owner = threading.get_ident()
            try:
                return self._run(name, work, args, kwargs)
            finally:
                self._owner = None

    def _run(self, name: str, work: Callable[[], T], args: Any, kwargs: Any) -> T:
        number = self.calls + 1
        text, tensors = packed((name, args, kwargs), self.known)
        self.calls = number
        gone = self.known.take_gone()
        for rank in self.ranks:
            try:
                rank.pipe.send_bytes(number.to_bytes(8, "big") + _numbers(gone) + text)
            except OSError:
                self.end_with(f"{rank.name} {rank.fate()}")
        try:
            broadcast(tensors)
            result = work()
        except BaseException as problem:
            self.failed[number] = type(problem).__name__
            self._await_failures(number, problem)
            raise
        self.known.add(number, result)
        return result

    def _await_failures(self, number: int, problem: BaseException) -> None:
        """Wait until all ranks have failed in a call."""
        latest = time.monotonic() + GRACE_S
        for rank in self.ranks:
            while number not in rank.failures:
                if time.monotonic() > latest:
                    self.end_with(
                        f"process 0 of {self.count} of the model (tensor parallel) failed, and "
                        f"others went on: {type(problem).__name__}: {problem}"
                    )
                time.sleep(0.01)

    def load(self, name: str, work: Callable[[], T], args: Any) -> T:
        """As `run`, for a function whose result is the model of each rank."""
        result = self.run(name, work, args, {})
        for rank in self.ranks:
            rank.loaded.wait()
        return result

    # ---------------------------------------------------------------- life

    def _watch(self, rank: Rank) -> None:
        """Note what a rank says, until it ends."""
        with suppress(EOFError, OSError):
            while True:
                what, number, *text = rank.pipe.recv()
                if what == "loaded":
                    rank.loaded.set()
                    continue
                rank.failures[number] = text[0]
                threading.Thread(
                    target=self._check_failed, args=(rank, number, text[1]), daemon=True
                ).start()
        if not self._closed:
            self.end_with(f"{rank.name} {rank.fate()}")

    def _check_failed(self, rank: Rank, number: int, text: str) -> None:
        """End this process, unless it fails in the same call."""
        latest = time.monotonic() + GRACE_S
        while number not in self.failed and time.monotonic() < latest:
            time.sleep(0.05)
        if number not in self.failed and not self._closed:
            self.end_with(f"{rank.name} failed, and others went on: {text}")

    def end_with(self, why: str) -> NoReturn:
        """End all ranks at once: what waits for another rank cannot be interrupted."""
        if not self._closed:
            self._closed = True
            sys.stderr.write(f"error: {why}; all its processes end\n")
            sys.stderr.flush()
        for rank in self.ranks:
            rank.process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(1)

    def close(self) -> None:
        """End the other ranks."""
        if self._closed:
            return
        self._closed = True
        for rank in self.ranks:
            with suppress(OSError):
                rank.pipe.send_bytes(b"")
        latest = time.monotonic() + END_S
        for rank in self.ranks:
            with suppress(subprocess.TimeoutExpired):
                rank.process.wait(max(0.1, latest - time.monotonic()))
            rank.process.kill()
            rank.process.wait()
            os.close(rank.life)
        if dist.is_initialized():
            dist.destroy_process_group()
        shutil.rmtree(self._folder, ignore_errors=True)


def _numbers(numbers: list[int]) -> bytes:
    """Numbers as bytes: how many, then each in eight bytes."""
    return b"".join(number.to_bytes(8, "big") for number in (len(numbers), *numbers))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put Ctrl-C off until the end of the block, in the main thread: ranks must not part."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *what: pressed.append(what))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed and callable(before):
            before(*pressed[0])


_FOLLOWERS: WeakKeyDictionary[Any, Followers] = WeakKeyDictionary()
"""Of each model that rank 0 has loaded."""


def followers_of(model: Any) -> Followers | None:
    """The other ranks of a model; None for a model in one process."""
    return _FOLLOWERS.get(model)


def load_on_all_ranks(name: str, args: tuple[Any, ...], count: int, device: torch.device) -> Any:
    """Start the other ranks, and let the function `name` load or make a model's part on each.
    Returns the model of rank 0. Raises what the function raises."""
    followers = Followers(count, device)
    try:
        model = followers.load(name, lambda: named(name)(*args), args)
    except BaseException:
        followers.close()
        raise
    _FOLLOWERS[model] = followers
    weakref.finalize(model, followers.close)
    return model
