"""A page that shows which tokens of a text are still in the pot (paper, appendix D)."""

from __future__ import annotations

import base64
import importlib.resources
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from infinipot.eval.methods import Method
from infinipot.eval.runner import Replica
from infinipot.eval.teacher_forcing import open_session
from infinipot.session import Session
from infinipot.text.chat_template import Dialogue
from infinipot.text.special_tokens import spans

LONGEST = 200_000
"""The most tokens that a browser can show one by one."""


def kept_places(session: Session, count: int) -> Tensor:
    """Which of the first `count` tokens are still in the pot, [L, K, count] bool.

    L is the number of bounded layers.
    """
    layers = []
    for layer in session.pot.bounded:
        places = session.pot.described([layer])[0][0].cpu()  # [K, P]
        width = max(count, int(places.max()) + 1)
        mask = torch.zeros(places.shape[0], width, dtype=torch.bool)
        layers.append(mask.scatter_(1, places, True)[:, :count])
    return torch.stack(layers)


@dataclass(frozen=True)
class Look:
    """A text after reading.

    pieces: the text of each token, first those of the template's head. pinned: tokens of the head.
    kept: [L, K, N]. novelty: of each token in nats, None in the head. known: whether the method
    knew the question during reading. facts: a line about the method and the reading.
    """

    pieces: list[str]
    pinned: int
    kept: Tensor
    novelty: list[float | None]
    question: str | None
    known: bool
    answer: str | None
    facts: str


def pieces_of(tokenizer: Any, text: str) -> tuple[list[int], list[str]]:
    """The ids, and the part of the text for each id. The parts joined are the text.

    If a character has several tokens, the first one gets the character.
    """
    ids, places = spans(tokenizer, text)
    parts = []
    done = 0
    for _, end in places:
        parts.append(text[done:end])
        done = max(done, end)
    if parts:
        parts[-1] += text[done:]
    return ids, parts


def look(
    replica: Replica,
    model: str,
    method: Method,
    text: str,
    question: str | None,
    system: str | None = None,
    **sampling: Any,
) -> Look:
    """Read a text, and answer the question if there is one.

    The method knows the question during reading only if it is aware of it. model: its name on the
    page. sampling: options of the answer, as in `Session.ask`. Raises ValueError for a text that is
    too long to show.
    """
    if method.policy.cuts:
        raise ValueError(
            f"policy {method.policy.name!r} never reads the middle of the text, so there is no "
            "selection to show: use another policy"
        )
    ids, parts = pieces_of(replica.tokenizer, text)
    _check_length(len(ids))
    head = Dialogue(replica.tokenizer, system, True).head()
    session = open_session(replica, method.config, system=system)
    losses = read(session, ids, question if method.aware else None, len(head))
    kept = kept_places(session, len(head) + len(ids))
    facts = described(session, model, method)
    answer = None
    if question:
        answer = session.ask(question, **sampling)
    return Look(
        pieces=[*[str(replica.tokenizer.decode([token])) for token in head], *parts],
        pinned=len(head),
        kept=kept,
        novelty=[None] * len(head) + [round(loss, 2) for loss in losses],
        question=question,
        known=method.aware,
        answer=answer,
        facts=facts + end_of(session),
    )


def end_of(session: Session) -> str:
    """What the line of facts says of an answer that was cut."""
    if session.finish_reason == "length":
        return "; the answer was cut at max_tokens"
    return ""


def _check_length(count: int) -> None:
    if count > LONGEST:
        raise ValueError(
            f"the text has {count:,} tokens; a page can show {LONGEST:,}: give a shorter one"
        )


def read(session: Session, ids: list[int], question: str | None, head: int) -> list[float]:
    """Read the ids. Returns the novelty of each. head: tokens before the text."""
    losses: list[float] = []

    def note() -> None:
        fresh = session.stats.tokens_read - head - len(losses)
        losses.extend(session.pot.novelty[0, -fresh:].tolist())

    session.score_all()
    session.append(ids, question=question, progress=note)
    return losses


def described(session: Session, model: str, method: Method) -> str:
    """A line about the method and the reading."""
    stats = session.stats
    size = session.pot.size
    bound = "without a bound"
    if size:
        bound = f"of {size:,}"
    options = [
        f"{name} {value}"
        for name, value in method.options.items()
        if name not in ("pot_size", "catalyst")
    ]
    return (
        f"{model} · {', '.join([method.policy.name, *options])}"
        f" · {stats.tokens_read:,} tokens read in a pot {bound}"
        f", {stats.distillations:,} distillations"
        f", {stats.entries:,} entries left in each layer and head"
    )


def page(look: Look) -> str:
    """One HTML file that needs no other file."""
    bits = np.packbits(look.kept.numpy().ravel(), bitorder="little")
    data = {
        "facts": look.facts,
        "question": look.question,
        "known": look.known,
        "answer": look.answer,
        "pieces": look.pieces,
        "pinned": look.pinned,
        "novelty": look.novelty,
        "layers": look.kept.shape[0],
        "heads": look.kept.shape[1],
        "bits": base64.b64encode(bits.tobytes()).decode(),
    }
    # without "<", no text can close the script element
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    template = importlib.resources.files("infinipot.eval").joinpath("inspect.html")
    return template.read_text("utf-8").replace("DATA", text, 1)
