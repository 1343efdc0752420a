"""What the arguments of a session stand for."""

from __future__ import annotations

from collections.abc import Iterable

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from infinipot.model.runner import ModelRunner
from infinipot.text.tokens import flat

Question = str | Iterable[int] | None


def runner_of(model: PreTrainedModel | ModelRunner) -> ModelRunner:
    if isinstance(model, ModelRunner):
        return model
    return ModelRunner(model)


def listed(question: Question) -> str | list[int] | None:
    """A question as a text or as a list of ids."""
    if question is None or isinstance(question, str):
        return question
    return flat(question)


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
