"""What can be asked of a session without changing it."""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import Tensor

from infinipot.cache.pot import Pot
from infinipot.config import PotConfig
from infinipot.engine.plan import Plan
from infinipot.engine.reader import Reader
from infinipot.engine.stats import Stats
from infinipot.model.runner import ModelRunner
from infinipot.text.chat_template import Dialogue

View = TypeVar("View", bound="SessionView")


class SessionView:
    """The pot of a session, its options and its counters."""

    runner: ModelRunner
    _reader: Reader
    _dialogue: Dialogue | None
    _reasons: list[str]

    def __repr__(self) -> str:
        """Model, policy, entries, and what was read."""
        stats = self.stats
        entries = f"{stats.entries:,} entries"
        if self.pot.size is not None:
            entries = f"{stats.entries:,} of {self.pot.size:,} entries"
        model = type(self.runner.model).__name__
        return (
            f"<Session: {model}, policy {self._reader.policy.name}, {entries}, "
            f"{stats.tokens_read:,} tokens read, {stats.distillations:,} distillations>"
        )

    def __reduce__(self) -> str:
        raise TypeError("a session is not copied: use session.save(path) or session.fork()")

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
    def tokens_given(self) -> int:
        """Tokens of the texts that `append` has got from its tokenizer so far: those read, and those
        that wait to be read."""
        return self._reader.tokens_given

    @property
    def finish_reason(self) -> str | None:
        """How the newest answer as text ended: `stop`, or `length`, cut at max_tokens. None before
        its end."""
        return next(iter(self._reasons), None)

    @property
    def logits(self) -> Tensor:
        """Next-token logits [1, V] float32 after what the pot has read."""
        if self.pot.hidden is None:
            raise ValueError("nothing has been read: append a text first")
        return self.runner.head(self.pot.hidden)[:, -1].float()

    def fork(self: View) -> View:
        """An independent session with a copy of the pot. Model and tokenizer are shared."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._reader = self._reader.copy()
        twin._dialogue = copy.copy(self._dialogue)
        return twin

    def score_all(self) -> None:
        """From now on compute the novelty of every token, even if the policy does not need it.
        After each chunk `pot.novelty` ends with the chunk's values."""
        self.pot.score_at_once()
