"""The server's ids are, one by one, those of a session and of the tokenizer's own chat template."""

from __future__ import annotations

from typing import Any

import pytest
from dialogues import ANSWERS, FORMS, QUESTIONS, assert_ids, form, said, whole

from infinipot import PotConfig
from infinipot.server.prompts import Prompts
from infinipot.server.schema import Message, TextPart
from infinipot.server.text_prompts import PotContext
from infinipot.text.chat_template import Dialogue
from infinipot.text.tokens import parts

CONFIG = PotConfig(pot_size=4096)
TEXT = "The keeper wrote down every ship"


def prompts_of(name: str) -> tuple[Any, Prompts, str]:
    tokenizer, answer = form(name)
    return tokenizer, Prompts(tokenizer, len(tokenizer)), answer


def told(questions: list[Any], system: str | None = None) -> list[Message]:
    messages = [Message(role="system", content=system)] if system else []
    for number, question in enumerate(questions):
        content = (
            question
            if isinstance(question, str)
            else [TextPart(type="text", text=part) for part in question]
        )
        messages.append(Message(role="user", content=content))
        if number < len(questions) - 1:
            messages.append(Message(role="assistant", content=ANSWERS[number]))
    return messages


def shown(name: str, tokenizer: Any, ids: list[int]) -> str:
    """Ids as a client sees them. SentencePiece's decoders leave out the space that its encoders put before a text."""
    if FORMS[name]["kind"] == "bytes":
        return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    text = "".join(tokenizer.convert_ids_to_tokens(ids)).replace("▁", " ")
    return text if FORMS[name]["kind"] == "plain" else text.removeprefix(" ")


@pytest.mark.parametrize("system", [None, "Be brief."])
@pytest.mark.parametrize("name", FORMS)
def test_a_conversation_is_what_the_template_makes_of_it(name: str, system: str | None) -> None:
    if system and FORMS[name].get("drops_system"):
        pytest.skip("this template has no place for a system prompt: tests/text/test_templates.py")
    tokenizer, prompts, _ = prompts_of(name)
    for count in range(1, len(QUESTIONS) + 1):
        got = prompts.chat(told(QUESTIONS[:count], system), CONFIG).ids
        assert_ids(tokenizer, got, whole(tokenizer, system, QUESTIONS[:count]))


@pytest.mark.parametrize("name", FORMS)
def test_answers_are_those_that_the_model_says(name: str) -> None:
    tokenizer, prompts, answer = prompts_of(name)
    prompt = prompts.chat(told(QUESTIONS[:1]), CONFIG)
    ids = said(tokenizer, None, QUESTIONS[:1], answer)
    text = shown(name, tokenizer, ids)
    assert_ids(tokenizer, prompts.answer_ids(text, prompt.place), ids)
    assert prompts.answer_ids("", prompt.place) == []


@pytest.mark.parametrize("name", FORMS)
def test_a_text_and_a_question_are_read_as_a_session_reads_them(name: str) -> None:
    tokenizer, prompts, answer = prompts_of(name)
    dialogue = Dialogue(tokenizer, None, True)
    expected = dialogue.head()
    turns = [[TEXT, QUESTIONS[0]], [TEXT, QUESTIONS[1]]]
    # the answer between them is the first of ANSWERS
    for count, (text, question) in enumerate(turns, 1):
        for ids in parts(text, tokenizer, len(tokenizer), dialogue.place)[0]:
            expected += dialogue.opening() + ids
            dialogue.in_text, dialogue.answered = True, False
        expected += dialogue.question(question)
        prompt = prompts.chat(told(turns[:count]), CONFIG)
        assert_ids(tokenizer, prompt.ids, expected)
        expected += said(tokenizer, None, [f"{text}\n\n{question}"], answer)
        dialogue.in_text, dialogue.answered = False, True


@pytest.mark.parametrize("name", FORMS)
def test_a_named_pot_and_a_question_about_it(name: str) -> None:
    tokenizer, prompts, _ = prompts_of(name)
    dialogue = Dialogue(tokenizer, None, True)
    (ids,) = parts(TEXT, tokenizer, len(tokenizer), dialogue.place)[0]
    assert_ids(tokenizer, prompts.first_ids(TEXT, None), ids)
    dialogue.in_text = True
    behind = PotContext(None, True, in_text=True, answered=False)
    assert_ids(
        tokenizer,
        prompts.chat(told(QUESTIONS[:1]), CONFIG, behind).ids,
        dialogue.question(QUESTIONS[0]),
    )
    dialogue.in_text, dialogue.answered = False, True
    behind = PotContext(None, True, in_text=False, answered=True)
    prompt = prompts.chat(told(QUESTIONS[:1]), CONFIG, behind)
    assert_ids(tokenizer, prompt.ids, dialogue.question(QUESTIONS[0]))
    assert prompt.opening == dialogue.opening()
