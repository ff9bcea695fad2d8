"""Ops of other shapes than the catalog's on the Triton backend: on a GPU, or in the interpreter.

The declarations are those that the CPU's tests have: operands of other types, states in front of a
row and behind it, several outputs, borders, segments with passes and saves. Results are compared
with plain loops, and with the formulas run on whole arrays in float64.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

import loops
import new_ops
import pullback as pb
import test_meaning as meaning
import test_segment_records as records
import triton_declared as declared
from pullback.api.plan import Runnable
from pullback.core.declare import Operand, Type
from pullback.core.problem import Problem, describe
from pullback.formulas.arrays import evaluate
from pullback.formulas.folds import TOTAL
from pullback.formulas.primitives import where
from pullback.formulas.record import Pass, RowFormula, ScanFormula
from pullback.gpu import launch, segment
from pullback.gpu.tiles import RunTiles, SegmentTile, Tile
from pullback.memory.view import view

if os.environ.get("TRITON_INTERPRET") == "1":
    import triton_interpreter

    triton_interpreter.install()
    DEVICE = "cpu"
elif torch.cuda.is_available():
    DEVICE = "cuda"
else:
    pytest.skip("neither a GPU nor TRITON_INTERPRET=1", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
ON_TRITON = pb.PlanPreference(backend="triton")
FLOATS = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16}
NUMPY = {"f32": np.float32, "f64": np.float64, "f16": np.float16}


def on_triton(problem: Problem, operands: dict[str, np.ndarray], skip=()) -> tuple:
    """The outputs of a problem; those that are skipped are None."""
    tensors = {
        o.name: operands[o.name]
        if isinstance(operands[o.name], torch.Tensor)
        else torch.from_numpy(np.array(operands[o.name], order="C")).to(DEVICE)
        for o in problem.reads
        if o.name in operands
    }
    outputs = {}
    for o in problem.op.writes:
        kind = {Type.STATE: torch.float64, Type.BOOL: torch.bool, Type.INDEX: torch.int64}
        dtype = kind.get(o.type, FLOATS[problem.element])
        if o.name not in skip:
            outputs[o.name] = torch.empty(problem.shape_of(o.name), dtype=dtype, device=DEVICE)
            outputs[o.name].fill_(77)
    runnable = Runnable(problem, ON_TRITON)
    views = {n: view(t, n) for n, t in {**tensors, **outputs}.items()}
    runnable.check({n: v for n, v in views.items() if n in runnable.reads or n in outputs})
    runnable.runner.run(views, None, None)
    return tuple(outputs[n].cpu().numpy() if n in outputs else None for n in problem.op.outputs)


# Sums are at most a few thousand long here: a tree, and blocks in turn.
NEAR = {"f32": 3e-6, "f64": 1e-13, "f16": 2e-3}


def near(element: str) -> dict[str, float]:
    return {"rtol": NEAR[element], "atol": NEAR[element]}


# By rows and by columns, whole, in blocks, and in chunks that programs share.
TILES = {
    "as chosen": None,
    "blocks": Tile(2, 16, 1, 1 << 20, 1),
    "chunks": Tile(2, 16, 1, 32, 3),
}


@pytest.fixture(params=TILES)
def tiles(request, monkeypatch):
    """Tiles that cut an axis of 75 as the name says."""
    if TILES[request.param] is not None:
        monkeypatch.setattr(launch, "choose_tile", lambda *a, **k: TILES[request.param])
    return request.param


@pytest.mark.parametrize(
    ("shape", "axis", "element", "reverse"),
    [
        ((3, 75), 1, "f64", False),
        ((3, 75), 1, "f32", True),
        ((75, 3), 0, "f64", True),
        ((75, 3), 0, "f32", False),
        ((2, 75, 2), 1, "f64", False),
    ],
)
def test_a_recurrence_with_states(shape, axis, element, reverse, tiles):
    """Two inputs, three gradients, a float64 state in front and behind; states of f32 too."""
    rng = np.random.default_rng(1)
    row = tuple(1 if k == axis else n for k, n in enumerate(shape))
    a = rng.uniform(-1, 1, shape)
    b, dy = rng.standard_normal((2, *shape))
    initial, d_final = rng.standard_normal((2, *row))
    dtype = NUMPY[element]
    given = {"a": a.astype(dtype), "b": b.astype(dtype), "initial": initial}
    forward = Problem(new_ops.BY_NAME["two_step"], element, shape, (axis,), reverse=reverse)
    y, final = on_triton(forward, given)
    flat = initial.squeeze(axis)
    exact_y, exact_final = loops.by_loop(given["a"], given["b"], flat, axis, reverse)
    np.testing.assert_allclose(y, exact_y, **near(element))
    np.testing.assert_allclose(final.squeeze(axis), exact_final, **near(element))
    saves = {"a": given["a"], "y": y, "initial": initial.astype(dtype), "d_final": d_final}
    backward = Problem(
        new_ops.BY_NAME["two_step_backward"], element, shape, (axis,), reverse=reverse
    )
    found = on_triton(backward, {"dy": dy.astype(dtype), **saves})
    exact = loops.backward_by_loop(
        dy.astype(dtype), saves["a"], y, saves["initial"].squeeze(axis).astype(np.float64),
        d_final.squeeze(axis), axis, reverse,
    )  # fmt: skip
    for got, want in zip(found, exact, strict=True):
        np.testing.assert_allclose(got.squeeze(), np.squeeze(want), **near(element))


def test_a_recurrence_backward_in_place(tiles):
    """Where a gradient is laid on what the next position looks back at."""
    problem = Problem(new_ops.BY_NAME["two_step_backward"], "f64", (2, 75), (1,))
    rng = np.random.default_rng(2)
    given = {n: torch.from_numpy(rng.standard_normal((2, 75))).to(DEVICE) for n in ("dy", "a", "y")}
    given |= {
        n: torch.ones(2, 1, dtype=torch.float64, device=DEVICE) for n in ("initial", "d_final")
    }
    expected = on_triton(problem, {n: t.cpu().numpy() for n, t in given.items()})
    outputs = {"da": given["y"], "db": given["dy"], "d_initial": given["d_final"]}
    views = {n: view(t, n) for n, t in {**given, **outputs}.items()}
    runnable = Runnable(problem, ON_TRITON)
    runnable.check(views)
    runnable.runner.run(views, None, None)
    for tensor, want in zip(outputs.values(), expected, strict=True):
        np.testing.assert_allclose(tensor.cpu().numpy(), want, rtol=1e-13, atol=1e-13)


def test_a_softmax_with_a_mask(tiles):
    """A mask of any strides, broadcast ones too; what it hides may be NaN. Types go by tiles."""
    rng = np.random.default_rng(3)
    element = dict(zip(TILES, NUMPY, strict=True))[tiles]
    dtype = NUMPY[element]
    x = rng.standard_normal((3, 75)).astype(dtype)
    mask = rng.random((3, 75)) < 0.6
    mask[0] = False
    for axis, given, flags in ((1, x, mask), (0, x.T.copy(), mask.T.copy())):
        given[~flags] = np.nan
        problem = Problem(new_ops.BY_NAME["picky_softmax"], element, given.shape, (axis,), (True,))
        (exact,) = evaluate(problem, {"x": given, "mask": flags})
        exact = np.nan_to_num(exact)
        for held in (
            torch.from_numpy(flags).to(DEVICE),
            torch.from_numpy(flags.T.copy()).to(DEVICE).T,
            torch.from_numpy(np.repeat(flags, 2, 1)).to(DEVICE)[:, ::2],
        ):
            (y,) = on_triton(problem, {"x": given, "mask": held})
            np.testing.assert_allclose(y, exact, **near(element))
    one_row = torch.from_numpy(mask[1:2]).to(DEVICE).expand(3, 75)
    problem = Problem(new_ops.BY_NAME["picky_softmax"], element, x.shape, (1,), (True,))
    x[np.isnan(x)] = 0
    (exact,) = evaluate(problem, {"x": x, "mask": np.broadcast_to(mask[1:2], x.shape)})
    (y,) = on_triton(problem, {"x": x, "mask": one_row})
    np.testing.assert_allclose(y, exact, **near(element))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_reduction_with_two_outputs(axis, tiles):
    x = np.random.default_rng(4).standard_normal((75, 3) if axis == 0 else (3, 75))
    problem = Problem(new_ops.BY_NAME["mean_and_total"], "f64", x.shape, (axis,))
    mean, total = on_triton(problem, {"x": x})
    np.testing.assert_allclose(mean, x.mean(axis, keepdims=True), rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(total, x.sum(axis, keepdims=True), rtol=1e-13, atol=1e-12)
    none, alone = on_triton(problem, {"x": x}, skip=("mean",))
    assert none is None
    assert np.array_equal(alone, total)


# The names that formulas may ask for, as the tests of their meaning write them down.


@pytest.fixture
def evaluator(monkeypatch):
    monkeypatch.setitem(meaning.EVERYWHERE, "triton", on_triton)
    return "triton"


SMALL = {"whole": None, "blocks": Tile(2, 2, 1, 1 << 10, 1), "chunks": Tile(2, 2, 1, 2, 2)}


@pytest.mark.parametrize("cut", SMALL)
@pytest.mark.parametrize("axis", [1, 0])
def test_names(evaluator, axis, cut, monkeypatch):
    """index, first, NAME_before and borders, of bool operands too; numbers show the order."""
    if SMALL[cut] is not None:
        monkeypatch.setattr(launch, "choose_tile", lambda *a, **k: SMALL[cut])
    for scan in meaning.SCANS:
        meaning.test_names_of_a_scan(evaluator, scan, axis)
    for ways in meaning.TWO_WAYS:
        meaning.test_names_of_a_scan_with_a_prefix(evaluator, ways, axis)


def at_each(index, first, x_before, total, extent):
    return index, where(first, 1.0, 0.0), x_before, total, extent


@pytest.mark.parametrize("axis", [1, 0])
def test_names_of_rows(axis, tiles):
    """A fold does not tell the order of its elements here, as that of a tile is the compiler's."""
    names = ("index", "first", "x_before", "total", "extent")
    op = meaning.made_up(RowFormula((Pass(TOTAL),), apply=at_each), names)
    x = np.arange(1.0, 226.0).reshape(3, 75)
    places = np.broadcast_to(np.arange(75.0), x.shape)
    behind = np.concatenate([np.zeros((3, 1)), x[:, :-1]], 1)
    total = np.broadcast_to(x.sum(1, keepdims=True), x.shape)
    expected = (places, places == 0, behind, total, np.full(x.shape, 75.0))
    given = x if axis else x.T
    found = on_triton(Problem(op, "f64", given.shape, (axis,)), {"x": given})
    for got, want in zip(found, expected, strict=True):
        assert np.array_equal(got if axis else got.T, want)


def test_index_counts_over_several_axes():
    op = meaning.made_up(RowFormula((Pass(TOTAL),), apply=at_each), ("i", "f", "b", "t", "e"))
    x = np.arange(12.0).reshape(2, 3, 2)
    index, first, before, *_ = on_triton(Problem(op, "f64", x.shape, (0, 2)), {"x": x})
    for k in range(3):
        assert index[:, k].tolist() == [[0.0, 1.0], [2.0, 3.0]]
        assert first[:, k].tolist() == [[1.0, 0.0], [0.0, 0.0]]
        assert before[:, k].tolist() == [[0.0, 2.0 * k], [2.0 * k + 1, 2.0 * k + 6]]


@pytest.mark.parametrize("border", [0.0, 1.0])
def test_neighbours(border, tiles):
    """Across blocks and chunks, from both ends; a border of a bool operand."""
    n = 75
    rows = np.arange(3.0 * n).reshape(3, n)
    mask = rows % 3 == 0
    given = {"x": rows, "mask": mask, "start": np.zeros((3, 1))}
    for against, reverse in ((bool(border), False), (not border, True)):
        before = (("x", 0.5), ("mask", border))
        record = ScanFormula(meaning.DIGITS, meaning.beside, True, against, before=before)
        op = meaning.made_up(record, ("y",))
        (found,) = on_triton(Problem(op, "f64", (3, n), (1,), reverse=reverse), given)
        expected = np.where(mask, -rows, rows)
        edge = np.full((3, 1), -0.5 if border else 0.5)
        parts = (expected[:, 1:], edge) if reverse else (edge, expected[:, :-1])
        assert np.array_equal(found, np.concatenate(parts, 1)), (against, reverse)


# Exclusive scans with resets, integer targets, a weight array, outputs of other types.


@pytest.mark.parametrize("axis", [1, 0])
def test_an_exclusive_scan_with_resets(axis, tiles):
    rng = np.random.default_rng(5)
    x, resets = rng.standard_normal((3, 75)), rng.random((3, 75)) < 0.1
    x[:, 40], resets[:, 41] = np.inf, True
    expected = np.zeros_like(x)
    for r in range(3):
        total = 0.0
        for t in range(75):
            expected[r, t] = total = 0.0 if resets[r, t] else total
            total += x[r, t]
    given = {"x": x, "resets": resets}
    given = given if axis else {n: a.T for n, a in given.items()}
    problem = Problem(declared.EXCLUSIVE, "f64", given["x"].shape, (axis,))
    (found,) = on_triton(problem, given)
    np.testing.assert_allclose(found if axis else found.T, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("target_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("axis", [1, 0])
def test_an_integer_operand_and_outputs_of_every_type(axis, target_dtype, tiles):
    rng = np.random.default_rng(6)
    logits = rng.standard_normal((4, 75)).astype(np.float32)
    target = np.array([[3], [74], [-100], [0]], target_dtype)
    wide = logits.astype(np.float64)
    lse = np.log(np.exp(wide).sum(1, keepdims=True))
    known = np.where(target < 0, 0, target).astype(np.int64)
    loss = np.where(target < 0, 0, lse - np.take_along_axis(wide, known, 1))
    given = {"logits": logits, "target": target}
    given = given if axis else {n: a.T for n, a in given.items()}
    problem = describe(declared.CROSS_ENTROPY, "f32", given["logits"].shape, {"axis": axis})
    found = [a if axis else a.T for a in on_triton(problem, given)]
    np.testing.assert_allclose(found[0], loss, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found[1], np.where(target < 0, 0, lse), rtol=1e-6)
    assert found[1].dtype == np.float64
    assert np.array_equal(found[2], target < 0)
    assert np.array_equal(found[3], target)


def test_a_pointwise_op_with_an_array_for_a_weight():
    rng = np.random.default_rng(7)
    dy, a, b, weight = rng.standard_normal((4, 5, 7))
    held = {"a": a, "b": b, "weight": weight}
    (y,) = on_triton(Problem(declared.MIX, "f64", (5, 7), (0, 1)), held)
    assert np.array_equal(y, a + weight * (b - a))
    found = on_triton(Problem(declared.MIX_BACKWARD, "f64", (5, 7), (0, 1)), {"dy": dy, **held})
    for got, want in zip(found, declared.mixed_backward(dy, a, b, weight), strict=True):
        assert np.array_equal(got, np.broadcast_to(want, dy.shape))


# Segments.

RUNS = {
    "as chosen": None,
    "hubs": RunTiles(SegmentTile(8, 4, 1), SegmentTile(4, 4, 1), 4),
}


@pytest.fixture(params=RUNS)
def runs(request, monkeypatch):
    """Tiles by which segments of more than four rows are cut."""
    if RUNS[request.param] is not None:
        monkeypatch.setattr(segment, "choose_run_tiles", lambda *a: RUNS[request.param])
    return request.param


ROWS, COLUMNS, SEGMENTS = 61, 5, 7


def segment_data(name: str, is_sorted: bool):
    """Rows with ties, ids out of range at both ends, a hub, and segments without rows."""
    rng = np.random.default_rng(8)
    ids = rng.choice([-2, 0, 0, 0, 1, 2, 5, 6, SEGMENTS, SEGMENTS + 1], ROWS)
    ids = np.sort(ids) if is_sorted else ids
    x = rng.integers(-3, 4, (ROWS, COLUMNS)) / 4 + (0.125 if "prod" in name else 0)
    known = {"input": x, "segment_ids": ids.astype(np.int32 if is_sorted else np.int64)}
    known["offsets"] = np.array([2, 9, 9, 40, 41, 55, 58, 60])
    known["d_output"] = rng.standard_normal((SEGMENTS, COLUMNS))
    known["output"] = np.zeros((SEGMENTS, COLUMNS))
    return known


def segment_problem(op, element, shape, parameters, segments) -> Problem:
    """Cut by ids where an op may be cut by either."""
    ids = tuple(n for n in op.optional if n == "segment_ids")
    return describe(op, element, shape, parameters, ids, segments)


@pytest.mark.parametrize("name", records.OPS)
def test_segments(name, runs):
    """Every record: folds of one number and several, saves, gradients, places, offsets.

    By turns the ids are sorted where segments are cut, or where they are not.
    """
    op = records.OPS[name]
    is_sorted = (list(records.OPS).index(name) + list(RUNS).index(runs)) % 2 == 0
    known = segment_data(name, is_sorted)
    for element in ("f64",) if is_sorted else ("f32",):
        dtype = NUMPY[element]
        for ties in op.ties or (None,):
            parameters = {"sorted": is_sorted, "out_of_range": "drop", "ties": ties}
            problem = segment_problem(op, element, (ROWS, COLUMNS), parameters, SEGMENTS)
            given = {o.name: known[o.name] for o in problem.reads}
            if name == "made_max_backward":
                shape, maximum = (ROWS, COLUMNS), records.OPS["made_max"]
                maximum = segment_problem(maximum, element, shape, parameters, SEGMENTS)
                (given["output"],) = evaluate(maximum, known)
            if name == "made_softmax_backward":
                given |= {"d_output": known["input"][::-1], "output": known["input"]}
            floats = {o.name for o in op.reads if o.type is Type.ELEMENT}
            given = {n: a.astype(dtype) if n in floats else a for n, a in given.items()}
            with np.errstate(all="ignore"):
                exact = evaluate(problem, given)
            for got, want in zip(on_triton(problem, given), exact, strict=True):
                np.testing.assert_allclose(got, want, **near(element), err_msg=f"{name} {ties}")


def test_segments_with_operands_of_other_types(runs):
    """A bool operand for every row, one for every segment, what comes before within a segment."""
    op, rng = declared.MASKED_SEGMENTS, np.random.default_rng(9)
    for is_sorted in (True, False):
        known = segment_data("masked", is_sorted)
        known["input"] += 2.0
        known |= {"mask": rng.random((ROWS, COLUMNS)) < 0.5, "scale": 1 + known["d_output"] ** 2}
        parameters = {"sorted": is_sorted, "out_of_range": "drop"}
        problem = describe(op, "f64", (ROWS, COLUMNS), parameters, segments=SEGMENTS)
        given = {o.name: known[o.name] for o in op.reads}
        exact, flag = evaluate(problem, given)
        found, flags = on_triton(problem, given)
        np.testing.assert_allclose(found, exact, **near("f64"))
        assert np.array_equal(flags, flag)


def test_segments_have_the_same_bits_wherever_they_lie(monkeypatch):
    """The chunks of a long segment count from its own start."""
    monkeypatch.setattr(segment, "choose_run_tiles", lambda *a: RUNS["hubs"])
    x = np.random.default_rng(10).standard_normal((40, 3)).astype(np.float32)
    found = []
    for front in (0, 1, 2, 3, 5):
        ids = np.concatenate([np.zeros(front, np.int64), np.ones(30, np.int64)])
        rows = np.concatenate([x[:front], x[:30]])
        op = records.OPS["made_mean"]
        problem = segment_problem(op, "f32", rows.shape, {"sorted": True}, 2)
        (mean,) = on_triton(problem, {"input": rows, "segment_ids": ids})
        found.append(mean[1].tobytes())
    assert len(set(found)) == 1


def test_scans_of_segments_are_refused():
    scanned = records.op(
        "scanned", "forward", (records.X, records.IDS), (records.Y,), new_ops.RECURRENCE
    )
    problem = describe(scanned, "f32", (4, 2), {}, segments=2)
    with pytest.raises(pb.UnsupportedError, match=r"scanned: .* does not scan"):
        Runnable(problem, ON_TRITON)


def test_rows_that_look_back_are_not_computed_in_place():
    record = RowFormula((Pass(TOTAL),), apply=meaning.beside)
    op = replace(
        meaning.made_up(record, ("y",)), reads=(Operand("x"), Operand("mask", type=Type.BOOL))
    )
    problem = Problem(op, "f64", (2, 8), (1,))
    x = torch.ones(2, 8, dtype=torch.float64, device=DEVICE)
    mask = torch.ones(2, 8, dtype=torch.bool, device=DEVICE)
    views = {n: view(t, n) for n, t in {"x": x, "mask": mask, "out_y": x}.items()}
    with pytest.raises(pb.UnsupportedError, match="cannot be computed in place"):
        Runnable(problem, ON_TRITON).runner.run(views, None, None)
