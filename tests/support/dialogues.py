"""Chat templates of several families, tokenizers that treat white space differently, and a conversation."""

from __future__ import annotations

import functools
from typing import Any

from infinipot.text.tokens import fragment

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
