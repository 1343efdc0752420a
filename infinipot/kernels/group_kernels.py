"""Triton kernels for weights in groups. Importing this module takes seconds; `groups` imports it when
needed.

A weight [N, K] has in each row `groups` groups of 32 numbers; they may reach beyond K. A quad is four
words of 32 bits of numbers: in four bits a group, where byte i holds number i in the lower and number
i + 16 in the upper bits; in eight bits half a group. Without `low`, numbers have eight bits.
`outputs` is N and `width` is K.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def mantissa(words, one, left: tl.constexpr, mask: tl.constexpr):
    """A part of each word as float32: 1 + number * 2^-bits. The bits of `mask` are the highest of a
    mantissa. This is cheaper than a conversion. left: how far the number has to move. one: the bits of
    1.0, in a register: with two constants, mask and exponent would take two instructions."""
    if left >= 0:
        moved = words << left
    else:
        moved = words >> -left
    return ((moved & mask) | one).to(tl.float32, bitcast=True)


@triton.jit
def halves(words, element: tl.constexpr):
    """Two numbers of 16 bits in each word, as float32."""
    if element == tl.bfloat16:
        first = (words << 16).to(tl.float32, bitcast=True)
        second = (words & -65536).to(tl.float32, bitcast=True)
    else:
        first = words.to(tl.int16).to(element, bitcast=True).to(tl.float32)
        second = (words >> 16).to(tl.int16).to(element, bitcast=True).to(tl.float32)
    return first, second


@triton.jit
def elements(x, place, inside, element: tl.constexpr):
    """Elements 4 * place .. 4 * place + 3 of a row, as four float32 tensors [1, W]. x: the row as int64,
    because what is loaded as one number also changes its threads as one."""
    if element == tl.float32:
        some = tl.load(x + 2 * place, mask=inside, other=0)[None, :]
        more = tl.load(x + 2 * place + 1, mask=inside, other=0)[None, :]
        a0 = some.to(tl.int32).to(tl.float32, bitcast=True)
        a1 = (some >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        a2 = more.to(tl.int32).to(tl.float32, bitcast=True)
        a3 = (more >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    else:
        some = tl.load(x + place, mask=inside, other=0)[None, :]
        a0, a1 = halves(some.to(tl.int32), element)
        a2, a3 = halves((some >> 32).to(tl.int32), element)
    return a0, a1, a2, a3


@triton.jit(do_not_specialize=["outputs", "one"])
def row_product(
    x,
    words,
    scale,
    low,
    bias,
    out,
    outputs,
    groups,
    step,
    out_step,
    one,
    tile: tl.constexpr,
    quads: tl.constexpr,
):
    """One row of x times a tile of outputs, in float32. `quads` of each output are read at a time.

    x: rows of 32 * groups elements of out's type, as int64. step: between them, in int64.
    """
    element: tl.constexpr = out.dtype.element_ty
    n = tl.program_id(1) * tile + tl.arange(0, tile)
    x += tl.program_id(0).to(tl.int64) * step
    per: tl.constexpr = 2 if low is None else 1
    count = groups * per
    word = tl.arange(0, 4 * quads)
    quad = tl.arange(0, quads)
    rows = words + n[:, None].to(tl.int64) * (count * 4)
    marks = n[:, None].to(tl.int64) * groups
    total = tl.zeros((tile, quads), tl.float32)
    for first in range(0, count, quads):
        here = first + word // 4 < count
        inside = (n < outputs)[:, None] & here[None, :]
        packed = tl.load(rows + first * 4 + word[None, :], mask=inside, other=0)
        inside = (n < outputs)[:, None] & (first + quad < count)[None, :]
        place = marks + (first + quad)[None, :] // per
        s = tl.load(scale + place, mask=inside, other=0.0).to(tl.float32)
        if low is None:
            a0, a1, a2, a3 = elements(x, first * 4 + word, here, element)
            packed ^= 0x80808080 - 0x100000000  # from -128 .. 127 to 0 .. 255
            part = mantissa(packed, one, 15, 0x7F8000) * a0
            part += mantissa(packed, one, 7, 0x7F8000) * a1
            part += mantissa(packed, one, -1, 0x7F8000) * a2
            part += mantissa(packed, one, -9, 0x7F8000) * a3
            part = part * 256.0 - ((a0 + a1) + (a2 + a3)) * 384.0
            total += s * tl.sum(tl.reshape(part, (tile, quads, 4)), axis=2)
        else:
            m = tl.load(low + place, mask=inside, other=0.0).to(tl.float32)
            k = (first + word // 4) * 8 + word % 4
            a0, a1, a2, a3 = elements(x, k, here, element)
            b0, b1, b2, b3 = elements(x, k + 4, here, element)
            part = mantissa(packed, one, 19, 0x780000) * a0
            part += mantissa(packed, one, 11, 0x780000) * a1
            part += mantissa(packed, one, 3, 0x780000) * a2
            part += mantissa(packed, one, -5, 0x780000) * a3
            part += mantissa(packed, one, 15, 0x780000) * b0
            part += mantissa(packed, one, 7, 0x780000) * b1
            part += mantissa(packed, one, -1, 0x780000) * b2
            part += mantissa(packed, one, -9, 0x780000) * b3
            mass = ((a0 + a1) + (a2 + a3)) + ((b0 + b1) + (b2 + b3))
            dots = tl.sum(tl.reshape(part - mass, (tile, quads, 4)), axis=2)
            # a product with 0 puts the same threads to work as for the products
            mass += mantissa(packed, one, 19, 0x780000) * 0.0
            mass = tl.sum(tl.reshape(mass, (tile, quads, 4)), axis=2)
            total += (s * 16.0) * dots + m * mass
    y = tl.sum(total, axis=1)
    if bias is not None:
        y += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)
    out += tl.program_id(0).to(tl.int64) * out_step
    tl.store(out + n, y.to(out.dtype.element_ty), mask=n < outputs)


@triton.jit
def spread(x, rows: tl.constexpr, count: tl.constexpr, times: tl.constexpr):
    """x [rows, count] with each column `times` times."""
    return tl.reshape(tl.broadcast_to(x[:, :, None], (rows, count, times)), (rows, count * times))


@triton.jit(do_not_specialize=["rows", "outputs", "share"])
def tile_product(
    x,
    numbers,
    scale,
    low,
    bias,
    out,
    rows,
    outputs,
    width,
    groups,
    share,
    step,
    tile: tl.constexpr,
    height: tl.constexpr,
    block: tl.constexpr,
):
    """A tile of outputs times up to `height` rows of x, over `share` groups of each output, `block`
    at a time. Weights are rounded to x's type.

    out: [rows, N] of any type, or for several shares [shares, rows, N] float32.
    """
    element = x.dtype.element_ty
    n = tl.program_id(0) * tile + tl.arange(0, tile)
    part = tl.program_id(1)
    m = tl.program_id(2) * height + tl.arange(0, height)
    bytes: tl.constexpr = 32 if low is None else 16
    j = tl.arange(0, block * bytes)
    g = tl.arange(0, block)
    k = j // bytes * 32 + j % bytes
    own = numbers + n[:, None].to(tl.int64) * (groups * bytes) + j[None, :]
    marks = n[:, None].to(tl.int64) * groups + g[None, :]
    source = x + m[:, None].to(tl.int64) * step + k[None, :]
    total = tl.zeros((tile, height), tl.float32)
    end = tl.minimum(part * share + share, groups)
    for first in range(part * share, end, block):
        inside = (n < outputs)[:, None] & (first + j // bytes < end)[None, :]
        packed = tl.load(own + first * bytes, mask=inside, other=0)
        inside = (n < outputs)[:, None] & (first + g < end)[None, :]
        s = tl.load(scale + marks + first, mask=inside, other=0.0).to(tl.float32)
        s = spread(s, tile, block, bytes)
        here = (m < rows)[:, None] & (first + j // bytes < end)[None, :]
        a = tl.load(source + first * 32, mask=here & (first * 32 + k < width)[None, :], other=0.0)
        if low is None:
            w = packed.to(tl.float32) * s
            total = tl.dot(w.to(element), tl.trans(a), total)
        else:
            least = tl.load(low + marks + first, mask=inside, other=0.0).to(tl.float32)
            least = spread(least, tile, block, bytes)
            b = tl.load(
                source + first * 32 + 16,
                mask=here & (first * 32 + 16 + k < width)[None, :],
                other=0.0,
            )
            w = (packed & 15).to(tl.float32) * s + least
            total = tl.dot(w.to(element), tl.trans(a), total)
            w = (packed >> 4).to(tl.float32) * s + least
            total = tl.dot(w.to(element), tl.trans(b), total)
    if bias is not None:
        total += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
    place = (part.to(tl.int64) * rows + m)[None, :] * outputs + n[:, None]
    inside = (n < outputs)[:, None] & (m < rows)[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["outputs", "size"])
def join(parts, bias, out, outputs, size, count: tl.constexpr, tile: tl.constexpr):
    """The sum of `count` shares of [rows, N], which have `size` elements each, plus the bias."""
    i = tl.program_id(0) * tile + tl.arange(0, tile)
    total = tl.zeros((tile,), tl.float32)
    for part in tl.static_range(count):
        total += tl.load(parts + part * size + i, mask=i < size, other=0.0)
    if bias is not None:
        total += tl.load(bias + i % outputs, mask=i < size, other=0.0).to(tl.float32)
    tl.store(out + i, total.to(out.dtype.element_ty), mask=i < size)


@triton.jit(do_not_specialize=["count"])
def unpack(numbers, scale, low, out, count, block: tl.constexpr):
    """Write `count` groups as weights, `block` of them in a program."""
    g = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    bytes: tl.constexpr = 32 if low is None else 16
    i = tl.arange(0, bytes)
    inside = (g < count)[:, None]
    packed = tl.load(numbers + g[:, None] * bytes + i[None, :], mask=inside, other=0)
    s = tl.load(scale + g, mask=g < count, other=0.0).to(tl.float32)[:, None]
    target = out + g[:, None] * 32 + i[None, :]
    if low is None:
        tl.store(target, (packed.to(tl.float32) * s).to(out.dtype.element_ty), mask=inside)
    else:
        m = tl.load(low + g, mask=g < count, other=0.0).to(tl.float32)[:, None]
        first = (packed & 15).to(tl.float32) * s + m
        second = (packed >> 4).to(tl.float32) * s + m
        tl.store(target, first.to(out.dtype.element_ty), mask=inside)
        tl.store(target + 16, second.to(out.dtype.element_ty), mask=inside)
