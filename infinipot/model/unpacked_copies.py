"""Copies of the unpacked weights of GGUF files in the user's cache folder. The next command maps such
a copy instead of unpacking the file again.

A copy belongs to one state of one file, one dtype and one set of versions. It appears whole or not at
all, so processes do not disturb each other. A damaged copy is ignored and written anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import shutil
import tempfile
import time
import warnings
import zlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from infinipot.checks import ModelWarning
from infinipot.kernels.native import cache_folder

VARIABLE = "INFINIPOT_CACHE_GB"
DEFAULT_GB = 4.0
LEAST = 1 << 26
"""Bytes of weights below which a copy gains too little."""
COPIES = "weights-*.safetensors"
UNFINISHED = "weights-*.part"
STALE_S = 3600.0
"""After so many seconds nobody works on an unfinished copy any more."""
FORMAT = "1"


def limit() -> int:
    """Bytes that all copies together may take, by the environment variable. 0 switches them off.
    Raises ValueError."""
    text = os.environ.get(VARIABLE, "").strip() or str(DEFAULT_GB)
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = math.nan
    if not 0 <= gigabytes < math.inf:
        raise ValueError(
            f"{VARIABLE}={text!r} is not allowed: give the gigabytes that unpacked weights may take "
            f"in {cache_folder()}, such as {DEFAULT_GB:g}, or 0 to keep none"
        )
    return int(gigabytes * 10**9)


def place_of(source: Path, dtype: torch.dtype) -> Path:
    """Where the copy of a GGUF file is kept, whether there is one or not."""
    about = source.stat()
    state = (about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino)
    versions = (version(name) for name in ("infinipot", "transformers", "gguf"))
    parts = (FORMAT, str(source.resolve()), *map(str, state), str(dtype), *versions)
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache_folder() / COPIES.replace("*", key)


def read_copy(place: Path) -> dict[str, Tensor] | None:
    """The tensors of a copy by name, mapped: a change in memory does not reach the file. None if
    there is no copy, or none that is whole."""
    if not limit():
        return None
    try:
        with safe_open(place, framework="pt") as file:
            noted = (file.metadata() or {}).get("checksum")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if noted != checksum(tensors):
            return None
        os.utime(place)  # the copy that was used last goes last
    except (OSError, SafetensorError):
        return None
    return tensors


def write_copy(place: Path, tensors: Mapping[str, Tensor]) -> None:
    """Keep the tensors for later, if they fit into the limit and take at most half of the free disk.
    Copies that were not used for longest make room. Warns if the folder cannot be written."""
    content = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    size = sum(tensor.nbytes for tensor in content.values())
    if not LEAST <= size <= limit():
        return
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_room(place, limit() - size)
        if 2 * size > shutil.disk_usage(place.parent).free:
            return
        before, after = UNFINISHED.split("*")
        with tempfile.TemporaryDirectory(prefix=before, suffix=after, dir=place.parent) as folder:
            made = Path(folder) / place.name
            save_file(content, made, {"checksum": checksum(content)})
            os.replace(made, place)
    except (OSError, SafetensorError) as problem:
        warnings.warn(
            f"the unpacked weights cannot be kept in {place.parent} ({problem}), so the next command "
            f"unpacks them again. Make room there, name another folder in XDG_CACHE_HOME, or set "
            f"{VARIABLE}=0",
            ModelWarning,
            stacklevel=3,
        )


def make_room(place: Path, room: int) -> None:
    """Remove what was never finished, the copy that `place` replaces, and the copies that were not
    used for longest, until the others take at most `room` bytes."""
    for folder in place.parent.glob(UNFINISHED):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > STALE_S:
                shutil.rmtree(folder)
    with contextlib.suppress(FileNotFoundError):
        place.unlink()
    copies = []
    for path in place.parent.glob(COPIES):
        with contextlib.suppress(FileNotFoundError):  # another process was here
            about = path.stat()
            copies.append((about.st_mtime_ns, about.st_size, path))
    taken = sum(size for _, size, _ in copies)
    for _, size, path in sorted(copies):
        if taken <= room:
            return
        path.unlink(missing_ok=True)
        taken -= size


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """The CRC-32 of all tensors, in the order of their names."""
    total = 0
    for name in sorted(tensors):
        content = tensors[name].flatten().view(torch.uint8).numpy()
        total = zlib.crc32(content.data, total)
    return f"{total:08x}"
