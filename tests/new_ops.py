"""Five ops of other shapes than the catalog's, each by formula, row and definition alone.

A recurrence of two inputs with a state in front of it and one behind; a scan that a parameter makes
exclusive; a softmax with a condition that may be left out; a segment op that saves; a reduction
with two outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate

from pullback.core import parse
from pullback.core.catalog import register, unregister
from pullback.core.declare import Op, Operand, Parameter, Role, Text, Type
from pullback.core.rows.reduce import AXES, KEEPDIMS, SHAPE
from pullback.core.rows.segment import declare_segment
from pullback.core.rows.shared import AXIS, DX, DY, SAVED_Y, X, Y
from pullback.formulas import reduce, softmax
from pullback.formulas.folds import PEAK, add, recurrence, value
from pullback.formulas.primitives import INF, exp, where
from pullback.formulas.record import Monoid, Pass, RowFormula, ScanFormula
from pullback.oracle import table
from pullback.oracle.reduce import reduction, spread
from pullback.oracle.scan import scan
from pullback.oracle.segment import segments
from pullback.oracle.special import ANYTHING, NAN, ZERO, Term, extreme, number, same, total
from pullback.oracle.special import INF as INFINITY
from pullback.oracle.special import exp as exp_of

# Formulas.


def step(a, b):
    return a, b


def passed_itself(passed):
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
RECURRENCE = ScanFormula(
    Monoid(step, recurrence, (1.0, 0.0), STATE),
    passed_itself,
    inclusive=True,
    against=False,
    start=from_state,
    end=passed_itself,
)
RECURRENCE_BACKWARD = ScanFormula(
    Monoid(step_backward, recurrence, (1.0, 0.0), STATE),
    gradients,
    inclusive=False,
    against=True,
    start=from_gradient,
    end=passed_itself,
)


def total_itself(total):
    return total


def upstream(dy):
    return dy


def running(strict):
    return ScanFormula(
        Monoid(value, add, (0.0,), ("total",)), total_itself, not strict, against=False
    )


def running_backward(strict):
    return ScanFormula(
        Monoid(upstream, add, (0.0,), ("total",)), total_itself, not strict, against=True
    )


def let_in(x, mask):
    return where(mask, x, -INF)


def finite(peak):
    return where(peak == -INF, 0.0, peak)


def part(x, mask, shift):
    return where(mask, exp(x - shift), 0.0)


def share(x, mask, shift, total):
    return where(mask, exp(x - shift) / total, 0.0)


MASKED = RowFormula(
    (
        Pass(Monoid(let_in, PEAK.combine, (-INF,), ("peak",), selects=True), finite, ("shift",)),
        Pass(Monoid(part, add, (0.0,), ("total",))),
    ),
    apply=share,
    heavy=True,
)


def mean_and_total(total, extent):
    return total / extent, total


def spread_both(d_mean, d_total, extent):
    return d_mean / extent + d_total


TWO = RowFormula((Pass(Monoid(value, add, (0.0,), ("total",))),), finish=mean_and_total)
TWO_BACKWARD = RowFormula(apply=spread_both)

# Rows.


def state(name: str) -> Operand:
    return Operand(name, Role.ROW, Type.STATE)


def rows_of(name: str) -> Operand:
    return Operand(name, Role.ROW)


STRICT = Parameter("strict", parse.flag, False, (False, True), doc="Leave the element out.")
MASK = Operand("mask", type=Type.BOOL, optional=True, doc="True is in.")
HOW = (AXIS, Parameter("reverse", parse.flag, False))


def op(name, family, text, reads, writes, records, parameters, saves=()):
    kind = name.removesuffix("_backward")
    direction = "forward" if kind == name else "backward"
    return Op(
        name, family, kind, direction, Text(text), reads, writes, records, parameters,
        frozenset(saves),
    )  # fmt: skip


ROWS = [
    op("two_step", "scan", "y[t] = a[t]·y[t−1] + b[t]", (Operand("a"), Operand("b"),
       state("initial")), (Y, state("final")), lambda: RECURRENCE, HOW),
    op("two_step_backward", "scan", "g[t] = dy[t] + a[t+1]·g[t+1]",
       (DY, Operand("a"), SAVED_Y, state("initial"), state("d_final")),
       (Operand("da"), Operand("db"), state("d_initial")), lambda: RECURRENCE_BACKWARD, HOW,
       ("a", "y", "initial")),
    op("running", "scan", "y[j] = Σ_{i≤j} x[i]", (X,), (Y,), running, (*HOW, STRICT)),
    op("running_backward", "scan", "dx[j] = Σ_{i≥j} dy[i]", (DY,), (DX,), running_backward,
       (*HOW, STRICT)),
    op("picky_softmax", "softmax", "y = exp(x) / Σ exp(x) where the mask holds", (X, MASK), (Y,),
       lambda mask: MASKED if mask else softmax.SOFTMAX, (AXIS,)),
    op("picky_softmax_backward", "softmax", "dx = y·(dy − Σ y·dy)", (DY, SAVED_Y), (DX,),
       lambda: softmax.SOFTMAX_BACKWARD, (AXIS,), ("y",)),
    *declare_segment("segment_peak", Text("max"), Text("dy where x = y"), reduce.MAX,
                     reduce.EXTREME_BACKWARD, ("input", "output")),
    op("mean_and_total", "reduce", "Σ x / n and Σ x", (X,), (rows_of("mean"), rows_of("total")),
       lambda: TWO, (AXES, KEEPDIMS)),
    op("mean_and_total_backward", "reduce", "dx = d_mean / n + d_total",
       (rows_of("d_mean"), rows_of("d_total")), (DX,), lambda: TWO_BACKWARD, (SHAPE, AXES)),
]  # fmt: skip
NAMES = [row.name for row in ROWS]
BY_NAME = {row.name: row for row in ROWS}


# Definitions.


def two_step(a, b, initial):
    if not all(t.is_finite for t in (*a, *b, initial)):
        return [ANYTHING] * len(a), ANYTHING
    y, now = [], initial
    for factor, term in zip(a, b, strict=True):
        now = factor * now + term
        y.append(now)
    return y, now


def two_step_backward(dy, a, y, initial, d_final):
    n = len(dy)
    if not all(t.is_finite for t in (*dy, *a, *y, initial, d_final)):
        return [ANYTHING] * n, [ANYTHING] * n, ANYTHING
    db, passed = [], d_final
    for d, factor in zip(reversed(dy), reversed(a), strict=True):
        db.append(d + passed)
        passed = factor * db[-1]
    db.reverse()
    before = [initial, *y][:n]
    return [g * t for g, t in zip(db, before, strict=True)], db, passed


def running_exact(x, *, strict=False):
    sums = list(accumulate(x, Term.__add__, initial=ZERO))
    return sums[:-1] if strict else sums[1:]


def running_backward_exact(dy, *, strict=False):
    return running_exact(dy[::-1], strict=strict)[::-1]


def picky_softmax(x, mask=None):
    mask = [True] * len(x) if mask is None else mask
    held = [t for t, m in zip(x, mask, strict=True) if m]
    top = extreme(held, 1) if held else ZERO
    if held and not top.is_finite:
        return [Term(NAN) if m else ZERO for m in mask]
    whole = total(exp_of(t) for t in held)
    return [exp_of(t) / whole if m else ZERO for t, m in zip(x, mask, strict=True)]


def picky_softmax_backward(dy, y):
    dot = total(b * d for b, d in zip(y, dy, strict=True))
    return [b * (d - dot) for b, d in zip(y, dy, strict=True)]


def segment_peak(input):
    return extreme(input, 1) if input else Term(-INFINITY)


def segment_peak_backward(d_output, input, output, *, ties="split"):
    equal = [i for i, term in enumerate(input) if same(term, output)]
    given = d_output / number(len(equal)) if ties == "split" and equal else d_output
    chosen = {"first": equal[:1], "last": equal[-1:]}.get(ties, equal)
    return [given if i in chosen else ZERO for i in range(len(input))]


def mean_and_total_exact(x):
    whole = total(x)
    return whole / number(len(x)) if x else Term(NAN), whole


def mean_and_total_backward(d_mean, d_total, x):
    return [d_mean / number(len(x)) + d_total for _ in x]


def define_all() -> None:
    states = "initial final d_initial d_final"
    table.define("two_step", scan, "y final", per_row=states)(two_step)
    table.define("two_step_backward", scan, "da db d_initial", per_row=states)(two_step_backward)
    table.define("running", scan, "y", table.EXACT)(running_exact)
    table.define("running_backward", scan, "dx", table.EXACT)(running_backward_exact)
    table.define("picky_softmax", scan, "y")(picky_softmax)
    table.define("picky_softmax_backward", scan, "dx", table.EXACT)(picky_softmax_backward)
    rows = "output d_output"
    table.define("segment_peak", segments, "output", per_row=rows)(segment_peak)
    table.define("segment_peak_backward", segments, "d_input", per_row=rows)(segment_peak_backward)
    table.define("mean_and_total", reduction, "mean total", table.EXACT)(mean_and_total_exact)
    table.define("mean_and_total_backward", spread, "dx")(mean_and_total_backward)


@contextmanager
def registered() -> Iterator[list[Op]]:
    """The ops and their definitions, gone again afterwards."""
    for row in ROWS:
        register(row)
    define_all()
    try:
        yield ROWS
    finally:
        for row in ROWS:
            unregister(row.name)
            del table._TABLE[row.name]
