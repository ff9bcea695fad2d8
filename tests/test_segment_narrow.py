"""Segments of less than eight columns, which lanes share: each column as if it had neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from cells import OPS, arrays_of, cover, outputs_for, same_bytes
from grid import EXAMPLES, default, is_segmented, variants
from machines import assume
from pullback.core.declare import Role
from pullback.cpu import segment_launch
from pullback.tools.case import Case, cuts
from pullback.tools.choices import chosen
from quick_data import quick_operands, quick_run

SEGMENTED = [n for n in EXAMPLES if is_segmented(OPS[n])]
ROWS, WIDE, SEGMENTS = 300, 9, 150


def by_ids_and_offsets(name: str, element: str) -> list[Case]:
    """Ids in any order, sorted ids, and offsets; some segments are empty."""
    op = OPS[name]
    base = default(op, element, (ROWS, WIDE), 0).but(segments=SEGMENTS)
    (offsets,) = (o.name for o in cuts(op) if o.role is Role.OFFSETS)
    found = (chosen(base, v) for v in variants(op))
    by_offsets = next(case for case in found if offsets in case.given)
    return [base, base.but(is_sorted=True), by_offsets]


def columns_of(arrays: dict[str, np.ndarray], part: slice) -> dict[str, np.ndarray]:
    return {n: a[:, part] if a.shape[1:] == (WIDE,) else a for n, a in arrays.items()}


@pytest.mark.parametrize("element", ["f32", "bf16"])
@pytest.mark.parametrize("name", SEGMENTED)
def test_few_columns_have_the_bytes_of_many(name, element, monkeypatch):
    assume(monkeypatch, l2=0)
    for case in by_ids_and_offsets(name, element):
        given = quick_operands(case)
        wide = quick_run(case, given)
        for columns in (1, 2, 3, 7):
            few = case.but(shape=(ROWS, columns))
            for part in (slice(1, 1 + columns), slice(columns, 0, -1)):
                some = columns_of(given, part)
                packed = {n: np.ascontiguousarray(a) for n, a in some.items()}
                for operands, threads in ((some, 1), (packed, 1), (packed, 2), (packed, 7)):
                    for whole, own in zip(
                        wide, quick_run(few, operands, threads=threads), strict=True
                    ):
                        expected = np.ascontiguousarray(whole[:, part])
                        assert same_bytes(own, expected), f"{few}: other bytes"
            cover(few, "C", "few columns")


@pytest.mark.parametrize("rows", [1, 2, 5, 1000])
@pytest.mark.parametrize("name", ["segment_softmax_backward", "segment_logsumexp_backward"])
def test_rows_of_no_segment(name, rows):
    """They are zero in a gradient by element, in runs and row by row."""
    case = default(OPS[name], "f32", (rows, 2), 0)
    case = case.but(segments=3, out_of_range="drop")
    given = quick_operands(case)
    given["segment_ids"] = np.arange(rows) % 5 - 1
    outputs = outputs_for(case)
    case.run(given, arrays_of(outputs))
    outside = (given["segment_ids"] < 0) | (given["segment_ids"] >= 3)
    for fenced in outputs.values():
        assert fenced.check() is None
        assert not fenced.array[outside].any()


@pytest.mark.parametrize("rows", [1, 2, 5, 1000])
def test_a_mean_counts_rows_of_its_segment(rows):
    ids = np.arange(rows) % 5 - 1
    mean = default(OPS["segment_mean"], "f32", (rows, 1), 0).but(segments=3, out_of_range="drop")
    x = quick_operands(mean)["input"]
    (found,) = quick_run(mean, {"input": x, "segment_ids": ids})
    for s in range(3):
        own = x[ids == s].astype(float)
        exact = own.mean() if len(own) else 0.0
        np.testing.assert_allclose(found[s], exact, rtol=1e-6, atol=1e-7)


def test_who_takes_lanes_side_by_side():
    """Choices that bytes do not show."""
    problem = {c: default(OPS["segment_sum"], "f32", (40, c), 0).problem for c in (1, 7, 8)}
    assert [segment_launch.is_narrow(p) for p in problem.values()] == [True, True, False]
    tiles = segment_launch.tiles_of(problem[1], threads=2)
    assert tiles is not None
    assert (tiles.count, tiles.bytes_each) == (1, 8 * 4)
