"""The same values laid out differently in memory must give the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..case import Case

Arrays = Mapping[str, np.ndarray]


def _sliced(a: np.ndarray) -> np.ndarray:
    """Every second element of a larger array, along every dimension."""
    around = np.zeros([2 * n + 1 for n in a.shape], a.dtype)
    view = around[tuple(slice(1, None, 2) for _ in a.shape)]
    view[...] = a
    return view


def _negative(a: np.ndarray) -> np.ndarray:
    """Negative strides along every dimension."""
    return np.ascontiguousarray(np.flip(a))[(slice(None, None, -1),) * a.ndim]


def _offset(a: np.ndarray) -> np.ndarray:
    """One element past the start of a buffer: aligned to the element, not to a cache line."""
    buffer = np.empty(a.size + 1, a.dtype)
    view = buffer[1:].reshape(a.shape)
    view[...] = a
    return view


LAYOUTS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "fortran": np.asfortranarray,
    "sliced": _sliced,
    "negative": _negative,
    "offset": _offset,
}


def same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays hold the same bits, whatever their strides."""
    kind = f"u{a.dtype.itemsize}"
    left, right = (np.ascontiguousarray(v).view(kind) for v in (a, b))
    return a.shape == b.shape and bool(np.array_equal(left, right))


def _poisoned(like: np.ndarray) -> np.ndarray:
    return np.full(like.shape, np.nan, like.dtype)


def layout_results(case: Case, operands: Arrays, expected: Arrays) -> dict[str, bool]:
    """By layout, whether the bytes are those of C order."""
    found = {}
    for name, place in LAYOUTS.items():
        moved = {n: place(a) for n, a in operands.items()}
        outputs = {n: place(_poisoned(a)) for n, a in expected.items()}
        case.plan(1).run(**moved, **outputs)
        found[name] = all(same_bytes(outputs[n], expected[n]) for n in expected)
    if case.op.parameter("axis"):
        found["first axis"] = _first_axis(case, operands, expected)
    if case.op.parameter("reverse"):
        found["reverse"] = _reverse(case, operands, expected)
    in_place = _in_place(case, operands, expected)
    if in_place is not None:
        found["in place"] = in_place
    return found


def _first_axis(case: Case, operands: Arrays, expected: Arrays) -> bool:
    """The transposed problem, along the first axis of C-ordered matrices."""
    turned = case.but(shape=case.shape[::-1], axis=0)
    outputs = {n: _poisoned(np.ascontiguousarray(a.T)) for n, a in expected.items()}
    turned.plan(1).run(**{n: np.ascontiguousarray(a.T) for n, a in operands.items()}, **outputs)
    return all(same_bytes(outputs[n].T, expected[n]) for n in expected)


def _reverse(case: Case, operands: Arrays, expected: Arrays) -> bool:
    """The mirrored scan of mirrored values."""
    (axis,) = case.axes
    mirrored = case.but(reverse=not case.get("reverse"))
    outputs = {n: _poisoned(a) for n, a in expected.items()}
    # An operand with one element a row is its own mirror image.
    mirrored.run({n: np.flip(a, axis) for n, a in operands.items()}, outputs, 1)
    return all(same_bytes(np.flip(outputs[n], axis), expected[n]) for n in expected)


def _in_place(case: Case, operands: Arrays, expected: Arrays) -> bool | None:
    """The output written over an input of its shape; None where there is none."""
    if not case.plan(1).runnable(case.given).in_place:
        return None
    output, *_ = case.outputs
    like = case.shape_of(output), case.dtype_of(output)
    over = next((n for n in case.reads if (case.shape_of(n), case.dtype_of(n)) == like), None)
    if over is None:
        return None
    own = {n: a.copy() for n, a in operands.items()}
    outputs = {n: own[over] if n == output else _poisoned(a) for n, a in expected.items()}
    case.run(own, outputs, 1)
    return all(same_bytes(outputs[n], expected[n]) for n in expected)
