"""The token ids of the catalyst: the prompt that is read at a distillation."""

from __future__ import annotations

from torch import Tensor

from infinipot.catalysts import ANSWER_PREFIXES, PROMPTS
from infinipot.engine.reader import Reader
from infinipot.scoring.representativeness import contrasted
from infinipot.text.chat_template import Dialogue
from infinipot.text.tokens import checked


def new_catalyst(
    reader: Reader, dialogue: Dialogue, question: str | list[int] | None
) -> Tensor | None:
    """Ids [1, |P|] of the catalyst, [2, |P|] with a contrast; None if the policy needs none.

    Until the first distillation, what depends on the question goes by this one. But a text that was
    read without a catalyst, and leaves no room for this one, is distilled as it was read: None.
    Raises ValueError if the catalyst leaves no room.
    """
    kind = catalyst_kind(reader, question)
    if kind is None:
        return None
    before = reader.plan.catalyst
    reader.settle(kind)
    if "catalyst" not in reader.plan.needs:
        return None
    catalyst = catalyst_ids(reader, dialogue, kind, question)
    reader.check_room(catalyst, reader.pot.pinned or len(dialogue.head()))
    if reader.last_catalyst is None and not reader.has_room_for(reader.pot, catalyst):
        reader.settle(before)
        return None
    return catalyst


def answer_catalyst(
    reader: Reader, dialogue: Dialogue, question: str | list[int] | None, *, aware: bool
) -> Tensor | None:
    """The catalyst for an answer: the question, or without one the latest catalyst.

    aware: the question may be the catalyst.
    """
    if not aware and reader.policy.catalyst != "question":
        question = None
    if not question and reader.last_catalyst is not None:
        return reader.last_catalyst
    return new_catalyst(reader, dialogue, question)


def catalyst_kind(reader: Reader, question: str | list[int] | None) -> str | None:
    """A kind from `catalysts.KINDS`, or the text of a prompt. None if the policy needs no catalyst.
    Raises ValueError for `question` without a question."""
    if not {"catalyst", "replay"} & reader.policy.needs():
        return None
    kind: str = reader.policy.catalyst or "question"
    if question is None:
        if reader.policy.catalyst is None:
            return "general"
        if kind == "question":
            raise ValueError(
                "catalyst='question' needs the question while reading: append(text, question=...); "
                "or use catalyst='general'"
            )
    return kind


def catalyst_ids(
    reader: Reader, dialogue: Dialogue, kind: str, question: str | list[int] | None
) -> Tensor:
    """Ids [1, |P|] of a catalyst of this kind, with its answer prefix; [2, |P|] with a contrast."""
    if kind == "plain":
        return reader.pot.newest
    prompt: str | list[int] = PROMPTS.get(kind, kind)
    if kind == "question" and question is not None:
        prompt = question
    if not isinstance(prompt, str):
        prompt = checked(prompt, reader.runner.vocabulary)
    prefix = reader.policy.answer_prefix
    if prefix is None:
        prefix = ANSWER_PREFIXES.get(kind, "")
    catalyst = reader.tensor(dialogue.catalyst(prompt) + dialogue.ids(prefix))
    contrast = reader.policy.contrast
    if contrast is None:
        return catalyst
    return contrasted(catalyst, reader.tensor(dialogue.catalyst(PROMPTS.get(contrast, contrast))))
