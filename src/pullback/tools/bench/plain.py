"""Every op as one would write it in NumPy: the NumPy contender, and in float64 the check.

The formulas are the textbook ones, with a division where a product is undone; they are right for
the data of the benchmark, which has no zeros. ``axes`` is a tuple; a scan or softmax has one axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..case import Case
from . import steps
from .projections import BY_SORT, of_arrays

Array = np.ndarray


def _from_end(accumulate: Callable, v: Array, axis: int) -> Array:
    return np.flip(accumulate(np.flip(v, axis), axis), axis)


def _suffix_sum(v: Array, axis: int) -> Array:
    return _from_end(lambda a, k: np.cumsum(a, k, dtype=v.dtype), v, axis)


def _total(v: Array, axes: tuple[int, ...]) -> Array:
    return np.sum(v, axes, keepdims=True, dtype=v.dtype)


def _log_sum(x: Array, axes: tuple[int, ...], correction: float) -> Array:
    peak = np.max(x, axes, keepdims=True)
    return peak + np.log(_total(np.exp(x - peak), axes))


def _softmax(x: Array, axes: tuple[int, ...], correction: float) -> Array:
    shifted = np.exp(x - np.max(x, axes, keepdims=True))
    return shifted / _total(shifted, axes)


def _divisor(x: Array, axes: tuple[int, ...], correction: float) -> float:
    return max(np.prod([x.shape[a] for a in axes], dtype=np.int64) - correction, 1)


def _variance(x: Array, axes: tuple[int, ...], correction: float) -> Array:
    mean = np.mean(x, axes, keepdims=True, dtype=x.dtype)
    return _total((x - mean) ** 2, axes) / x.dtype.type(_divisor(x, axes, correction))


def _by_sort(kind: str) -> Callable[[Array, tuple[int, ...], float], Array]:
    return lambda x, axes, c: BY_SORT[kind](of_arrays(np), x, axes[0])


# FORWARD[kind](x, axes, correction); reductions keep their axes.
FORWARD: Mapping[str, Callable[[Array, tuple[int, ...], float], Array]] = {
    "cumsum": lambda x, axes, c: np.cumsum(x, axes[0], dtype=x.dtype),
    "cumprod": lambda x, axes, c: np.cumprod(x, axes[0], dtype=x.dtype),
    "cummax": lambda x, axes, c: np.maximum.accumulate(x, axes[0]),
    "cummin": lambda x, axes, c: np.minimum.accumulate(x, axes[0]),
    "logcumsumexp": lambda x, axes, c: np.logaddexp.accumulate(x, axes[0]),
    "sum": lambda x, axes, c: _total(x, axes),
    "mean": lambda x, axes, c: np.mean(x, axes, keepdims=True, dtype=x.dtype),
    "max": lambda x, axes, c: np.max(x, axes, keepdims=True),
    "min": lambda x, axes, c: np.min(x, axes, keepdims=True),
    "prod": lambda x, axes, c: np.prod(x, axes, keepdims=True, dtype=x.dtype),
    "norm2": lambda x, axes, c: np.sqrt(_total(x * x, axes)),
    "logsumexp": _log_sum,
    "var": _variance,
    "std": lambda x, axes, c: np.sqrt(_variance(x, axes, c)),
    "softmax": _softmax,
    "log_softmax": lambda x, axes, c: x - _log_sum(x, axes, c),
    "sparsemax": _by_sort("sparsemax"),
    "entmax15": _by_sort("entmax15"),
}


def _cumprod(dy, x, y, shape, axes, correction):
    return _suffix_sum(dy * y, axes[0]) / x


def _running(extreme: np.ufunc) -> Callable:
    def backward(dy, x, y, shape, axes, correction):
        rows = np.moveaxis(x, axes[0], -1)
        running = extreme.accumulate(rows, -1)
        begins = np.ones(rows.shape, bool)
        begins[..., 1:] = running[..., 1:] != running[..., :-1]
        at = np.flatnonzero(begins)
        dx = np.zeros(rows.size, dy.dtype)
        dx[at] = np.add.reduceat(np.moveaxis(dy, axes[0], -1).ravel(), at)
        return np.moveaxis(dx.reshape(rows.shape), -1, axes[0])

    return backward


def _logcumsumexp(dy, x, y, shape, axes, correction):
    # The first y of a row is its least, so exp(low - y) is at most 1.
    low = np.take(y, [0], axes[0])
    return np.exp(x - low) * _suffix_sum(dy * np.exp(low - y), axes[0])


def _extreme(dy, x, y, shape, axes, correction):
    held = x == y
    return np.where(held, dy / np.count_nonzero(held, axes, keepdims=True).astype(dy.dtype), 0)


def _mean(dy, x, y, shape, axes, correction):
    count = np.prod([shape[a] for a in axes], dtype=np.int64)
    return np.broadcast_to(dy / dy.dtype.type(count), shape).copy()


def _centred(x: Array, axes: tuple[int, ...]) -> Array:
    return x - np.mean(x, axes, keepdims=True, dtype=x.dtype)


def _var(dy, x, y, shape, axes, correction):
    return dy * x.dtype.type(2 / _divisor(x, axes, correction)) * _centred(x, axes)


def _std(dy, x, y, shape, axes, correction):
    # Two equal numbers, which short rows of narrow types hold now and then, have y = 0.
    flat = y == 0
    scale = dy / (x.dtype.type(_divisor(x, axes, correction)) * np.where(flat, 1, y))
    return np.where(flat, 0, scale) * _centred(x, axes)


def _on_support(weights: Callable[[Array], Array]) -> Callable:
    def backward(dy, x, y, shape, axes, correction):
        s = weights(y)
        return s * (dy - _total(s * dy, axes) / _total(s, axes))

    return backward


def _of_magnitudes(weights: Callable[[Array], Array]) -> Callable:
    def magnitude(dy, x, y, shape, axes, correction):
        s, size = weights(y), np.abs(dy)
        return s * (size + _total(s * size, axes) / _total(s, axes))

    return magnitude


def _support(y: Array) -> Array:
    return (y > 0).astype(y.dtype)


# BACKWARD[kind](dy, x, y, shape, axes, correction); what an op does not need is None.
BACKWARD: Mapping[str, Callable[..., Array]] = {
    "cumsum": lambda dy, x, y, shape, axes, c: _suffix_sum(dy, axes[0]),
    "cumprod": _cumprod,
    "cummax": _running(np.maximum),
    "cummin": _running(np.minimum),
    "logcumsumexp": _logcumsumexp,
    "sum": lambda dy, x, y, shape, axes, c: np.broadcast_to(dy, shape).copy(),
    "mean": _mean,
    "max": _extreme,
    "min": _extreme,
    "prod": lambda dy, x, y, shape, axes, c: dy * y / x,
    "norm2": lambda dy, x, y, shape, axes, c: dy * x / y,
    "logsumexp": lambda dy, x, y, shape, axes, c: dy * np.exp(x - y),
    "var": _var,
    "std": _std,
    "softmax": lambda dy, x, y, shape, axes, c: y * (dy - _total(y * dy, axes)),
    "log_softmax": lambda dy, x, y, shape, axes, c: dy - np.exp(y) * _total(dy, axes),
    "sparsemax": _on_support(_support),
    "entmax15": _on_support(np.sqrt),
}

# Formulas that use a saved product need it unrounded to serve as a check.
NEEDS_EXACT_Y = frozenset({"cumprod", "prod"})


def _spread(v: Array, axes: tuple[int, ...]) -> Array:
    return np.abs(v) + np.mean(np.abs(v), axes, keepdims=True)


# Sums of the absolute values of the terms of BACKWARD, where these exceed the result.
MAGNITUDE: Mapping[str, Callable[..., Array]] = {
    "cumsum": lambda dy, x, y, shape, axes, c: _suffix_sum(np.abs(dy), axes[0]),
    "cumprod": lambda dy, x, y, shape, axes, c: _suffix_sum(np.abs(dy * y), axes[0]) / np.abs(x),
    "cummax": lambda dy, x, y, shape, axes, c: _suffix_sum(np.abs(dy), axes[0]),
    "cummin": lambda dy, x, y, shape, axes, c: _suffix_sum(np.abs(dy), axes[0]),
    "logcumsumexp": lambda dy, *rest: _logcumsumexp(np.abs(dy), *rest),
    "logsumexp": lambda dy, x, y, shape, axes, c: np.abs(dy) * np.exp(x - y) * (1 + np.abs(x - y)),
    "var": lambda dy, x, y, shape, axes, c: (
        np.abs(dy) * (2 / _divisor(x, axes, c)) * _spread(x, axes)
    ),
    "std": lambda dy, x, y, shape, axes, c: (
        np.abs(dy) * _spread(x, axes) / (_divisor(x, axes, c) * np.where(y == 0, 1, np.abs(y)))
    ),
    "softmax": lambda dy, x, y, shape, axes, c: y * (np.abs(dy) + _total(np.abs(y * dy), axes)),
    "log_softmax": lambda dy, x, y, shape, axes, c: (
        np.abs(dy) + np.exp(y) * (1 + np.abs(y)) * _total(np.abs(dy), axes)
    ),
    "sparsemax": _of_magnitudes(_support),
    "entmax15": _of_magnitudes(np.sqrt),
}


# How often exp's own error counts, by op: once for an exp of its own; for logcumsumexp backward a
# chain of exps whose exponents add up to the rise of y. The error of a factor exp(-r) grows with
# r squared up to r = ln2 / 2 and stays there, so that a chain counts at most 1 + rise / (ln2 / 2).
EXPS: Mapping[str, Callable[..., Array | float]] = {
    "logsumexp": lambda y, axes: 1.0,
    "log_softmax": lambda y, axes: 1.0,
    "logcumsumexp": lambda y, axes: 1 + 3 * np.ptp(y, axes[0], keepdims=True),
}
# Forwards whose magnitude is that of the absolute values, and those that call exp.
FORWARD_SUMS = frozenset({"cumsum", "sum", "mean"})
# Differences of numbers up to 1, whatever comes out.
FORWARD_DIFFERENCES = frozenset(BY_SORT)
FORWARD_EXPS = frozenset({"softmax", "log_softmax", "logsumexp", "logcumsumexp"})


def _lerp_backward(case: Case, held: Mapping[str, Array]) -> tuple[Array, ...]:
    dy = held["dy"]
    w = dy.dtype.type(case.get("weight"))
    return (1 - w) * dy, w * dy


def _lerp(case: Case, held: Mapping[str, Array]) -> tuple[Array, ...]:
    a, b = held["a"], held["b"]
    return (a + a.dtype.type(case.get("weight")) * (b - a),)


def _segment_sum(case: Case, held: Mapping[str, Array]) -> tuple[Array, ...]:
    return (segment_sum(held["input"], held["segment_ids"], case.segments or 0),)


def _segment_sum_backward(case: Case, held: Mapping[str, Array]) -> tuple[Array, ...]:
    return (held["d_output"][held["segment_ids"]],)


# Ops of other operands than x, y and dy: OTHERS[name](case, operands).
OTHERS: Mapping[str, Callable[[Case, Mapping[str, Array]], tuple[Array, ...]]] = {
    "lerp": _lerp,
    "lerp_backward": _lerp_backward,
    "segment_sum": _segment_sum,
    "segment_sum_backward": _segment_sum_backward,
}


def formula(case: Case) -> Callable[[Mapping[str, Array]], tuple[Array, ...]] | None:
    """The outputs of a case from its operands; None where nothing is written down for it."""
    if not case.is_plain:
        return None
    if case.op.name in OTHERS:
        return lambda held: OTHERS[case.op.name](case, held)
    if case.op.name in steps.FORMULAS:
        short = case.shape and case.extent <= steps.LONGEST
        return (lambda held: steps.FORMULAS[case.op.name](case, held)) if short else None
    backward = case.op.direction == "backward"
    table: Mapping[str, Callable[..., Array]] = BACKWARD if backward else FORWARD
    found = table.get(case.op.kind)
    if found is None:
        return None
    if not backward:
        return lambda held: (found(held["x"], case.axes, case.get("correction")),)
    return lambda held: (found(*arguments(case, held, case.shape)),)


def arguments(case: Case, held: Mapping[str, Array], shape: tuple[int, ...]) -> tuple:
    """What BACKWARD and MAGNITUDE take."""
    get = held.get
    return get("dy"), get("x"), get("y"), shape, case.axes, case.get("correction")


def segment_sum(rows: Array, ids: Array, segments: int) -> Array:
    """Rows with the same id summed."""
    out = np.zeros((segments, *rows.shape[1:]), rows.dtype)
    np.add.at(out, ids, rows)
    return out
