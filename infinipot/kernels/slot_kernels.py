"""Parts of the Triton kernels that read and write the slots of pots.

`stored` is the eight-bit type of vectors, `int8` or `fp8`; None: the model's own.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def aligned(place, kind: tl.constexpr):
    """The address in `place`. torch aligns memory, so that several elements are moved at once."""
    return tl.multiple_of(tl.load(place).to(kind), 16)


@triton.jit
def whole(x):
    """x float32, rounded to whole numbers, halves to even ones. Its size is below 2 ** 22."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def encoded(x, stored: tl.constexpr):
    """x float32 in eight bits, rounded as torch does. Not by the hardware's fp8: older cards have none."""
    if stored == "int8":
        code = whole(x)
    else:
        bits = x.to(tl.int32, bitcast=True)
        size = bits & 0x7FFFFFFF
        normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
        small = whole(tl.abs(x) * 512).to(tl.int32)
        code = tl.where(size < 0x3C800000, small, normal) | ((bits >> 24) & 0x80)  # below 2 ** -6
    return code.to(tl.int8)


@triton.jit
def decoded(x, scale, element: tl.constexpr, stored: tl.constexpr):
    """Eight-bit x by its vectors' scales, as `cache.storage.Slots.read` gives it."""
    if stored == "int8":
        number = x.to(tl.float32)
    else:
        bits = x.to(tl.int32)
        half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)  # the same number as float16, / 2 ** 8
        number = half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return (number * scale).to(element)


@triton.jit
def scales_at(place, stored: tl.constexpr):
    """The address of the scales of eight-bit vectors; else something that nobody reads."""
    scales = place
    if stored is not None:
        scales = aligned(place, tl.pointer_type(tl.float32))
    return scales


@triton.jit
def scales_of(source, live, stored: tl.constexpr):
    """The scales [N, 1] of eight-bit vectors; else a number that nobody uses."""
    scale = 1.0
    if stored is not None:
        scale = tl.load(source, mask=live, other=0.0)[:, None]
    return scale


@triton.jit
def stored_at(source, inside, scale, element: tl.constexpr, stored: tl.constexpr):
    """Elements of vectors in the model's type, 0 outside. scale: from `scales_of`."""
    x = tl.load(source, mask=inside, other=0.0)
    if stored is not None:
        x = decoded(x, scale, element, stored)
    return x


@triton.jit
def write(data, scales, entry, j, x, live, width: tl.constexpr, stored: tl.constexpr):
    """Write elements j of vectors x in eight bits, as `cache.storage.Slots.write`. data, scales: where
    the addresses are. entry, live: of each vector, its place and whether it is written."""
    axis: tl.constexpr = len(x.shape) - 1
    largest: tl.constexpr = 127.0 if stored == "int8" else 448.0
    x = tl.where(j < width, x.to(tl.float32), 0.0)
    scale = tl.maximum(tl.max(tl.abs(x), axis=axis, keep_dims=True), 1e-12) * (1.0 / largest)
    code = encoded(tl.div_rn(x, scale), stored)
    target = aligned(data, tl.pointer_type(tl.int8)) + entry * width + j
    tl.store(target, code, mask=live & (j < width))
    tl.store(scales_at(scales, stored) + entry, scale, mask=live)
