"""The grid the suite walks: every op of the catalog by element type, parameters, shape and data."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

import pullback as pb
from cell_data import KINDS
from cells import ELEMENTS, OPS
from pullback.core import parse
from pullback.core.declare import REQUIRED
from pullback.formulas.bind import primitives_of
from pullback.formulas.record import (
    RowFormula,
    ScanFormula,
    in_doubles,
    is_pointwise,
    names_read,
    reads_neighbours,
    repeats,
)
from pullback.tools.case import Case, cuts
from pullback.tools.choices import chosen, pairwise, selectors

# Forwards first: a backward's y comes from them, and two workers then never compile one kernel.
EVERY = [
    (name, element)
    for element, direction in product(ELEMENTS, ("forward", "backward"))
    for name, op in OPS.items()
    if op.direction == direction
]

# Lanes along the axis, lanes across columns, and (for reductions) axes that do not merge.
ROWS, COLUMNS, BENT = (5, 21), (13, 11), (4, 3, 5)
# NumPy 1 has no arrays of more than 32 dimensions.
MOST = 32 if np.__version__.startswith("1.") else 64
RANK_64 = (1,) * 20 + (3,) + (1,) * 30 + (10,) + (1,) * 12

# Values to try of a parameter that is data, the usual one first.
NUMBERS = {
    parse.correction: (1, 0, 2.5, 21, 40),
    parse.real: (0.3, 0.0, 1.0, -2.5),
    parse.fraction: (0.75, 0.0, 1.0),
    # Small: what exp rounds to nothing is multiplied by it.
    parse.penalty: (0.0, 2.0**-10),
    parse.optional_integer: (None, 0, 1),
}
BEYOND = (float("nan"), float("inf"))


def is_segmented(op: pb.Op) -> bool:
    return bool(cuts(op))


def has_axis(op: pb.Op) -> bool:
    return op.parameter("axis") is not None


def has_axes(op: pb.Op) -> bool:
    """Whether it may have several axes."""
    axis = op.parameter("axis")
    return axis is not None and axis.parse is parse.axes


def choices(op: pb.Op) -> dict[str, tuple[Any, ...]]:
    """What selects a record, and what else changes the walk or the numbers, usual values first."""
    found = selectors(op)
    for p in op.parameters:
        if p.name in ("keepdims", "sorted") or p.choices:
            continue
        if p.parse is parse.flag:
            found[p.name] = (p.default, not p.default)
        elif p.parse is parse.out_of_range:
            found[p.name] = ("raise", "drop")
        elif p.parse in NUMBERS:
            values = NUMBERS[p.parse]
            if p.parse is parse.real and is_pointwise(op.record()):
                values += BEYOND
            if p.default is not REQUIRED:
                values = (p.default, *(v for v in values if v != p.default))
            found[p.name] = values
    if is_segmented(op):
        found["is_sorted"] = (False, True)
    return found


def variants(op: pb.Op) -> list[dict[str, Any]]:
    """Choices of an op other than its axis; see ``chosen``."""
    return pairwise(choices(op))


def default(op: pb.Op, element: str, shape: tuple[int, ...] = ROWS, axis: Any = -1) -> Case:
    """A case with the usual parameters."""
    usual = {n: v[0] for n, v in choices(op).items() if op.parameter(n)}
    return Case.of(op, element, shape, segments=4, axis=axis, **usual)


def selects_as_usual(op: pb.Op, choice: dict[str, Any]) -> bool:
    base = default(op, "f32")
    return chosen(base, choice).problem.selection == base.problem.selection


def gives_everything(choice: dict[str, Any]) -> bool:
    optional = [v for n, v in choice.items() if n[0] == "+"]
    return bool(optional) and all(optional)


def loop_nest(op: pb.Op) -> tuple[Any, ...]:
    """What the walk over memory depends on: the parts of the record, not what they compute."""
    formula = in_doubles(op.record(element="f32"), "f32")
    asks = frozenset(names_read(formula) & {"index", "first"}), reads_neighbours(formula)
    shape = is_segmented(op), len(op.writes), type(formula), *asks
    if isinstance(formula, RowFormula):
        folds = [step.monoid for step in formula.passes if step.monoid]
        ways = {(monoid.selects, monoid.brief is not None) for monoid in folds}
        return *shape, len(folds), frozenset(ways), repeats(formula), formula.finish is None
    parts = (formula.prefix, formula.start, formula.end, formula.quiet, formula.scaled)
    return *shape, formula.inclusive, tuple(p is not None for p in parts)


# One op of each loop nest. A kernel takes half a second to compile, and what it does with strides,
# threads and pieces does not depend on what the formula computes: an example shows it for the
# others. Nor do strides depend on the element type, but for reading and writing: beside float32 an
# example shows them in one type, by turns.
EXAMPLES = sorted({loop_nest(op): op.name for op in reversed(OPS.values())}.values())
_NESTS = {loop_nest(OPS[name]) for name in EXAMPLES}
_OTHER = {name: ("f64", "f16", "bf16")[k % 3] for k, name in enumerate(EXAMPLES)}
_NARROW = {name: ("f16", "bf16")[k % 2] for k, name in enumerate(EXAMPLES)}


def is_example(op: pb.Op) -> bool:
    """Whether an op shows its loop nest for others; one added at run time may have a new one."""
    return op.name in EXAMPLES or loop_nest(op) not in _NESTS


def shows(op: pb.Op, element: str, walk: str) -> bool:
    """Whether an op shows a walk over memory in an element type.

    Rows that lie packed, every op in every type. Columns are the same sums in an order of their
    own, which float64 shows; in float32 some are computed on other lanes. What strides do is the
    loop nest's, and so is reading and writing a narrow element across columns.
    """
    if walk == "rows" or element == "f32":
        return walk != "bent" or is_example(op)
    if walk == "columns":
        return element == "f64" or (is_example(op) and element == _NARROW.get(op.name, "bf16"))
    return is_example(op) and walk == "strided" and element == _OTHER.get(op.name, "bf16")


def places(op: pb.Op, element: str) -> list[tuple[tuple[int, ...], Any]]:
    """Shapes and axes that reach each walk of a loop nest."""
    if is_segmented(op):
        return [(ROWS, 0), ((14, 9), 0)]
    bent = [(BENT, (0, 2))] if has_axes(op) and shows(op, element, "bent") else []
    columns = [(COLUMNS, 0)] if shows(op, element, "columns") else []
    return [(ROWS, -1), *columns, *bent]


Place = tuple[tuple[int, ...], Any]


def spots(op: pb.Op, element: str) -> Iterator[tuple[dict[str, Any], Place]]:
    """Choices of an op, each with a shape and an axis.

    A selection on a loop nest is a kernel of its own, half a second to compile. The usual one is
    taken everywhere; of the others every two choices occur together, on loop nests by turns. They
    are no different in another element type: there, one with every operand that may be left out
    has to do, for an example or where another formula is computed.
    """
    where = places(op, element)
    usual, *others = variants(op)
    yield from ((usual, place) for place in where)
    if element == "f32":
        for k, choice in enumerate(others):
            # A row walked from its end is a kernel more; columns are not.
            columns = [p for p in where if p[0] == COLUMNS] if choice.get("reverse") else []
            yield choice, (columns or where)[k % len(columns or where)]
        return
    whole = not is_example(op) and not has_another_formula(op, element)
    for choice in others:
        if selects_as_usual(op, choice):
            yield from ((choice, place) for place in where)
        elif gives_everything(choice) and not whole:
            whole = True
            yield choice, where[ELEMENTS.index(element) % len(where)]


def has_another_formula(op: pb.Op, element: str) -> bool:
    """Whether an element type is computed by another record than float32."""
    own, usual = (in_doubles(op.record(element=e), e) for e in (element, "f32"))
    return own is not usual


def shapes(op: pb.Op, element: str) -> list[tuple[tuple[int, ...], object, str]]:
    """Shape, axis and the edge they stand for; ordinary data will do."""
    if is_segmented(op):
        some: list[tuple[tuple[int, ...], object, str]] = [
            ((0, 5), 0, "empty"), ((7, 0), 0, "empty"),
        ]  # fmt: skip
        # Few columns are kernels of their own, which have the bytes of many in float32.
        narrow = element == "f32" and is_example(op)
        return some + [((1, 1), 0, "rank 2")] * narrow
    many: list[tuple[tuple[int, ...], object, str, str]] = [
        ((), -1, "rank 0", "rows"), ((1,), 0, "rank 1", "rows"), ((9,), 0, "rank 1", "rows"),
        ((0,), 0, "empty", "rows"), ((3, 0), 0, "empty", "rows"), ((0, 3), 1, "empty", "rows"),
        ((2, 3, 4), 1, "rank 3", "strided"), ((2, 1, 3, 2, 9), 2, "rank 5", "columns"),
        (RANK_64, 20, "rank 64", "columns"), (RANK_64, -13, "rank 64", "rows"),
    ]  # fmt: skip
    if has_axes(op):
        many += [
            ((), None, "rank 0", "rows"), ((2, 3, 4), None, "all axes", "rows"),
            ((2, 3, 4), (), "no axes", "columns"), ((2, 3, 4), (1, 2), "merging axes", "rows"),
            ((4, 3, 9), (0, 1), "merging axes", "columns"), ((2, 0, 3), (0, 1), "empty", "bent"),
            (RANK_64, None, "rank 64", "rows"), ((4, 3, 9), (2, 0), "bent axes", "bent"),
            ((2, 3, 2, 3, 2), (0, 2, 4), "bent axes", "bent"),
        ]  # fmt: skip
    return [
        (shape, axis, edge)
        for shape, axis, edge, walk in many
        if len(shape) <= MOST and shows(op, element, walk)
    ]


def is_defined(case: Case, kind: str) -> bool:
    """Whether the docs say what comes out."""
    try:
        formula = case.formula
    except pb.InvalidProblemError:
        assert case.op.refuses_empty
        return False
    if kind == "minus inf prefix" and case.has_products and isinstance(formula, ScanFormula):
        # inf times a sum that cancels: inf or nan, depending on where the product is taken.
        return "power_of_two" not in primitives_of(formula.monoid.combine)
    return True


def kinds_at(turn: int, usual: int) -> tuple[str, ...]:
    """Kinds of data for a choice: all for the usual one, which comes first, else by turns."""
    kinds: tuple[str, ...] = KINDS if turn < usual else KINDS[turn % 3 :: 3]
    return kinds


def value_cases(op: pb.Op, element: str) -> Iterator[tuple[Case, str, str]]:
    """Cases to compare with the oracle: ``(case, kind of data, edge)``."""
    base = default(op, element)
    usual = len(places(op, element))
    for turn, (choice, (shape, axis)) in enumerate(spots(op, element)):
        if not shows(op, element, "strided"):
            # A row walked from its end is a kernel more; columns are not.
            if choice.get("reverse") and shape == ROWS:
                continue
            # So are rows of segments that come in order.
            if is_segmented(op):
                choice = {**choice, "is_sorted": element == "f16"}
        case = chosen(base, choice).but(shape=shape, axis=axis)
        yield from ((case, kind, kind) for kind in kinds_at(turn, usual))
    for shape, axis, edge in shapes(op, element):
        yield base.but(shape=shape, axis=axis), "normal", edge
    if is_segmented(op):
        for is_sorted in (False, True):
            empty = base.but(out_of_range="drop", segments=0, is_sorted=is_sorted)
            yield empty, "normal", "no segments"


def defined_cases(op: pb.Op, element: str) -> Iterator[tuple[Case, str, str]]:
    return (c for c in value_cases(op, element) if is_defined(c[0], c[1]))
