"""Children of the test's process that start with all modules loaded: a new interpreter needs seconds
for that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

STREAMS = ("stdin", "stdout", "stderr")
MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}


class Forked:
    """Run a function in a child, and end it with the exit status that the function returns.

    stdin, stdout, stderr: file descriptors, `subprocess.PIPE`, `subprocess.STDOUT`, or None for the parent's. env: added
    to the environment. `send_signal`, `wait`, `kill` and the pipes work as those of
    `subprocess.Popen`.
    """

    def __init__(
        self,
        work: Callable[[], int | None],
        *,
        start_new_session: bool = False,
        env: dict[str, str] | None = None,
        **streams: int | None,
    ) -> None:
        ours: dict[str, int] = {}
        theirs: dict[str, int] = {}
        for name in STREAMS:
            wanted = streams.get(name)
            if wanted == subprocess.STDOUT:
                theirs[name] = theirs["stdout"]
            elif wanted == subprocess.PIPE:
                ends = os.pipe()
                reads = name == "stdin"
                theirs[name] = ends[not reads]
                ours[name] = ends[reads]
            elif wanted is not None:
                theirs[name] = wanted
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _be_child(work, theirs, list(ours.values()), start_new_session, env or {})
        for number in {theirs[name] for name in ours}:
            os.close(number)
        pipes: dict[str, Any] = {
            name: os.fdopen(number, {"r": "wb", "w": "rb"}[MODES[name]])
            for name, number in ours.items()
        }
        self.stdin = pipes.get("stdin")
        self.stdout = pipes.get("stdout")
        self.stderr = pipes.get("stderr")

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float = 60) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            assert time.monotonic() < end, f"the child runs after {timeout} s"
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _be_child(
    work: Callable[[], int | None],
    streams: dict[str, int],
    others: list[int],
    start_new_session: bool,
    env: dict[str, str],
) -> None:
    """Never returns."""
    code: Any = 1
    try:
        if start_new_session:
            os.setsid()
        os.environ.update(env, TOKENIZERS_PARALLELISM="false")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for name, number in zip(STREAMS, range(3), strict=True):
            if name in streams:
                os.dup2(streams[name], number)
            stream = os.fdopen(number, MODES[name], closefd=False)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        for number in others:
            os.close(number)
        code = work()
        sys.stdout.flush()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stderr.flush()
        finally:
            os._exit(code or 0)
