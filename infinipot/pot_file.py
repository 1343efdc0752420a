"""Pots on disk: safetensors files that say where they come from, written whole or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
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
VOLATILE = {
    "transformers_version",
    "_name_or_path",
    "dtype",
    "torch_dtype",
    "use_cache",
    "attn_implementation",
    "_attn_implementation",
}


LOST = {errno.EIO, errno.ENOSPC, errno.EDQUOT}
"""What a disk says that has not kept what it was given."""
TRIES = 3
"""How often a file is read that somebody writes into meanwhile."""
LONGEST_HEADER = 100_000_000
"""As safetensors has it."""
HEADER: dict[str, tuple[type, ...]] = {
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
"""What a header must say, and as what."""


FIELDS = tuple(field.name for field in dataclasses.fields(PotConfig) if field.name != "policy")


class PotFileError(ValueError):
    """A pot file that cannot be used, and why. Where the disk is the reason, its OSError is the
    cause."""


class DamagedPotError(PotFileError):
    """A pot file whose own content proves that it is damaged: nothing can use it any more."""


def _plain(weight: Tensor) -> Tensor:
    """A weight as an ordinary tensor, also where it is stored in few bits, or in parts on several
    devices."""
    weight = weight.detach()
    if type(weight) is Tensor:
        return weight
    if hasattr(weight, "full_tensor"):
        return weight.full_tensor()
    return weight.dequantize()


def model_identity(model: PreTrainedModel) -> dict[str, str]:
    """What a pot must share with the model that reads on: class and config, and a sample of the
    weights."""
    if any(hasattr(weight, "device_mesh") for weight in model.parameters()):
        raise PotFileError(
            "this process has only its heads' part of a pot (tensor parallel): save and load pots with a model in one process"
        )
    config = {key: value for key, value in model.config.to_dict().items() if key not in VOLATILE}
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters())[
        :: max(1, len(list(model.parameters())) // 8)
    ]:
        # the same for float32 and bfloat16 copies
        sample = _plain(weight).flatten()[:256].to(device="cpu", dtype=torch.bfloat16)
        digest.update(name.encode() + sample.view(torch.int16).numpy().tobytes())
    return {
        "class": type(model).__name__,
        "name": Path(str(model.config._name_or_path)).name,
        "dtype": str(model.dtype).removeprefix("torch."),
        "config_sha256": hashlib.sha256(
            json.dumps(config, sort_keys=True, default=str).encode()
        ).hexdigest(),
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


def destination(path: str | os.PathLike[str]) -> Path:
    """The file that is to be written: where links lead. Refuses what a file must not take the place
    of."""
    try:
        target = Path(os.path.realpath(path))
        if not target.parent.is_dir():
            raise PotFileError(f"cannot save {path}: the folder {target.parent} does not exist")
        if target.is_symlink():
            raise PotFileError(
                f"cannot save {path}: it is a link that leads back to itself: choose another name"
            )
        if target.exists() and not target.is_file():
            if target.is_dir():
                kind = "a folder"
            else:
                kind = "a device or a pipe"
            raise PotFileError(f"cannot save {path}: it is {kind}, not a file: choose another name")
    except OSError as problem:  # a name that the system does not take
        raise PotFileError(f"cannot save {path}: {problem.strerror or problem}") from problem
    return target


def put(target: Path, content: bytes) -> None:
    """Have a file with this content, for good. The old one stays until the new one is on the disk."""
    temporary = target.parent / f".{target.name[:40]}.{os.getpid()}.{secrets.token_hex(4)}.part"
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    settle(target.parent)


def settle(folder: Path) -> None:
    """Have the disk keep which files are in a folder, where the system can be asked to."""
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
    """Write a pot file. The old file, if any, stays whole until the new one is; a failure leaves no
    trace."""
    target = destination(path)
    tensors = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    header = json.loads(json.dumps({"format": FORMAT, "version": VERSION, **about}))
    header["content_sha256"] = content_hash(tensors, header)
    try:
        put(target, save(tensors, metadata={FORMAT: json.dumps(header)}))
    except OSError as problem:
        raise PotFileError(f"cannot save {path}: {problem.strerror or problem}") from problem


def _unreadable(path: str | os.PathLike[str], problem: Exception) -> PotFileError:
    """What is said of a file that cannot be read."""
    if isinstance(problem, FileNotFoundError):
        return PotFileError(f"there is no file {path}")
    if isinstance(problem, OSError):
        error = PotFileError(f"cannot read {path}: {problem.strerror or problem}")
        error.__cause__ = problem
        return error
    return DamagedPotError(
        f"{path} is not a readable pot file: it is damaged, cut short, or something else ({problem})"
    )


def _check_file(path: str | os.PathLike[str]) -> None:
    """Refuse what is there, but is not a file: a pipe would keep its reader waiting, a device has
    no end."""
    if Path(path).exists() and not Path(path).is_file():
        raise PotFileError(f"{path} is not a file")


def _header(path: str | os.PathLike[str], raw: str | None) -> dict[str, Any]:
    """What a pot file says about itself, from the text it says it in."""
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


def _check_fields(path: str | os.PathLike[str], header: dict[str, Any]) -> None:
    for name, kinds in HEADER.items():
        if not isinstance(header.get(name, ...), kinds):
            raise PotFileError(
                f"{path} is damaged, or was written by another program: its header has no usable {name!r}"
            )


def _told(content: bytes, size: int) -> str | None:
    """What the first bytes of a safetensors file of `size` bytes say of the pot. Raises what wrong
    content makes."""
    length = int.from_bytes(content[:8], "little")
    known = json.loads(content[8 : 8 + length])
    ends = [about["data_offsets"][1] for name, about in known.items() if name != "__metadata__"]
    if max(ends, default=0) + 8 + length != size:
        raise ValueError(
            f"it has {size} bytes, and should have {max(ends, default=0) + 8 + length}"
        )
    told = (known.get("__metadata__") or {}).get(FORMAT)
    if told is None:
        return None
    return str(told)


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a pot file says about itself, without reading its entries. Refuses files that are not
    pots, or of a newer format."""
    try:
        _check_file(path)
        # safetensors says that a file is not there when there are too many open
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = file.read(8)
            length = int.from_bytes(first, "little")
            if len(first) < 8 or length > min(size, LONGEST_HEADER):
                raise ValueError("it has no header of a possible length")
            raw = _told(first + file.read(length), size)
    except (
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        RecursionError,
        OSError,
    ) as problem:
        if isinstance(problem, PotFileError):
            error = problem
        else:
            error = _unreadable(path, problem)
        raise error from error.__cause__
    header = _header(path, raw)
    _check_fields(path, header)
    return header


def _content(path: str | os.PathLike[str]) -> bytes:
    """All of a file, as it was at one moment."""
    _check_file(path)
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


def saved_options(config: PotConfig) -> dict[str, Any]:
    """All options as a file keeps them; a policy of another package with the place where its class
    stands."""
    policy = type(config.policy)
    if builtin(policy):
        options = config.options
    else:
        options = {**config.options, "policy_class": path_of(policy)}
    try:
        saved: dict[str, Any] = json.loads(json.dumps(options))
    except (TypeError, ValueError) as problem:
        raise PotFileError(
            f"cannot save the options of policy {config.policy.name!r}: a file can keep names and numbers only ({problem})"
        ) from None
    return saved


def config_of(
    path: str | os.PathLike[str],
    header: dict[str, Any],
    policy: Policy | type[Policy] | None = None,
) -> PotConfig:
    """The options a pot was filled with; those of formats 1 and 2 under the names they have now,
    and with the defaults of their time.

    policy: that of a pot that a policy of another package filled, or its class. Raises PotFileError
    for options that are not there any more.
    """
    options = dict(header["config"])
    try:
        own = policy_class(path, options, policy)
        if header["version"] < 3:
            options = old_options(options, header["version"], own)
        made = own(**{name: frozen(options[name]) for name in own.options() if name in options})
        config = PotConfig(
            **{name: frozen(options[name]) for name in FIELDS if name in options}, policy=made
        )
    except PotFileError:
        raise
    except (TypeError, ValueError) as problem:
        raise PotFileError(
            f"{path} was filled with options that this infinipot does not have: {problem}"
        ) from problem
    if isinstance(policy, Policy) and policy != made:
        raise PotFileError(f"{path} was filled with {made}, not with {policy}: give it as it was")
    return config


def policy_class(
    path: str | os.PathLike[str], options: dict[str, Any], policy: Policy | type[Policy] | None
) -> type[Policy]:
    """The class of the policy that a file names: one of ours, or the one that the caller passes."""
    place = options.pop("policy_class", None)
    name = options["policy"]
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


def frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(frozen, value))
    return value


def old_options(options: dict[str, Any], version: int, policy: type[Policy]) -> dict[str, Any]:
    """Options of formats 1 and 2, which had all there were, whatever the policy: those that it has
    now. None was a policy's default."""
    if options["distill_to"] == "auto" or options["layer_budget"] == "pyramid":
        # refuses it in a sentence
        PotConfig(distill_to=options["distill_to"], layer_budget=options["layer_budget"])
    options = {
        RENAMED.get(name, name): value for name, value in options.items() if value is not None
    }
    if version == 1:
        options.setdefault("distill_to", options["pot_size"] // 2)
        if policy.name == "infinipot":
            options = {"pool": 7, "pool_mode": "avg", "recent": 0, **options}
    return {
        name: value for name, value in options.items() if name in FIELDS or name in policy.options()
    }


def in_force(
    path: str | os.PathLike[str],
    header: dict[str, Any],
    policy: Policy | type[Policy] | None = None,
) -> tuple[PotConfig, Plan]:
    """The options a pot goes by, as far as they are decided, and its plan; its layers are known
    from format 3 on. Raises PotFileError."""
    config = config_of(path, header, policy)
    try:
        if header.get("plan"):
            layers = header["plan"]["layers"]
        elif isinstance(config.layer_budget, tuple):
            layers = config.layer_budget
        else:
            layers = [None]
        plan = Plan.of(config, len(layers), header.get("catalyst"))
        if header.get("plan"):
            plan = plan.restored(header["plan"])
        decided = bool(header["pot"]["distillations"]) or not plan.undecided
    except (KeyError, TypeError, ValueError) as problem:
        raise PotFileError(f"{path} is damaged: its plan cannot be read ({problem})") from None
    return plan.shown_in(config, decided), plan


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a pot file, checked byte by byte against the hash it carries."""
    try:
        # all at once: one file is read, even if another takes its name meanwhile
        content = _content(path)
        # not piece by piece: safetensors' get_tensor leaks two numbers a call (0.8.0)
        tensors = load(content)
        raw = _told(content, len(content))
    except (SafetensorError, OSError) as problem:
        error = _unreadable(path, problem)
        raise error from error.__cause__
    header = _header(path, raw)
    if content_hash(tensors, header) != header.get("content_sha256"):
        raise DamagedPotError(
            f"{path} is damaged: its entries are not those that were saved. Read the text again, or restore a copy"
        )
    _check_fields(path, header)
    return tensors, header


def check_origin(path: str | os.PathLike[str], header: dict[str, Any], here: Origin) -> None:
    """Refuse a pot that another model or another tokenizer filled."""
    saved = header["model"]
    given = here.model
    for what, key in (
        ("class", "class"),
        ("configuration", "config_sha256"),
        ("weights", "weights_sha256"),
    ):
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
        raise PotFileError(
            f"{path} was filled with another tokenizer than the one given: its tokens would mean something else"
        )
