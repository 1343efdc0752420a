"""Conversations read piece by piece are, id by id, what the tokenizer's own chat template makes of them."""

from __future__ import annotations

import pytest
from dialogues import FORMS, QUESTIONS, assert_ids, form, said, whole

from infinipot.text.chat_template import Dialogue
from infinipot.text.tokens import parts


@pytest.mark.parametrize("system", [None, "Be brief."])
@pytest.mark.parametrize("name", FORMS)
def test_turns_are_the_conversation(name: str, system: str | None) -> None:
    tokenizer, answer = form(name)
    if system and FORMS[name].get("drops_system"):
        with pytest.raises(ValueError, match="system prompt"):
            Dialogue(tokenizer, system, True)
        return
    dialogue = Dialogue(tokenizer, system, True)
    got = dialogue.head()
    for count, question in enumerate(QUESTIONS, 1):
        got += dialogue.question(question)
        assert_ids(tokenizer, got, whole(tokenizer, system, QUESTIONS[:count]))
        if count < len(QUESTIONS):
            got += said(tokenizer, system, QUESTIONS[:count], answer)
            dialogue.answered = True


@pytest.mark.parametrize("name", FORMS)
def test_a_text_in_pieces_and_the_question_about_it(name: str) -> None:
    tokenizer, answer = form(name)
    dialogue = Dialogue(tokenizer, None, True)
    got, texts = (
        dialogue.head(),
        ["The keeper wrote down every ship", "The Aurora did not answer the lamp"],
    )
    asked = []
    for text, question in zip(texts, QUESTIONS, strict=False):
        lists, _ = parts(iter([text[:7], text[7:]]), tokenizer, len(tokenizer), dialogue.place)
        for ids in lists:
            got += dialogue.opening() + ids
            dialogue.in_text, dialogue.answered = True, False
        got += dialogue.question(question)
        asked.append(f"{text}\n\n{question}")
        assert_ids(tokenizer, got, whole(tokenizer, None, asked))
        got += said(tokenizer, None, asked, answer)
        dialogue.in_text, dialogue.answered = False, True


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("Llama-3", "<|eot|>"),
        ("ChatML", "<|im_end|>"),
        ("Gemma", "<end_of_turn>"),
        ("GLM-4", "<|user|>"),
        ("Phi-3", "<|end|>"),
    ],
)
def test_answers_end_where_the_template_ends_them(name: str, end: str) -> None:
    tokenizer, _ = form(name)
    assert Dialogue(tokenizer, None, True).ends() == {tokenizer.convert_tokens_to_ids(end)}


def test_a_template_that_rewrites_what_users_write_is_refused() -> None:
    tokenizer, _ = form("ChatML")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content | upper }}{% endfor %}"
    with pytest.raises(ValueError, match="changes what users write"):
        Dialogue(tokenizer, None, True)
