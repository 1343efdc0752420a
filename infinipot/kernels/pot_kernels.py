"""Triton kernels that work on the slots of pots, by address. Importing this module takes seconds;
`pots` imports it when needed. Numbers that differ from call to call are not specialised: each kind
of them would be compiled anew.

`places` is [3, rows] int64: for each row the address of a pot's raw keys [1, K, size, D], of its
values [1, K, size, V], and its size. A recording stays valid for any pot: only `places` changes.
`stored` is the eight-bit type of keys and values, `int8` or `fp8`; None: the model's own. Then
`places` is [5, rows], with the addresses of the scales [1, K, size] of keys and of values.
`half` is the number of rotated pairs, 0 without rotation. Pair j is at first + step*j and
second + step*j. `rest` is the number of elements that pass through. All `wide_*` are paddings to a
power of two.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from infinipot.kernels.slot_kernels import aligned, scales_at, scales_of, stored_at, write


@triton.jit
def append(
    key,
    value,
    places,
    slots,
    kb,
    kh,
    vb,
    vh,
    width: tl.constexpr,
    value_width: tl.constexpr,
    wide: tl.constexpr,
    stored: tl.constexpr,
):
    """Write one entry of one head into the slot of its row. Rows with slot -1 are skipped."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    rows = tl.num_programs(0)
    kind = tl.pointer_type(key.dtype.element_ty)
    slot = tl.load(slots + row)
    entry = head * tl.load(places + 2 * rows + row) + slot
    j = tl.arange(0, wide)
    live = slot >= 0
    k = tl.load(key + row * kb + head * kh + j, mask=j < width)
    v = tl.load(value + row * vb + head * vh + j, mask=j < value_width)
    if stored is None:
        tl.store(aligned(places + row, kind) + entry * width + j, k, mask=live & (j < width))
        tl.store(
            aligned(places + rows + row, kind) + entry * value_width + j,
            v,
            mask=live & (j < value_width),
        )
    else:
        place = places + row
        entry += tl.arange(0, 1)
        alive = slot + tl.arange(0, 1) >= 0
        write(place, place + 3 * rows, entry, j, k, alive, width, stored)
        write(place + rows, place + 4 * rows, entry, j, v, alive, value_width, stored)


@triton.jit(do_not_specialize=["share"])
def attend_part(
    query,
    places,
    slots,
    cos,
    sin,
    packed,
    acc,
    peak,
    total,
    qb,
    qh,
    scale,
    softcap,
    share,
    group: tl.constexpr,
    tile: tl.constexpr,
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
    capped: tl.constexpr,
    exact: tl.constexpr,
    stored: tl.constexpr,
    block: tl.constexpr,
):
    """Attention of one row over one share of its slots, for the query heads of one KV head.

    Queries and keys are rotated here, by their slots. exact: by cos and sin, else by both in 16 bits
    each, which halves what is read of the tables. The result is not normalised; `attend_join`
    does that.
    """
    row = tl.program_id(0)
    head = tl.program_id(1)
    part = tl.program_id(2)
    rows = tl.num_programs(0)
    heads = tl.num_programs(1)
    parts = tl.num_programs(2)
    element: tl.constexpr = query.dtype.element_ty
    kind: tl.constexpr = tl.pointer_type(element if stored is None else tl.int8)
    slot = tl.load(slots + row)
    size = tl.load(places + 2 * rows + row)
    keys = aligned(places + row, kind) + head * size * width
    values = aligned(places + rows + row, kind) + head * size * value_width
    key_scales = scales_at(places + 3 * rows + row, stored) + head * size
    value_scales = scales_at(places + 4 * rows + row, stored) + head * size
    g = tl.arange(0, tile)
    j = tl.arange(0, wide_half)
    r = tl.arange(0, wide_rest)
    d = tl.arange(0, wide_value)
    own = query + row * qb + (head * group + g[:, None]) * qh
    if half > 0:
        place = tl.maximum(slot, 0) * half + j
        c0 = tl.load(cos + place, mask=j < half, other=0.0)[None, :]
        s0 = tl.load(sin + place, mask=j < half, other=0.0)[None, :] * sign
        pairs = (g < group)[:, None] & (j < half)[None, :]
        qa = tl.load(own + first + step * j[None, :], mask=pairs, other=0.0).to(tl.float32)
        qc = tl.load(own + second + step * j[None, :], mask=pairs, other=0.0).to(tl.float32)
        q1 = (qa * c0 - qc * s0).to(element)
        q2 = (qc * c0 + qa * s0).to(element)
    if rest > 0:
        others = (g < group)[:, None] & (r < rest)[None, :]
        q3 = tl.load(own + 2 * half + r[None, :], mask=others, other=0.0)
    high = tl.full((tile,), float("-inf"), tl.float32)
    mass = tl.zeros((tile,), tl.float32)
    mix = tl.zeros((tile, wide_value), tl.float32)
    begin = part * share
    for start in range(begin, tl.minimum(begin + share, slot + 1), block):
        n = start + tl.arange(0, block)
        filled = (n <= slot) & (n < begin + share)
        k_scale = scales_of(key_scales + n, filled, stored)
        v_scale = scales_of(value_scales + n, filled, stored)
        source = values + n[:, None] * value_width + d[None, :]
        inside = filled[:, None] & (d < value_width)[None, :]
        v = stored_at(source, inside, v_scale, element, stored)
        s = tl.zeros((tile, block), tl.float32)
        if half > 0:
            inside = filled[:, None] & (j < half)[None, :]
            source = keys + n[:, None] * width + step * j[None, :]
            table = n[:, None] * half + j[None, :]
            a = stored_at(source + first, inside, k_scale, element, stored).to(tl.float32)
            b = stored_at(source + second, inside, k_scale, element, stored).to(tl.float32)
            if exact:
                c = tl.load(cos + table, mask=inside, other=0.0)
                e = tl.load(sin + table, mask=inside, other=0.0) * sign
            else:
                both = tl.load(packed + table, mask=inside, other=0)
                c = (both & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
                e = (both >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * sign
            k1 = (a * c - b * e).to(element)
            k2 = (b * c + a * e).to(element)
            s = tl.dot(q1, tl.trans(k1), s, input_precision="ieee")
            s = tl.dot(q2, tl.trans(k2), s, input_precision="ieee")
        if rest > 0:
            source = keys + n[:, None] * width + 2 * half + r[None, :]
            inside = filled[:, None] & (r < rest)[None, :]
            k3 = stored_at(source, inside, k_scale, element, stored)
            s = tl.dot(q3, tl.trans(k3), s, input_precision="ieee")
        s = s * scale
        if capped:
            s = softcap * (1.0 - 2.0 / (tl.exp(2.0 * s / softcap) + 1.0))
        s = tl.where(filled[None, :], s, float("-inf"))
        now = tl.maximum(high, tl.max(s, axis=1))
        p = tl.exp(s - now[:, None])
        fade = tl.exp(high - now)
        mix = tl.dot(p.to(element), v, mix * fade[:, None], input_precision="ieee")
        mass = mass * fade + tl.sum(p, axis=1)
        high = now
    at = ((row * heads + head) * parts + part) * tile + g
    tl.store(peak + at, high)
    tl.store(total + at, mass)
    tl.store(acc + at[:, None] * wide_value + d[None, :], mix)


@triton.jit(do_not_specialize=["parts"])
def attend_join(
    acc,
    peak,
    total,
    sinks,
    out,
    parts,
    group: tl.constexpr,
    tile: tl.constexpr,
    value_width: tl.constexpr,
    wide_value: tl.constexpr,
    wide_parts: tl.constexpr,
    has_sinks: tl.constexpr,
):
    """Combine the shares of one query head and normalise. out: [B, H, V]. A row without entries
    gets zeros."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    part = tl.arange(0, wide_parts)
    d = tl.arange(0, wide_value)
    at = ((row * (heads // group) + head // group) * parts + part) * tile + head % group
    high = tl.load(peak + at, mask=part < parts, other=float("-inf"))
    largest = tl.maximum(tl.max(high, axis=0), -1e30)
    if has_sinks:
        sink = tl.load(sinks + head).to(tl.float32)
        largest = tl.maximum(largest, sink)
    weight = tl.exp(high - largest)
    mass = tl.sum(weight * tl.load(total + at, mask=part < parts, other=0.0), axis=0)
    if has_sinks:
        mass += tl.exp(sink - largest)
    mix = tl.load(
        acc + at[:, None] * wide_value + d[None, :], mask=(part < parts)[:, None], other=0.0
    )
    result = tl.sum(mix * weight[:, None], axis=0) / tl.where(mass > 0, mass, 1.0)
    tl.store(
        out + (row * heads + head) * value_width + d,
        result.to(out.dtype.element_ty),
        mask=d < value_width,
    )
