"""How a model rotates is found by asking it; what cannot be bounded or renumbered is refused in a sentence."""

from __future__ import annotations

import pytest
import torch
import transformers as tf
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from families import FAMILIES, build, randomised
from helpers import CATALYST, assert_close, random_ids
from multimodal import MULTIMODAL
from tiny import make_tiny

from infinipot import PotConfig, Session, generate
from infinipot.model.rope_probe import table_of
from infinipot.model.runner import ModelRunner


def test_hybrid_layers_keep_their_own_window() -> None:
    model = FAMILIES["Gemma-3"].build()
    session = Session(model, None, PotConfig(pot_size=64, distill_to=20, chunk_tokens=10))
    session.append(random_ids(300), question=CATALYST)
    lengths = [layer.length for layer in session.pot.layers]
    assert [length == 23 for length in lengths] == [True, False, True, False]
    before = session.logits
    list(
        session.stream_ids(
            random_ids(5), max_tokens=30, pick=lambda logits: int(logits.argmax()), stop_ids=set()
        )
    )
    assert torch.equal(session.logits, before)
    assert [layer.length for layer in session.pot.layers] == lengths


def test_positions_in_a_window_start_again_unnoticed() -> None:
    """A window layer's positions wrap when its table ends: distances, and so the output, stay the same."""
    model = FAMILIES["Gemma-2"].build()
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
        ("mamba", {}, "keeps no entries"),
        ("rwkv", {}, "own attention"),
        ("falcon", dict(alibi=False, new_decoder_architecture=False), "own attention"),
        ("mpt", dict(d_model=64, n_heads=4, n_layers=2, max_seq_len=256), "own attention"),
        ("opt", dict(ffn_dim=96, word_embed_proj_dim=64), "no rotary embedding"),
        ("recurrent_gemma", {}, "keeps no entries|own attention"),
        ("llama4_text", dict(head_dim=16, num_local_experts=2, intermediate_size_mlp=96, attention_chunk_size=24), "fixed chunks"),
        ("jamba", dict(attn_layer_period=2, attn_layer_offset=1, num_experts=2, num_experts_per_tok=1, mamba_dt_rank=8), "forgets the state"),
        (
            "gemma3n_text",
            dict(
                head_dim=16, num_kv_shared_layers=2, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2,
                hidden_size_per_layer_input=8, vocab_size_per_layer_input=128, laurel_rank=4, activation_sparsity_pattern=[0.0] * 4,
            ),
            "entries of other layers",
        ),
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
        ModelRunner(build(kind, **options))


def test_sine_before_cosine_is_refused() -> None:
    sizes = dict(vocab_size=97, n_embd=64, n_layer=2, n_head=4, rotary_dim=8, n_positions=256)
    for model in (
        tf.GPTJForCausalLM(tf.GPTJConfig(**sizes)),
        tf.CodeGenForCausalLM(tf.CodeGenConfig(**sizes)),
    ):
        with pytest.raises(
            ValueError, match="sine before cosine|own attention"
        ):  # the latter before transformers 5.24
            ModelRunner(model.eval())


@pytest.mark.parametrize("name", MULTIMODAL)
def test_multimodal_models_read_text(name: str) -> None:
    """As stock reads it."""
    prefix, options = MULTIMODAL[name]
    model = randomised(
        getattr(tf, f"{prefix}ForConditionalGeneration")._from_config,
        getattr(tf, f"{prefix}Config")(**options),
    )
    ids = random_ids(100)
    session = Session(model, None, PotConfig(pot_size=100, chunk_tokens=9, novelty=1.0))
    session.append(ids)
    assert_close(name, session.logits, model(torch.tensor([ids])).logits[:, -1])
    small = Session(model, None, PotConfig(pot_size=40, distill_to=16))
    small.append(ids, question=CATALYST)
    assert small.stats.peak_entries == 40


def test_pictures_are_refused_not_left_out_in_silence() -> None:
    model = randomised(
        tf.LlavaForConditionalGeneration._from_config, tf.LlavaConfig(**MULTIMODAL["LLaVA"][1])
    )
    ids, options = torch.tensor([random_ids(20)]), dict(custom_generate=generate, max_new_tokens=2)
    assert model.generate(ids, **options).shape[1] == 22
    with pytest.raises(ValueError, match="reads token ids only"):
        model.generate(ids, pixel_values=torch.zeros(1, 3, 28, 28), **options)


def test_encoder_decoder_is_refused() -> None:
    config = tf.T5Config(vocab_size=97, d_model=32, d_ff=64, num_layers=1, num_heads=2, d_kv=16)
    with pytest.raises(ValueError, match="encoder-decoder"):
        ModelRunner(tf.T5ForConditionalGeneration(config))


def test_dynamic_frequencies_are_pinned_to_the_pot() -> None:
    """Reading changes nothing in the model's own rotary module, so a short prompt afterwards is read as ever; and nothing that model or runner
    read before, however long, changes what a pot of a given size does."""
    dynamic = dict(
        rope_parameters=dict(rope_type="dynamic", factor=4.0, rope_theta=1e4),
        max_position_embeddings=64,
    )
    model, ids = build("llama", **dynamic), torch.tensor([random_ids(30)])
    before, runner = model(ids).logits, ModelRunner(model)
    for size in (200, 80):
        session = Session(runner, None, PotConfig(pot_size=size, distill_to=size // 2))
        session.append(random_ids(600), question=CATALYST)
        assert torch.equal(model(ids).logits, before)
    model(torch.tensor([random_ids(250)]))
    for other in (model, build("llama", **dynamic)):
        again = Session(other, None, session.config)
        again.append(random_ids(600), question=CATALYST)
        assert torch.equal(again.logits, session.logits)


def test_a_dispatched_rotary_module_is_asked_where_it_is_needed() -> None:
    """accelerate's hook sends a module's inputs to the module's own device; positions are asked for on every layer's."""
    model = make_tiny("llama")
    plain = ModelRunner(model).rotations[0].table(torch.arange(9))
    add_hook_to_module(model.model.rotary_emb, hook := AlignDevicesHook(execution_device="cpu"))
    hook.execution_device = "meta"  # stands for another device
    asked = table_of(model.model.rotary_emb, (torch.zeros(1, 1, 64), torch.arange(4)[None]), {})(
        torch.arange(9)
    )
    assert all(torch.equal(a[:, : b.shape[1]], b) for a, b in zip(asked, plain, strict=True))
