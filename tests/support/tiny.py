"""Tiny transformers models with random weights, the same on every machine and for every transformers version."""

from __future__ import annotations

from typing import Any

import torch

HIDDEN = 64
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def make_tiny(
    family: str,
    *,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    vocab: int = 97,
    seed: int = 0,
    tied: bool = False,
    hidden: int = HIDDEN,
) -> Any:
    """A float32 causal LM in eval mode; its heads attend to different tokens. The global RNG stays as it was."""
    import transformers as tf

    name = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family]
    options: dict[str, Any] = dict(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocab,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    if family == "qwen3":
        options["head_dim"] = hidden // heads  # its default, 128, is not derived from the others
    if family == "mistral":
        options["sliding_window"] = None
    with torch.random.fork_rng(devices=[]):
        model = (
            getattr(tf, f"{name}ForCausalLM")(getattr(tf, f"{name}Config")(**options))
            .float()
            .eval()
        )
    generator = torch.Generator().manual_seed(seed)
    for parameter_name, parameter in sorted(model.named_parameters()):
        # Attention logits spread by about 3 in all families: heads differ, and no row is one-hot or underflows
        if "norm" in parameter_name:
            low = 1.2 if parameter_name.endswith(("q_norm.weight", "k_norm.weight")) else 0.5
            values = low + torch.rand(parameter.shape, generator=generator)
        else:
            std = 0.2 if parameter_name.endswith(("q_proj.weight", "k_proj.weight")) else 0.3
            values = std * torch.randn(parameter.shape, generator=generator)
        parameter.data.copy_(values)
        parameter.requires_grad_(False)
    return model


TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer(
    template: str | None = TEMPLATE,
    bos: bool = False,
    size: int = 97,
    more: tuple[str, ...] = (),
) -> Any:
    """A byte-level tokenizer of `size` ids: printable ASCII by the byte, four special tokens and `more`, the chat template given. 100 ids have all
    of ASCII that can be printed."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    specials = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>", *more]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = ["Ġ", "Ċ", *(c for c in letters if ord(c) < 127)][
        : size - len(specials)
    ]  # space and newline, as the byte level writes them
    vocabulary = {token: number for number, token in enumerate([*specials, *printable])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    options: dict[str, Any] = {"additional_special_tokens": specials[1:], "eos_token": "<|end|>"}
    if bos:
        options["bos_token"] = "<|end|>"
        inner.post_processor = processors.TemplateProcessing(
            single="<|end|> $A", special_tokens=[("<|end|>", 0)]
        )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, **options)
    tokenizer.chat_template = template
    return tokenizer
