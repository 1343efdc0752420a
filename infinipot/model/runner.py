"""Run a model over a pot: its trunk reads tokens into the pot, its head predicts from hidden
states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import MoeModelOutputWithPast

from infinipot import compat
from infinipot.cache.batch import BatchedCache, BatchedLayer, rotate_rows
from infinipot.cache.pot import Layout, Pot
from infinipot.model import fused_norms
from infinipot.model.attention import IN_USE, Worker, at_work, attention, plain, visible
from infinipot.model.fused_norms import fused
from infinipot.model.rope_probe import TOLERANCE, rotations
from infinipot.model.self_extend import grouped_attention
from infinipot.scoring.novelty import BLOCK, novelty
from infinipot.scoring.representativeness import Scoring


@dataclass(frozen=True)
class Observer:
    """look: gets a bounded layer's number, the queries just read and the keys of all entries, both
    as attention uses them: [B, H, T, D], [B, K, P, D]. alone: so many last rows see no survivors in
    the bounded layers: the pinned entries, what is new, and themselves."""

    look: Callable[[int, Tensor, Tensor, Scoring], None]
    alone: int = 0


class _Reading(Worker):
    """One forward pass over a pot: raw keys go in, queries rotate by slot."""

    def __init__(self, pot: Any, observe: Observer | None, scorings: dict[int, Scoring]) -> None:
        self.pot = pot
        self.observe = observe or Observer(lambda *look: None)
        self.scorings = scorings
        self.masks: dict[tuple[Any, ...], Tensor | None] = {}

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float, options: dict[str, Any],
        rotated: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """As `Worker` has it. rotated: the queries rotated, if that is done already."""
        number: int = module.layer_idx  # type: ignore[assignment]
        layer = self.pot.layers[number]
        raw = query
        if rotated is None:
            query = layer.rotate_queries(query)
        else:
            query = rotated
        if layer.window is None:
            scoring = self.scorings[number] = Scoring(
                scaling, options.get("softcap"), options.get("s_aux")
            )
            layer.note_attention(raw, query, key, scoring)
            if self.observe.alone:
                hidden = (self.pot.pinned, layer.index.shape[-1])
            else:
                hidden = (0, 0)
            self.observe.look(number, query, key, replace(scoring, hidden=hidden))
            if self.pot.grouping is not None:
                return grouped_attention(
                    raw,
                    layer.keys[:, :, : layer.length],
                    value,
                    layer.rotation,
                    self.pot.grouping,
                    scoring,
                )
            if alone := self.observe.alone:
                parts = [
                    ([x[:, :, :-alone] for x in (query, key, value)], (0, 0)),
                    ([query[:, :, -alone:], key, value], hidden),
                ]
                return torch.cat(
                    [
                        self._attend(module, *part, None, scaling, options)
                        for part in parts
                        if part[0][0].shape[-2]
                    ],
                    dim=1,
                )
        return self._attend(module, [query, key, value], (0, 0), layer.window, scaling, options)

    def _attend(
        self,
        module: nn.Module,
        qkv: list[Tensor],
        hidden: tuple[int, int],
        window: int | None,
        scaling: float,
        options: Any,
    ) -> Tensor:
        """Attention with queries, keys and values, of the last T of N entries, less what is hidden."""
        query, key, value = qkv
        shape = (
            query.shape[-2],
            key.shape[-2],
            window,
            hidden,
            query.device,
            query.dtype,
            plain(options),
        )
        if shape not in self.masks:
            self.masks[shape] = visible(*shape)
        return attention(module, query, key, value, scaling, self.masks[shape], options)


class _Readings(Worker):
    """One forward pass over several pots, each row's attention by itself."""

    def __init__(self, readings: list[_Reading], cache: BatchedCache) -> None:
        self.readings = readings
        self.cache = cache

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        options: dict[str, Any],
    ) -> Tensor:
        layer: BatchedLayer = self.cache.layers[module.layer_idx]  # type: ignore[index, assignment]
        rows = zip(
            self.readings,
            query.split(1),
            layer.entries,
            rotate_rows(layer.layers, query, 1),
            strict=True,
        )
        return torch.cat(
            [
                reading.attend(module, row, *entries, scaling, options, ready)
                for reading, row, entries, ready in rows
            ]
        )


class _Hidden(MoeModelOutputWithPast):
    """A trunk's output that has whatever else a head may look for: nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return None


class _Stub(nn.Module):
    """Stands in for the trunk, so that the model's own forward turns given hidden states into
    logits."""

    def __init__(self, trunk: nn.Module, hidden: Tensor) -> None:
        super().__init__()
        self._trunk = (trunk,)  # in a tuple: not a submodule
        self.hidden = hidden

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._trunk[0], name)

    def forward(self, *args: Any, **kwargs: Any) -> MoeModelOutputWithPast:
        return _Hidden(last_hidden_state=self.hidden)


class _Columns(nn.Module):
    """An output layer that computes the logits of a range of ids only."""

    def __init__(self, output: nn.Linear, columns: slice) -> None:
        super().__init__()
        # in a tuple: not parameters
        self._weight = (
            output.weight[columns],
            None if output.bias is None else output.bias[columns],
        )

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden.to(self._weight[0].device), *self._weight).to(hidden.device)


class ModelRunner:
    """What the engine needs of a model, found out once: how layers are bounded and rotated. The
    model itself is never changed.

    Refuses, in words, what cannot be bounded or renumbered.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        compat.check_version()
        # what torch.compile wraps: the pot reads with the model itself
        model = getattr(model, "_orig_mod", model)
        name = type(model).__name__
        if not isinstance(model, PreTrainedModel):
            raise TypeError(f"a pot needs a transformers model, not {name}")
        if model.config.is_encoder_decoder:
            raise ValueError(
                f"{name} is an encoder-decoder; a pot needs a decoder-only language model"
            )
        # another thread may be reading with this model, and have exchanged parts of it
        with IN_USE:
            self._look_at(model)

    def _look_at(self, model: PreTrainedModel) -> None:
        name = type(model).__name__
        self.model = model
        self.cache_argument = compat.cache_argument(model)
        self.sharded = any(hasattr(weight, "device_mesh") for weight in model.parameters())
        """Whether the model is shared out over several processes (tensor parallel), so that this
        one has some of its heads only."""
        self.norms = fused_norms.find_norms(model)
        try:
            self.windows, self.states = compat.layer_kinds(model)
            # nothing but windows (Mistral v0.1): the pot takes their place, deliberately
            if None not in self.windows:
                self.windows = [None if window else window for window in self.windows]
            self.rotations = rotations(model, [window != 0 for window in self.windows])
            self._find_output()
            self.scorings: dict[int, Scoring] = {}
            pot = self.new_pot(Layout(2))
            trial = self.read(torch.ones(1, 2, dtype=torch.long, device=self.device), [pot])
            self.devices = [getattr(layer, "device", None) or self.device for layer in pot.layers]
            self.ending: torch.device = trial.device
            self.vocabulary: int = self.head(trial).shape[-1]
            self._check_states()
        except ValueError:
            raise
        except Exception as problem:
            raise ValueError(
                f"{name} cannot read into a pot: {type(problem).__name__}: {problem}"
            ) from problem

    def _find_output(self) -> None:
        """The output layer, and where it hangs, so that part of it can stand in for it."""
        self.output: Any = self.model.get_output_embeddings()
        places = (
            (m._modules, n)
            for m in self.model.modules()
            for n, child in m._modules.items()
            if child is self.output
        )
        self.output_place: tuple[Any, str] = next(places, ({}, ""))

    def _check_states(self) -> None:
        """Some models' state-space layers begin anew with every forward pass of more than one
        token: refused, what they read would be wrong."""
        ids = torch.arange(1, 9, device=self.device)[None] % self.vocabulary
        if any(self.states):
            whole = self.read(ids, [self.new_pot(Layout(8))])
            pot = self.new_pot(Layout(8))
            parts = torch.cat([self.read(part, [pot]) for part in ids.split(4, dim=1)], dim=1)
            if float((whole - parts).abs().max() / whole.abs().max()) > 10 * TOLERANCE[whole.dtype]:
                raise ValueError(
                    f"{type(self.model).__name__} forgets the state of its layers from one chunk of text to the next: no pot"
                )

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    def new_pot(self, layout: Layout) -> Pot:
        """An empty pot. Its rotations are its own: frequencies that depend on the length are pinned
        to this pot's."""
        own = {id(r): replace(r, tables={}) for r in self.rotations if r is not None}
        with torch.inference_mode(False):  # a pot begun in inference mode may go on outside
            return Pot(
                self.windows,
                self.states,
                [None if r is None else own[id(r)] for r in self.rotations],
                layout,
                self.device,
            )

    def placed(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """A saved pot's tensors, each layer's on the layer's device, and what the last layer left
        where that left it."""
        places = {
            name: self.devices[int(name.split(".")[1])]
            for name in state
            if name.startswith("layers.")
        }
        places |= {"hidden": self.ending, "novelty": self.ending}
        return {name: x.to(places.get(name, self.device)) for name, x in state.items()}

    @torch.no_grad()
    def read(self, ids: Tensor, pots: Sequence[Pot], observe: Observer | None = None) -> Tensor:
        """Run ids [B, T] through the trunk, a row behind the entries of each pot, which takes its
        own. Returns hidden states [B, T, hidden]."""
        # a state has no rows of its own to keep apart: one pot after the other
        if len(pots) > 1 and any(self.states):
            return torch.cat(
                [
                    self.read(row, [pot], observe)
                    for row, pot in zip(ids.split(1), pots, strict=True)
                ]
            )
        positions = torch.stack(
            [torch.arange(pot.length, pot.length + ids.shape[1], device=ids.device) for pot in pots]
        )
        readings = [_Reading(pot, observe, self.scorings) for pot in pots]
        cache: Pot | BatchedCache = pots[0]
        worker: Worker = readings[0]
        if len(pots) > 1:
            cache = BatchedCache(pots)
            worker = _Readings(readings, cache)
        with at_work(self.model, worker), fused(self.norms):
            output = self.model.base_model(
                input_ids=ids,
                position_ids=positions,
                use_cache=True,
                **{self.cache_argument: cache},
            )
        return output.last_hidden_state

    @torch.no_grad()
    def head(self, hidden: Tensor, columns: slice | None = None) -> Tensor:
        """Hidden states [B, T, hidden] -> logits [B, T, V], with the model's own scaling and
        soft-cap; of the ids in `columns` only, if given.

        The model's own forward does it, its trunk (and its output layer, for columns) exchanged for
        stand-ins while it runs.
        """
        ids = torch.zeros(hidden.shape[:2], dtype=torch.long, device=hidden.device)
        with at_work(self.model, _Reading(None, None, {})), self._stand_ins(hidden, columns):
            return self.model(input_ids=ids, use_cache=False).logits

    @contextmanager
    def _stand_ins(self, hidden: Tensor, columns: slice | None) -> Iterator[None]:
        """Inside, stand-ins are in the places of the trunk and of the output layer. Only while no
        other thread uses the model."""
        model = self.model
        trunk = model.base_model
        swaps: list[tuple[Any, str, nn.Module, nn.Module]] = [
            (model._modules, model.base_model_prefix, trunk, _Stub(trunk, hidden))
        ]
        if columns is not None and columns != slice(0, self.vocabulary):
            swaps.append((*self.output_place, self.output, _Columns(self.output, columns)))
        try:
            for modules, name, _, stand_in in swaps:
                modules[name] = stand_in
            yield
        finally:
            for modules, name, own, _ in swaps:
                modules[name] = own

    def novelty(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """NuC of targets [B, T], each predicted by its row of hidden [B, T, hidden]: nats, float32."""
        with IN_USE:  # inside, what is in the output layer's place is not another thread's stand-in
            # exchanged since: resized, or wrapped
            if self.model.get_output_embeddings() is not self.output:
                self._find_output()
                self.vocabulary = self.head(hidden[:, :1]).shape[-1]
        # not shared out over processes
        whole = type(self.output) is nn.Linear and type(self.output.weight) is nn.Parameter
        plain = whole and self.output_place[1] and not self.output._forward_hooks
        return novelty(
            self.head,
            hidden,
            targets,
            self.vocabulary,
            BLOCK.get(hidden.device.type, self.vocabulary) if plain else self.vocabulary,
        )
