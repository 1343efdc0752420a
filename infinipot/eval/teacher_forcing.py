"""What an evaluation does with a session: read ids, ask, and see how surely the right answer would
come."""

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
    return Session(replica.host, replica.tokenizer, config, system=system, template=template)


def head_tokens(replica: Replica, system: str | None = None) -> int:
    """How many pinned tokens stand before a text: its first token has this place."""
    return len(Dialogue(replica.tokenizer, system, True).head())


def question_ids(
    replica: Replica, question: str, prefix: str = "", system: str | None = None
) -> list[int]:
    """A question after a text, as `Session.ask` reads it, and the first words of the answer."""
    dialogue = Dialogue(replica.tokenizer, system, True)
    dialogue.in_text = True
    return dialogue.question(question) + fragment(replica.tokenizer, prefix)


@dataclass
class Forced:
    """A `pick` that says what it is told, and notes what the model would have said."""

    ids: list[int]
    said: int = 0
    loss: float = 0.0
    """Nats of all ids together."""
    first: list[bool] = field(default_factory=list)
    """Whether each was the model's first choice."""

    def __call__(self, logits: Tensor) -> int:
        token = self.ids[self.said]
        self.said += 1
        self.loss -= float(logits[0].log_softmax(dim=-1)[token])
        self.first.append(int(logits.argmax()) == token)
        return token


def force(session: Session, prompt: list[int], answer: list[int]) -> Forced:
    """Let the session say `answer` after `prompt`; it is afterwards as it was before."""
    forced = Forced(answer)
    for _ in session.stream_ids(prompt, max_tokens=len(answer), pick=forced, stop_ids=set()):
        pass
    return forced


def kept_share(session: Session, start: int, stop: int) -> float:
    """Share of the tokens at places [start, stop) that are still in the pot, mean over layers and
    KV heads."""
    wanted = torch.arange(start, stop)
    shares = []
    for layer in session.pot.bounded:
        places = session.pot.described(layer)[0][0].cpu()  # [K, P]
        shares.append(
            torch.stack([torch.isin(wanted, head).float().mean() for head in places]).mean()
        )
    return float(torch.stack(shares).mean())
