"""The other policies and the options all policies share, in plain loops on top of tests/support/reference.py; fast code is compared with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from reference import Reference, rope, select, smooth
from torch import Tensor

Scores = list[list[Tensor]]  # [layer][kv_head] -> [P]


class Methods(Reference):
    """budgets: |C| by layer (at the same room for all)."""

    def __init__(
        self, model: Any, *, policy: str = "infinipot", window: int = 0, shared: bool = False, persist: float | str = 0.0, replay: int = 0,
        budgets: Sequence[int] | None = None, contrast: Sequence[int] = (),
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(model, **options)
        self.policy, self.window, self.shared, self.persist, self.replay = (
            policy,
            window,
            shared,
            persist,
            replay,
        )
        self.budgets = list(budgets or [self.distill_to] * len(self.layers))
        self.contrast = list(contrast)
        self.limit -= replay
        self.group = self.heads // self.kv_heads
        self.fresh: list[int] = []
        self.queries: list[list[Tensor]] = []  # [token of the text][layer] -> [H, D]
        self.past: dict[tuple[int, int, int], float] = {}  # (layer, kv_head, index) -> score
        self.survivors = [0] * len(
            self.layers
        )  # entries of the last distillation, pinned ones among them

    @torch.no_grad()
    def read(self, ids: Sequence[int]) -> None:
        for token in ids:
            full = (
                len(pots[0]) == self.limit - self.distill_to + own
                for pots, own in zip(self.entries, self.budgets, strict=True)
            )
            if any(full):
                self.distil()
            novelty = (
                0.0
                if self.tokens_read == 0
                else -torch.log_softmax(self.logits(), dim=0)[token].item()
            )
            self.hidden, rows = self.forward(token, self.tokens_read, novelty)
            self.queries.append(self.asked)
            if self.policy == "h2o":
                self.note(rows)
            self.fresh.append(token)
            self.tokens_read += 1

    def note(self, rows: list[list[Tensor]]) -> None:
        """Adds the attention [layer][query head] of the newest token to what each entry got."""
        for pots, weights in zip(self.entries, rows, strict=True):
            for head, pot in enumerate(pots):
                for row in range(self.group):
                    shares = weights[head * self.group + row].tolist()
                    for entry, share in zip(pot, shares, strict=True):
                        entry.__dict__.setdefault("got", [0.0] * self.group)[row] += share

    def reduce(self, by_query_head: Tensor) -> Tensor:
        """[H/K, P] -> [P]"""
        return {
            "mean": by_query_head.mean(0),
            "max": by_query_head.amax(0),
            "sum": by_query_head.sum(0),
        }[self.gqa]

    def every(self, score: Any) -> Scores:
        """score(layer, kv_head, entries) for all."""
        return [
            [score(n, head, pot) for head, pot in enumerate(pots)]
            for n, pots in enumerate(self.entries)
        ]

    def h2o(self) -> Scores:
        return self.every(
            lambda n, head, pot: self.reduce(torch.tensor([entry.got for entry in pot]).T)
        )

    def newest(self) -> Scores:
        """What the newest tokens attend to, softmax over the entries that are there now; of those that stand last in all heads."""
        count = min(self.window, len(self.queries), max(len(self.fresh), self.recent))

        def score(n: int, head: int, pot: list[Any]) -> Tensor:
            slots = torch.arange(len(pot))
            keys = rope(torch.stack([entry.key_raw for entry in pot]), slots, self.theta)
            total = torch.zeros(self.group, len(pot))
            for back in range(1, count + 1):
                place = len(pot) - back
                for row in range(self.group):
                    query = rope(
                        self.queries[-back][n][head * self.group + row][None],
                        slots[place : place + 1],
                        self.theta,
                    )[0]
                    total[row, : place + 1] += (
                        keys[: place + 1] @ query / len(query) ** 0.5
                    ).softmax(dim=0)
            if self.policy == "snapkv":
                total[:, len(pot) - count :] = 0
            return self.reduce(total)

        return self.every(score)

    def kvzip(self) -> Scores:
        n = len(self.entries[0][0])  # in every layer
        most = [[torch.zeros(n) for _ in range(self.kv_heads)] for _ in self.layers]
        for start in range(0, len(self.fresh), self.replay):
            for token in [*self.catalyst, *self.fresh[start : start + self.replay]]:
                _, rows = self.forward(token, self.tokens_read, 0.0)
                for mine, weights in zip(most, rows, strict=True):
                    for head in range(self.kv_heads):
                        for row in range(self.group):
                            mine[head] = torch.maximum(
                                mine[head], weights[head * self.group + row][:n]
                            )
            for pots in self.entries:
                for pot in pots:
                    del pot[n:]
        return most

    def scores(self) -> Scores:
        if self.policy == "infinipot":
            unseen = (
                [(self.pinned, own) for own in self.survivors] if self.persist == "once" else ()
            )
            found = [[torch.tensor(s) for s in heads] for heads in self.representativeness(unseen)]
            if not self.contrast:
                return found
            asked, self.catalyst = self.catalyst, self.contrast
            usual = self.representativeness(unseen)
            self.catalyst = asked
            return [
                [one / (torch.tensor(other) + 1e-3) for one, other in zip(*pair, strict=True)]
                for pair in zip(found, usual, strict=True)
            ]
        if self.policy in ("tova", "snapkv"):
            return self.newest()
        if self.policy in ("h2o", "kvzip"):
            return getattr(self, self.policy)()
        return self.every(lambda n, head, pot: torch.tensor([float(entry.index) for entry in pot]))

    @torch.no_grad()
    def distil(self) -> None:
        if all(
            len(pots[0]) <= self.pinned + own
            for pots, own in zip(self.entries, self.budgets, strict=True)
        ):
            return
        for n, (pots, scores, own) in enumerate(
            zip(self.entries, self.scores(), self.budgets, strict=True)
        ):
            budget = min(own, len(pots[0]) - self.pinned)
            if self.shared:
                scores = [sum(scores) / len(scores)] * len(scores)
            for head, (pot, score) in enumerate(zip(pots, scores, strict=True)):
                if self.persist == "once":
                    old = max(self.pinned, self.survivors[n])
                    lasting = (
                        [self.past[n, head, entry.index] for entry in pot[:old]]
                        if self.survivors[n]
                        else [0.0] * self.pinned
                    )
                    lasting = smoothed = lasting + smooth(
                        score.tolist()[old:], self.pool, self.pool_mode
                    )
                else:
                    lasting = [
                        max(s, self.persist * self.past.get((n, head, e.index), -torch.inf))
                        for s, e in zip(score.tolist(), pot, strict=True)
                    ]
                    smoothed = lasting[: self.pinned] + smooth(
                        lasting[self.pinned :], self.pool, self.pool_mode
                    )
                if self.persist:
                    self.past |= {
                        (n, head, entry.index): value
                        for entry, value in zip(pot, lasting, strict=True)
                    }
                novelties = [entry.novelty for entry in pot]
                pot[:] = [
                    pot[s]
                    for s in select(
                        novelties,
                        smoothed,
                        self.pinned,
                        budget,
                        self.sinks,
                        self.recent,
                        self.novelty,
                    )
                ]
                for slot, entry in enumerate(pot):
                    entry.position = slot
        self.survivors = [len(pots[0]) for pots in self.entries]
        self.fresh.clear()
        self.distillations += 1
