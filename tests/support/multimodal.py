"""Models that see, too: class prefix and options of a tiny config. docs/models.md names these rows."""

from __future__ import annotations

from families import HYBRID, SIZES


def text_part(kind: str, **options) -> dict:
    return dict(text_config=SIZES | dict(model_type=kind) | options)


EYE = dict(
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    image_size=28,
    patch_size=14,
)
SMALL_EYE = dict(depth=1, hidden_size=32, num_heads=2, out_hidden_size=64, intermediate_size=32)
MROPE = dict(rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[2, 3, 3]))
MULTIMODAL = {
    "Gemma-3, multimodal": (
        "Gemma3",
        text_part("gemma3_text", **HYBRID, head_dim=16)
        | dict(vision_config=EYE, mm_tokens_per_image=4),
    ),
    "Mistral-Small-3": (
        "Mistral3",
        text_part("mistral", head_dim=16) | dict(vision_config=dict(model_type="pixtral", **EYE)),
    ),
    "LLaVA": (
        "Llava",
        text_part("llama") | dict(vision_config=dict(model_type="clip_vision_model", **EYE)),
    ),
    "Qwen2.5-VL": (
        "Qwen2_5_VL",
        text_part("qwen2_5_vl_text", **MROPE) | dict(vision_config=SMALL_EYE),
    ),
    "Qwen3-VL": (
        "Qwen3VL",
        text_part("qwen3_vl_text", head_dim=16, **MROPE)
        | dict(vision_config=SMALL_EYE | dict(deepstack_visual_indexes=[])),
    ),
}
