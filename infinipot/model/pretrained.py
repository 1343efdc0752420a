"""Models and tokenizers that transformers reads: from a folder, or from the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import snapshot_download
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

from infinipot.machine import out_of_memory
from infinipot.model.folder import check_folder, listed, shards_of, warn_of_code
from infinipot.model.groups import can_hold, finite, weights_in_groups
from infinipot.model.quantizer import METHOD, GroupsConfig, kind_of
from infinipot.model.rounding import CPU
from infinipot.model.stored import stored_tensors

OWN_CODE = ("trust_remote_code", "custom code")
"""Words of transformers' errors for models whose classes it would have to fetch."""
REPORTED: dict[str, Any] = {
    "output_loading_info": True,
    "ignore_mismatched_sizes": True,  # `check_report` names them
}
READERS = {
    "gptq": "gptqmodel optimum",
    "awq": "gptqmodel",
    "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed-tensors",
    "torchao": "torchao",
    "quanto": "optimum-quanto",
    "hqq": "hqq",
    "aqlm": "'aqlm[cpu,gpu]'",
    "eetq": "kernels",
    "mxfp4": "kernels",
    "auto-round": "auto-round",
    "vptq": "vptq",
    "spqr": "spqr_quant",
    "quark": "amd-quark",
}
"""Packages that read quantised weights, by transformers' name of the method."""
UNQUANTISED = "Take unquantised weights."
UNUSED = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.masked_bias")
"""Ends of the names of tensors that old checkpoints hold, and that models compute themselves."""


def load_pretrained(
    source: Path | str,
    dtype: torch.dtype,
    weights: str | None = None,
    device: torch.device = CPU,
    **how: Any,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and the tokenizer of a folder or of a Hub id (str). Code that comes with a model is
    never run. The folder's weights and the config have to agree.

    weights: `int8` or `int4` quantises while it loads, on `device`; None leaves the weights as they
    are. how: more options of transformers' `from_pretrained`. Raises OSError if something is missing, and
    ValueError if something is wrong. The message names it.
    """
    if isinstance(source, Path):
        check_folder(source)
    method = ""
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        if isinstance(source, str) and hasattr(config, "auto_map"):
            warn_of_code(source, ["config.json"])
        # a pot has its own attention; transformers chooses one for its own use that is installed
        config._attn_implementation = None
        config._output_attentions = False
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        method = method_of(config)
        if stays_as_it_is(source, config, weights):
            model, report = AutoModelForCausalLM.from_pretrained(
                source, config=config, dtype=dtype, trust_remote_code=False, **REPORTED, **how
            )
        else:
            model, report = quantised(source, config, dtype, str(weights), device)
    except Exception as problem:
        if out_of_memory(problem):
            raise
        if method and isinstance(problem, (ImportError, RuntimeError)):
            raise ValueError(needs(source, method, problem)) from problem
        raise error_of(source, problem) from problem
    check_report(source, report)
    return model, tokenizer


def pretrained_tokenizer(source: Path | str) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or of a Hub id (str). Raises OSError or ValueError."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source, trust_remote_code=False
        )
    except Exception as problem:
        raise error_of(source, problem) from problem
    return tokenizer


def stays_as_it_is(source: Path | str, config: Any, weights: str | None) -> bool:
    """Whether the weights are loaded as they are stored. Refuses another kind of weights for a model
    that is quantised already."""
    method = method_of(config)
    if not method:
        return weights is None
    if method not in AUTO_QUANTIZER_MAPPING and method != "bitsandbytes":
        raise LoadError(
            f"cannot load {str(source)!r}: its weights are quantised ({method}), which transformers "
            f"{transformers.__version__} does not read. {UNQUANTISED}"
        )
    kind = config.quantization_config.get("weights") if method == METHOD else method
    if weights in (None, "auto", kind):
        return True
    raise LoadError(
        f"weights={weights!r} is not possible for {str(source)!r}: its weights are quantised already "
        f"({kind}). Leave weights out, or take the model that it was made of."
    )


def method_of(config: Any) -> str:
    """How the weights are quantised, as transformers calls it; empty if they are not."""
    stored = getattr(config, "quantization_config", None) or getattr(
        config.get_text_config(), "quantization_config", None
    )
    if stored is None:
        return ""
    bitsandbytes = stored.get("load_in_8bit") or stored.get("load_in_4bit")
    return str(stored.get("quant_method", "bitsandbytes" if bitsandbytes else "unnamed"))


def needs(source: Path | str, method: str, problem: Exception) -> str:
    """What to install for quantised weights, or what else is missing."""
    why = " ".join(str(problem).split())
    advice = UNQUANTISED
    if isinstance(problem, ImportError) and method in READERS:
        advice = f"Install it (pip install {READERS[method]}), or take unquantised weights."
    return (
        f"cannot load {str(source)!r}: its weights are quantised ({method}), and what reads them is "
        f"not there ({why[:200]}). {advice}"
    )


def quantised(
    source: Path | str, config: Any, dtype: torch.dtype, weights: str, device: torch.device
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """A model whose weights are quantised one by one while they are read, on `device`, where they
    stay, and transformers' report."""
    folder = Path(source)
    if isinstance(source, str):
        folder = Path(snapshot_download(source, allow_patterns=["*.safetensors*", "*.json"]))
    shards = shards_of(folder)
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config, dtype=dtype)
    tensors: dict[str, Any] = {}
    if shards[0].suffix == ".safetensors":
        large = {f"{name}.weight" for name, part in skeleton.named_modules() if can_hold(part)}
        tensors = stored_tensors(shards, large)
    else:
        for shard in shards:
            tensors |= torch.load(shard, map_location="cpu", mmap=True, weights_only=True)
    kind = GroupsConfig(kind_of(weights))
    kind.rounded_on = device
    model, report = type(skeleton).from_pretrained(
        None, config=config, state_dict=tensors, quantization_config=kind, dtype=dtype, **REPORTED
    )
    report["mismatched_keys"] = {*report["mismatched_keys"], *model.hf_quantizer.mismatched}
    model.config._name_or_path = str(source)
    if (folder / "generation_config.json").exists():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model, report


class LoadError(ValueError):
    """A sentence for the user, as it stands."""


def error_of(source: Path | str, problem: Exception) -> Exception:
    """The error for a model that transformers cannot read."""
    if isinstance(problem, LoadError):
        return problem
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
        if plain and not finite(weight.detach()):
            raise ValueError(
                f"{source}: {name} holds NaN or infinity in {str(weight.dtype).split('.')[1]}. The "
                "file is damaged, or the numbers are too large for this dtype: download it again, "
                "or load the model in float32."
            )
    for name, groups in weights_in_groups(model).items():
        if not groups.finite():
            raise ValueError(
                f"{source}: {name} holds NaN or infinity, or numbers too large for "
                f"{groups.bits} bits. The file is damaged: download it again."
            )
