"""Which tokens of a text are still in the pot, drawn over the text (paper, appendix D)."""

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

LONGEST = 200_000
"""Tokens that a browser can still show one by one."""


def kept_places(session: Session, count: int) -> Tensor:
    """Which of the first `count` tokens read are still there, [L, K, count] bool, L being the bounded layers."""
    kept = []
    for layer in session.pot.bounded:
        places = session.pot.described(layer)[0][0].cpu()  # [K, P]
        kept.append(torch.zeros(places.shape[0], max(count, int(places.max()) + 1), dtype=torch.bool).scatter_(1, places, True)[:, :count])
    return torch.stack(kept)


@dataclass(frozen=True)
class Look:
    """A text after reading. pieces: what each token shows of it, the template's head first. kept [L, K, N]."""

    pieces: list[str]
    pinned: int
    kept: Tensor
    novelty: list[float | None]
    question: str | None
    known: bool
    answer: str | None
    facts: str


def pieces_of(tokenizer: Any, text: str) -> tuple[list[int], list[str]]:
    """Ids, and the part of the text that each stands for: together they are the text. Of a character's several tokens the first has it."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    parts, done = [], 0
    for _, end in encoded["offset_mapping"]:
        parts.append(text[done:end])
        done = max(done, end)
    if parts:
        parts[-1] += text[done:]
    return list(encoded["input_ids"]), parts


def look(
    replica: Replica, model: str, method: Method, text: str, question: str | None, *, system: str | None = None, max_tokens: int = 64
) -> Look:
    """Read a text, with the question in mind if the method is to know it, and answer.

    model: its name on the page. ValueError for texts too long to show.
    """
    if method.policy.cuts:
        raise ValueError(f"policy {method.policy.name!r} never reads the middle of the text, so there is nothing to see of it")
    ids, parts = pieces_of(replica.tokenizer, text)
    if len(ids) > LONGEST:
        raise ValueError(f"the text has {len(ids):,} tokens; a page can show {LONGEST:,}: give a shorter one")
    head = Dialogue(replica.tokenizer, system, True).head()
    shown_head = [str(replica.tokenizer.decode([token])) for token in head]
    session = open_session(replica, method.config, system=system)
    losses: list[float] = []

    def note() -> None:
        fresh = session.stats.tokens_read - len(head) - len(losses)
        losses.extend(session.pot.novelty[0, -fresh:].tolist())

    session.score_all()
    session.append(ids, question=question if method.aware else None, progress=note)
    kept = kept_places(session, len(head) + len(ids))
    stats, size = session.stats, session.pot.size
    answer = session.ask(question, max_tokens=max_tokens) if question else None
    options = [f"{name} {value}" for name, value in method.options.items() if name not in ("pot_size", "catalyst")]
    facts = (
        " · ".join([model, ", ".join([method.policy.name, *options])])
        + f" · {stats.tokens_read:,} tokens read in a pot "
        + (f"of {size:,}" if size else "without a bound")
        + f", {stats.distillations:,} distillations, {stats.entries:,} entries left in each layer and head"
    )
    novelty = [None] * len(head) + [round(loss, 2) for loss in losses]
    return Look(shown_head + parts, len(head), kept, novelty, question, method.aware, answer, facts)


def page(seen: Look) -> str:
    """One HTML file with everything in it."""
    data = {
        "facts": seen.facts,
        "question": seen.question,
        "known": seen.known,
        "answer": seen.answer,
        "pieces": seen.pieces,
        "pinned": seen.pinned,
        "novelty": seen.novelty,
        "layers": seen.kept.shape[0],
        "heads": seen.kept.shape[1],
        "bits": base64.b64encode(np.packbits(seen.kept.numpy().ravel(), bitorder="little").tobytes()).decode(),
    }
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")  # nothing in a text can end the script
    return importlib.resources.files("infinipot.eval").joinpath("survivors.html").read_text("utf-8").replace("DATA", text, 1)
