"""Extents at and around every boundary of lanes, groups, chunks and blocks.

A row is compared with the oracle; lanes across columns must give the bytes of lanes along the
row, so columns need no oracle of their own. The narrow types are compared with the float64
result of the same numbers, which is good to far less than the rounding they are allowed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mpmath import mpf

from cells import OPS, as_tuple, run_fenced, same_bytes
from grid import default
from pullback.oracle import Reference
from quick_data import quick_operands
from tolerance import exp_argument, failure

EXTENTS = (1, 7, 8, 9, 63, 64, 65, 511, 512, 513, 4095, 4096, 4097, 5000)
# The oracle's logarithms take 0.2 ms an element.
FEWER = (7, 9, 65, 513, 4097)
WIDTH = 9

ALONG_AN_AXIS = [n for n, op in OPS.items() if op.family in ("scan", "reduce", "softmax")]


def extents(name: str) -> tuple[int, ...]:
    return FEWER if name in ("logcumsumexp", "logcumsumexp_backward") else EXTENTS


@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("name", ALONG_AN_AXIS)
def test_row_equals_the_oracle(name, element):
    wrong = []
    for n in extents(name):
        cell = replace(default(OPS[name], element, (1, n)), reverse=n % 2 == 0)
        given = quick_operands(cell, seed=n)
        exact, results = cell.exact(given), run_fenced(cell, given)
        for output, result in results.items():
            found = failure(cell, result, exact[output], exp_argument(given))
            wrong += [found] if found else []
        cell.cover("C", f"extent {n}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("element", ["f16", "bf16"])
@pytest.mark.parametrize("name", ALONG_AN_AXIS)
def test_row_equals_float64(name, element):
    wrong = []
    for n in EXTENTS:
        cell = default(OPS[name], element, (2, n))
        given = quick_operands(cell, seed=n)
        wide = {k: a.astype(np.float64) for k, a in given.items()}
        double = as_tuple(replace(cell, element="f64").run_function(wide))
        results = run_fenced(cell, given)
        for result, value in zip(results.values(), double, strict=True):
            numbers = np.vectorize(mpf, otypes=[object])(value)
            # The terms of these sums are at most 8 and there are n of them.
            size = np.full(value.shape, mpf(8 * n), dtype=object)
            found = failure(cell, result, Reference(numbers, size), exp_argument(given))
            wrong += [found] if found else []
        cell.cover("C", f"extent {n}")
    assert not wrong, "\n".join(wrong)


# float64 shows every change of order, which a rounding to less would hide.
@pytest.mark.parametrize("element", ["f64", "bf16"])
@pytest.mark.parametrize("name", ALONG_AN_AXIS)
def test_columns_equal_rows(name, element):
    for n in EXTENTS:
        cell = replace(default(OPS[name], element, (WIDTH, n)), reverse=n % 2 == 1)
        given = quick_operands(cell, seed=n)
        rows = run_fenced(cell, given)
        columns = run_fenced(cell, given, "Fortran")
        for output, result in columns.items():
            assert same_bytes(result, rows[output]), f"{cell}: other bytes in columns"
        cell.cover("Fortran", f"extent {n}")


@pytest.mark.parametrize("name", [n for n in ALONG_AN_AXIS if OPS[n].family == "reduce"])
def test_bent_axes_equal_merged_ones(name):
    """Axes that do not merge in memory walk their elements in the same order as ones that do."""
    for n in EXTENTS:
        cell = default(OPS[name], "f32", (2, 3, n), (1, 2))
        given = quick_operands(cell, seed=n)
        merged = run_fenced(cell, given)
        bent = run_fenced(cell, given, "sliced")
        for output, result in bent.items():
            assert same_bytes(result, merged[output]), f"{cell}: other bytes in slices"
        cell.cover("sliced", f"extent {3 * n}")
