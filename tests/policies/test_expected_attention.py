"""A policy from outside that looks at queries and projections: expected attention (arXiv 2510.00636). What it is shown is what stock
transformers computes, and what it keeps follows from that by plain loops."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from helpers import assert_close, random_ids
from tiny import make_tiny
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from infinipot import PotConfig, Session
from infinipot.policies import Observation, Policy

MODEL = make_tiny("llama")
SIZES = {"pot_size": 96, "distill_to": 30, "chunk_tokens": 17}
WINDOW = 12
FUTURE = 8
SEEN: list[tuple[Observation, Tensor]] = []
"""What the policy was shown, and its scores."""


@dataclass(frozen=True, kw_only=True)
class ExpectedAttention(Policy):
    """Entries that future queries, drawn from a normal distribution, are expected to attend to, times the size of what their values
    add to the output."""

    window: int = WINDOW
    """How many newest queries say how future ones are distributed."""
    future: int = FUTURE
    """Over how many positions to come queries are averaged."""

    def needs(self) -> frozenset[str]:
        return frozenset({"queries", "module"})

    def score(self, seen: Observation) -> Tensor:
        queries = seen.require("queries").float()
        keys = seen.rotated.float()
        groups = queries.shape[1] // keys.shape[1]
        positions = torch.arange(seen.position, seen.position + self.future)
        mean = queries.mean(dim=2, keepdim=True)
        spread = queries - mean
        covariance = spread.transpose(-1, -2) @ spread / queries.shape[2]
        size = keys.shape[-1]
        units = torch.eye(size)[None, :, None].expand(1, size, self.future, size).contiguous()
        turn = seen.rotate_to(units, positions).mean(dim=2)[0]  # row i: unit vector i, turned
        mean, covariance = mean @ turn, turn.T @ covariance @ turn
        keys = keys.repeat_interleave(groups, dim=1)
        logits = (keys @ mean.transpose(-1, -2)).squeeze(-1) / math.sqrt(keys.shape[-1])
        logits = logits + ((keys @ covariance) * keys).sum(-1) / (2 * keys.shape[-1])
        attention = logits.softmax(dim=-1).unflatten(1, (-1, groups)).mean(dim=2)
        scores = attention * self.added(seen)
        SEEN.append((seen, scores))
        return scores

    def added(self, seen: Observation) -> Tensor:
        """The norm of each value behind the output projection, the mean over the query heads of a KV head."""
        assert seen.module is not None
        weight = seen.module.o_proj.weight.float()
        size = seen.values.shape[-1]
        heads = weight.unflatten(1, (-1, size)).unbind(1)
        groups = len(heads) // seen.values.shape[1]
        norms = [
            (seen.values[:, head // groups].float() @ part.T).norm(dim=-1)
            for head, part in enumerate(heads)
        ]
        return torch.stack(norms, dim=1).unflatten(1, (-1, groups)).mean(dim=2)


@pytest.fixture
def session() -> Iterator[Session]:
    SEEN.clear()
    one = Session(MODEL, None, PotConfig(policy=ExpectedAttention(), **SIZES))
    one.append(random_ids(140, seed=5))
    yield one
    SEEN.clear()


def stock_projections(ids: list[int]) -> list[dict[str, Tensor]]:
    """Queries, keys and values of each layer before rotary embedding, [1, heads, T, D], by stock transformers."""
    found: list[dict[str, Tensor]] = [{} for _ in MODEL.model.layers]
    hooks = []
    size = MODEL.model.layers[0].self_attn.head_dim

    def note(out: Tensor, number: int, name: str) -> None:
        found[number][name] = out.unflatten(-1, (-1, size)).transpose(1, 2)

    for number, layer in enumerate(MODEL.model.layers):
        for name in ("q_proj", "k_proj", "v_proj"):
            write = functools.partial(note, number=number, name=name)
            module = getattr(layer.self_attn, name)
            hooks.append(module.register_forward_hook(lambda _, __, out, write=write: write(out)))
    with torch.no_grad():
        MODEL(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return found


def test_a_policy_sees_what_stock_computes(session: Session) -> None:
    layers = MODEL.model.layers
    first = [seen for seen, _ in SEEN[: len(layers)]]
    length = first[0].index.shape[-1]
    stock = stock_projections(random_ids(140, seed=5)[:length])
    assert 90 <= length <= 96 and first[0].position == length
    for number, seen in enumerate(first):
        assert seen.module is layers[number].self_attn
        assert_close("queries", seen.queries, stock[number]["q_proj"][:, :, -WINDOW:], 1e-5)
        positions = torch.arange(100, 100 + WINDOW)
        cos, sin = MODEL.model.rotary_emb(seen.queries, positions[None])
        turned, _ = apply_rotary_pos_emb(seen.queries, seen.queries, cos, sin)
        assert_close("rotated", seen.rotate_to(seen.queries, positions), turned, 1e-5)


def test_it_keeps_what_plain_loops_keep(session: Session) -> None:
    """The first distillation, head by head, one future position and one entry at a time."""
    seen, scores = SEEN[0]
    length = seen.index.shape[-1]
    stock = stock_projections(random_ids(140, seed=5)[:length])[0]
    cos, sin = MODEL.model.rotary_emb(stock["k_proj"], torch.arange(length + FUTURE)[None])
    keys, _ = apply_rotary_pos_emb(
        stock["k_proj"], stock["k_proj"], cos[:, :length], sin[:, :length]
    )
    heads, size = stock["q_proj"].shape[1], keys.shape[-1]
    groups = heads // keys.shape[1]
    weight = MODEL.model.layers[0].self_attn.o_proj.weight
    expected = torch.zeros(keys.shape[1], length)
    norms = torch.zeros(keys.shape[1], length)
    for head in range(heads):
        queries = stock["q_proj"][0, head, -WINDOW:]
        unit = torch.eye(size)[None, None]
        turn = torch.zeros(size, size)
        for place in range(length, length + FUTURE):
            turned, _ = apply_rotary_pos_emb(unit, unit, cos[:, [place]], sin[:, [place]])
            turn += turned[0, 0] / FUTURE
        mean = queries.mean(0) @ turn
        centred = (queries - queries.mean(0)) @ turn
        logits = []
        for key in keys[0, head // groups]:
            along = [float(row @ key) ** 2 for row in centred]
            logits.append(float(mean @ key) / math.sqrt(size) + sum(along) / WINDOW / size / 2)
        added = (
            stock["v_proj"][0, head // groups] @ weight[:, head * size : (head + 1) * size].T
        ).norm(dim=-1)
        attention = torch.tensor(logits).softmax(0)
        expected[head // groups] += attention
        norms[head // groups] += added
    expected = expected * norms / groups**2
    assert_close("scores", scores[0], expected, 1e-5)
    kept = ExpectedAttention().choose(seen, scores, SIZES["distill_to"])[0]
    assert [set(row.tolist()) for row in kept] == [
        set(row.topk(30).indices.tolist()) for row in expected
    ]


def test_a_saved_pot_goes_on(session: Session, tmp_path: Any) -> None:
    session.save(tmp_path / "a.pot")
    other = Session.load(tmp_path / "a.pot", MODEL, None, policy=ExpectedAttention)
    for one in (session, other):
        one.append(random_ids(90, seed=6))
    for mine, its in zip(session.pot.bounded, other.pot.bounded, strict=True):
        assert torch.equal(mine.index, its.index)


def test_what_it_asks_for_must_be_possible() -> None:
    class Stacked(ExpectedAttention):
        stacks = True

    with pytest.raises(
        ValueError, match="needs 'queries', with window=0: give it an option `window`"
    ):
        Session(MODEL, None, PotConfig(policy=ExpectedAttention(window=0), **SIZES))
    with pytest.raises(
        ValueError, match="sees several layers at once, and queries and modules belong to one"
    ):
        Session(MODEL, None, PotConfig(policy=Stacked(), **SIZES))
