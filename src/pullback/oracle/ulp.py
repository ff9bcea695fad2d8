"""Distance in units in the last place, and correct rounding, for the four storage types."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import ml_dtypes
import mpmath
import numpy as np
from mpmath import mp, mpf

from .table import BITS, Reference


class Format(NamedTuple):
    dtype: np.dtype
    precision: int
    emin: int
    emax: int

    def quantum(self, exponent: int) -> int:
        """Return the exponent of one ulp in the binade [2**exponent, 2**(exponent+1))."""
        return min(max(exponent, self.emin), self.emax) - (self.precision - 1)


FORMATS = {
    "f64": Format(np.dtype(np.float64), 53, -1022, 1023),
    "f32": Format(np.dtype(np.float32), 24, -126, 127),
    "f16": Format(np.dtype(np.float16), 11, -14, 15),
    "bf16": Format(np.dtype(ml_dtypes.bfloat16), 8, -126, 127),
}


def _exponent(value: mpf) -> int:
    """Return floor(log2 |value|), exactly, for a finite value other than 0."""
    return int(mpmath.frexp(value)[1]) - 1


def _rounded(value: mpf, form: Format) -> float:
    """Round to nearest, ties to even, once; the result is a float64 that form holds exactly."""
    if not mpmath.isfinite(value) or value == 0:
        return float(value)
    exponent = _exponent(value)
    quantum = form.quantum(exponent)
    if exponent > form.emax:
        return -math.inf if value < 0 else math.inf
    if exponent < quantum - 1:
        return 0.0
    sign, mantissa, scale, _ = value._mpf_
    shift = scale - quantum
    if shift >= 0:
        steps = int(mantissa) << shift
    else:
        steps, rest = divmod(int(mantissa), 1 << -shift)
        half = 1 << (-shift - 1)
        steps += rest > half or (rest == half and steps % 2 == 1)
    if steps.bit_length() + quantum > form.emax + 1:
        return -math.inf if sign else math.inf
    return math.ldexp(-steps if sign else steps, quantum)


def round_to(value: np.ndarray, element: str) -> np.ndarray:
    """Round an object array of mpf correctly (to nearest, ties to even) to a storage type.

    Parameters
    ----------
    value : object array of mpf
    element : {"f64", "f32", "f16", "bf16"}
    """
    form = FORMATS[element]
    value = np.asarray(value, dtype=object)
    rounded = np.array([_rounded(v, form) for v in value.reshape(-1)], dtype=np.float64)
    return rounded.astype(form.dtype).reshape(value.shape)


# Numbers whose exponents are no further apart are subtracted as integers.
_NEAR = 8192


def _scaled(whole: int, exponent: int) -> float:
    """Return ``whole * 2**exponent``, good to 2**-53 or better, or infinity."""
    excess = max(0, whole.bit_length() - 64)
    try:
        return math.ldexp(whole >> excess, exponent + excess)
    except OverflowError:
        return math.inf


def _error(actual: float, value: mpf, form: Format) -> float:
    sign, mantissa, exponent, bits = value._mpf_
    if mantissa and math.isfinite(actual):
        numerator, denominator = actual.as_integer_ratio()
        scale = 1 - denominator.bit_length()
        if abs(exponent - scale) < _NEAR:
            low = min(exponent, scale)
            exact = (-int(mantissa) if sign else int(mantissa)) << (exponent - low)
            difference = abs((numerator << (scale - low)) - exact)
            return _scaled(difference, low - form.quantum(exponent + bits - 1))
    return _error_of_any(actual, value, form)


def _error_of_any(actual: float, value: mpf, form: Format) -> float:
    """Return the same for all numbers, 0 and infinities among them, ten times as slowly."""
    if math.isnan(actual) or mpmath.isnan(value):
        return 0.0 if math.isnan(actual) and mpmath.isnan(value) else math.inf
    if math.isinf(actual):
        return 0.0 if _rounded(value, form) == actual else math.inf
    if mpmath.isinf(value):
        return math.inf
    unit = form.quantum(_exponent(value) if value != 0 else form.emin)
    return float(mpmath.ldexp(abs(mpf(actual) - value), -unit))


def ulp_error(actual: Any, ref: Reference, element: str) -> np.ndarray:
    """Return |actual - value| in ulps of the storage type at the exact value, as float64.

    One ulp is the spacing in the binade of |value|: the smallest subnormal below the normal
    range, that of the largest finite numbers above it. nan matches nan; an infinity matches
    what rounds to it; any other nan or infinity is an infinite error.

    Raises
    ------
    ValueError
        When the shapes differ; nothing is broadcast.
    """
    form = FORMATS[element]
    actual = np.asarray(actual)
    if actual.shape != ref.value.shape:
        raise ValueError(f"shapes differ: actual {actual.shape}, exact {ref.value.shape}")
    pairs = zip(actual.astype(np.float64).reshape(-1), ref.value.reshape(-1), strict=True)
    with mp.workprec(BITS):
        errors = [_error(float(a), v, form) for a, v in pairs]
    shaped: np.ndarray = np.array(errors, dtype=np.float64).reshape(actual.shape)
    return shaped
