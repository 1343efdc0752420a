"""Where pots wait: conversations and named pots, in memory up to a number, on disk behind it."""

from __future__ import annotations

import array
import contextlib
import dataclasses
import hashlib
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from infinipot.config import PotConfig
from infinipot.model.runner import Host
from infinipot.pot_file import Origin, describe, in_force
from infinipot.server.refusal import Refusal
from infinipot.server.words import Behind
from infinipot.session import Session

SUFFIX = ".pot.safetensors"
CONVERSATION = re.compile(r"^([0-9]+)-([0-9a-f]{64})$")
ABANDONED_S = 3600
"""In a folder that other servers use, too, a file that is this old and still not whole is nobody's any more."""


def scope_of(config: PotConfig, templated: bool, pot: str = "", label: str = "") -> str:
    """What two requests must share, besides token ids, for one to go on in the other's pot."""
    options = dataclasses.replace(config, chunk_tokens=1)  # results do not depend on it
    return repr((options, templated, pot, label))


def digests(scope: str, ids: list[int], counts: Iterable[int]) -> dict[tuple[int, str], int]:
    """The keys that pots have which have read a beginning of these ids, for beginnings of these lengths."""
    content, done, found = hashlib.sha256(scope.encode()), 0, {}
    for count in sorted({count for count in counts if count <= len(ids)}):
        content.update(array.array("q", ids[done:count]).tobytes())
        done = count
        found[count, content.hexdigest()] = count
    return found


@dataclasses.dataclass(eq=False)
class Held:
    """A pot that nobody is using. key: how many ids it has read, and their hash. name: it stays until it is deleted."""

    session: Session
    key: tuple[int, str]
    behind: Behind
    label: str | None = None
    name: str | None = None
    content: str = ""
    """A named pot: what tells it from any other that had its name."""
    spent: bool = False
    """Whether a longer conversation has come out of it: it goes first, and not to disk."""
    saved: bool = False
    expendable: bool = False
    """A named pot that may be lost."""
    stuck: bool = False
    """Writing it to disk failed: it cannot leave memory."""
    stamp: tuple[int, int] | None = None
    """A named pot that is saved: which file it is the same as."""


class Shelf:
    """Pots in memory, the least recently used first, and an index of those on disk. Only the engine's thread touches it.

    shared: other servers use the folder, too, so that files come, change and go by themselves.
    """

    def __init__(self, folder: Path | None, files: int, shared: bool = False) -> None:
        self.folder, self.files, self.shared = folder, files, shared and folder is not None
        self.held: list[Held] = []
        self.on_disk: dict[tuple[int, str], Path] = {}
        self._indexed = 0
        """When the folder of conversations had last changed as it was looked at; 0 if it may have changed since."""
        if folder is not None:
            self.conversations.mkdir(parents=True, exist_ok=True)
            before = time.time() - ABANDONED_S if shared else float("inf")
            for part, changed in by_age((*folder.glob(".*.part"), *self.conversations.glob(".*.part"))):
                if changed < before:
                    part.unlink(missing_ok=True)  # what a server that was killed left behind
            self._index()

    def _index(self) -> None:
        """Note which conversations are on disk, the oldest first."""
        changed = self.conversations.stat().st_mtime_ns
        if changed == self._indexed:
            return
        self._indexed = changed if time.time_ns() - changed > 10**9 else 0  # clocks of file systems are coarse
        self.on_disk = {}
        for path, _ in by_age(self.conversations.glob(f"*{SUFFIX}")):
            if match := CONVERSATION.match(path.name.removesuffix(SUFFIX)):
                self.on_disk[int(match[1]), match[2]] = path

    @property
    def conversations(self) -> Path:
        assert self.folder is not None
        return self.folder / "conversations"

    # ---------------------------------------------------------------- finding

    def find(self, scope: str, ids: list[int]) -> Held | Path | None:
        """The pot that has read the longest beginning of these ids, leaving at least the last one to be read."""
        if self.shared:
            self._index()
        there = {held.key: held for held in self.held if held.name is None}
        keys = digests(scope, ids[:-1], [count for count, _ in (*there, *self.on_disk)])
        for key in reversed(keys):
            if key in there:
                return there[key]
            if key in self.on_disk:
                return self.on_disk[key]
        return None

    def touch(self, held: Held) -> None:
        self.held.remove(held)
        self.held.append(held)

    def put(self, held: Held) -> None:
        """Keep a pot; one that has read the same goes."""
        self.held = [other for other in self.held if other.key != held.key or other.name != held.name]
        self.held.append(held)

    def labelled(self, label: str) -> Held | None:
        """The newest conversation with this label."""
        return next((held for held in reversed(self.held) if held.label == label and held.name is None), None)

    # ---------------------------------------------------------------- making room

    def victim(self, besides: Held | None = None) -> Held | None:
        """The pot to do without: a spent one, else the least recently used. Named ones can only go
        where they can come back from, unless they are expendable."""
        able = [held for held in self.held if held is not besides and not self.stays(held)]
        return next((held for held in able if held.spent), able[0] if able else None)

    def stays(self, held: Held) -> bool:
        """Whether a pot cannot leave memory: it has a name, and would not come back."""
        return held.name is not None and not held.expendable and (self.folder is None or held.stuck)

    def place(self, held: Held) -> Path | None:
        """The file for a pot that leaves memory; None if it need not be written."""
        if self.folder is None or held.saved or held.expendable or (held.spent and held.name is None):
            return None
        if held.name is not None:
            return self.path(held.name)
        return self.conversations / f"{held.key[0]}-{held.key[1]}{SUFFIX}"

    def written(self, held: Held, path: Path) -> None:
        """A pot is on disk now. The oldest conversations there make room for it."""
        held.saved = True
        if held.name is None:
            self.on_disk[held.key] = path
            while len(self.on_disk) > self.files:
                self.forget(next(iter(self.on_disk.values())))

    def forget(self, path: Path) -> None:
        """Delete a conversation's file; other files are left alone."""
        for key in [key for key, there in self.on_disk.items() if there == path]:
            self.on_disk.pop(key).unlink(missing_ok=True)

    # ---------------------------------------------------------------- names

    def path(self, name: str) -> Path | None:
        """The file of a named pot. Names are checked when they come in: they have neither dots nor slashes."""
        return None if self.folder is None else self.folder / f"{name}{SUFFIX}"

    def name_of(self, path: Path) -> str | None:
        """The name of the pot in a file; None for conversations."""
        return path.name.removesuffix(SUFFIX) if path.parent == self.folder else None

    def named(self, name: str) -> Held | None:
        """The named pot in memory. In a shared folder one whose file is gone, or another's by now, is no longer that pot."""
        held = next((held for held in self.held if held.name == name), None)
        if held is None or not (self.shared and held.saved) or held.stamp == stamp_of(self.path(name)):
            return held
        self.held.remove(held)
        return None

    def exists(self, name: str) -> bool:
        path = self.path(name)
        return self.named(name) is not None or (path is not None and path.is_file())

    def names(self) -> list[str]:
        there = {held.name for held in list(self.held) if held.name is not None and self.named(held.name) is not None}
        if self.folder is not None:
            there |= {path.name.removesuffix(SUFFIX) for path in self.folder.glob(f"*{SUFFIX}")}
        return sorted(there)

    def delete(self, name: str, missing_ok: bool = False) -> None:
        if not missing_ok and not self.exists(name):
            raise unknown(name)
        self.held = [held for held in self.held if held.name != name]
        if (path := self.path(name)) is not None:
            path.unlink(missing_ok=True)


def by_age(paths: Iterable[Path]) -> list[tuple[Path, float]]:
    """Files and when they were written, the oldest first. One that another server deletes meanwhile is left out."""
    found = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            found.append((path, path.stat().st_mtime))
    return sorted(found, key=lambda one: one[1])


def stamp_of(path: Path | None) -> tuple[int, int] | None:
    """What tells a file from any other that had its name; None if there is none."""
    try:
        about = path.stat() if path is not None else None
    except FileNotFoundError:
        return None
    return about and (about.st_ino, about.st_mtime_ns)


def unknown(name: str) -> Refusal:
    return Refusal(404, f"there is no pot {name!r}; GET /v1/pots lists them", code="pot_not_found", param="pot")


def content_of(session: Session) -> str:
    """What tells a pot from any other, in memory as after coming back from disk: where its reading has led."""
    pot = session.pot
    assert pot.hidden is not None
    content = hashlib.sha256(repr((scope_of(session.config, True), pot.tokens_read, session.system)).encode())
    for tensor in (pot.hidden, pot.newest):
        content.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


def opened(path: Path, name: str | None, host: Host, tokenizer: PreTrainedTokenizerBase, base: PotConfig, origin: Origin) -> Held:
    """A pot from its file. base: the server's own options. Raises PotFileError."""
    stamp = stamp_of(path)  # before it is read: should it change meanwhile, it is read again
    session = Session.load(path, host, tokenizer, chunk_tokens=base.chunk_tokens, origin=origin, policy=type(base.policy))
    header = describe(path)
    behind = behind_of(header)
    if name is not None:
        content = content_of(session)
        return Held(session, (0, content), behind, name=name, content=content, saved=True, stamp=stamp)
    match = CONVERSATION.match(path.name.removesuffix(SUFFIX))
    assert match is not None
    return Held(session, (int(match[1]), match[2]), behind, saved=True)


def header_of(path: Path, base: PotConfig) -> tuple[Behind, PotConfig]:
    """Where a saved pot's conversation stands, and the options in force. base: the server's own. Raises PotFileError."""
    header = describe(path)
    return behind_of(header), in_force(path, header, type(base.policy))[0]


def behind_of(header: dict[str, Any]) -> Behind:
    """What a pot file's header says about where its conversation stands."""
    return Behind(header["system"], header["templated"], header["in_text"], header["answered"])
