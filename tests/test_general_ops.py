"""Ops of other shapes than the catalog's, declared here: operands of other types, several outputs,
a state in front of a row and one behind it. Rows, columns and cut rows give the same bytes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import pullback as pb
from pullback.api.functions import make_function
from pullback.core import parse
from pullback.core.declare import Op, Operand, Parameter, Role, Text, Type
from pullback.formulas.folds import PEAK, add, recurrence, value
from pullback.formulas.primitives import INF, exp, where
from pullback.formulas.record import Monoid, Pass, RowFormula, ScanFormula

AXIS = Parameter("axis", parse.axis, -1, is_positional=True)
AXES = Parameter("axis", parse.axes, None, is_positional=True)
FLAGS = {n: Parameter(n, parse.flag, False) for n in ("reverse", "keepdims")}

# A linear recurrence y[t] = a[t]·y[t−1] + b[t] with an initial state, and its gradients. What
# position t passes on to t − 1 is a[t]·(dy[t] + what it gets); behind the row that is d_initial.


def step(a, b):
    return a, b


def state_itself(passed):
    return passed


def from_state(initial):
    return 1.0, initial


def step_backward(dy, a):
    return a, where(a == 0, 0.0, a * dy)


def gradients(dy, y_before, first, initial, passed):
    g = dy + passed
    return g * where(first, initial, y_before), g


def from_gradient(d_final):
    return 1.0, d_final


STATE = ("factor", "passed")
FORWARD = ScanFormula(
    Monoid(step, recurrence, (1.0, 0.0), STATE),
    state_itself,
    inclusive=True,
    against=False,
    start=from_state,
    end=state_itself,
)
BACKWARD = ScanFormula(
    Monoid(step_backward, recurrence, (1.0, 0.0), STATE),
    gradients,
    inclusive=False,
    against=True,
    start=from_gradient,
    end=state_itself,
)


def state(name: str) -> Operand:
    return Operand(name, Role.ROW, Type.STATE)


RECURRENCE = Op(
    "recurrence",
    "scan",
    "recurrence",
    "forward",
    Text("y[t] = a[t]·y[t−1] + b[t]"),
    (Operand("a"), Operand("b"), state("initial")),
    (Operand("y"), state("final")),
    lambda: FORWARD,
    (AXIS, FLAGS["reverse"]),
)
RECURRENCE_BACKWARD = Op(
    "recurrence_backward",
    "scan",
    "recurrence",
    "backward",
    Text("g[t] = dy[t] + a[t+1]·g[t+1]"),
    (Operand("dy"), Operand("a"), Operand("y"), state("initial"), state("d_final")),
    (Operand("da"), Operand("db"), state("d_initial")),
    lambda: BACKWARD,
    (AXIS, FLAGS["reverse"]),
)


def in_time(arrays, axis, reverse):
    """Time last and running forwards, in float64."""
    moved = [np.moveaxis(a.astype(np.float64), axis, -1) for a in arrays]
    return [a[..., ::-1] if reverse else a for a in moved]


def back(array, axis, reverse):
    return np.moveaxis(array[..., ::-1] if reverse else array, -1, axis)


def by_loop(a, b, initial, axis, reverse):
    a, b = in_time((a, b), axis, reverse)
    y, now = np.empty_like(a), initial
    for t in range(a.shape[-1]):
        now = y[..., t] = a[..., t] * now + b[..., t]
    return back(y, axis, reverse), now


def backward_by_loop(dy, a, y, initial, d_final, axis, reverse):
    dy, a, y = in_time((dy, a, y), axis, reverse)
    da, db, passed = np.empty_like(a), np.empty_like(a), d_final
    for t in reversed(range(a.shape[-1])):
        g = db[..., t] = dy[..., t] + passed
        da[..., t] = g * (y[..., t - 1] if t else initial)
        passed = a[..., t] * g
    return back(da, axis, reverse), back(db, axis, reverse), passed


@pytest.fixture
def threads():
    before = pb.get_num_threads()
    yield pb.set_num_threads
    pb.set_num_threads(before)


@pytest.mark.parametrize(
    ("shape", "axis"), [((5, 1037), 1), ((1037, 19), 0), ((3, 40, 9), 1), ((1, 400_000), 1)]
)
def test_a_recurrence_with_two_inputs_three_gradients_and_a_state(shape, axis, threads):
    forward, backward = make_function(RECURRENCE), make_function(RECURRENCE_BACKWARD)
    rng = np.random.default_rng(1)
    row = tuple(n for k, n in enumerate(shape) if k != axis)
    a = rng.uniform(-1, 1, shape).astype(np.float32)
    b, dy = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    initial, d_final = rng.standard_normal(row), rng.standard_normal(row)
    near = {"rtol": 2e-6, "atol": 2e-6}
    for reverse in (False, True):
        results = set()
        for count, order in itertools.product((1, 3), ("C", "F")):
            threads(count)
            given = [np.array(v, order=order) for v in (a, b, dy)]
            y, final = forward(*given[:2], initial, axis, reverse=reverse)
            assert final.dtype == np.float64, "a state loses nothing"
            exact_y, exact_final = by_loop(a, b, initial, axis, reverse)
            np.testing.assert_allclose(y, exact_y, **near)
            np.testing.assert_allclose(final, exact_final, rtol=1e-12, atol=1e-12)
            saves = {"a": given[0], "y": y, "initial": initial, "d_final": d_final}
            found = backward(given[2], **saves, axis=axis, reverse=reverse)
            exact = backward_by_loop(dy, a, y, initial, d_final, axis, reverse)
            for got, want in zip(found, exact, strict=True):
                np.testing.assert_allclose(got, want, **near)
            results.add(b"".join(np.ascontiguousarray(v).tobytes() for v in (y, final, *found)))
        assert len(results) == 1, "threads or layout changed the bytes"


def test_a_recurrence_goes_on_from_its_own_state():
    """Pieces that end on a block give the bytes of the whole."""
    forward = make_function(RECURRENCE)
    rng = np.random.default_rng(2)
    a, b = rng.uniform(-1, 1, (2, 3, 2048)).astype(np.float32)
    whole, final = forward(a, b, np.zeros(3))
    first, between = forward(a[:, :1024], b[:, :1024], np.zeros(3))
    second, end = forward(a[:, 1024:], b[:, 1024:], between)
    assert np.concatenate([first, second], 1).tobytes() == whole.tobytes()
    assert end.tobytes() == final.tobytes()


# A softmax over the elements that a mask lets in.


def let_in(x, mask):
    return where(mask, x, -INF)


def finite(peak):
    return where(peak == -INF, 0.0, peak)


def part(x, mask, shift):
    return where(mask, exp(x - shift), 0.0)


def share(x, mask, shift, total):
    return where(mask, exp(x - shift) / total, 0.0)


MASKED = Op(
    "masked_softmax",
    "softmax",
    "masked_softmax",
    "forward",
    Text("y = exp(x) / Σ exp(x) where the mask holds"),
    (Operand("x"), Operand("mask", type=Type.BOOL)),
    (Operand("y"),),
    lambda: RowFormula(
        (
            Pass(Monoid(let_in, PEAK.combine, (-INF,), ("peak",)), finite, ("shift",)),
            Pass(Monoid(part, add, (0.0,), ("total",))),
        ),
        apply=share,
        heavy=True,
    ),
    (AXIS,),
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(("shape", "axis"), [((5, 37), 1), ((37, 21), 0)])
def test_a_softmax_with_a_mask(shape, axis, dtype):
    softmax = make_function(MASKED)
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape).astype(dtype)
    mask = rng.random(shape) < 0.6
    np.moveaxis(mask, axis, -1)[0] = False
    x[~mask] = np.nan
    wide = np.where(mask, x, -np.inf).astype(np.float64)
    peak = wide.max(axis, keepdims=True)
    parts = np.where(mask, np.exp(wide - np.where(np.isinf(peak), 0, peak)), 0)
    total = parts.sum(axis, keepdims=True)
    exact = parts / np.where(total == 0, 1, total)
    for other in (mask, np.asfortranarray(mask), mask[::-1][::-1]):
        y = softmax(x, other, axis)
        np.testing.assert_allclose(y, exact, rtol=4 * np.finfo(dtype).eps, atol=1e-7)
    shared = np.broadcast_to(mask.take([1], 0), shape)
    expected = softmax(x, np.array(shared), axis)
    assert softmax(x, shared, axis).tobytes() == expected.tobytes()


# A reduction with two outputs.


def mean_and_total(total, extent):
    return total / extent, total


TWO = Op(
    "mean_and_sum",
    "reduce",
    "mean_and_sum",
    "forward",
    Text("mean and sum"),
    (Operand("x"),),
    (Operand("mean", Role.ROW), Operand("total", Role.ROW)),
    lambda: RowFormula((Pass(Monoid(value, add, (0.0,), ("total",))),), finish=mean_and_total),
    (AXES, FLAGS["keepdims"]),
)


@pytest.mark.parametrize("axis", [0, 1, None])
def test_a_reduction_with_two_outputs(axis):
    both = make_function(TWO)
    x = np.random.default_rng(4).standard_normal((21, 50))
    for _ in range(2):
        for array, want in zip(both(x, axis), (x.mean(axis), x.sum(axis)), strict=True):
            np.testing.assert_allclose(array, want, rtol=1e-12, atol=1e-12)
    out = np.empty_like(x.sum(axis, keepdims=True)), None
    mean, _ = both(x, axis, keepdims=True, out=out)
    assert mean is out[0]
