"""The Triton kernels. Importing this module takes seconds; `launch` imports it when needed."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
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


@triton.jit(do_not_specialize=["start"])
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
