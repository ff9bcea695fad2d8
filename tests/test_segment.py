"""Segment sums beyond the common grid: shapes, ids, order of addition and memory."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from cells import ELEMENTS, OPS, Fenced, cover, same_bytes
from grid import default
from pullback.cpu.segment_launch import tiles_of
from quick_data import quick_operands, quick_run

FORWARD, BACKWARD = OPS["segment_sum"], OPS["segment_sum_backward"]


@pytest.mark.parametrize("op", [FORWARD, BACKWARD], ids=lambda op: op.name)
def test_in_place_is_refused(op):
    """Rows move to other places, so an output over its input could not come out right."""
    case = default(op, "f32", (6, 5)).but(segments=6)
    given = quick_operands(case)
    first, (written,) = next(iter(given)), op.outputs
    held = Fenced((6, 5), case.dtype, values=given[first])
    before = held.bytes.copy()
    given[first] = held.array
    with pytest.raises(pb.InvalidProblemError, match=rf"^{written}: .*{first}.*overlap"):
        case.run(given, {written: held.array})
    with pytest.raises(pb.InvalidProblemError, match=rf".*{first}.*overlap"):
        case.call(given, held.array)
    assert np.array_equal(held.bytes, before)


@pytest.mark.parametrize("element", ELEMENTS)
def test_sorted_and_unsorted_add_alike(element):
    """Both add the rows of a segment in row order; 1000 rows in one segment, one in another."""
    case = default(FORWARD, element, (1200, 9)).but(segments=8, is_sorted=True)
    given = quick_operands(case)
    ids = np.sort(np.r_[np.full(1000, 3), 4, np.full(199, 6)])
    given["segment_ids"] = ids
    by_order = quick_run(case, given)[0]
    assert same_bytes(by_order, quick_run(case.but(is_sorted=False), given)[0])
    # The same rows at other places but in the same order within their segment.
    rng = np.random.default_rng(3)
    mixed = rng.permutation(ids)
    slots = np.argsort(mixed, kind="stable")
    rows = np.empty_like(given["input"])
    rows[slots] = given["input"]
    shuffled = {"input": rows, "segment_ids": mixed}
    assert same_bytes(by_order, quick_run(case.but(is_sorted=False), shuffled)[0])
    cover(case, "C", "order of rows")


@pytest.mark.parametrize("ids_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("stride", [1, 3, -2])
def test_ids_of_any_stride(ids_dtype, stride):
    case = default(FORWARD, "f64", (40, 6)).but(segments=7)
    given = quick_operands(case)
    expected = quick_run(case, given)[0]
    store = np.full(40 * abs(stride), 99, ids_dtype)
    ids = store[::stride]
    ids[...] = given["segment_ids"]
    assert same_bytes(quick_run(case, {**given, "segment_ids": ids})[0], expected)
    back = case.but(op=BACKWARD)
    gathered = quick_run(back, {"d_output": expected, "segment_ids": ids})[0]
    assert np.array_equal(gathered, expected[given["segment_ids"]])


@pytest.mark.parametrize(
    "shape", [(5,), (5, 3), (5, 3, 2), (5, 3, 1, 2), (5, 0), (0, 4), (5, 2, 0)]
)
def test_functions_take_rows_of_any_shape(shape):
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape)
    ids = rng.integers(0, 4, shape[0])
    expected = np.zeros((4, *shape[1:]))
    np.add.at(expected, ids, x)
    assert np.allclose(pb.segment_sum(x, ids, 4), expected, rtol=1e-14, atol=0)
    dy = rng.standard_normal(expected.shape)
    assert np.array_equal(pb.segment_sum_backward(dy, ids), dy[ids])


def test_rows_whose_dimensions_do_not_merge():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((6, 4, 5)).transpose(0, 2, 1)[:, ::-1]
    ids = rng.integers(0, 3, 6)
    out = Fenced((3, 5, 4), np.dtype(np.float64), "mixed")
    plain = pb.segment_sum(x.copy(), ids, 3)
    assert pb.segment_sum(x, ids, 3, out=out.array) is out.array
    assert out.check() is None
    assert same_bytes(out.array.copy(order="C"), plain)
    wide = Fenced((6, 5, 4), np.dtype(np.float64), "mixed")
    pb.segment_sum_backward(out.array, ids, out=wide.array)
    assert wide.check() is None
    assert np.array_equal(wide.array, plain[ids])


def test_dropped_rows_agree_between_forward_and_backward():
    """The backward is zero exactly at the rows that the forward left out."""
    ids = np.array([-1, 0, 2, 3, 1, 2**40, -(2**40)])
    x = np.ones((7, 3))
    total = pb.segment_sum(x, ids, 3, out_of_range="drop")
    assert total[:, 0].tolist() == [1, 1, 1]
    back = pb.segment_sum_backward(np.ones((3, 3)), ids, out_of_range="drop")
    assert back[:, 0].tolist() == [0, 1, 1, 0, 1, 0, 0]
    ordered = np.sort(ids)
    assert same_bytes(pb.segment_sum(x, ordered, 3, sorted=True, out_of_range="drop"), total)


def test_backward_copies_bits():
    """A gather keeps payloads of NaN and the sign of zero."""
    bits = np.array([0x7FC12345, 0x80000000, 0xFF812345, 0x00000001], np.uint32)
    rows = bits.view(np.float32).reshape(4, 1)
    ids = np.array([3, 1, 0, 2])
    result = pb.segment_sum_backward(rows, ids)
    assert np.array_equal(result.view(np.uint32).ravel(), bits[ids])


def strided(buffer: np.ndarray, shape, strides) -> np.ndarray:
    """A view with strides in elements."""
    steps = [s * buffer.itemsize for s in strides]
    return np.lib.stride_tricks.as_strided(buffer, shape, steps)


def test_columns_that_do_not_merge_overlap_neither_each_other_nor_the_operand():
    """Each pair of columns is in order by itself; the output as a whole is not."""
    rows, ids = np.arange(16.0).reshape(4, 2, 2), np.array([0, 0, 1, 1])
    buffer = np.zeros(64)
    folded = strided(buffer, (2, 2, 2), (8, 0, 1))
    with pytest.raises(pb.InvalidProblemError, match="out: expected an output without overlapping"):
        pb.segment_sum(rows, ids, 2, out=folded)
    with pytest.raises(pb.InvalidProblemError, match="out: expected an output without overlapping"):
        pb.segment_sum_backward(rows[:2], ids[:2], out=folded)
    assert not buffer.any()
    operand = strided(buffer, (4, 2, 2), (8, 3, 1))
    operand[...] = rows
    crossed = strided(buffer[3:], (2, 2, 2), (8, -3, 1))
    before = buffer.copy()
    with pytest.raises(pb.InvalidProblemError, match="out: expected an output apart from input"):
        pb.segment_sum(operand, ids, 2, out=crossed)
    with pytest.raises(pb.InvalidProblemError, match="out: expected an output apart from d_output"):
        pb.segment_sum_backward(operand, ids[:2], out=crossed)
    assert np.array_equal(buffer, before)
    apart = strided(np.zeros(64), (2, 2, 2), (16, 4, 1))
    assert np.array_equal(pb.segment_sum(operand, ids, 2, out=apart), pb.segment_sum(rows, ids, 2))


@pytest.mark.parametrize("dtype", ["i1", "i2", "u1", "u2", "u4", "u8"])
def test_integers_of_any_width_are_widened(dtype):
    x, ids, offsets = np.arange(12.0).reshape(6, 2), np.array([1, 0, 1, 2, 0, 2]), [0, 2, 2, 6]
    narrow = ids.astype(dtype)
    assert same_bytes(pb.segment_sum(x, narrow, 3), pb.segment_sum(x, ids, 3))
    wide, cut = (np.array(offsets, t) for t in ("i8", dtype))
    assert same_bytes(pb.segment_sum(x, offsets=cut), pb.segment_sum(x, offsets=wide))
    # The largest unsigned number is out of range; as a signed one it would be -1.
    narrow[2] = np.iinfo(dtype).max
    for wrong in ({"segment_ids": narrow, "num_segments": 3}, {"offsets": narrow}):
        with pytest.raises(pb.InvalidProblemError, match=rf"^{next(iter(wrong))}: .* got [1-9]"):
            pb.segment_sum(x, **wrong)
    dropped = pb.segment_sum(x, narrow, 3, out_of_range="drop")
    assert dropped[1].tolist() == x[0].tolist()
    if dtype[0] == "u":
        with pytest.raises(pb.InvalidProblemError, match=r"^target: expected positions"):
            pb.cross_entropy(x, narrow, ignore_index=-1)


@pytest.mark.parametrize("kind", ["segment_sum", "segment_mean", "segment_max", "segment_min"])
def test_tiles_give_the_bytes_of_sorted_rows(kind):
    """Rows in any order are folded in tiles; 27 columns are more than one of them."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((300, 27)).astype(np.float32)
    ids = rng.integers(-1, 12, 300)
    ids[ids == 7] = 3  # nothing is left in segment 7
    problem = default(OPS[kind], "f32", x.shape).but(segments=11).problem
    assert tiles_of(problem, 2).count > 1
    order = np.argsort(ids, kind="stable")
    how = {"num_segments": 11, "out_of_range": "drop"}
    expected = getattr(pb, kind)(x[order], ids[order], sorted=True, **how)
    before = pb.get_num_threads()
    try:
        for threads in (1, 2):
            pb.set_num_threads(threads)
            assert same_bytes(getattr(pb, kind)(x, ids, **how), expected)
    finally:
        pb.set_num_threads(before)


@pytest.mark.parametrize("columns", [64, 70, 300])
@pytest.mark.parametrize("kind", ["segment_sum", "segment_prod", "segment_softmax"])
def test_rows_in_order_give_the_bytes_of_sorted_rows(kind, columns):
    """Of packed columns 64 are folded at a time; rows are asked for some rows before."""
    rng = np.random.default_rng(6)
    x = rng.standard_normal((150, columns)).astype(np.float32)
    if kind == "segment_prod":  # out of the range of a float64 on the way
        x *= np.where(np.arange(150) < 75, np.float32(1e37), np.float32(1e-37))[:, None]
    ids = rng.integers(-1, 12, 150)
    ids[ids == 7] = 3  # nothing is left in segment 7
    order = np.argsort(ids, kind="stable")
    how = {"num_segments": 11, "out_of_range": "drop"}
    function = getattr(pb, kind)
    expected = function(x[order], ids[order], sorted=True, **how)
    if kind == "segment_softmax":
        expected = expected[np.argsort(order)]
    before = pb.get_num_threads()
    try:
        for threads in (1, 2):
            pb.set_num_threads(threads)
            assert same_bytes(function(x, ids, **how), expected)
    finally:
        pb.set_num_threads(before)
    wide = np.zeros((150, 2 * columns), np.float32)
    wide[:, ::2] = x
    assert same_bytes(function(wide[:, ::2], ids, **how), expected)


@pytest.mark.parametrize("kind", ["segment_max_backward", "segment_softmax_backward"])
def test_gradients_of_packed_rows_are_those_of_others(kind):
    """Of packed columns 64 are written at a time, with what is known of the segment at hand."""
    rng = np.random.default_rng(9)
    x = rng.integers(0, 4, (150, 134)).astype(np.float32)
    ids = rng.integers(0, 11, 150)
    if kind == "segment_max_backward":
        given = {"input": x, "output": pb.segment_max(x, ids, 11)}
        dy = rng.standard_normal((11, 134)).astype(np.float32)
    else:
        given = {"y": pb.segment_softmax(x, ids, 11)}
        dy = rng.standard_normal(x.shape).astype(np.float32)
    expected = getattr(pb, kind)(dy, ids, **given)
    wide = {n: np.repeat(a, 2, axis=1)[:, ::2] for n, a in given.items()}
    assert same_bytes(getattr(pb, kind)(np.repeat(dy, 2, axis=1)[:, ::2], ids, **wide), expected)
    assert expected.any()


def test_the_second_call_is_as_careful_as_the_first():
    """Packed arrays go a shorter way once a call like it is known."""
    rng = np.random.default_rng(7)
    x, ids = rng.standard_normal((40, 6)).astype(np.float32), rng.integers(0, 5, 40)
    out = np.zeros((5, 6), np.float32)
    expected = pb.segment_sum(x, ids, 5)
    for other in (ids, ids.astype(np.int32), np.repeat(ids, 2)[::2], ids.astype(np.uint8)):
        assert same_bytes(pb.segment_sum(x, other, 5), expected)
        assert pb.segment_sum(x, other, 5, out=out) is out
        assert same_bytes(out, expected)
    wrong = ids.copy()
    wrong[9] = 5
    dropped = [
        pb.segment_sum(x, kind(wrong), 5, out_of_range="drop")
        for kind in (np.int64, np.int64, np.int32)
    ]
    assert same_bytes(dropped[0], pb.segment_sum(np.delete(x, 9, 0), np.delete(ids, 9), 5))
    assert same_bytes(dropped[0], dropped[1])
    assert same_bytes(dropped[0], dropped[2])
    out[:] = 7
    with pytest.raises(pb.InvalidProblemError, match=r"^segment_ids: .* got 5 at row 9"):
        pb.segment_sum(x, wrong, 5, out=out)
    with pytest.raises(pb.InvalidProblemError, match=r"^out: .* overlaps"):
        pb.segment_sum(x, ids, 5, out=x[:5])
    out.flags.writeable = False
    with pytest.raises(pb.InvalidProblemError, match=r"^out: .* read-only"):
        pb.segment_sum(x, ids, 5, out=out)
    assert (out == 7).all()
    # As many segments as there are ids, which is for each call to say.
    for last in (4, 9, 2):
        given = np.minimum(np.arange(40), last)
        assert np.allclose(pb.segment_softmax(x, given).sum(0), last + 1)


def test_a_plan_in_a_workspace():
    rng = np.random.default_rng(8)
    x, ids = rng.standard_normal((900, 40)).astype(np.float32), rng.integers(0, 50, 900)
    problem = {"num_inputs": 900, "embedding_dim": 40, "num_segments": 50, "element": "f32"}
    plan = pb.UnsortedSegmentSumPlan.select(pb.UnsortedSegmentSumDescriptor(**problem))
    size, expected = plan.workspace_size, pb.segment_sum(x, ids, 50)
    room = np.full(size // 8 + 8, 77, np.int64)
    workspace, out = room[4 : 4 + size // 8], np.zeros((50, 40), np.float32)
    plan.run(input=x, segment_ids=ids, output=out, workspace=workspace)
    assert same_bytes(out, expected)
    assert (np.r_[room[:4], room[4 + size // 8 :]] == 77).all()
    assert (workspace != 77).any()
    out[:] = 7
    operands = {"input": x, "segment_ids": ids, "output": out}
    with pytest.raises(pb.WorkspaceTooSmallError):
        plan.run(**operands, workspace=workspace[:-1])
    with pytest.raises(pb.InvalidProblemError, match=r"^workspace: .* apart from input"):
        plan.run(**operands, workspace=x.reshape(-1))
    workspace.flags.writeable = False
    with pytest.raises(pb.InvalidProblemError, match=r"^workspace: "):
        plan.run(**operands, workspace=workspace)
    assert (out == 7).all()
