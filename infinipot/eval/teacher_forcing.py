"""Sessions of an evaluation: questions as ids, and the probability of the right answer."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from infinipot.config import PotConfig
from infinipot.eval.runner import Replica
from infinipot.session import Session
from infinipot.text.chat_template import Dialogue
from infinipot.text.tokens import fragment


def open_session(
    replica: Replica, config: PotConfig, *, system: str | None = None, template: bool = True
) -> Session:
    return Session(replica.runner, replica.tokenizer, config, system=system, template=template)


def head_tokens(replica: Replica, system: str | None = None) -> int:
    """The number of pinned tokens before a text, which is the place of its first token."""
    return len(Dialogue(replica.tokenizer, system, True).head())


def question_ids(
    replica: Replica, question: str, prefix: str = "", system: str | None = None
) -> list[int]:
    """The ids of a question after a text, as in `Session.ask`, and of the answer's first words."""
    dialogue = Dialogue(replica.tokenizer, system, True)
    dialogue.in_text = True
    return dialogue.question(question) + fragment(replica.tokenizer, prefix)


@dataclass
class Forced:
    """A `pick` that returns the given ids, and notes how the model rates them."""

    ids: list[int]
    loss: float = 0.0
    """The loss of all ids together, in nats."""
    first: list[bool] = field(default_factory=list)
    """For each id, whether it was the model's first choice."""

    def __call__(self, logits: Tensor) -> int:
        token = self.ids[len(self.first)]
        self.loss -= float(logits[0].log_softmax(dim=-1)[token])
        self.first.append(int(logits.argmax()) == token)
        return token


def force(session: Session, prompt: list[int], answer: list[int]) -> Forced:
    """Make the session answer `answer` after `prompt`. The session itself does not change."""
    forced = Forced(answer)
    for _ in session.stream_ids(prompt, max_tokens=len(answer), pick=forced, stop_ids=set()):
        pass
    return forced


def kept_share(session: Session, start: int, stop: int) -> float | None:
    """The share of the tokens at places [start, stop) that are still in the pot, 0 .. 1.

    Mean over layers and KV heads. None where the pot does not tell what an answer sees: a policy
    that cuts the text, and `prefill="whole"`, which distils a copy for each answer.
    """
    if session.config.policy.cuts or session.config.prefill == "whole":
        return None
    tokens = torch.arange(start, stop)
    shares = []
    for layer in session.pot.bounded:
        places = session.pot.described([layer])[0][0].cpu()  # [K, P]
        heads = [torch.isin(tokens, head).float().mean() for head in places]
        shares.append(torch.stack(heads).mean())
    return round(float(torch.stack(shares).mean()), 4)
