"""Whether a result is as near to its definition as arithmetic in float64 and one rounding allow.

``|result − value| ≤ ulps·ulp(value) + relative·magnitude``: the units in the last place and the
count of roundings on the longest path are those of ``tests/tolerance.py``. To them come what the
definition itself may be off by, one unit of a long double for each element, and what float64 loses
below its range, one smallest number for each term. Nan and infinities must stand where the
definition has them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzzing.definitions import LONG, Expected, widen
from pullback.formulas.record import ScanFormula
from roundings import roundings, scan_depth
from tolerance import bounds, exp_argument

# Bits of precision, least exponent of a normal number, largest exponent.
FORMATS = {"f64": (53, -1022, 1023), "f32": (24, -126, 127), "f16": (11, -14, 15)}
FORMATS["bf16"] = (8, -126, 127)
SMALLEST = LONG(2) ** -1074
# A float64 sum may overflow on the way where the sum of its magnitudes would.
OVERFLOWS = LONG(2) ** 1022


def same_results(a: Any, b: Any) -> bool:
    """Whether two results have the same bytes; which nan a nan is, is not promised."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    one = np.array(np.nan, a.dtype)
    pair = [np.where(np.isnan(r), one, r) for r in (a, b)]
    return bool(pair[0].tobytes() == pair[1].tobytes())


def last_place(value: Any, element: str) -> Any:
    """The distance of neighbours of the element type at a value."""
    precision, least, _ = FORMATS[element]
    exponent = np.frexp(value)[1].astype(np.int64) - 1
    return np.ldexp(LONG(1), np.maximum(exponent, least) - (precision - 1))


def relative_bound(cell: Any, argument: float) -> float:
    """How much of the magnitude a result may be off by."""
    n = cell.extent
    relative = max(bounds(cell, argument)[1], roundings(cell, argument) * 2.0**-53)
    if cell.element != "f64" and cell.calls("exp"):
        # An exp is good to 2^-32 there. The weight of one element in another is a product of as
        # many as lie between them, or is scaled down once at every level of a scan.
        chained = isinstance(cell.formula, ScanFormula)
        relative += (max(n, scan_depth(n)) if chained else 1) * 2.0**-32
    return float(relative + max(n, 1) * np.finfo(LONG).eps)


def largest_factor(operands: dict[str, Any]) -> Any:
    """The largest finite number that a term below the range of float64 may be multiplied by."""
    wide = [widen(operands[n]) for n in ("dy", "x") if n in operands]
    return max((np.abs(a[np.isfinite(a)]).max(initial=0) for a in wide), default=LONG(0))


def find_wrong(cell: Any, actual: Any, exact: Expected, operands: dict[str, Any]) -> str | None:
    """The first element that is wrong, in words; None if there is none."""
    if not actual.size:
        return None
    got, value = widen(actual), exact.value
    argument = exp_argument(cell, operands)
    precision, _, most = FORMATS[cell.element]
    with np.errstate(all="ignore"):
        magnitude = exact.magnitude + (1 if cell.calls("log") else 0)
        unit = last_place(np.where(np.isfinite(value), value, LONG(1)), cell.element)
        allowed = bounds(cell, argument)[0] * unit + relative_bound(cell, argument) * magnitude
        known = exact.known
        if cell.element == "f64":
            allowed = allowed + SMALLEST * (1 + largest_factor(operands)) * max(cell.extent, 1)
            # A mean is divided when the sum is there.
            summed = magnitude * (1 if cell.keeps_range else max(cell.extent, 1))
            known = known & ~(np.isfinite(summed) & (summed > OVERFLOWS))
        near = np.abs(got - value) <= allowed
        top = (2 - LONG(2) ** -precision) * LONG(2) ** most
        overflow = (
            np.isinf(got) & (np.sign(got) == np.sign(value)) & (np.abs(value) + allowed >= top)
        )
        same = (np.isnan(got) & np.isnan(value)) | (got == value)
        wrong = known & ~(near | overflow | same)
    if not wrong.any():
        return None
    place = tuple(int(k[0]) for k in np.nonzero(np.atleast_1d(wrong)))[: wrong.ndim]
    off = np.abs(got[place] - value[place])
    return (
        f"{int(wrong.sum())} of {wrong.size} elements are wrong, the first at {place}: "
        f"{float(got[place])!r} for {value[place]!r}, off by {float(off / unit[place]):.4g} units "
        f"in the last place, allowed {float(allowed[place] / unit[place]):.4g}"
    )
