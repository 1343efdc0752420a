"""Models and tokenizers that transformers reads: from a folder, or from the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from infinipot.machine import out_of_memory
from infinipot.model.folder import check_folder, listed, warn_of_code

OWN_CODE = ("trust_remote_code", "custom code")
"""Words of transformers' errors for models whose classes it would have to fetch."""
UNUSED = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.masked_bias")
"""Ends of the names of tensors that old checkpoints hold, and that models compute themselves."""


def load_pretrained(
    source: Path | str, dtype: torch.dtype
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and the tokenizer of a folder or of a Hub id (str). Code that comes with a model is
    never run. The folder's weights and the config have to agree.

    Raises OSError if something is missing, and ValueError if something is wrong. The message names
    it.
    """
    if isinstance(source, Path):
        check_folder(source)
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        if isinstance(source, str) and hasattr(config, "auto_map"):
            warn_of_code(source, ["config.json"])
        # a pot has its own attention; transformers chooses one for its own use that is installed
        config._attn_implementation = None
        config._output_attentions = False
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        model, report = AutoModelForCausalLM.from_pretrained(
            source,
            config=config,
            dtype=dtype,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `check_report` names them
        )
    except Exception as problem:
        if out_of_memory(problem):
            raise
        raise error_of(source, problem) from problem
    check_report(source, report)
    return model, tokenizer


def error_of(source: Path | str, problem: Exception) -> Exception:
    """The error for a model that transformers cannot read."""
    text = str(problem)
    why = next(iter(text.strip().splitlines()), type(problem).__name__)
    if any(words in text for words in OWN_CODE):
        return ValueError(
            f"cannot load {str(source)!r}: this model brings its own code, which is not run, and "
            "transformers has no class for it. Use a model that transformers knows."
        )
    if isinstance(source, str) and isinstance(problem, OSError):
        return OSError(
            f"cannot load {source!r}: it is not a local folder, and the Hub did not return it "
            f"({why}). Give a Hub id, a folder, a .gguf file or 'smollm2'"
        )
    return ValueError(
        f"cannot load {str(source)!r}: its files are damaged, or of a kind that transformers does "
        f"not read ({type(problem).__name__}: {why})"
    )


def check_report(source: Path | str, report: dict[str, Any]) -> None:
    """Raise ValueError if the weights are not those that the config describes.

    report: `missing_keys`, `unexpected_keys` and `mismatched_keys` of transformers, which would give
    random numbers to what is missing.
    """
    faults = []
    mismatched = sorted(report["mismatched_keys"])
    if mismatched:
        shapes = [
            f"{name} is {list(file)} instead of {list(own)}" for name, file, own in mismatched
        ]
        faults.append(f"wrong shapes: {listed(shapes)}")
    missing = sorted(set(report["missing_keys"]) - {name for name, *_ in mismatched})
    if missing:
        faults.append(f"weights are missing: {listed(missing)}")
    left = sorted(key for key in report["unexpected_keys"] if not key.endswith(UNUSED))
    if left:
        faults.append(f"weights are left over: {listed(left)}")
    faults += [str(fault) for fault in report.get("error_msgs") or ()]
    if faults:
        raise ValueError(
            f"{source}: the weights do not fit config.json: {'; '.join(faults)}. Mend config.json, "
            "or download the folder again."
        )


def check_numbers(source: Path | str, model: PreTrainedModel) -> None:
    """Raise ValueError for weights that are not finite numbers."""
    for name, weight in model.named_parameters():
        plain = type(weight) is torch.nn.Parameter and weight.is_floating_point()
        # a sum is finite only if all its terms are
        if plain and not torch.isfinite(weight.detach().sum(dtype=torch.float32)):
            raise ValueError(
                f"{source}: {name} holds NaN or infinity in {str(weight.dtype).split('.')[1]}. The "
                "file is damaged, or the numbers are too large for this dtype: download it again, "
                "or load the model in float32."
            )
