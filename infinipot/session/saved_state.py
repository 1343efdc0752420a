"""Checks of what a pot file stores against the model, the options, and itself.

Whoever writes a file can also make its hash, so nothing in it is trusted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from infinipot.cache.bookkeeping import NEWEST
from infinipot.cache.layer import PotLayer
from infinipot.cache.recurrent import TENSORS
from infinipot.cache.sliding import WindowLayer
from infinipot.cache.storage import QUANTISED
from infinipot.engine.plan import LayerPlan
from infinipot.engine.reader import Reader

LARGEST = 1e12
"""Largest size of a stored number. Larger ones would overflow in the model."""
LONGEST_TEXT = 2_000_000_000
"""Most tokens that a pot has read: places in the text are stored in 32 bits."""
Form = tuple[torch.dtype, tuple[int | None, ...]]
"""Type and shape of a tensor; None: any size."""


def require(fits: bool, what: str) -> None:
    if not fits:
        raise ValueError(what)


def check_tensors(reader: Reader, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Raise ValueError for tensors of a pot file that no reader with this plan can have written."""
    pot = reader.pot
    count = len(pot.layers)
    numbers = header["pot"]
    tokens = numbers["tokens_read"]
    require(tokens <= LONGEST_TEXT, f"it has read {tokens:,} tokens")
    for name in ("positions", "peaks"):
        require(len(numbers[name]) == count, f"it has {len(numbers[name])} {name}, not {count}")
    forms = forms_of(reader)
    optional = {"catalyst"} | {
        f"layers.{number}.past" for number in range(count) if reader.plan.remembers
    }
    for name in sorted(tensors.keys() | forms.keys()):
        require(name in forms, f"it has a tensor {name!r}, which its options do not need")
        require(name in tensors or name in optional, f"its tensor {name!r} is missing")
        if name in tensors:
            check_form(name, tensors[name], forms[name])
            check_numbers(name, tensors[name])
    check_ids(reader, tensors)
    plans = iter(reader.plan.layers)
    for number, layer in enumerate(pot.layers):
        own = own_tensors(tensors, number)
        if isinstance(layer, PotLayer):
            check_pot_layer(layer, own, number, header, next(plans))
            check_fresh(reader, own, tensors)
            check_queries(layer, own)
        elif isinstance(layer, WindowLayer):
            check_window_layer(layer, own, numbers["positions"][number])


def own_tensors(tensors: dict[str, Tensor], number: int) -> dict[str, Tensor]:
    """The tensors of a layer, by their names in it."""
    prefix = f"layers.{number}."
    return {name[len(prefix) :]: x for name, x in tensors.items() if name.startswith(prefix)}


# ---------------------------------------------------------------- forms


def forms_of(reader: Reader) -> dict[str, Form]:
    """The form of each tensor in a file of this reader."""
    runner = reader.runner
    hidden = runner.sample["hidden"]
    forms: dict[str, Form] = {
        "hidden": (hidden.dtype, tuple(hidden.shape)),
        "novelty": (torch.float32, (1, None)),
        "fresh": (torch.long, (1, None)),
        "newest": (torch.long, (1, NEWEST)),
        "tail": (torch.long, (None,)),
        "catalyst": (torch.long, (None, None)),
    }
    for number, layer in enumerate(reader.pot.layers):
        sample = own_tensors(runner.sample, number)
        if isinstance(layer, PotLayer | WindowLayer):
            sample = {name: on_ranks(x, runner.shards.count) for name, x in sample.items()}
        own = {name: form_of(name, x) for name, x in sample.items()}
        if isinstance(layer, PotLayer):
            own |= pot_layer_forms(reader, number, layer, sample)
        forms |= {f"layers.{number}.{name}": form for name, form in own.items()}
    return forms


def on_ranks(x: Tensor, count: int) -> Tensor:
    """A tensor of the shape that those of all ranks have together, whose heads are dimension 1."""
    return x.new_empty((x.shape[0], count * x.shape[1], *x.shape[2:]))


def form_of(name: str, x: Tensor) -> Form:
    """Entries are of any number, and a state has one shape."""
    if name.split(".")[0] in TENSORS:
        return x.dtype, tuple(x.shape)
    return any_length(x)


def any_length(x: Tensor) -> Form:
    return x.dtype, (*x.shape[:2], None, *x.shape[3:])


def pot_layer_forms(
    reader: Reader, number: int, layer: PotLayer, sample: dict[str, Tensor]
) -> dict[str, Form]:
    keys = sample["keys"]
    heads = keys.shape[1]
    records: tuple[int | None, ...] = (1, heads, None)
    forms: dict[str, Form] = {
        "index": (torch.long, records),
        "novelty": (torch.float32, records),
    }
    for name in ("keys", "values"):
        dtype, shape = any_length(sample[name])
        if layer.kind is not None:
            dtype = QUANTISED[layer.kind][0]
            forms[f"{name}_scale"] = (torch.float32, (*records, 1))
        forms[name] = (dtype, shape)
    if reader.plan.remembers:
        forms["past"] = (torch.float32, records)
    if not layer.reset and layer.rotation is not None:
        forms["rotated"] = any_length(keys)
    stats = layer.attention_stats
    queries = runner_heads(reader, number)
    if stats is not None and stats.counts:
        forms["received"] = (torch.float32, (1, queries, None))
    if stats is not None and stats.rows:
        forms["queries"] = (keys.dtype, (1, queries, None, keys.shape[3]))
    if stats is not None and stats.hidden_rows:
        hidden = reader.runner.sample["hidden"]
        forms["hidden_states"] = (hidden.dtype, (1, None, hidden.shape[-1]))
    return forms


def runner_heads(reader: Reader, number: int) -> int:
    return reader.runner.query_heads[number] * reader.runner.shards.count


def check_form(name: str, x: Tensor, form: Form) -> None:
    dtype, shape = form
    sizes = list(x.shape)
    fits = len(sizes) == len(shape) and all(
        wanted in (None, size) for size, wanted in zip(sizes, shape, strict=True)
    )
    if x.dtype is not dtype or not fits:
        wanted = [size if size is not None else "any" for size in shape]
        raise ValueError(
            f"its tensor {name!r} has type {x.dtype} and shape {sizes[:8]}, not {dtype} and {wanted}"
        )


# ---------------------------------------------------------------- values


def check_numbers(name: str, x: Tensor) -> None:
    """The novelty of a token that the model holds to be impossible is infinite."""
    if not x.is_floating_point() or not x.numel():
        return
    low, high = map(float, x.float().aminmax())
    largest = LARGEST
    if name.endswith("novelty"):
        largest = float("inf")
    require(-LARGEST <= low <= high <= largest, f"its tensor {name!r} holds {low:g} to {high:g}")


def check_ids(reader: Reader, tensors: dict[str, Tensor]) -> None:
    vocabulary = reader.runner.vocabulary
    for name in ("fresh", "newest", "tail", "catalyst"):
        ids = tensors.get(name)
        if ids is not None and ids.numel():
            low, high = ids.aminmax()
            require(
                int(low) >= 0 and int(high) < vocabulary,
                f"its {name!r} has token ids from {int(low)} to {int(high)}, "
                f"and the model has ids below {vocabulary}",
            )
    catalyst = tensors.get("catalyst")
    if catalyst is not None:
        require(len(catalyst) in (1, 2) and catalyst.shape[1] > 0, "its catalyst has no ids")


def check_pot_layer(
    layer: PotLayer, own: dict[str, Tensor], number: int, header: dict[str, Any], plan: LayerPlan
) -> None:
    numbers = header["pot"]
    tokens = numbers["tokens_read"]
    pinned = numbers["pinned"]
    length = own["keys"].shape[2]
    survivors = own["index"].shape[2]
    where = f"layer {number}"
    for name in ("values", "keys_scale", "values_scale", "rotated", "received"):
        require(
            name not in own or own[name].shape[2] == length,
            f"the entries of {where} differ in number",
        )
    for name in ("novelty", "past"):
        require(
            name not in own or own[name].shape[2] == survivors,
            f"the survivors of {where} differ in number",
        )
    require(
        layer.size is None or length <= layer.size, f"{length} entries in a pot of {layer.size}"
    )
    require(survivors <= length <= tokens, f"{where} has {length} entries of {tokens} tokens")
    require(
        length >= 1 and pinned <= length, f"{where} has {length} entries, {pinned} of them pinned"
    )
    position = numbers["positions"][number]
    most = length if layer.reset else tokens
    require(length <= position <= most, f"{where} is at position {position} with {length} entries")
    require(numbers["peaks"][number] >= length, f"the peak of {where} is below its entries")
    if numbers["distillations"] == 0:
        require(survivors == 0 and length == tokens, f"{where} has survivors of no distillation")
    else:
        require(
            pinned <= survivors <= pinned + plan.budget,
            f"{where} has {survivors} survivors, and a distillation leaves {pinned + plan.budget}",
        )
        check_places(own["index"], pinned, tokens - (length - survivors), where)


def check_queries(layer: PotLayer, own: dict[str, Tensor]) -> None:
    """Attention statistics have the queries and hidden states of the newest tokens."""
    stats = layer.attention_stats
    if stats is None:
        return
    for name, most in (("queries", stats.rows), ("hidden_states", stats.hidden_rows)):
        if name in own:
            rows = own[name].shape[-2]
            require(1 <= rows <= most, f"a layer has {name} of {rows} tokens")


def check_places(index: Tensor, pinned: int, end: int, where: str) -> None:
    """The places of survivors in the text ascend, and begin with the pinned entries."""
    head = torch.arange(pinned).expand(*index.shape[:2], -1)
    ascending = bool((index.diff(dim=-1) > 0).all())
    fits = ascending and torch.equal(index[..., :pinned], head)
    if index.numel():
        fits = fits and int(index.min()) >= 0 and int(index.max()) < end
    require(fits, f"the survivors of {where} are not in the order of the text")


def check_fresh(reader: Reader, own: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """The tokens since the last distillation are the same ones in all layers."""
    fresh = own["keys"].shape[2] - own["index"].shape[2]
    ids = tensors["fresh"].shape[1]
    scored = tensors["novelty"].shape[1]
    expected = fresh if reader.pot.distils else 0
    require(ids == expected, f"it has {ids} newest tokens, and layers with {fresh}")
    require(scored <= fresh, f"it has the novelty of {scored} tokens of {fresh}")


def check_window_layer(layer: WindowLayer, own: dict[str, Tensor], position: int) -> None:
    length = own["keys"].shape[2]
    same = own["values"].shape[2] == own["rotated"].shape[2] == length
    require(
        same and length < max(2, layer.window) and length <= position,
        f"a layer with a window of {layer.window} has {length} entries",
    )


# ---------------------------------------------------------------- what follows


def check_room(reader: Reader, waiting: int) -> None:
    """Raise ValueError if the restored pot could not read on. waiting: ids in the file's tail."""
    pot = reader.pot
    policy = reader.policy
    catalyst = reader.last_catalyst
    require(
        not waiting or policy.cuts,
        f"{waiting} ids wait to be read, which policy {policy.name!r} lets none",
    )
    require(not pot.distillations or policy.bounded, f"policy {policy.name!r} never distils")
    if not policy.bounded or reader.plan.whole:
        return
    reader.check_room(catalyst, pot.pinned)
    if catalyst is not None:
        require(reader.has_room_for(pot, catalyst), "it has no room for its catalyst")
        return
    layers = zip(pot.bounded, reader.plan.layers, strict=True)
    full = any(layer.length - pot.pinned > plan.budget for layer, plan in layers)
    require(not full or "catalyst" not in reader.plan.needs, "it has no catalyst")
