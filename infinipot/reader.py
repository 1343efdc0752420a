"""One pot and the ids that go through it: reading, and answering from what was read."""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass

import torch
from torch import Tensor

from infinipot import distill
from infinipot.host import Host
from infinipot.options import PotConfig
from infinipot.policies import POLICIES
from infinipot.pot import Pot

Progress = Callable[[], None]


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
    """Reads token ids into a pot as the policy says, and answers from it. It knows no text."""

    def __init__(self, host: Host, config: PotConfig) -> None:
        self.host, self.config = host, config
        self.policy = POLICIES[config.policy]()
        self.needs = self.policy.needs(config.novelty)
        self.pot = host.new_pot(None if self.policy.reads == "all" else config.pot_size, config.context_reset)
        self.tail: deque[int] = deque(maxlen=config.pot_size)
        """Policy `truncate`: the newest ids, not read before an answer needs them."""
        self.skipped = 0
        self.usual: Tensor | None = None
        """The catalyst of the latest reading: the pot always has room for it."""
        self.busy = False
        self.read_s = self.answer_s = 0.0

    def tensor(self, ids: list[int]) -> Tensor:
        return torch.tensor([ids], dtype=torch.long, device=self.host.device)

    def check_room(self, catalyst: Tensor | None, pinned: int) -> None:
        """Refuse sizes that would never let a token be read after a distillation."""
        prompt = 0 if catalyst is None else catalyst.shape[1]
        size, kept = self.config.pot_size, self.config.survivors
        if catalyst is not None and not prompt:
            raise ValueError("the question is empty, so there is nothing to distil by: ask something, or use catalyst='general'")
        if self.policy.reads == "ends" and 2 * pinned >= size:
            raise ValueError(
                f"pot_size={size} leaves no room: pinned {pinned} takes half of it or more. Use a larger pot, or a shorter system prompt"
            )
        if self.policy.reads == "pot" and kept + prompt + pinned >= size:
            raise ValueError(
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
            distill.take(self.host, self.pot, self.tensor(ids), "novelty" in self.needs)
            self.pot.pinned = len(ids)

    def read(self, ids: list[int], catalyst: Tensor | None, progress: Progress | None = None) -> None:
        """Read on. catalyst: ids [1, |P|] for the distillations this takes. progress: called after every chunk."""
        started = time.perf_counter()
        if self.policy.reads == "ends":
            here = max(0, self.config.pot_size // 2 - self.pot.length)
            self.skipped += max(0, len(self.tail) + len(ids[here:]) - self.config.pot_size)
            self.tail.extend(ids[here:])
            ids = ids[:here]
        try:
            self._read(self.pot, ids, catalyst, progress)
        finally:
            self.read_s += time.perf_counter() - started

    def _read(self, pot: Pot, ids: list[int], catalyst: Tensor | None, progress: Progress | None = None) -> None:
        if not ids:
            return
        if not self._beside(pot, catalyst):
            distill.distill(self.host, pot, self.config, self.usual)
        if pot is self.pot:
            self.usual = catalyst
        distill.read(self.host, pot, self.config, self.tensor(ids), catalyst, "novelty" in self.needs, progress)

    def _beside(self, pot: Pot, catalyst: Tensor | None) -> bool:
        """Whether the catalyst has room beside what the pot holds.

        One that is longer than the last may have none; it is preceded by the distillation that reading on would have made.
        """
        return catalyst is None or pot.size is None or pot.length + catalyst.shape[1] <= pot.size

    def fits(self, wanted: int, catalyst: Tensor | None = None) -> bool:
        """Whether `wanted` more entries, a question and its answer, need no distillation and leave room for the catalyst."""
        size = self.config.pot_size
        if self.policy.reads == "ends":
            if self.pot.length + wanted > size:
                raise ValueError(f"pot_size={size} leaves no room: the text's head {self.pot.length} + question and answer {wanted} is more")
            return True
        return self.pot.size is None or self.pot.length + wanted + (0 if catalyst is None else catalyst.shape[1]) <= size

    def answer(
        self,
        prompt: list[int],
        *,
        max_tokens: int,
        pick: Callable[[Tensor], int],
        stop_ids: set[int],
        keep: bool,
        catalyst: Tensor | None = None,
        seen: tuple[int, int] | None = None,
    ) -> Generator[int, None, None]:
        """Read the prompt, then yield the answer's ids, without the one that stops it.

        pick: next-token logits [1, V] float32 -> id. keep: prompt and answer stay in the pot; else it is afterwards as it was before.
        catalyst: for distillations made on the way, needed if keep or if it does not fit. When prompt and answer do not fit, the pot is
        distilled first (a copy of it, unless keep), and again whenever it is full. seen: `progress` when the answer was asked for.
        """
        self.check_idle()
        if seen is not None and seen != self.progress:
            raise RuntimeError("the session has read on since this answer was asked for: ask again")
        wanted, ends = len(prompt) + max_tokens, self.policy.reads == "ends"
        fits = self.fits(wanted, catalyst if keep else None)
        self.busy, started = True, time.perf_counter()
        grows = keep and not ends
        pot = self.pot if fits or grows else self.pot.copy()
        before = None if grows or pot is not self.pot else pot.mark()
        room = self.config.pot_size - pot.length - wanted
        tail = list(self.tail)[max(0, len(self.tail) - room) :] if ends else []
        said: list[int] = []
        asked = False
        if catalyst is self.pot.newest:
            catalyst = pot.newest

        def read(ids: list[int]) -> None:
            if fits:
                for chunk in self.tensor(ids).split(self.config.chunk_tokens, dim=1):
                    distill.take(self.host, pot, chunk, grows and "novelty" in self.needs)
            else:
                self._read(pot, ids, catalyst)

        try:
            if not fits:
                reserve = 0 if catalyst is None or not keep else catalyst.shape[1]
                fits = pot.pinned + self.config.survivors + wanted + reserve <= self.config.pot_size
                if fits:  # after one distillation; what is longer is distilled as it is read
                    distill.distill(self.host, pot, self.config, catalyst if self._beside(pot, catalyst) else self.usual)
            if tail or prompt:
                read(tail + prompt)
            asked = True
            for count in range(1, max_tokens + 1):
                assert pot.hidden is not None
                token = pick(self.host.head(pot.hidden)[:, -1].float())
                if token in stop_ids:
                    break
                said.append(token)
                if grows or count < max_tokens:
                    read([token])
                yield token
        finally:
            if before is not None:
                pot.rollback(before)
            for mine, other in zip(self.pot.layers, pot.layers, strict=True):
                mine.peak = max(mine.peak, other.peak)
            if grows and fits and asked:
                self.usual = catalyst
            elif keep and ends and asked:
                self.read(prompt + said, None)
            self.answer_s += time.perf_counter() - started
            self.busy = False

    @property
    def stats(self) -> Stats:
        pot = self.pot
        return Stats(
            tokens_read=pot.tokens_read + len(self.tail),
            tokens_skipped=self.skipped,
            entries=pot.length,
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
