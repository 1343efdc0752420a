"""Every key of a GGUF file that changes numbers is read, as transformers computes with the same weights, or refused.

Each row builds a random transformers model with an option, writes its weights and the keys that say the option, and
reads the file again. Where the option is left out, the logits differ: so the row would fail if the key were passed over.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from gguf_files import tensors_of, write_model

from infinipot.model.gguf import load_gguf

IDS = torch.arange(2, 42)[None]
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "head_dim": 8,
    "rope_parameters": {"rope_theta": 5e4, "rope_type": "default"},
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
KEYS: dict[str, Any] = {
    "context_length": 256,
    "block_count": 4,
    "embedding_length": 32,
    "feed_forward_length": 48,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "rope.freq_base": 5e4,
}
RMS = {"attention.layer_norm_rms_epsilon": 1e-6}
LAYER = {"attention.layer_norm_epsilon": 1e-6}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
EXPERT_KEYS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 24}
HALF = {"rope_theta": 5e4, "rope_type": "default", "partial_rotary_factor": 0.5}
TIED = {"tie_word_embeddings": True}
SCALES = {**TIED, "query_pre_attn_scalar": 8, "sliding_window": 16, "rms_norm_eps": 1e-6}
# architecture -> transformers' type, its options, keys of the file, permuted, norms plus one
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], dict[str, Any], bool, bool]] = {
    "llama": ("llama", {"rms_norm_eps": 1e-6}, RMS, True, False),
    "mistral": (
        "mistral",
        {"rms_norm_eps": 1e-6, "sliding_window": 16},
        {**RMS, "attention.sliding_window": 16},
        True,
        False,
    ),
    "mixtral": (
        "mixtral",
        {"rms_norm_eps": 1e-6, "num_local_experts": 4, "num_experts_per_tok": 2},
        {**RMS, "expert_count": 4, "expert_used_count": 2},
        True,
        False,
    ),
    "qwen2": ("qwen2", {"rms_norm_eps": 1e-6}, RMS, False, False),
    "qwen3": ("qwen3", {"rms_norm_eps": 1e-6}, RMS, False, False),
    "qwen2moe": (
        "qwen2_moe",
        {**EXPERTS, "shared_expert_intermediate_size": 40},
        {**RMS, **EXPERT_KEYS, "expert_shared_feed_forward_length": 40},
        False,
        False,
    ),
    "qwen3moe": (
        "qwen3_moe",
        {**EXPERTS, "norm_topk_prob": True},
        {**RMS, **EXPERT_KEYS},
        False,
        False,
    ),
    "phi3": (
        "phi3",
        {"rms_norm_eps": 1e-6, "sliding_window": 16},
        {**RMS, "attention.sliding_window": 16, "rope.scaling.original_context_length": 256},
        False,
        False,
    ),
    "gemma": (
        "gemma",
        {"rms_norm_eps": 1e-6, **TIED},
        {**RMS, "attention.key_length": 8},
        False,
        True,
    ),
    "gemma2": (
        "gemma2",
        {**SCALES, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
        {
            **RMS,
            "attention.sliding_window": 16,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
        False,
        True,
    ),
    "gemma3": (
        "gemma3_text",
        {
            **SCALES,
            "rope_parameters": {
                "full_attention": {"rope_theta": 5e4, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
            },
        },
        {**RMS, "attention.sliding_window": 16},
        False,
        True,
    ),
    "stablelm": (
        "stablelm",
        {"layer_norm_eps": 1e-6, "rope_parameters": HALF, "use_qkv_bias": True},
        {**LAYER, "rope.dimension_count": 4},
        False,
        False,
    ),
    "starcoder2": ("starcoder2", {"norm_epsilon": 1e-6}, LAYER, False, False),
    "nemotron": (
        "nemotron",
        {"norm_eps": 1e-6, "rope_parameters": HALF},
        {**LAYER, "rope.dimension_count": 4},
        False,
        True,
    ),
    "granite": (
        "granite",
        {
            "rms_norm_eps": 1e-6,
            "attention_multiplier": 0.5,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.25,
            "logits_scaling": 4.0,
        },
        {
            **RMS,
            "attention.scale": 0.5,
            "embedding_scale": 3.0,
            "residual_scale": 0.25,
            "logit_scale": 4.0,
        },
        True,
        False,
    ),
    "smollm3": ("smollm3", {"rms_norm_eps": 1e-6}, RMS, True, False),
    "olmo2": ("olmo2", {"rms_norm_eps": 1e-6}, RMS, False, False),
    "command-r": (
        "cohere",
        {**TIED, "layer_norm_eps": 1e-6, "logit_scale": 0.5},
        {**LAYER, "logit_scale": 0.5},
        False,
        False,
    ),
    "cohere2": (
        "cohere2",
        {**TIED, "layer_norm_eps": 1e-6, "logit_scale": 0.5, "sliding_window": 16},
        {**LAYER, "logit_scale": 0.5, "attention.sliding_window": 16},
        False,
        False,
    ),
}


def random_model(kind: str, options: dict[str, Any]) -> Any:
    config = tf.AutoConfig.for_model(kind, **{**SIZES, **options})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = tf.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        for name, weight in model.named_parameters():
            scale = 0.5 if weight.dim() > 1 else 0.2
            centre = 1.0 if "norm" in name and weight.dim() == 1 else 0.0
            weight.data.normal_(centre, scale)
    return model


def file_of(path: Path, arch: str, kind: str, model: Any, keys: dict[str, Any], more: dict) -> Path:
    _, _, _, permute, shift = ARCHITECTURES[arch]
    own = {"mistral": "llama", "mixtral": "llama"}.get(arch, arch)
    tensors = {**tensors_of(model, own, permute, shift), **more}
    return write_model(path, own, tensors, {**KEYS, **keys})


@torch.no_grad()
def error(model: Any, other: Any) -> float:
    """The largest difference of logits, relative to the largest logit."""
    ours = model(IDS).logits
    theirs = other(IDS).logits
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_architectures(tmp_path: Path, arch: str) -> None:
    kind, options, keys, _, _ = ARCHITECTURES[arch]
    model = random_model(kind, options)
    path = file_of(tmp_path / "m.gguf", arch, kind, model, keys, {})
    loaded, _ = load_gguf(path, dtype=torch.float32)
    assert type(loaded) is type(model)
    loaded.set_attn_implementation("eager")
    assert error(loaded, model) < 1e-5


def rope(**fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 5e4, **fields}}


def yarn(**fields: Any) -> dict[str, Any]:
    common = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    return rope(**{**common, **fields})


YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
SHORT = [1.0, 1.5, 2.0, 3.0]
LONG = [1.0, 3.0, 5.0, 9.0]


def llama3_factors() -> list[float]:
    """As llama.cpp's converter computes them from Llama 3.1's config."""
    factors = []
    for i in range(0, 8, 2):
        wavelength = 2 * math.pi * 5e4 ** (i / 8)
        if wavelength < 16 / 4.0:
            factors.append(1.0)
        elif wavelength > 16 / 1.0:
            factors.append(8.0)
        else:
            smooth = (16 / wavelength - 1.0) / (4.0 - 1.0)
            factors.append(1 / ((1 - smooth) / 8.0 + smooth))
    return factors


def longrope(**fields: Any) -> dict[str, Any]:
    factors = {"short_factor": SHORT, "long_factor": LONG, "rope_type": "longrope"}
    original = {"original_max_position_embeddings": fields.pop("original", 16)}
    return {**rope(**factors, **original, **fields), **original}


LONG_TENSORS = {"rope_factors_short.weight": SHORT, "rope_factors_long.weight": LONG}
KINDS = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
LOCAL = {"rope_theta": 3e3, "rope_type": "default"}
# row -> architecture, options of transformers, keys, tensors
ROWS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, list[float]]]] = {
    "rope_freqs.weight": ("llama", rope(**LLAMA3), {}, {"rope_freqs.weight": llama3_factors()}),
    "rope.freq_base": (
        "llama",
        rope(rope_theta=3e3, rope_type="default"),
        {"rope.freq_base": 3e3},
        {},
    ),
    "rope.scaling.factor": (
        "llama",
        rope(rope_type="linear", factor=4.0),
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        {},
    ),
    "rope.scaling.factor alone": (
        "qwen2",
        rope(rope_type="linear", factor=4.0),
        {"rope.scaling.factor": 4.0},
        {},
    ),
    "rope.scale_linear": (
        "llama",
        rope(rope_type="linear", factor=4.0),
        {"rope.scale_linear": 4.0},
        {},
    ),
    "rope.scaling.type yarn": ("qwen2", yarn(), YARN, {}),
    "rope.scaling.original_context_length": (
        "qwen3",
        yarn(original_max_position_embeddings=256),
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
        {},
    ),
    "rope.scaling.attn_factor": (
        "llama",
        yarn(attention_factor=1.5 * (1 + 0.1 * math.log(4))),
        {**YARN, "rope.scaling.attn_factor": 1.5},
        {},
    ),
    "rope.scaling.yarn_log_multiplier": (
        "llama",
        yarn(mscale=1.0, mscale_all_dim=0.5),
        {**YARN, "rope.scaling.yarn_log_multiplier": 0.5},
        {},
    ),
    "rope.scaling.yarn_beta_fast": (
        "llama",
        yarn(beta_fast=4.0, beta_slow=2.0),
        {**YARN, "rope.scaling.yarn_beta_fast": 4.0, "rope.scaling.yarn_beta_slow": 2.0},
        {},
    ),
    "rope_factors_long.weight": (
        "phi3",
        longrope(attention_factor=1.25),
        {"rope.scaling.original_context_length": 16, "rope.scaling.attn_factor": 1.25},
        LONG_TENSORS,
    ),
    "rope_factors_short.weight": (
        "phi3",
        longrope(attention_factor=1.0, original=128),
        {"rope.scaling.original_context_length": 128},
        LONG_TENSORS,
    ),
    "rope.dimension_count": (
        "phi3",
        rope(rope_type="default", partial_rotary_factor=0.5),
        {"rope.dimension_count": 4},
        {},
    ),
    "rope.freq_base_swa": (
        "gemma3",
        {
            "rope_parameters": {
                "full_attention": {"rope_theta": 5e4, "rope_type": "linear", "factor": 8.0},
                "sliding_attention": LOCAL,
            }
        },
        {"rope.freq_base_swa": 3e3, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
        {},
    ),
    "attention.sliding_window": (
        "mistral",
        {"sliding_window": 4},
        {"attention.sliding_window": 4},
        {},
    ),
    "attention.sliding_window (all layers)": (
        "qwen2",
        {"sliding_window": 4, "use_sliding_window": True, "layer_types": ["sliding_attention"] * 4},
        {"attention.sliding_window": 4},
        {},
    ),
    "attention.sliding_window_pattern": (
        "gemma2",
        {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2},
        {"attention.sliding_window_pattern": 3, "block_count": 6},
        {},
    ),
    "attention.sliding_window_pattern (list)": (
        "cohere2",
        {"layer_types": KINDS},
        {"attention.sliding_window_pattern": [True, False, False, True]},
        {},
    ),
    "attention.key_length": (
        "llama",
        {"head_dim": 16},
        {"attention.key_length": 16, "attention.value_length": 16, "rope.dimension_count": 16},
        {},
    ),
    "attention.layer_norm_rms_epsilon": (
        "llama",
        {"rms_norm_eps": 0.5},
        {"attention.layer_norm_rms_epsilon": 0.5},
        {},
    ),
    "attention.layer_norm_epsilon": (
        "stablelm",
        {"layer_norm_eps": 0.5},
        {"attention.layer_norm_epsilon": 0.5},
        {},
    ),
    "attention.scale": ("granite", {"attention_multiplier": 0.125}, {"attention.scale": 0.125}, {}),
    "attention.scale (gemma)": (
        "gemma2",
        {"query_pre_attn_scalar": 64},
        {"attention.scale": 0.125},
        {},
    ),
    "embedding_scale": ("granite", {"embedding_multiplier": 9.0}, {"embedding_scale": 9.0}, {}),
    "residual_scale": ("granite", {"residual_multiplier": 0.75}, {"residual_scale": 0.75}, {}),
    "logit_scale": ("granite", {"logits_scaling": 16.0}, {"logit_scale": 16.0}, {}),
    "logit_scale (cohere)": ("command-r", {"logit_scale": 0.25}, {"logit_scale": 0.25}, {}),
    "attn_logit_softcapping": (
        "gemma2",
        {"attn_logit_softcapping": 0.5},
        {"attn_logit_softcapping": 0.5},
        {},
    ),
    "final_logit_softcapping": (
        "gemma3",
        {"final_logit_softcapping": 1.5},
        {"final_logit_softcapping": 1.5},
        {},
    ),
    "attention.head_count_kv": (
        "llama",
        {"num_key_value_heads": 4},
        {"attention.head_count_kv": [4, 4, 4, 4]},
        {},
    ),
    "feed_forward_length": (
        "llama",
        {"intermediate_size": 64},
        {"feed_forward_length": [64, 64, 64, 64]},
        {},
    ),
    "expert_used_count": ("qwen3moe", {"num_experts_per_tok": 3}, {"expert_used_count": 3}, {}),
    "expert_weights_norm": (
        "qwen2moe",
        {"norm_topk_prob": True},
        {"expert_weights_norm": True},
        {},
    ),
    "attn_q.bias": ("llama", {"attention_bias": True, "mlp_bias": True}, {}, {}),
    "ffn_norm.weight": ("stablelm", {"use_parallel_residual": True}, {}, {}),
}


@pytest.mark.parametrize("row", ROWS)
def test_keys_that_are_read(tmp_path: Path, row: str) -> None:
    arch, options, keys, more = ROWS[row]
    kind, usual, usual_keys, _, _ = ARCHITECTURES[arch]
    options = {**usual, **options, "num_hidden_layers": keys.get("block_count", 4)}
    model = random_model(kind, options)
    tensors = {name: np.array(values) for name, values in more.items()}
    path = file_of(tmp_path / "m.gguf", arch, kind, model, {**usual_keys, **keys}, tensors)
    loaded, _ = load_gguf(path, dtype=torch.float32)
    loaded.set_attn_implementation("eager")
    assert error(loaded, model) < 1e-5
    try:
        plain = file_of(tmp_path / "n.gguf", arch, kind, model, usual_keys, {})
        other, _ = load_gguf(plain, dtype=torch.float32)
    except ValueError:
        return  # without the key the weights do not even fit
    if set(keys) or more:
        assert error(other, model) > 1e-3


REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, list[float]]]] = {
    "rope.scaling.type": ("llama", {"rope.scaling.type": "ntk"}, {}),
    "rope.scaling.attn_factor": ("llama", {"rope.scaling.attn_factor": 1.5}, {}),
    "rope.scaling.yarn_ext_factor": ("llama", {**YARN, "rope.scaling.yarn_ext_factor": 0.5}, {}),
    "rope.scaling.yarn_attn_factor": ("llama", {**YARN, "rope.scaling.yarn_attn_factor": 0.5}, {}),
    "rope.scaling.alpha": ("llama", {"rope.scaling.alpha": 1000.0}, {}),
    "rope.dimension_count": ("llama", {"rope.dimension_count": 4}, {}),
    "rope.dimension_sections": ("qwen2", {"rope.dimension_sections": [1, 1, 2, 0]}, {}),
    "rope.freq_base_swa": ("gemma2", {"rope.freq_base_swa": 3e3}, {}),
    "attention.value_length": ("llama", {"attention.value_length": 16}, {}),
    "attention.head_count_kv": ("llama", {"attention.head_count_kv": [1, 2, 2, 2]}, {}),
    "feed_forward_length": ("llama", {"feed_forward_length": [48, 48, 48, 64]}, {}),
    "attention.sliding_window": ("granite", {"attention.sliding_window": 16}, {}),
    "attention.sliding_window_pattern": ("mistral", {"attention.sliding_window_pattern": 2}, {}),
    "attention.clamp_kqv": ("llama", {"attention.clamp_kqv": 8.0}, {}),
    "attention.max_alibi_bias": ("llama", {"attention.max_alibi_bias": 8.0}, {}),
    "attention.causal": ("llama", {"attention.causal": False}, {}),
    "attention.scale": ("llama", {"attention.scale": 0.5}, {}),
    "attention.temperature_scale": ("llama", {"attention.temperature_scale": 0.1}, {}),
    "attn_logit_softcapping": ("llama", {"attn_logit_softcapping": 50.0}, {}),
    "final_logit_softcapping": ("qwen2", {"final_logit_softcapping": 30.0}, {}),
    "logit_scale": ("llama", {"logit_scale": 2.0}, {}),
    "embedding_scale": ("llama", {"embedding_scale": 12.0}, {}),
    "residual_scale": ("llama", {"residual_scale": 0.2}, {}),
    "expert_gating_func": ("qwen3moe", {"expert_gating_func": 2}, {}),
    "expert_weights_scale": ("qwen3moe", {"expert_weights_scale": 2.5}, {}),
    "expert_shared_count": ("qwen3moe", {"expert_shared_count": 1}, {}),
    "leading_dense_block_count": ("qwen3moe", {"leading_dense_block_count": 1}, {}),
    "nextn_predict_layers": ("qwen3", {"nextn_predict_layers": 1}, {}),
    "no.such.key": ("llama", {"no.such.key": 3}, {}),
}


@pytest.fixture(scope="module")
def plain_models() -> dict[str, Any]:
    archs = {arch for arch, _, _ in REFUSED.values()}
    return {
        arch: random_model(ARCHITECTURES[arch][0], ARCHITECTURES[arch][1]) for arch in sorted(archs)
    }


@pytest.mark.parametrize("row", REFUSED)
def test_keys_that_are_refused(tmp_path: Path, plain_models: dict[str, Any], row: str) -> None:
    arch, keys, more = REFUSED[row]
    kind, _, usual, _, _ = ARCHITECTURES[arch]
    own = {"mistral": "llama"}.get(arch, arch)
    path = file_of(tmp_path / "m.gguf", arch, kind, plain_models[arch], {**usual, **keys}, more)
    with pytest.raises(ValueError, match=rf"m.gguf: {own}\.{row} is .*not known here.*Hub folder"):
        load_gguf(path, dtype=torch.float32)


def test_tensors_that_do_not_fit(tmp_path: Path) -> None:
    model = random_model("llama", {})
    tensors = tensors_of(model, "llama", True, False)
    keys = {**KEYS, **RMS}
    norm = "blk.3.attn_norm.weight"
    for changed, other_keys, message in (
        ({}, {"block_count": 3}, r"left over: blk.3.attn_k.weight"),
        ({}, {"block_count": 5}, r"missing: blk.4.attn_k.weight"),
        ({}, {"attention.head_count_kv": 4}, r"wrong shapes: blk.0.attn_k.weight is \[16, 32\]"),
        ({"more.weight": np.ones(3)}, {}, "left over: more.weight"),
        ({norm: np.ones(31)}, {}, rf"{norm} is \[31\] instead of \[32\]"),
        ({"rope_freqs.weight": np.ones(3)}, {}, "rope_freqs.weight.* must hold 4 numbers"),
    ):
        path = write_model(
            tmp_path / "m.gguf", "llama", {**tensors, **changed}, {**keys, **other_keys}
        )
        with pytest.raises(ValueError, match=message):
            load_gguf(path, dtype=torch.float32)
    del tensors[norm]
    path = write_model(tmp_path / "m.gguf", "llama", tensors, keys)
    with pytest.raises(ValueError, match=f"missing: {norm}"):
        load_gguf(path, dtype=torch.float32)
    for key in ("block_count", "context_length"):
        path = write_model(
            tmp_path / "m.gguf", "llama", tensors, {k: v for k, v in keys.items() if k != key}
        )
        with pytest.raises(ValueError, match=f"llama.{key} is missing"):
            load_gguf(path, dtype=torch.float32)
