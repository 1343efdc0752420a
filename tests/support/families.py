"""One table of model families: a tiny random model of each real class, and by hand what is known about its layers.

docs/models.md names these rows; `test_families.py` runs each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import transformers as tf
from naive import Rope, own_frequencies

from infinipot.model.runner import ModelRunner

SIZES: dict[str, Any] = dict(
    vocab_size=97,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
WINDOW = 24
HYBRID: dict[str, Any] = dict(
    sliding_window=WINDOW,
    num_hidden_layers=4,
    layer_types=["sliding_attention", "full_attention"] * 2,
)
MIXED = [WINDOW, None, WINDOW, None]


@dataclass(frozen=True, kw_only=True)
class Family:
    """kind: transformers' model type. style, dims: how keys turn, and how many of the 16 dimensions of a head.

    windows: per layer its sliding window, None for full attention, 0 for no attention at all (two full layers if not said). bare: layers
    without rotary embedding. frequencies: of a model, for a pot of that size, where its rotary module's buffers do not simply hold them.
    unlike_stock: options of the stock model to compare with, where the pot does something else on purpose. rounding: relative distance
    under which two scores may change places from one order of additions to another; layers that carry a state differ more.
    """

    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    style: str = "half"
    dims: int = 16
    windows: list[int | None] = field(default_factory=lambda: [None, None])
    bare: tuple[int, ...] = ()
    frequencies: Callable[[Any, int], tuple[torch.Tensor, float]] | None = None
    unlike_stock: dict[str, Any] | None = None
    rounding: float = 5e-6

    def build(self, **other: Any) -> Any:
        return build(self.kind, **{**self.options, **other})

    def ropes(self, model: Any, pot_size: int) -> list[Rope | None]:
        """Each layer's rotation, as stated here."""
        types = [
            "full_attention" if window is None else "sliding_attention" for window in self.windows
        ]
        several = hasattr(model.config, "layer_types") and self.kind in ("gemma3_text", "gemma3")
        ropes: list[Rope | None] = []
        for number, layer_type in enumerate(types):
            if number in self.bare or self.windows[number] == 0:
                ropes.append(None)
                continue
            own = (
                self.frequencies(model, pot_size)
                if self.frequencies
                else own_frequencies(model, layer_type if several else None)
            )
            ropes.append(Rope(self.style, *own))
        return ropes


def build(kind: str, **options: Any) -> Any:
    return randomised(
        tf.AutoModelForCausalLM.from_config, tf.AutoConfig.for_model(kind, **{**SIZES, **options})
    )


def randomised(make: Callable[..., Any], config: Any) -> Any:
    """A float32 model of the real class; attention differs by head, norms differ by channel. The global RNG stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make(config, attn_implementation="eager").float().eval()
        for name, parameter in model.named_parameters():
            if "norm" in name and "bias" not in name:
                parameter.data = torch.rand_like(parameter) + 0.5
            elif parameter.ndim >= 2 or name.endswith(("bias", "sinks")):
                parameter.data = torch.randn_like(parameter) * 0.2
    return model.requires_grad_(False)


def dynamic(model: Any, pot_size: int) -> tuple[torch.Tensor, float]:
    """NTK by the length: the base grows once the pot is longer than the model was trained for."""
    base, factor, trained, d = 1e4, 4.0, model.config.max_position_embeddings, 16
    base *= (factor * max(pot_size, trained) / trained - (factor - 1)) ** (d / (d - 2))
    return 1.0 / base ** (torch.arange(0, d, 2).float() / d), 1.0


def longrope(model: Any, pot_size: int) -> tuple[torch.Tensor, float]:
    """A factor for each frequency: the short ones in a pot as long as the model was first trained for, the long ones in a longer."""
    rope = model.config.rope_parameters
    trained = rope["original_max_position_embeddings"]
    factors = torch.tensor(rope["long_factor" if pot_size > trained else "short_factor"])
    d = 2 * len(factors)
    grown = model.config.max_position_embeddings / trained
    return 1.0 / (factors * 1e4 ** (torch.arange(0, d, 2).float() / d)), math.sqrt(
        1 + math.log(grown) / math.log(trained)
    )


def scaled(rope_type: str, **parameters: Any) -> dict[str, Any]:
    return dict(rope_parameters=dict(rope_type=rope_type, rope_theta=1e4, **parameters))


def long(dims: int, trained: int, **other: Any) -> dict[str, Any]:
    short, far = (
        [1.0 + 0.1 * i for i in range(dims // 2)],
        [2.0 + 0.5 * i for i in range(dims // 2)],
    )
    return scaled(
        "longrope",
        short_factor=short,
        long_factor=far,
        original_max_position_embeddings=trained,
        **other,
    ) | dict(original_max_position_embeddings=trained)


LLAMA3 = scaled(
    "llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
YARN = scaled("yarn", factor=4.0, original_max_position_embeddings=64)
TWO_BASES = dict(
    sliding_attention=dict(rope_type="default", rope_theta=1e4),
    full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
)
EXPERTS = dict(num_experts_per_tok=2, num_local_experts=4, head_dim=16)

MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
STATES: list[int | None] = [0, None, 0, None]
LINEAR = dict(num_hidden_layers=4, layer_types=["linear_attention", "full_attention"] * 2)
LINEAR_SIZES = dict(
    linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8
)
MAMBA = dict(
    mamba_n_heads=8,
    mamba_d_head=16,
    mamba_d_state=8,
    mamba_d_conv=4,
    mamba_expand=2,
    mamba_n_groups=1,
    mamba_chunk_size=8,
)

FAMILIES: dict[str, Family] = {
    "Llama-2": Family(kind="llama", options=dict(num_key_value_heads=4)),
    "Llama-3": Family(
        kind="llama", options=dict(rope_parameters=dict(rope_type="default", rope_theta=5e5))
    ),
    "Llama-3.1": Family(kind="llama", options=LLAMA3),
    "Llama-3.2": Family(kind="llama", options=LLAMA3 | dict(tie_word_embeddings=True)),
    "Llama, linear": Family(kind="llama", options=scaled("linear", factor=4.0)),
    "Llama, dynamic": Family(
        kind="llama", options=scaled("dynamic", factor=4.0), frequencies=dynamic
    ),
    "Llama, dynamic, long": Family(
        kind="llama",
        options=scaled("dynamic", factor=4.0) | dict(max_position_embeddings=32),
        frequencies=dynamic,
    ),
    "Llama, yarn": Family(kind="llama", options=YARN),
    "Mistral v0.1": Family(
        kind="mistral",
        options=dict(head_dim=16, sliding_window=WINDOW),
        unlike_stock=dict(head_dim=16, sliding_window=None),
    ),
    "Mistral v0.2": Family(
        kind="mistral",
        options=dict(
            head_dim=16,
            sliding_window=None,
            rope_parameters=dict(rope_type="default", rope_theta=1e6),
        ),
    ),
    "Mistral v0.3": Family(
        kind="mistral", options=dict(head_dim=16, sliding_window=None, vocab_size=131)
    ),
    "Mixtral": Family(kind="mixtral", options=EXPERTS),
    "Qwen2": Family(kind="qwen2"),
    "Qwen2.5": Family(
        kind="qwen2",
        options=dict(
            tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e6)
        ),
    ),
    "Qwen2.5, yarn": Family(kind="qwen2", options=YARN),
    "Qwen3": Family(kind="qwen3", options=dict(head_dim=16)),
    "Qwen3-MoE": Family(kind="qwen3_moe", options=MOE | dict(head_dim=16)),
    "Phi-2": Family(kind="phi", options=dict(partial_rotary_factor=0.5), dims=8),
    "Phi-3": Family(kind="phi3"),
    "Phi-3, longrope": Family(kind="phi3", options=long(16, 128), frequencies=longrope),
    "Phi-3, longrope, long": Family(kind="phi3", options=long(16, 32), frequencies=longrope),
    "Phi-4-mini": Family(
        kind="phi3",
        options=long(12, 128, partial_rotary_factor=0.75),
        dims=12,
        frequencies=longrope,
    ),
    "Gemma-2": Family(
        kind="gemma2",
        options=HYBRID | dict(head_dim=16, attn_logit_softcapping=2.0, final_logit_softcapping=5.0),
        windows=MIXED,
    ),
    "Gemma-3": Family(
        kind="gemma3_text",
        options=HYBRID | dict(head_dim=16, rope_parameters=TWO_BASES),
        windows=MIXED,
    ),
    "SmolLM3": Family(kind="smollm3", options=dict(no_rope_layer_interval=2), bare=(1,)),
    "Granite": Family(
        kind="granite",
        options=dict(
            attention_multiplier=0.2,
            residual_multiplier=0.7,
            embedding_multiplier=3.0,
            logits_scaling=2.0,
        ),
    ),
    "OLMo-2": Family(kind="olmo2"),
    "GLM-4": Family(kind="glm4", options=dict(head_dim=16), style="interleaved", dims=8),
    "GLM-4-9B": Family(kind="glm", options=dict(head_dim=16), style="interleaved", dims=8),
    "Cohere": Family(kind="cohere", style="interleaved"),
    "Cohere-2": Family(
        kind="cohere2", options=HYBRID, style="interleaved", windows=MIXED, bare=(1, 3)
    ),
    "StableLM": Family(kind="stablelm", dims=4),
    "GPT-NeoX": Family(kind="gpt_neox", dims=4),
    "gpt-oss": Family(
        kind="gpt_oss",
        options=HYBRID | dict(head_dim=16, num_local_experts=4, num_experts_per_tok=2) | YARN,
        windows=MIXED,
    ),
    "Qwen3-Next": Family(
        kind="qwen3_next",
        options=LINEAR | LINEAR_SIZES | MOE | dict(head_dim=16, shared_expert_intermediate_size=32),
        dims=4,
        windows=STATES,
        rounding=1e-4,
    ),
    "Qwen3.5": Family(
        kind="qwen3_5_text",
        options=LINEAR | LINEAR_SIZES | dict(head_dim=16),
        dims=4,
        windows=STATES,
        rounding=1e-4,
    ),
    "OLMo-Hybrid": Family(
        kind="olmo_hybrid",
        options=LINEAR | LINEAR_SIZES | dict(linear_num_key_heads=4),
        windows=STATES,
        rounding=1e-4,
    ),
    "Falcon-H1": Family(
        kind="falcon_h1",
        options=MAMBA | dict(head_dim=16, mamba_d_ssm=64, mamba_n_heads=4),
        rounding=1e-4,
    ),
    "LFM2": Family(
        kind="lfm2",
        options=dict(num_hidden_layers=4, layer_types=["conv", "full_attention"] * 2),
        windows=STATES,
        rounding=1e-4,
    ),
    "Granite-4": Family(
        kind="granitemoehybrid",
        options=MAMBA
        | EXPERTS
        | dict(
            num_hidden_layers=4, layer_types=["mamba", "attention"] * 2, shared_intermediate_size=32
        ),
        windows=STATES,
        bare=(0, 1, 2, 3),
        rounding=1e-4,
    ),
    "Bamba": Family(
        kind="bamba",
        options=MAMBA | dict(num_hidden_layers=4, attn_layer_indices=[1, 3]),
        dims=8,
        windows=STATES,
        rounding=1e-4,
    ),
    "Nemotron-H": Family(
        kind="nemotron_h",
        options=dict(
            num_hidden_layers=4,
            hybrid_override_pattern="M*-*",
            head_dim=16,
            mamba_num_heads=8,
            mamba_head_dim=16,
            ssm_state_size=8,
            n_groups=1,
            chunk_size=8,
        ),
        windows=STATES,
        bare=(0, 1, 2, 3),
        rounding=1e-4,
    ),
}


@cache
def runner(name: str) -> ModelRunner:
    """One for all tests of a process: they leave it as it was."""
    return ModelRunner(FAMILIES[name].build())
