"""Reading a chunk into one pot, as code that a CUDA graph can record for any pot."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from infinipot.cache.pot import Pot
from infinipot.engine.graph_step import AddressForward, Record
from infinipot.engine.observe import ByLayer, CatalystLook
from infinipot.kernels import distill
from infinipot.kernels import pots as kernels
from infinipot.model.attention import Visible, attention, plain, visible
from infinipot.model.runner import ModelRunner
from infinipot.scoring.representativeness import Scoring


def any_catalyst(pot: Pot, look: CatalystLook) -> bool:
    """Whether one recording serves catalysts of all lengths up to this one's."""
    return look.rows <= distill.ROWS and distill.supports_vectors(pot.bounded[0].slots[0].data)


class Chunk(AddressForward):
    """Reads `rows` tokens into the slots from `start` on. Fewer tokens are padded at the end.

    look: observes the attention from the last tokens, which are the catalyst; None: nothing.
    """

    def __init__(
        self, runner: ModelRunner, pot: Pot, start: int, rows: int, look: CatalystLook | None
    ) -> None:
        super().__init__(runner, pot, 1)
        self.start = start
        self.look = look
        self.ids = torch.zeros(1, rows, dtype=torch.long, device=runner.device)
        self.positions = torch.arange(start, start + rows, device=runner.device)[None]
        self.any_catalyst = look is not None and any_catalyst(pot, look)
        self.count = torch.zeros((), dtype=torch.long, device=runner.device)
        """Tokens of the catalyst, if its length may differ."""
        self.pot: Pot | None = None
        """For the twin in plain torch, during a call."""
        self.masks: dict[Visible, Tensor | None] = {}
        self.scores: ByLayer = {}

    @property
    def entries(self) -> int:
        """Entries of the pot afterwards, with padding."""
        return self.start + self.ids.shape[1]

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        options: dict[str, Any],
    ) -> Tensor:
        number: int = module.layer_idx  # type: ignore[assignment]
        rotated, keys, values = self._entries(number, query, key, value)
        if self.look is not None:
            scoring = Scoring(scaling, options.get("softcap"), options.get("s_aux"))
            if self.any_catalyst:
                scores = self.look.recorded(rotated, keys, scoring, self.count)
            else:
                scores = self.look(rotated, keys, scoring)
            self.scores[number] = scores
        mask = Visible(
            query.shape[2],
            self.entries,
            None,
            (0, 0),
            query.device,
            query.dtype,
            plain(options),
        )
        if mask not in self.masks:
            self.masks[mask] = visible(mask)
        return attention(module, (rotated, keys, values), scaling, self.masks[mask], options)

    def _entries(
        self, number: int, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Write the new entries. Returns rotated queries, and rotated keys and values of all."""
        if not kernels.supports(query):
            assert self.pot is not None
            layer = self.pot.layers[number]
            layer.write(self.start, key, value)
            entries = (layer.read_keys(0, self.entries), layer.read_values(0, self.entries))
            return layer.rotate_from(query, self.start), *entries
        rotation = self.rotations[number]
        rotated = query
        if rotation is not None:
            rotated = rotation.rotate(query, self.start)
        places = self.places[number]
        kernels.store(key, value, places, self.start)
        entries = kernels.fetch(key, value, places, self.tables[number], self.entries)
        return rotated, *entries

    @torch.no_grad()
    def _run(self) -> tuple[Tensor, ...]:
        self.masks.clear()
        self.scores.clear()
        hidden = self.trunk(self.ids, self.positions)
        return hidden, *(self.scores[number] for number in sorted(self.scores))

    def __call__(
        self, pot: Pot, ids: Tensor, rows: int = 0, record: Record | None = None
    ) -> tuple[Tensor, ByLayer]:
        """Read ids [1, T], T at most `rows`, into a pot of length `start`. Returns hidden states
        [1, T, hidden], and what `look` saw by layer. rows: of the catalyst. record: as for `Step`."""
        self.pot = pot
        self.count.fill_(rows)
        count = ids.shape[1]
        self.ids[:, :count].copy_(ids)
        places = pot.places
        if self.places.is_cuda:
            places = places.pin_memory()
        self.places.copy_(places[..., None], non_blocking=True)
        hidden, *scores = self.run(self._run, record)
        self.pot = None  # or it would live as long as this chunk
        pot.advance(count)
        numbers = sorted(self.scores)
        return hidden[:, :count], dict(zip(numbers, scores, strict=True))
