"""The primitives of the formulas as Triton computes them, in float32 or float64 by their argument.

Everything is plain arithmetic and integer operations on the bits, so that CUDA, ROCm and the
interpreter agree, and none of it relies on subnormal numbers being flushed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..formulas.primitives import NOWHERE

_LOG2_E = tl.constexpr(1.4426950408889634)
# ln 2 in two parts; the first has so few bits that k times it is exact.
_LN2_HIGH = tl.constexpr(0.693359375)
_LN2_LOW = tl.constexpr(-2.12194440e-4)
_NOWHERE = tl.constexpr(NOWHERE)
_SMALLEST_NORMAL_32 = tl.constexpr(2.0**-126)
_SMALLEST_NORMAL_64 = tl.constexpr(2.0**-1022)
# A float32 near 1.5 * 2**23 holds an integer in its low bits, so that an addition at full speed
# does the work of a conversion at a quarter of it.
_SHIFTER = tl.constexpr(12582912.0)
_SHIFTER_BITS = tl.constexpr(0x4B400000)


@triton.jit
def power_of_two(e):
    """2**e for an integer-valued e, held to the normal range of the type."""
    if e.dtype == tl.float64:
        held = tl.minimum(tl.maximum(e, -1022.0), 1023.0)
        result = ((held.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)
    else:
        held = tl.minimum(tl.maximum(e, -126.0), 127.0)
        bits = (held + (_SHIFTER + 127.0)).to(tl.int32, bitcast=True)
        result = (bits << 23).to(tl.float32, bitcast=True)
    return result


@triton.jit
def exponent(v):
    """The integer e, as a float, with v = mantissa * 2**e; NOWHERE for 0, and 0 for inf and NaN."""
    if v.dtype == tl.float64:
        small = tl.abs(v) < _SMALLEST_NORMAL_64
        bits = tl.where(small, v * 2.0**54, v).to(tl.int64, bitcast=True)
        field = (bits >> 52) & 0x7FF
        e = (field - 1022 - tl.where(small, 54, 0)).to(tl.float64)
        result = tl.where(v == 0, _NOWHERE, tl.where(field == 0x7FF, 0.0, e))
    else:
        small = tl.abs(v) < _SMALLEST_NORMAL_32
        bits = tl.where(small, v * 2.0**24, v).to(tl.int32, bitcast=True)
        field = (bits >> 23) & 0xFF
        counted = (field | _SHIFTER_BITS).to(tl.float32, bitcast=True)
        e = counted - tl.where(small, _SHIFTER + 150.0, _SHIFTER + 126.0)
        result = tl.where(v == 0, _NOWHERE, tl.where(field == 0xFF, 0.0, e))
    return result


@triton.jit
def mantissa(v):
    """v / 2**exponent(v): magnitude in [0.5, 1); 0, inf and NaN stay themselves."""
    if v.dtype == tl.float64:
        small = tl.abs(v) < _SMALLEST_NORMAL_64
        bits = tl.where(small, v * 2.0**54, v).to(tl.int64, bitcast=True)
        m = ((bits & ~(0x7FF << 52)) | (1022 << 52)).to(tl.float64, bitcast=True)
        result = tl.where((v == 0) | (((bits >> 52) & 0x7FF) == 0x7FF), v, m)
    else:
        small = tl.abs(v) < _SMALLEST_NORMAL_32
        bits = tl.where(small, v * 2.0**24, v).to(tl.int32, bitcast=True)
        m = ((bits & ~(0xFF << 23)) | (126 << 23)).to(tl.float32, bitcast=True)
        result = tl.where((v == 0) | (((bits >> 23) & 0xFF) == 0xFF), v, m)
    return result


@triton.jit
def ldexp(v, e):
    """v * 2**e for |v| near 1, by two factors of which only the last can round."""
    if v.dtype == tl.float64 or e.dtype == tl.float64:
        held = tl.minimum(tl.maximum(e.to(tl.float64), -2000.0), 2000.0)
    else:
        held = tl.minimum(tl.maximum(e, -250.0), 250.0)
    half = tl.floor(held * 0.5)
    return (v * power_of_two(half)) * power_of_two(held - half)


@triton.jit
def exp(v):
    """e to the v."""
    # In float32 the hardware's exp2 of v·log2(e) would lose |v| ulps.
    if v.dtype == tl.float64:
        result = tl.exp(v)
    else:
        held = tl.maximum(v, -104.0, propagate_nan=tl.PropagateNan.ALL)
        held = tl.minimum(held, 89.0, propagate_nan=tl.PropagateNan.ALL)
        shifted = tl.fma(held, _LOG2_E, _SHIFTER)
        k = shifted - _SHIFTER
        r = tl.fma(k, -_LN2_LOW, tl.fma(k, -_LN2_HIGH, held))
        # A minimax fit on |r| <= ln2 / 2, good to 2**-28.
        p = tl.fma(r, 0.0013814186677336693, 0.008368922397494316)
        p = tl.fma(p, r, 0.04166840761899948)
        p = tl.fma(p, r, 0.1666651964187622)
        p = tl.fma(p, r, 0.4999999403953552)
        p = tl.fma(tl.fma(p, r, 1.0), r, 1.0)
        # Two factors, so that a subnormal result is rounded once.
        whole = shifted.to(tl.int32, bitcast=True) - _SHIFTER_BITS
        half = whole >> 1
        first = ((half << 23) + (127 << 23)).to(tl.float32, bitcast=True)
        second = (((whole - half) << 23) + (127 << 23)).to(tl.float32, bitcast=True)
        result = (p * first) * second
    return result


@triton.jit
def where(condition, a, b):
    """``a`` where the condition holds, else ``b``."""
    return tl.where(condition, a, b)


@triton.jit
def isnan(v):
    """True for NaN."""
    return v != v


@triton.jit
def sqrt(v):
    """Square root, correctly rounded."""
    return tl.sqrt(v) if v.dtype == tl.float64 else tl.sqrt_rn(v)


@triton.jit
def log(v):
    """Natural logarithm."""
    return tl.log(v)


@triton.jit
def absolute(v):
    """The value without its sign."""
    return tl.abs(v)


@triton.jit
def maximum(a, b):
    """The larger of two numbers, neither of which is NaN."""
    return tl.maximum(a, b)


@triton.jit
def pick(v, mask, AXIS: tl.constexpr):
    """The one element along the axis where the mask is on, bit for bit."""
    if v.dtype == tl.float64:
        bits = tl.sum(tl.where(mask, v.to(tl.int64, bitcast=True), 0), AXIS)
        result = bits.to(tl.float64, bitcast=True)
    else:
        bits = tl.sum(tl.where(mask, v.to(tl.int32, bitcast=True), 0), AXIS)
        result = bits.to(tl.float32, bitcast=True)
    return result


@triton.jit
def earlier(before1, own1, alone1, before2, own2, alone2):
    """Joins for a scan that gives every lane what the one before has.

    ``alone`` is 1 where nothing has been joined. Within a thread the compiler knows it, and nothing
    is left of the scan but a move from each thread to the next.
    """
    return tl.where(alone2 != 0, own1, before2), own2, alone2 * 0


PRIMITIVES = {
    "where": where,
    "isnan": isnan,
    "exp": exp,
    "log": log,
    "sqrt": sqrt,
    "absolute": absolute,
    "maximum": maximum,
    "mantissa": mantissa,
    "exponent": exponent,
    "power_of_two": power_of_two,
    "ldexp": ldexp,
}
