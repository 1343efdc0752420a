"""While a pot is read a model's own rotary embedding costs nothing, and no other model notices."""

from __future__ import annotations

import cProfile
import pstats
import sys
import threading
from typing import Any

import pytest
import torch
from families import FAMILIES
from helpers import CATALYST, random_ids
from tiny import make_tiny

from infinipot import PotConfig, Session
from infinipot.model import rope_bypass
from infinipot.model.attention import at_work
from infinipot.model.rope_bypass import NAME, bypass, namespaces, neutral
from infinipot.model.rope_probe import Probe

COS = torch.randn(1, 5, 8)
SIN = torch.randn(1, 5, 8)
QUERY = torch.randn(1, 3, 5, 8)
KEY = torch.randn(1, 1, 5, 8)


def rotated_by(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    def one(x: Any) -> Any:
        half = torch.cat((-x[..., 4:], x[..., :4]), dim=-1)
        return x * cos.unsqueeze(unsqueeze_dim) + half * sin.unsqueeze(unsqueeze_dim)

    return one(q), one(k)


def test_nothing_is_computed_for_the_neutral_rotation() -> None:
    rotate = bypass(rotated_by)
    cos, sin = neutral((COS, SIN))
    assert all(
        torch.equal(a, b) for a, b in zip(rotate(QUERY, KEY, cos, sin), (QUERY, KEY), strict=True)
    ), "the first call asks"
    q, k = rotate(QUERY, KEY, cos, sin)
    assert q is QUERY
    assert k is KEY
    expected = rotated_by(QUERY, KEY, COS, SIN)
    assert all(
        torch.equal(a, b) for a, b in zip(rotate(QUERY, KEY, COS, SIN), expected, strict=True)
    ), "another model's rotation"


def test_what_is_computed_from_the_neutral_rotation_is_ordinary() -> None:
    cos, sin = neutral((COS, SIN))
    assert not hasattr(cos[..., :4], "is_neutral")
    assert torch.equal((1 - cos) * QUERY + sin.cos(), torch.ones_like(QUERY))


def test_a_function_that_does_something_else_is_called() -> None:
    def interleaved(q: Any, k: Any, cos: Any, sin: Any) -> Any:
        q, k = (x.unflatten(-1, (4, 2)).transpose(-1, -2).flatten(-2) for x in (q, k))
        return rotated_by(q, k, cos, sin)

    rotate = bypass(interleaved)
    for _ in range(3):
        got = rotate(QUERY, KEY, *neutral((COS, SIN)))
        assert torch.equal(got[0], interleaved(QUERY, KEY, *neutral((COS, SIN)))[0])


def test_only_functions_of_the_usual_kind_are_replaced() -> None:
    class Elsewhere(torch.nn.Module):
        pass

    here = vars(sys.modules[__name__])
    for function, replaced in (
        (rotated_by, True),
        (lambda x, cos, sin: x, False),
        (lambda q, k=None, cos=None, sin=None: q, False),
    ):
        here[NAME] = function
        try:
            assert bool(namespaces(Elsewhere())) is replaced
        finally:
            del here[NAME]


def test_a_model_of_the_same_family_in_another_thread_is_as_it_was() -> None:
    """Its functions are replaced, too, but it has a rotation of its own."""
    model, other = make_tiny("llama"), make_tiny("llama")
    ids = torch.tensor([random_ids(20)])
    expected = other(ids).logits
    before = namespaces(model)[0][NAME]
    found: list[torch.Tensor] = []
    with at_work(model, Probe()):
        assert namespaces(other)[0][NAME] is not before
        thread = threading.Thread(target=lambda: found.append(other(ids).logits))
        thread.start()
        thread.join()
    assert torch.equal(found[0], expected)
    assert namespaces(model)[0][NAME] is before


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_bypassed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same result as by multiplying by one."""
    family = FAMILIES[name]
    logits = []
    for multiplied in (False, True):
        if multiplied:
            monkeypatch.setattr(rope_bypass, "_marked", lambda constant: constant)
        session = Session(
            family.build(), None, PotConfig(pot_size=40, distill_to=20, chunk_tokens=16)
        )
        session.append(random_ids(70), question=CATALYST)
        logits.append(session.logits)
    assert torch.equal(*logits)


def test_share_of_python_calls() -> None:
    session = Session(
        make_tiny("llama"), None, PotConfig(pot_size=256, distill_to=128, chunk_tokens=64)
    )
    session.append(random_ids(300), question=CATALYST)
    profile = cProfile.Profile()
    profile.runcall(session.append, random_ids(1000), question=CATALYST)
    calls = {
        place: counts[1] for place, counts in pstats.Stats(profile).stats.items() if place[0] != "~"
    }  # type: ignore[attr-defined]
    own = sum(count for place, count in calls.items() if place[0] == rope_bypass.__file__)
    assert own < 0.05 * sum(calls.values())
