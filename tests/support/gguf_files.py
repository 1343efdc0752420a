"""GGUF files written for tests: two kinds of tokenizer, and a random Llama of one layer."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

CONTROL, USER_DEFINED, NORMAL, UNKNOWN, BYTE = 3, 4, 1, 2, 6


def write(
    path: Path,
    kind: str,
    tokens: list[str],
    types: list[int],
    *,
    arch: str = "llama",
    tensors: bool = False,
    **fields,
) -> Path:
    """A GGUF file; fields: metadata under tokenizer.ggml., lists or single values. tensors: a random one-layer Llama."""
    out = gguf.GGUFWriter(path, arch)
    out.add_tokenizer_model(kind)
    out.add_token_list(tokens)
    out.add_token_types(types)
    for name, value in fields.items():
        if name == "merges":
            out.add_token_merges(value)
        elif name == "scores":
            out.add_token_scores(value)
        elif name == "chat_template":
            out.add_chat_template(value)
        elif isinstance(value, bool):
            out.add_bool(f"tokenizer.ggml.{name}", value)
        elif isinstance(value, str):
            out.add_string(f"tokenizer.ggml.{name}", value)
        else:
            out.add_uint32(f"tokenizer.ggml.{name}", value)
    hidden, inner, rows = 32, 64, len(tokens)
    out.add_context_length(64)
    out.add_embedding_length(hidden)
    out.add_block_count(1)
    out.add_feed_forward_length(inner)
    out.add_head_count(4)
    out.add_head_count_kv(2)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(8)
    out.add_vocab_size(rows)
    shapes = {"token_embd": (rows, hidden), "output_norm": (hidden,), "output": (rows, hidden)}
    shapes |= {f"blk.0.{name}": (hidden,) for name in ("attn_norm", "ffn_norm")}
    shapes |= {"blk.0.attn_q": (hidden, hidden), "blk.0.attn_output": (hidden, hidden)}
    shapes |= {"blk.0.attn_k": (16, hidden), "blk.0.attn_v": (16, hidden)}
    shapes |= {
        "blk.0.ffn_gate": (inner, hidden),
        "blk.0.ffn_up": (inner, hidden),
        "blk.0.ffn_down": (hidden, inner),
    }
    numbers = np.random.default_rng(0)
    for name, shape in shapes.items() if tensors else ():
        out.add_tensor(f"{name}.weight", numbers.standard_normal(shape, dtype=np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def byte_level(path: Path, pre: str = "smollm", **fields) -> Path:
    tokens = [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<tool>",
        *sorted(ByteLevel.alphabet()),
        "ĠĠ",
        "th",
        "the",
        "Ġthe",
        "Ġt",
        "Ġ1",
    ]
    types = [CONTROL] * 3 + [USER_DEFINED] + [NORMAL] * (len(tokens) - 4)
    ids = {"bos_token_id": 1, "eos_token_id": 2, "padding_token_id": 2, "unknown_token_id": 0}
    merges = ["Ġ Ġ", "t h", "th e", "Ġ 1"]  # "Ġthe" can be reached by none
    return write(path, "gpt2", tokens, types, pre=pre, merges=merges, **{**ids, **fields})


def sentencepiece(path: Path, **fields) -> Path:
    pieces = ["▁", "a", "b", "c", "ab", "bc", "▁a", "▁ab"]
    tokens = [
        "<pad>",
        "<eos>",
        "<bos>",
        "<unk>",
        "<start_of_turn>",
        "<end_of_turn>",
        "\n\n",
        "  ",
        "   ",
    ]
    types = [CONTROL] * 3 + [UNKNOWN] + [CONTROL] * 2 + [USER_DEFINED] * 3
    tokens += [f"<0x{byte:02X}>" for byte in range(256)] + pieces
    types += [BYTE] * 256 + [NORMAL] * len(pieces)
    scores = [0.0] * (len(tokens) - len(pieces)) + [-9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0, -4.0]
    ids = {"bos_token_id": 2, "eos_token_id": 1, "padding_token_id": 0, "unknown_token_id": 3}
    return write(path, "llama", tokens, types, pre="default", scores=scores, **{**ids, **fields})


def permuted(weights: np.ndarray, heads: int) -> np.ndarray:
    """The rows of queries or keys as llama.cpp's converter orders them: neighbours are a pair."""
    halves = weights.reshape(heads, 2, -1, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def tensors_of(model, arch: str, permute: bool, shift: bool) -> dict[str, np.ndarray]:
    """The weights of a transformers model as llama.cpp's converter names and orders them."""
    kind = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, model.config.num_hidden_layers)
    tensors = {}
    for own, weight in model.named_parameters():
        values = weight.detach().float().numpy()
        block = f"blk.{own.split('.')[2]}" if ".layers." in own else ""
        if own.endswith("experts.gate_up_proj"):
            gate, up = np.split(values, 2, axis=1)
            tensors |= {
                f"{block}.ffn_gate_exps.weight": gate.copy(),
                f"{block}.ffn_up_exps.weight": up.copy(),
            }
            continue
        if own.endswith("experts.down_proj"):
            name = f"{block}.ffn_down_exps.weight"
        else:
            name = names.get_name(own, try_suffixes=(".weight", ".bias"))
        assert name, own
        if permute and ".attn_q." in name:
            values = permuted(values, model.config.num_attention_heads)
        if permute and ".attn_k." in name:
            values = permuted(values, model.config.num_key_value_heads)
        if shift and name.endswith("norm.weight"):
            values = values + 1
        tensors[name] = values.squeeze() if "shexp" in name and "inp" in name else values
    return tensors


def write_model(
    path: Path, arch: str, tensors: dict[str, np.ndarray], keys: dict[str, object]
) -> Path:
    """A GGUF file with a vocabulary of 97 bytes and letters, these tensors, and these keys of the architecture."""
    out = gguf.GGUFWriter(path, arch)
    tokens = ["<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet())[:95]]
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("smollm")
    out.add_token_list(tokens)
    out.add_token_types([CONTROL] * 2 + [NORMAL] * 95)
    for name, value in keys.items():
        key = f"{arch}.{name}"
        if isinstance(value, bool):
            out.add_bool(key, value)
        elif isinstance(value, str):
            out.add_string(key, value)
        elif isinstance(value, list):
            out.add_array(key, value)
        elif isinstance(value, float):
            out.add_float32(key, value)
        else:
            out.add_uint32(key, value)
    for name, values in tensors.items():
        out.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path
