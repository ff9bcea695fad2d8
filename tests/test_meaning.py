"""What the names in a formula mean: index, first, NAME_before, states, on every evaluator.

Records that are made up give the names back as outputs. What they must be along one row is written
down once, in ``SCANS`` and ``TWO_WAYS``; an evaluator is one line of ``EVALUATORS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

import pullback as pb
from pullback.core.declare import Operand, Role, Text, Type
from pullback.core.problem import Problem
from pullback.cpu.backend import RowRunner
from pullback.cpu.launch import Launch
from pullback.formulas.arrays import evaluate
from pullback.formulas.folds import TOTAL, add
from pullback.formulas.primitives import where
from pullback.formulas.record import Formula, Monoid, Pass, RowFormula, ScanFormula
from pullback.memory.view import DTYPES, view

X = np.array([2.0, 3.0, 5.0, 7.0])
MASK = np.array([True, False, False, True])
START = 1.0


def on_numpy(problem: Problem, operands: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    return evaluate(problem, operands)


def on_torch(problem: Problem, operands: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    torch = pytest.importorskip("torch")
    from pullback.torch.arrays import TORCH

    tensors = {n: torch.from_numpy(np.ascontiguousarray(a)) for n, a in operands.items()}
    return tuple(t.numpy() for t in evaluate(problem, tensors, TORCH))


def on_jax(problem: Problem, operands: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    jnp = pytest.importorskip("jax.numpy")
    from pullback.jax.arrays import JAX

    arrays = {n: jnp.asarray(a) for n, a in operands.items()}
    return tuple(np.asarray(a) for a in evaluate(problem, arrays, JAX))


def on_the_cpu(problem: Problem, operands: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    """By the loops along rows."""
    used = {o.name for role in (Role.ELEMENT, Role.ROW) for o in problem.used(role)}
    arrays = {n: a for n, a in operands.items() if n in used}
    dtype = DTYPES[problem.element]
    outputs = {n: np.full(problem.shape_of(n), np.nan, dtype) for n in problem.op.outputs}
    views = {n: view(a, n) for n, a in {**arrays, **outputs}.items()}
    RowRunner(problem).run(views, 0, 0, 1)
    return tuple(outputs.values())


def on_the_cpu_across(problem: Problem, operands: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    """By the loops down columns: as many of the two rows as make them lie across."""
    (axis,) = problem.axes
    other = 1 - axis
    many = {n: np.repeat(a, 8, other) for n, a in operands.items()}
    shape = tuple(16 if d == other else n for d, n in enumerate(problem.shape))
    lying = {n: np.ascontiguousarray(np.moveaxis(a, axis, 0)) for n, a in many.items()}
    down = replace(problem, shape=(shape[axis], 16), axes=(0,))
    strides = {n: a.strides for n, a in lying.items()}
    strides |= dict.fromkeys(problem.op.outputs, (64, 4))
    assert Launch(down, strides, 1).schedule.columns
    results = on_the_cpu(down, lying)
    return tuple(np.moveaxis(a[:, ::8], 0, axis) for a in results)


EVALUATORS: dict[str, Callable[..., tuple[np.ndarray, ...]]] = {
    "arrays of numpy": on_numpy,
    "arrays of torch": on_torch,
    "arrays of jax": on_jax,
}
LOOPS = {"rows of the CPU": on_the_cpu, "columns of the CPU": on_the_cpu_across}
EVERYWHERE = EVALUATORS | LOOPS


# A state is a number and ten to the count of its digits: joined, they show the order.


def digit(x):
    return x, 10.0


def joined(number1, power1, number2, power2):
    return number1 * power2 + number2, power1 * power2


def from_start(start):
    return start, 1.0


def names(index, first, x_before, mask, mask_before, extent, number):
    return (
        index,
        where(first, 1.0, 0.0),
        x_before,
        where(mask, 1.0, 0.0),
        where(mask_before, 1.0, 0.0),
        extent,
        number,
    )


def behind(number, power):
    return number, power


DIGITS = Monoid(digit, joined, (0.0, 1.0), ("number", "power"))
NAMES = ("index", "first", "x_before", "mask", "mask_before", "extent", "number")


def made_up(record: Formula, elements: tuple[str, ...], rows: tuple[str, ...] = ()) -> pb.Op:
    """An op of no catalog."""
    return pb.Op(
        "made_up",
        "scan",
        "made_up",
        "forward",
        Text(""),
        (Operand("x"), Operand("mask", type=Type.BOOL), Operand("start", Role.ROW)),
        (
            *(Operand(f"out_{n}") for n in elements),
            *(Operand(f"out_{n}", Role.ROW) for n in rows),
        ),
        lambda: record,
    )


def run_along(evaluator: str, op: pb.Op, axis: int, reverse: bool) -> dict[str, np.ndarray]:
    """The outputs on two equal rows along an axis, as rows."""
    rows = {
        "x": np.stack([X, X]).astype(np.float32),
        "mask": np.stack([MASK, MASK]),
        "start": np.full((2, 1), START, np.float32),
    }
    operands = {n: a if axis else a.T for n, a in rows.items()}
    problem = Problem(op, "f32", operands["x"].shape, (axis,), reverse=reverse)
    results = EVERYWHERE[evaluator](problem, operands)
    for name, result in zip(op.outputs, results, strict=True):
        assert result.shape == problem.shape_of(name)
    given = zip(op.outputs, results, strict=True)
    return {n.removeprefix("out_"): a if axis else a.T for n, a in given}


def check(results: dict[str, np.ndarray], expected: dict[str, list[float]]) -> None:
    for name, values in expected.items():
        for row in results[name]:
            assert row.tolist() == values, name


@dataclass(frozen=True)
class Scan:
    """A scan over 2, 3, 5, 7, and what its numbers are by position in memory and behind it."""

    inclusive: bool
    against: bool
    reverse: bool
    started: bool
    numbers: tuple[float, ...]
    number_behind: float


SCANS = (
    Scan(True, False, False, False, (2, 23, 235, 2357), 2357),
    Scan(False, False, False, False, (0, 2, 23, 235), 2357),
    Scan(True, False, True, False, (7532, 753, 75, 7), 7532),
    Scan(False, False, True, False, (753, 75, 7, 0), 7532),
    Scan(True, True, False, False, (7532, 753, 75, 7), 7532),
    Scan(False, True, True, False, (0, 2, 23, 235), 2357),
    Scan(True, False, False, True, (12, 123, 1235, 12357), 12357),
    Scan(False, True, False, True, (1753, 175, 17, 1), 17532),
)
# In the order of memory, whichever way the scan itself runs: forward order is what counts.
FORWARDS = {
    "first": [1.0, 0.0, 0.0, 0.0],
    "x_before": [-9.0, 2.0, 3.0, 5.0],
    "mask_before": [0.0, 1.0, 0.0, 0.0],
}
BACKWARDS = {
    "first": [0.0, 0.0, 0.0, 1.0],
    "x_before": [3.0, 5.0, 7.0, -9.0],
    "mask_before": [0.0, 0.0, 1.0, 0.0],
}
ALWAYS = {
    "index": [0.0, 1.0, 2.0, 3.0],
    "mask": [1.0, 0.0, 0.0, 1.0],
    "extent": [4.0, 4.0, 4.0, 4.0],
}


# A kernel takes a second to compile: on the CPU, scans that between them have every trait.
TRIED = [(e, s, axis) for e in EVALUATORS for s in SCANS for axis in (1, 0)]
TRIED += [(e, s, 1) for e in LOOPS for s in (*SCANS[1:3], *SCANS[5:])]


@pytest.mark.parametrize(("evaluator", "scan", "axis"), sorted(TRIED, key=str))
def test_names_of_a_scan(evaluator, scan, axis):
    record = ScanFormula(
        DIGITS,
        names,
        scan.inclusive,
        scan.against,
        start=from_start if scan.started else None,
        end=behind,
        before=(("x", -9.0),),
    )
    op = made_up(record, NAMES, ("number_behind", "power_behind"))
    results = run_along(evaluator, op, axis, scan.reverse)
    check(results, ALWAYS | (BACKWARDS if scan.reverse else FORWARDS))
    check(
        results,
        {
            "number": list(scan.numbers),
            "number_behind": [scan.number_behind],
            "power_behind": [10_000.0],
        },
    )


# A prefix is known to the lift: the digit with one other in front of it becomes a 9.


def marked(x, seen_power):
    return where(seen_power == 10, 9.0, x), 10.0


def both_numbers(index, first, seen, number, x_before, mask, mask_before):
    return (
        index,
        where(first, 1.0, 0.0),
        seen,
        number,
        x_before,
        where(mask, 1.0, 0.0),
        where(mask_before, 1.0, 0.0),
    )


def from_five():
    return 5.0, 10.0


PREFIX = Monoid(digit, joined, (0.0, 1.0), ("seen", "seen_power"))
MARKED = Monoid(marked, joined, (0.0, 1.0), ("number", "power"))
IN_BOTH = ("index", "first", "seen", "number", "x_before", "mask", "mask_before")


@dataclass(frozen=True)
class TwoWays:
    """A scan against a prefix, which is without the position's own part."""

    reverse: bool
    inclusive: bool
    started: bool  # the prefix from 1, the scan from 5
    seen: tuple[float, ...]
    numbers: tuple[float, ...]
    number_behind: float
    power_behind: float = 1e4


TWO_WAYS = (
    TwoWays(False, False, False, (0, 2, 23, 235), (759, 75, 7, 0), 7592),
    TwoWays(True, False, False, (753, 75, 7, 0), (0, 2, 23, 239), 2397),
    TwoWays(False, True, True, (1, 12, 123, 1235), (57539, 5753, 575, 57), 57539, 1e5),
    TwoWays(True, False, True, (1753, 175, 17, 1), (5, 52, 523, 5235), 52359, 1e5),
)


def one_digit(start):
    return start, 10.0


@pytest.mark.parametrize(
    ("evaluator", "ways", "axis"),
    [(e, w, axis) for e in EVALUATORS for w in TWO_WAYS for axis in (1, 0)]
    + [(e, w, 1) for e in LOOPS for w in TWO_WAYS],
)
def test_names_of_a_scan_with_a_prefix(evaluator, ways, axis):
    record = ScanFormula(
        MARKED,
        both_numbers,
        inclusive=ways.inclusive,
        against=True,
        prefix=PREFIX,
        start=from_five if ways.started else None,
        prefix_start=one_digit if ways.started else None,
        end=behind,
        before=(("x", -9.0),),
    )
    op = made_up(record, IN_BOTH, ("number_behind", "power_behind"))
    results = run_along(evaluator, op, axis, ways.reverse)
    check(results, {n: v for n, v in ALWAYS.items() if n in IN_BOTH})
    check(results, BACKWARDS if ways.reverse else FORWARDS)
    check(results, {"seen": list(ways.seen), "number": list(ways.numbers)})
    check(results, {"number_behind": [ways.number_behind], "power_behind": [ways.power_behind]})


def test_a_prefix_that_is_not_scanned_against_is_refused():
    record = ScanFormula(MARKED, both_numbers, inclusive=True, against=False, prefix=PREFIX)
    with pytest.raises(TypeError, match="against"):
        run_along("rows of the CPU", made_up(record, IN_BOTH), 1, False)


# The CPU's loops on rows longer than the lanes.


def place(index, first):
    return index + where(first, 1000.0, 0.0)


@pytest.mark.parametrize("axis", [1, 0])
@pytest.mark.parametrize("two_ways", [False, True])
def test_places_on_the_cpu(two_ways, axis):
    """Rows and columns, as they lie in memory and turned round."""
    n = 21
    x = np.zeros((10, n)) if axis else np.zeros((n, 10))
    one_way = [(False, True), (True, False)]
    for against, reverse in [(True, False), (True, True)] if two_ways else one_way:
        record = ScanFormula(
            DIGITS,
            place,
            inclusive=not two_ways,
            against=against,
            prefix=PREFIX if two_ways else None,
        )
        expected = np.arange(float(n))
        expected[n - 1 if reverse else 0] += 1000.0
        problem = Problem(made_up(record, ("y",)), "f64", x.shape, (axis,), reverse=reverse)
        (found,) = on_the_cpu(problem, {"x": x})
        assert ((found if axis else found.T) == expected).all(), (against, reverse)


def beside(x_before, mask_before):
    return where(mask_before, -x_before, x_before)


@pytest.mark.parametrize("axis", [1, 0])
@pytest.mark.parametrize("against", [False, True])
def test_neighbours_on_the_cpu(against, axis):
    """Across chunks of lanes and blocks, from both ends."""
    n = 1300
    rows = np.arange(10.0 * n).reshape(10, n)
    mask = rows % 3 == 0
    for reverse in (False, True):
        record = ScanFormula(DIGITS, beside, True, against, before=(("x", 0.5),))
        problem = Problem(made_up(record, ("y",)), "f64", (10, n), (1,), reverse=reverse)
        operands = {"x": rows, "mask": mask}
        if not axis:
            problem = replace(problem, shape=(n, 10), axes=(0,))
            operands = {k: np.ascontiguousarray(a.T) for k, a in operands.items()}
        (found,) = on_the_cpu(problem, operands)
        found = found if axis else found.T
        expected = np.where(mask, -rows, rows)
        border = np.full((10, 1), 0.5)
        parts = (expected[:, 1:], border) if reverse else (border, expected[:, :-1])
        assert np.array_equal(found, np.concatenate(parts, 1)), reverse


# Rows: the digits of a whole row, and places as a lift and an apply see them.


def in_place(digit, index):
    """A digit at its place, so that the sum shows them all: rows are folded in any order."""
    return digit * where(index == 0, 1e3, where(index == 1, 1e2, where(index == 2, 10.0, 1.0)))


def placed_digit(x, index):
    return in_place(x, index)


def placed_before(index, first, x_before, mask_before):
    """-9, 2, 3, 5 as 1, 4, 3, 5."""
    before = where(first, x_before + 10.0, x_before)
    return in_place(before + where(mask_before, 2.0, 0.0), index)


def at_each(index, first, x_before, mask_before, number, extent):
    return (
        index,
        where(first, 1.0, 0.0),
        x_before,
        where(mask_before, 1.0, 0.0),
        number,
        extent,
    )


def of_row(twice):
    return twice, 0.5 * twice


def twice_the_number(number):
    return 2.0 * number


PLACED = Monoid(placed_digit, add, (0.0,), ("number",))
PLACED_BEFORE = Monoid(placed_before, add, (0.0,), ("number",))
AT_EACH = ("index", "first", "x_before", "mask_before", "number", "extent")


@pytest.mark.parametrize(
    ("evaluator", "axis"),
    [*((e, axis) for e in EVALUATORS for axis in (1, 0)), *((e, 1) for e in LOOPS)],
)
def test_names_of_rows(evaluator, axis):
    elements = RowFormula((Pass(PLACED_BEFORE),), apply=at_each, before=(("x", -9.0),))
    expected = {**ALWAYS, **FORWARDS, "number": [1435.0] * 4}
    results = run_along(evaluator, made_up(elements, AT_EACH), axis, False)
    check(results, {n: expected[n] for n in AT_EACH})

    rows = RowFormula((Pass(PLACED, twice_the_number, ("twice",)),), finish=of_row)
    op = made_up(rows, (), ("twice", "once"))
    check(run_along(evaluator, op, axis, False), {"twice": [4714.0], "once": [2357.0]})


@pytest.mark.parametrize("evaluator", [*EVALUATORS, "rows of the CPU"])
def test_places_count_over_several_axes(evaluator):
    x = np.arange(2.0 * 3 * 20).reshape(2, 3, 20).astype(np.float32)
    mask = x % 3 == 0
    rows = np.moveaxis(x, 1, 0).reshape(3, -1)
    before = np.concatenate([np.full((3, 1), -9.0), rows[:, :-1]], 1)
    for passes in ((Pass(TOTAL),), ()):
        apply = at_each_place if passes else where_each_is
        record = RowFormula(passes, apply=apply, before=(("x", -9.0),))
        problem = Problem(made_up(record, ("index", "first", "b")), "f32", x.shape, (0, 2))
        for order in ("C", "F"):
            operands = {"x": np.array(x, order=order), "mask": np.array(mask, order=order)}
            found = EVERYWHERE[evaluator](problem, operands)
            index, first, beside = (np.moveaxis(a, 1, 0).reshape(3, -1) for a in found)
            assert (index == np.arange(40)).all()
            assert (first == (np.arange(40) == 0)).all()
            assert np.array_equal(beside, before)


def where_each_is(index, first, x_before):
    return index, where(first, 1.0, 0.0), x_before


def at_each_place(index, first, x_before, total):
    return index, where(first, 1.0, 0.0), where(total == total, x_before, 0.0)


def test_rows_have_no_direction():
    op = made_up(RowFormula(apply=where_each_is), ("index", "first", "b"))
    with pytest.raises(TypeError, match="no direction"):
        run_along("rows of the CPU", op, 1, True)


# Rows that ids cut: a segment is a row, with places and an extent of its own.


def in_a_segment(index, first, x_before, number, extent):
    return index, where(first, 1.0, 0.0), x_before, number, extent


def segment_op() -> pb.Op:
    return pb.Op(
        "made_up",
        "segment",
        "made_up",
        "forward",
        Text(""),
        (Operand("input", known_as="x"), Operand("segment_ids", Role.IDS, Type.INDEX)),
        tuple(Operand(n) for n in ("index", "first", "x_before", "number", "extent")),
        lambda: RowFormula((Pass(DIGITS),), apply=in_a_segment),
    )


@pytest.mark.parametrize("evaluator", [n for n in EVALUATORS if n.startswith("arrays")])
def test_names_of_segments(evaluator):
    x = np.array([[2.0], [3.0], [5.0], [7.0], [1.0]])
    ids = np.array([1, 0, 1, 5, 1])
    problem = Problem(segment_op(), "f64", x.shape, (0,), segments=3, drops=True)
    found = EVALUATORS[evaluator](problem, {"input": x, "segment_ids": ids})
    assert [r[:, 0].tolist() for r in found] == [
        [0.0, 0.0, 1.0, 0.0, 2.0],
        [1.0, 1.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 2.0, 0.0, 5.0],
        [251.0, 3.0, 251.0, 0.0, 251.0],
        [3.0, 1.0, 3.0, 0.0, 3.0],
    ]


@pytest.mark.parametrize("evaluator", EVALUATORS)
def test_a_name_that_nothing_gives_is_refused(evaluator):
    def apply(nobody_gives_this):
        return nobody_gives_this

    with pytest.raises(TypeError, match="nobody_gives_this"):
        run_along(evaluator, made_up(RowFormula(apply=apply), ("y",)), 1, False)
