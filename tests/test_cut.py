"""Every op cut at random places has the bytes of the uncut op, forward and backward."""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import numpy as np
import pytest

import pullback as pb
from cells import same_bytes
from pullback.core.catalog import OPS
from pullback.core.declare import Role
from pullback.cut import Cut, Piece, SegmentCut, evaluate, from_rows, moves, settled, to_rows
from pullback.errors import InvalidProblemError
from pullback.tools.case import Case
from pullback.tools.operands import make_operands

# Longer than two blocks, and not a multiple of one.
SCAN, ROW = 1400, 9000
# What selects other records: neighbours, states at both ends, borders, places, masks.
VARIANTS: list[tuple[str, str, dict[str, Any]]] = [
    ("cumsum", "bf16", {"reverse": True}),
    ("sum", "f16", {}),
    ("softmax", "f64", {}),
    ("softmax", "f32", {"given": ("where",)}),
    ("max_backward", "f32", {"ties": "last"}),
    ("logcumsumexp_backward", "f32", {"reverse": True, "given": ("resets",)}),
    ("linear_recurrence", "f32", {"given": ("initial",), "return_final": True}),
    ("linear_recurrence_backward", "f32", {"given": ("initial", "d_final")}),
    ("segment_max_backward", "f32", {"ties": "first"}),
    ("segment_softmax", "f32", {"given": ("offsets",)}),
]


def random_bounds(rng: np.random.Generator, extent: int) -> list[int]:
    """Some pieces are shorter than a block, some are empty."""
    some = rng.integers(0, extent + 1, 3).tolist()
    near = min(extent, some[0] + int(rng.integers(0, 20)))
    return [0, *sorted([*some, near]), extent]


def taken(name: str, case: Case, array: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Positions of an operand; of a table, rows."""
    role = case.role(name)
    if case.is_segmented:
        return array[start:stop] if role in (Role.ELEMENT, Role.IDS) else array
    return array[..., start:stop] if role is Role.ELEMENT else array


def on_grid(case: Case, cut: Any, parts: list[dict], bounds: list[int], grid: Any) -> list[Piece]:
    """Pieces on the grid, of what parts between bounds hold and what moves between them."""
    incoming = moves(bounds, grid)
    pieces = []
    for k, (start, stop) in enumerate(itertools.pairwise(grid)):
        operands = {}
        low, high = max(start, bounds[k]), min(stop, bounds[k + 1])
        own = [(low, high, k)] if low < high else []
        sources = sorted([*own, *((m.start, m.stop, m.source) for m in incoming if m.target == k)])
        for name, whole in parts[k].items():
            if case.role(name) is not Role.ELEMENT:
                operands[name] = whole
                continue
            held = [
                parts[source][name][..., first - bounds[source] : last - bounds[source]]
                for first, last, source in sources
            ]
            operands[name] = np.concatenate(held, -1) if held else whole[..., :0]
        pieces.append(Piece(operands, start, {}, stop - start))
    reverse = case.problem.reverse
    order = list(reversed(pieces)) if reverse else list(pieces)
    found, before = [], {}
    for piece in order:
        found.append(Piece(piece.operands, piece.start, before, piece.length))
        if cut.rows_of(piece)[1]:
            before = cut.edge(piece)
    return list(reversed(found)) if reverse else found


def cut_results(case: Case, operands: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The results of an op that was cut along its axis at random places."""
    problem = case.problem
    if case.is_segmented:
        bounds = random_bounds(rng, case.shape[0])
        pairs = list(itertools.pairwise(bounds))
        pieces = [
            Piece({n: taken(n, case, a, *p) for n, a in operands.items()}, p[0], {}, p[1] - p[0])
            for p in pairs
        ]
        outputs, rows = evaluate(SegmentCut(problem), pieces)
        joined = {n: np.concatenate([o[n] for o in outputs]) for n in outputs[0]}
        return joined | rows
    cut = Cut(problem)
    bounds = random_bounds(rng, case.extent)
    whole = {n: to_rows(problem, n, a) for n, a in operands.items()}
    parts = [
        {n: taken(n, case, a, start, stop) for n, a in whole.items()}
        for start, stop in itertools.pairwise(bounds)
    ]
    grid = settled(cut, bounds)
    outputs, rows = evaluate(cut, on_grid(case, cut, parts, bounds, grid))
    found = {n: np.concatenate([o[n] for o in outputs], -1) for n in outputs[0]} | rows
    lengths = tuple(case.shape[a] for a in case.axes)
    return {n: from_rows(problem, n, a, lengths) for n, a in found.items()}


def check(case: Case) -> None:
    rng = np.random.default_rng(zlib.crc32(str(case).encode()))
    operands = make_operands(case)
    expected = case.results(operands)
    found = cut_results(case, operands, rng)
    assert {*found} >= {*expected}
    for name, value in expected.items():
        assert same_bytes(found[name], value), name


def shape_of(op: pb.Op) -> tuple[int, ...]:
    if op.parameter("axis") is None:
        return (60, 9)
    one = Case.of(op, "f32", (3, 8))
    return (3, SCAN if one.problem.reverse or hasattr(one.formula, "against") else ROW)


@pytest.mark.parametrize("name", [op.name for op in OPS.values()])
def test_a_cut_op_has_the_bytes_of_the_uncut_one(name: str) -> None:
    op = OPS[name]
    check(Case.of(op, "f32", shape_of(op), **({"axis": -1} if op.parameter("axis") else {})))


@pytest.mark.parametrize(("name", "element", "how"), VARIANTS)
def test_cut_with_parameters_and_other_elements(name: str, element: str, how: dict) -> None:
    op = OPS[name]
    check(Case.of(op, element, shape_of(op), **how))


@pytest.mark.parametrize("name", ["cumsum", "sum_backward", "softmax"])
def test_a_cut_along_another_axis_leaves_rows_alone(name: str) -> None:
    op = OPS[name]
    case = Case.of(op, "f32", (5, 700), axis=-1)
    operands = make_operands(case)
    expected = case.results(operands)
    for part in (slice(0, 2), slice(2, 5)):
        cut = Cut(case.problem)
        rows = {n: to_rows(case.problem, n, a[part]) for n, a in operands.items()}
        (outputs,), more = evaluate(cut, [Piece(rows, length=700)])
        for n, found in (outputs | more).items():
            assert same_bytes(from_rows(case.problem, n, found, (700,)), expected[n][part])


def test_axes_that_are_one_are_cut_in_their_order() -> None:
    case = Case.of(OPS["sum"], "f32", (130, 4, 90), axis=(0, 2))
    check(case)


def test_a_cut_down_columns_has_the_same_bytes() -> None:
    check(Case.of(OPS["cumsum"], "f32", (SCAN, 16), axis=0))


def test_the_grid_is_near() -> None:
    op = OPS["cumsum"]
    for reverse in (False, True):
        cut = Cut(Case.of(op, "f32", (2000,), reverse=reverse).problem)
        bounds = (0, 5, 300, 301, 1999, 2000)
        grid = settled(cut, bounds)
        assert grid[0] == 0
        assert grid[-1] == 2000
        for at, place in zip(bounds, grid, strict=True):
            assert abs(at - place) <= cut.block // 2
            assert place in (0, 2000) or (2000 - place if reverse else place) % cut.block == 0


@pytest.mark.parametrize("bounds", [(0, 5), (1, 10), (0, 7, 3, 10), ()])
def test_bounds_that_do_not_cover_the_axis_are_refused(bounds: tuple[int, ...]) -> None:
    cut = Cut(Case.of(OPS["cumsum"], "f32", (10,)).problem)
    with pytest.raises(InvalidProblemError, match="bounds: expected them to ascend from 0 to 10"):
        settled(cut, bounds)


def test_sorted_ids_must_ascend_from_piece_to_piece() -> None:
    case = Case.of(OPS["segment_sum"], "f32", (4, 3), segments=4, is_sorted=True)
    cut, x = SegmentCut(case.problem), np.ones((2, 3), np.float32)
    first = Piece({"input": x, "segment_ids": np.array([1, 2])})
    later = Piece({"input": x, "segment_ids": np.array([0, 3])}, 2, {"segment_ids": np.int64(2)})
    state = cut.fold(0, first, [], cut.begin(0, 3))
    with pytest.raises(InvalidProblemError, match="segment_ids: expected ids in ascending order"):
        cut.fold(0, later, [], state)


@pytest.mark.parametrize(("name", "component"), [("sum", 0), ("cumsum", 1)])
def test_rows_cut_over_threads_keep_the_same_states(name: str, component: int) -> None:
    """The first phase of such a launch is the engine's summary: it leaves the states of blocks."""
    case = Case.of(OPS[name], "f32", (1, 1 << 21), axis=1)
    operands = make_operands(case)
    plan, out = case.plan(2), {n: np.empty(case.shape_of(n), np.float32) for n in case.outputs}
    workspace = np.full(plan.workspace_size // 8, np.nan)
    plan.run(**operands, **out, workspace=workspace)
    cut = Cut(case.problem)
    states = cut.summary(0, Piece(operands))[0, :, component]
    # Of a scan the blocks of the last part are nobody's summary.
    counted = len(states) if name == "sum" else len(states) // 2
    assert same_bytes(workspace[:counted], np.ascontiguousarray(states[:counted]))


@pytest.mark.parametrize(("element", "far"), [("f32", 79), ("f64", 1)])
def test_products_that_leave_the_range_and_come_back(element: str, far: int) -> None:
    """Plain products serve the pieces where they can; what lies in front of one may be tiny."""
    case = Case.of(OPS["cumprod_backward"], element, (2, SCAN), axis=-1)
    operands = make_operands(case)
    x = np.ones_like(operands["x"])
    x[0, :550], x[0, 700:1250], x[1, 100:1200] = 2.0**-far, 2.0**far, 0.5
    operands["x"], operands["y"] = x, pb.cumprod(x, -1)
    found = cut_results(case, operands, np.random.default_rng(0))
    assert same_bytes(found["dx"], case.results(operands)["dx"])
