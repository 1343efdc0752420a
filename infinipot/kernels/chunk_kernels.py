"""The Triton kernels that read a chunk into one pot. `chunks` imports this module when needed.

`places` is as in `pot_kernels`, for one row. `span` is on the device: the slot where the chunk
begins, and its number of tokens. So one recording serves all places of a chunk. `half`, `first`,
`second`, `step`, `sign`, `rest` and `stored` are as in `pot_kernels`.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from infinipot.kernels.slot_kernels import aligned, scales_at, scales_of, stored_at, write

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def store(
    key,
    value,
    places,
    span,
    kh,
    kn,
    vh,
    vn,
    width: tl.constexpr,
    value_width: tl.constexpr,
    wide: tl.constexpr,
    stored: tl.constexpr,
    tile: tl.constexpr,
):
    """Write the chunk's entries of one head into the pot."""
    n = tl.program_id(0) * tile + tl.arange(0, tile)
    head = tl.program_id(1)
    j = tl.arange(0, wide)
    kind = tl.pointer_type(key.dtype.element_ty)
    start = tl.load(span)
    count = tl.load(span + 1)
    entry = (head * tl.load(places + 2) + start + n)[:, None]
    far = n[:, None].to(tl.int64)
    live = (n < count)[:, None]
    inside = live & (j < width)[None, :]
    k = tl.load(key + head * kh + far * kn + j[None, :], mask=inside)
    if stored is None:
        tl.store(aligned(places, kind) + entry * width + j[None, :], k, mask=inside)
    else:
        write(places, places + 3, entry, j[None, :], k, live, width, stored)
    inside = live & (j < value_width)[None, :]
    v = tl.load(value + head * vh + far * vn + j[None, :], mask=inside)
    if stored is None:
        tl.store(aligned(places + 1, kind) + entry * value_width + j[None, :], v, mask=inside)
    else:
        write(places + 1, places + 4, entry, j[None, :], v, live, value_width, stored)


@triton.jit
def fetch(
    places,
    span,
    cos,
    sin,
    keys,
    values,
    size,
    width: tl.constexpr,
    value_width: tl.constexpr,
    half: tl.constexpr,
    wide_half: tl.constexpr,
    rest: tl.constexpr,
    wide_rest: tl.constexpr,
    wide_value: tl.constexpr,
    first: tl.constexpr,
    second: tl.constexpr,
    step: tl.constexpr,
    sign: tl.constexpr,
    stored: tl.constexpr,
    tile: tl.constexpr,
):
    """Copy the pot's entries of one head, with the chunk's: keys rotated by slot, and values."""
    n = tl.program_id(0) * tile + tl.arange(0, tile)
    head = tl.program_id(1)
    element: tl.constexpr = keys.dtype.element_ty
    kind: tl.constexpr = tl.pointer_type(element if stored is None else tl.int8)
    slot = head * tl.load(places + 2) + n
    entry = slot[:, None]
    target = (head * size + n)[:, None].to(tl.int64)
    live = n < tl.load(span) + tl.load(span + 1)
    taken = live[:, None]
    raw = aligned(places, kind)
    k_scale = scales_of(scales_at(places + 3, stored) + slot, live, stored)
    v_scale = scales_of(scales_at(places + 4, stored) + slot, live, stored)
    if half > 0:
        j = tl.arange(0, wide_half)
        inside = taken & (j < half)[None, :]
        c = tl.load(cos + n[:, None] * half + j[None, :], mask=inside, other=0.0)
        s = tl.load(sin + n[:, None] * half + j[None, :], mask=inside, other=0.0) * sign
        source = raw + entry * width + step * j[None, :]
        a = stored_at(source + first, inside, k_scale, element, stored).to(tl.float32)
        b = stored_at(source + second, inside, k_scale, element, stored).to(tl.float32)
        out = keys + target * width + step * j[None, :]
        tl.store(out + first, (a * c - b * s).to(element), mask=inside)
        tl.store(out + second, (b * c + a * s).to(element), mask=inside)
    if rest > 0:
        r = tl.arange(0, wide_rest)
        inside = taken & (r < rest)[None, :]
        k = stored_at(raw + entry * width + 2 * half + r[None, :], inside, k_scale, element, stored)
        tl.store(keys + target * width + 2 * half + r[None, :], k, mask=inside)
    d = tl.arange(0, wide_value)
    inside = taken & (d < value_width)[None, :]
    source = aligned(places + 1, kind) + entry * value_width + d[None, :]
    v = stored_at(source, inside, v_scale, element, stored)
    tl.store(values + target * value_width + d[None, :], v, mask=inside)


@triton.jit
def scores(q, k, scaling, softcap: tl.constexpr):
    """Products [tile, block] before the softmax, in units of log 2. softcap: 0 for none."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee")
    if softcap > 0:
        s = s * scaling
        s = softcap - 2 * softcap / (tl.exp(s * (2 / softcap)) + 1)  # softcap * tanh(s / softcap)
        s = s * LOG2E
    else:
        s = s * (scaling * LOG2E)
    return s


@triton.jit
def more(q, state, at, last, stop, scaling, layout: tl.constexpr, masked: tl.constexpr):
    """`state` after one more block of entries: the weighted values, the largest score, and the sum of
    2 ** scores above it.

    at: the keys and values of the KV head, and the block's first entry. last: of each row, the last
    entry that it sees. stop: the end of all entries. masked: whether the block has entries that some rows do not see.
    """
    block: tl.constexpr = layout[1]
    width: tl.constexpr = layout[2]
    wide: tl.constexpr = layout[3]
    value_width: tl.constexpr = layout[4]
    wide_value: tl.constexpr = layout[5]
    mix, high, mass = state
    keys, values, first = at
    n = first + tl.arange(0, block)
    d = tl.arange(0, wide)
    e = tl.arange(0, wide_value)
    filled = n < stop
    if masked:
        k = tl.load(
            keys + n[:, None] * width + d[None, :],
            mask=filled[:, None] & (d < width)[None, :],
            other=0.0,
        )
        v = tl.load(
            values + n[:, None] * value_width + e[None, :],
            mask=filled[:, None] & (e < value_width)[None, :],
            other=0.0,
        )
    else:
        k = tl.load(keys + n[:, None] * width + d[None, :], mask=(d < width)[None, :], other=0.0)
        v = tl.load(
            values + n[:, None] * value_width + e[None, :],
            mask=(e < value_width)[None, :],
            other=0.0,
        )
    s = scores(q, k, scaling, layout[6])
    if masked:
        s = tl.where((n[None, :] <= last[:, None]) & filled[None, :], s, float("-inf"))
    now = tl.maximum(high, tl.max(s, axis=1))
    level = now
    if masked:
        level = tl.where(now == float("-inf"), 0.0, now)
    p = tl.exp2(s - level[:, None])
    fade = tl.exp2(high - level)
    mass = mass * fade + tl.sum(p, axis=1)
    mix = tl.dot(p.to(v.dtype), v, mix * fade[:, None], input_precision="ieee")
    return mix, now, mass


@triton.jit(do_not_specialize=["span", "share"])
def attend_part(
    query,
    keys,
    values,
    span,
    sinks,
    out,
    acc,
    peak,
    total,
    qh,
    qn,
    size,
    rows,
    share,
    group,
    scaling,
    layout: tl.constexpr,
):
    """Attention of a tile of the chunk's rows over one share of the entries, for one query head.

    acc: None: the share is the whole, and the result goes to `out` [rows, H, V]. Else the sums go to
    acc [H, parts, rows, V], peak and total [H, parts, rows], for `attend_join`.
    """
    tile: tl.constexpr = layout[0]
    block: tl.constexpr = layout[1]
    width: tl.constexpr = layout[2]
    wide: tl.constexpr = layout[3]
    value_width: tl.constexpr = layout[4]
    wide_value: tl.constexpr = layout[5]
    head = tl.program_id(1)
    part = tl.program_id(2)
    start = tl.load(span).to(tl.int32)
    count = tl.load(span + 1).to(tl.int32)
    first = tl.program_id(0) * tile
    row = first + tl.arange(0, tile)
    d = tl.arange(0, wide)
    e = tl.arange(0, wide_value)
    query += head.to(tl.int64) * qh
    q = tl.load(
        query + row[:, None].to(tl.int64) * qn + d[None, :],
        mask=(row < count)[:, None] & (d < width)[None, :],
        other=0.0,
    )
    far = (head // group).to(tl.int64) * size
    keys += far * width
    values += far * value_width
    begin = part * share
    stop = tl.minimum(begin + share, start + tl.minimum(first + tile, count))
    stop = tl.where(first < count, stop, begin)
    seen = tl.minimum(stop, start + first + 1)  # entries that all rows see
    middle = begin + tl.maximum(seen - begin, 0) // block * block
    high = tl.full((tile,), float("-inf"), tl.float32)
    mass = tl.zeros((tile,), tl.float32)
    mix = tl.zeros((tile, wide_value), tl.float32)
    last = start + row
    for n in range(begin, middle, block):
        mix, high, mass = more(
            q, (mix, high, mass), (keys, values, n), last, stop, scaling, layout, False
        )
    for n in range(middle, stop, block):
        mix, high, mass = more(
            q, (mix, high, mass), (keys, values, n), last, stop, scaling, layout, True
        )
    if acc is None:
        if sinks is not None:
            sink = tl.load(sinks + head).to(tl.float32) * LOG2E
            level = tl.maximum(high, sink)
            fade = tl.exp2(high - level)
            mass = mass * fade + tl.exp2(sink - level)
            mix = mix * fade[:, None]
        mix = mix / tl.where(mass > 0, mass, 1.0)[:, None]
        place = (row[:, None].to(tl.int64) * tl.num_programs(1) + head) * value_width + e[None, :]
        inside = (row < rows)[:, None] & (e < value_width)[None, :]
        tl.store(out + place, mix.to(out.dtype.element_ty), mask=inside)
    else:
        at = (head.to(tl.int64) * tl.num_programs(2) + part) * rows + row
        tl.store(peak + at, high, mask=row < count)
        tl.store(total + at, mass, mask=row < count)
        inside = (row < count)[:, None] & (e < value_width)[None, :]
        tl.store(acc + at[:, None] * value_width + e[None, :], mix, mask=inside)


@triton.jit(do_not_specialize=["span", "parts"])
def attend_join(
    span, sinks, out, acc, peak, total, rows, parts, layout: tl.constexpr, shares: tl.constexpr
):
    """The shares of one row and head combined."""
    value_width: tl.constexpr = layout[4]
    wide_value: tl.constexpr = layout[5]
    row = tl.program_id(0)
    head = tl.program_id(1)
    e = tl.arange(0, wide_value)
    part = tl.arange(0, shares)
    live = (part < parts) & (row < tl.load(span + 1))
    at = (head.to(tl.int64) * parts + part) * rows + row
    highs = tl.load(peak + at, mask=live, other=float("-inf"))
    level = tl.maximum(tl.max(highs, axis=0), -1e30)
    if sinks is not None:
        sink = tl.load(sinks + head).to(tl.float32) * LOG2E
        level = tl.maximum(level, sink)
    weight = tl.exp2(highs - level)
    mass = tl.sum(weight * tl.load(total + at, mask=live, other=0.0), axis=0)
    if sinks is not None:
        mass += tl.exp2(sink - level)
    inside = live[:, None] & (e < value_width)[None, :]
    x = tl.load(acc + at[:, None] * value_width + e[None, :], mask=inside, other=0.0)
    result = tl.sum(x * weight[:, None], axis=0) / tl.where(mass > 0, mass, 1.0)
    place = (row.to(tl.int64) * tl.num_programs(1) + head) * value_width + e
    tl.store(out + place, result.to(out.dtype.element_ty), mask=e < value_width)
