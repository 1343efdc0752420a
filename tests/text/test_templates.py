"""Conversations read piece by piece are, id by id, what the tokenizer's own chat template makes of them."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from infinipot.text.chat_template import Dialogue
from infinipot.text.tokens import fragment, parts

WORDS = (
    "The keeper of the lighthouse wrote down every ship that passed. Which one did not answer? The Aurora did not answer the lamp.\n\n"
    "What did the keeper do then? She wrote it down, and lit the lamp again. Thank you! You are welcome. user assistant system model\n"
) * 20


@functools.cache
def tokenizer_of(kind: str, specials: tuple[str, ...]) -> Any:
    """A small BPE tokenizer, trained on WORDS. kind: `bytes` (as GPT-2's: newlines and spaces merge), `pieces` (as Llama-2's: a space is put
    before every text and behind every special token), `swallowing` (as Phi-3's: and special tokens take the white space behind them), `plain`
    (as Gemma's: no space is put anywhere)."""
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE(unk_token=None if kind == "bytes" else "<unk>"))
    if kind == "bytes":
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        spaces = normalizers.Replace(" ", "▁")
        inner.normalizer = (
            spaces if kind == "plain" else normalizers.Sequence([normalizers.Prepend("▁"), spaces])
        )
        newlines = Regex("\n+") if kind == "plain" else "\n"
        words = [
            pre_tokenizers.Split("▁", "merged_with_next"),
            pre_tokenizers.Split(newlines, "isolated"),
        ]
        inner.pre_tokenizer = pre_tokenizers.Sequence(words)
        alphabet = [chr(c) for c in range(33, 127)] + ["▁", "\n"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=["<unk>"], show_progress=False
    )
    inner.train_from_iterator([WORDS], trainer)
    if kind != "bytes":
        inner.pre_tokenizer = None
    inner.add_special_tokens(
        [
            AddedToken(token, rstrip=kind == "swallowing", special=True, normalized=False)
            for token in specials
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=specials[0], eos_token=specials[1]
    )


FORMS: dict[str, dict[str, Any]] = {
    "Llama-2": dict(
        kind="pieces",
        specials=("<s>", "</s>"),
        answer=" {}",
        template=(
            "{% if messages[0].role == 'system' %}{% set first = '<<SYS>>\\n' + messages[0].content + '\\n<</SYS>>\\n\\n' %}"
            "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
            "{% for m in rest %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ ((first if loop.first else '') + m.content) | trim }} [/INST]"
            "{% else %} {{ m.content | trim }} {{ eos_token }}{% endif %}{% endfor %}"
        ),
    ),
    "Llama-3": dict(
        kind="bytes",
        specials=("<|begin|>", "<|eot|>", "<|start_header|>", "<|end_header|>"),
        template=(
            "{{ bos_token }}{% for m in messages %}<|start_header|>{{ m.role }}<|end_header|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
            "{% if add_generation_prompt %}<|start_header|>assistant<|end_header|>\n\n{% endif %}"
        ),
    ),
    "Mistral": dict(
        kind="pieces",
        specials=("<s>", "</s>", "[INST]", "[/INST]"),
        answer=" {}",
        drops_system=True,
        template=(
            "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{{ bos_token }}"
            "{% for m in rest %}{% if m.role == 'user' %}[INST] {% if loop.last and rest != messages %}{{ messages[0].content }}\n\n{% endif %}"
            "{{ m.content }}[/INST]{% else %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"
        ),
    ),
    "ChatML": dict(
        kind="bytes",
        specials=("<|endoftext|>", "<|im_end|>", "<|im_start|>"),
        template=(
            "{% if messages[0].role != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}"
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        ),
    ),
    "Phi-3": dict(
        kind="swallowing",
        specials=("<s>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"),
        template=(
            "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
        ),
    ),
    "Gemma": dict(
        kind="plain",
        specials=("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        drops_system=True,
        template=(
            "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
            "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
            "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
        ),
    ),
    "GLM-4": dict(
        kind="bytes",
        specials=("[gMASK]", "<|endoftext|>", "<sop>", "<|user|>", "<|assistant|>", "<|system|>"),
        template=(
            "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
        ),
    ),
    "Cohere": dict(
        kind="bytes",
        specials=(
            "<BOS>",
            "<|END_OF_TURN|>",
            "<|START_OF_TURN|>",
            "<|USER|>",
            "<|CHATBOT|>",
            "<|SYSTEM|>",
        ),
        template=(
            "{{ bos_token }}{% set names = {'user': '<|USER|>', 'assistant': '<|CHATBOT|>', 'system': '<|SYSTEM|>'} %}"
            "{% for m in messages %}<|START_OF_TURN|>{{ names[m.role] }}{{ m.content | trim }}<|END_OF_TURN|>{% endfor %}"
            "{% if add_generation_prompt %}<|START_OF_TURN|><|CHATBOT|>{% endif %}"
        ),
    ),
}
QUESTIONS = [
    "Which one did not answer?",
    "  What did the keeper do then? ",
    "Thank you!",
    "You are welcome\nuser",
]
ANSWERS = [
    "The Aurora did not answer the lamp.",
    "She wrote it down, and lit the lamp again.",
    "You are welcome.",
]


def form(name: str) -> tuple[Any, str]:
    given = FORMS[name]
    tokenizer = tokenizer_of(given["kind"], given["specials"])
    tokenizer.chat_template = given["template"]
    return tokenizer, given.get("answer", "{}")


def whole(tokenizer: Any, system: str | None, questions: list[str], **options: Any) -> Any:
    messages = [{"role": "system", "content": system}] if system else []
    for number, question in enumerate(questions):
        messages.append({"role": "user", "content": question})
        if number < len(questions) - 1:
            messages.append({"role": "assistant", "content": ANSWERS[number]})
    return tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False, **options
    )


def said(tokenizer: Any, system: str | None, questions: list[str], answer: str) -> list[int]:
    """The ids with which a model answers: those that the answer has where it stands."""
    return fragment(
        tokenizer,
        answer.format(ANSWERS[len(questions) - 1]),
        whole(tokenizer, system, questions, tokenize=False),
    )


def assert_ids(tokenizer: Any, got: list[int], expected: list[int]) -> None:
    assert [tokenizer.convert_ids_to_tokens(i) for i in got] == [
        tokenizer.convert_ids_to_tokens(i) for i in expected
    ]


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
