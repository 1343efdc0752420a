"""What a pot file stores of a session, and how a session is restored from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from infinipot import pot_file
from infinipot.cache.layer import PotLayer
from infinipot.cache.pot import Pot
from infinipot.cache.sliding import WindowLayer
from infinipot.engine.distill import score_novelty
from infinipot.engine.reader import Reader
from infinipot.machine import out_of_memory
from infinipot.model.attention import IN_USE
from infinipot.model.runner import ModelRunner
from infinipot.parallel.ranks import on_all_ranks
from infinipot.pot_file.header import brief
from infinipot.pot_file.identity import model_identity, tokenizer_identity
from infinipot.session.saved_state import check_room, check_tensors
from infinipot.text.chat_template import Dialogue


def origin_of(runner: ModelRunner, tokenizer: PreTrainedTokenizerBase | None) -> pot_file.Origin:
    """The identity of a runner's model and of a tokenizer. Takes a moment."""
    if runner.followers is None:
        return pot_file.origin(runner.model, tokenizer)
    return pot_file.Origin(identity_of(runner), tokenizer_identity(tokenizer))


@on_all_ranks
def identity_of(runner: ModelRunner) -> dict[str, str]:
    with IN_USE:
        return model_identity(runner.model, on_all_ranks=True)


def heads_of(pot: Pot, state: dict[str, Tensor]) -> set[str]:
    """Names of the tensors in a pot's state that have KV heads or query heads as their second
    dimension."""
    prefixes = tuple(
        f"layers.{number}."
        for number, layer in enumerate(pot.layers)
        if isinstance(layer, (PotLayer, WindowLayer))
    )
    return {
        name for name in state if name.startswith(prefixes) and not name.endswith(".hidden_states")
    }


@on_all_ranks
def whole_state(runner: ModelRunner, pot: Pot) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """`Pot.state`, with the heads of all ranks."""
    tensors, numbers = pot.state()
    for name in sorted(heads_of(pot, tensors)):
        tensors[name] = runner.shards.whole(tensors[name], 1)
    return tensors, numbers


@on_all_ranks
def restore_state(
    runner: ModelRunner, pot: Pot, tensors: dict[str, Tensor], numbers: dict[str, Any]
) -> None:
    """`Pot.restore`, from a state with the heads of all ranks."""
    own = dict(tensors)
    for name in heads_of(pot, tensors):
        own[name] = runner.shards.own(tensors[name], 1)
    pot.restore(runner.placed(own), numbers)


def session_state(
    reader: Reader, dialogue: Dialogue, system: str | None, origin: pot_file.Origin
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a session's pot file. Raises PotFileError for entries that are not
    numbers."""
    score_novelty(reader.runner, reader.pot)
    tensors, numbers = whole_state(reader.runner, reader.pot)
    check_numbers(tensors)
    ids, skipped = reader.waiting()
    tensors["tail"] = torch.tensor(ids, dtype=torch.long)
    catalyst = reader.last_catalyst
    catalyst_is_newest = catalyst is reader.pot.newest
    if catalyst is not None and not catalyst_is_newest:
        tensors["catalyst"] = catalyst
    plan = reader.fixed_plan
    header = {
        "model": origin.model,
        "tokenizer_sha256": origin.tokenizer_sha256,
        "config": pot_file.saved_options(reader.options),
        "catalyst": reader.plan.catalyst,
        "plan": plan and plan.saved(),
        "system": system,
        "templated": dialogue.templated,
        "in_text": dialogue.in_text,
        "answered": dialogue.answered,
        "usual_is_newest": catalyst_is_newest,
        "skipped": skipped,
        "entries": reader.pot.length,
        "pot": numbers,
    }
    return tensors, header


def check_numbers(tensors: dict[str, Tensor]) -> None:
    """Raise PotFileError for a pot whose entries are not numbers, from which no answer can come."""
    for name, tensor in tensors.items():
        entries = name == "hidden" or name.split(".")[-1].startswith(("keys", "values"))
        if entries and tensor.is_floating_point() and not tensor.float().isfinite().all():
            raise pot_file.PotFileError(
                "this pot cannot be saved: its entries are not numbers, because the model's weights "
                "are damaged, or its dtype cannot hold its activations. "
                "Load the model in bfloat16 or float32, and read the text again"
            )


def restore_session(
    reader: Reader, dialogue: Dialogue, tensors: dict[str, Tensor], header: dict[str, Any]
) -> None:
    """Restore `session_state` into a new reader and dialogue. Raises ValueError, KeyError or others
    for a damaged state."""
    dialogue.in_text = header["in_text"]
    dialogue.answered = header["answered"]
    reader.restore_plan(header.get("catalyst"), header.get("plan"))
    check_tensors(reader, tensors, header)
    waiting = tensors["tail"].tolist()
    reader.restore_waiting(waiting, header["skipped"])
    entries = {name: x for name, x in tensors.items() if name not in ("tail", "catalyst")}
    restore_state(reader.runner, reader.pot, entries, header["pot"])
    reader.last_catalyst = None
    if "catalyst" in tensors:
        reader.last_catalyst = tensors["catalyst"].to(reader.runner.device)
    if header["usual_is_newest"]:
        reader.last_catalyst = reader.pot.newest
    if reader.pot.length != header["entries"]:
        raise ValueError(f"it has {reader.pot.length} entries, not {header['entries']}")
    check_room(reader, len(waiting))


@contextmanager
def damage_of(path: str | os.PathLike[str]) -> Iterator[None]:
    """Inside the context all errors are PotFileErrors that name the file, which may contain
    anything. Those for lack of memory stay as they are."""
    try:
        yield
    except pot_file.PotFileError:
        raise
    except Exception as problem:
        if out_of_memory(problem):
            raise
        raise pot_file.PotFileError(
            f"{path} is damaged, or was written by another program: {brief(problem)}"
        ) from problem
