"""The Triton kernels of a distillation against their naive twins: on a GPU, or anywhere with Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from helpers import assert_close

from infinipot.cache.storage import QUANTISED, Slots
from infinipot.kernels import distill
from infinipot.scoring.representativeness import Scoring, causal_softmax, representativeness
from infinipot.scoring.selection import choose, reduce_groups

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


def scored(
    query: torch.Tensor, key: torch.Tensor, scoring: Scoring, how: str = "mean"
) -> torch.Tensor:
    """`catalyst_scores` without the catalyst's own columns. The same queries between others, before
    entries that are none, give the same."""
    got = distill.catalyst_scores(query, key, scoring, how)
    rows, entries = query.shape[2], key.shape[2]
    assert not got[..., -rows:].any()
    others = torch.full_like(query[:, :, :1], torch.nan).expand(-1, -1, 5, -1)
    longer = torch.cat((others, query, others), dim=2)
    nothing = torch.full_like(key[:, :, :1], torch.nan).expand(-1, -1, 70, -1)
    span = torch.tensor([entries - rows - 5, rows + 5, rows], device=query.device)
    part = distill.Part(span, rows + 7)
    counted = distill.catalyst_scores(longer, torch.cat((key, nothing), 2), scoring, how, part)
    assert_close("counted", counted[..., :entries], got, tolerance=1e-5)
    assert not counted[..., entries:].any()
    return got[..., :-rows]


def naive_scores(
    query: torch.Tensor, key: torch.Tensor, scoring: Scoring, how: str
) -> torch.Tensor:
    attention = causal_softmax(query, key, scoring)
    return reduce_groups(representativeness(attention), key.shape[1], how)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("how", ["mean", "max", "sum"])
@pytest.mark.parametrize(
    "shape",  # H, K, T, N, D
    [(4, 2, 20, 150, 32), (3, 3, 1, 65, 16), (8, 1, 33, 300, 96), (16, 1, 5, 64, 128)],
)
def test_scores(dtype: torch.dtype, how: str, shape: tuple[int, int, int, int, int]) -> None:
    query, key = products(shape, dtype)
    scoring = Scoring(0.3)
    got = scored(query, key, scoring, how)
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
    got = scored(query, key, scoring, how)
    assert_close(how, got, naive_scores(query, key, scoring, how), tolerance=1e-5)
    assert not got[..., slice(*hidden)].any()


def test_scores_of_extreme_products() -> None:
    """Products in the thousands neither overflow nor lose a row whose mass is in one share."""
    query, key = products((4, 2, 40, 700, 16), torch.float32, scale=300.0)
    scoring = Scoring(1.0)
    got = scored(query, key, scoring)
    assert_close("extreme", got, naive_scores(query, key, scoring, "mean"), tolerance=1e-3)


def test_scores_of_a_wide_long_catalyst(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles of rows, one share of the entries."""
    monkeypatch.setattr(distill, "PROGRAMS", 1)
    query, key = products((2, 1, 130, 400, 256), torch.bfloat16)
    for how in ("sum", "max"):
        got = scored(query, key, Scoring(0.1), how)
        assert_close(how, got, naive_scores(query, key, Scoring(0.1), how), tolerance=1e-5)


@pytest.mark.usefixtures("anywhere")
def test_what_scores_support() -> None:
    def supported(heads: int, rows: int, width: int, batch: int = 1) -> bool:
        query = torch.zeros(batch, heads, rows, width)
        return distill.supports_scores(query, torch.zeros(batch, 2, 600, width))

    assert supported(4, 20, 64)
    assert supported(32, 512, 16)
    assert supported(34, 20, 64)
    assert not supported(3, 20, 64)
    assert not supported(4, 513, 64)
    assert supported(4, 20, 80)
    assert not supported(4, 20, 512)
    assert not supported(4, 20, 64, batch=2)
    query = torch.zeros(1, 4, 20, 64)
    assert not distill.supports_scores(query, torch.zeros(1, 2, 20, 64))
    assert not distill.supports_scores(query, torch.zeros(1, 2, 99, 64, dtype=torch.float16))
    assert not distill.supports_scores(query.double(), torch.zeros(1, 2, 99, 64).double())


def rows(shape: tuple[int, int, int], kind: str) -> torch.Tensor:
    """Scores [B, K, P] with what makes an order difficult."""
    random = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=random)
    if kind == "ties":
        x = x.round()
    elif kind == "equal":
        x = torch.full(shape, 0.25)
    elif kind == "zeros":
        x = torch.where(x > 0, 0.0, -0.0)
        x[..., ::5] = x[..., ::5].sign() * 1e-45
    elif kind == "special":
        special = torch.tensor([torch.nan, -torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-40])
        x = special[torch.randint(0, 7, shape, generator=random)]
    elif kind == "empty":
        x = torch.full(shape, -torch.inf)
    return x.to(DEVICE)


def assert_chosen(
    scores: torch.Tensor | None, novelty: torch.Tensor | None, budget: int, *options: float
) -> None:
    share, sinks, recent = options
    got = distill.choose_indices(scores, novelty, budget, share, int(sinks), int(recent))
    expected = choose(
        budget, novelty=novelty, scores=scores, share=share, sinks=int(sinks), recent=int(recent)
    )
    assert got.dtype == torch.int64
    # the twin puts slots that only fill the budget last, out of order
    assert torch.equal(got, expected.sort(dim=-1).values)


KINDS_OF_ROWS = ["random", "ties", "equal", "zeros", "special", "empty"]


@pytest.mark.parametrize("kind", KINDS_OF_ROWS)
@pytest.mark.parametrize(
    ("budget", "share", "sinks", "recent"),
    [(100, 0.3, 4, 8), (57, 1.0, 0, 0), (299, 0.5, 1, 30)],
)
def test_choice(kind: str, budget: int, share: float, sinks: int, recent: int) -> None:
    """The twin's slots, with scores alone, novelty alone, and both."""
    scores = rows((2, 1, 300), kind)
    novelty = rows((2, 1, 300), "ties")
    assert_chosen(scores, None, budget, share, sinks, recent)
    assert_chosen(None, scores, budget, share, sinks, recent)
    assert_chosen(scores, novelty, budget, share, sinks, recent)
    assert_chosen(novelty, scores, budget, share, sinks, recent)


def test_choice_without_freedom() -> None:
    """Sinks and recent entries are the whole budget, or the budget is all slots."""
    scores = rows((1, 2, 300), "ties")
    assert_chosen(scores, scores, 12, 0.4, 4, 8)
    assert_chosen(scores, scores, 300, 0.2, 16, 1)


def test_choice_among_strided_rows() -> None:
    scores = rows((5, 3, 400), "ties")[1::2, :, 30:230]
    novelty = rows((2, 1, 200), "ties").expand(2, 3, 200)
    assert_chosen(scores, novelty, 77, 0.4, 4, 8)
    assert_chosen(scores.expand(2, 3, 200), novelty, 77, 0.4, 4, 8)
    spread = rows((2, 200, 3), "ties").transpose(1, 2)
    assert_chosen(spread, novelty, 77, 0.4, 4, 8)


@pytest.mark.parametrize("slots", [1, 2, 127, 1000, 4096, 32768])
def test_choice_among_few_and_many_slots(slots: int) -> None:
    for budget in {1, slots // 2, slots - 1, slots} - {0}:
        assert_chosen(rows((1, 2, slots), "ties"), rows((1, 2, slots), "random"), budget, 0.5, 0, 0)


@pytest.mark.usefixtures("anywhere")
def test_what_the_choice_supports() -> None:
    some = torch.zeros(1, 2, 100)
    assert distill.supports_choice(some, 12, 4, 8)
    assert not distill.supports_choice(some, 11, 4, 8)
    assert not distill.supports_choice(some, 101, 4, 8)
    assert not distill.supports_choice(some.half(), 12, 4, 8)
    assert not distill.supports_choice(torch.zeros(1, 1, 32769), 12, 4, 8)


def survivors(layers: int, heads: int, slots: int, count: int, pinned: int) -> torch.Tensor:
    """Ascending indices [layers, heads, count], of which the first `pinned` are fixed points."""
    random = torch.Generator().manual_seed(0)
    order = torch.rand(layers, heads, slots - pinned, generator=random).argsort(dim=-1)
    free = order[..., : count - pinned].sort(dim=-1).values + pinned
    head = torch.arange(pinned).expand(layers, heads, pinned)
    return torch.cat((head, free), dim=-1).to(DEVICE)


def stored(count: int, heads: int, size: int, width: int, kind: str) -> list[Slots]:
    """Slots full of vectors. kind: a type of torch, or an eight-bit kind."""
    random = torch.Generator().manual_seed(0)
    found = []
    for _ in range(count):
        x = torch.randn(1, heads, size, width, generator=random).to(DEVICE)
        eight_bit = kind if kind in QUANTISED else None
        slots = Slots(x.to(getattr(torch, kind, torch.bfloat16)), size, eight_bit)
        slots.write(0, x)
        found.append(slots)
    return found


def move_all(buffers: list[list[torch.Tensor]], indices: torch.Tensor, pinned: int) -> None:
    """Compact buffers [layer][0]."""
    places = torch.tensor([[x.data_ptr() for x in row] for row in buffers]).T.to(DEVICE)
    one = buffers[0][0]
    size, row_bytes = one.shape[2], one.shape[3] * one.element_size()
    distill.compact(places, indices, pinned, size, row_bytes)


@pytest.mark.parametrize("kind", ["bfloat16", "float32", "int8", "fp8"])
@pytest.mark.parametrize(
    ("size", "count", "pinned", "width"),
    [(300, 150, 4, 64), (300, 299, 0, 80), (400, 1, 0, 7), (129, 129, 3, 256), (200, 5, 5, 16)],
)
def test_compaction(kind: str, size: int, count: int, pinned: int, width: int) -> None:
    """Keys and values of three layers, and the scales of their eight-bit kinds, move as with the twin."""
    slots = stored(6, 2, size, width, kind)
    expected = [x.copy() for x in slots]
    indices = survivors(3, 2, size, count, pinned)
    for kinds in zip(*(x.tensors for x in slots), strict=True):
        move_all([[kinds[layer], kinds[3 + layer]] for layer in range(3)], indices, pinned)
    for place, twin in enumerate(expected):
        twin.move(pinned, indices[place % 3 : place % 3 + 1, :, pinned:])
        for got, moved in zip(slots[place].tensors, twin.tensors, strict=True):
            assert torch.equal(got.float(), moved.float())


def test_compaction_with_the_same_indices_in_all_layers() -> None:
    slots = stored(4, 3, 500, 32, "float16")
    expected = [x.copy() for x in slots]
    indices = survivors(1, 3, 500, 222, 10)
    move_all([[x.data] for x in slots], indices, 10)
    for got, twin in zip(slots, expected, strict=True):
        twin.move(10, indices[..., 10:])
        assert torch.equal(got.data, twin.data)


@pytest.mark.usefixtures("anywhere")
def test_what_the_compaction_supports() -> None:
    indices = torch.zeros(2, 3, 4, dtype=torch.int64)
    assert distill.supports_compaction(indices)
    assert not distill.supports_compaction(indices.int())


def compiled(kernel: Any) -> int:
    """How often Triton compiled a kernel."""
    return sum(len(caches[0]) for caches in kernel.device_caches.values())


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
def test_other_numbers_compile_nothing() -> None:
    """A compilation takes half a second, in which a server answers nobody."""
    from infinipot.kernels import catalyst_kernels, distill_kernels

    kernels = [catalyst_kernels.catalyst_part, catalyst_kernels.catalyst_join]
    kernels += [distill_kernels.choose, distill_kernels.compact]
    before = []
    for entries, rows, budget in ((800, 33, 512), (801, 40, 401), (816, 48, 640)):
        query, key = products((8, 2, rows, entries, 64), torch.bfloat16)
        scores = distill.catalyst_scores(query, key, Scoring(64**-0.5))[..., 3:]
        indices = distill.choose_indices(scores, scores.clone(), budget, 0.25, 1, 17)
        slots = stored(2, 2, 1024, 64, "bfloat16")
        move_all([[x.data] for x in slots], indices, 3)
        before.append([compiled(kernel) for kernel in kernels])
    assert before[0] == before[1] == before[2]
