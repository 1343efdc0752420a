"""What fits in the pot is read exactly as without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import CATALYST, assert_close, random_ids
from tiny import FAMILIES, make_tiny

from infinipot import PotConfig, Session, generate
from infinipot.model import attention
from infinipot.model.attention import Visible, visible

PROSE = (
    "The lighthouse keeper's daughter kept a ledger of every ship that passed the point, with the hour, the weather and the name of its "
    "captain. In the winter of 1871 only eleven ships passed, and one of them, the Aurora, did not answer the lamp. "
) * 2


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_stock(family: str, kv_heads: int, chunk: int) -> None:
    model, ids = make_tiny(family, kv_heads=kv_heads), random_ids(200)
    session = Session(model, None, PotConfig(pot_size=256, chunk_tokens=chunk))
    session.append(ids, question=CATALYST)
    assert session.stats.distillations == 0
    assert_close(
        f"{family} in chunks of {chunk}", session.logits, model(torch.tensor([ids])).logits[:, -1]
    )


@pytest.mark.parametrize(
    ("window", "hidden"), [(None, (0, 0)), (7, (0, 0)), (None, (3, 12))], ids=str
)
@pytest.mark.parametrize("rows", [1, 4, 11])
def test_attention_in_blocks_of_rows(
    window: int | None, hidden: tuple[int, int], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, each block without the entries that come after it: what one call with the whole mask returns."""
    query = torch.randn(1, 4, rows, 16, generator=torch.Generator().manual_seed(1))
    key, value = torch.randn(2, 1, 2, 20, 16, generator=torch.Generator().manual_seed(2))
    mask = visible(Visible(rows, 20, window, hidden, query.device, query.dtype, True))
    if mask is None:  # nothing is hidden from a single row
        mask = torch.zeros(rows, 20)
    sizes = []
    sdpa = F.scaled_dot_product_attention

    def noting(query: torch.Tensor, key: torch.Tensor, *rest: Any, **how: Any) -> torch.Tensor:
        sizes.append((query.shape[2], key.shape[2]))
        return sdpa(query, key, *rest, **how)

    monkeypatch.setattr(attention, "BLOCK_ROWS", 4)
    monkeypatch.setattr(F, "scaled_dot_product_attention", noting)
    got = attention.attention(torch.nn.Module(), (query, key, value), 0.25, mask, {})
    blocks = {1: [(1, 20)], 4: [(4, 20)], 11: [(4, 13), (4, 17), (3, 20)]}
    assert sizes == blocks[rows]
    expected = sdpa(query, key, value, attn_mask=mask, scale=0.25, enable_gqa=True)
    assert_close("attention", got, expected.transpose(1, 2))


@pytest.mark.parametrize(("heads", "shared"), [(4, 2), (6, 1), (9, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_one_token(heads: int, shared: int, dtype: torch.dtype) -> None:
    """Each head with the entries of its own group, of two texts, and with other values than keys."""
    random = torch.Generator().manual_seed(3)
    query = torch.randn(2, 1, heads, 16, generator=random, dtype=dtype).transpose(1, 2)
    key = torch.randn(2, shared, 33, 16, generator=random, dtype=dtype)[:, :, :30]
    value = torch.randn(2, shared, 33, 24, generator=random, dtype=dtype)[:, :, :30]
    got = attention.attention(torch.nn.Module(), (query, key, value), 0.25, None, {})
    repeats = heads // shared
    scores = (query @ key.repeat_interleave(repeats, dim=1).mT).float() * 0.25
    expected = scores.softmax(dim=-1) @ value.repeat_interleave(repeats, dim=1).float()
    error = 1e-5 if dtype == torch.float32 else 0.02
    assert_close("attention", got.float(), expected.transpose(1, 2), error)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_output_equals_stock(family: str) -> None:
    model, ids = make_tiny(family), torch.tensor([random_ids(100)])
    options = {"max_new_tokens": 64, "do_sample": False, "pad_token_id": 0}
    stock = model.generate(ids, **options)
    assert torch.equal(
        stock, model.generate(ids, custom_generate=generate, pot=PotConfig(pot_size=200), **options)
    )


def check_real_model(model, tokenizer) -> None:
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": PROSE + "\n\nWhich ship did not answer?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    ids = inputs["input_ids"]
    with torch.no_grad():
        expected = model(ids).logits[:, -1]
    for chunk in (31, 512):
        session = Session(
            model, tokenizer, PotConfig(pot_size=512, chunk_tokens=chunk), template=False
        )
        session.append(ids)
        assert_close(f"chunks of {chunk}", session.logits, expected)
    stock = model.generate(**inputs, max_new_tokens=32, do_sample=False)
    pot = PotConfig(pot_size=512)
    assert torch.equal(
        stock,
        model.generate(
            **inputs, max_new_tokens=32, do_sample=False, custom_generate=generate, pot=pot
        ),
    )
    session = Session(model, tokenizer, pot)
    session.append(PROSE)
    answer = session.ask("Which ship did not answer?", max_tokens=32)
    assert answer == tokenizer.decode(stock[0, ids.shape[1] :], skip_special_tokens=True)


def test_smollm2_equals_stock(smollm2) -> None:
    check_real_model(*smollm2)


@pytest.mark.slow
def test_qwen_equals_stock(qwen) -> None:
    check_real_model(*qwen)


def test_model_is_left_as_it_was() -> None:
    model, ids = make_tiny("llama"), torch.tensor([random_ids(50)])
    before = (
        model(ids).logits,
        model.config._attn_implementation,
        sum(len(m._forward_hooks) for m in model.modules()),
    )
    session = Session(model, None, PotConfig(pot_size=32, distill_to=8))
    session.append(ids, question=CATALYST)
    after = (
        model(ids).logits,
        model.config._attn_implementation,
        sum(len(m._forward_hooks) for m in model.modules()),
    )
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
