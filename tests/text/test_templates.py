"""Conversations read piece by piece are, id by id, what the tokenizer's own chat template makes of them."""

from __future__ import annotations

import pytest
from dialogues import FORMS, QUESTIONS, WORDS, assert_ids, form, said, whole

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


QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where Qwen's tokenizer cuts texts into words."""


def test_where_a_text_and_its_question_meet() -> None:
    """Punctuation and newlines are one token in the whole conversation, and two in a pot, which reads the text before the question comes."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<|im_end|>", "<|im_start|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=specials, show_progress=False
    )
    inner.train_from_iterator([WORDS, "a\n\nb" * 100], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=specials[0])
    tokenizer.chat_template = FORMS["ChatML"]["template"]
    apart = tokenizer.encode(".") + tokenizer.encode("\n\n")
    together = tokenizer.encode(".\n\n")
    assert (len(apart), len(together)) == (2, 1)

    def read(text: str) -> list[int]:
        dialogue = Dialogue(tokenizer, None, True)
        ids = dialogue.head()
        lists, _ = parts(text, tokenizer, len(tokenizer), dialogue.place)
        ids += [i for part in lists for i in part]
        dialogue.in_text = True
        return ids + dialogue.question("Which one?")

    def asked(text: str) -> list[int]:
        dialogue = Dialogue(tokenizer, None, True)
        return dialogue.head() + dialogue.question(f"{text}\n\nWhich one?")

    for text in ("It was the Aurora", "It was the Aurora in 1910", "It was the Aurora."):
        expected = whole(tokenizer, None, [f"{text}\n\nWhich one?"])
        assert_ids(tokenizer, asked(text), expected)
        if text.endswith("."):
            start = expected.index(together[0])
            expected[start : start + 1] = apart
        assert_ids(tokenizer, read(text), expected)


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
