"""A pot that no request uses: its keys, and its file."""

from __future__ import annotations

import array
import dataclasses
import hashlib
import re
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from infinipot.config import PotConfig
from infinipot.model.runner import ModelRunner
from infinipot.pot_file import Origin, describe, in_force
from infinipot.server.errors import APIError
from infinipot.server.text_prompts import PotContext
from infinipot.session import Session

SUFFIX = ".pot.safetensors"
CONVERSATION = re.compile(r"^([0-9]+)-([0-9a-f]{64})$")
Key = tuple[int, str]
"""How many ids a pot has read, and their hash."""
Stamp = tuple[int, int]
"""Inode and time of change: they identify one version of a file."""


@dataclasses.dataclass(eq=False)
class StoredPot:
    """A pot that no request uses. A pot with a name stays until it is deleted."""

    session: Session
    key: Key
    context: PotContext
    label: str | None = None
    salt: str = ""
    """A secret that a request must know, besides the label, to name the conversation."""
    name: str | None = None
    content: str = ""
    """Hash of a named pot's content."""
    superseded: bool = False
    """Whether a longer conversation came out of it. Such a pot leaves first, and is not written."""
    saved: bool = False
    expendable: bool = False
    """Whether a named pot may be lost."""
    retry_at: float = 0.0
    """When to try again after a failed write. Until then a named pot cannot leave memory."""
    problem: Exception | None = None
    """Why the last write failed."""
    writing: Future[None] | None = None
    """The write that began when a named pot took its name."""
    stamp: Stamp | None = None
    """Version of a named pot's file, if the file holds the same pot."""


def scope_of(
    config: PotConfig, templated: bool, pot: str = "", label: str = "", salt: str = ""
) -> str:
    """What two requests must share, besides token ids, for one to continue the other's pot."""
    options = config.replace(chunk_tokens=1)  # it changes rounding only
    shared = (options, templated, pot, label)
    if salt:
        return repr((*shared, salt))
    return repr(shared)


def digests(scope: str, ids: list[int], counts: Iterable[int]) -> list[Key]:
    """Keys of the pots that have read the first `count` of these ids, shortest first."""
    content = hashlib.sha256(scope.encode())
    done = 0
    keys = []
    for count in sorted({count for count in counts if count <= len(ids)}):
        content.update(array.array("q", ids[done:count]).tobytes())
        done = count
        keys.append((count, content.hexdigest()))
    return keys


def content_of(session: Session) -> str:
    """Hash of a pot's content. It is the same in memory and after a load from disk."""
    pot = session.pot
    assert pot.hidden is not None
    scope = repr((scope_of(session.config, True), pot.tokens_read, session.system))
    content = hashlib.sha256(scope.encode())
    for tensor in (pot.hidden, pot.newest):
        content.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


def stamp_of(path: Path | None) -> Stamp | None:
    """The version of a file; None if there is no file."""
    if path is None:
        return None
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def unknown_pot(name: str) -> APIError:
    message = f"there is no pot {name!r}; GET /v1/pots lists them"
    return APIError(404, message, code="pot_not_found", param="pot")


@dataclasses.dataclass(frozen=True)
class PotLoader:
    """Loads pots for one model. origin: computed before, since loading must not touch the model."""

    runner: ModelRunner
    tokenizer: PreTrainedTokenizerBase
    base: PotConfig
    """The server's own config."""
    origin: Origin

    def load(self, path: Path, name: str | None) -> StoredPot:
        """Load a pot from its file. Raises PotFileError."""
        stamp = stamp_of(path)  # taken first: a file that changes meanwhile is read again
        session = Session.load(
            path,
            self.runner,
            self.tokenizer,
            chunk_tokens=self.base.chunk_tokens,
            origin=self.origin,
            policy=type(self.base.policy),
        )
        context = context_of(describe(path))
        if name is not None:
            content = content_of(session)
            return StoredPot(
                session, (0, content), context, name=name, content=content, saved=True, stamp=stamp
            )
        match = CONVERSATION.match(path.name.removesuffix(SUFFIX))
        assert match is not None
        return StoredPot(session, (int(match[1]), match[2]), context, saved=True)


def header_of(path: Path, base: PotConfig) -> tuple[PotContext, PotConfig]:
    """A saved pot's context, and its options in force. Raises PotFileError."""
    header = describe(path)
    return context_of(header), in_force(path, header, type(base.policy))[0]


def context_of(header: dict[str, Any]) -> PotContext:
    """The context that a pot file's header describes."""
    return PotContext(header["system"], header["templated"], header["in_text"], header["answered"])
