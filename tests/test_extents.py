"""Extents at and around every boundary of lanes, groups, chunks and blocks.

A row in float64 is compared with the oracle; lanes across columns must give the bytes of lanes
along the row, so columns need no oracle of their own. The narrower types are compared with the
float64 result of the same numbers, which is good to far less than the rounding they are allowed,
and float32 at some extents with the oracle, too.
"""

from __future__ import annotations

import numpy as np
import pytest
from mpmath import mpf

from cells import OPS, cover, run_fenced, same_bytes
from grid import EXAMPLES, default, has_axes, has_axis, is_example, shows
from pullback.cpu.words import LANES
from pullback.formulas.record import ScanFormula
from pullback.oracle import Reference
from pullback.tools.case import Case
from quick_data import quick_operands
from tolerance import exp_argument, failure, wrong_with

EXTENTS = (1, 7, 8, 9, 63, 64, 65, 511, 512, 513, 4095, 4096, 4097, 5000)
# The oracle takes up to 0.2 ms an element, where it takes logarithms.
FEWER = (7, 9, 65, 513, 4097)
WIDTH = 9

ALONG_AN_AXIS = [n for n, op in OPS.items() if has_axis(op)]


def extents(name: str, element: str) -> tuple[int, ...]:
    case = default(OPS[name], "f64")
    slow = case.has_exponentials and isinstance(case.formula, ScanFormula)
    return FEWER if slow or element != "f64" else EXTENTS


def in_a_direction(case: Case, reverse: bool) -> Case:
    """A row walked from its end is a kernel more, which an op of each loop nest shows."""
    return case.but(reverse=reverse) if is_example(case.op) else case


@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("name", ALONG_AN_AXIS)
def test_row_equals_the_oracle(name, element):
    wrong = []
    for n in extents(name, element):
        case = in_a_direction(default(OPS[name], element, (1, n)), n % 2 == 0)
        given = quick_operands(case, seed=n)
        wrong += wrong_with(case, given, run_fenced(case, given))
        cover(case, "C", f"extent {n}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("element", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", ALONG_AN_AXIS)
def test_row_equals_float64(name, element):
    wrong = []
    for n in EXTENTS:
        case = default(OPS[name], element, (2, n))
        given = quick_operands(case, seed=n)
        wide = {k: a.astype(np.float64) if k in case.floats else a for k, a in given.items()}
        double = case.but(element="f64").results(wide)
        results = run_fenced(case, given)
        for output, result in results.items():
            value = double[output]
            numbers = np.vectorize(mpf, otypes=[object])(value)
            # The terms of these sums are at most 8 and there are n of them.
            size = np.full(value.shape, mpf(8 * n), dtype=object)
            found = failure(
                case, output, result, Reference(numbers, size), exp_argument(case, given)
            )
            wrong += [found] if found else []
        cover(case, "C", f"extent {n}")
    assert not wrong, "\n".join(wrong)


# float64 shows every change of order, which a rounding to less would hide.
@pytest.mark.parametrize(
    ("name", "element"),
    [(n, e) for n in ALONG_AN_AXIS for e in ("f64", "bf16") if shows(OPS[n], e, "columns")],
)
def test_columns_equal_rows(name, element):
    for n in EXTENTS:
        if n < LANES and not is_example(OPS[name]):
            continue  # rows so short are walked by columns, too, which are not packed
        case = in_a_direction(default(OPS[name], element, (WIDTH, n)), n % 2 == 1)
        given = quick_operands(case, seed=n)
        rows = run_fenced(case, given)
        columns = run_fenced(case, given, "Fortran")
        for output, result in columns.items():
            assert same_bytes(result, rows[output]), f"{case}: other bytes in columns"
        cover(case, "Fortran", f"extent {n}")


@pytest.mark.parametrize("element", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["sum", "norm2", "prod"])
def test_long_rows_side_by_side(name, element):
    """Four rows of several blocks, and two that are left over."""
    for n in (8192, 9001):
        case = default(OPS[name], element, (6, n))
        given = quick_operands(case, seed=n)
        rows, columns = run_fenced(case, given), run_fenced(case, given, "Fortran")
        for output, result in columns.items():
            assert same_bytes(result, rows[output]), f"{case}: other bytes in columns"
        cover(case, "C", f"extent {n}")


@pytest.mark.parametrize("name", [n for n in EXAMPLES if has_axes(OPS[n])])
def test_bent_axes_equal_merged_ones(name):
    """Axes that do not merge in memory walk their elements in the same order as ones that do."""
    for n in EXTENTS:
        case = default(OPS[name], "f32", (2, 3, n), (1, 2))
        given = quick_operands(case, seed=n)
        merged = run_fenced(case, given)
        bent = run_fenced(case, given, "sliced")
        for output, result in bent.items():
            assert same_bytes(result, merged[output]), f"{case}: other bytes in slices"
        cover(case, "sliced", f"extent {3 * n}")
