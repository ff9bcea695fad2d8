"""Is the result of a case right? No time is reported for one that is not.

The whole output must have been written. Its values are compared with the plain formula in float64,
on everything or, past ``MOST`` elements, on the first, the last and some random rows. The kernels
compute in float64 and round once, so an element may differ by one unit in the last place of its
type, plus the rounding of a float64 sum of n terms of the same magnitude, plus the error of exp,
which is 2**-32 for results of less than float64.

An op without a plain formula is compared with its definition in the oracle, on a small problem of
the same rank and axis.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from . import plain
from .case import Case
from .operands import SEED, make_operands, make_outputs

MOST = 1 << 20
# Relative error of the kernels' exp.
EXP_ERROR = {"f64": 2.0**-52, "f32": 2.0**-32, "f16": 2.0**-32, "bf16": 2.0**-32}
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Verdict:
    """Whether a result is right, the worst error as a share of what is allowed, and a reason."""

    ok: bool
    worst: float
    how: str
    reason: str = ""


def verify(case: Case, operands: Arrays, outputs: Arrays) -> Verdict:
    """Compare the outputs that a plan wrote with the float64 formula."""
    for name, out in outputs.items():
        missing = int(np.count_nonzero(out != out))
        if missing:
            return Verdict(False, math.inf, "written", f"{name}: {missing} elements are NaN")
    if case.family == "segment":
        return _verify_segment(case, operands, outputs)
    if case.family == "lerp" or case.op.kind in plain.BACKWARD:
        return _verify_rows(case, operands, outputs)
    return _verify_small(case)


def _compare(
    out: np.ndarray,
    exact: np.ndarray,
    magnitude: np.ndarray,
    relative: np.ndarray | float,
    how: str,
) -> Verdict:
    """Worst error over what is allowed: one ulp, and a relative error of the magnitude."""
    kind = ml_dtypes.finfo(out.dtype)
    unit = np.maximum(np.abs(exact), float(kind.smallest_normal)) * float(kind.eps)
    unit += float(kind.smallest_subnormal)
    allowed = unit + relative * magnitude
    share = np.abs(out.astype(np.float64) - exact) / allowed
    worst = float(share.max(initial=0.0))
    if worst <= 1.0:
        return Verdict(True, worst, how)
    at = np.unravel_index(int(share.argmax()), share.shape)
    where = tuple(int(k) for k in at)
    reason = (
        f"got {float(out[at])!r} at {where} of the compared rows, expected {float(exact[at])!r}"
    )
    return Verdict(False, worst, how, reason)


def rounding(terms: int) -> float:
    """At most four float64 roundings for each element and a few more, at half an ulp each."""
    return (4 * terms + 16) * 2.0**-53


def _some(count: int, most: int) -> np.ndarray:
    """Up to ``most`` of ``count`` rows: both ends, and random ones between."""
    if count <= most:
        return np.arange(count)
    ends = min(3, most // 2)
    middle = np.random.default_rng(SEED).choice(count, most - 2 * ends, replace=False)
    picked = [np.arange(ends), middle, np.arange(count - ends, count)]
    return np.unique(np.concatenate(picked))


def _slices(case: Case, arrays: Arrays) -> tuple[dict[str, np.ndarray], tuple[int, ...], int]:
    """The arrays on some of the longest independent dimension, their shape and that dimension."""
    axes = case.axes if case.family != "lerp" else ()
    free = [k for k in range(len(case.shape)) if k not in axes]
    size = math.prod(case.shape)
    if not free or size <= MOST:
        return dict(arrays), case.shape, size
    longest = max(free, key=lambda k: case.shape[k])
    picked = _some(case.shape[longest], max(8, MOST * case.shape[longest] // size))
    cut = {n: a.take(picked, longest) if a.shape[longest] != 1 else a for n, a in arrays.items()}
    shape = tuple(len(picked) if k == longest else n for k, n in enumerate(case.shape))
    return cut, shape, math.prod(shape)


def _verify_rows(case: Case, operands: Arrays, outputs: Arrays) -> Verdict:
    cut, shape, size = _slices(case, {**operands, **outputs})
    how = "all" if size == math.prod(case.shape) else f"{size} of {math.prod(case.shape)}"
    wide = {n: cut[n].astype(np.float64) for n in operands}
    if case.family == "lerp":
        w = case.weight
        if case.op.direction == "forward":
            a, b = wide["a"], wide["b"]
            magnitude = np.abs(a) + w * (np.abs(a) + np.abs(b))
            return _compare(cut["y"], a + w * (b - a), magnitude, rounding(4), how)
        pair = {"da": (1 - w) * wide["dy"], "db": w * wide["dy"]}
        verdicts = [_compare(cut[n], v, np.abs(v), rounding(4), how) for n, v in pair.items()]
        return max(verdicts, key=lambda v: v.worst)
    if case.op.direction == "forward":
        return _compare(cut["y"], *_forward(case, wide["x"]), how)
    return _compare(cut["dx"], *_backward(case, wide, shape), how)


Expected = tuple[np.ndarray, np.ndarray, "np.ndarray | float"]


def _forward(case: Case, x: np.ndarray) -> Expected:
    value = plain.FORWARD[case.op.kind](x, case.axes, case.correction)
    if case.op.kind in ("cumsum", "sum", "mean"):
        magnitude = plain.FORWARD[case.op.kind](np.abs(x), case.axes, case.correction)
    elif case.family == "softmax" or case.op.kind in ("logsumexp", "logcumsumexp"):
        magnitude = (np.abs(value) + 1) * (1 + np.abs(x).max(initial=0.0))
    else:
        magnitude = np.abs(value)
    exps = 2.0 if case.op.kind in plain.FORWARD_EXPS else 0.0
    return value, magnitude, rounding(case.extent) + exps * EXP_ERROR[case.element]


def _backward(case: Case, wide: Arrays, shape: tuple[int, ...]) -> Expected:
    kind, axes = case.op.kind, case.axes
    x, y = wide.get("x"), wide.get("y")
    if kind in plain.NEEDS_EXACT_Y:
        y = plain.FORWARD[kind](wide["x"], axes, case.correction)
    arguments = (wide["dy"], x, y, shape, axes, case.correction)
    value = plain.BACKWARD[kind](*arguments)
    sized = plain.MAGNITUDE.get(kind)
    magnitude = sized(*arguments) if sized else np.abs(value)
    relative: np.ndarray | float = rounding(case.extent)
    if kind in plain.EXPS:
        relative = relative + plain.EXPS[kind](y, axes) * EXP_ERROR[case.element]
    return value, magnitude, relative


def _verify_segment(case: Case, operands: Arrays, outputs: Arrays) -> Verdict:
    ids = operands["segment_ids"]
    if case.op.direction == "backward":
        rows = _some(case.shape[0], max(8, MOST // max(1, case.shape[1])))
        exact = operands["d_output"][ids[rows]].astype(np.float64)
        return _compare(outputs["d_input"][rows], exact, np.abs(exact), 0.0, f"{len(rows)} rows")
    columns = _some(case.shape[1], max(2, MOST // max(1, case.shape[0])))
    taken = operands["input"][:, columns].astype(np.float64)
    exact = plain.segment_sum(taken, ids, case.segments)
    magnitude = plain.segment_sum(np.abs(taken), ids, case.segments)
    terms = int(np.bincount(ids, minlength=1).max())
    out = outputs["output"][:, columns]
    return _compare(out, exact, magnitude, rounding(terms), f"{len(columns)} columns")


def _verify_small(case: Case) -> Verdict:
    """An op that only the catalog and the oracle know, on a small problem like the case."""
    from ...oracle import reference, ulp_error

    small = dataclasses.replace(case, shape=tuple(min(n, 24) for n in case.shape))
    operands, outputs = make_operands(small), make_outputs(small)
    small.plan().run(**operands, **outputs)
    known = reference(case.op.name, operands, axis=case.axis)
    worst = max(
        float(ulp_error(outputs[n], known[n], case.element).max(initial=0.0)) for n in outputs
    )
    reason = "" if worst <= 1.0 else f"{worst:.3g} ulp from the oracle"
    return Verdict(worst <= 1.0, worst, "oracle, small", reason)
