"""The grid the suite walks: every op of the catalog by element type, parameters, shape and data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pullback as pb
from cell_data import KINDS
from cells import ELEMENTS, OPS, Cell

# Forwards first: a backward's y comes from them, and two workers then never compile one kernel.
EVERY = [
    (name, element)
    for element, direction in product(ELEMENTS, ("forward", "backward"))
    for name, op in OPS.items()
    if op.direction == direction
]

# Lanes along the axis, lanes across columns, and (for reductions) axes that do not merge.
ROWS, COLUMNS, BENT = (5, 21), (13, 11), (4, 3, 5)
RANK_64 = (1,) * 20 + (3,) + (1,) * 30 + (10,) + (1,) * 12

# float64 may leave its range on the way where nothing is promised: sums of huge numbers. The
# narrower types are computed in float64.
OVERFLOWS = ("sum", "mean", "cumsum")


def variants(op: pb.Op) -> list[dict]:
    """Parameters of an op other than its axis."""
    if op.family == "scan":
        return [
            {"reverse": reverse, "ties": ties}
            for ties, reverse in product(op.ties or (None,), (False, True))
        ]
    if op.kind in ("var", "std"):
        return [{"correction": c} for c in (1, 0, 2.5, 21, 40)]
    if op.family == "reduce":
        return [{"ties": ties} for ties in op.ties or (None,)]
    if op.family == "lerp":
        return [{"weight": w} for w in (0.3, 0.0, 1.0, -2.5, float("nan"), float("inf"))]
    if op.family == "segment":
        return [
            {"is_sorted": is_sorted, "out_of_range": policy}
            for is_sorted, policy in product((False, True), ("raise", "drop"))
        ]
    return [{}]


def default(op: pb.Op, element: str, shape: tuple[int, ...] = ROWS, axis=-1) -> Cell:
    """A cell with the default parameters."""
    ties = op.ties[0] if op.ties else None
    segments = 4 if op.family == "segment" else 0
    return Cell(op, element, shape, axis, ties=ties, num_segments=segments)


def shapes(op: pb.Op, element: str) -> list[tuple[tuple[int, ...], object, str]]:
    """Shape, axis and the edge they stand for; ordinary data will do."""
    if op.family == "segment":
        return [((0, 5), 0, "empty"), ((7, 0), 0, "empty"), ((1, 1), 0, "rank 2")]
    many = [
        ((), -1, "rank 0"), ((1,), 0, "rank 1"), ((9,), 0, "rank 1"), ((0,), 0, "empty"),
        ((3, 0), 0, "empty"), ((0, 3), 1, "empty"), ((2, 3, 4), 1, "rank 3"),
        ((2, 1, 3, 2, 9), 2, "rank 5"), (RANK_64, 20, "rank 64"), (RANK_64, -13, "rank 64"),
    ]  # fmt: skip
    if op.family == "reduce":
        many += [
            ((), None, "rank 0"), ((2, 3, 4), None, "all axes"), ((2, 3, 4), (), "no axes"),
            ((2, 3, 4), (1, 2), "merging axes"), ((4, 3, 9), (0, 1), "merging axes"),
            ((2, 0, 3), (0, 1), "empty"), (RANK_64, None, "rank 64"),
        ]  # fmt: skip
        if element == "f32":
            many += [((4, 3, 9), (2, 0), "bent axes"), ((2, 3, 2, 3, 2), (0, 2, 4), "bent axes")]
    return many


def is_defined(cell: Cell, kind: str) -> bool:
    """Whether the docs say what comes out."""
    op = cell.op
    if op.kind in ("max", "min") and op.direction == "forward" and cell.extent == 0:
        return 0 in cell.kept
    if op.name == "cumprod_backward" and kind == "minus inf prefix":
        # inf times a sum that cancels: inf or nan, depending on where the product is taken.
        return False
    return not (cell.element == "f64" and op.kind in OVERFLOWS and kind == "huge")


def value_cells(op: pb.Op, element: str) -> Iterator[tuple[Cell, str, str]]:
    """Cells to compare with the oracle: ``(cell, kind of data, edge)``."""
    for variant in variants(op):
        base = replace(default(op, element), **variant)
        # A policy for ties is a kernel of its own, a second to compile, and no different in
        # another element type.
        if element != "f32" and op.ties and base.ties != op.ties[0]:
            continue
        if op.family == "segment":
            places = [(ROWS, 0), ((14, 9), 0)]
        else:
            places = [(ROWS, -1), (COLUMNS, 0)]
            if op.family == "reduce" and element == "f32":
                places.append((BENT, (0, 2)))
        for (shape, axis), kind in product(places, KINDS):
            # A row walked from its end is a kernel more; columns are not.
            if base.reverse and element in ("f16", "bf16") and shape == ROWS:
                continue
            yield replace(base, shape=shape, axis=axis), kind, kind
    base = default(op, element)
    for shape, axis, edge in shapes(op, element):
        yield replace(base, shape=shape, axis=axis), "normal", edge
    if op.family == "segment":
        dropping = replace(base, out_of_range="drop", num_segments=0)
        yield dropping, "normal", "no segments"
        yield replace(dropping, is_sorted=True), "normal", "no segments"


def defined_cells(op: pb.Op, element: str) -> Iterator[tuple[Cell, str, str]]:
    return (c for c in value_cells(op, element) if is_defined(c[0], c[1]))
