"""What the arguments of a session stand for."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Generator, Iterable, Mapping
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from infinipot.checks import known
from infinipot.config import PotConfig
from infinipot.model.runner import ModelRunner
from infinipot.sampling import Sampling
from infinipot.text.tokens import flat

Question = str | Iterable[int] | None
ELSEWHERE = {
    "max_new_tokens": "max_tokens",
    "max_length": "max_tokens",
    "do_sample": "temperature (0 is greedy)",
    "stop_strings": "stop",
    "stop_sequences": "stop",
    "random_seed": "seed",
}
"""Names of other libraries, and what the same is called here."""
SAMPLING = tuple(field.name for field in dataclasses.fields(Sampling))


def runner_of(model: PreTrainedModel | ModelRunner) -> ModelRunner:
    """Raises TypeError for what is no model; the message says how to get one."""
    if isinstance(model, ModelRunner):
        return model
    if isinstance(model, (str, os.PathLike)):
        raise TypeError(f"a session needs a loaded model: Session(*load({str(model)!r}))")
    if isinstance(model, tuple):
        raise TypeError("a session needs model and tokenizer one by one: Session(*load(...))")
    return ModelRunner(model)


def config_of(config: PotConfig | None) -> PotConfig:
    if config is None:
        return PotConfig()
    if not isinstance(config, PotConfig):
        raise TypeError(
            f"config must be a PotConfig, not {type(config).__name__}: PotConfig(pot_size=1024)"
        )
    return config


def sampling_of(options: Mapping[str, Any]) -> Sampling:
    """The options of an answer. Raises TypeError for a name that is none of them."""
    for name in options:
        if name in ELSEWHERE:
            raise TypeError(f"{name} is called {ELSEWHERE[name]} here")
        try:
            known("option of an answer", name, SAMPLING)
        except ValueError as problem:
            raise TypeError(str(problem)) from None
    return Sampling(**options)


def check_no_messages(text: object) -> None:
    """Raise TypeError for messages (`{"role": ..., "content": ...}`) and for what a tokenizer
    returns."""
    first = text
    if isinstance(text, (list, tuple)) and text:
        first = text[0]
    if not isinstance(first, Mapping):
        return
    if "input_ids" in first:
        raise TypeError("a text is str or token ids: give the input_ids alone, text['input_ids']")
    raise TypeError(
        "a session takes texts, not messages: session.chat(message['content']) answers one and "
        "remembers it, and a system prompt is Session(..., system=...)"
    )


def listed(question: Question) -> str | list[int] | None:
    """A question as a text or as a list of ids."""
    if question is None or isinstance(question, str):
        return question
    check_no_messages(question)
    return flat(question)


def fed(streamer: Any, tokens: Generator[int, None, None]) -> Generator[int, None, None]:
    """The tokens, which go to a streamer of transformers, too. It gets an empty prompt first, and is
    ended in any case."""
    try:
        streamer.put(torch.empty(1, 0, dtype=torch.long))
        for token in tokens:
            streamer.put(torch.tensor([token]))
            yield token
    finally:
        tokens.close()
        streamer.end()


def uses_template(
    template: bool | None,
    tokenizer: PreTrainedTokenizerBase | None,
    system: str | None,
    raw: bool,
) -> bool:
    """Whether a session puts texts into the chat template. raw: the first text is token ids. Raises
    ValueError if that is not possible."""
    if template and tokenizer is None:
        raise ValueError("template=True needs a tokenizer, which has the template: pass one")
    if template is None:
        template = not raw and tokenizer is not None
    if system is not None and not template:
        raise ValueError(
            "system is given, but this session uses no chat template to put it in: "
            "put it into the text instead"
        )
    return template
