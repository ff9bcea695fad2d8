"""Is the result of a case right? No time is reported for one that is not.

The whole output must have been written. Its values are compared with the plain formula in float64,
on everything or, past ``MOST`` elements, on the first, the last and some random rows. An element
may differ by one unit in the last place of its type, or by two where float32 is computed in
float32, plus the rounding of a float64 sum of n terms of the same magnitude, plus the error of exp,
which is 2**-32 for results of less than float64.

An op without a plain formula is compared with its definition in the oracle: on as many rows as hold
``FEW`` elements, or, where a row holds more, on a small problem of the same rank and axis; an op by
segment on some of them, in up to 64 columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ...core.declare import Role, Type
from ..case import Case
from ..operands import SEED, make_operands
from . import plain, steps
from .grouped import with_ids

MOST = 1 << 20
# The oracle takes 40 to 220 µs for an element.
FEW = 1 << 12
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


class Backend:
    """Where a case runs, and how its arithmetic rounds: here, on the CPU, in float64."""

    def result(self, case: Case, operands: Arrays) -> Arrays:
        """What a plan writes."""
        from ..check import accuracy

        return accuracy.result(case, operands)

    def unit(self, case: Case) -> float:
        """Half an ulp of what is computed in."""
        return 2.0**-53

    def rounding(self, case: Case, terms: int) -> float:
        """At most four roundings for each element and a few more, at half an ulp each."""
        return (4 * terms + 16) * self.unit(case)

    def exp_error(self, case: Case) -> float:
        """The relative error of exp."""
        return EXP_ERROR[case.element]


CPU = Backend()


def verify(case: Case, operands: Arrays, outputs: Arrays, backend: Backend = CPU) -> Verdict:
    """Compare the outputs that a plan wrote with the float64 formula."""
    for name, out in outputs.items():
        missing = int(np.count_nonzero((out != out) & ~_of_nothing(case, operands, out)))
        if missing:
            return Verdict(False, math.inf, "written", f"{name}: {missing} elements are NaN")
    if plain.formula(case) is None:
        return _verify_by_oracle(case, operands, outputs, backend)
    by = _verify_segment if case.is_segmented else _verify_rows
    return by(case, operands, outputs, backend)


def _of_nothing(case: Case, operands: Arrays, out: np.ndarray) -> np.ndarray:
    """Where an output has the value of a row that a mask leaves without any element: maybe NaN."""
    nothing = np.zeros(out.shape, np.bool_)
    for operand in case.op.reads:
        is_mask = operand.type is Type.BOOL and operand.broadcasts and operand.name in operands
        if is_mask and out.shape != case.shape:
            mask = np.broadcast_to(operands[operand.name], case.shape)
            nothing |= ~mask.any(case.axes, keepdims=True).reshape(out.shape)
    return nothing


def _compare(
    out: np.ndarray,
    exact: np.ndarray,
    magnitude: np.ndarray,
    relative: np.ndarray | float,
    how: str,
    ulps: float = 1.0,
) -> Verdict:
    """Worst error over what is allowed: some ulps, and a relative error of the magnitude."""
    kind = ml_dtypes.finfo(out.dtype)
    unit = np.maximum(np.abs(exact), float(kind.smallest_normal)) * float(kind.eps)
    unit += float(kind.smallest_subnormal)
    allowed = ulps * unit + relative * magnitude
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


def _some(count: int, most: int) -> np.ndarray:
    """Up to ``most`` of ``count`` rows: both ends, and random ones between."""
    if count <= most:
        return np.arange(count)
    ends = min(3, most // 2)
    middle = np.random.default_rng(SEED).choice(count, most - 2 * ends, replace=False)
    picked = [np.arange(ends), middle, np.arange(count - ends, count)]
    return np.unique(np.concatenate(picked))


def _slices(
    case: Case, arrays: Arrays, most: int = MOST, least: int = 8
) -> tuple[dict[str, np.ndarray], tuple[int, ...], int]:
    """The arrays on some of the longest independent dimension, their shape and its size."""
    axes = () if case.is_pointwise else case.axes
    free = [k for k in range(len(case.shape)) if k not in axes]
    size = math.prod(case.shape)
    if not free or size <= most:
        return dict(arrays), case.shape, size
    longest = max(free, key=lambda k: case.shape[k])
    picked = _some(case.shape[longest], max(least, most * case.shape[longest] // size))
    cut = {n: a.take(picked, longest) if a.shape[longest] != 1 else a for n, a in arrays.items()}
    shape = tuple(len(picked) if k == longest else n for k, n in enumerate(case.shape))
    return cut, shape, math.prod(shape)


def _verify_rows(case: Case, operands: Arrays, outputs: Arrays, backend: Backend) -> Verdict:
    cut, shape, size = _slices(case, {**operands, **outputs})
    how = "all" if size == math.prod(case.shape) else f"{size} of {math.prod(case.shape)}"
    wide = {n: cut[n].astype(np.float64) for n in operands}
    if case.op.name in plain.OTHERS:
        exact = plain.OTHERS[case.op.name](case, wide)
        terms = np.sum([np.abs(a) for a in wide.values()], axis=0)
        verdicts = [
            _compare(cut[n], v, terms, backend.rounding(case, 4), how, case.ulps)
            for n, v in zip(case.outputs, exact, strict=True)
        ]
        return max(verdicts, key=lambda v: v.worst)
    if case.op.name in steps.FORMULAS:
        exact, sizes = steps.FORMULAS[case.op.name](case, wide), steps.magnitudes(case, wide)
        found = zip(case.outputs, exact, sizes, strict=True)
        relative = backend.rounding(case, case.extent)
        verdicts = [_compare(cut[n], v, m, relative, how) for n, v, m in found]
        return max(verdicts, key=lambda v: v.worst)
    if case.op.direction == "forward":
        return _compare(cut["y"], *_forward(case, wide["x"], backend), how, case.ulps)
    return _compare(cut["dx"], *_backward(case, wide, shape, backend), how, case.ulps)


Expected = tuple[np.ndarray, np.ndarray, "np.ndarray | float"]


def _forward(case: Case, x: np.ndarray, backend: Backend) -> Expected:
    value = plain.FORWARD[case.op.kind](x, case.axes, case.get("correction"))
    if case.op.kind in plain.FORWARD_SUMS:
        magnitude = plain.FORWARD[case.op.kind](np.abs(x), case.axes, case.get("correction"))
    elif case.op.kind in plain.FORWARD_EXPS:
        magnitude = (np.abs(value) + 1) * (1 + np.abs(x).max(initial=0.0))
    elif case.op.kind in plain.FORWARD_DIFFERENCES:
        magnitude = np.ones_like(value)
    else:
        magnitude = np.abs(value)
    exps = 2.0 if case.op.kind in plain.FORWARD_EXPS else 0.0
    relative = backend.rounding(case, case.extent) + exps * backend.exp_error(case)
    return value, magnitude, relative


def _backward(case: Case, wide: Arrays, shape: tuple[int, ...], backend: Backend) -> Expected:
    kind, axes = case.op.kind, case.axes
    if kind in plain.NEEDS_EXACT_Y:
        wide = {**wide, "y": plain.FORWARD[kind](wide["x"], axes, case.get("correction"))}
    arguments = plain.arguments(case, wide, shape)
    value = plain.BACKWARD[kind](*arguments)
    sized = plain.MAGNITUDE.get(kind)
    magnitude = sized(*arguments) if sized else np.abs(value)
    relative: np.ndarray | float = backend.rounding(case, case.extent)
    if kind in plain.EXPS:
        relative = relative + plain.EXPS[kind](wide["y"], axes) * backend.exp_error(case)
    return value, magnitude, relative


def _verify_segment(case: Case, operands: Arrays, outputs: Arrays, backend: Backend) -> Verdict:
    ids = operands["segment_ids"]
    if case.op.direction == "backward":
        rows = _some(case.shape[0], max(8, MOST // max(1, case.shape[1])))
        exact = operands["d_output"][ids[rows]].astype(np.float64)
        return _compare(outputs["d_input"][rows], exact, np.abs(exact), 0.0, f"{len(rows)} rows")
    columns = _some(case.shape[1], max(2, MOST // max(1, case.shape[0])))
    taken = operands["input"][:, columns].astype(np.float64)
    exact = plain.segment_sum(taken, ids, case.segments or 0)
    magnitude = plain.segment_sum(np.abs(taken), ids, case.segments or 0)
    terms = int(np.bincount(ids, minlength=1).max())
    out = outputs["output"][:, columns]
    relative = backend.rounding(case, terms)
    return _compare(out, exact, magnitude, relative, f"{len(columns)} columns")


def _verify_by_oracle(case: Case, operands: Arrays, outputs: Arrays, backend: Backend) -> Verdict:
    """A case that only the catalog and the oracle know."""
    cut, shape, size = {**operands, **outputs}, case.shape, math.prod(case.shape)
    if case.op.names(Role.IDS) and size > FEW:
        return _verify_some_segments(case, cut, backend)
    if not case.is_segmented:
        cut, shape, size = _slices(case, cut, FEW, 1)
    if size > FEW:
        return _verify_small(case, backend)
    how = "all" if shape == case.shape else f"{size} of {math.prod(case.shape)}"
    held = {n: cut[n] for n in operands}
    return _against_oracle(case.but(shape=shape), held, cut, f"oracle, {how}", backend)


def _verify_some_segments(case: Case, arrays: Arrays, backend: Backend) -> Verdict:
    """Some of the segments, with all of their rows, in some of the columns."""
    (by,), count = case.op.names(Role.IDS), case.segments or 0
    ids = with_ids(case, arrays)[by]
    lengths = np.bincount(ids[(ids >= 0) & (ids < count)], minlength=count)
    columns = _some(case.shape[1], 64)
    picked = np.random.default_rng(SEED).permutation(count)
    picked = np.sort(picked[np.cumsum(lengths[picked]) * columns.size <= FEW])
    rows = np.flatnonzero(np.isin(ids, picked))
    if not rows.size:
        return _verify_small(case, backend)
    cut = {}
    for name, array in arrays.items():
        match case.op.operand(name).role:
            case Role.IDS:
                cut[name] = np.searchsorted(picked, ids[rows])
            case Role.OFFSETS:
                cut[name] = np.concatenate([[0], np.cumsum(lengths[picked])])
            case role:
                cut[name] = array[np.ix_(picked if role is Role.ROW else rows, columns)]
    small = case.but(shape=(rows.size, columns.size), segments=picked.size)
    held = {n: cut[n] for n in case.reads}
    how = f"oracle, {picked.size} segments, {columns.size} columns"
    return _against_oracle(small, held, cut, how, backend)


def _verify_small(case: Case, backend: Backend) -> Verdict:
    """Another case, small enough for the oracle and like the one that is asked about."""
    segments = None if case.segments is None else min(case.segments, 5)
    small = case.but(shape=tuple(min(n, 24) for n in case.shape), segments=segments)
    operands = make_operands(small)
    outputs = backend.result(small, operands)
    return _against_oracle(small, operands, outputs, "oracle, small", backend)


def _against_oracle(
    case: Case, operands: Arrays, outputs: Arrays, how: str, backend: Backend
) -> Verdict:
    from ..check import accuracy

    exact = case.exact(operands)
    errors = accuracy.errors(case, outputs, exact)
    share = accuracy.worst_share(errors, accuracy.allowed(case, operands, exact, backend))
    reason = "" if share <= 1.0 else f"{errors.max():.3g} ulp from the oracle"
    return Verdict(share <= 1.0, share, how, reason)
