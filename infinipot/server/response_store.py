"""What responses said, so that a conversation can go on behind one of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from infinipot.server.errors import APIError

MAX_CHARACTERS = 1 << 26
"""Of all messages that are held. The oldest go first."""
Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Said:
    """The messages of a request and of its answer. previous: the response before."""

    messages: Messages
    previous: str | None
    characters: int


class ResponseStore:
    """Responses by their ids, in memory. Used from several threads."""

    def __init__(self, most: int = MAX_CHARACTERS) -> None:
        self.most = most
        self._said: OrderedDict[str, Said] = OrderedDict()
        self._characters = 0
        self._lock = threading.Lock()

    def add(self, identity: str, messages: Messages, previous: str | None) -> None:
        said = Said(messages, previous, sum(len(str(message)) for message in messages))
        with self._lock:
            self._said[identity] = said
            self._characters += said.characters
            while self._characters > self.most and len(self._said) > 1:
                _, oldest = self._said.popitem(last=False)
                self._characters -= oldest.characters

    def messages(self, identity: str) -> Messages:
        """The whole conversation up to a response. Raises APIError if it is not held any more."""
        found: list[Said] = []
        following: str | None = identity
        with self._lock:
            while following is not None:
                if following not in self._said:
                    raise APIError(
                        404,
                        f"the response {identity!r} is not held here, or not any more: send the "
                        "whole conversation as input",
                        param="previous_response_id",
                        code="previous_response_not_found",
                    )
                self._said.move_to_end(following)
                found.append(self._said[following])
                following = self._said[following].previous
        return [message for said in reversed(found) for message in said.messages]
