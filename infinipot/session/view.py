"""What can be asked of a session without changing it."""

from __future__ import annotations

from torch import Tensor

from infinipot.cache.pot import Pot
from infinipot.config import PotConfig
from infinipot.engine.plan import Plan
from infinipot.engine.reader import Reader, Stats
from infinipot.model.runner import ModelRunner


class SessionView:
    """The pot of a session, its options and its counters."""

    runner: ModelRunner
    _reader: Reader

    @property
    def pot(self) -> Pot:
        return self._reader.pot

    @property
    def plan(self) -> Plan | None:
        """Sizes and smoothing of each layer. None while they depend on whether a question will be
        known."""
        return self._reader.fixed_plan

    @property
    def config(self) -> PotConfig:
        """The options in force. None: an option that is not decided yet, or that differs between
        layers (see `plan`)."""
        return self._reader.plan.shown_in(self._reader.options, decided=self.plan is not None)

    @property
    def stats(self) -> Stats:
        return self._reader.stats

    @property
    def logits(self) -> Tensor:
        """Next-token logits [1, V] float32 after what the pot has read."""
        if self.pot.hidden is None:
            raise ValueError("nothing has been read: append a text first")
        return self.runner.head(self.pot.hidden)[:, -1].float()

    def score_all(self) -> None:
        """From now on compute the novelty of every token, even if the policy does not need it.
        After each chunk `pot.novelty` ends with the chunk's values."""
        self.pot.score_at_once()
