"""Formulas on whole arrays against the oracle: a second opinion on every record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from cell_data import KINDS, operands
from cells import OPS, Cell
from grid import default, is_defined, shapes, variants
from pullback.core.problem import Problem
from pullback.formulas.arrays import evaluate
from tolerance import exp_argument, failure


def problem_of(cell: Cell) -> Problem:
    """The problem that a cell is."""
    op = cell.op
    data = {p.name: float(getattr(cell, p.name)) for p in op.parameters if p.is_data}
    return Problem(
        op,
        cell.element,
        cell.shape,
        cell.axes,
        selection=(cell.ties,) if op.ties else (),
        reverse=cell.reverse,
        data=tuple(data.items()),
        segments=cell.num_segments if op.family == "segment" else None,
        is_sorted=cell.is_sorted,
        drops=cell.out_of_range == "drop",
    )


def small_cells(op) -> Iterator[tuple[Cell, str]]:
    """Every selection and direction, several axes and all kinds of data, on few elements."""
    places = [((3, 9), -1), ((6, 4), 0)]
    if op.family == "reduce":
        places.append(((3, 2, 4), (0, 2)))
    for variant, (shape, axis), kind in product(variants(op), places, KINDS):
        yield replace(default(op, "f64", shape, axis), **variant), kind
    for shape, axis, _ in shapes(op, "f64"):
        yield default(op, "f64", shape, axis), "normal"


@pytest.mark.parametrize("name", OPS)
def test_equals_the_oracle(name):
    """Folds by halving and scans by pairs take no more roundings than the kernels' own order."""
    wrong = []
    for cell, kind in small_cells(OPS[name]):
        if not is_defined(cell, kind):
            continue
        given = operands(cell, kind)
        exact = cell.exact(given)
        results = evaluate(problem_of(cell), given)
        for output, result in zip(cell.op.outputs, results, strict=True):
            assert result.shape == cell.shape_of(output)
            assert result.dtype == cell.dtype
            found = failure(cell, result, exact[output], exp_argument(given))
            if found:
                wrong.append(f"[{kind}] {output} of {found}")
    assert not wrong, f"{len(wrong)} cells:\n" + "\n".join(wrong[:20])
