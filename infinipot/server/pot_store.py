"""Where pots wait: conversations and named pots, in memory up to a number, on disk behind it."""

from __future__ import annotations

import array
import contextlib
import dataclasses
import hashlib
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from infinipot.config import PotConfig
from infinipot.model.runner import ModelRunner
from infinipot.pot_file import Origin, describe, in_force
from infinipot.server.errors import Refusal
from infinipot.server.prompts import Behind
from infinipot.server.schema import NAME
from infinipot.session import Session

SUFFIX = ".pot.safetensors"
NAMED = re.compile(NAME)
UNFINISHED = re.compile(r"^\..*\.part$|^\.tmp[0-9A-Za-z]{6}$")
"""Files that were being written; the second is what safetensors calls them."""
CONVERSATION = re.compile(r"^([0-9]+)-([0-9a-f]{64})$")
ABANDONED_S = 3600
"""In a folder that other servers use, too, a file that is this old and still not whole is nobody's any more."""


def scope_of(config: PotConfig, templated: bool, pot: str = "", label: str = "", salt: str = "") -> str:
    """What two requests must share, besides token ids, for one to go on in the other's pot."""
    options = config.replace(chunk_tokens=1)  # results do not depend on it
    shared = (options, templated, pot, label)
    return repr((*shared, salt) if salt else shared)


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
    salt: str = ""
    """What a request must know, besides the label, to name the conversation."""
    name: str | None = None
    content: str = ""
    """A named pot: what tells it from any other that had its name."""
    spent: bool = False
    """Whether a longer conversation has come out of it: it goes first, and not to disk."""
    saved: bool = False
    expendable: bool = False
    """A named pot that may be lost."""
    retry_at: float = 0.0
    """When to try again, as writing it to disk has failed; until then a named pot cannot leave memory."""
    trouble: Exception | None = None
    """Why that failed."""
    writing: Future[None] | None = None
    """A named pot that is written, or was, as it took its name."""
    stamp: tuple[int, int] | None = None
    """A named pot that is saved: which file it is the same as."""


@dataclasses.dataclass(eq=False)
class Coming:
    """A pot on its way from disk. overtaken: meanwhile another took its name, or it was deleted: it must not arrive."""

    name: str | None
    overtaken: bool = False


class Shelf:
    """Pots in memory, the least recently used first, and an index of those on disk. Only the engine's thread touches it.

    shared: other servers use the folder, too, so that files come, change and go by themselves.
    """

    def __init__(self, folder: Path | None, files: int, shared: bool = False) -> None:
        self.folder, self.files, self.shared = folder, files, shared and folder is not None
        self.held: list[Held] = []
        self.on_disk: dict[tuple[int, str], Path] = {}
        self.passed: set[Path] = set()
        """Conversations on disk that cannot be used here, and are left alone: another dtype's, another model's."""
        self.doomed: Counter[str] = Counter()
        """Names whose files are being deleted: to everybody else they are gone."""
        self.coming: list[Coming] = []
        self.secure: Callable[[Held], None] = lambda held: None
        """Sees to the file of a pot that has taken a name."""
        self._indexed = 0
        """When the folder of conversations had last changed as it was looked at; 0 if it may have changed since."""
        if folder is not None:
            self.conversations.mkdir(parents=True, exist_ok=True)
            before = time.time() - ABANDONED_S if shared else float("inf")
            begun = [path for place in (folder, self.conversations) for path in place.iterdir() if UNFINISHED.match(path.name)]
            for path, changed in by_age(begun):
                if changed < before:
                    path.unlink(missing_ok=True)  # what a server that was killed left behind
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

    def find(self, scope: str, ids: list[int], besides: Iterable[Path] = ()) -> Held | Path | None:
        """The pot that has read the longest beginning of these ids, leaving at least the last one to be read.

        besides: files not to try."""
        left = self.passed.union(besides)
        if self.shared:
            self._index()
        there = {held.key: held for held in self.held if held.name is None}
        keys = digests(scope, ids[:-1], [count for count, _ in (*there, *self.on_disk)])
        for key in reversed(keys):
            if key in there:
                return there[key]
            if key in self.on_disk and self.on_disk[key] not in left:
                return self.on_disk[key]
        return None

    def touch(self, held: Held) -> None:
        self.held.remove(held)
        self.held.append(held)

    def put(self, held: Held) -> None:
        """Keep a pot; one that has read the same goes, and one of the same name."""
        self.held = [other for other in self.held if other.name != held.name or (held.name is None and other.key != held.key)]
        self.held.append(held)

    def labelled(self, label: str, salt: str = "") -> Held | None:
        """The newest conversation with this label, of those that know its salt."""
        wanted = (label, salt, None)
        return next((held for held in reversed(self.held) if (held.label, held.salt, held.name) == wanted), None)

    # ---------------------------------------------------------------- making room

    def victim(self, besides: Held | None = None) -> Held | None:
        """The pot to do without: a spent one, else the least recently used. Named ones can only go
        where they can come back from, unless they are expendable."""
        able = [held for held in self.held if held is not besides and not self.stays(held)]
        return next((held for held in able if held.spent), able[0] if able else None)

    def stays(self, held: Held) -> bool:
        """Whether a pot cannot leave memory: it has a name, and would not come back."""
        if held.name is None or held.expendable:
            return False
        return self.folder is None or (not held.saved and time.monotonic() < held.retry_at)

    def place(self, held: Held) -> Path | None:
        """The file for a pot that leaves memory; None if it need not be written."""
        if self.folder is None or held.saved or held.expendable or (held.spent and held.name is None):
            return None
        if held.name is not None:
            return self.path(held.name)
        return self.conversations / f"{held.key[0]}-{held.key[1]}{SUFFIX}"

    def written(self, held: Held, path: Path) -> None:
        """A pot is on disk now. The oldest conversations there make room for it."""
        held.saved, held.retry_at, held.trouble = True, 0.0, None
        if held.name is None:
            self.on_disk[held.key] = path
            self.passed.discard(path)
            while len(self.on_disk) > self.files:
                oldest = next(iter(self.on_disk.values()))
                self.forget(oldest)
                with contextlib.suppress(OSError):
                    oldest.unlink(missing_ok=True)

    def forget(self, path: Path) -> None:
        """No longer know a conversation's file."""
        self.on_disk = {key: there for key, there in self.on_disk.items() if there != path}
        self.passed.discard(path)

    def set_aside(self, path: Path) -> None:
        """Give a damaged conversation's file another name: it is looked for no more, but still there to be seen."""
        self.forget(path)
        with contextlib.suppress(OSError):
            path.replace(path.with_name(path.name + ".damaged"))

    # ---------------------------------------------------------------- names

    def path(self, name: str) -> Path | None:
        """The file of a named pot. Names are checked when they come in: they have neither dots nor slashes."""
        return None if self.folder is None else self.folder / f"{name}{SUFFIX}"

    def file(self, name: str) -> Path | None:
        """The file of a named pot, if there is one."""
        path = self.path(name)
        return path if path is not None and name not in self.doomed and path.is_file() else None

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
        return self.named(name) is not None or self.file(name) is not None

    def names(self) -> list[str]:
        there = {held.name for held in list(self.held) if held.name is not None and self.named(held.name) is not None}
        if self.folder is not None:
            found = {path.name.removesuffix(SUFFIX) for path in self.folder.glob(f"*{SUFFIX}")}
            there |= {name for name in found if NAMED.match(name) and self.file(name) is not None}
        return sorted(there)

    def expect(self, name: str | None) -> Coming:
        """Note that a pot is being read; whoever notes it takes it out of `coming`."""
        coming = Coming(name)
        self.coming.append(coming)
        return coming

    def take_name(self, held: Held) -> None:
        """Put a new pot in the place of whatever had its name."""
        assert held.name is not None
        self.overtake(held.name)
        self.put(held)
        self.secure(held)

    def overtake(self, name: str) -> None:
        """Whatever had this name is no longer that pot, nor is what is on its way from disk. Its file stays."""
        self.held = [held for held in self.held if held.name != name]
        for coming in self.coming:
            coming.overtaken |= coming.name == name


def by_age(paths: Iterable[Path]) -> list[tuple[Path, float]]:
    """Files and when they were written, the oldest first. What is no file, or has no end to its links, is left out."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            about = path.stat()
            if stat.S_ISREG(about.st_mode):
                found.append((path, about.st_mtime))
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


def opened(path: Path, name: str | None, host: ModelRunner, tokenizer: PreTrainedTokenizerBase, base: PotConfig, origin: Origin) -> Held:
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
