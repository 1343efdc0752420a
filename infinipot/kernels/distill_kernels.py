"""The Triton kernels that choose and keep survivors. `distill` imports this module when needed.

`layout` has what the compiler must know. Numbers that differ from call to call are not specialised:
each kind of them would be compiled anew. Triton specialises what is in a tuple in any case, so such
numbers are arguments of their own.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

WORDS = {4: tl.int32, 2: tl.int16, 1: tl.int8}
"""Types by their bytes, in which `compact` moves rows."""


@triton.jit
def image(x):
    """x float32 as int32, in the order of torch's sort: NaN is above all, -0.0 equals 0.0."""
    bits = x.to(tl.int32, bitcast=True)  # comparisons of float32 may flush small numbers to 0
    size = bits & 0x7FFFFFFF
    order = tl.where(size == 0, 0, bits ^ ((bits >> 31) & 0x7FFFFFFF))
    return tl.where(size > 0x7F800000, 0x7FFFFFFF, order)


@triton.jit
def highest(order, count):
    """Mask of the `count` highest of `order` [tile] int32. Of equal ones, the first win."""
    limit = tl.full((), -0x80000000, tl.int32)
    bit = tl.full((), -0x80000000, tl.int32)
    for _ in range(32):
        trial = limit ^ bit
        reached = tl.sum((order >= trial).to(tl.int32), axis=0)
        limit = tl.where(reached >= count, trial, limit)
        bit = (bit >> 1) & 0x7FFFFFFF
    above = order > limit
    equal = order == limit
    room = count - tl.sum(above.to(tl.int32), axis=0)
    return above | (equal & (tl.cumsum(equal.to(tl.int32), axis=0) <= room))


@triton.jit(
    do_not_specialize=[
        "scores",
        "novelty",
        "out",
        "score_batch",
        "score_head",
        "novelty_batch",
        "novelty_head",
        "slots",
        "budget",
        "sinks",
        "recent",
        "best",
        "novel",
    ]
)
def choose(
    scores,
    novelty,
    out,
    score_batch,
    score_head,
    novelty_batch,
    novelty_head,
    slots,
    budget,
    sinks,
    recent,
    best,
    novel,
    tile: tl.constexpr,
):
    """The survivors of one row: the `best` by scores, the `novel` by novelty. scores, novelty: None
    for those without survivors."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    j = tl.arange(0, tile)
    inside = j < slots
    kept = inside & ((j < sinks) | (j >= slots - recent))
    if novelty is not None:
        x = tl.load(novelty + row * novelty_batch + head * novelty_head + j, mask=inside, other=0.0)
        order = image(tl.where(kept, float("-inf"), x))
        kept = kept | highest(tl.where(inside, order, -0x80000000), novel)
    if scores is not None:
        x = tl.load(scores + row * score_batch + head * score_head + j, mask=inside, other=0.0)
        order = image(tl.where(kept, float("-inf"), x))
        kept = kept | highest(tl.where(inside, order, -0x80000000), best)
    before = tl.cumsum(kept.to(tl.int32), axis=0)
    others = j + 1 - before  # the first of them fill what is left of the budget
    left = budget - tl.sum(kept.to(tl.int32), axis=0)
    chosen = inside & (kept | (others <= left))
    out += (row * tl.num_programs(1) + head) * budget
    tl.store(out + before + tl.minimum(others, left) - 1, j.to(tl.int64), mask=chosen)


@triton.jit(do_not_specialize=["indices", "count", "pinned"])
def compact(places, indices, layers, count, pinned, size, kind: tl.constexpr, layout: tl.constexpr):
    """Move the rows of one head of one buffer to the front, in place, for a slice of the columns.

    A row never moves back, so a tile is stored only over rows that it or earlier tiles have read.
    """
    tile: tl.constexpr = layout[0]
    lanes: tl.constexpr = layout[1]
    words: tl.constexpr = layout[2]
    buffer = tl.program_id(0)
    head = tl.program_id(1)
    word = tl.program_id(2) * lanes + tl.arange(0, lanes)
    base = tl.load(places + buffer).to(tl.pointer_type(kind))
    base = tl.multiple_of(base, 16) + head.to(tl.int64) * size * words
    indices += ((buffer % layers) * tl.num_programs(1) + head).to(tl.int64) * count
    for first in range(pinned, count, tile):
        row = first + tl.arange(0, tile)
        inside = (row < count)[:, None] & (word < words)[None, :]
        source = tl.load(indices + row, mask=row < count, other=0)
        x = tl.load(base + source[:, None] * words + word[None, :], mask=inside)
        tl.debug_barrier()
        tl.store(base + row[:, None].to(tl.int64) * words + word[None, :], x, mask=inside)
