"""NuC equals the cross-entropy of the whole model, in slices."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_close, random_ids
from tiny import FAMILIES, make_tiny
from torch.utils._python_dispatch import TorchDispatchMode

from infinipot import PotConfig, Session
from infinipot.engine.distill import score_novelty
from infinipot.model.runner import ModelRunner
from infinipot.scoring.novelty import novelty


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", [1, 7, 512])
@pytest.mark.parametrize("at_once", [False, True])
def test_equals_cross_entropy_of_stock(family: str, chunk: int, at_once: bool) -> None:
    """Whether it is computed at once, or for all tokens together when a distillation needs it."""
    model, ids = make_tiny(family), random_ids(60)
    session = Session(
        model, None, PotConfig(pot_size=64, distill_to=20, novelty=1.0, chunk_tokens=chunk)
    )
    if at_once:
        session.score_all()
    session.append(ids)
    assert bool(session.pot.unscored) != at_once
    score_novelty(session.runner, session.pot)
    assert not session.pot.unscored
    expected = F.cross_entropy(
        model(torch.tensor([ids])).logits[0, :-1], torch.tensor(ids[1:]), reduction="none"
    )
    assert session.pot.novelty[0, 0] == 0
    assert_close("novelty", session.pot.novelty[0, 1:], expected)


@pytest.mark.parametrize("block", [1, 10, 96, 97, 1000])
def test_blocks_do_not_matter(block: int) -> None:
    runner, hidden = ModelRunner(make_tiny("qwen2")), torch.randn(2, 9, 64)
    targets = torch.randint(0, 97, (2, 9))
    whole = F.cross_entropy(
        runner.head(hidden).flatten(0, 1), targets.flatten(), reduction="none"
    ).view(2, 9)
    assert_close("novelty", novelty(runner.head, hidden, targets, 97, block), whole)


def test_scaled_and_capped_logits_are_the_models_own() -> None:
    """Gemma-2 caps its logits, Granite and Cohere scale them: the output layer alone would be wrong."""
    import transformers as tf

    sizes = dict(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=97,
        pad_token_id=0,
    )
    configs = [
        tf.Gemma2Config(
            **sizes, head_dim=8, final_logit_softcapping=0.5, layer_types=["full_attention"] * 2
        ),
        tf.GraniteConfig(**sizes, logits_scaling=3.0),
        tf.CohereConfig(**sizes, logit_scale=0.2),
    ]
    ids = torch.tensor([random_ids(30)])
    for config in configs:
        torch.manual_seed(0)
        model = tf.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        runner = ModelRunner(model)
        with torch.no_grad():
            hidden, logits = model.base_model(ids).last_hidden_state, model(ids).logits
        assert_close(type(config).__name__, runner.head(hidden), logits, 1e-6)
        expected = F.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="none")
        assert_close(
            type(config).__name__,
            novelty(runner.head, hidden[:, :-1], ids[:, 1:], 97, 20)[0],
            expected,
        )


def test_never_a_chunk_times_the_vocabulary() -> None:
    """No tensor made while reading is as large as chunk x vocabulary."""
    vocabulary, chunk = 40_000, 128
    model = make_tiny("llama", vocab=vocabulary)
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and not out._is_view():
                shape = tuple(out.shape)
                if shape[-1:] == (vocabulary,) or out.numel() >= chunk * vocabulary:
                    largest = max(largest, out.numel())
            return out

    session = Session(model, None, PotConfig(pot_size=512, chunk_tokens=chunk))
    with Watch():
        session.append(random_ids(400), question=[1, 2, 3])
    assert largest < chunk * vocabulary
