"""Run a model over a pot: its trunk reads tokens, its head predicts from hidden states."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from infinipot import compat
from infinipot.cache.layout import Layout
from infinipot.cache.pot import Pot
from infinipot.cache.rope import Rotation, alike, copies
from infinipot.checks import ModelWarning
from infinipot.model import fused_norms
from infinipot.model.attention import IN_USE, at_work
from infinipot.model.forward import BatchedForward, Observer, PotForward, positions
from infinipot.model.fused_norms import fused
from infinipot.model.groups import weights_in_groups
from infinipot.model.hidden_states import noted
from infinipot.model.output import ModelOutput
from infinipot.model.rope_probe import TOLERANCE, rotations
from infinipot.model.shards import Shards
from infinipot.parallel.followers import followers_of
from infinipot.parallel.ranks import on_all_ranks
from infinipot.scoring.representativeness import Scoring
from infinipot.text.tokens import check_embedded

__all__ = ["ModelRunner", "Observer"]

FIRST_POSITIONS = 1 << 12
"""Positions in the tables of a pot that has read nothing."""


def sample_of(pot: Pot, hidden: Tensor) -> dict[str, Tensor]:
    """Tensors as a pot file of this model has them, for two tokens, with shapes and types only."""
    states = {
        f"layers.{number}.{name}": x
        for number, layer in enumerate(pot.layers)
        for name, x in layer.state().items()
    }
    return {name: x.to("meta") for name, x in {**states, "hidden": hidden[:, -1:]}.items()}


class ModelRunner(ModelOutput):
    """A model with the facts that the engine needs: how its layers are bounded and rotated. They are
    found once, and the model itself is never changed.

    Raises ValueError for a model whose entries cannot be bounded or renumbered.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        compat.check_version()
        model = compat.unwrapped(model)
        name = type(model).__name__
        if not isinstance(model, PreTrainedModel):
            raise TypeError(f"a pot needs a transformers model, not {name}")
        if model.config.is_encoder_decoder:
            raise ValueError(
                f"{name} is an encoder-decoder; a pot needs a decoder-only language model"
            )
        offloaded = [name for name, weight in model.named_parameters() if weight.is_meta]
        if offloaded:
            raise ValueError(
                f"{len(offloaded)} weights of {name} are offloaded and not in memory (accelerate, "
                f"device_map): {offloaded[0]}, ... A pot needs them all: load the model without "
                "offloading, in a smaller dtype, or take a smaller model"
            )
        self.attention_modules: dict[int, nn.Module] = {}
        self.devices: list[torch.device] = []
        """Of each layer."""
        self.alike = False
        """Whether the entries of all layers have one shape, type and device."""
        self.followers = followers_of(model)
        """The other ranks (tensor parallelism), for rank 0."""
        if self.followers is None:
            self._inspect_alone(model)
        else:
            kind = f"{ModelRunner.__module__}:{ModelRunner.__name__}"
            self.followers.run(kind, lambda: self._inspect_alone(model), (model,), {})

    def _inspect_alone(self, model: PreTrainedModel) -> ModelRunner:
        # another thread may be using this model, with parts of it replaced
        with IN_USE:
            self._inspect(model)
        return self

    def _inspect(self, model: PreTrainedModel) -> None:
        name = type(model).__name__
        self.model = model
        self.dtype = model.dtype
        self.trained_length = compat.trained_length(model)
        self.cache_argument = compat.cache_argument(model)
        self.in_groups = bool(weights_in_groups(model))
        """Whether weights are quantised in memory."""
        self.shards = Shards(model)
        """What this process has of the model (tensor parallelism)."""
        self.norms = fused_norms.find_norms(model)
        try:
            self.windows, self.states = compat.layer_kinds(model)
            # only sliding windows (Mistral v0.1): the pot replaces them, deliberately
            if None not in self.windows:
                self.windows = [None if window else window for window in self.windows]
            self.rotations = rotations(model, [window != 0 for window in self.windows])
            self.find_output()
            self.rotations_by_size: dict[int, list[Rotation | None]] = {}
            self.scorings: dict[int, Scoring] = {}
            pot = self.new_pot(Layout(2))
            heads: dict[int, int] = {}
            observer = Observer(lambda number, query, *_: heads.update({number: query.shape[1]}))
            ids = torch.ones(1, 2, dtype=torch.long, device=self.device)
            trial = self.read(ids, [pot], observer)
            self.place = self.device
            self.query_heads = heads
            """Query heads of each bounded layer, by the layer's number."""
            self.sample = sample_of(pot, trial)
            self.devices = [getattr(layer, "device", None) or self.device for layer in pot.layers]
            self.alike = not any(self.states) and len({layer.shape for layer in pot.bounded}) == 1
            self.ending: torch.device = trial.device
            self.vocabulary: int = self.head(trial).shape[-1]
            self._check_states()
        except ValueError:
            raise
        except Exception as problem:
            raise ValueError(
                f"{name} cannot read into a pot: {type(problem).__name__}: {problem}"
            ) from problem

    def _check_states(self) -> None:
        """Refuse models whose state-space layers start anew with every forward pass of more than one
        token."""
        ids = torch.arange(1, 9, device=self.device)[None] % self.vocabulary
        if any(self.states):
            whole = self.read(ids, [self.new_pot(Layout(8))])
            pot = self.new_pot(Layout(8))
            parts = torch.cat([self.read(part, [pot]) for part in ids.split(4, dim=1)], dim=1)
            error = float((whole - parts).abs().max() / whole.abs().max())
            if error > 10 * TOLERANCE[whole.dtype]:
                raise ValueError(
                    f"{type(self.model).__name__} forgets the state of its layers "
                    "from one chunk of text to the next: no pot"
                )

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    @property
    def embeddings(self) -> int:
        """How many ids the model can read."""
        table: Any = self.model.get_input_embeddings()
        return int(getattr(table, "num_embeddings", None) or table.weight.shape[0])

    def check_ids(self, ids: Sequence[int]) -> None:
        """Raise ValueError for an id without an embedding."""
        check_embedded(ids, self.embeddings)

    def check_length(self, size: int | None) -> None:
        """Warn of a pot that holds more entries than the model was trained for. For readers, whose
        callers the warning names."""
        trained = self.trained_length
        if size is not None and trained is not None and size > trained:
            warnings.warn(
                f"pot_size={size} is more than the {trained} tokens that the model was trained for: "
                f"what it reads beyond them is likely to be nonsense. Use pot_size={trained} or less",
                ModelWarning,
                stacklevel=5,
            )

    def check_unchanged(self) -> None:
        """Raise RuntimeError for a model that has another dtype or device than when it was
        inspected: entries of pots do not follow."""
        with IN_USE:  # another thread may have replaced parts of it, with all their weights
            now = (self.model.dtype, self.device)
        if now != (self.dtype, self.place):
            raise RuntimeError(
                f"the model was {self.dtype} on {self.place} when its session began, and is "
                f"{now[0]} on {now[1]} now. Its pot cannot follow: move the model back "
                f"(model.to({self.dtype})), or make a new session"
            )

    @property
    def sharded(self) -> bool:
        """Tensor parallelism: this process has only some of the model's heads."""
        return self.shards.count > 1

    @on_all_ranks
    def new_pot(self, layout: Layout) -> Pot:
        """An empty pot. Pots of one size share their rotations."""
        with torch.inference_mode(False):  # the pot may be used outside inference mode later
            layout = replace(layout, alike=self.alike, followers=self.followers)
            return Pot(self.windows, self.states, self._rotations(layout), layout, self.device)

    def allocate(self, pot: Pot) -> None:
        """Allocate the slots of an empty pot whose layers all have full attention. Otherwise they
        are allocated when the first tokens come."""
        if len(pot.bounded) < len(pot.layers):
            return
        for number, layer in enumerate(pot.bounded):
            if not layer.is_initialized:
                like = [self.sample[f"layers.{number}.{name}"] for name in ("keys", "values")]
                device = self.devices[number]
                layer.lazy_initialization(*(torch.empty_like(x, device=device) for x in like))

    def _rotations(self, layout: Layout) -> list[Rotation | None]:
        """The rotation of each layer. Pots share them if their sizes are equal, or if the
        frequencies do not depend on the size. A pot without a bound has its own."""
        if layout.size is None:
            return copies(self.rotations)
        size = max(layout.sizes or (layout.size,))
        rotations = copies(self.rotations, size)
        first = min(size, FIRST_POSITIONS)  # a file may name any size; reading extends the tables
        with IN_USE:  # other threads make pots, too
            known = self.rotations_by_size
            if size not in known:
                self._reserve(rotations, first)
                shared = [other for other in known.values() if alike(rotations, other)]
                known[size] = next(iter(shared), rotations)
                self._reserve(known[size], first)
            return known[size]

    def _reserve(self, rotations: list[Rotation | None], count: int) -> None:
        """Make tables of the first `count` positions on the devices of all layers."""
        for rotation in filter(None, rotations):
            for device in dict.fromkeys([self.device, *self.devices]):
                rotation.reserve(count, device)

    def placed(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """A saved pot's tensors, each on its layer's device."""
        places = {
            name: self.devices[int(name.split(".")[1])]
            for name in state
            if name.startswith("layers.")
        }
        places |= {"hidden": self.ending, "novelty": self.ending}
        return {name: x.to(places.get(name, self.device)) for name, x in state.items()}

    @on_all_ranks
    @torch.no_grad()
    def read(
        self,
        ids: Tensor,
        pots: Sequence[Pot],
        observe: Observer | None = None,
        counts: Sequence[int] | None = None,
    ) -> Tensor:
        """Run ids [1, N] through the trunk, and append the next `counts[b]` of them to pot b; None
        for a single pot. Returns hidden states [1, N, hidden]."""
        counts = list(counts or [ids.shape[1]])
        # state-space layers have one state for a row: one pot after the other
        if len(pots) > 1 and any(self.states):
            rows = zip(ids.split(counts, dim=1), pots, strict=True)
            return torch.cat([self.read(row, [pot], observe) for row, pot in rows], dim=1)
        forwards = [PotForward(pot, observe, self.scorings, self.attention_modules) for pot in pots]
        worker: PotForward | BatchedForward = forwards[0]
        if len(pots) > 1:
            worker = BatchedForward(forwards, counts)
        hidden = noted(self.attention_modules, pots, counts)
        with at_work(self.model, worker), fused(self.norms), hidden:
            output = self.model.base_model(
                input_ids=ids,
                position_ids=positions(pots, counts, ids.device),
                use_cache=True,
                return_dict=True,
                **{self.cache_argument: worker.cache},
            )
        return output.last_hidden_state
