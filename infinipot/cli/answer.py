"""An answer on the command line: its pieces as they come, and what became of it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from infinipot.cli.command_options import CommandOptions
from infinipot.cli.console import interrupts, say

if TYPE_CHECKING:
    from infinipot import Sampling, Session


@dataclasses.dataclass
class Answer:
    """An answer, its end and its speed."""

    text: str = ""
    tokens: int = 0
    first_token_s: float | None = None
    seconds: float = 0.0
    stopped: bool = False
    finish_reason: str = "stop"
    """`stop`: the model ended it, or a stop text did. `length`: cut at max_tokens. `interrupted`:
    Ctrl-C."""

    @property
    def tps(self) -> float | None:
        """Tokens per second after the first."""
        if self.first_token_s is None or self.tokens < 2:
            return None
        return (self.tokens - 1) / max(self.seconds - self.first_token_s, 1e-9)


def answer(
    session: Session,
    question: str | None,
    sampling: Sampling,
    show: Callable[[str], None],
    aware: bool = True,
) -> Answer:
    """Answer into the pot and show the pieces, until the answer ends or Ctrl-C stops it. What it
    has said until then stays in the pot.

    With prefill="whole" nothing stays, because each answer has its own distillation.
    """
    result = Answer()
    started = time.perf_counter()
    keep = session.config.prefill != "whole"
    pieces = session.stream(question, keep=keep, aware=aware, **dataclasses.asdict(sampling))
    with closing(pieces), interrupts.gently():
        for piece in pieces:
            if result.first_token_s is None:
                result.first_token_s = time.perf_counter() - started
            result.text += piece
            show(piece)
            result.stopped = interrupts.pending
            if result.stopped:
                break
    result.finish_reason = pieces.finish_reason or "interrupted"
    result.tokens = len(pieces.ids)
    result.seconds = time.perf_counter() - started
    return result


def report_cut(reply: Answer, options: CommandOptions) -> None:
    """Say that an answer was cut at its longest, and what makes it longer."""
    if reply.finish_reason == "length" and not options.quiet:
        say(
            f"the answer was cut after {reply.tokens:,} tokens: "
            f"--max-tokens {2 * reply.tokens} allows more"
        )
