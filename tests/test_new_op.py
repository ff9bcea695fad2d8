"""Adding an op touches three places: formula, catalog row, oracle definition. All else follows."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import pullback as pb
from cell_data import rng_for
from cells import LAYOUTS, Cell, run_fenced, same_bytes
from pullback.api.functions import make_function
from pullback.core.catalog import declare_reduce, declare_scan, register, unregister
from pullback.formulas.folds import add
from pullback.formulas.record import Monoid, Pass, RowFormula, ScanFormula
from pullback.oracle import table
from pullback.oracle.reduce import reduction, spread
from pullback.oracle.scan import scan
from pullback.oracle.special import number, total
from pullback.oracle.ulp import ulp_error

# First place: the formulas. The sum of squares, and its running sum.


def square(x):
    return x * x


def itself(total):
    return total


def twice(x, dy):
    return 2.0 * x * dy


def passed_on(dy):
    return dy


def twice_sum(x, total):
    return 2.0 * x * total


SQUARES = Monoid(square, add, (0.0,), ("total",))
FORMULAS = {
    "sumsq": RowFormula((Pass(SQUARES),), finish=itself),
    "sumsq_backward": RowFormula(apply=twice),
    "cumsumsq": ScanFormula(SQUARES, itself, inclusive=True, against=False),
    "cumsumsq_backward": ScanFormula(
        Monoid(passed_on, add, (0.0,), ("total",)), twice_sum, inclusive=True, against=True
    ),
}

# Second place: the catalog rows.
ROWS = [
    *declare_reduce(
        "sumsq",
        "y = Σ x²",
        "dx = 2·x·dy",
        "",
        FORMULAS["sumsq"],
        FORMULAS["sumsq_backward"],
        ("x",),
    ),
    *declare_scan(
        "cumsumsq",
        "y[j] = Σ_{i≤j} x[i]²",
        "dx[j] = 2·x[j]·Σ_{i≥j} dy[i]",
        "",
        FORMULAS["cumsumsq"],
        FORMULAS["cumsumsq_backward"],
        ("x",),
    ),
]


# Third place: the definitions. Terms of the oracle, one row at a time.


def define_all():
    table.define("sumsq", reduction, "y")(sumsq_exact)
    table.define("sumsq_backward", spread, "dx")(sumsq_backward_exact)
    table.define("cumsumsq", scan, "y")(cumsumsq_exact)
    table.define("cumsumsq_backward", scan, "dx")(cumsumsq_backward_exact)


def sumsq_exact(x):
    return total(t * t for t in x)


def sumsq_backward_exact(dy, x):
    return [number(2) * t * dy for t in x]


def cumsumsq_exact(x):
    return [sumsq_exact(x[: j + 1]) for j in range(len(x))]


def cumsumsq_backward_exact(dy, x):
    return [number(2) * t * total(dy[j:]) for j, t in enumerate(x)]


@pytest.fixture
def with_new_ops():
    """The ops and their definitions, gone again afterwards."""
    for op in ROWS:
        register(op)
    define_all()
    yield
    for op in ROWS:
        unregister(op.name)
        del table._TABLE[op.name]


@pytest.mark.usefixtures("with_new_ops")
@pytest.mark.parametrize("op", ROWS, ids=lambda op: op.name)
def test_new_op_runs_like_any_other(op):
    """Plan and function, several element types, layouts and schedules, within the tolerances."""
    assert op in pb.catalog()
    function = make_function(op)
    reverses = (False, True) if op.family == "scan" else (False,)
    for element, (shape, axis), reverse in [
        (e, place, r)
        for e in ("f32", "bf16")
        for place in (((5, 21), -1), ((13, 11), 0), ((), -1), ((2, 0), 1))
        for r in reverses
    ]:
        cell = Cell(op, element, shape, axis, reverse=reverse)
        rng = rng_for(cell, "new")
        given = {n: rng.standard_normal(cell.shape_of(n)).astype(cell.dtype) for n in op.inputs}
        (exact,) = cell.exact(given).values()
        (result,) = run_fenced(cell, given).values()
        # Cancelling terms are not an issue here: squares, and 21 numbers of size one.
        allowed = {"f32": 2.0, "bf16": 0.5 + 2.0**-15}[element]
        floor = 2.0**-50 * 2 * 21 * 16
        errors = ulp_error(result, exact, element)
        distance = np.abs(result.astype(float) - exact.value.astype(float))
        assert ((errors <= allowed) | (distance <= floor)).all(), str(cell)
        # Each layout may be a kernel of its own, so one element type has to do.
        for layout in LAYOUTS if element == "f32" and not reverse else ():
            (other,) = run_fenced(cell, given, layout).values()
            assert same_bytes(other, result), f"{cell} in {layout}"
        assert same_bytes(cell.run_function(given, function=function), result)
        cell.cover("C", "new op")


@pytest.mark.usefixtures("with_new_ops")
def test_new_op_has_signature_docstring_and_sku():
    by_name = {op.name: op for op in ROWS}
    forward, backward = by_name["sumsq"], by_name["sumsq_backward"]
    shown = str(inspect.signature(make_function(forward)))
    assert shown == "(x, axis=None, *, keepdims=False, out=None)"
    shown = str(inspect.signature(make_function(backward)))
    assert shown == "(dy, *, x, axis=None, out=None)"
    assert "2·x·dy" in make_function(backward).__doc__
    plan = pb.ReduceBackwardPlan.select(pb.ReduceBackwardDescriptor("sumsq", (3, 4), 1))
    assert plan.needs == {"x"}
    assert plan.sku.op == "sumsq_backward"


def test_new_ops_are_gone_afterwards():
    assert not {op.name for op in ROWS} & {op.name for op in pb.catalog()}
    with pytest.raises(pb.UnsupportedError, match="'sumsq'"):
        pb.ReduceDescriptor("sumsq", (3,))


def test_names_are_taken_once():
    with pytest.raises(ValueError, match="'cumsum' is already in the catalog"):
        register(next(op for op in pb.catalog() if op.name == "cumsum"))
