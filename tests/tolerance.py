"""How far a result may lie from the exact value, and why.

A result passes if ``|result - exact| <= ulps · ulp(exact) + relative · magnitude``. The magnitude
is the sum of the absolute values of the terms (``Reference.magnitude``), which is |exact| itself
where nothing cancels.

float32
    2 ulps, and 2**-50 of the magnitude for terms that cancel in the float64 accumulator, or what
    float64 itself is allowed, if that is more.
float16, bfloat16
    One rounding of a value good to 2 ulps of float32: half an ulp of the storage type and
    2 · 2**-(24-p) more, p being its precision in bits (11 and 8); the same 2**-50.
float64
    Two ulps for the last steps, and a count of the roundings on the longest path to the result
    (``roundings.py``), each worth 2**-53 of the magnitude.

Where exp is evaluated for a narrower type than float64 its relative error is 2**-32, so terms
that contain it are good to 2**-31 of the magnitude and not to 2**-50.

A logarithm of a sum turns the relative error of the sum into an absolute one. There the
magnitude counts 1 more, for the sum that is rounded near 1.
"""

from __future__ import annotations

import math

import numpy as np
from mpmath import mp, mpf

from pullback.core.declare import Type
from pullback.oracle import Reference, ulp_error
from pullback.tools.case import Case
from roundings import roundings

PRECISION = {"f16": 11, "bf16": 8}
# A float64 sum may leave the range on the way where the sum of its magnitudes does.
OVERFLOWS = mpf(2) ** 1023


def bounds(case: Case, argument: float = 0.0, element: str = "") -> tuple[float, float]:
    """``(ulps, relative)`` for results of a case; of the case's element type if none is said."""
    element = element or case.element
    relative = roundings(case, argument) * 2.0**-53
    if case.element != "f64":
        relative = max(relative, 2.0**-31 if case.calls("exp") else 2.0**-50)
    ulps = 2.0
    if element in PRECISION:
        ulps = 0.5 + 2.0 * 2.0 ** -(24 - PRECISION[element])
    return ulps, relative


def exp_argument(case: Case, operands: dict[str, np.ndarray]) -> float:
    """A bound for |x - y|, y being given or a largest x; beyond 745 exp is 0."""
    largest = 0.0
    for name in case.floats:
        if name not in case.cotangents:
            values = np.abs(operands[name].astype(np.float64))
            largest = max(largest, float(values[np.isfinite(values)].max(initial=0.0)))
    return min(2.0 * largest, 745.0)


def element_of(case: Case, output: str) -> str:
    """The element type of an output; a state is float64."""
    return "f64" if case.op.operand(output).type is Type.STATE else case.element


def failure(
    case: Case, output: str, actual: np.ndarray, ref: Reference, argument: float = 0.0
) -> str | None:
    """What is wrong with a result, or None."""
    element = element_of(case, output)
    errors = ulp_error(actual, ref, element)
    ulps, relative = bounds(case, argument, element)
    extra = 1 if case.calls("log") else 0
    terms = 1 if case.is_pointwise else max(case.extent, 1)
    for place in zip(*np.nonzero(~(errors <= ulps)), strict=True) if errors.ndim else [()]:
        error = float(errors[place])
        got, exact, size = float(actual[place]), ref.value[place], ref.magnitude[place]
        if error <= ulps or is_open(exact, size):
            continue
        with mp.workprec(640):
            if not case.keeps_range and size * terms > OVERFLOWS:
                continue
            if math.isfinite(error):
                distance = abs(mpf(got) - exact)
                unit = distance / mpf(error)
                if distance <= ulps * unit + relative * (size + extra):
                    continue
        return f"{output} of {case}: at {place} {got!r} for {mp.nstr(exact, 20)}, {error:.4g} ulps"
    return None


def is_open(exact: mpf, magnitude: mpf) -> bool:
    """Whether the definition leaves open what comes out."""
    return bool(mp.isnan(exact) and mp.isinf(magnitude))


def wrong_with(
    case: Case, operands: dict[str, np.ndarray], results: dict[str, np.ndarray]
) -> list[str]:
    """What is wrong with results, by the oracle."""
    exact, argument = case.exact(operands), exp_argument(case, operands)
    found = (failure(case, n, r, exact[n], argument) for n, r in results.items())
    return [w for w in found if w]
