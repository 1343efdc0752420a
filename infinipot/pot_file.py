"""Pots on disk: safetensors files that say where they come from, written whole or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from infinipot.checks import RENAMED, known
from infinipot.config import PotConfig
from infinipot.engine.plan import Plan
from infinipot.model.attention import IN_USE
from infinipot.policies import POLICIES, Policy
from infinipot.policies.registry import builtin, path_of

FORMAT = "infinipot-pot"
VERSION = 3
"""3 keeps the plan; the options of 2 and 1 have other names, those of 1 other defaults."""
VOLATILE = {"transformers_version", "_name_or_path", "dtype", "torch_dtype", "use_cache", "attn_implementation", "_attn_implementation"}


class PotFileError(ValueError):
    """A pot file that cannot be used, and why."""


def _plain(weight: Tensor) -> Tensor:
    """A weight as an ordinary tensor, also where it is stored in few bits, or in parts on several devices."""
    weight = weight.detach()
    if type(weight) is Tensor:
        return weight
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight.dequantize()


def model_identity(model: PreTrainedModel) -> dict[str, str]:
    """What a pot must share with the model that reads on: class and config, and a sample of the weights."""
    if any(hasattr(weight, "device_mesh") for weight in model.parameters()):
        raise PotFileError("this process has only its heads' part of a pot (tensor parallel): save and load pots with a model in one process")
    config = {key: value for key, value in model.config.to_dict().items() if key not in VOLATILE}
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters())[:: max(1, len(list(model.parameters())) // 8)]:
        sample = _plain(weight).flatten()[:256].to(device="cpu", dtype=torch.bfloat16)  # the same for float32 and bfloat16 copies
        digest.update(name.encode() + sample.view(torch.int16).numpy().tobytes())
    return {
        "class": type(model).__name__,
        "name": Path(str(model.config._name_or_path)).name,
        "dtype": str(model.dtype).removeprefix("torch."),
        "config_sha256": hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest(),
        "weights_sha256": digest.hexdigest(),
    }


def tokenizer_identity(tokenizer: PreTrainedTokenizerBase | None) -> str | None:
    """A hash of the vocabulary and the chat template; None without a tokenizer."""
    if tokenizer is None:
        return None
    known = [sorted(tokenizer.get_vocab().items()), tokenizer.chat_template]
    return hashlib.sha256(json.dumps(known, ensure_ascii=False).encode()).hexdigest()


@dataclass(frozen=True)
class Origin:
    """Model and tokenizer that fill a pot, as its file names them."""

    model: dict[str, str]
    tokenizer_sha256: str | None


def origin(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> Origin:
    """Takes a moment. Waits while another thread runs the model."""
    with IN_USE:
        return Origin(model_identity(model), tokenizer_identity(tokenizer))


def content_hash(tensors: dict[str, Tensor], header: dict[str, Any]) -> str:
    """Of everything in the file but the hash itself."""
    known = {key: value for key, value in header.items() if key != "content_sha256"}
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def write(path: str | os.PathLike[str], tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write a pot file. The old file, if any, stays whole until the new one is; a failure leaves no trace."""
    target = Path(path)
    if not target.parent.is_dir():
        raise PotFileError(f"cannot save {target}: the folder {target.parent} does not exist")
    tensors = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    header = json.loads(json.dumps({"format": FORMAT, "version": VERSION, **about}))
    header["content_sha256"] = content_hash(tensors, header)
    temporary = target.parent / f".{target.name[:60]}.{os.getpid()}.{secrets.token_hex(4)}.part"
    try:
        save_file(tensors, temporary, metadata={FORMAT: json.dumps(header)})
        with open(temporary, "rb+") as written:
            os.fsync(written.fileno())
        os.replace(temporary, target)
    except BaseException as problem:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(problem, (OSError, SafetensorError)):
            raise PotFileError(f"cannot save {target}: {problem}") from problem
        raise


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a pot file says about itself, without reading its entries. Refuses files that are not pots, or of a newer format."""
    try:
        with safe_open(str(path), framework="pt") as file:
            raw = (file.metadata() or {}).get(FORMAT)
    except FileNotFoundError:
        raise PotFileError(f"there is no file {path}") from None
    except (SafetensorError, OSError) as problem:
        raise PotFileError(f"{path} is not a readable pot file: it is damaged, cut short, or something else ({problem})") from None
    if raw is None:
        raise PotFileError(f"{path} is a safetensors file, but not a pot: it was not written by infinipot")
    try:
        header = json.loads(raw)
        version = int(header["version"])
        if header["format"] != FORMAT or version < 1:
            raise ValueError(f"format {header['format']!r}, version {version}")
    except (ValueError, KeyError, TypeError) as problem:
        raise PotFileError(f"{path} is damaged: its header cannot be read ({problem})") from None
    if version > VERSION:
        raise PotFileError(f"{path} has format version {version}; this infinipot reads up to {VERSION}: update infinipot to use it")
    return dict(header)


def saved_options(config: PotConfig) -> dict[str, Any]:
    """All options as a file keeps them; a policy of another package with the place where its class stands."""
    policy = type(config.policy)
    options = config.options if builtin(policy) else {**config.options, "policy_class": path_of(policy)}
    try:
        saved: dict[str, Any] = json.loads(json.dumps(options))
    except (TypeError, ValueError) as problem:
        raise PotFileError(
            f"cannot save the options of policy {config.policy.name!r}: a file can keep names and numbers only ({problem})"
        ) from None
    return saved


def config_of(path: str | os.PathLike[str], header: dict[str, Any], policy: Policy | type[Policy] | None = None) -> PotConfig:
    """The options a pot was filled with; those of formats 1 and 2 under the names they have now, and with the defaults of their time.

    policy: that of a pot that a policy of another package filled, or its class. Raises PotFileError for options that are not there any more.
    """
    options = dict(header["config"])
    try:
        own = policy_class(path, options, policy)
        if header["version"] < 3:
            options = old_options(options, header["version"], own)
        made = own(**{name: frozen(options[name]) for name in own.options() if name in options})
        config = PotConfig(**{name: frozen(options[name]) for name in FIELDS if name in options}, policy=made)
    except PotFileError:
        raise
    except (TypeError, ValueError) as problem:
        raise PotFileError(f"{path} was filled with options that this infinipot does not have: {problem}") from problem
    if isinstance(policy, Policy) and policy != made:
        raise PotFileError(f"{path} was filled with {made}, not with {policy}: give it as it was")
    return config


def policy_class(path: str | os.PathLike[str], options: dict[str, Any], policy: Policy | type[Policy] | None) -> type[Policy]:
    """The class of the policy that a file names: one of ours, or the one that the caller passes."""
    place, name = options.pop("policy_class", None), options["policy"]
    if place is None:
        known("policy", name, POLICIES)
        return POLICIES[name]
    passed = type(policy) if isinstance(policy, Policy) else policy
    if passed is None or path_of(passed) != place:
        raise PotFileError(
            f"{path} was filled with policy {name!r}, {place}, which is not infinipot's own, and a file never imports code: pass that policy "
            f"(Session.load(..., policy={place.rpartition(':')[2]}), or --policy {place})"
        )
    return passed


FIELDS = tuple(field.name for field in dataclasses.fields(PotConfig) if field.name != "policy")


def frozen(value: Any) -> Any:
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def old_options(options: dict[str, Any], version: int, policy: type[Policy]) -> dict[str, Any]:
    """Options of formats 1 and 2, which had all there were, whatever the policy: those that it has now. None was a policy's default."""
    if options["distill_to"] == "auto" or options["layer_budget"] == "pyramid":
        PotConfig(distill_to=options["distill_to"], layer_budget=options["layer_budget"])  # refuses it in a sentence
    options = {RENAMED.get(name, name): value for name, value in options.items() if value is not None}
    if version == 1:
        options.setdefault("distill_to", options["pot_size"] // 2)
        if policy.name == "infinipot":
            options = {"pool": 7, "pool_mode": "avg", "recent": 0, **options}
    return {name: value for name, value in options.items() if name in FIELDS or name in policy.options()}


def in_force(path: str | os.PathLike[str], header: dict[str, Any], policy: Policy | type[Policy] | None = None) -> tuple[PotConfig, Plan]:
    """The options a pot goes by, as far as they are decided, and its plan; its layers are known from format 3 on. Raises PotFileError."""
    config = config_of(path, header, policy)
    try:
        layers = header["plan"]["layers"] if header.get("plan") else config.layer_budget if isinstance(config.layer_budget, tuple) else [None]
        plan = Plan.of(config, len(layers), header.get("catalyst"))
        if header.get("plan"):
            plan = plan.restored(header["plan"])
        decided = bool(header["pot"]["distillations"]) or not plan.undecided
    except (KeyError, TypeError, ValueError) as problem:
        raise PotFileError(f"{path} is damaged: its plan cannot be read ({problem})") from None
    return plan.shown_in(config, decided), plan


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a pot file, checked byte by byte against the hash it carries."""
    header = describe(path)
    try:
        tensors = load(Path(path).read_bytes())  # not piece by piece: safetensors' get_tensor leaks two numbers a call (0.8.0)
    except (SafetensorError, OSError) as problem:
        raise PotFileError(f"{path} is damaged or cut short: {problem}") from None
    if content_hash(tensors, header) != header.get("content_sha256"):
        raise PotFileError(f"{path} is damaged: its entries are not those that were saved. Read the text again, or restore a copy")
    return tensors, header


def check_origin(path: str | os.PathLike[str], header: dict[str, Any], here: Origin) -> None:
    """Refuse a pot that another model or another tokenizer filled."""
    saved, given = header["model"], here.model
    for what, key in (("class", "class"), ("configuration", "config_sha256"), ("weights", "weights_sha256")):
        if saved[key] != given[key]:
            raise PotFileError(
                f"{path} was filled by {saved['class']} {saved['name']!r}; the model given, {given['class']} {given['name']!r}, has another "
                f"{what}. A pot can only be used with the model that filled it"
            )
    if saved["dtype"] != given["dtype"]:
        raise PotFileError(
            f"{path} holds entries in {saved['dtype']}, the model given runs in {given['dtype']}: load the model in {saved['dtype']}"
        )
    if header["tokenizer_sha256"] != here.tokenizer_sha256:
        raise PotFileError(f"{path} was filled with another tokenizer than the one given: its tokens would mean something else")
