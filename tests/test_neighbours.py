"""Row formulas that read the position before: along rows, down columns, over several axes, on rows
that threads share, and written past the caches."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from pullback.api.functions import make_function
from pullback.core import parse
from pullback.core.declare import Op, Operand, Parameter, Text, Type
from pullback.errors import InvalidProblemError
from pullback.formulas.folds import add
from pullback.formulas.primitives import absolute, where
from pullback.formulas.record import Monoid, Pass, RowFormula

AXES = Parameter("axis", parse.axes, None, is_positional=True)
BORDER = 0.5


def row_op(record: RowFormula) -> Op:
    return Op(
        "made_up",
        "reduce",
        "made_up",
        "forward",
        Text(""),
        (Operand("x"), Operand("mask", type=Type.BOOL)),
        (Operand("y"),),
        lambda: record,
        (AXES,),
    )


# The share of each step in the length of the way, where the mask let its beginning in; 2 more where
# it lets its end in.


def step(x, x_before, mask_before):
    return where(mask_before, absolute(x - x_before), 0.0)


def share(x, x_before, mask, mask_before, first, total):
    part = where(mask_before, (x - x_before) / total, 0.0)
    return where(first, -part, part) + where(mask, 2.0, 0.0)


WAY = row_op(
    RowFormula(
        (Pass(Monoid(step, add, (0.0,), ("total",))),),
        apply=share,
        before=(("x", BORDER), ("mask", 1.0)),
    )
)


def along_rows(array, axis):
    """The axes last and as one, and the way back."""
    axes = range(array.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    rest = [d for d in range(array.ndim) if d not in axes]
    order = [*rest, *axes]
    moved = array.transpose(order)
    rows = moved.reshape(*moved.shape[: len(rest)], -1)
    return rows, lambda a: a.reshape(moved.shape).transpose(np.argsort(order))


def before(rows, border):
    return np.concatenate([np.full_like(rows[..., :1], border), rows[..., :-1]], -1)


def way_exactly(x, mask, axis):
    rows, as_it_was = along_rows(x.astype(np.float64), axis)
    marks, _ = along_rows(mask, axis)
    steps, let_in = rows - before(rows, BORDER), before(marks, True)
    total = np.where(let_in, abs(steps), 0.0).sum(-1, keepdims=True)
    part = np.where(let_in, steps / total, 0.0)
    part[..., 0] = -part[..., 0]
    return as_it_was(part + np.where(marks, 2.0, 0.0))


@pytest.fixture
def threads():
    count = pb.get_num_threads()
    yield pb.set_num_threads
    pb.set_num_threads(count)


@pytest.mark.parametrize(
    ("shape", "axis", "dtype"),
    [
        ((5, 37), 1, np.float32),
        ((37, 21), 0, np.float32),
        ((1, 400_000), 1, np.float64),
        ((4, 11, 30), (0, 2), np.float32),
        ((9, 100), 1, ml_dtypes.bfloat16),
        ((100, 40), 0, ml_dtypes.bfloat16),
    ],
)
def test_the_position_before(shape, axis, dtype, threads):
    way = make_function(WAY)
    rng = np.random.default_rng(11)
    x = rng.standard_normal(shape).astype(dtype)
    mask = rng.random(shape) < 0.7
    turn = tuple(slice(None, None, -1) for _ in shape)
    results = []
    for count, order in itertools.product((1, 3), ("C", "F", "turned")):
        threads(count)
        given = [x, mask]
        if order == "F":
            given = [np.asfortranarray(a) for a in given]
        elif order == "turned":
            given = [np.ascontiguousarray(a[turn])[turn] for a in given]
        results.append(np.ascontiguousarray(way(*given, axis)))
    assert len({r.tobytes() for r in results}) == 1, "threads or layout changed the bytes"
    eps = float(ml_dtypes.finfo(dtype).eps)
    exact = way_exactly(x, mask, axis)
    np.testing.assert_allclose(results[0].astype(np.float64), exact, rtol=2 * eps, atol=2 * eps)
    for kept in itertools.product(*((1, n) for n in shape)):
        shared = np.broadcast_to(rng.random(kept) < 0.7, shape)
        assert way(x, shared, axis).tobytes() == way(x, np.array(shared), axis).tobytes()


# Without a fold: nothing may walk such rows in another order than theirs.


def difference(x, x_before, index):
    return x - x_before + index


DIFFERENCE = row_op(RowFormula(apply=difference, before=(("x", BORDER),)))


@pytest.mark.parametrize(
    ("shape", "axis"), [((300, 9000), 1), ((9000, 300), 0), ((6, 7, 8), (0, 2)), ((40, 50), None)]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_differences(shape, axis, order):
    """Large results are written past the caches."""
    x = np.random.default_rng(12).standard_normal(shape).astype(np.float32)
    found = make_function(DIFFERENCE)(np.array(x, order=order), np.zeros(shape, bool), axis)
    rows, as_it_was = along_rows(x.astype(np.float64), axis)
    exact = as_it_was(rows - before(rows, BORDER) + np.arange(rows.shape[-1]))
    assert np.array_equal(found, exact.astype(np.float32))


def test_not_in_place():
    """The position before would be written already."""
    x, mask = np.ones((3, 40), np.float32), np.ones((3, 40), bool)
    with pytest.raises(InvalidProblemError, match="y"):
        make_function(DIFFERENCE)(x, mask, 1, out=x)
    assert (x == 1).all()
