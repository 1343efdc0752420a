"""How a model rotates is found by asking it; what cannot be bounded or renumbered is refused in a sentence."""

from __future__ import annotations

import pytest
import torch
import transformers as tf
from families import FAMILIES, build
from helpers import CATALYST, assert_close, random_ids

from infinipot import PotConfig, Session
from infinipot.host import Host


def test_hybrid_layers_keep_their_own_window() -> None:
    model = FAMILIES["Gemma-3"].build()
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
    """Reading changes nothing in the model's own rotary module, so a short prompt afterwards is read as ever; and nothing that model or host
    read before, however long, changes what a pot of a given size does."""
    dynamic = dict(rope_parameters=dict(rope_type="dynamic", factor=4.0, rope_theta=1e4), max_position_embeddings=64)
    model, ids = build("llama", **dynamic), torch.tensor([random_ids(30)])
    before, host = model(ids).logits, Host(model)
    for size in (200, 80):
        session = Session(host, None, PotConfig(pot_size=size, distill_to=size // 2))
        session.append(random_ids(600), question=CATALYST)
        assert torch.equal(model(ids).logits, before)
    model(torch.tensor([random_ids(250)]))
    for other in (model, build("llama", **dynamic)):
        again = Session(other, None, session.config)
        again.append(random_ids(600), question=CATALYST)
        assert torch.equal(again.logits, session.logits)
