"""The architectures that are read from GGUF files, and their keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RMS = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
QUERIES = "blk.0.attn_q.bias"


@dataclass(frozen=True)
class Architecture:
    """How the keys and tensors of an architecture are read."""

    model_type: str
    """transformers' name of it."""
    fields: Mapping[str, str] = field(default_factory=lambda: RMS)
    """Keys that only some architectures have -> fields of the config."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Fields of the config that are true if the file has this tensor."""
    permuted: bool = False
    """Whether the rows of queries and keys are in the order of neighbouring pairs."""
    shifted_norms: bool = False
    """Whether the file holds the weights of norms plus one."""
    partial: bool = False
    """Whether a part of each head may stay without rotation."""
    windows: str = ""
    """`all`: all layers may have a sliding window. `layers`: some of them may, as `layer_types`
    says."""


BIASES = {"attention_bias": QUERIES, "mlp_bias": "blk.0.ffn_up.bias"}
EXPERTS = {
    **RMS,
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_weights_norm": "norm_topk_prob",
}
CAPS = {
    **RMS,
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
LAYER_NORM = "attention.layer_norm_epsilon"
ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", flags=BIASES, permuted=True),
    "mistral": Architecture("mistral", permuted=True, windows="all"),
    "mixtral": Architecture(
        "mixtral",
        {
            **RMS,
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
        },
        permuted=True,
        windows="all",
    ),
    "qwen2": Architecture("qwen2", windows="layers"),
    "qwen2moe": Architecture(
        "qwen2_moe",
        {**EXPERTS, "expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
    ),
    "qwen3": Architecture("qwen3", flags={"attention_bias": QUERIES}, windows="layers"),
    "qwen3moe": Architecture("qwen3_moe", EXPERTS, {"attention_bias": QUERIES}),
    "phi3": Architecture("phi3", partial=True, windows="all"),
    "gemma": Architecture("gemma", shifted_norms=True),
    "gemma2": Architecture("gemma2", CAPS, shifted_norms=True, windows="layers"),
    "gemma3": Architecture("gemma3_text", CAPS, shifted_norms=True, windows="layers"),
    "stablelm": Architecture(
        "stablelm", {LAYER_NORM: "layer_norm_eps"}, {"use_qkv_bias": QUERIES}, partial=True
    ),
    "starcoder2": Architecture(
        "starcoder2", {LAYER_NORM: "norm_epsilon"}, {"use_bias": QUERIES}, windows="all"
    ),
    "nemotron": Architecture(
        "nemotron", {LAYER_NORM: "norm_eps"}, BIASES, shifted_norms=True, partial=True
    ),
    "granite": Architecture(
        "granite",
        {
            **RMS,
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
        BIASES,
        permuted=True,
    ),
    "smollm3": Architecture("smollm3", flags=BIASES, permuted=True),
    "olmo2": Architecture("olmo2"),
    "command-r": Architecture(
        "cohere",
        {LAYER_NORM: "layer_norm_eps", "logit_scale": "logit_scale"},
        {"use_qk_norm": "blk.0.attn_q_norm.weight"},
    ),
    "cohere2": Architecture(
        "cohere2", {LAYER_NORM: "layer_norm_eps", "logit_scale": "logit_scale"}, windows="layers"
    ),
}
"""`general.architecture` -> how it is read. Mistral and Mixtral call themselves llama."""
COMMON = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "rope.scaling.finetuned": (True, False),
    "tensor_data_layout": ("Meta AI original pth", "reference"),
    "attention.causal": (True,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_gating_func": (0, 1),
    "expert_weights_scale": (0.0, 1.0),
    "leading_dense_block_count": (0,),
    "nextn_predict_layers": (0,),
    "pooling_type": (0,),
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.alpha": (0.0,),
}
"""Keys that are refused, but for these values, which say nothing new."""
