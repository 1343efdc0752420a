"""Presses of kvpress in the bounded loop: stand-ins of the same signature, each as kvpress computes it. They are shown what stock
transformers computes."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import assert_close, greedy, random_ids
from tiny import make_tiny
from torch import Tensor
from transformers import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from infinipot import PotConfig, Session, compat
from infinipot.policies import Observation, Policy
from infinipot.policies.kvpress import Press

MODEL = make_tiny("llama")
SIZES = {"pot_size": 96, "distill_to": 30, "chunk_tokens": 17}
LAYERS = MODEL.model.layers


@dataclass
class KnormPress:
    compression_ratio: float = 0.0

    def score(self, module, hidden_states, keys, values, attentions, kwargs) -> Tensor:
        return -keys.norm(dim=-1)


@dataclass
class WindowPress:
    """SnapKV's window attention: queries from hidden states and the module's projection."""

    window_size: int = 8

    def score(self, module, hidden_states, keys, values, attentions, kwargs) -> Tensor:
        size = module.head_dim
        query = module.q_proj(hidden_states[:, -self.window_size :]).unflatten(-1, (-1, size))
        query = query.transpose(1, 2)
        cos, sin = (x[:, None, -self.window_size :] for x in kwargs["position_embeddings"])
        query = (
            query * cos + torch.cat((-query[..., size // 2 :], query[..., : size // 2]), -1) * sin
        )
        groups = query.shape[1] // keys.shape[1]
        logits = query @ keys.repeat_interleave(groups, dim=1).transpose(2, 3) / math.sqrt(size)
        hidden = torch.ones_like(logits).triu(keys.shape[2] - self.window_size + 1).bool()
        attention = logits.masked_fill(hidden, -torch.inf).softmax(dim=-1).mean(dim=-2)
        scores = attention.unflatten(1, (-1, groups)).mean(dim=2)
        scores[..., -self.window_size :] = scores.max() + 1
        return scores


@dataclass
class MeanQueryPress:
    """Expected attention's mean query, turned to positions to come by the module's own rotary embedding."""

    future: int = 4

    def score(self, module, hidden_states, keys, values, attentions, kwargs) -> Tensor:
        size = module.head_dim
        query = module.q_proj(hidden_states).unflatten(-1, (-1, size)).mean(dim=1)[:, :, None]
        places = torch.arange(self.future)[None] + hidden_states.shape[1]
        cos, sin = module.rotary_emb(query, places)
        turned = (
            query * cos + torch.cat((-query[..., size // 2 :], query[..., : size // 2]), -1) * sin
        )
        query = turned.mean(dim=2, keepdim=True)
        groups = query.shape[1] // keys.shape[1]
        logits = (query @ keys.repeat_interleave(groups, dim=1).transpose(2, 3)).squeeze(2)
        attention = (logits / math.sqrt(size)).softmax(dim=-1).unflatten(1, (-1, groups)).mean(2)
        return attention * values.norm(dim=-1)


@dataclass(frozen=True, kw_only=True)
class Watched(Press):
    """Notes what it was shown."""

    def score(self, seen: Observation) -> Tensor:
        scores = super().score(seen)
        rotated = seen.rotated.clone()
        now = replace(seen, rotate=lambda: rotated, values=seen.values.clone())
        SEEN.append((now, scores))
        return scores


SEEN: list[tuple[Observation, Tensor]] = []


def read(press: Any, tokens: int = 140, **options: Any) -> list[tuple[Observation, Tensor]]:
    SEEN.clear()
    session = Session(MODEL, None, PotConfig(policy=Watched(press=press, **options), **SIZES))
    session.append(random_ids(tokens, seed=5))
    seen = list(SEEN)
    SEEN.clear()
    return seen


def in_stock(press: Any, ids: list[int]) -> list[Tensor]:
    """The press's scores after a prefill by stock transformers, as kvpress's hook calls it."""
    cache = DynamicCache(config=MODEL.config)
    found: list[Tensor] = []

    def hook(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        layer = cache.layers[module.layer_idx]
        states = kwargs["hidden_states"]
        found.append(press.score(module, states, layer.keys, layer.values, None, kwargs))

    hooks = [
        layer.self_attn.register_forward_hook(hook, with_kwargs=True)
        for layer in MODEL.model.layers
    ]
    for layer in LAYERS:
        layer.self_attn.rotary_emb = MODEL.model.rotary_emb
    try:
        with torch.no_grad():
            MODEL(torch.tensor([ids]), **{compat.cache_argument(MODEL): cache})
    finally:
        for handle in hooks:
            handle.remove()
        for layer in LAYERS:
            del layer.self_attn.rotary_emb
    return found


@pytest.mark.parametrize("press", [KnormPress(), WindowPress(), MeanQueryPress()], ids=repr)
def test_the_first_scores_are_those_of_a_prefill(press: Any) -> None:
    seen = read(press)[: len(LAYERS)]
    length = seen[0][0].index.shape[-1]
    stock = in_stock(press, random_ids(140, seed=5)[:length])
    for (_, mine), its in zip(seen, stock, strict=True):
        assert_close("scores", mine, its.float(), 1e-5)
    assert not hasattr(LAYERS[0].self_attn, "rotary_emb"), "the model is as before"


@pytest.mark.parametrize("press", [WindowPress(), MeanQueryPress()], ids=repr)
def test_later_scores_go_on_from_the_survivors(press: Any) -> None:
    """The second distillation: entries of two kinds, and the hidden states of the newest tokens. Distances are those in the pot, with
    pinned entries before them or not."""
    seen, scores = read(press, 170)[len(LAYERS)]
    assert seen.hidden_states is not None and seen.hidden_states.shape[1] == 96
    module = LAYERS[0].self_attn
    entries = seen.index.shape[-1]
    states = seen.hidden_states[:, -entries:]
    first = seen.position - entries
    places = torch.arange(first, seen.position)[None]
    kwargs = {"position_embeddings": MODEL.model.rotary_emb(states, places)}
    module.__dict__["rotary_emb"] = lambda x, at: MODEL.model.rotary_emb(x, at + first)
    with torch.no_grad():
        expected = press.score(module, states, seen.rotated, seen.values, None, kwargs)
    del module.__dict__["rotary_emb"]
    assert_close("scores", scores, expected, 1e-5)


def test_a_smaller_window_changes_no_distances() -> None:
    whole = read(WindowPress())
    short = read(WindowPress(), window=20)
    assert short[0][0].hidden_states.shape[1] == 20
    for (_, mine), (_, its) in zip(short, whole, strict=True):
        assert_close("scores", mine, its, 1e-5)


def test_a_whole_text_is_a_prefill() -> None:
    """Also where it is longer than the pot will be, with the question at its end."""
    SEEN.clear()
    config = PotConfig(policy=Watched(press=MeanQueryPress()), prefill="whole", **SIZES)
    session = Session(MODEL, None, config)
    session.append(random_ids(140, seed=5))
    list(session.stream_ids([3, 4], pick=greedy, stop_ids=set(), max_tokens=1))
    (seen, mine), *_ = SEEN
    assert seen.index.shape[-1] == seen.hidden_states.shape[1] == 142
    stock = in_stock(MeanQueryPress(), [*random_ids(140, seed=5), 3, 4])
    assert_close("scores", mine, stock[0].float(), 1e-5)
    SEEN.clear()


class TokenPress:
    """Scores a token by its own hidden state, as KVzap does."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs) -> Tensor:
        return hidden_states[..., 0][:, None].expand(-1, keys.shape[1], -1)


def test_a_score_of_each_token_is_kept_with_its_entry() -> None:
    """In the first layer hidden states depend on the token alone: the best of all that was read stay."""
    policy = Press(press=TokenPress(), score_memory="once")
    session = Session(MODEL, None, PotConfig(policy=policy, **SIZES))
    ids = random_ids(300, seed=5)
    session.append(ids)
    read_before = 300 - session.pot.fresh.shape[1]
    assert session.stats.distillations >= 3
    with torch.no_grad():
        states = LAYERS[0].input_layernorm(MODEL.model.embed_tokens(torch.tensor(ids)))[:, 0]
    least = states[:read_before].topk(SIZES["distill_to"]).values.min()
    for kept in session.pot.bounded[0].index[0]:
        assert (states[kept.long()] >= least - 1e-5).all()


def test_a_press_knows_how_much_stays() -> None:
    press = KnormPress()
    kept = []

    def score(module, hidden_states, keys, values, attentions, kwargs) -> Tensor:
        kept.append(int(keys.shape[2] * (1 - press.compression_ratio)))
        return keys[..., 0]

    press.score = score  # type: ignore[method-assign]
    read(press)
    assert kept == [SIZES["distill_to"]] * len(LAYERS) and press.compression_ratio == 0.0


def test_a_press_by_its_name(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From kvpress alone, so that a pot file can name it. It is saved and goes on."""
    monkeypatch.setitem(sys.modules, "kvpress", SimpleNamespace(WindowPress=WindowPress, os=os))
    policy = Press(press="WindowPress(window_size=5)")
    assert policy.scorer == WindowPress(5)
    session = Session(MODEL, None, PotConfig(policy=policy, **SIZES))
    session.append(random_ids(140, seed=5))
    session.save(tmp_path / "a.pot")
    other = Session.load(tmp_path / "a.pot", MODEL, None, policy=Press)
    for one in (session, other):
        one.append(random_ids(90, seed=6))
    for mine, its in zip(session.pot.bounded, other.pot.bounded, strict=True):
        assert torch.equal(mine.index, its.index)
    for text, words in (
        ("WindowPres", "did you mean 'WindowPress'"),
        ("os", "unknown press 'os'"),
        ("WindowPress(window_size=print())", "a value is a number"),
        ("WindowPress(window_size=2", "press .* cannot be read"),
    ):
        with pytest.raises(ValueError, match=words):
            Press(press=text)
    monkeypatch.setitem(sys.modules, "kvpress", None)
    with pytest.raises(ValueError, match="pip install kvpress"):
        Press(press="WindowPress")


def test_what_is_no_press_and_what_cannot_score() -> None:
    for wrong, words in (
        (None, "an object with kvpress's method"),
        (KnormPress, "such as KnormPress"),
        (SimpleNamespace(score=lambda keys: keys), "must take module, hidden_states, keys"),
    ):
        with pytest.raises(TypeError, match=words):
            Press(press=wrong)

    class Observed:
        def score(self, module, hidden_states, keys, values, attentions, kwargs) -> Tensor:
            assert attentions is not None
            return keys[..., 0]

    session = Session(MODEL, None, PotConfig(policy=Press(press=Observed()), **SIZES))
    with pytest.raises(ValueError, match="Observed cannot score .* without attention weights"):
        session.append(random_ids(140, seed=5))


def test_a_model_reads_after_kvpress_has_wrapped_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing kvpress wraps every attention function: the wrapper gives dropout by its place."""
    own = ALL_ATTENTION_FUNCTIONS[compat.NAME]

    def wrapper(module, query, key, value, attention_mask, dropout, **kwargs) -> Any:
        return own(module, query, key, value, attention_mask, dropout, **kwargs)

    plain = read(KnormPress())
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, compat.NAME, wrapper)
    for (_, mine), (_, its) in zip(read(KnormPress()), plain, strict=True):
        assert torch.equal(mine, its)


def test_budgets_by_head_are_refused() -> None:
    """All heads of a layer keep equally many."""

    @dataclass(frozen=True, kw_only=True)
    class ByHead(Norms):
        def choose(self, layer: Observation, scores: Any, budget: int) -> Any:
            return [torch.arange(budget - 3), torch.arange(budget + 3)]

    session = Session(MODEL, None, PotConfig(policy=ByHead(), **SIZES))
    with pytest.raises(ValueError, match=r"must be a tensor \[B, K, 30\].*layer_budget"):
        session.append(random_ids(140, seed=5))
    assert {layer.length for layer in session.pot.bounded} == {96}, "nothing is lost"
    SEEN.clear()


@dataclass(frozen=True, kw_only=True)
class Norms(Policy):
    """Entries whose tokens have large hidden states."""

    window: int = 12

    def needs(self) -> frozenset[str]:
        return frozenset({"hidden_states"})

    def score(self, seen: Observation) -> Tensor:
        SEEN.append((seen, seen.keys[..., 0]))
        return seen.keys[..., 0]


def test_hidden_states_are_what_stock_gives_its_attention(tmp_path: Any) -> None:
    """Of the newest tokens only, also when they came in small pieces, from a file, and beside another text."""
    ids = random_ids(140, seed=5)
    session = Session(MODEL, None, PotConfig(policy=Norms(), **SIZES))
    session.append(ids[:40])
    session.save(tmp_path / "a.pot")
    session = Session.load(tmp_path / "a.pot", MODEL, None, policy=Norms)
    for start in range(40, 140, 5):
        session.append(ids[start : start + 5])
    length = SEEN[0][0].position
    given: list[Tensor] = []
    hooks = [
        layer.self_attn.register_forward_pre_hook(
            lambda _, args, kwargs: given.append(kwargs["hidden_states"]), with_kwargs=True
        )
        for layer in LAYERS
    ]
    with torch.no_grad():
        MODEL(torch.tensor([ids[:length]]))
    for handle in hooks:
        handle.remove()
    for (seen, _), its in zip(SEEN, given, strict=False):
        assert_close("hidden states", seen.hidden_states, its[:, -12:], 1e-5)
    assert all(seen.budget == 30 for seen, _ in SEEN)
    SEEN.clear()


def test_hidden_states_need_a_window_and_one_layer_at_a_time() -> None:
    class Stacked(Norms):
        stacks = True

    with pytest.raises(ValueError, match="needs 'hidden_states', with window=0"):
        Session(MODEL, None, PotConfig(policy=Norms(window=0), **SIZES))
    with pytest.raises(ValueError, match="sees several layers at once"):
        Session(MODEL, None, PotConfig(policy=Stacked(), **SIZES))
