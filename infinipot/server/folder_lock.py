"""A lock on the folder of pots: one server owns it alone, or several share it."""

from __future__ import annotations

import os
from pathlib import Path

try:
    import fcntl
except ModuleNotFoundError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
"""The locked file. It is empty, and stays."""


def unusable(folder: Path, problem: OSError) -> ValueError:
    """The error of a server that cannot start with this folder."""
    reason = problem.strerror or str(problem)
    if problem.filename is not None and Path(problem.filename) != folder:
        reason = f"{problem.filename}: {reason}"
    return ValueError(f"cannot use the folder {folder} for pots: {reason}. Give another --pot-dir")


class FolderLock:
    """Holds a folder until `release`, or until the process ends. shared: others may share it.

    Raises ValueError if the folder cannot be used, or if another server uses it.
    """

    def __init__(self, folder: Path, shared: bool) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._handle: int | None = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as problem:
            raise unusable(folder, problem) from None
        if fcntl is None:
            return
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self._handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise ValueError(
                f"another server uses the folder {folder}: "
                "end it, give another --pot-dir, or serve replicas with --ray"
            ) from None
        except OSError:  # this file system has no locks
            pass

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
