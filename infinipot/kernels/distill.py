"""Calls of the Triton kernels of a distillation, for CUDA devices.

Each has a reference in plain torch: `scoring.representativeness`, `scoring.selection.choose` and
`cache.storage.Slots.move`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from infinipot.kernels.launch import available, dense_rows, next_power_of_2, on, run

ROWS = 512
"""Most rows of a catalyst for `catalyst_scores`."""
SLOTS = 32768
"""Most slots for `choose_indices`."""
PROGRAMS = 512
"""Programs that fill a device."""


class Scoring(Protocol):
    """What `scoring.representativeness.Scoring` has."""

    @property
    def scaling(self) -> float: ...
    @property
    def softcap(self) -> float | None: ...
    @property
    def sinks(self) -> Tensor | None: ...
    @property
    def hidden(self) -> tuple[int, int]: ...


def _on_device(x: Tensor) -> bool:
    return x.is_cuda and available()


def supports_scores(query: Tensor, key: Tensor) -> bool:
    """Whether `catalyst_scores` accepts these queries [1, H, T, D] and keys [1, K, N, D]."""
    return (
        supports_vectors(query)
        and query.dtype == key.dtype
        and query.shape[1] % key.shape[1] == 0
        and query.shape[2] <= min(ROWS, key.shape[2] - 1)
    )


def supports_vectors(x: Tensor) -> bool:
    """Whether `catalyst_scores` works with queries or keys [1, heads, ..., D] of this kind."""
    width = x.shape[-1]
    return (
        _on_device(x)
        and x.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and len(x) == 1
        and 16 <= width <= 256
    )


class Part(NamedTuple):
    """The catalyst among the rows of a chunk. span: on the device, [3] int64: the slot where the chunk
    begins, its number of rows, and how many of the last of them are the catalyst, at most `most`.
    None: all rows are the catalyst."""

    span: Tensor | None
    most: int


def catalyst_scores(
    query: Tensor, key: Tensor, scoring: Scoring, how: str = "mean", part: Part | None = None
) -> Tensor:
    """The attention that entries receive from a catalyst, [1, K, N] float32; 0 for its own entries.

    query: [1, H, T, D], rotated, of the last T entries. key: [1, K, N, D], rotated. how: `mean`,
    `max` or `sum` over the query heads of a KV head. The first N - T columns equal `reduce_groups(
    representativeness(causal_softmax(query, key, scoring)), K, how)`, without the attention in
    memory.

    part: query and key may have more rows than the chunk and more entries than the pot. Those behind
    get 0.
    """
    from infinipot.kernels import catalyst_kernels

    query = dense_rows(query)
    key = dense_rows(key)
    part = part or Part(None, query.shape[2])
    heads, size = key.shape[1:3]
    group = query.shape[1] // heads
    sets = group if how == "max" else 1
    weight = 1 / group if how == "mean" else 1.0
    peak, total = _denominators(query, key, scoring, part)
    out = torch.empty(1, heads, size, dtype=torch.float32, device=query.device)
    layout = _layout(query, scoring, group * part.most // sets)
    parts = peak.shape[1]
    with on(query):
        args = (
            *(query, key, part.span, peak, total, scoring.sinks, out),
            *(*query.stride()[1:3], *key.stride()[1:3]),
            *(part.most, size, group, parts, sets),
            *scoring.hidden,
            float(scoring.scaling),
            weight,
            (*layout, next_power_of_2(parts)),
        )
        grid = (-(-size // layout[1]), heads)
        form = (query.dtype, layout)
        run(catalyst_kernels.catalyst_join, grid, args, form, num_warps=_warps(query))
    return out


def _denominators(query: Tensor, key: Tensor, scoring: Scoring, part: Part) -> Tensor:
    """Of each row and each share of the entries: the largest score, and the sum of exp above it.
    [2, K, shares, H/K * T] float32."""
    from infinipot.kernels import catalyst_kernels

    heads, size = key.shape[1:3]
    group = query.shape[1] // heads
    rows = group * part.most
    layout = _layout(query, scoring, rows)
    tiles = -(-rows // layout[0])
    share, parts = _shares(-(-size // layout[1]), heads * tiles)
    result = torch.empty(2, heads, parts, rows, dtype=torch.float32, device=query.device)
    with on(query):
        args = (
            *(query, key, part.span, *result),
            *(*query.stride()[1:3], *key.stride()[1:3]),
            *(part.most, size, group, share * layout[1]),
            *scoring.hidden,
            float(scoring.scaling),
            layout,
        )
        form = (query.dtype, layout)
        grid = (tiles, heads, parts)
        run(catalyst_kernels.catalyst_part, grid, args, form, num_warps=_warps(query))
    return result


def _layout(query: Tensor, scoring: Scoring, rows: int) -> tuple[int, int, tuple[int, int], float]:
    """Rows and entries of a tile, elements of a query and those padded, softcap. Two tiles fit into a
    multiprocessor's memory."""
    width = query.shape[-1]
    wide = next_power_of_2(width)
    tile = max(16, min(64, 16384 // (wide * query.element_size())))
    block = tile
    if tile == 64:
        block = 128
    tile = min(tile, max(16, next_power_of_2(rows)))
    return tile, block, (width, wide), float(scoring.softcap or 0)


def _shares(blocks: int, programs: int) -> tuple[int, int]:
    """Blocks of entries in a share, and the number of shares, at most 64."""
    parts = min(64, blocks, max(1, PROGRAMS // programs))
    share = -(-blocks // parts)
    return share, -(-blocks // share)


def _warps(query: Tensor) -> int:
    if query.dtype == torch.float32:  # without tensor cores
        return 8
    return 4


def supports_choice(some: Tensor, budget: int, sinks: int, recent: int) -> bool:
    """Whether `choose_indices` accepts this. some: scores or novelty, [B, K, P]."""
    return (
        _on_device(some)
        and some.dtype == torch.float32
        and sinks + recent <= budget <= some.shape[-1] <= SLOTS
    )


def choose_indices(
    scores: Tensor | None,
    novelty: Tensor | None,
    budget: int,
    share: float,
    sinks: int,
    recent: int,
) -> Tensor:
    """Indices [B, K, budget] int64 of the survivors, ascending, as `scoring.selection.choose`.

    scores, novelty: [B, K, P] float32, at least one of them, of any strides. B may count layers.
    share, sinks, recent: as there. If the highest ones are too few, because an entry that stays ties
    with others at -inf, or there are no scores for the rest, the first slots fill the budget, in
    their place; `choose` puts them last.
    """
    from infinipot.kernels import distill_kernels

    free = budget - sinks - recent
    novel = 0
    if novelty is not None:
        novel = int(share * free + 0.5)
    some = scores
    if some is None:
        some = novelty
    assert some is not None, "a choice needs novelty or scores"
    batch, heads, slots = some.shape
    best, best_strides = _ranked(scores, free - novel)
    news, news_strides = _ranked(novelty, novel)
    out = torch.empty(batch, heads, budget, dtype=torch.int64, device=some.device)
    tile = max(128, next_power_of_2(slots))
    with on(some):
        distill_kernels.choose[(batch, heads)](
            *(best, news, out),
            *(best_strides + news_strides),
            *(slots, budget, sinks, recent),
            *(free - novel, novel),
            tile,
            num_warps=max(4, min(32, tile // 512)),
        )
    return out


def _ranked(x: Tensor | None, count: int) -> tuple[Tensor | None, tuple[int, int]]:
    """x [B, K, P] and its first two strides; None and zeros if no slot is chosen by it."""
    if x is None or not count:
        return None, (0, 0)
    x = dense_rows(x)
    return x, (x.stride(0), x.stride(1))


def supports_compaction(indices: Tensor) -> bool:
    """Whether `compact` accepts these indices."""
    return _on_device(indices) and indices.dtype == torch.int64


def compact(places: Tensor, indices: Tensor, pinned: int, size: int, row_bytes: int) -> None:
    """Keep the rows at `indices` of several buffers, in place, as `Slots.move(pinned,
    indices[..., pinned:])`.

    places: [..., L] int64, the addresses of contiguous buffers [1, K, size, D] of L layers, multiples
    of 16. indices: [L, K, C] int64, ascending without repeats, or [1, K, C] for all layers. The
    first `pinned` rows stay where they are. row_bytes: D times the bytes of an element.
    """
    from infinipot.kernels import distill_kernels

    places = places.reshape(-1)
    indices = indices.contiguous()
    layers, heads, count = indices.shape
    unit = next(unit for unit in distill_kernels.WORDS if row_bytes % unit == 0)
    words = row_bytes // unit
    lanes = min(64, next_power_of_2(words))
    grid = (len(places), heads, -(-words // lanes))
    with on(indices):
        distill_kernels.compact[grid](
            places,
            indices,
            *(layers, count, pinned, size),
            distill_kernels.WORDS[unit],
            (4096 // lanes, lanes, words),
        )
