"""Every policy with every family of models: what fits is stock's. With every kind of layers: what does not fit is bounded through four
cycles, and batches are their rows."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from counter import Counter
from families import FAMILIES, build, runner
from helpers import CATALYST, assert_close, config_for, greedy, kept, random_ids

from infinipot import PotConfig, Session, generate
from infinipot.policies import POLICIES

SMALL = {
    "pot_size": 24,
    "distill_to": 12,
    "window": 3,
    "group": 4,
    "neighbours": 30,
    "catalyst": "question",
}
TEXT, CHUNK, QUESTION = 64, 7, CATALYST[:3]


FEW = ["Llama-2", "Cohere", "Phi-2", "Gemma-3", "gpt-oss", "Falcon-H1"]
"""One family for each way in which a policy meets layers: whole, interleaved and partial rotation, windows, extra logits,
states."""


def pairs(*everywhere: str) -> list[tuple[str, str]]:
    """Each policy with the families of `FEW`, and these policies with each family. `test_families.py` has each family with the default."""
    return [
        (policy, family)
        for policy in POLICIES
        for family in FAMILIES
        if family in FEW or policy in everywhere
    ]


@cache
def stock(family: str, length: int) -> torch.Tensor:
    """Logits [1, V] of the stock model after so many ids."""
    row = FAMILIES[family]
    model = (
        runner(family).model if row.unlike_stock is None else build(row.kind, **row.unlike_stock)
    )
    return model(torch.tensor([random_ids(length)])).logits[:, -1]


def expected(policy: str, family: str) -> torch.Tensor:
    """Stock's logits after 30 ids; where frequencies depend on the length and are pinned to the pot's, those of plain reading there."""
    unbounded = not (POLICIES[policy].bounded or POLICIES[policy].cuts)
    if FAMILIES[family].frequencies is None or not (unbounded or family.endswith("long")):
        return stock(family, 30)
    plain = Session(
        runner(family),
        None,
        PotConfig(policy="full") if unbounded else PotConfig(pot_size=40, policy="streaming"),
    )
    plain.append(random_ids(30))
    return plain.logits


@pytest.mark.parametrize(("policy", "family"), pairs("truncate", "self_extend", "full"))
def test_fits(policy: str, family: str) -> None:
    session = Session(
        runner(family), None, config_for(policy, **{**SMALL, "pot_size": 40}, chunk_tokens=CHUNK)
    )
    session.append(random_ids(30), question=QUESTION)
    if POLICIES[policy].cuts:  # nothing but the first half is read before an answer is wanted
        picked: list[torch.Tensor] = []
        next(
            session.stream_ids(
                [],
                max_tokens=1,
                pick=lambda logits: picked.append(logits) or greedy(logits),
                stop_ids=set(),
            )
        )
        assert_close("logits", picked[0], expected(policy, family))
    else:
        assert_close("logits", session.logits, expected(policy, family))


@pytest.mark.parametrize(("policy", "family"), pairs("h2o"))
def test_four_cycles(policy: str, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(runner(family), None, config_for(policy, **SMALL, chunk_tokens=CHUNK))
    with monkeypatch.context() as patch:
        counter = Counter(patch, sinks=int(FAMILIES[family].kind == "gpt_oss"))
        session.append(random_ids(TEXT), question=QUESTION)
        before = session.logits
        said = list(
            session.stream_ids(random_ids(4, seed=2), max_tokens=8, pick=greedy, stop_ids=set())
        )
    assert len(said) == 8
    assert torch.equal(session.logits, before), "an answer leaves the pot as it was"
    assert torch.isfinite(before).all()
    full = [layer for layer in session.pot.bounded if layer.window is None]
    if not (POLICIES[policy].bounded or POLICIES[policy].cuts):
        assert {layer.length for layer in full} == {TEXT}
        return
    windows = [window + CHUNK for window in FAMILIES[family].windows if window]
    assert counter.most <= max([24, *windows])
    assert session.stats.peak_entries <= 24
    if POLICIES[policy].bounded:
        assert session.stats.distillations >= 4
        places = kept(session)
        assert all(list(head) == sorted(set(head)) for layer in places for head in layer), (
            "in text order, none twice"
        )
        assert {len(head) for layer in places for head in layer} == {full[0].length}


@pytest.mark.parametrize(
    ("policy", "family"),
    [(policy, family) for policy, family in pairs("infinipot") if not POLICIES[policy].cuts],
)
def test_batch(policy: str, family: str) -> None:
    """Left-padded rows of different lengths, one of which is distilled again and again, answer as each alone."""
    model, rows = runner(family).model, [random_ids(length, seed=length) for length in (45, 9)]
    options = {
        "runner": runner(family),
        "max_new_tokens": 4,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
        "custom_generate": generate,
    }
    pot = config_for(policy, **{**SMALL, "catalyst": None})
    ids = torch.tensor([rows[0], [0] * 36 + rows[1]])
    mask = torch.tensor([[1] * 45, [0] * 36 + [1] * 9])
    batch = model.generate(ids, attention_mask=mask, pot=pot, **options)
    for row, got in zip(rows, batch, strict=True):
        assert (
            got[45:].tolist()
            == model.generate(torch.tensor([row]), pot=pot, **options)[0, len(row) :].tolist()
        )


def test_batch_of_truncated_rows() -> None:
    """Policy truncate answers from the two ends of each row."""
    model, rows = runner("Llama-2").model, [random_ids(length, seed=length) for length in (45, 9)]
    options = {
        "max_new_tokens": 4,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
        "custom_generate": generate,
    }
    pot = config_for("truncate", **SMALL)
    ids, mask = (
        torch.tensor([rows[0], [0] * 36 + rows[1]]),
        torch.tensor([[1] * 45, [0] * 36 + [1] * 9]),
    )
    batch = model.generate(ids, attention_mask=mask, pot=pot, **options)
    for row, got in zip(rows, batch, strict=True):
        assert (
            got[45:].tolist()
            == model.generate(torch.tensor([row]), pot=pot, **options)[0, len(row) :].tolist()
        )
