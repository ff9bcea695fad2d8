"""Rows of ops of other shapes than the catalog's first, for tests that register them.

Several inputs, outputs and gradients, operands that may be left out, states, conditions, integers,
numbers or arrays, ids or offsets, outputs that are asked for, and no gradient at all.
"""

from __future__ import annotations

from dataclasses import replace

from new_ops import (
    STATE,
    finite,
    from_gradient,
    from_state,
    let_in,
    part,
    passed_itself,
    share,
    step,
    step_backward,
)
from pullback.core import parse
from pullback.core.declare import Op, Operand, Parameter, Role, Text, Type
from pullback.formulas import reduce
from pullback.formulas.folds import PEAK, TOTAL, add, recurrence
from pullback.formulas.primitives import INF, where
from pullback.formulas.record import Monoid, Pass, RowFormula, ScanFormula

AXIS = Parameter("axis", parse.axis, -1, is_positional=True)
AXES = Parameter("axis", parse.axes, None, is_positional=True)
REVERSE, KEEPDIMS = (Parameter(n, parse.flag, False) for n in ("reverse", "keepdims"))


def both(kind, family, forward, backward):
    """The rows of a kind: reads, writes, records and parameters of each direction."""
    yield Op(kind, family, kind, "forward", Text("f"), *forward)
    if backward:
        yield Op(f"{kind}_backward", family, kind, "backward", Text("g"), *backward)


# A linear recurrence; the initial state may be left out, the final one is given on demand.


def gradients(dy, y_before, passed):
    return (dy + passed) * y_before, dy + passed


def gradients_after_state(dy, y_before, first, initial, passed):
    return (dy + passed) * where(first, initial, y_before), dy + passed


FORWARD = ScanFormula(
    Monoid(step, recurrence, (1.0, 0.0), STATE),
    passed_itself,
    inclusive=True,
    against=False,
    end=passed_itself,
)
BACKWARD = ScanFormula(
    Monoid(step_backward, recurrence, (1.0, 0.0), STATE),
    gradients,
    inclusive=False,
    against=True,
)


def backward_of(initial, d_final):
    record = replace(BACKWARD, start=from_gradient if d_final else None)
    if initial:
        record = replace(record, finish=gradients_after_state, end=passed_itself)
    return record


def state(name, **how):
    return Operand(name, Role.ROW, Type.STATE, **how)


INITIAL = state("initial", optional=True)
ROWS = [
    *both(
        "a_recurrence",
        "scan",
        (
            (Operand("a"), Operand("b"), INITIAL),
            (Operand("y"), state("final", asked_by="return_final")),
            lambda initial: replace(FORWARD, start=from_state if initial else None),
            (AXIS, REVERSE, Parameter("return_final", parse.flag, False)),
        ),
        (
            (Operand("dy"), Operand("a"), Operand("y"), INITIAL, state("d_final", optional=True)),
            (Operand("da"), Operand("db"), state("d_initial", asked_by="initial")),
            backward_of,
            (AXIS, REVERSE),
        ),
    )
]


# A softmax over the elements that a mask lets in, or all.


def product(dy, y):
    return y * dy


def pulled(dy, y, total):
    return y * (dy - total)


def pulled_where(dy, y, mask, total):
    return where(mask, y * (dy - total), 0.0)


def masked(mask):
    if mask:
        shift = Pass(Monoid(let_in, PEAK.combine, (-INF,), ("peak",)), finite, ("shift",))
        total = Pass(Monoid(part, add, (0.0,), ("total",)))
        return RowFormula((shift, total), apply=share, heavy=True)
    from pullback.formulas.softmax import SOFTMAX

    return SOFTMAX


def masked_backward(mask):
    total = Pass(Monoid(product, add, (0.0,), ("total",)))
    return RowFormula((total,), apply=pulled_where if mask else pulled)


MASK = Operand("mask", type=Type.BOOL, optional=True, broadcasts=True)
ROWS += both(
    "a_softmax",
    "softmax",
    ((Operand("x"), MASK), (Operand("y"),), masked, (AXIS,)),
    ((Operand("dy"), Operand("y"), MASK), (Operand("dx"),), masked_backward, (AXIS,)),
)


# The largest row of each segment, cut by ids or by offsets.

INPUT = Operand("input", known_as="x")
OUTPUT = Operand("output", Role.ROW, known_as="y")
D_OUTPUT = Operand("d_output", Role.ROW, known_as="dy")
CUTS = (
    Operand("segment_ids", Role.IDS, Type.INDEX, optional=True),
    Operand("offsets", Role.OFFSETS, Type.INDEX, optional=True),
)
HOW = Parameter("out_of_range", parse.out_of_range, "raise")
ROWS += both(
    "a_segment_max",
    "segment",
    (
        (INPUT, *CUTS),
        (OUTPUT,),
        lambda **_: reduce.MAX,
        (
            Parameter("num_segments", parse.optional_count, None, is_positional=True),
            Parameter("sorted", parse.flag, False),
            HOW,
        ),
    ),
    (
        (D_OUTPUT, *CUTS, INPUT, OUTPUT),
        (Operand("d_input", known_as="dx"),),
        lambda ties, **_: reduce.EXTREME_BACKWARD[ties],
        (Parameter("ties", parse.ties, "split", ("split", "first")), HOW),
    ),
)


# Two outputs: linear in x, and not.


def mean_and_total(total, extent):
    return total / extent, total


def spread_both(d_mean, d_total, extent):
    return d_mean / extent + d_total


def square(x):
    return x, x * x


def add_both(a1, b1, a2, b2):
    return a1 + a2, b1 + b2


def both_totals(total, squares):
    return total, squares


def of_both(d_total, d_squares, x):
    return d_total + 2.0 * x * d_squares


def of_total(d_total):
    return d_total


def row(name, **how):
    return Operand(name, Role.ROW, **how)


SHAPE = Parameter("shape", parse.shape)
ROWS += both(
    "mean_and_total",
    "reduce",
    (
        (Operand("x"),),
        (row("mean"), row("total")),
        lambda: RowFormula((Pass(TOTAL),), finish=mean_and_total),
        (AXES, KEEPDIMS),
    ),
    (
        (row("d_mean"), row("d_total")),
        (Operand("dx"),),
        lambda: RowFormula(apply=spread_both),
        (SHAPE, AXES),
    ),
)
MOMENTS = Monoid(square, add_both, (0.0, 0.0), ("total", "squares"))
ROWS += both(
    "moments",
    "reduce",
    (
        (Operand("x"),),
        (row("total"), row("squares")),
        lambda: RowFormula((Pass(MOMENTS),), finish=both_totals),
        (AXES, KEEPDIMS),
    ),
    (
        (row("d_total"), row("d_squares", optional=True), Operand("x")),
        (Operand("dx"),),
        lambda d_squares: RowFormula(apply=of_both if d_squares else of_total),
        (AXES,),
    ),
)


# A sum that leaves the element itself out, by a flag that selects.


def one_more(x):
    return 1.0, x


def one_more_backward(dy):
    return 1.0, dy


SUMS = ScanFormula(
    Monoid(one_more, recurrence, (1.0, 0.0), STATE), passed_itself, inclusive=True, against=False
)
SUMS_BACKWARD = ScanFormula(
    Monoid(one_more_backward, recurrence, (1.0, 0.0), STATE),
    passed_itself,
    inclusive=True,
    against=True,
)
EXCLUSIVE = Parameter("exclusive", parse.flag, False, (False, True))
ROWS += both(
    "a_cumsum",
    "scan",
    (
        (Operand("x"),),
        (Operand("y"),),
        lambda exclusive: replace(SUMS, inclusive=not exclusive),
        (AXIS, REVERSE, EXCLUSIVE),
    ),
    (
        (Operand("dy"),),
        (Operand("dx"),),
        lambda exclusive: replace(SUMS_BACKWARD, inclusive=not exclusive),
        (AXIS, REVERSE, EXCLUSIVE),
    ),
)


# A number or an array; an integer for each row; no gradient.


def scaled_by(x, weight):
    return x * weight


def scale_backward(dy, weight):
    return dy * weight


def scale_gradients(dy, weight, x):
    return dy * weight, dy * x


WEIGHT = Parameter("weight", parse.real, is_data=True, is_positional=True)
WEIGHTS = Operand("weight", optional=True, broadcasts=True)
ROWS += both(
    "scale",
    "lerp",
    (
        (Operand("x"), WEIGHTS),
        (Operand("y"),),
        lambda weight: RowFormula(apply=scaled_by),
        (WEIGHT,),
    ),
    (
        (Operand("dy"), WEIGHTS, Operand("x", optional=True)),
        (Operand("dx"), Operand("dweight", asked_by="weight")),
        lambda weight, x: RowFormula(apply=scale_gradients if weight else scale_backward),
        (WEIGHT,),
    ),
)


def squared_where(x, index, target):
    return where(index == target, x * x, 0.0)


def picked(total):
    return total


def to_target(dy, x, index, target):
    return where(index == target, 2.0 * x * dy, 0.0)


TARGET = Operand("target", Role.ROW, Type.INDEX)
PICK = RowFormula((Pass(Monoid(squared_where, add, (0.0,), ("total",))),), finish=picked)
ROWS += both(
    "pick",
    "softmax",
    ((Operand("x"), TARGET), (row("y"),), lambda: PICK, (AXIS,)),
    (
        (row("dy"), Operand("x"), TARGET),
        (Operand("dx"),),
        lambda: RowFormula(apply=to_target),
        (AXIS,),
    ),
)
ROWS += both(
    "constant_cumsum",
    "scan",
    ((Operand("x"),), (Operand("y"),), lambda: SUMS, (AXIS, REVERSE)),
    None,
)


# An output that the backward reads, and takes no gradient by.


def squared(x):
    return x * x


def power_and_size(total):
    return total * total, total


def of_size(dy, x, size):
    return dy * 4.0 * x * size


ROWS += both(
    "power",
    "reduce",
    (
        (Operand("x"),),
        (row("y"), row("size")),
        lambda: RowFormula(
            (Pass(Monoid(squared, add, (0.0,), ("total",))),), finish=power_and_size
        ),
        (AXES, KEEPDIMS),
    ),
    (
        (row("dy"), Operand("x"), row("size")),
        (Operand("dx"),),
        lambda: RowFormula(apply=of_size),
        (AXES,),
    ),
)
