"""Reads a text into a named pot while the text arrives."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from infinipot.config import PotConfig
from infinipot.engine.decode import InvalidLogits
from infinipot.engine.passes import Passes
from infinipot.server.errors import APIError
from infinipot.server.events import Done, Send, pot_of
from infinipot.server.jobs.base import UNBOUNDED, Job
from infinipot.server.pot_store import PotStore
from infinipot.server.schema import FillOptions
from infinipot.server.stored_pot import StoredPot, content_of
from infinipot.server.text_prompts import PotContext
from infinipot.session import Session

Watcher = Callable[[dict[str, Any]], None]
WATCH_S = 0.4
"""How often watchers get the pot's state, which takes a moment to compute."""


def kept_places(session: Session) -> tuple[list[int], list[float]]:
    """The positions of all entries, ascending, and the share of layers and KV heads with each."""
    bounded = session.pot.bounded
    layers = [
        session.pot.described([layer])[0].flatten() for layer in bounded if layer.is_initialized
    ]
    if not layers:
        return [], []
    places, counts = torch.cat(layers).unique(return_counts=True)
    heads = sum(layer.keys.shape[1] for layer in bounded)
    return places.tolist(), [round(count / heads, 3) for count in counts.tolist()]


def view(session: Session, name: str, state: str, places: bool) -> dict[str, Any]:
    """A pot's description. first_place: where the text begins, after template head and system
    prompt."""
    about = {
        "name": name,
        "object": "pot",
        "state": state,
        "tokens_read": session.stats.tokens_read,
        "pot": pot_of(session),
    }
    about["options"] = session.config.options
    if places:
        where, shares = kept_places(session)
        about |= {"first_place": session.pot.pinned, "places": where, "shares": shares}
    return about


class FillJob(Job):
    """Reads the ids that `feed` adds, until `complete` is set."""

    def __init__(
        self,
        config: PotConfig,
        name: str,
        options: FillOptions,
        send: Send,
        on_read: Callable[[], None],
    ) -> None:
        """on_read: called after every slice."""
        super().__init__(config, send, system=options.system, templated=True)
        self.name = name
        self.question = options.question
        self.expendable = options.expendable
        self.on_read = on_read
        self.complete = False
        self.waiting_tokens = 0
        """Tokens that have arrived and are not read."""
        self.watchers: list[Watcher] = []
        self._last_view_s = 0.0

    def feed(self, ids: list[int]) -> None:
        if ids:
            self.pending.append(ids)
            self.waiting_tokens += len(ids)

    def end_text(self) -> None:
        """No more ids follow."""
        self.complete = True

    @property
    def readable(self) -> bool:
        return bool(self.pending) or self.complete

    @property
    def remaining_tokens(self) -> int:
        return super().remaining_tokens if self.complete else UNBOUNDED

    def passes(self, max_tokens: int) -> Passes[None]:
        if self.pending:
            yield from super().passes(max_tokens)
            self.waiting_tokens = sum(map(len, self.pending))
            self.on_read()
            self.tell_watchers("reading")
        else:
            self.ended = True

    def tell_watchers(self, state: str, always: bool = False) -> None:
        now = time.monotonic()
        if self.watchers and (always or now - self._last_view_s >= WATCH_S):
            self._last_view_s = now
            about = view(self.own_session, self.name, state, places=True)
            for watcher in self.watchers:
                watcher(about)

    def keep(self, store: PotStore) -> None:
        session = self.own_session
        if session.pot.hidden is None:
            raise APIError(400, "the text is empty: there is nothing to read")
        if not session.pot.hidden.isfinite().all():
            raise InvalidLogits
        content = content_of(session)
        context = PotContext(self.system, True, in_text=True, answered=False)
        pot = StoredPot(
            session,
            (0, content),
            context,
            name=self.name,
            content=content,
            expendable=self.expendable,
        )
        store.take_name(pot)
        self.tell_watchers("ready", always=True)
        self.finish_reason = "filled"
        self.send(Done("filled", view(session, self.name, "ready", places=False)))

    def drop(self) -> None:
        for watcher in self.watchers:
            watcher({"name": self.name, "object": "pot", "state": "failed"})
        super().drop()
