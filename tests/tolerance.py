"""How far a result may lie from the exact value, and why.

A result passes if ``|result - exact| <= ulps · ulp(exact) + relative · magnitude``. The magnitude
is the sum of the absolute values of the terms (``Reference.magnitude``), which is |exact| itself
where nothing cancels.

float32
    2 ulps, and 2**-50 of the magnitude for terms that cancel in the float64 accumulator.
float16, bfloat16
    One rounding of a value good to 2 ulps of float32: half an ulp of the storage type and
    2 · 2**-(24-p) more, p being its precision in bits (11 and 8); the same 2**-50.
float64
    Two ulps for the last steps, and a count of the roundings on the longest path to the result
    (``roundings``), each worth 2**-53 of the magnitude.

Where exp is evaluated for a narrower type than float64 its relative error is 2**-32, so terms
that contain it are good to 2**-31 of the magnitude and not to 2**-50.

A logarithm of a sum turns the relative error of the sum into an absolute one. There the
magnitude counts 1 more, for the sum that is rounded near 1.
"""

from __future__ import annotations

import math

import numpy as np
from mpmath import mp, mpf

from cells import Cell
from pullback.oracle import Reference, ulp_error

PRECISION = {"f16": 11, "bf16": 8}
WITH_EXP = {
    "logcumsumexp", "logcumsumexp_backward", "logsumexp", "logsumexp_backward", "softmax",
    "log_softmax", "log_softmax_backward",
}  # fmt: skip
WITH_LOG = {"logcumsumexp", "logsumexp", "log_softmax"}


def tree_depth(extent: int) -> int:
    """Additions on the longest path of a row's sum: lanes of 8 in blocks of 4096, then blocks."""
    return min(-(-extent // 8), 512) + 3 + -(-extent // 4096)


def scan_depth(extent: int) -> int:
    """The same of a scan: a tree of 8 in a chunk, 64 chunks in a block of 512, then blocks."""
    return 3 + min(-(-extent // 8), 64) + -(-extent // 512) + 2


def roundings(cell: Cell, argument: float) -> float:
    """Roundings on the longest path of a float64 result, in units of 2**-53 of its magnitude.

    ``argument`` bounds |x - y| where exp(x - y) is taken: the difference is rounded, and an
    absolute error of the argument is a relative one of the result. Products and recurrences
    with factors other than 1 take one rounding (or three) per element whatever their order.
    """
    n = cell.extent
    tree, scan = tree_depth(n), scan_depth(n)
    table = {
        "cumsum": scan,
        "cumsum_backward": scan,
        "cumprod": n + 2,
        "cumprod_backward": 4 * n + 10,
        "cummax": 0,
        "cummin": 0,
        "cummax_backward": scan + 2,
        "cummin_backward": scan + 2,
        # A rescaled term loses u·d·exp(-d) <= u/e for its argument d, whatever d is.
        "logcumsumexp": 5 * scan,
        "logcumsumexp_backward": 4 * n + 3 * scan + argument,
        "sum": tree,
        "sum_backward": 0,
        "mean": tree + 1,
        "mean_backward": 1,
        "max": 0,
        "min": 0,
        "max_backward": 1,
        "min_backward": 1,
        "prod": n + 2,
        "prod_backward": n + 5,
        "norm2": tree + 4,
        "norm2_backward": 4,
        "logsumexp": tree + 6,
        "logsumexp_backward": 4 + argument,
        # The mean first, then squares about it; std is a norm of the deviations.
        "var": 3 * tree + 8,
        "var_backward": tree + 6,
        "std": 3 * tree + 9,
        "std_backward": tree + 8,
        "softmax": tree + 6 + argument,
        "softmax_backward": tree + 4,
        "log_softmax": tree + 8,
        "log_softmax_backward": tree + 6,
        "lerp": 4,
        "lerp_backward": 3,
        "segment_sum": n + 1,
        "segment_sum_backward": 0,
    }
    return table[cell.op.name]


def bounds(cell: Cell, argument: float = 0.0) -> tuple[float, float]:
    """``(ulps, relative)`` for a cell."""
    if cell.element == "f64":
        return 2.0, roundings(cell, argument) * 2.0**-53
    ulps = 2.0
    if cell.element in PRECISION:
        ulps = 0.5 + 2.0 * 2.0 ** -(24 - PRECISION[cell.element])
    return ulps, 2.0**-31 if cell.op.name in WITH_EXP else 2.0**-50


def exp_argument(operands: dict[str, np.ndarray]) -> float:
    """A bound for |x - y|, y being given or a largest x; beyond 745 exp is 0."""
    largest = 0.0
    for name in ("x", "y"):
        values = np.abs(operands.get(name, np.zeros(1)).astype(np.float64))
        largest = max(largest, float(values[np.isfinite(values)].max(initial=0.0)))
    return min(2.0 * largest, 745.0)


def failure(cell: Cell, actual: np.ndarray, ref: Reference, argument: float = 0.0) -> str | None:
    """What is wrong with a result, or None."""
    errors = ulp_error(actual, ref, cell.element)
    ulps, relative = bounds(cell, argument)
    extra = 1 if cell.op.name in WITH_LOG else 0
    for place in zip(*np.nonzero(~(errors <= ulps)), strict=True) if errors.ndim else [()]:
        error = float(errors[place])
        got, exact = float(actual[place]), ref.value[place]
        if error <= ulps:
            continue
        with mp.workprec(640):
            if math.isfinite(error):
                distance = abs(mpf(got) - exact)
                unit = distance / mpf(error)
                if distance <= ulps * unit + relative * (ref.magnitude[place] + extra):
                    continue
        return f"{cell}: at {place} {got!r} for {mp.nstr(exact, 20)}, {error:.4g} ulps"
    return None
