"""The header of a pot file, and the errors of files that cannot be used."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from infinipot.pot_file import strict_json

FORMAT = "infinipot-pot"
VERSION = 4
"""Up to 3, the general catalyst chose without a question. 3 stores the plan. 2 and 1 have other option
names, and 1 has other defaults."""
LONGEST_HEADER = 100_000_000
"""The limit of safetensors, in bytes."""
LONGEST_REASON = 300
"""Characters of a reason that quotes a file."""
MOST = 1 << 53
"""Largest count in a header."""


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_count, value))


def is_plan(value: Any) -> bool:
    """The form of a plan; `Plan.restored` checks its values."""
    return value is None or (
        isinstance(value, dict)
        and is_text_or_none(value.get("catalyst", ...))
        and isinstance(value.get("layers"), list)
        and bool(value["layers"])
        and all(isinstance(layer, dict) for layer in value["layers"])
    )


def is_object(value: Any) -> bool:
    return isinstance(value, dict)


FIELDS: dict[str, Callable[[Any], bool]] = {
    "model": is_object,
    "model.class": is_text,
    "model.name": is_text,
    "model.dtype": is_text,
    "model.config_sha256": is_text,
    "model.weights_sha256": is_text,
    "tokenizer_sha256": is_text_or_none,
    "config": is_object,
    "system": is_text_or_none,
    "templated": is_flag,
    "in_text": is_flag,
    "answered": is_flag,
    "usual_is_newest": is_flag,
    "skipped": is_count,
    "entries": is_count,
    "pot": is_object,
    "pot.pinned": is_count,
    "pot.tokens_read": is_count,
    "pot.distillations": is_count,
    "pot.positions": is_counts,
    "pot.peaks": is_counts,
}
"""Required fields, and a check of each."""
OPTIONAL: dict[str, Callable[[Any], bool]] = {"catalyst": is_text_or_none, "plan": is_plan}
"""Fields that formats 1 and 2 do not have."""


class PotFileError(ValueError):
    """A pot file that cannot be used. If the disk is the reason, its OSError is the cause."""


class DamagedPotError(PotFileError):
    """A pot file whose content proves that it is damaged. Nothing can use it any more."""


def brief(problem: object) -> str:
    """The text of a problem in one line that is not long, whatever it quotes."""
    if isinstance(problem, KeyError):
        problem = f"there is no {problem}"
    if isinstance(problem, RecursionError):
        problem = "it is nested too deep"
    line = " ".join(str(problem).split())
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    if len(line) > LONGEST_REASON:
        return line[:LONGEST_REASON] + " ..."
    return line or type(problem).__name__


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
    if isinstance(problem, PotFileError):
        return problem
    if isinstance(problem, FileNotFoundError):
        return PotFileError(f"there is no file {path}")
    if isinstance(problem, OSError):
        error = PotFileError(f"cannot read {path}: {problem.strerror or problem}")
        error.__cause__ = problem
        return error
    return DamagedPotError(
        f"{path} is not a readable pot file: it is damaged, cut short, or something else ({brief(problem)})"
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
        header = strict_json.parse(raw)
        version = header["version"]
        if header["format"] != FORMAT or type(version) is not int or version < 1:
            raise ValueError(f"format {header['format']!r}, version {version!r}")
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise PotFileError(
            f"{path} is damaged: its header cannot be read ({brief(problem)})"
        ) from None
    if version > VERSION:
        raise PotFileError(
            f"{path} has format version {version}; this infinipot reads up to {VERSION}: update infinipot to use it"
        )
    return dict(header)


def check_fields(path: str | os.PathLike[str], header: dict[str, Any]) -> None:
    """Raise PotFileError for a header without a usable value in each field."""
    for name, usable in {**FIELDS, **OPTIONAL}.items():
        value: Any = header
        for part in name.split("."):
            value = value.get(part, None if name in OPTIONAL else ...)
        if not usable(value):
            raise PotFileError(
                f"{path} is damaged, or was written by another program: its header has no usable {name!r}"
            )


def header_text(content: bytes, size: int) -> str | None:
    """The pot's header as JSON text; None in a file that is not a pot.

    content: at least the first bytes of a safetensors file. size: bytes of the whole file. Wrong
    content raises any of ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError.
    """
    length = int.from_bytes(content[:8], "little")
    fields = strict_json.parse(content[8 : 8 + length])
    ends = [about["data_offsets"][1] for name, about in fields.items() if name != "__metadata__"]
    expected = max(ends, default=0) + 8 + length
    if size != expected:
        raise ValueError(f"it has {size} bytes, and should have {expected}")
    text = (fields.get("__metadata__") or {}).get(FORMAT)
    if text is None:
        return None
    return str(text)
