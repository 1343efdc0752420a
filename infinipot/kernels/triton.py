"""The Triton kernels. Importing this module takes seconds; `launch` imports it when needed."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def rotate(
    x,
    out,
    cos,
    sin,
    places,
    rows,
    heads,
    xb,
    xh,
    xn,
    ob,
    oh,
    on,
    half: tl.constexpr,
    padded: tl.constexpr,
    tile: tl.constexpr,
    first: tl.constexpr,
    second: tl.constexpr,
    step: tl.constexpr,
    sign: tl.constexpr,
):
    """Rotate a tile of rows of one head. Pair j is at first + step*j and second + step*j."""
    n = tl.program_id(0) * tile + tl.arange(0, tile)
    batch = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    j = tl.arange(0, padded)
    inside = (n < rows)[:, None] & (j < half)[None, :]
    place = tl.load(places + n, mask=n < rows, other=0)
    c = tl.load(cos + place[:, None] * half + j[None, :], mask=inside, other=0.0)
    s = tl.load(sin + place[:, None] * half + j[None, :], mask=inside, other=0.0) * sign
    source = x + batch * xb + head * xh + n[:, None].to(tl.int64) * xn + step * j[None, :]
    a = tl.load(source + first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(source + second, mask=inside, other=0.0).to(tl.float32)
    target = out + batch * ob + head * oh + n[:, None].to(tl.int64) * on + step * j[None, :]
    tl.store(target + first, (a * c - b * s).to(out.dtype.element_ty), mask=inside)
    tl.store(target + second, (b * c + a * s).to(out.dtype.element_ty), mask=inside)


@triton.jit
def losses(logits, targets, total, own, start, columns: tl.constexpr, stride, tile: tl.constexpr):
    """For one row: the log-sum-exp over its columns, and the target's logit if it is in them."""
    row = tl.program_id(0)
    base = logits + row.to(tl.int64) * stride
    largest = float("-inf")
    mass = 0.0
    for begin in range(0, columns, tile):
        j = begin + tl.arange(0, tile)
        x = tl.load(base + j, mask=j < columns, other=float("-inf")).to(tl.float32)
        peak = tl.maximum(largest, tl.max(x, axis=0))
        mass = mass * tl.exp(largest - peak) + tl.sum(tl.exp(x - peak), axis=0)
        largest = peak
    before = tl.load(total + row)
    now = largest + tl.log(mass)
    high = tl.maximum(before, now)
    tl.store(total + row, high + tl.log(tl.exp(before - high) + tl.exp(now - high)))
    place = tl.load(targets + row) - start
    inside = (place >= 0) & (place < columns)
    tl.store(own + row, tl.load(base + place, mask=inside, other=0.0).to(tl.float32), mask=inside)


@triton.jit
def rms_norm(x, weight, out, eps, width, kind: tl.constexpr, padded: tl.constexpr):
    """Normalise one row.

    kind 0: round, then multiply by the weight. kind 1: multiply in float32. kind 2: multiply in
    float32 by 1 + weight.
    """
    row = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, padded)
    a = tl.load(x + row * width + j, mask=j < width, other=0.0).to(tl.float32)
    w = tl.load(weight + j, mask=j < width, other=0.0)
    a = a * tl.rsqrt(tl.sum(a * a, axis=0) / width + eps)
    if kind == 0:
        a = a.to(out.dtype.element_ty).to(tl.float32) * w.to(tl.float32)
    elif kind == 1:
        a = a * w.to(tl.float32)
    else:
        a = a * (1.0 + w.to(tl.float32))
    tl.store(out + row * width + j, a.to(out.dtype.element_ty), mask=j < width)


@triton.jit
def append(
    key,
    rotated,
    value,
    places,
    slots,
    kb,
    kh,
    tb,
    th,
    vb,
    vh,
    size,
    width: tl.constexpr,
    padded: tl.constexpr,
):
    """Write one entry of one head of one pot into its slot: raw key, rotated key, value.

    places: [3, B], the addresses of the pots' buffers.
    """
    row = tl.program_id(0)
    head = tl.program_id(1)
    rows = tl.num_programs(0)
    j = tl.arange(0, padded)
    kind = tl.pointer_type(key.dtype.element_ty)
    offset = (head * size + tl.load(slots + row)) * width + j
    k = tl.load(key + row * kb + head * kh + j, mask=j < width)
    t = tl.load(rotated + row * tb + head * th + j, mask=j < width)
    v = tl.load(value + row * vb + head * vh + j, mask=j < width)
    tl.store(tl.load(places + row).to(kind) + offset, k, mask=j < width)
    tl.store(tl.load(places + rows + row).to(kind) + offset, t, mask=j < width)
    tl.store(tl.load(places + 2 * rows + row).to(kind) + offset, v, mask=j < width)


@triton.jit
def attend_part(
    query,
    places,
    slots,
    acc,
    peak,
    total,
    qb,
    qh,
    scale,
    size,
    share,
    group: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    """Attention over one share of the filled slots, for the query heads of one KV head.

    The result is not normalised; `attend_join` does that.
    """
    row = tl.program_id(0)
    head = tl.program_id(1)
    part = tl.program_id(2)
    rows = tl.num_programs(0)
    heads = tl.num_programs(1)
    parts = tl.num_programs(2)
    kind = tl.pointer_type(query.dtype.element_ty)
    keys = tl.load(places + rows + row).to(kind) + head * size * width
    values = tl.load(places + 2 * rows + row).to(kind) + head * size * width
    slot = tl.load(slots + row)
    g = tl.arange(0, tile)
    d = tl.arange(0, width)
    q = tl.load(
        query + row * qb + (head * group + g[:, None]) * qh + d[None, :],
        mask=(g < group)[:, None],
        other=0.0,
    )
    high = tl.full((tile,), float("-inf"), tl.float32)
    mass = tl.zeros((tile,), tl.float32)
    mix = tl.zeros((tile, width), tl.float32)
    begin = part * share
    for start in range(begin, tl.minimum(begin + share, slot + 1), block):
        n = start + tl.arange(0, block)
        filled = (n <= slot) & (n < begin + share)
        k = tl.load(keys + n[:, None] * width + d[None, :], mask=filled[:, None], other=0.0)
        s = tl.where(filled[None, :], tl.dot(q, tl.trans(k)) * scale, float("-inf"))
        now = tl.maximum(high, tl.max(s, axis=1))
        p = tl.exp(s - now[:, None])
        fade = tl.exp(high - now)
        v = tl.load(values + n[:, None] * width + d[None, :], mask=filled[:, None], other=0.0)
        mix = mix * fade[:, None] + tl.dot(p.to(v.dtype), v)
        mass = mass * fade + tl.sum(p, axis=1)
        high = now
    at = ((row * heads + head) * parts + part) * tile + g
    tl.store(peak + at, high)
    tl.store(total + at, mass)
    tl.store(acc + at[:, None] * width + d[None, :], mix)


@triton.jit
def attend_join(
    acc,
    peak,
    total,
    out,
    parts,
    group: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    padded: tl.constexpr,
):
    """Combine the shares of one query head and normalise. out: [B, H, D]."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    part = tl.arange(0, padded)
    d = tl.arange(0, width)
    at = ((row * (heads // group) + head // group) * parts + part) * tile + head % group
    high = tl.load(peak + at, mask=part < parts, other=float("-inf"))
    weight = tl.exp(high - tl.max(high, axis=0))
    mass = tl.sum(weight * tl.load(total + at, mask=part < parts, other=0.0), axis=0)
    mix = tl.load(acc + at[:, None] * width + d[None, :], mask=(part < parts)[:, None], other=0.0)
    result = tl.sum(mix * weight[:, None], axis=0) / mass
    tl.store(out + (row * heads + head) * width + d, result.to(out.dtype.element_ty))
