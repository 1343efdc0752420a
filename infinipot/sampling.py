"""How the tokens of an answer are chosen, and when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infinipot.checks import LARGEST, finite_number, whole_number

SEEDS = (-(2**63), 2**64 - 1)
"""The least and the greatest seed that torch takes."""
PENALTY = 1e4
"""The largest penalty."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are sampled. The defaults are greedy decoding.

    Penalties count the tokens of the answer, `repetition_penalty` also those of the question that it
    answers. What the pot has read before has no part in them: it may be forgotten.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """Texts that end the answer; they are not part of it."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the answer, beside the model's own; they are not part of it."""
    ignore_eos: bool = False
    """The model's own end tokens do not end the answer."""
    min_tokens: int = 0
    """Tokens of the answer before which no token ends it."""
    repetition_penalty: float = 1.0
    """Divides the positive logits, and multiplies the negative ones, of tokens that stand in the
    question or the answer; 1: none."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that stand in the answer."""
    frequency_penalty: float = 0.0
    """Subtracted from the logits of tokens as often as they stand in the answer."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids and what is added to their logits, as a mapping or as pairs."""

    def __post_init__(self) -> None:
        whole_number("max_tokens", self.max_tokens, 1, LARGEST)
        whole_number("top_k", self.top_k, 0, LARGEST)
        if self.seed is not None:
            whole_number("seed", self.seed, *SEEDS, unit="")
        finite_number("temperature", self.temperature, 0)
        finite_number("top_p", self.top_p, 0, 1)
        finite_number("min_p", self.min_p, 0, 1)
        object.__setattr__(self, "stop", self._texts())
        self._check_ends()
        self._check_penalties()

    def ends(self, own: set[int]) -> set[int]:
        """The tokens that end an answer. own: the model's."""
        if self.ignore_eos:
            own = set()
        return own | set(self.stop_token_ids)

    def check_tokens(self, vocabulary: int) -> None:
        """Raise ValueError for a token id that the model does not have."""
        biased = [token for token, _ in self.logit_bias]
        for name, tokens in (("stop_token_ids", self.stop_token_ids), ("logit_bias", biased)):
            for token in tokens:
                if token >= vocabulary:
                    raise ValueError(
                        f"{name} names the token {token}, which is not allowed: "
                        f"this model has the ids 0 to {vocabulary - 1}"
                    )

    def _texts(self) -> tuple[str, ...]:
        if not isinstance(self.stop, (tuple, list)) or not all(
            isinstance(text, str) for text in self.stop
        ):
            raise TypeError(
                f"stop={self.stop!r} is not allowed: it must be a tuple of texts, e.g. ('END',)"
            )
        if any(not text for text in self.stop):
            raise ValueError("stop holds an empty text, which would end every answer at once")
        return tuple(self.stop)

    def _check_ends(self) -> None:
        if not isinstance(self.stop_token_ids, (tuple, list)):
            raise TypeError(
                f"stop_token_ids={self.stop_token_ids!r} is not allowed: "
                "it must be a tuple of token ids, e.g. (2,)"
            )
        for token in self.stop_token_ids:
            whole_number("stop_token_ids", token, 0, LARGEST, unit=" for each token")
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        if not isinstance(self.ignore_eos, bool):
            raise TypeError(f"ignore_eos={self.ignore_eos!r} is not allowed: give True or False")
        whole_number("min_tokens", self.min_tokens, 0, LARGEST)
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens={self.min_tokens} is not allowed: "
                f"the answer has at most max_tokens={self.max_tokens}"
            )

    def _check_penalties(self) -> None:
        finite_number("repetition_penalty", self.repetition_penalty, 0, PENALTY)
        if not self.repetition_penalty:
            raise ValueError("repetition_penalty=0 is not allowed: it must be above 0; 1 is none")
        finite_number("presence_penalty", self.presence_penalty, -PENALTY, PENALTY)
        finite_number("frequency_penalty", self.frequency_penalty, -PENALTY, PENALTY)
        object.__setattr__(self, "logit_bias", bias_pairs(self.logit_bias))


def bias_pairs(bias: Any) -> tuple[tuple[int, float], ...]:
    """{5: -1.0} or pairs -> ((5, -1.0),), in the order of ids."""
    pairs = bias
    if isinstance(bias, Mapping):
        pairs = bias.items()
    try:
        found = {token: value for token, value in pairs}
    except (TypeError, ValueError):
        raise TypeError(
            f"logit_bias={bias!r} is not allowed: it must be numbers by token id, e.g. {{5: -1.0}}"
        ) from None
    for token, value in found.items():
        whole_number("logit_bias", token, 0, LARGEST, unit=" as a token id")
        finite_number("logit_bias", value, -PENALTY, PENALTY)
    return tuple(sorted(found.items()))
