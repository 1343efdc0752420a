"""How a model rotates is found by asking it; what cannot be bounded or renumbered is refused in a sentence."""

from __future__ import annotations

import pytest
import torch
import transformers as tf
from helpers import CATALYST, assert_close, random_ids

from infinipot import PotConfig, Session
from infinipot.host import Host

SIZES = dict(
    vocab_size=97,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
HYBRID = ["sliding_attention", "full_attention"] * 2
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, rope_theta=10000.0)
LLAMA3 = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64, rope_theta=10000.0
)
FAMILIES = {
    "llama": ({}, "half", 16),
    "llama, linear": (dict(rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=1e4)), "half", 16),
    "llama, yarn": (dict(rope_parameters=YARN), "half", 16),
    "llama, llama3": (dict(rope_parameters=LLAMA3), "half", 16),
    "mistral, all sliding": (dict(head_dim=16, sliding_window=24), "half", 16),
    "phi": (dict(partial_rotary_factor=0.5), "half", 8),
    "glm4": (dict(head_dim=16), "interleaved", 8),
    "cohere": ({}, "interleaved", 16),
    "stablelm": ({}, "half", 4),
    "gpt_neox": ({}, "half", 4),
    "smollm3": (dict(no_rope_layer_interval=2), "half", 16),
    "granite": ({}, "half", 16),
    "olmo2": ({}, "half", 16),
    "gemma2": (dict(head_dim=16, sliding_window=24, layer_types=HYBRID, attn_logit_softcapping=2.0), "half", 16),
    "gemma3_text": (dict(head_dim=16, sliding_window=24, layer_types=HYBRID), "half", 16),
    "gpt_oss": (dict(head_dim=16, num_local_experts=2, num_experts_per_tok=1, sliding_window=24, layer_types=HYBRID), "half", 16),
}


def build(kind: str, **options) -> tf.PreTrainedModel:
    torch.manual_seed(0)
    config = tf.AutoConfig.for_model(kind, **{**SIZES, **options})
    model = tf.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    for name, parameter in model.named_parameters():
        parameter.data = torch.rand_like(parameter) + 0.5 if "norm" in name else torch.randn_like(parameter) * 0.1
    return model.requires_grad_(False)


@pytest.mark.parametrize("name", FAMILIES)
def test_found_and_exact(name: str) -> None:
    """Style and rotary dimensions are found; in a pot that fits the model predicts as stock; in a small one the bound holds."""
    options, style, dims = FAMILIES[name]
    model, ids = build(name.split(",")[0], **options), random_ids(100)
    host = Host(model)
    found = [rotation for rotation in host.rotations if rotation is not None]
    assert {rotation.style for rotation in found} == {style}
    assert {2 * rotation.table(torch.arange(2))[0].shape[-1] for rotation in found} == {dims}
    assert (None in host.rotations) == (name == "smollm3")
    for chunk in (9, 512):
        session = Session(host, None, PotConfig(pot_size=128, chunk_tokens=chunk))
        session.append(ids, question=CATALYST)
        if name != "mistral, all sliding":  # there the pot takes the windows' place
            assert_close(name, session.logits, model(torch.tensor([ids])).logits[:, -1])
    small = Session(host, None, PotConfig(pot_size=40, distill_to=16, chunk_tokens=9, pool=3))
    small.append(random_ids(200), question=CATALYST)
    assert small.stats.distillations >= 4
    assert small.stats.peak_entries == 40
    assert torch.isfinite(small.logits).all()


def test_hybrid_layers_keep_their_own_window() -> None:
    model = build("gemma3_text", **FAMILIES["gemma3_text"][0])
    session = Session(model, None, PotConfig(pot_size=64, distill_to=20, chunk_tokens=10))
    session.append(random_ids(300), question=CATALYST)
    lengths = [layer.length for layer in session.pot.layers]
    assert [length == 23 for length in lengths] == [True, False, True, False]
    before = session.logits
    list(session.stream_ids(random_ids(5), max_tokens=30, pick=lambda logits: int(logits.argmax()), stop_ids=set()))
    assert torch.equal(session.logits, before)
    assert [layer.length for layer in session.pot.layers] == lengths


def test_positions_in_a_window_start_again_unnoticed() -> None:
    """A window layer's positions wrap when its table ends: distances, and so the output, stay the same."""
    model = build("gemma2", **FAMILIES["gemma2"][0])
    ids = random_ids(250)
    session = Session(model, None, PotConfig(pot_size=256, chunk_tokens=10))
    session.append(ids, question=CATALYST)
    assert_close("logits", session.logits, model(torch.tensor([ids])).logits[:, -1])


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("gpt2", dict(n_embd=64, n_layer=2, n_head=4, n_positions=256), "no rotary embedding"),
        ("bloom", dict(n_layer=2, n_head=4), "own attention"),
        ("hunyuan_v1_dense", dict(head_dim=16), "after rotary embedding"),
        ("mamba", {}, "cannot bound"),
        (
            "deepseek_v3",
            dict(
                q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, n_routed_experts=4, n_group=1,
                topk_group=1, num_experts_per_tok=2, moe_intermediate_size=32, num_key_value_heads=4,
            ),
            "latent attention",
        ),
    ],
)  # fmt: skip
def test_refused_in_a_sentence(kind: str, options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Host(build(kind, **options))


def test_encoder_decoder_is_refused() -> None:
    config = tf.T5Config(vocab_size=97, d_model=32, d_ff=64, num_layers=1, num_heads=2, d_kv=16)
    with pytest.raises(ValueError, match="encoder-decoder"):
        Host(tf.T5ForConditionalGeneration(config))


def test_dynamic_frequencies_are_pinned_to_the_pot() -> None:
    """Reading changes nothing in the model's own rotary module, so a short prompt afterwards is read as ever."""
    model = build("llama", rope_parameters=dict(rope_type="dynamic", factor=4.0, rope_theta=1e4), max_position_embeddings=64)
    ids = torch.tensor([random_ids(30)])
    before = model(ids).logits
    session = Session(model, None, PotConfig(pot_size=200, distill_to=100))
    session.append(random_ids(600), question=CATALYST)
    assert torch.equal(model(ids).logits, before)
