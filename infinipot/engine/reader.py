"""One pot and the ids that go through it."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from infinipot.cache.attention_stats import AttentionStats
from infinipot.cache.pot import Layout, Pot
from infinipot.config import PotConfig
from infinipot.engine import distill
from infinipot.engine.cuda_graphs import graph_cache
from infinipot.engine.observe import reserve
from infinipot.model.runner import ModelRunner
from infinipot.policies import POLICIES

Progress = Callable[[], None]


class NoRoom(ValueError):
    """The sizes given leave no room for what is asked."""


@dataclass(frozen=True)
class Stats:
    """What a session has done and what it holds."""

    tokens_read: int
    """Tokens that became part of the pot's history: text, template, and the turns of a chat."""
    tokens_skipped: int
    """Tokens given but never shown to the model (policy `truncate`)."""
    entries: int
    """Entries per layer and KV head now."""
    peak_entries: int
    """Most entries a bounded layer held at any moment, whatever they were for."""
    distillations: int
    pot_bytes: int
    """Bytes allocated for entries: raw keys, their rotated copy, values, bookkeeping."""
    full_cache_bytes: int
    """Bytes an ordinary cache of all that was read would take."""
    timings: dict[str, float]
    """Seconds: read_s (distillations included), distill_s, answer_s."""


class Reader:
    """Reads token ids into a pot as the policy says. It knows no text."""

    def __init__(self, host: ModelRunner, config: PotConfig) -> None:
        if host.sharded and (config.own("shared_heads") or config.distill_to == "auto"):
            raise ValueError(
                "shared_heads and distill_to='auto' look at all heads of a layer, but this process has only some of them (tensor parallel): "
                "leave these options out, or use a model in one process"
            )
        self.host, chunk = host, config.chunk_tokens or (512 if host.device.type == "cpu" else 2048)
        self.config = dataclasses.replace(config, chunk_tokens=chunk)
        self.policy = POLICIES[config.policy]()
        self.needs = self.policy.needs(config.novelty)
        self.pot = graph_cache(host).new_pot(self._layout())
        self.tail: deque[int] = deque(maxlen=config.pot_size)
        """Policy `truncate`: the newest ids, not read before an answer needs them."""
        self.skipped, self.busy = 0, False
        self.usual: Tensor | None = None
        """The catalyst of the latest reading: the pot always has room for it."""
        self.read_s = self.answer_s = 0.0

    def _layout(self) -> Layout:
        config = self.config
        remembers = {"received", "newest"} & self.needs
        attention_stats = AttentionStats("received" in self.needs, config.own("window") if "newest" in self.needs else 0) if remembers else None
        budgets = config.budgets(self.host.windows.count(None))  # refused here, whatever the policy does with them
        if self.policy.reads == "all" or (config.prefill == "whole" and self.policy.reads == "pot"):
            grouping = (config.group, config.neighbours) if self.policy.grouped else None
            distils = self.policy.reads == "pot"
            return Layout(None, None, config.context_reset, config.pot_dtype, attention_stats, grouping, distils)
        own = None if self.policy.reads == "ends" else tuple(config.pot_size - config.survivors + kept for kept in budgets)
        return Layout(config.pot_size, own, config.context_reset, config.pot_dtype, attention_stats)

    def tensor(self, ids: list[int]) -> Tensor:
        return torch.tensor([ids], dtype=torch.long, device=self.host.device)

    def check_room(self, catalyst: Tensor | None, pinned: int) -> None:
        """Refuse sizes that would never let a token be read after a distillation."""
        prompt, size, kept = reserve(self.config, catalyst), self.config.pot_size, self.config.survivors
        if catalyst is not None and not catalyst.shape[1]:
            raise ValueError("the question is empty, so there is nothing to distil by: ask something, or use catalyst='general'")
        if self.policy.reads == "ends" and 2 * pinned >= size:
            raise NoRoom(
                f"pot_size={size} leaves no room: pinned {pinned} takes half of it or more. Use a larger pot, or a shorter system prompt"
            )
        if self.policy.reads == "pot" and kept + prompt + pinned >= size:
            raise NoRoom(
                f"pot_size={size} leaves no room: distill_to {kept} + catalyst {prompt} + pinned {pinned} needs more than "
                f"{kept + prompt + pinned}. Use a larger pot, distil to fewer entries, or shorten the question or the system prompt"
            )

    def check_idle(self) -> None:
        if self.busy:
            raise RuntimeError("an answer is still being streamed from this session: finish or close it first, or fork the session")

    @property
    def progress(self) -> tuple[int, int]:
        """Tokens taken in and distillations so far."""
        return self.pot.tokens_read + len(self.tail) + self.skipped, self.pot.distillations

    def pin(self, ids: list[int]) -> None:
        """Read the first ids of all, which no distillation will touch."""
        if ids:
            distill.take(self.host, [self.pot], self.tensor(ids), ["novelty" in self.needs])
            self.pot.pin(len(ids))

    def cycles(self, opening: Callable[[], list[int]], lists: Iterable[list[int]], catalyst: Tensor | None) -> Iterator[tuple[list[int], bool]]:
        """What is to be read, opening first, in lists that end where the pot is full; and whether more comes.

        However a stream arrives, it is then read in chunks of few lengths: what runs for one can be kept for the next.
        """
        held: list[int] = []
        begun = False
        for ids in lists:
            held += ids if begun else opening() + ids
            begun = True
            whole = self._until_full(catalyst)
            while whole is None or len(held) > whole:
                yield held[:whole], whole is not None
                held = [] if whole is None else held[whole:]
                if not held:
                    break
                whole = self._until_full(catalyst)
        if held:
            yield held, False

    def _until_full(self, catalyst: Tensor | None) -> int | None:
        """How many tokens there are to the next distillation, or the one after it if the pot is full; None if there is none."""
        if self.pot.size is None or self.policy.reads != "pot":
            return None
        room = int(self.pot.room) - reserve(self.config, catalyst)
        return room if room > 0 else max(1, self.pot.size - self.config.survivors - self.pot.pinned - reserve(self.config, catalyst))

    def read(self, ids: list[int], catalyst: Tensor | None, progress: Progress | None = None, more: bool = False) -> None:
        """Read on. catalyst: ids [1, |P|] for the distillations this takes. progress: called after every chunk. more: more is to be read,
        so a pot that is then full is distilled."""
        started = time.perf_counter()
        if self.policy.reads == "ends":
            here = max(0, self.config.pot_size // 2 - self.pot.length)
            self.skipped += max(0, len(self.tail) + len(ids[here:]) - self.config.pot_size)
            self.tail.extend(ids[here:])
            ids = ids[:here]
        try:
            self._read(self.pot, ids, catalyst, progress, more)
        finally:
            self.read_s += time.perf_counter() - started

    def _read(self, pot: Pot, ids: list[int], catalyst: Tensor | None, progress: Progress | None = None, more: bool = False) -> None:
        if not ids:
            return
        if not self.beside(pot, catalyst):
            distill.distill(self.host, pot, self.config, self.usual)
        if pot is self.pot:
            self.usual = catalyst
        distill.read(self.host, pot, self.config, self.tensor(ids), catalyst, "novelty" in self.needs, progress, more)

    def beside(self, pot: Pot, catalyst: Tensor | None) -> bool:
        """Whether the catalyst has room beside what the pot holds.

        One that is longer than the last may have none; it is preceded by the distillation that reading on would have made.
        """
        return reserve(self.config, catalyst) <= pot.room

    def fits(self, wanted: int, catalyst: Tensor | None = None) -> bool:
        """Whether `wanted` more entries, a question and its answer, need no distillation and leave room for the catalyst."""
        size = self.config.pot_size
        if self.policy.reads == "ends":
            if self.pot.length + wanted > size:
                raise NoRoom(f"pot_size={size} leaves no room: the text's head {self.pot.length} + question and answer {wanted} is more")
            return True
        return wanted + reserve(self.config, catalyst) <= self.pot.room

    @property
    def stats(self) -> Stats:
        pot = self.pot
        return Stats(
            tokens_read=pot.tokens_read + len(self.tail),
            tokens_skipped=self.skipped,
            entries=pot.entries,
            peak_entries=pot.peak,
            distillations=pot.distillations,
            pot_bytes=pot.entry_bytes,
            full_cache_bytes=pot.tokens_read * pot.bytes_per_token,
            timings={"read_s": self.read_s, "distill_s": pot.distill_s, "answer_s": self.answer_s},
        )

    def copy(self) -> Reader:
        self.check_idle()
        twin = copy.copy(self)
        twin.pot, twin.tail = self.pot.copy(), copy.copy(self.tail)
        if self.usual is self.pot.newest:
            twin.usual = twin.pot.newest
        return twin
