"""The folder with the pots' files, as long as it is the one of the server's start."""

from __future__ import annotations

import contextlib
import errno
import re
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from infinipot.pot_file import PotFileError
from infinipot.server.folder_lock import unusable

UNFINISHED = re.compile(r"^\..*\.part$|^\.tmp[0-9A-Za-z]{6}$")
"""Files that were not written to their end. safetensors uses the second form."""
ABANDONED_S = 3600
"""Age at which an unfinished file, where others write too, belongs to nobody."""


class PotFolder:
    """shared: other servers write into the folder, too. Raises ValueError if it cannot be used.

    An empty mount point, or the folder of another server, may come to stand under the same name.
    The server neither reads nor writes there: what it wrote would be hidden when its own folder is
    back.
    """

    def __init__(self, path: Path, shared: bool) -> None:
        self.path = path
        self.conversations = path / "conversations"
        try:
            self.conversations.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise unusable(path, problem) from None
        self._identity = identity(path)
        self._remove_unfinished(shared)

    def _remove_unfinished(self, shared: bool) -> None:
        """Delete the unfinished files of a server that was killed."""
        now = time.time()
        places = (self.path, self.conversations)
        paths = [path for place in places for path in place.iterdir()]
        for path, changed in by_age(path for path in paths if UNFINISHED.match(path.name)):
            # others may write into the folder itself, and only this server into the other one
            own = path.parent == self.conversations and not shared
            if own or changed < now - ABANDONED_S:
                path.unlink(missing_ok=True)

    @property
    def is_there(self) -> bool:
        return identity(self.path) == self._identity

    def check(self) -> None:
        """Raise PotFileError if the folder is gone, or another one has taken its place."""
        here = identity(self.path)
        if here == self._identity:
            return
        if here is None:
            number = errno.ENOENT
            what = "does not exist"
        else:
            number = errno.ESTALE
            what = "is another one than at the start"
        raise PotFileError(
            f"the folder {self.path} {what} (moved, replaced or unmounted?): "
            "bring it back, or start the server again"
        ) from OSError(number, f"its folder {what}")

    def prepare(self, path: Path) -> None:
        """Before a file is written. Raises PotFileError like `check`."""
        self.check()
        if path.parent == self.conversations:
            with contextlib.suppress(OSError):  # whoever writes says what is wrong
                self.conversations.mkdir(exist_ok=True)


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a folder; None if there is no folder."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    if not stat.S_ISDIR(status.st_mode):
        return None
    return status.st_dev, status.st_ino


def by_age(paths: Iterable[Path]) -> list[tuple[Path, float]]:
    """Regular files with their times of change, the oldest first."""
    files = []
    for path in paths:
        with contextlib.suppress(OSError):  # a broken link, or a link to itself
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                files.append((path, status.st_mtime))
    return sorted(files, key=lambda file: file[1])
