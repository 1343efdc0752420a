"""The pots in memory, and an index of the pots on disk."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from infinipot.server.fields import NAME
from infinipot.server.pot_folder import PotFolder, by_age
from infinipot.server.stored_pot import (
    CONVERSATION,
    SUFFIX,
    Key,
    StoredPot,
    digests,
    stamp_of,
)

VALID_NAME = re.compile(NAME)


@dataclasses.dataclass(eq=False)
class PendingLoad:
    """A load from disk. cancelled: the name was deleted or replaced meanwhile."""

    name: str | None
    cancelled: bool = False


class PotStore:
    """Pots in memory, the least recently used first, and an index of conversations on disk.

    Only the engine's thread uses it. shared: other servers use the folder too, so its files
    change without notice.
    """

    def __init__(self, folder: Path | None, files: int, shared: bool = False) -> None:
        self.folder: PotFolder | None = None
        self.files = files
        self.shared = shared and folder is not None
        self.on_take_name: Callable[[StoredPot], None] = lambda pot: None
        """Called when a pot takes a name, to update the file of that name."""
        self._pots: list[StoredPot] = []
        self._on_disk: dict[Key, Path] = {}
        self._unusable: set[Path] = set()
        """Conversations on disk of another dtype or model. They are left alone."""
        self._deletions: Counter[str] = Counter()
        """Names whose files are being deleted. Requests no longer see these files."""
        self._loads: list[PendingLoad] = []
        self._indexed_ns = 0
        """Change time of the conversations' folder at the last index; 0: index again."""
        if folder is not None:
            self.folder = PotFolder(folder, shared)
            self._index()

    @property
    def pots(self) -> tuple[StoredPot, ...]:
        return tuple(self._pots)

    @property
    def conversations(self) -> Path:
        assert self.folder is not None
        return self.folder.conversations

    def _index(self) -> None:
        """List the conversations on disk, the oldest first."""
        try:
            changed = self.conversations.stat().st_mtime_ns
        except OSError:  # the folder is gone
            changed = 0
        if changed and changed == self._indexed_ns:
            return
        settled = time.time_ns() - changed > 10**9  # clocks of file systems are coarse
        self._indexed_ns = changed if settled else 0
        self._on_disk = {}
        for path, _ in by_age(self.conversations.glob(f"*{SUFFIX}")):
            if match := CONVERSATION.match(path.name.removesuffix(SUFFIX)):
                self._on_disk[int(match[1]), match[2]] = path

    # ---------------------------------------------------------------- pots in memory

    def find(self, scope: str, ids: list[int], exclude: Iterable[Path]) -> StoredPot | Path | None:
        """The conversation that has read the longest beginning of these ids.

        At least the last id is left to be read. exclude: files that are not tried.
        """
        unusable = self._unusable.union(exclude)
        if self.shared:
            self._index()
        in_memory = {pot.key: pot for pot in self._pots if pot.name is None}
        counts = [count for count, _ in (*in_memory, *self._on_disk)]
        for key in reversed(digests(scope, ids[:-1], counts)):
            if key in in_memory:
                return in_memory[key]
            if key in self._on_disk and self._on_disk[key] not in unusable:
                return self._on_disk[key]
        return None

    def labelled(self, label: str, salt: str = "") -> StoredPot | None:
        """The newest conversation with this label and salt."""
        for pot in reversed(self._pots):
            if (pot.label, pot.salt, pot.name) == (label, salt, None):
                return pot
        return None

    def touch(self, pot: StoredPot) -> None:
        """Mark a pot as the most recently used."""
        self._pots.remove(pot)
        self._pots.append(pot)

    def add(self, pot: StoredPot) -> None:
        """Keep a pot. It replaces a pot of the same name, or a conversation of the same key."""

        def is_replaced(other: StoredPot) -> bool:
            return other.name == pot.name and (pot.name is not None or other.key == pot.key)

        self._pots = [other for other in self._pots if not is_replaced(other)]
        self._pots.append(pot)

    def remove(self, pot: StoredPot) -> None:
        """Let go of a pot, if it is there."""
        if pot in self._pots:
            self._pots.remove(pot)

    def remove_name(self, name: str) -> None:
        """Let go of the pot of this name. Its file stays."""
        self._pots = [pot for pot in self._pots if pot.name != name]

    # ---------------------------------------------------------------- making room

    def victim(self, exclude: StoredPot | None = None) -> StoredPot | None:
        """The pot to remove next: a superseded one, else the least recently used."""
        movable = [pot for pot in self._pots if pot is not exclude and not self.must_stay(pot)]
        for pot in movable:
            if pot.superseded:
                return pot
        return movable[0] if movable else None

    def must_stay(self, pot: StoredPot) -> bool:
        """Whether a pot has a name and could not be loaded again."""
        if pot.name is None or pot.expendable:
            return False
        return self.folder is None or (not pot.saved and time.monotonic() < pot.retry_at)

    def file_for(self, pot: StoredPot) -> Path | None:
        """Where to write a pot that leaves memory; None if it need not be written.

        A pot that was saved is written again if its file is gone, unless another server may have
        deleted it.
        """
        if self.folder is None or pot.expendable or (pot.superseded and pot.name is None):
            return None
        if pot.name is None:
            path = self.conversations / f"{pot.key[0]}-{pot.key[1]}{SUFFIX}"
        else:
            path = self.folder.path / f"{pot.name}{SUFFIX}"
        if pot.saved and (self.shared or self.has(path)):
            return None
        return path

    # ---------------------------------------------------------------- files

    def mark_written(self, pot: StoredPot, path: Path) -> None:
        """Note that a pot is on disk. The oldest conversations there are deleted."""
        pot.saved = True
        pot.retry_at = 0.0
        pot.problem = None
        if pot.name is not None:
            return
        self._on_disk[pot.key] = path
        self._unusable.discard(path)
        while len(self._on_disk) > self.files:
            oldest = next(iter(self._on_disk.values()))
            self.forget(oldest)
            with contextlib.suppress(OSError):
                oldest.unlink(missing_ok=True)

    def forget(self, path: Path) -> None:
        """Remove a conversation's file from the index."""
        self._on_disk = {key: other for key, other in self._on_disk.items() if other != path}
        self._unusable.discard(path)

    def mark_unusable(self, path: Path) -> None:
        """Leave a file alone that this server cannot use."""
        self._unusable.add(path)

    def quarantine(self, path: Path) -> None:
        """Rename a damaged conversation's file. It is no longer found, but can be examined."""
        self.forget(path)
        with contextlib.suppress(OSError):
            path.replace(path.with_name(path.name + ".damaged"))

    # ---------------------------------------------------------------- names

    def path(self, name: str) -> Path | None:
        """The path of a named pot. The schema allows neither dots nor slashes in names."""
        if self.folder is None:
            return None
        return self.folder.path / f"{name}{SUFFIX}"

    def file(self, name: str) -> Path | None:
        """The file of a named pot, if it exists."""
        path = self.path(name)
        if path is None or name in self._deletions or not self.has(path):
            return None
        return path

    def has(self, path: Path) -> bool:
        """Whether a file is in the folder, and the folder is the one of the start."""
        return self.folder is not None and self.folder.is_there and path.is_file()

    def name_of(self, path: Path) -> str | None:
        """The name of the pot in a file; None for a conversation."""
        if self.folder is None or path.parent != self.folder.path:
            return None
        return path.name.removesuffix(SUFFIX)

    def named(self, name: str) -> StoredPot | None:
        """The named pot in memory. In a shared folder it goes if its file has changed."""
        pot = next((pot for pot in self._pots if pot.name == name), None)
        if pot is None or not (self.shared and pot.saved):
            return pot
        if pot.stamp == stamp_of(self.path(name)):
            return pot
        self._pots.remove(pot)
        return None

    def exists(self, name: str) -> bool:
        return self.named(name) is not None or self.file(name) is not None

    def names(self) -> list[str]:
        names = {pot.name for pot in self.pots if pot.name is not None and self.named(pot.name)}
        if self.folder is not None:
            paths = self.folder.path.glob(f"*{SUFFIX}")
            files = {path.name.removesuffix(SUFFIX) for path in paths}
            names |= {name for name in files if VALID_NAME.fullmatch(name) and self.file(name)}
        return sorted(names)

    def take_name(self, pot: StoredPot) -> None:
        """Put a new pot in the place of the pot that had its name."""
        assert pot.name is not None
        self.invalidate(pot.name)
        self.add(pot)
        self.on_take_name(pot)

    def invalidate(self, name: str) -> None:
        """Let go of the pot of this name, and cancel its loads. Its file stays."""
        self.remove_name(name)
        for load in self._loads:
            load.cancelled |= load.name == name

    # ---------------------------------------------------------------- loads and deletions

    def begin_load(self, name: str | None) -> PendingLoad:
        load = PendingLoad(name)
        self._loads.append(load)
        return load

    def end_load(self, load: PendingLoad) -> None:
        self._loads.remove(load)

    @property
    def deletions(self) -> frozenset[str]:
        """Names whose files are being deleted."""
        return frozenset(self._deletions)

    def begin_deletion(self, name: str) -> None:
        self._deletions[name] += 1

    def end_deletion(self, name: str) -> None:
        self._deletions[name] -= 1
        self._deletions = +self._deletions  # drops the zeros
