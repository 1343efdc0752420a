"""Kinds of fault known from elsewhere that no other file rules out; docs/faults.md has them all."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import CATALYST, CHANGES, assert_close, greedy, kept, random_ids
from tiny import make_tiny

from infinipot import PotConfig, Session, compat, generate
from infinipot.cache.rope import Rotation

SMALL = dict(pot_size=64, distill_to=24, chunk_tokens=16)


def session(model: Any, count: int, **options: Any) -> Session:
    one = Session(model, None, PotConfig(**(SMALL | options)))
    one.append(random_ids(count), question=CATALYST)
    return one


@pytest.fixture
def only_new() -> Iterator[None]:
    """What is there already is not counted: to look at all of it takes long."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def alive() -> int:
    """Bytes of all tensors that live, views of one storage counted once."""
    gc.collect()
    storages = {
        x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
        for x in gc.get_objects()
        if issubclass(type(x), torch.Tensor)
    }
    return sum(storages.values())


def test_what_lives_does_not_grow_with_the_text(only_new: None) -> None:
    """Five times the text and the distillations: not a byte more, in the pot or beside it."""
    one = session(make_tiny("llama"), 500)
    before, held = alive(), one.stats.pot_bytes
    text = random_ids(2000, seed=1)
    for start in range(0, len(text), 100):
        one.append(text[start : start + 100], question=CATALYST)
    assert one.stats.distillations > 50
    assert one.stats.pot_bytes == held
    assert abs(alive() - before) < 4096  # the chunk's own ids and novelty


def test_eight_bits_take_less_also_while_reading(
    monkeypatch: pytest.MonkeyPatch, only_new: None
) -> None:
    """At the moment a layer attends, what was made from eight bits for it included: one layer's entries, never all layers'."""
    most: dict[str | None, int] = {}
    attend = torch.nn.functional.scaled_dot_product_attention
    peaks: list[int] = []

    def noted(*args: Any, **options: Any) -> torch.Tensor:
        peaks.append(alive())
        return attend(*args, **options)

    for kind in (None, "int8", "fp8"):
        one = session(
            make_tiny("llama", layers=6), 600, pot_size=512, distill_to=256, pot_dtype=kind
        )
        beside = alive() - one.stats.pot_bytes
        peaks.clear()
        with monkeypatch.context() as patch:
            patch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
            one.append(random_ids(2, seed=2), question=CATALYST)
        most[kind] = max(peaks) - beside
    assert most["int8"] < 0.6 * most[None]
    print(most)
    assert most["fp8"] < 0.6 * most[None]


def test_a_text_far_longer_than_the_model_was_trained_for() -> None:
    """Eight times the trained length: every position the model is given, or that is turned by, lies within it."""
    model, positions = make_tiny("llama"), []
    model.config.max_position_embeddings = 256
    hook = model.model.rotary_emb.register_forward_pre_hook(
        lambda module, args, kwargs: positions.append(
            int(kwargs.get("position_ids", args[-1]).max())
        ),
        with_kwargs=True,
    )
    one = session(model, 8 * 256, pot_size=200, distill_to=100)
    hook.remove()
    assert max(positions) < 200
    assert max(layer.position for layer in one.pot.bounded) <= 200


def test_survivors_are_read_as_if_nothing_else_had_been_written() -> None:
    """One layer: an entry does not depend on its neighbours, so after distillations stock reads the survivors alone to the same logits."""
    model, ids = make_tiny("qwen2", layers=1), random_ids(300)
    one = session(model, 300, policy="sirllm")
    heads = kept(one)[0]
    assert heads[0] == heads[1], "this policy keeps the same in all heads"
    assert len(heads[0]) < 64
    one.append(random_ids(3, seed=2), question=CATALYST)
    alone = torch.tensor([[ids[place] for place in heads[0]] + random_ids(3, seed=2)])
    assert_close("logits", one.logits, model(alone).logits[:, -1])


def test_entries_are_kept_per_kv_head_never_repeated() -> None:
    for kv_heads in (1, 2, 4):
        one = session(make_tiny("llama", heads=4, kv_heads=kv_heads), 100)
        assert (
            {layer.keys.shape[1] for layer in one.pot.bounded}
            == {layer.values.shape[1] for layer in one.pot.bounded}
            == {kv_heads}
        )


def test_an_answer_turns_only_its_own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding costs no more than with an ordinary cache: of all entries, only the token's own key and query are turned."""
    turned: list[int] = []
    original = Rotation.rotate

    def watched(self: Rotation, x: torch.Tensor, start: int) -> torch.Tensor:
        turned.append(x.shape[-2])
        return original(self, x, start)

    one = session(make_tiny("llama"), 45)
    monkeypatch.setattr(Rotation, "rotate", watched)
    list(one.stream_ids([3], max_tokens=8, pick=greedy, stop_ids=set()))
    assert turned
    assert set(turned) == {1}


def test_sizes_are_entries_never_shares() -> None:
    for name in ("pot_size", "distill_to", "sinks", "recent"):
        with pytest.raises(TypeError, match="whole number of tokens"):
            PotConfig(**{name: 0.5})


def test_options_that_do_not_exist_are_refused() -> None:
    with pytest.raises(TypeError, match="policy 'infinipot' has no option 'sink_tokens'"):
        PotConfig(sink_tokens=4)  # type: ignore[call-arg]
    model = make_tiny("llama")
    with pytest.raises(ValueError, match="potsize"):
        model.generate(torch.tensor([[1, 2]]), custom_generate=generate, potsize=64)


@pytest.mark.parametrize("name", CHANGES)
def test_no_option_is_silently_ignored(name: str) -> None:
    """Each changes what is kept, or what it predicts."""
    model = make_tiny("llama", layers=3)
    plain, changed = session(model, 200), session(model, 200, **{name: CHANGES[name]})
    assert kept(plain) != kept(changed) or not torch.equal(plain.logits, changed.logits)


@pytest.mark.parametrize("version", ["5.16.9", "5.25.0", "5.25.0.dev0", "6.0.0"])
def test_other_versions_of_transformers_are_refused(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat.transformers, "__version__", version)
    with pytest.raises(
        RuntimeError, match=rf"transformers {version} is not supported.*pip install"
    ):
        compat.check_version()


def test_one_call_after_another_leaves_nothing_behind() -> None:
    model = make_tiny("llama")
    options = dict(
        custom_generate=generate,
        pot=PotConfig(**SMALL),
        max_new_tokens=8,
        do_sample=False,
        pad_token_id=0,
    )
    prompts = [torch.tensor([random_ids(length, seed=length)]) for length in (150, 30, 90)]
    first = [model.generate(prompt, **options).tolist() for prompt in prompts]
    assert [model.generate(prompt, **options).tolist() for prompt in reversed(prompts)] == first[
        ::-1
    ]


def test_several_questions_of_an_eight_bit_pot() -> None:
    one = session(make_tiny("llama").to(torch.bfloat16), 200, pot_dtype="int8")
    before = one.logits
    first = [
        list(one.stream_ids(asked, max_tokens=9, pick=greedy, stop_ids=set()))
        for asked in ([5, 6], [7], [5, 6])
    ]
    assert first[0] == first[2]
    assert torch.equal(one.logits, before)
