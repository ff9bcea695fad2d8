"""Every op from its definition, in long double on whole arrays; nothing here is pullback's.

A definition sees rows, first element of the scan first, and gives the value beside its magnitude:
the sum of the absolute values of the terms, by which an error is measured where terms cancel. The
third thing it may give is where anything is promised at all.

The library's oracle has the same definitions on exact numbers. These are less exact and a thousand
times as fast, and they share no line with it, so that the two can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

LONG = np.longdouble
INF = LONG(np.inf)
NAN = LONG(np.nan)
# The mantissas of so many factors multiply without leaving the range of a long double.
PRODUCT_BLOCK = 8192
# An exponent below every other, for zero.
NOWHERE = -(1 << 40)
# Sums that take n² terms are computed at some positions only where they would take more than these.
MOST_TERMS = 1 << 20

Array = Any
Rows = tuple[Array, ...]


@dataclass
class Expected:
    """What an output should be: value and magnitude as long doubles, and where they are known."""

    value: Array
    magnitude: Array
    known: Array


def exactly(value: Array) -> Rows:
    """A value of a single term."""
    return value, np.abs(value)


# Scans


def cumsum(x: Array) -> Rows:
    return np.cumsum(x, axis=1), np.cumsum(np.abs(x), axis=1)


def cumsum_backward(dy: Array) -> Rows:
    value, magnitude = cumsum(dy[:, ::-1])
    return value[:, ::-1], magnitude[:, ::-1]


def scale(x: Array) -> Rows:
    """Mantissas and exponents."""
    m, e = np.frexp(x)
    return m, np.where(m == 0, NOWHERE, e.astype(np.int64))


def unscale(m: Array, e: Array) -> Array:
    return np.ldexp(m, np.clip(e, -40000, 40000))


def products(x: Array) -> Rows:
    """The products of the first 1, 2, … elements of each row, scaled."""
    m, e = np.frexp(x)
    e = np.cumsum(e.astype(np.int64), axis=1)
    carried = np.zeros((len(x), 1), np.int64)
    for start in range(0, x.shape[1], PRODUCT_BLOCK):
        block = slice(start, start + PRODUCT_BLOCK)
        part = np.cumprod(m[:, block], axis=1)
        if start:
            part = part * m[:, start - 1 : start]
        m[:, block], shift = np.frexp(part)
        e[:, block] += carried + shift
        carried = carried + shift[:, -1:]
    return m, e


def products_before(x: Array) -> Rows:
    """The products of the first 0, 1, … elements."""
    one = np.ones((len(x), 1), LONG)
    return products(np.concatenate([one, x], axis=1)[:, : x.shape[1]])


def cumprod(x: Array) -> Rows:
    return exactly(unscale(*products(x)))


def cumprod_backward(dy: Array, x: Array) -> Rows:
    """dx[j] = P[j]·R[j], R[j] = dy[j] + x[j+1]·R[j+1]; once more with absolute values."""
    rows, n = x.shape
    both_x, both_dy = np.concatenate([x, np.abs(x)]), np.concatenate([dy, np.abs(dy)])
    (pm, pe), (xm, xe), (dm, de) = products_before(both_x), scale(both_x), scale(both_dy)
    rm, re = np.zeros(2 * rows, LONG), np.full(2 * rows, NOWHERE)
    dx = np.empty_like(both_x)
    for j in reversed(range(n)):
        if j + 1 < n:
            rm, re = rm * xm[:, j + 1], re + xe[:, j + 1]
        top = np.maximum(re, de[:, j])
        rm, shift = np.frexp(unscale(rm, re - top) + unscale(dm[:, j], de[:, j] - top))
        re = np.where(rm == 0, NOWHERE, top + shift)
        dx[:, j] = unscale(pm[:, j] * rm, pe[:, j] + re)
    # An infinite product times a sum that cancels is inf or nan, by where the product is taken.
    infinite = (np.isinf(x) | np.isinf(dy)).any(axis=1)
    positive = ((x > 0) & (dy > 0)).all(axis=1)
    return dx[:rows], dx[rows:], np.repeat((~infinite | positive)[:, None], n, axis=1)


def cummax(x: Array) -> Rows:
    return exactly(np.maximum.accumulate(x, axis=1))


def cummin(x: Array) -> Rows:
    return exactly(np.minimum.accumulate(x, axis=1))


def cummax_backward(dy: Array, x: Array, ties: str) -> Rows:
    """Each dy goes to the position of the running maximum; the first nan keeps it."""
    rows, n = x.shape
    best = np.maximum.accumulate(x, axis=1)
    begins = np.ones(x.shape, bool)
    begins[:, 1:] = (x[:, 1:] > best[:, :-1]) | (np.isnan(x[:, 1:]) & ~np.isnan(best[:, :-1]))
    if ties == "last":
        begins |= x == best
    holder = np.maximum.accumulate(np.where(begins, np.arange(n), 0), axis=1)
    dx, magnitude = np.zeros_like(x), np.zeros_like(x)
    where = (np.arange(rows)[:, None], holder)
    np.add.at(dx, where, dy)
    np.add.at(magnitude, where, np.abs(dy))
    return dx, magnitude


def cummin_backward(dy: Array, x: Array, ties: str) -> Rows:
    return cummax_backward(dy, -x, ties)


def logcumsumexp(x: Array) -> Rows:
    value, top = np.logaddexp.accumulate(x, axis=1), np.maximum.accumulate(x, axis=1)
    return value, np.where(np.isfinite(top), np.abs(top) + (value - top), np.abs(value))


def logcumsumexp_backward(dy: Array, x: Array, y: Array) -> Rows:
    """dx[k] = Σ_{i≥k} dy[i]·exp(x[k] − y[i]), where neither x[k] nor y[i] is −inf."""
    rows, n = x.shape
    value, magnitude, known = np.zeros_like(x), np.zeros_like(x), np.zeros(x.shape, bool)
    some = max(1, 2 * MOST_TERMS // max(1, rows * n))
    positions = range(n) if some >= n else sorted({*range(0, n, -(-n // some)), n - 1, n - 2, 1})
    for k in positions:
        terms = dy[:, k:] * np.exp(x[:, k : k + 1] - y[:, k:])
        terms[(y[:, k:] == -INF) | (x[:, k : k + 1] == -INF)] = 0
        value[:, k], magnitude[:, k] = terms.sum(axis=1), np.abs(terms).sum(axis=1)
        known[:, k] = True
    # A factor that is 0 stops what comes after it, nan too, and exp is 0 below −745.
    steep = np.fmax.reduce(y, axis=1)[:, None] - y > 700 if n else known
    return value, magnitude, known & ~(np.isnan(value) & steep)


# Reductions: x is (rows, n); y and dy are (rows, 1)


def sum_(x: Array) -> Rows:
    return x.sum(axis=1, keepdims=True), np.abs(x).sum(axis=1, keepdims=True)


def sum_backward(dy: Array, n: int) -> Rows:
    return exactly(np.repeat(dy, n, axis=1))


def mean(x: Array) -> Rows:
    value, magnitude = sum_(x)
    return value / x.shape[1], magnitude / x.shape[1]


def mean_backward(dy: Array, n: int) -> Rows:
    return exactly(np.repeat(dy / LONG(n), n, axis=1))


def max_(x: Array) -> Rows:
    return exactly(x.max(axis=1, keepdims=True, initial=-INF))


def min_(x: Array) -> Rows:
    return exactly(x.min(axis=1, keepdims=True, initial=INF))


def extreme_backward(dy: Array, x: Array, y: Array, ties: str) -> Rows:
    holds = (x == y) | (np.isnan(x) & np.isnan(y))
    rank = np.cumsum(holds, axis=1)
    count = rank[:, -1:] if x.shape[1] else np.ones_like(dy)
    if ties == "first":
        holds &= rank == 1
    elif ties == "last":
        holds &= rank == count
    share = dy / np.maximum(count, 1) if ties == "split" else dy
    return exactly(np.where(holds, share, LONG(0)))


def prod(x: Array) -> Rows:
    if not x.shape[1]:
        return exactly(np.ones((len(x), 1), LONG))
    m, e = products(x)
    return exactly(unscale(m[:, -1:], e[:, -1:]))


def prod_backward(dy: Array, x: Array) -> Rows:
    (bm, be), (am, ae), (dm, de) = products_before(x), products_before(x[:, ::-1]), scale(dy)
    m = bm * am[:, ::-1]
    return exactly(unscale(m * dm, be + ae[:, ::-1] + np.where(dm == 0, 0, de)))


def norm2(x: Array) -> Rows:
    return exactly(np.sqrt((x * x).sum(axis=1, keepdims=True)))


def norm2_backward(dy: Array, x: Array, y: Array) -> Rows:
    return exactly(np.where(y == 0, LONG(0), dy * x / y))


def logsumexp(x: Array) -> Rows:
    if not x.shape[1]:
        return exactly(np.full((len(x), 1), -INF))
    top = x.max(axis=1, keepdims=True)
    log = np.log(np.exp(x - np.where(np.isinf(top), LONG(0), top)).sum(axis=1, keepdims=True))
    infinite = np.isinf(top)
    return np.where(infinite, top, top + log), np.where(infinite, INF, np.abs(top) + log)


def logsumexp_backward(dy: Array, x: Array, y: Array) -> Rows:
    return exactly(np.where(y == -INF, LONG(0), dy * np.exp(x - y)))


def deviations(x: Array) -> Rows:
    """x − mean; with |x| + mean |x|, by which its error is measured."""
    middle, magnitude = mean(x)
    return x - middle, np.abs(x) + magnitude


def freedom(x: Array, correction: float) -> Array:
    return LONG(max(x.shape[1] - correction, 1))


def var(x: Array, correction: float) -> Rows:
    m = freedom(x, correction)
    value, magnitude = ((d * d).sum(axis=1, keepdims=True) / m for d in deviations(x))
    return (value, magnitude) if x.shape[1] else exactly(np.full((len(x), 1), NAN))


def var_backward(dy: Array, x: Array, correction: float) -> Rows:
    value, magnitude = deviations(x)
    gain = 2 * dy / freedom(x, correction)
    return gain * value, np.abs(gain) * magnitude


def std(x: Array, correction: float) -> Rows:
    """A norm: what the deviations are off by, the norm of that is the most that it can be off."""
    value, magnitude = var(x, correction)
    return np.sqrt(value), np.sqrt(magnitude)


def std_backward(dy: Array, x: Array, y: Array, correction: float) -> Rows:
    value, magnitude = deviations(x)
    m = freedom(x, correction)
    zero = y == 0
    return (
        np.where(zero, LONG(0), dy * value / (m * y)),
        np.where(zero, LONG(0), np.abs(dy) * magnitude / (m * y)),
    )


# softmax


def softmax(x: Array) -> Rows:
    if not x.shape[1]:
        return exactly(x)
    top = x.max(axis=1, keepdims=True)
    weights = np.exp(x - top)
    value = weights / weights.sum(axis=1, keepdims=True)
    return exactly(np.where(np.isfinite(top), value, NAN))


def softmax_backward(dy: Array, y: Array) -> Rows:
    dot, magnitude = sum_(y * dy)
    return y * (dy - dot), np.abs(y) * (np.abs(dy) + magnitude)


def log_softmax(x: Array) -> Rows:
    value, magnitude = logsumexp(x)
    finite = np.isfinite(value)
    return np.where(finite, x - value, NAN), np.abs(x) + magnitude


def log_softmax_backward(dy: Array, y: Array) -> Rows:
    total, magnitude = sum_(dy)
    return dy - np.exp(y) * total, np.abs(dy) + np.exp(y) * magnitude


def _projected(x: Array, power: int) -> Rows:
    """max(x/power − tau, 0)**power, tau by halving the interval that it must lie in."""
    if not x.shape[1]:
        return exactly(x)
    top = x.max(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        z = np.where(x == top, LONG(0), (x - top) / power)
    low, high = np.full_like(top, -1), np.zeros_like(top)
    for _ in range(130):
        middle = (low + high) / 2
        above = (np.maximum(z - middle, 0) ** power).sum(axis=1, keepdims=True) > 1
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    value = np.where(np.isnan(top) | (top == -np.inf), NAN, np.maximum(z - high, 0) ** power)
    return value, np.ones_like(value)


def sparsemax(x: Array) -> Rows:
    return _projected(x, 1)


def entmax15(x: Array) -> Rows:
    return _projected(x, 2)


def _on_support(dy: Array, y: Array, weights: Array) -> Rows:
    inside = y > 0
    s = np.where(inside, weights, 0)
    total, magnitude = sum_(np.where(inside, s * dy, 0))
    whole = s.sum(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        value = np.where(inside, s * (dy - total / whole), np.where(np.isnan(y), NAN, 0))
        size = np.where(inside, s * (np.abs(dy) + magnitude / whole), 0)
    return value, size


def sparsemax_backward(dy: Array, y: Array) -> Rows:
    return _on_support(dy, y, np.ones_like(y))


def entmax15_backward(dy: Array, y: Array) -> Rows:
    return _on_support(dy, y, np.sqrt(np.maximum(y, 0)))


BY_ROWS: dict[str, Callable[..., Rows]] = {
    "cumsum": cumsum,
    "cumsum_backward": cumsum_backward,
    "cumprod": cumprod,
    "cumprod_backward": cumprod_backward,
    "cummax": cummax,
    "cummax_backward": cummax_backward,
    "cummin": cummin,
    "cummin_backward": cummin_backward,
    "logcumsumexp": logcumsumexp,
    "logcumsumexp_backward": logcumsumexp_backward,
    "sum": sum_,
    "sum_backward": sum_backward,
    "mean": mean,
    "mean_backward": mean_backward,
    "max": max_,
    "max_backward": extreme_backward,
    "min": min_,
    "min_backward": extreme_backward,
    "prod": prod,
    "prod_backward": prod_backward,
    "norm2": norm2,
    "norm2_backward": norm2_backward,
    "logsumexp": logsumexp,
    "logsumexp_backward": logsumexp_backward,
    "var": var,
    "var_backward": var_backward,
    "std": std,
    "std_backward": std_backward,
    "softmax": softmax,
    "softmax_backward": softmax_backward,
    "log_softmax": log_softmax,
    "log_softmax_backward": log_softmax_backward,
    "sparsemax": sparsemax,
    "sparsemax_backward": sparsemax_backward,
    "entmax15": entmax15,
    "entmax15_backward": entmax15_backward,
}


# Element by element, and by the first axis


def lerp(a: Array, b: Array, weight: Any) -> list[Rows]:
    w = np.asarray(weight, LONG)
    return [(a + w * (b - a), np.abs(a) + np.abs(w) * (np.abs(a) + np.abs(b)))]


def lerp_backward(
    dy: Array, weight: Any, a: Array | None = None, b: Array | None = None
) -> list[Rows]:
    w = np.asarray(weight, LONG)
    parts = [((1 - w) * dy, (1 + np.abs(w)) * np.abs(dy)), exactly(w * dy)]
    if w.ndim and a is not None and b is not None:
        parts.append((dy * (b - a), np.abs(dy) * (np.abs(a) + np.abs(b))))
    return parts


def segment_sum(x: Array, ids: Array, segments: int) -> Rows:
    """Rows whose id is out of range are left out."""
    inside = (ids >= 0) & (ids < segments)
    value = np.zeros((segments, *x.shape[1:]), LONG)
    magnitude = np.zeros_like(value)
    np.add.at(value, ids[inside], x[inside])
    np.add.at(magnitude, ids[inside], np.abs(x[inside]))
    return value, magnitude


def segment_sum_backward(d_output: Array, ids: Array) -> Rows:
    inside = (ids >= 0) & (ids < len(d_output))
    value = np.zeros((len(ids), *d_output.shape[1:]), LONG)
    value[inside] = d_output[ids[inside]]
    return exactly(value)


def _to_rows(array: Array, axes: tuple[int, ...]) -> Array:
    """(rows, elements along the axes), in C order of the axes."""
    kept = [a for a in range(array.ndim) if a not in axes]
    extent = int(np.prod([array.shape[a] for a in axes], dtype=np.int64))
    count = int(np.prod([array.shape[a] for a in kept], dtype=np.int64))
    return array.transpose(*kept, *axes).reshape(count, extent)


def _from_rows(rows: Array, shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    kept = [a for a in range(len(shape)) if a not in axes]
    order = [*kept, *axes]
    shaped = rows.reshape([shape[a] for a in order])
    return shaped.transpose(np.argsort(order)) if order else shaped


def widen(array: Array) -> Array:
    return array.astype(np.float64).astype(LONG)


def _define_rows(cell: Any, wide: dict[str, Array]) -> Rows:
    """The definition of an op of rows on operands of any rank."""
    op, axes = cell.op, cell.axes
    step = -1 if cell.get("reverse") else 1
    rows = {n: _to_rows(a, axes)[:, ::step] for n, a in wide.items()}
    if op.name in ("cumprod_backward", "prod_backward"):
        del rows["y"]
    keys: dict[str, Any] = {}
    if op.name in ("sum_backward", "mean_backward"):
        keys["n"] = cell.extent
    if op.ties:
        keys["ties"] = cell.get("ties")
    if op.parameter("correction"):
        keys["correction"] = cell.get("correction")
    shape = cell.shape_of(op.outputs[0])
    return tuple(
        _from_rows(part[:, ::step], shape, axes) for part in BY_ROWS[op.name](**rows, **keys)
    )


def is_known(name: str) -> bool:
    """Whether an op is defined here."""
    others = ("lerp", "lerp_backward", "segment_sum", "segment_sum_backward")
    return name in BY_ROWS or name in others


# What may be chosen of an op and is not defined here: masks, resets and exclusive scans.
UNKNOWN = ("+where", "+resets", "exclusive")


def _ids(operands: dict[str, Array]) -> Array:
    """The segment of every row."""
    if "offsets" not in operands:
        return operands["segment_ids"]
    return np.repeat(np.arange(len(operands["offsets"]) - 1), np.diff(operands["offsets"]))


def expected(cell: Any, operands: dict[str, Array]) -> dict[str, Expected]:
    """What the outputs of a cell should be."""
    op = cell.op
    wide = {n: widen(a) for n, a in operands.items() if n not in ("segment_ids", "offsets")}
    with np.errstate(all="ignore"):
        if op.name == "lerp":
            parts = lerp(**{"weight": cell.get("weight"), **wide})
        elif op.name == "lerp_backward":
            parts = lerp_backward(**{"weight": cell.get("weight"), **wide})
        elif op.name == "segment_sum":
            parts = [segment_sum(wide["input"], _ids(operands), cell.segments)]
        elif op.name == "segment_sum_backward":
            parts = [segment_sum_backward(wide["d_output"], _ids(operands))]
        else:
            parts = [_define_rows(cell, wide)]
    return {
        name: Expected(part[0], part[1], part[2] if len(part) > 2 else np.ones(part[0].shape, bool))
        for name, part in zip(cell.outputs, parts, strict=True)
    }
