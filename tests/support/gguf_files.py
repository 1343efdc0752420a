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
