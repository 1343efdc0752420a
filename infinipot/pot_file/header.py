"""The header of a pot file, and the errors of files that cannot be used."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FORMAT = "infinipot-pot"
VERSION = 3
"""3 stores the plan. 2 and 1 have other option names, and 1 has other defaults."""
FIELDS: dict[str, tuple[type, ...]] = {
    "model": (dict,),
    "tokenizer_sha256": (str, type(None)),
    "config": (dict,),
    "system": (str, type(None)),
    "templated": (bool,),
    "in_text": (bool,),
    "answered": (bool,),
    "skipped": (int,),
    "pot": (dict,),
}
"""Required fields and their types."""
LONGEST_HEADER = 100_000_000
"""The limit of safetensors, in bytes."""


class PotFileError(ValueError):
    """A pot file that cannot be used. If the disk is the reason, its OSError is the cause."""


class DamagedPotError(PotFileError):
    """A pot file whose content proves that it is damaged. Nothing can use it any more."""


def content_hash(tensors: dict[str, Tensor], header: dict[str, Any]) -> str:
    """SHA-256 of tensors and header, without the hash itself."""
    fields = {key: value for key, value in header.items() if key != "content_sha256"}
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def unreadable(path: str | os.PathLike[str], problem: Exception) -> PotFileError:
    """The error for a file that cannot be read."""
    if isinstance(problem, FileNotFoundError):
        return PotFileError(f"there is no file {path}")
    if isinstance(problem, OSError):
        error = PotFileError(f"cannot read {path}: {problem.strerror or problem}")
        error.__cause__ = problem
        return error
    return DamagedPotError(
        f"{path} is not a readable pot file: it is damaged, cut short, or something else ({problem})"
    )


def check_file(path: str | os.PathLike[str]) -> None:
    """Refuse pipes and devices: reading a pipe blocks, and a device has no end."""
    if Path(path).exists() and not Path(path).is_file():
        raise PotFileError(f"{path} is not a file")


def parse_header(path: str | os.PathLike[str], raw: str | None) -> dict[str, Any]:
    """The header from its JSON text. Raises PotFileError."""
    if raw is None:
        raise PotFileError(
            f"{path} is a safetensors file, but not a pot: it was not written by infinipot"
        )
    try:
        header = json.loads(raw)
        version = int(header["version"])
        if header["format"] != FORMAT or version < 1:
            raise ValueError(f"format {header['format']!r}, version {version}")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as problem:
        raise PotFileError(f"{path} is damaged: its header cannot be read ({problem})") from None
    if version > VERSION:
        raise PotFileError(
            f"{path} has format version {version}; this infinipot reads up to {VERSION}: update infinipot to use it"
        )
    return dict(header)


def check_fields(path: str | os.PathLike[str], header: dict[str, Any]) -> None:
    for name, kinds in FIELDS.items():
        if not isinstance(header.get(name, ...), kinds):
            raise PotFileError(
                f"{path} is damaged, or was written by another program: its header has no usable {name!r}"
            )


def header_text(content: bytes, size: int) -> str | None:
    """The pot's header as JSON text; None in a file that is not a pot.

    content: at least the first bytes of a safetensors file. size: bytes of the whole file. Wrong
    content raises any of ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError.
    """
    length = int.from_bytes(content[:8], "little")
    fields = json.loads(content[8 : 8 + length])
    ends = [about["data_offsets"][1] for name, about in fields.items() if name != "__metadata__"]
    expected = max(ends, default=0) + 8 + length
    if size != expected:
        raise ValueError(f"it has {size} bytes, and should have {expected}")
    text = (fields.get("__metadata__") or {}).get(FORMAT)
    if text is None:
        return None
    return str(text)
