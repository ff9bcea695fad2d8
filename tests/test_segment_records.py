"""Segment ops computed from their records: folds, saves, gradients and element outputs.

The ops are registered here and compared with NumPy loops over segments. Arithmetic is in float64
and rounded once, so all but those that call exp have the very bits of the loops.
"""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from cells import same_bytes
from machines import assume
from pullback.api.functions import make_function
from pullback.core import parse
from pullback.core.catalog import register, unregister
from pullback.core.declare import Op, Operand, Parameter, Role, Text, Type
from pullback.core.problem import describe
from pullback.core.rows.segment import declare_segment
from pullback.cpu import backend, segment_launch
from pullback.formulas import reduce, scan, softmax
from pullback.formulas.folds import TOTAL, add
from pullback.formulas.primitives import where
from pullback.formulas.record import Monoid, Pass, RowFormula
from pullback.memory.view import view

ROWS, COLUMNS, SEGMENTS = 40, 300, 6  # more columns than a tile has, and a ragged end
EMPTY = 4

IDS = Operand("segment_ids", Role.IDS, Type.INDEX)
OFFSETS = Operand("offsets", Role.OFFSETS, Type.INDEX)
NUM_SEGMENTS = Parameter("num_segments", parse.count, is_positional=True)
HOW = (
    Parameter("sorted", parse.flag, False),
    Parameter("out_of_range", parse.out_of_range, "raise"),
)


def total_and_mean(total, extent):
    return total, total / extent


def place(index, extent):
    return extent - index


def where_masked(x, mask):
    return where(mask, x, 0.0)


def rows_there(extent):
    return extent


COUNT = RowFormula(finish=rows_there)
TWO = RowFormula((Pass(TOTAL),), finish=total_and_mean)
PLACES = RowFormula(apply=place)
SPARE = Text("")


def op(name, direction, reads, writes, record, parameters=(NUM_SEGMENTS, *HOW)):
    return Op(
        name, "segment", name.removesuffix("_backward"), direction, SPARE, reads, writes,
        lambda: record, parameters,
    )  # fmt: skip


X, Y = Operand("input", known_as="x"), Operand("output", known_as="y")
DY, DX = Operand("d_output", known_as="dy"), Operand("d_input", known_as="dx")
ROW_Y = Operand("output", Role.ROW, known_as="y")
MADE = [
    *declare_segment(
        "made_max", SPARE, SPARE, reduce.MAX, reduce.EXTREME_BACKWARD, ("input", "output")
    ),
    *declare_segment("made_mean", SPARE, SPARE, reduce.MEAN, reduce.MEAN_BACKWARD),
    op("made_prod", "forward", (X, IDS), (ROW_Y,), reduce.PROD),
    op("made_softmax", "forward", (X, IDS), (Y,), softmax.SOFTMAX),
    op("made_softmax_backward", "backward", (DY, IDS, Y), (DX,), softmax.SOFTMAX_BACKWARD),
    op("made_two", "forward", (X, IDS), (ROW_Y, Operand("mean", Role.ROW)), TWO),
    op("made_count", "forward", (X, IDS), (ROW_Y,), COUNT),
    op("made_places", "forward", (X, IDS), (Y,), PLACES),
    op("offset_sum", "forward", (X, OFFSETS), (ROW_Y,), reduce.SUM, ()),
    op("offset_softmax", "forward", (X, OFFSETS), (Y,), softmax.SOFTMAX, ()),
    op(
        "offset_sum_backward", "backward", (Operand("d_output", Role.ROW, known_as="dy"), OFFSETS),
        (DX,), reduce.SUM_BACKWARD, (Parameter("num_inputs", parse.count),),
    ),
]  # fmt: skip
OPS = {made.name: made for made in MADE}


@pytest.fixture(scope="module")
def functions():
    for made in MADE:
        register(made)
    yield {made.name: make_function(made) for made in MADE}
    for made in MADE:
        unregister(made.name)


@pytest.fixture(params=["f4", "f8"])
def given(request):
    """Rows with ties, ids out of range at both ends, and a segment without rows.

    float32 comes with unsorted int32 ids, float64 with sorted int64 ones.
    """
    rng = np.random.default_rng(5)
    ids = rng.choice([s for s in range(-2, SEGMENTS + 2) if s != EMPTY], ROWS)
    x = rng.integers(-3, 4, (ROWS, COLUMNS)).astype(request.param) / 4
    is_sorted = request.param == "f8"
    ids = np.sort(ids).astype(np.int64) if is_sorted else ids.astype(np.int32)
    return x, ids, {"sorted": is_sorted, "out_of_range": "drop"}


def by_segment(ids, compute, *tables, segments=SEGMENTS):
    """What ``compute`` gives for the rows of each segment, in float64, one row a segment."""
    wide = [t.astype(np.float64) for t in tables]
    with np.errstate(all="ignore"):
        found = [compute(*(t[ids == s] for t in wide)) for s in range(segments)]
    return np.stack(found).astype(tables[0].dtype)


def by_row(ids, compute, *tables, rows=(), segments=SEGMENTS):
    """What ``compute`` gives for the rows of each segment, a row each; zeros for all others."""
    result = np.zeros((len(ids), COLUMNS), (*tables, *rows)[0].dtype)
    for s in range(segments):
        mine = [t[ids == s].astype(np.float64) for t in tables]
        result[ids == s] = compute(*mine, *(t[s].astype(np.float64) for t in rows))
    return result


def in_order(rows, start, step):
    """A fold of rows one after the other."""
    state = np.full(COLUMNS, start)
    for row in rows:
        state = step(state, row)
    return state


def mean(rows):
    return in_order(rows, 0.0, np.add) / len(rows) if len(rows) else np.full(COLUMNS, np.nan)


def softmax_of(rows):
    if not len(rows):
        return rows
    e = np.exp(rows - rows.max(axis=0))
    return e / e.sum(axis=0)


def test_max_gives_the_extreme_and_the_identity_where_there_is_no_row(functions, given):
    x, ids, how = given
    x[3, 5] = np.nan
    result = functions["made_max"](x, ids, SEGMENTS, **how)
    expected = by_segment(ids, lambda r: in_order(r, -np.inf, np.maximum), x)
    assert np.array_equal(result, expected, equal_nan=True)
    assert np.all(result[EMPTY] == -np.inf)


def winners(rows, y, dy, ties):
    holds = rows == y
    if ties == "split":
        return np.where(holds, dy / np.maximum(holds.sum(axis=0), 1), 0.0)
    if ties == "first":
        holds &= np.cumsum(holds, axis=0) == 1
    return np.where(holds, dy, 0.0)


@pytest.mark.parametrize(
    ("given", "ties"), [("f4", "split"), ("f8", "first"), ("f4", "all")], indirect=["given"]
)
def test_max_backward_reads_what_was_saved(functions, given, ties):
    """Ties are counted, or their places compared, within a segment; "all" needs no fold."""
    x, ids, how = given
    y = functions["made_max"](x, ids, SEGMENTS, **how)
    dy = np.random.default_rng(6).standard_normal(y.shape).astype(x.dtype)
    backward = functions["made_max_backward"]
    result = backward(dy, ids, input=x, output=y, ties=ties, out_of_range="drop")
    expected = by_row(ids, lambda *a: winners(*a, ties), x, rows=(y, dy))
    assert np.array_equal(result, expected)


def test_mean_divides_by_the_rows_of_its_segment(functions, given):
    x, ids, how = given
    result = functions["made_mean"](x, ids, SEGMENTS, **how)
    assert np.array_equal(result, by_segment(ids, mean, x), equal_nan=True)
    dy = np.random.default_rng(6).standard_normal(result.shape).astype(x.dtype)
    dx = functions["made_mean_backward"](dy, ids, out_of_range="drop")
    lengths = [np.sum(ids == s) for s in range(SEGMENTS)]
    expected = np.zeros_like(x)
    for n, s in enumerate(ids):
        if 0 <= s < SEGMENTS:
            expected[n] = dy[s].astype(np.float64) / lengths[s]
    assert np.array_equal(dx, expected)


def test_a_product_leaves_the_range_inside_and_comes_back(functions, given):
    """The state has two components: a mantissa and an exponent."""
    x, ids, how = given
    x = x + 2.125
    (at,) = np.nonzero(ids == 3)
    large = 2.0**700 if x.dtype == np.float64 else 2.0**100
    x[at[:2]], x[at[2:4]] = large, 1 / large
    result = functions["made_prod"](x, ids, SEGMENTS, **how)
    x[at[:4]] = 1.0  # powers of two that cancel, and leave the mantissas alone
    assert np.array_equal(result, by_segment(ids, lambda r: in_order(r, 1.0, np.multiply), x))


def test_softmax_writes_a_value_for_every_row(functions, given):
    x, ids, how = given
    close = {"rtol": 1.2e-7 if x.dtype == np.float32 else 1e-14, "atol": 0}
    y = functions["made_softmax"](x, ids, SEGMENTS, **how)
    assert np.allclose(y, by_row(ids, softmax_of, x), **close)
    outside = (ids < 0) | (ids >= SEGMENTS)
    assert outside.any()
    assert not y[outside].any()
    dy = np.random.default_rng(6).standard_normal(x.shape).astype(x.dtype)
    backward = functions["made_softmax_backward"]
    dx = backward(dy, ids, output=y, num_segments=SEGMENTS, **how)

    def expected_of(dy, y):
        return y * (dy - in_order(y * dy, 0.0, np.add))

    assert np.array_equal(dx, by_row(ids, expected_of, dy, y))


def test_layout_and_threads_do_not_change_a_byte(functions, given, monkeypatch):
    x, ids, how = given
    assume(monkeypatch, l2=0)
    spread_out = np.zeros((ROWS, 2 * COLUMNS), x.dtype)[:, ::-2]
    spread_out[...] = x
    threads = pb.get_num_threads()
    y = functions["made_max"](x, ids, SEGMENTS, **how)
    try:
        for count in (1, 3):
            pb.set_num_threads(count)
            for layout in (x, np.asfortranarray(x), spread_out):
                again = functions["made_max"](layout, ids, SEGMENTS, **how)
                assert same_bytes(again, y)
                dx = functions["made_max_backward"](
                    np.asfortranarray(y), ids, input=layout, output=y, out_of_range="drop"
                )
                probabilities = functions["made_softmax"](layout, ids, SEGMENTS, **how)
                if count == 1 and layout is x:
                    first = dx, probabilities
                assert same_bytes(dx, first[0])
                assert same_bytes(probabilities, first[1])
    finally:
        pb.set_num_threads(threads)


def test_two_outputs_of_which_one_is_wanted(functions):
    x = np.arange(12.0).reshape(6, 2)
    ids = np.array([2, 0, 2, 0, 0, 2])
    total, average = functions["made_two"](x, ids, 3)
    assert np.array_equal(total, [[16.0, 19.0], [0.0, 0.0], [14.0, 17.0]])
    assert np.array_equal(average[[0, 2]], total[[0, 2]] / 3)
    assert np.isnan(average[1]).all()
    problem = describe(OPS["made_two"], "f64", x.shape, {"num_segments": 3}, segments=3)
    alone = np.zeros((3, 2))
    arrays = {"input": x, "segment_ids": ids, "mean": alone}
    backend.SegmentRunner(problem).run({n: view(a, n) for n, a in arrays.items()}, 0, 0, 1)
    assert same_bytes(alone, average)


def test_a_place_counts_within_its_segment(functions):
    """No fold at all: but what a row is given depends on the others of its segment."""
    ids = np.array([1, 0, 1, 5, 1, 0], np.int32)
    rows = np.zeros((6, 1))
    result = functions["made_places"](rows, ids, 2, out_of_range="drop")
    assert result[:, 0].tolist() == [3.0, 2.0, 2.0, 0.0, 1.0, 1.0]
    count = functions["made_count"](rows, ids, 3, out_of_range="drop")
    assert count[:, 0].tolist() == [2.0, 3.0, 0.0]


def of(name, x, how):
    """The problem of an op cut by ids."""
    given = [n for n in OPS[name].optional if n == "segment_ids"]
    return describe(OPS[name], "f32", x.shape, how, given, SEGMENTS)


@pytest.mark.parametrize("given", ["f4"], indirect=True)
def test_the_workspace_is_as_large_as_the_op_says(functions, given):
    x, ids, how = given
    expected = functions["made_softmax"](x, ids, SEGMENTS, **how)
    problem = of("made_softmax", x, how)
    size = segment_launch.workspace_bytes(problem)
    assert size > 0
    workspace = np.full(size // 8 + 4, 77, np.int64)
    result = np.empty_like(x)
    arrays = {"input": x, "segment_ids": ids, "output": result}
    views = {n: view(a, n) for n, a in arrays.items()}
    backend.SegmentRunner(problem).run(views, workspace.ctypes.data, size, 2)
    assert same_bytes(result, expected)
    assert np.all(workspace[-4:] == 77)
    assert np.any(workspace[:-4] != 77)
    needs_none = (
        of("made_softmax", x, {"sorted": True}),
        of("made_max_backward", x, {"ties": "all"}),
    )
    assert [segment_launch.workspace_bytes(p) for p in needs_none] == [0, 0]


def test_ids_are_checked_where_rows_are_written(functions):
    x = np.ones((3, 2))
    with pytest.raises(pb.InvalidProblemError, match=r"segment_ids: .* \[0, 2\), got 7 at row 1"):
        functions["made_softmax"](x, np.array([0, 7, 1]), 2)
    with pytest.raises(pb.InvalidProblemError, match=r"ascending .* got 0 after 1 at row 2"):
        functions["made_softmax"](x, np.array([0, 1, 0]), 2, sorted=True)


def test_offsets_cut_where_they_say(functions):
    """Rows in front of the first offset and behind the last belong to no segment."""
    x = np.random.default_rng(8).standard_normal((9, COLUMNS))
    offsets = np.array([1, 4, 4, 8])
    ids = np.array([-1, 0, 0, 0, 2, 2, 2, 2, -1])
    total = functions["offset_sum"](x, offsets)
    assert same_bytes(total, pb.segment_sum(x, ids, 3, out_of_range="drop"))
    assert same_bytes(total, functions["offset_sum"](x, offsets.astype(np.int32)))
    y = functions["offset_softmax"](x, offsets)
    assert np.allclose(y, by_row(ids, softmax_of, x, segments=3), rtol=1e-14, atol=0)
    dx = functions["offset_sum_backward"](total, offsets, num_inputs=9)
    assert same_bytes(dx, pb.segment_sum_backward(total, ids, out_of_range="drop"))


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 10], r"offsets in \[0, 9\], got 10 at row 1"),
        ([-1, 3], r"offsets in \[0, 9\], got -1 at row 0"),
        ([0, 5, 4], r"ascending order, got 4 after 5 at row 2"),
        ([], r"at least one offset"),
    ],
)
def test_offsets_that_lead_out_of_the_rows_are_refused(functions, offsets, message):
    with pytest.raises(pb.InvalidProblemError, match=message):
        functions["offset_sum"](np.ones((9, 2)), np.array(offsets, np.int64))


def test_what_segment_kernels_do_not_do_is_refused():
    rows, ids = np.ones((2, 2)), np.array([0, 1])
    mask = Operand("mask", type=Type.BOOL)
    masked = RowFormula((Pass(Monoid(where_masked, add, (0.0,), ("total",))),), finish=rows_there)
    by_mask = make_function(op("by_mask", "forward", (X, IDS, mask), (ROW_Y,), masked))
    with pytest.raises(pb.UnsupportedError, match=r"by_mask: mask of type bool"):
        by_mask(rows, ids, rows > 0, 2)
    running = scan.cumsum(exclusive=False, resets=False, reverse=False)
    scanned = make_function(op("scanned", "forward", (X, IDS), (Y,), running))
    with pytest.raises(pb.UnsupportedError, match=r"scanned: .* does not scan"):
        scanned(rows, ids, 2)


def test_the_number_of_segments_is_asked_for_where_results_have_a_row_for_each():
    x, ids = np.ones((2, 2)), np.array([0, 1])
    unknown = op("unknown", "forward", (X, IDS), (ROW_Y,), reduce.SUM, ())
    with pytest.raises(pb.InvalidProblemError, match=r"num_segments: required by unknown"):
        make_function(unknown)(x, ids)
    counted = op("counted", "forward", (X, IDS), (Y,), softmax.SOFTMAX, ())
    assert np.array_equal(make_function(counted)(x, ids), x)
