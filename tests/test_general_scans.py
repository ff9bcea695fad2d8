"""Scans with a prefix, resets, neighbours and states at both ends, beside plain loops.

The same bytes along rows, down columns, on rows that threads share, and for any strides.
"""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import pullback as pb
from pullback.api.functions import make_function
from pullback.core import parse
from pullback.core.declare import Op, Operand, Parameter, Role, Text, Type
from pullback.formulas.folds import recurrence
from pullback.formulas.primitives import exponent, ldexp, mantissa, where
from pullback.formulas.record import Monoid, ScanFormula
from pullback.formulas.scan import cumprod_backward

AXIS = Parameter("axis", parse.axis, -1, is_positional=True)
REVERSE = Parameter("reverse", parse.flag, False)


def state(name: str) -> Operand:
    return Operand(name, Role.ROW, Type.STATE)


def scan(record: ScanFormula, reads: str, writes: str, states: str = "", ends: str = "") -> Op:
    """An op of no catalog; operands by name, ``resets`` is bool."""
    kinds = {"resets": Type.BOOL}
    return Op(
        "made_up",
        "scan",
        "made_up",
        "forward",
        Text(""),
        (
            *(Operand(n, type=kinds.get(n, Type.ELEMENT)) for n in reads.split()),
            *(state(n) for n in states.split()),
        ),
        (*(Operand(n) for n in writes.split()), *(state(n) for n in ends.split())),
        lambda: record,
        (AXIS, REVERSE),
    )


# Runs: nothing is carried into a position that resets, or out of one that does.


def step_into(x, resets):
    return where(resets, 0.0, 0.5), x


def step_out_of(x, resets_before):
    return where(resets_before, 0.0, 0.5), x


def step_between(x, resets, resets_before):
    return where(resets & resets_before, 0.0, where(resets | resets_before, 0.25, 0.5)), x


def passed_itself(passed):
    return passed


def from_initial(initial):
    return 1.0, initial


STATE = ("factor", "passed")
FACTORS = {
    step_into: lambda here, before: np.where(here, 0.0, 0.5),
    step_out_of: lambda here, before: np.where(before, 0.0, 0.5),
    step_between: lambda here, before: np.where(
        here & before, 0.0, np.where(here | before, 0.25, 0.5)
    ),
}


def in_time(array, axis, reverse):
    """Forward order in the last dimension, in float64 or bool."""
    moved = np.moveaxis(array if array.dtype == bool else array.astype(np.float64), axis, -1)
    return moved[..., ::-1] if reverse else moved


def back(array, axis, reverse):
    return np.moveaxis(array[..., ::-1] if reverse else array, -1, axis)


def shifted(array, border):
    """What lies before each position."""
    first = np.full_like(array[..., :1], border)
    return np.concatenate([first, array[..., :-1]], -1)


def recur(factors, values, initial, against):
    """s ← value + factor·s, a zero factor stopping anything; states with each position and all."""
    n = values.shape[-1]
    result, behind = np.empty_like(values).reshape(-1, n), []
    rows = zip(factors.reshape(-1, n), values.reshape(-1, n), np.ravel(initial), strict=True)
    for r, (row_factors, row_values, now) in enumerate(rows):
        steps = list(zip(row_factors.tolist(), row_values.tolist(), strict=True))
        states = []
        for factor, value in reversed(steps) if against else steps:
            now = value + (factor * now if factor else 0.0)
            states.append(now)
        result[r] = states[::-1] if against else states
        behind.append(now)
    return result.reshape(values.shape), np.reshape(behind, values.shape[:-1])


@pytest.fixture
def threads():
    before = pb.get_num_threads()
    yield pb.set_num_threads
    pb.set_num_threads(before)


# Along rows, down columns, within, and a row that threads share.
STEPS = (step_between, step_into, step_out_of)
SHAPES = [((3, 1037), 1), ((1037, 19), 0), ((2, 70, 9), 1), ((1, 200_000), 1)]
NEAR = {np.float32: 2e-6, np.float64: 1e-12}


def layouts(arrays):
    """As they are, in Fortran order, and turned round in memory along every axis."""
    yield arrays
    yield [np.asfortranarray(a) for a in arrays]
    turn = tuple(slice(None, None, -1) for _ in range(arrays[0].ndim))
    yield [np.ascontiguousarray(a[turn])[turn] for a in arrays]


def all_ways(threads, arrays, call):
    """The outputs of a call, which threads and layouts must not change."""
    results = []
    for count, given in itertools.product((1, 3), layouts(arrays)):
        threads(count)
        results.append(call(*given))
    first = [np.ascontiguousarray(a).tobytes() for a in results[0]]
    for other in results[1:]:
        assert [np.ascontiguousarray(a).tobytes() for a in other] == first
    return results[0]


@pytest.mark.parametrize(
    ("shape", "axis", "step"),
    [(*s, STEPS[k % 3]) for k, s in enumerate(SHAPES)],
)
def test_resets(shape, axis, step, threads):
    """Either way, with the state in front and the one behind, beside infinities and NaN."""
    rng = np.random.default_rng(5)
    dtype = np.float64 if shape[0] == 1 else np.float32
    x, resets = rng.standard_normal(shape).astype(dtype), rng.random(shape) < 0.05
    row = tuple(n for k, n in enumerate(shape) if k != axis)
    initial = rng.standard_normal(row)
    moved = np.moveaxis(x, axis, -1)
    moved[0, ..., 40], moved[0, ..., 300 % moved.shape[-1]] = np.inf, np.nan
    for against, inclusive in ((False, True), (True, False)):
        record = ScanFormula(
            Monoid(step, recurrence, (1.0, 0.0), STATE),
            passed_itself,
            inclusive,
            against,
            start=from_initial,
            end=passed_itself,
        )
        made = make_function(scan(record, "x resets", "y", "initial", "final"))
        for reverse in (False, True):
            y, final = all_ways(
                threads,
                [x, resets],
                lambda a, r: made(a, r, initial, axis, reverse=reverse),  # noqa: B023
            )
            here, marks = in_time(x, axis, reverse), in_time(resets, axis, reverse)
            factors = FACTORS[step](marks, shifted(marks, False))
            exact, behind = recur(factors, here, initial, against)
            if not inclusive:  # what comes to a position, before its own part
                exact = np.concatenate([exact[..., 1:], initial[..., None]], -1)
            near = {"rtol": NEAR[dtype], "atol": NEAR[dtype]}
            np.testing.assert_allclose(in_time(y, axis, reverse), exact, **near)
            np.testing.assert_allclose(final, behind, rtol=1e-12, atol=1e-12)


def test_a_broadcast_reset(threads):
    """A mask of stride 0 along any axis gives the bytes of its copy."""
    record = ScanFormula(
        Monoid(step_between, recurrence, (1.0, 0.0), STATE), passed_itself, True, True
    )
    made = make_function(scan(record, "x resets", "y"))
    rng = np.random.default_rng(6)
    x = rng.standard_normal((40, 1100)).astype(np.float32)
    for axis, kept in itertools.product((0, 1), ((40, 1), (1, 1100), (1, 1))):
        resets = np.broadcast_to(rng.random(kept) < 0.3, x.shape)
        expected = made(x, np.array(resets), axis)
        assert made(x, resets, axis).tobytes() == expected.tobytes()


# Both ways: the lift of the scan and its finish know a prefix, resets on both sides, neighbours and
# places; both scans begin from states, and what comes out behind is a state.


def prefix_step(x, resets, initial):
    return where(resets, 0.0, 0.5), x + 0.125 * initial


def from_both(initial, d_final):
    return 1.0, initial + d_final


def step_back(dy, x_before, resets_before, index, first, seen):
    value = dy + 0.25 * seen + where(first, 0.5, x_before)
    return where(resets_before, 0.0, 0.75), value + where(index == 3, 1.0, 0.0)


def from_d_final(d_final):
    return 1.0, d_final


def both(dy, x, x_before, resets, resets_before, index, first, seen, passed, initial):
    return (
        passed + seen * x + where(resets, 1.0, 0.0),
        where(first, -index, x_before) + where(resets_before, 0.5, 0.0) + initial * dy,
    )


def end_of_both(passed, initial):
    return passed * 2.0, passed + initial


PREFIX = Monoid(prefix_step, recurrence, (1.0, 0.0), ("seen_factor", "seen"))
BOTH = ScanFormula(
    Monoid(step_back, recurrence, (1.0, 0.0), STATE),
    both,
    inclusive=True,
    against=True,
    prefix=PREFIX,
    start=from_d_final,
    prefix_start=from_both,
    end=end_of_both,
    before=(("x", 1.5), ("resets", 1.0)),
)


def befores(x, resets, initial, d_final):
    """What is known before each position: neighbours and the prefix."""
    x_before, resets_before = shifted(x, 1.5), shifted(resets, True)
    factors = np.where(resets, 0.0, 0.5)
    begin = initial + d_final
    with_own, _ = recur(factors, x + 0.125 * initial[..., None], begin, False)
    seen = np.concatenate([begin[..., None], with_own[..., :-1]], -1)
    return x_before, resets_before, seen


@pytest.mark.parametrize(
    ("shape", "axis", "inclusive"),
    [(*s, k % 2 == 0) for k, s in enumerate(SHAPES)],
)
def test_both_ways(shape, axis, inclusive, threads):
    rng = np.random.default_rng(7)
    dtype = np.float32 if shape[0] == 1037 else np.float64
    dy, x = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    resets = rng.random(shape) < 0.05
    row = tuple(n for k, n in enumerate(shape) if k != axis)
    initial, d_final = rng.standard_normal(row), rng.standard_normal(row)
    record = replace(BOTH, inclusive=inclusive)
    made = make_function(scan(record, "dy x resets", "u v", "initial d_final", "p q"))
    for reverse in (False, True):
        found = all_ways(
            threads,
            [dy, x, resets],
            lambda *given: made(*given, initial, d_final, axis, reverse=reverse),  # noqa: B023
        )
        dy_, x_, resets_ = (in_time(a, axis, reverse) for a in (dy, x, resets))
        x_before, resets_before, seen = befores(x_, resets_, initial, d_final)
        n = shape[axis]
        first = np.arange(n) == 0
        index = np.arange(float(n))[:: -1 if reverse else 1]
        values = dy_ + 0.25 * seen + np.where(first, 0.5, x_before) + (index == 3)
        passed, behind = recur(np.where(resets_before, 0.0, 0.75), values, d_final, True)
        if not inclusive:
            passed = np.concatenate([passed[..., 1:], d_final[..., None]], -1)
        u = passed + seen * x_ + resets_
        v = np.where(first, -index, x_before) + 0.5 * resets_before + initial[..., None] * dy_
        exact = back(u, axis, reverse), back(v, axis, reverse), behind * 2.0, behind + initial
        for got, want in zip(found, exact, strict=True):
            near = NEAR[dtype] if got.dtype == dtype else 1e-12
            np.testing.assert_allclose(got, want, rtol=near, atol=near)


# Scaled numbers: cumprod's gradient from a first factor, and the factor's own behind it. Ordinary
# data goes the plain way, other data the scaled one.


def scaled_initial(initial):
    return mantissa(initial), exponent(initial)


def scaled_gradient(d_final):
    return 1.0, 0.0, mantissa(d_final), exponent(d_final)


def gradient_behind(passed_m, passed_e):
    return ldexp(passed_m, passed_e)


FROM_INITIAL = replace(
    cumprod_backward(exclusive=False, resets=False, reverse=False),
    prefix_start=scaled_initial,
    start=scaled_gradient,
    end=gradient_behind,
)


def cumprod_exactly(dy, x, initial, d_final):
    """dx of y[t] = initial·x[0]·…·x[t], and Σ dy[t]·y[t]/initial, with d_final on the last."""
    dy, x = ([Fraction(float(v)) for v in row] for row in (dy, x))
    before, products = Fraction(float(initial)), []
    for v in x:
        products.append(before)
        before *= v
    passed, dx = Fraction(float(d_final)), [Fraction(0)] * len(x)
    for t in reversed(range(len(x))):
        dx[t] = products[t] * (dy[t] + passed)
        passed = x[t] * (dy[t] + passed)
    return dx, passed


@pytest.mark.parametrize(
    ("low", "high", "first"), [(0.5, 2.0, 3.0), (1e25, 1e30, 1e-280), (1e-30, 1e-25, 1e280)]
)
def test_a_scaled_scan_from_a_state(low, high, first, threads):
    made = make_function(scan(FROM_INITIAL, "dy x", "dx", "initial d_final", "d_initial"))
    rng = np.random.default_rng(8)
    dy, x = rng.standard_normal((9, 21)), rng.uniform(low, high, (9, 21)).astype(np.float32)
    dy = (dy * (high if low < 1e-3 else low if low > 1e3 else 1.0)).astype(np.float32)
    x[3, 5] = 0.0
    initial, d_final = rng.uniform(0.5, 1, 9) * first, dy[:, 0].astype(np.float64)
    dx, d_initial = all_ways(threads, [dy, x], lambda a, b: made(a, b, initial, d_final, 1))
    down, d_down = made(dy.T.copy(), x.T.copy(), initial, d_final, 0)
    assert down.T.tobytes("C") == dx.tobytes("C")
    assert d_down.tobytes() == d_initial.tobytes()
    for r in range(9):
        exact, behind = cumprod_exactly(dy[r], x[r], initial[r], d_final[r])
        for got, want in [*zip(dx[r], exact, strict=True), (d_initial[r], behind)]:
            tolerance = max(abs(want) * Fraction(1, 10**5), Fraction(1, 10**44))
            largest = Fraction(3.4e38) if got.dtype == np.float32 else Fraction(1.7e308)
            if abs(want) > largest:
                assert np.isinf(got)
            else:
                assert abs(Fraction(float(got)) - want) <= tolerance, (got, float(want))


def test_a_start_that_varies_where_elements_do_not():
    """A component that is one number for all elements is carried where a start has another."""

    def one_and_x(x):
        return 1.0, x

    def start(initial):
        return initial, 0.0

    def of_both(factor, passed):
        return factor + passed

    monoid = Monoid(one_and_x, recurrence, (1.0, 0.0), STATE)
    record = ScanFormula(monoid, of_both, True, False, start=start)
    made = make_function(scan(record, "x", "y", "initial"))
    x = np.ones((2, 20))
    assert np.array_equal(made(x, np.array([5.0, 7.0]))[:, -1], [25.0, 27.0])


# In place.


@pytest.fixture
def last_first(threads, monkeypatch):
    """Threads that share a row, the last part of it being done before the others begin."""

    def run(address, p, units, traffic, count, owners):
        kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(address)
        for unit in reversed(range(units)):
            kernel(p, unit, unit + 1)

    threads(3)
    monkeypatch.setattr("pullback.cpu.pool.run", run)


def beside(x_before, passed):
    return x_before + passed


def test_in_place_over_an_operand_that_is_read_beside_a_position(last_first):
    """A thread must not find its neighbour's first position written already."""
    record = ScanFormula(
        Monoid(step_into, recurrence, (1.0, 0.0), STATE), beside, True, True, before=(("x", 3.0),)
    )
    made = make_function(scan(record, "x resets", "y"))
    x = np.random.default_rng(9).standard_normal((1, 400_000)).astype(np.float32)
    resets = np.zeros(x.shape, bool)
    expected = made(x, resets)
    made(x, resets, out=x)
    assert x.tobytes() == expected.tobytes()


def test_in_place_over_a_state(last_first):
    """All threads read the state in front of a row before the one behind it takes its place."""
    record = ScanFormula(
        Monoid(step_into, recurrence, (1.0, 0.0), STATE),
        passed_itself,
        True,
        False,
        start=from_initial,
        end=passed_itself,
    )
    made = make_function(scan(record, "x resets", "y", "initial", "final"))
    x, resets = np.ones((1, 400_000), np.float32), np.zeros((1, 400_000), bool)
    initial = np.array([5.0])
    y, final = made(x, resets, initial)
    again, _ = made(x, resets, initial, out=(None, initial))
    assert again.tobytes() == y.tobytes()
    assert initial.tobytes() == final.tobytes()
