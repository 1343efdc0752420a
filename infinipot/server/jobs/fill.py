"""Reading a text into a named pot, as it comes, for whoever watches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from infinipot.config import PotConfig
from infinipot.server.errors import Refusal
from infinipot.server.events import Done, Send, pot_of
from infinipot.server.jobs.base import Work
from infinipot.server.pot_store import Held, Shelf, content_of
from infinipot.server.prompts import Behind
from infinipot.server.schema import FillOptions
from infinipot.session import Session

EVERY_S = 0.4
"""How often watchers are told what the pot keeps: it takes a moment to count."""


def kept_places(session: Session) -> tuple[list[int], list[float]]:
    """Places in the text of all entries, ascending, and which share of the layers and KV heads holds each."""
    layers = [session.pot.described(layer)[0].flatten() for layer in session.pot.bounded if layer.is_initialized]
    if not layers:
        return [], []
    places, counts = torch.cat(layers).unique(return_counts=True)
    heads = sum(layer.keys.shape[1] for layer in session.pot.bounded)
    return places.tolist(), [round(count / heads, 3) for count in counts.tolist()]


def view(session: Session, name: str, state: str, places: bool) -> dict[str, Any]:
    """What is told of a pot. first_place: where the text begins behind the template's head and the system prompt."""
    about = {"name": name, "object": "pot", "state": state, "tokens_read": session.stats.tokens_read, "pot": pot_of(session)}
    about["options"] = session.config.options
    if places:
        where, shares = kept_places(session)
        about |= {"first_place": session.pot.pinned, "places": where, "shares": shares}
    return about


class Filling(Work):
    """A text on its way into a named pot. Ids are fed by whoever receives the text; `complete` says that there are no more."""

    def __init__(self, config: PotConfig, name: str, given: FillOptions, send: Send, roomy: Callable[[], None]) -> None:
        super().__init__(config, send, system=given.system, templated=True)
        self.name, self.question, self.expendable, self.roomy = name, given.question, given.expendable, roomy
        self.complete = False
        self.waiting_tokens = 0
        self.watchers: list[Callable[[dict[str, Any]], None]] = []
        self._told = 0.0

    def feed(self, ids: list[int]) -> None:
        if ids:
            self.pending.append(ids)
            self.waiting_tokens += len(ids)

    @property
    def readable(self) -> bool:
        return bool(self.pending) or self.complete

    def read(self, most_tokens: int) -> None:
        if self.pending:
            super().read(most_tokens)
            self.waiting_tokens = sum(map(len, self.pending))
            self.roomy()
            self.tell("reading")
        else:
            self.ended = True

    def tell(self, state: str, always: bool = False) -> None:
        now = time.monotonic()
        if self.watchers and (always or now - self._told >= EVERY_S):
            self._told = now
            about = view(self.own, self.name, state, places=True)
            for watcher in self.watchers:
                watcher(about)

    def keep(self, shelf: Shelf) -> None:
        if self.own.pot.hidden is None:
            raise Refusal(400, "the text is empty: there is nothing to read")
        content = content_of(self.own)
        behind = Behind(self.system, True, in_text=True, answered=False)
        shelf.take_name(Held(self.own, (0, content), behind, name=self.name, content=content, expendable=self.expendable))
        self.tell("ready", always=True)
        self.send(Done("filled", view(self.own, self.name, "ready", places=False)))

    def drop(self) -> None:
        for watcher in self.watchers:
            watcher({"name": self.name, "object": "pot", "state": "failed"})
        super().drop()
