"""The Triton kernels that compute the attention from a catalyst. `distill` imports this module when
needed.

`layout` has what the compiler must know. Numbers that differ from call to call are arguments of
their own and not specialised, as in `distill_kernels`.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def load_queries(query, strides, row, sizes, widths: tl.constexpr):
    """Queries [tile, wide] of the rows of one KV head. Row r is token r % T of head r // T. widths:
    elements of a query, and those padded."""
    head, token = strides
    count, rows = sizes
    d = tl.arange(0, widths[1])
    at = (row // count).to(tl.int64) * head + (row % count).to(tl.int64) * token
    inside = (row < rows)[:, None] & (d < widths[0])[None, :]
    return tl.load(query + at[:, None] + d[None, :], mask=inside, other=0.0)


@triton.jit
def load_keys(key, stride, n, entries, widths: tl.constexpr):
    """Keys [block, wide] of the entries n of one KV head. widths: as for `load_queries`."""
    d = tl.arange(0, widths[1])
    at = n.to(tl.int64) * stride
    inside = (n < entries)[:, None] & (d < widths[0])[None, :]
    return tl.load(key + at[:, None] + d[None, :], mask=inside, other=0.0)


@triton.jit
def products(q, k, scaling, softcap: tl.constexpr):
    """Scores [tile, block] before the softmax. softcap: 0 for none."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scaling
    if softcap > 0:
        s = softcap - 2 * softcap / (tl.exp(s * (2 / softcap)) + 1)  # softcap * tanh(s / softcap)
    return s


@triton.jit
def sizes_of(span, most, size):
    """The number of entries, the number of the catalyst's queries, and the number of queries before
    them. span: None: `size`, `most` and none."""
    entries = size
    count = most
    before = 0
    if span is not None:
        rows = tl.load(span + 1).to(tl.int32)
        entries = tl.load(span).to(tl.int32) + rows
        count = tl.load(span + 2).to(tl.int32)
        before = rows - count
    return entries, count, before


@triton.jit(do_not_specialize=["span", "peak", "total", "most", "size", "share", "start", "stop"])
def catalyst_part(
    query,
    key,
    span,
    peak,
    total,
    query_head,
    query_token,
    key_head,
    key_entry,
    most,
    size,
    group,
    share,
    start,
    stop,
    scaling,
    layout: tl.constexpr,
):
    """The largest score of each row over a share of the entries, and the sum of exp above it. The
    entries from `start` to `stop` are hidden."""
    tile: tl.constexpr = layout[0]
    block: tl.constexpr = layout[1]
    widths: tl.constexpr = layout[2]
    head = tl.program_id(1)
    part = tl.program_id(2)
    entries, count, before = sizes_of(span, most, size)
    rows = group * count
    begin = tl.program_id(0) * tile
    row = begin + tl.arange(0, tile)
    query += head.to(tl.int64) * group * query_head + before * query_token
    key += head.to(tl.int64) * key_head
    q = load_queries(query, (query_head, query_token), row, (count, rows), widths)
    last = entries - count + row % count
    high = tl.full((tile,), float("-inf"), tl.float32)
    mass = tl.zeros((tile,), tl.float32)
    stop_at = tl.minimum((part + 1) * share, entries)
    for first in range(part * share, tl.where(begin < rows, stop_at, 0), block):
        n = first + tl.arange(0, block)
        s = products(q, load_keys(key, key_entry, n, entries, widths), scaling, layout[3])
        visible = (n[None, :] <= last[:, None]) & ((n < start) | (n >= stop))[None, :]
        s = tl.where(visible, s, float("-inf"))
        now = tl.maximum(high, tl.max(s, axis=1))
        level = tl.where(now == float("-inf"), 0.0, now)
        mass = mass * tl.exp(high - level) + tl.sum(tl.exp(s - level[:, None]), axis=1)
        high = now
    at = (head * tl.num_programs(2) + part) * group * most + row
    tl.store(peak + at, high, mask=row < rows)
    tl.store(total + at, mass, mask=row < rows)


@triton.jit
def join_shares(partial, sinks, row, sizes, shares: tl.constexpr):
    """The largest score of each row, and 1 / the sum of exp above it. sinks: None, or the extra
    logits of the KV head's query heads."""
    peak, total = partial
    count, rows, parts, stride = sizes
    part = tl.arange(0, shares)
    at = part[:, None] * stride + row[None, :]
    inside = (part < parts)[:, None] & (row < rows)[None, :]
    highs = tl.load(peak + at, mask=inside, other=float("-inf"))
    masses = tl.load(total + at, mask=inside, other=0.0)
    high = tl.max(highs, axis=0)
    if sinks is not None:
        sink = tl.load(sinks + row // count, mask=row < rows, other=0.0).to(tl.float32)
        high = tl.maximum(high, sink)
    level = tl.where(row < rows, high, 0.0)
    mass = tl.sum(masses * tl.exp(highs - level[None, :]), axis=0)
    if sinks is not None:
        mass += tl.exp(sink - level)
    return level, 1 / mass


@triton.jit(
    do_not_specialize=[
        "span",
        "peak",
        "total",
        "out",
        "most",
        "size",
        "parts",
        "start",
        "stop",
    ]
)
def catalyst_join(
    query,
    key,
    span,
    peak,
    total,
    sinks,
    out,
    query_head,
    query_token,
    key_head,
    key_entry,
    most,
    size,
    group,
    parts,
    sets,
    start,
    stop,
    scaling,
    weight,
    layout: tl.constexpr,
):
    """The attention that a block of entries receives, for one KV head.

    The rows of the KV head make `sets` of `length` rows: the attention within a set is summed, and
    the largest of these sums counts.
    """
    tile: tl.constexpr = layout[0]
    block: tl.constexpr = layout[1]
    widths: tl.constexpr = layout[2]
    head = tl.program_id(1)
    entries, count, before = sizes_of(span, most, size)
    rows = group * count
    stride = group * most
    length = rows // sets
    n = tl.program_id(0) * block + tl.arange(0, block)
    query += head.to(tl.int64) * group * query_head + before * query_token
    key += head.to(tl.int64) * key_head
    partial = (peak + head * parts * stride, total + head * parts * stride)
    if sinks is not None:
        sinks += head * group
    k = load_keys(key, key_entry, n, entries, widths)
    largest = tl.zeros((block,), tl.float32)
    for number in range(sets):
        received = tl.zeros((block,), tl.float32)
        for first in range(0, length, tile):
            row = number * length + first + tl.arange(0, tile)
            inside = first + tl.arange(0, tile) < length
            q = load_queries(query, (query_head, query_token), row, (count, rows), widths)
            high, share = join_shares(partial, sinks, row, (count, rows, parts, stride), layout[4])
            p = tl.exp(products(q, k, scaling, layout[3]) - high[:, None]) * share[:, None]
            received += tl.sum(tl.where(inside[:, None], p, 0.0), axis=0)
        largest = tl.maximum(largest, received, propagate_nan=tl.PropagateNan.ALL)
    seen = ((n < start) | (n >= stop)) & (n < entries - count)
    tl.store(out + head * size + n, tl.where(seen, largest * weight, 0.0), mask=n < size)
