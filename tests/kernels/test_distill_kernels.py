"""The Triton kernels of a distillation against their naive twins: on a GPU, or anywhere with Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os

import pytest
import torch
from helpers import assert_close

from infinipot.kernels import distill
from infinipot.scoring.representativeness import Scoring, causal_softmax, representativeness
from infinipot.scoring.selection import reduce_groups

pytest.importorskip("triton", reason="needs Triton, which comes with torch for CUDA")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs a CUDA device, or TRITON_INTERPRET=1",
)


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the predicates judge shapes and types only."""
    monkeypatch.setattr(distill, "_on_device", lambda x: True)


def products(
    shape: tuple[int, int, int, int, int], dtype: torch.dtype, scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries [1, H, T, D] and keys [1, K, N, D]. The queries are strided as models project them, the keys as in a larger buffer."""
    heads, kv_heads, rows, entries, width = shape
    random = torch.Generator().manual_seed(0)
    query = scale * torch.randn(1, rows, heads, width, generator=random).transpose(1, 2)
    buffer = torch.randn(1, kv_heads, entries + 37, width, generator=random).to(DEVICE, dtype)
    return query.to(DEVICE, dtype), buffer[:, :, :entries]


def naive_scores(
    query: torch.Tensor, key: torch.Tensor, scoring: Scoring, how: str
) -> torch.Tensor:
    attention = causal_softmax(query, key, scoring)
    return reduce_groups(representativeness(attention), key.shape[1], how)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("how", ["mean", "max", "sum"])
@pytest.mark.parametrize(
    "shape",  # H, K, T, N, D
    [(4, 2, 20, 150, 32), (3, 3, 1, 65, 16), (8, 1, 33, 300, 64), (16, 1, 5, 64, 128)],
)
def test_scores(dtype: torch.dtype, how: str, shape: tuple[int, int, int, int, int]) -> None:
    query, key = products(shape, dtype)
    scoring = Scoring(0.3)
    got = distill.catalyst_scores(query, key, scoring, how)
    expected = naive_scores(query, key, scoring, how)
    assert got.shape == expected.shape
    assert_close(how, got, expected, tolerance=1e-5)


@pytest.mark.parametrize("how", ["mean", "max"])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("sinks", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hidden", [(0, 0), (0, 64), (3, 101)])
def test_scores_as_models_compute_them(
    how: str, softcap: float | None, sinks: torch.dtype | None, hidden: tuple[int, int]
) -> None:
    query, key = products((6, 2, 20, 150, 32), torch.float16)
    extra = None
    if sinks is not None:
        extra = torch.linspace(-2, 5, 6).to(DEVICE, sinks)
    scoring = Scoring(0.3, softcap, extra, hidden)
    got = distill.catalyst_scores(query, key, scoring, how)
    assert_close(how, got, naive_scores(query, key, scoring, how), tolerance=1e-5)
    assert not got[..., slice(*hidden)].any()


def test_scores_of_extreme_products() -> None:
    """Products in the thousands neither overflow nor lose a row whose mass is in one share."""
    query, key = products((4, 2, 40, 700, 16), torch.float32, scale=300.0)
    scoring = Scoring(1.0)
    got = distill.catalyst_scores(query, key, scoring)
    assert_close("extreme", got, naive_scores(query, key, scoring, "mean"), tolerance=1e-3)


def test_scores_of_a_wide_long_catalyst(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles of rows, one share of the entries."""
    monkeypatch.setattr(distill, "PROGRAMS", 1)
    query, key = products((2, 1, 130, 400, 256), torch.bfloat16)
    for how in ("sum", "max"):
        got = distill.catalyst_scores(query, key, Scoring(0.1), how)
        assert_close(how, got, naive_scores(query, key, Scoring(0.1), how), tolerance=1e-5)


@pytest.mark.usefixtures("anywhere")
def test_what_scores_support() -> None:
    def supported(heads: int, rows: int, width: int, batch: int = 1) -> bool:
        query = torch.zeros(batch, heads, rows, width)
        return distill.supports_scores(query, torch.zeros(batch, 2, 600, width))

    assert supported(4, 20, 64)
    assert supported(32, 512, 16)
    assert not supported(34, 20, 64)
    assert not supported(3, 20, 64)
    assert not supported(4, 513, 64)
    assert not supported(4, 20, 80)
    assert not supported(4, 20, 512)
    assert not supported(4, 20, 64, batch=2)
    query = torch.zeros(1, 4, 20, 64)
    assert not distill.supports_scores(query, torch.zeros(1, 2, 20, 64))
    assert not distill.supports_scores(query, torch.zeros(1, 2, 99, 64, dtype=torch.float16))
    assert not distill.supports_scores(query.double(), torch.zeros(1, 2, 99, 64).double())
