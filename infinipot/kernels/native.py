"""`groups.c`, compiled for this processor at its first use and kept for later ones.

torch has no product of float32 with groups of whole numbers that is fast on a CPU, and as exact
(`benchmarks/weight_kernels.py` compares). A machine without a C compiler computes the same with
torch's own operations, more slowly, and is told so once.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from infinipot.checks import ModelWarning

SOURCE = Path(__file__).with_name("groups.c")
SOURCES = (SOURCE, *(SOURCE.with_name(f"groups_{way}.h") for way in ("avx2", "plain")))
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC")
THREADED = "-fopenmp"
FEW = 16
"""Up to so many rows, the compiled product is faster than unpacking the weights for torch's own."""
PATIENCE_S = 60
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Numbers of malloc.h."""
KEPT_BYTES = 1 << 27
MAPPED_BYTES = 1 << 25
"""Larger pieces of memory go back at once. glibc takes no larger value."""


def compiler() -> list[str] | None:
    """The command of the C compiler: of the environment variable CC, else cc, gcc or clang."""
    named = shlex.split(os.environ.get("CC", ""))
    for command in (named, ["cc"], ["gcc"], ["clang"]):
        if command and shutil.which(command[0]):
            return command
    return None


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "infinipot"


def processor() -> str:
    """What tells processors apart that need other machine code."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def compiled() -> Path:
    """The library's file, whose name holds the sum of what is in it. Raises OSError, ValueError or
    RuntimeError if it cannot be made."""
    command = compiler()
    if command is None:
        raise RuntimeError("there is no C compiler")
    sources = [path.read_text() for path in SOURCES]
    parts = "\n".join((*sources, *command, *FLAGS, platform.machine(), processor()))
    name = f"groups-{short_sum(parts.encode())}"
    folder = cache_folder()
    for path in sorted(folder.glob(f"{name}-*.so")):
        if path.stem == f"{name}-{short_sum(path.read_bytes())}":
            return path
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        made = Path(work) / "groups.so"
        build(command, made)
        target = folder / f"{name}-{short_sum(made.read_bytes())}.so"
        os.replace(made, target)
    return target


def short_sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def build(command: list[str], target: Path) -> None:
    """Compile with threads, or without them if the compiler has no OpenMP."""
    errors = ""
    for flags in ((*FLAGS, THREADED), FLAGS):
        result = subprocess.run(
            [*command, *flags, "-o", str(target), str(SOURCE)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        if result.returncode == 0:
            return
        errors = result.stderr
    raise RuntimeError(f"{command[0]} says: {' '.join(errors.split())[:200]}")


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled functions; None, with a warning, where they cannot be had."""
    try:
        functions = opened(compiled())
        keep_freed_memory()
        return functions
    except (OSError, ValueError, RuntimeError, subprocess.TimeoutExpired) as problem:
        warnings.warn(
            f"quantised weights compute slowly here, because a small C file cannot be compiled "
            f"({problem}). Install gcc or clang, or name a compiler in the environment variable CC",
            ModelWarning,
            stacklevel=3,
        )
        return None


def keep_freed_memory() -> None:
    """Tell glibc to keep some memory that is freed. Otherwise the system takes back what a layer has
    used, and clears it for the next one, which takes a tenth of the time of reading. Variables of the
    environment that set this have priority."""
    asked = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    adjust = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if adjust is not None and not asked:
        adjust(M_MMAP_THRESHOLD, MAPPED_BYTES)
        adjust(M_TRIM_THRESHOLD, KEPT_BYTES)


def opened(path: Path) -> ctypes.CDLL:
    """The functions of a compiled library, with the types of their parameters."""
    functions = ctypes.CDLL(str(path))
    number = ctypes.c_long
    pointer = ctypes.c_void_p
    ending: list[Any] = [pointer, number, number, ctypes.c_int]
    functions.most_rows.restype = number
    functions.room_bytes.restype = number
    functions.room_bytes.argtypes = [number, number]
    functions.products.argtypes = [number, *[pointer] * 6, *ending]
    functions.unpack.argtypes = [*[pointer] * 4, *ending]
    return functions


def fits(x: Tensor) -> bool:
    """Whether `products` takes this tensor: on a CPU, and without a gradient."""
    return x.device.type == "cpu" and not x.requires_grad and library() is not None


def takes_many() -> bool:
    """Whether `products` is faster than torch for many rows, too."""
    functions = library()
    return functions is not None and functions.most_rows() > FEW


def addresses(*tensors: Tensor | None) -> list[int | None]:
    return [None if x is None else x.data_ptr() for x in tensors]


def of_weight(numbers: Tensor, scale: Tensor, low: Tensor | None) -> list[int | None]:
    """The addresses of a weight's numbers, scales, least values and headers of blocks."""
    if scale.dtype == torch.uint8:
        return addresses(numbers, None, None, scale)
    return addresses(numbers, scale, low, None)


def products(x: Tensor, numbers: Tensor, scale: Tensor, low: Tensor | None) -> Tensor:
    """x [M, 32 G] float32 times the weights of N outputs -> [M, N] float32.

    numbers, scale, low: as `model.groups.GroupedWeight` has them, contiguous. A row's products do not
    depend on the other rows.
    """
    functions = library()
    assert functions is not None
    outputs, groups = numbers.shape[:2]
    most = functions.most_rows()
    y = x.new_empty(x.shape[0], outputs)
    room = torch.empty(functions.room_bytes(min(most, x.shape[0]), groups), dtype=torch.uint8)
    weights = of_weight(numbers, scale, low)
    threads = torch.get_num_threads()
    for start in range(0, x.shape[0], most):
        count = min(most, x.shape[0] - start)
        functions.products(
            count,
            x.data_ptr() + start * x.shape[1] * x.element_size(),
            room.data_ptr(),
            *weights,
            y.data_ptr() + start * outputs * y.element_size(),
            outputs,
            groups,
            threads,
        )
    return y


def unpack(part: tuple[Tensor, Tensor, Tensor | None], out: Tensor) -> None:
    """Write the weights of N outputs, as for `products`, into out [N, 32 G], float32 and contiguous."""
    functions = library()
    assert functions is not None
    weights = of_weight(*part)
    functions.unpack(*weights, *addresses(out), *part[0].shape[:2], torch.get_num_threads())
