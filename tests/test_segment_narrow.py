"""Segments of less than eight columns, which lanes share: each column as if it had neighbours."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
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
    shapes = [(40, c) for c in (1, 2, 3, 5, 8, 9)]
    few = [default(OPS["segment_softmax"], "f32", shape, 0).problem for shape in shapes]
    assert [segment_launch.lanes_of(p) for p in few] == [1, 2, 4, 8, 8, 0]
    tables = [segment_launch.table_bytes(p) for p in few]
    assert all(tables[:-1])
    assert tables[-1] == 0


OF_TABLES = [
    *((n, "f32") for n in SEGMENTED),
    ("segment_mean", "f32"),
    ("segment_mean_backward", "f32"),
    ("segment_softmax", "bf16"),
    ("segment_sum", "f16"),
]


@pytest.mark.parametrize(("name", "element"), OF_TABLES)
@pytest.mark.parametrize("out_of_range", ["raise", "drop"])
def test_tables_have_the_bytes_of_sorted_rows(name, element, out_of_range, monkeypatch):
    """Rows of few columns in any order, folded to a table that fits the caches or sorted."""
    rng = np.random.default_rng(3)
    for columns in (1, 2, 3, 8):
        case = default(OPS[name], element, (ROWS, columns), 0)
        case = case.but(segments=SEGMENTS, out_of_range=out_of_range, is_sorted=False)
        given = quick_operands(case)
        if out_of_range == "drop":
            outside = rng.integers(0, ROWS, 20)
            given["segment_ids"][outside] = rng.choice([-1, SEGMENTS, 1 << 40], 20)
        with monkeypatch.context() as patch:
            assume(patch, last_level=0)
            assert segment_launch.table_bytes(case.problem) == 0
            expected = quick_run(case, given, threads=1)
        if segment_launch.way_of(case.problem) == "runs":
            assert segment_launch.table_bytes(case.problem) > 0
        strided = {
            n: np.repeat(np.asfortranarray(a), 2, 0)[::2] if a.ndim == 2 else a
            for n, a in given.items()
        }
        runs = [quick_run(case, given, threads=threads) for threads in (1, 2, 7)]
        if out_of_range == "raise":
            ids = given["segment_ids"].astype(np.int32)
            runs.append(quick_run(case, {**given, "segment_ids": ids}))
        runs.append(quick_run(case, strided, threads=2))
        for found in runs:
            assert all(map(same_bytes, expected, found)), f"{case}: other bytes"
        cover(case, "C", "tables")


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 8, 11])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_rows_are_gathered_whatever_their_width(columns, dtype):
    rng = np.random.default_rng(4)
    rows, wide = rng.standard_normal((30, 24)).astype(dtype), np.full((100, 24), 7, dtype)
    ids = rng.integers(-1, 31, 100)
    there = (ids >= 0) & (ids < 30)
    for part in (slice(0, columns), slice(0, 2 * columns, 2), slice(columns, 0, -1)):
        d_output, out = rows[:, part], wide[:, part]
        pb.segment_sum_backward(d_output, ids, out_of_range="drop", out=out)
        expected = np.where(there[:, None], d_output[np.where(there, ids, 0)], 0)
        assert same_bytes(np.ascontiguousarray(out), np.ascontiguousarray(expected))
        packed = pb.segment_sum_backward(np.ascontiguousarray(d_output), ids, out_of_range="drop")
        assert same_bytes(packed, np.ascontiguousarray(expected))


@pytest.mark.parametrize("ids_type", [np.int32, np.int64])
@pytest.mark.parametrize("columns", [1, 4])
def test_threads_share_the_segments_of_a_table(columns, ids_type, monkeypatch):
    """Each folds the rows of its own: rows next to each other of one segment and of several."""
    rng, row = np.random.default_rng(5), np.arange(ROWS)
    case = default(OPS["segment_prod"], "f32", (ROWS, columns), 0)
    case = case.but(segments=SEGMENTS, is_sorted=False)
    given = quick_operands(case)
    mixed = np.where(row < ROWS // 2, given["segment_ids"], rng.integers(0, 3, ROWS))
    # Products that leave the range of float64 and come back.
    far = np.where(row < ROWS // 2, 2.0**62, 2.0**-62)[:, None]
    for ids, scale in ((mixed, 1.0), (row % 9, far)):
        given["segment_ids"] = ids.astype(ids_type)
        own = {**given, "input": (given["input"] * scale).astype("f4")}
        with monkeypatch.context() as patch:
            assume(patch, last_level=0)
            expected = quick_run(case, own, threads=1)
        with monkeypatch.context() as patch:
            assume(patch, l2=0)
            assert segment_launch.table_parts(case.problem, 1 << 30, 7) == 7
            for threads in (1, 2, 7):
                assert all(map(same_bytes, expected, quick_run(case, own, threads=threads)))


@pytest.mark.parametrize("out_of_range", ["raise", "drop"])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_runs_have_the_bytes_of_rows_in_any_order(columns, out_of_range, monkeypatch):
    """Sorted ids of either size, and offsets: empty segments at both ends and between."""
    assume(monkeypatch, l2=0)
    for name in ("segment_softmax_backward", "segment_mean_backward", "segment_sum_backward"):
        case = default(OPS[name], "f32", (ROWS, columns), 0)
        case = case.but(segments=SEGMENTS, out_of_range=out_of_range, is_sorted=False)
        given = quick_operands(case)
        ids = np.sort(3 + given["segment_ids"] % (SEGMENTS - 8))
        if out_of_range == "drop":
            ids[:5], ids[-7:] = -1, SEGMENTS + 1
        inside = (ids >= 0) & (ids < SEGMENTS)
        given["segment_ids"] = ids
        expected = quick_run(case, given)
        ends = np.searchsorted(ids, np.arange(SEGMENTS + 1))
        (by_offsets,) = (
            chosen(case, {"cut": o.name}) for o in cuts(OPS[name]) if o.role is Role.OFFSETS
        )
        sorted_case = case.but(is_sorted=True)
        rest = {n: a for n, a in given.items() if n != "segment_ids"}
        runs = [
            quick_run(sorted_case, {**rest, "segment_ids": ids.astype(t)}, threads=threads)
            for t in (np.int32, np.int64)
            for threads in (1, 7)
        ]
        runs += [
            quick_run(by_offsets, {**rest, "offsets": ends.astype(t)}, threads=threads)
            for t in (np.int32, np.int64)
            for threads in (1, 7)
        ]
        for found in runs:
            assert all(map(same_bytes, expected, found)), f"{name}: other bytes"
        assert all(not a[~inside].any() for a in expected)


def test_what_is_prepared_for_runs():
    """Choices that bytes do not show."""

    def prepared(name, columns=4):
        case = default(OPS[name], "f32", (40, columns), 0).but(segments=5, is_sorted=True)
        return segment_launch.prepared_for(case.problem)

    forward, backward = prepared("segment_sum"), prepared("segment_softmax_backward")
    assert forward.starts
    assert not forward.table
    assert backward.starts
    assert backward.table
    assert prepared("segment_softmax_backward", 3).table == 0
    assert prepared("segment_softmax_backward", 8).bytes == 0


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 8])
def test_rows_between_offsets_are_spread_as_they_are_by_ids(columns):
    """Runs shorter and longer than a line, empty ones, and rows in front and behind."""
    lengths = [0, 1, 40, 0, 0, 7, 300, 16, 17, 0, 2]
    offsets, rows = np.cumsum([3, *lengths]), 3 + sum(lengths) + 21
    ids = np.full(rows, -1)
    ids[3 : 3 + sum(lengths)] = np.repeat(np.arange(len(lengths)), lengths)
    rng = np.random.default_rng(0)
    dy = rng.standard_normal((len(lengths), columns)).astype(np.float32)
    for given in (dy, np.repeat(dy, 2, axis=1)[:, ::2]):
        for name in ("segment_sum_backward", "segment_mean_backward"):
            backward = getattr(pb, name)
            spread = backward(given, offsets=offsets, num_inputs=rows)
            assert same_bytes(spread, backward(dy, ids, out_of_range="drop")), name


@pytest.mark.parametrize("columns", [1, 2, 3, 8])
@pytest.mark.parametrize("rows", [1, 9, 255, 256, 257, 3000])
def test_gradients_of_extremes_look_for_their_rows(rows, columns):
    """One thread or two, by ids of which some are outside, sorted ones, and offsets."""
    rng, segments = np.random.default_rng(rows), 1 + rows // 10
    x = np.round(2 * rng.standard_normal((rows, columns))).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    ids = np.sort(rng.integers(-1, segments + 1, rows))
    offsets = np.searchsorted(ids, np.arange(segments + 1))
    dy = rng.standard_normal((segments, columns)).astype(np.float32)
    y = pb.segment_max(x, ids, segments, out_of_range="drop")
    own = np.clip(ids, 0, segments - 1)
    holds = (x == y[own]) | (np.isnan(x) & np.isnan(y[own]))
    holds &= ((ids >= 0) & (ids < segments))[:, None]
    counts = np.zeros((segments, columns))
    np.add.at(counts, own, holds)
    expected = np.where(holds, (dy / np.maximum(counts, 1))[own], 0).astype(np.float32)
    order, how = rng.permutation(rows), {"out_of_range": "drop"}
    before = pb.get_num_threads()
    try:
        for threads in (1, 2):
            pb.set_num_threads(threads)
            for given in ({"offsets": offsets}, {"segment_ids": ids, "sorted": True, **how}):
                assert same_bytes(pb.segment_max_backward(dy, input=x, output=y, **given), expected)
            mixed = pb.segment_max_backward(dy, ids[order], input=x[order], output=y, **how)
            assert same_bytes(mixed, expected[order])
    finally:
        pb.set_num_threads(before)
