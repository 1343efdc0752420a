"""Pots on disk: safetensors files with a header that names their origin. A file is written whole
or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from infinipot.machine import out_of_memory
from infinipot.model.attention import IN_USE
from infinipot.pot_file.header import (
    FORMAT,
    LONGEST_HEADER,
    VERSION,
    DamagedPotError,
    PotFileError,
    brief,
    check_fields,
    check_file,
    content_hash,
    header_text,
    parse_header,
    unreadable,
)
from infinipot.pot_file.identity import model_identity, tokenizer_identity
from infinipot.pot_file.options import config_of, in_force, saved_options

__all__ = [
    "FORMAT",
    "VERSION",
    "DamagedPotError",
    "Origin",
    "PotFileError",
    "check_origin",
    "config_of",
    "content_hash",
    "describe",
    "in_force",
    "origin",
    "read",
    "saved_options",
    "write",
]

LOST = {errno.EIO, errno.ENOSPC, errno.EDQUOT}
"""Errors of a disk that has lost data."""
UNREADABLE = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    RecursionError,
    RuntimeError,
    OverflowError,
    OSError,
)
"""Errors while a file with any content is read."""
TRIES = 3
"""How often a file is read that another process is writing."""


@dataclass(frozen=True)
class Origin:
    """Identity of the model and the tokenizer that fill a pot."""

    model: dict[str, str]
    tokenizer_sha256: str | None


def origin(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> Origin:
    """Identify model and tokenizer. Takes a moment, and waits while another thread runs the model."""
    with IN_USE:
        return Origin(model_identity(model), tokenizer_identity(tokenizer))


def destination(path: str | os.PathLike[str]) -> Path:
    """The file to write, with links resolved. Raises PotFileError for folders, devices and pipes."""
    try:
        target = Path(os.path.realpath(path))
        if not target.parent.is_dir():
            missing = FileNotFoundError(errno.ENOENT, "its folder does not exist")
            raise PotFileError(
                f"cannot save {path}: the folder {target.parent} does not exist"
            ) from missing
        if target.is_symlink():
            raise PotFileError(
                f"cannot save {path}: it is a link that leads back to itself: choose another name"
            )
        if target.exists() and not target.is_file():
            kind = "a device or a pipe"
            if target.is_dir():
                kind = "a folder"
            raise PotFileError(f"cannot save {path}: it is {kind}, not a file: choose another name")
    except OSError as problem:  # the system refuses the name
        raise PotFileError(f"cannot save {path}: {problem.strerror or problem}") from problem
    return target


def put(target: Path, content: bytes) -> None:
    """Write a file durably. An old file stays until the new one is on the disk."""
    temporary = target.parent / f".{target.name[:40]}.{os.getpid()}.{secrets.token_hex(4)}.part"
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            owner = target.stat()
            with contextlib.suppress(OSError):  # only root may give files away
                os.chown(temporary, owner.st_uid, owner.st_gid)
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    settle(target.parent)


def settle(folder: Path) -> None:
    """Write a folder's entries to the disk, if the system supports it."""
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as problem:
        if problem.errno in LOST:
            raise


def write(path: str | os.PathLike[str], tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write a pot file. After a failure, an old file is unchanged and no other file is left."""
    target = destination(path)
    tensors = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    header = json.loads(json.dumps({"format": FORMAT, "version": VERSION, **about}))
    header["content_sha256"] = content_hash(tensors, header)
    try:
        put(target, save(tensors, metadata={FORMAT: json.dumps(header)}))
    except OSError as problem:
        raise PotFileError(f"cannot save {path}: {problem.strerror or problem}") from problem


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The header of a pot file, without its entries. Raises PotFileError for files that are not
    pots, and for newer formats."""
    try:
        check_file(path)
        # not by safetensors, which reports too many open files as a missing file
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = file.read(8)
            length = int.from_bytes(first, "little")
            if len(first) < 8 or length > min(size, LONGEST_HEADER):
                raise ValueError("it has no header of a possible length")
            raw = header_text(first + file.read(length), size)
    except UNREADABLE as problem:
        if out_of_memory(problem):
            raise
        error = unreadable(path, problem)
        raise error from error.__cause__
    header = parse_header(path, raw)
    check_fields(path, header)
    return header


def _content(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file at one moment."""
    check_file(path)
    for _ in range(TRIES):
        with open(path, "rb") as file:
            before = os.fstat(file.fileno())
            content = file.read()
            after = os.fstat(file.fileno())
        if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, len(content)):
            return content
    raise PotFileError(
        f"{path} was changed while it was read: try again when whoever writes it is done"
    )


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a pot file, verified by its hash. Raises PotFileError."""
    try:
        # in one go: another file may take its name meanwhile
        content = _content(path)
        # not by get_tensor, which leaks two numbers a call (safetensors 0.8.0)
        tensors = load(content)
        raw = header_text(content, len(content))
    except (SafetensorError, *UNREADABLE) as problem:
        if out_of_memory(problem):
            raise
        error = unreadable(path, problem)
        raise error from error.__cause__
    header = parse_header(path, raw)
    if content_hash(tensors, header) != header.get("content_sha256"):
        raise DamagedPotError(
            f"{path} is damaged: its entries are not those that were saved. Read the text again, or restore a copy"
        )
    check_fields(path, header)
    return tensors, header


def check_origin(path: str | os.PathLike[str], header: dict[str, Any], here: Origin) -> None:
    """Raise PotFileError for a pot of another model or another tokenizer."""
    saved = header["model"]
    current = here.model
    if saved["dtype"] != current["dtype"]:
        raise PotFileError(
            f"{path} holds entries in {brief(saved['dtype'])}, "
            f"the model given runs in {current['dtype']}: load the model in {brief(saved['dtype'])}, "
            "and with the same weights option (int8, int4), if it had one"
        )
    for what, key in (
        ("another class", "class"),
        ("another configuration", "config_sha256"),
        ("other adapters in use", "adapters"),
        ("other weights", "weights_sha256"),
        ("other weights", "samples_sha256"),
    ):
        # files of earlier versions have neither adapters nor samples
        if saved.get(key, current[key]) != current[key]:
            raise PotFileError(
                f"{path} was filled by {brief(saved['class'])} {brief(saved['name'])!r}; "
                f"the model given, {current['class']} {current['name']!r}, "
                f"has {what}. A pot can only be used with the model that filled it, "
                "and with the same weights option (int8, int4)"
            )
    if header["tokenizer_sha256"] != here.tokenizer_sha256:
        raise PotFileError(
            f"{path} was filled with another tokenizer than the one given: its tokens would mean something else"
        )
