"""The catalog on the Triton backend against the oracle: on a GPU, or in Triton's interpreter.

Run through ``test_triton_interpret.py``, or by itself where a GPU is:
``python -m pytest tests/triton_suite.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import pullback as pb
from cell_data import KINDS, operands
from cells import OPS, Fenced
from grid import (
    BENT,
    COLUMNS,
    ROWS,
    default,
    has_axes,
    is_defined,
    is_segmented,
    shapes,
    variants,
)
from pullback.core.declare import Role
from pullback.formulas.primitives import NOWHERE
from pullback.formulas.record import in_singles
from pullback.gpu import launch, tiles
from pullback.gpu.primitives import exp, exponent, ldexp, mantissa
from pullback.gpu.tiles import Tile
from pullback.tools.case import Case
from pullback.tools.choices import chosen
from triton_bounds import wrong_with
from triton_runs import DEVICE, TORCH, plan_of, run, to_numpy, to_torch

# The interpreter computes with NumPy, which warns of the infinities that formulas expect.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

# Products of their factors are taken in float32 and leave its range on the way, at both ends. Nine
# of the largest float16 do so too, and an infinity on the way may end as NaN.
RECURRENCES = ("linear_recurrence", "discounted_sum", "gae")


def defined(cell: Case, kind: str) -> bool:
    """Whether the result is specified; sums of large float32 may overflow on the way here."""
    leaves = {"huge": ("sum", "mean", "cumsum", "var", "std", "lerp", *RECURRENCES)}
    leaves["tiny"] = RECURRENCES
    narrow = cell.element in ("f32", "bf16") and cell.op.kind in leaves.get(kind, ())
    narrow |= cell.element == "f16" and kind == "huge" and cell.op.kind in RECURRENCES
    return is_defined(cell, kind) and not narrow


def stacked(cell: Case, along: int) -> tuple[Case, list[tuple[str, dict, Case]]]:
    """One cell that holds the data of all kinds side by side, and the parts it is made of."""
    parts = [(k, operands(cell, k), cell) for k in KINDS if defined(cell, k)]
    shape = list(cell.shape)
    shape[along] *= len(parts)
    return cell.but(shape=tuple(shape)), parts


def places(op: pb.Op, element: str, n: int) -> Iterator[tuple[tuple[int, ...], Any, int]]:
    """Shape, axis, and the dimension to stack along."""
    yield ROWS, -1, 0
    if op.parameter("axis") is None or n or element != "f32":
        return
    yield COLUMNS, 0, 1
    if has_axes(op):
        yield BENT, (0, 2), 1


def works_on_rows(op: pb.Op) -> bool:
    """Whether elements of a row depend on each other."""
    return launch.work_of(op.record()) != "pointwise"


@triton.jit
def apply_primitives(p_x, p_exp, p_mantissa, p_exponent, p_back, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(p_x + at)
    tl.store(p_exp + at, exp(x))
    m, e = mantissa(x), exponent(x)
    tl.store(p_mantissa + at, m)
    tl.store(p_exponent + at, e)
    tl.store(p_back + at, ldexp(m, e))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_primitives(dtype):
    """exp to 2 ulps, mantissa and exponent exact, over the whole range of the type."""
    kind = np.finfo(dtype)
    rng = np.random.default_rng(1)
    around = 89 if dtype is np.float32 else 710
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, kind.max, kind.tiny, kind.smallest_subnormal]
    special += [-kind.smallest_subnormal, kind.tiny / 4, -3 * kind.smallest_subnormal]
    x = rng.uniform(-1.2 * around, 1.02 * around, 2048)
    x[:512] = rng.standard_normal(512) * 2.0 ** rng.uniform(kind.minexp - 20, kind.maxexp - 3, 512)
    x[-512:] = rng.standard_normal(512)
    x[: len(special)] = special
    x = x.astype(dtype)
    given = torch.from_numpy(x).to(DEVICE)
    results = [torch.empty_like(given) for _ in range(4)]
    apply_primitives[(1,)](given, *results, N=2048, enable_fp_fusion=False)
    found, m, e, back = (r.cpu().numpy() for r in results)
    with np.errstate(all="ignore"):
        exact = np.exp(x.astype(np.longdouble))
        unit = np.spacing(np.abs(exact).astype(dtype)).astype(np.longdouble)
        fits = np.isfinite(exact.astype(dtype))
        assert (np.abs(found[fits] - exact[fits]) <= 2 * unit[fits]).all()
        assert np.array_equal(found[~fits], exact[~fits].astype(dtype), equal_nan=True)
    wanted_m, wanted_e = np.frexp(x)
    assert np.array_equal(m, wanted_m, equal_nan=True)
    usual = np.isfinite(x) & (x != 0)
    assert np.array_equal(e[usual], wanted_e[usual])
    assert (e[~np.isfinite(x)] == 0).all()
    assert (e[x == 0] == NOWHERE).all()
    assert np.array_equal(back, x, equal_nan=True)


def in_turn(names, *ways):
    """Every name with one of the ways, by turns."""
    return [(name, ways[k % len(ways)]) for k, name in enumerate(names)]


UNCUT = [n for n, op in OPS.items() if not is_segmented(op)]
CUT = [n for n, op in OPS.items() if is_segmented(op)]
WIDTHS = ("f64", "f16", "bf16")


@pytest.mark.parametrize(("name", "element"), [*in_turn(UNCUT, "f32"), *in_turn(UNCUT, *WIDTHS)])
def test_edges(name, element):
    """All kinds of data and, in float32, all parameters; the other types by turns."""
    op, wrong = OPS[name], []
    for n, variant in enumerate(variants(op)):
        if n and element != "f32":
            break
        for shape, axis, along in places(op, element, n):
            cell = chosen(default(op, element), variant).but(shape=shape, axis=axis)
            whole, parts = stacked(cell, along)
            given = {k: np.concatenate([p[1][k] for p in parts], along) for k in parts[0][1]}
            results = run(whole, given)
            split = {k: np.split(r, len(parts), along) for k, r in results.items()}
            for i, (kind, part, one) in enumerate(parts):
                mine = {k: np.ascontiguousarray(r[i]) for k, r in split.items()}
                wrong += [f"[{kind}] {w}" for w in wrong_with(one, part, mine)]
    assert not wrong, f"{len(wrong)} cells:\n" + "\n".join(wrong[:20])


@pytest.mark.parametrize(("name", "turn"), in_turn(OPS, 0, 1, 2))
def test_shapes(name, turn):
    """Ranks from 0 to 64, empty tensors, axes that do not merge: a third of them by turns."""
    op, wrong = OPS[name], []
    for shape, axis, _ in shapes(op, "f32")[turn::3]:
        cell = default(op, "f32").but(shape=shape, axis=axis)
        if is_defined(cell, "normal"):
            given = operands(cell, "normal")
            wrong += wrong_with(cell, given, run(cell, given))
    assert not wrong, "\n".join(wrong)


EXTENTS = (1, 7, 1024, 1025, 5000)
# A row is folded in one block up to 8192 elements, and up to 4096 in float64.
LONGER = ("sum", "var", "max_backward", "softmax", "softmax_backward")
LONGER_SCANS = ("cumsum_backward", "cumprod_backward", "logcumsumexp")


def extents() -> Iterator[tuple[str, str, int, int]]:
    """Across a block's end or over several of them, types and axes by turns; some longer still."""
    for k, name in enumerate(UNCUT):
        yield name, ("f32", *WIDTHS)[k % 4], EXTENTS[k % 5], -1
        if k % 2 and OPS[name].parameter("axis"):
            yield name, "f32", 1025, 0
    for name in LONGER:
        yield name, "f32", 10000, -1
    for name in (*LONGER, *LONGER_SCANS):
        yield name, "f64", 5000, -1


@pytest.mark.parametrize(("name", "element", "extent", "axis"), list(extents()))
def test_extents(name, element, extent, axis):
    """Blocks and their boundaries, along the last axis and another."""
    op = OPS[name]
    shape = (1, extent) if axis == -1 else (extent, 2)
    cell = default(op, element).but(shape=shape, axis=axis)
    given = operands(cell, "normal")
    wrong = wrong_with(cell, given, run(cell, given))
    assert not wrong, wrong[0]


@pytest.mark.parametrize(("rows", "is_sorted"), in_turn(EXTENTS, True, False))
@pytest.mark.parametrize("name", ["segment_sum", "segment_sum_backward"])
def test_segment_extents(name, rows, is_sorted):
    """Few long segments, which programs share, and rows that cross tiles."""
    cell = default(OPS[name], "f32", (rows, 3))
    cell = cell.but(is_sorted=is_sorted, segments=2)
    given = operands(cell, "normal")
    wrong = wrong_with(cell, given, run(cell, given))
    assert not wrong, wrong[0]


class Placed:
    """A tensor of some layout in a poisoned buffer on the device, as a TensorRef."""

    def __init__(self, shape, dtype, layout, values=None):
        self.fence = fence = Fenced(shape, dtype, layout, values)
        start = fence.array.__array_interface__["data"][0]
        offset = (start - fence.bytes.__array_interface__["data"][0]) // dtype.itemsize
        self.data = to_torch(fence.bytes.view(dtype))
        steps = tuple(s // dtype.itemsize for s in fence.array.strides)
        self.ref = pb.TensorRef(self.data, shape, steps, offset)

    def fetch(self) -> np.ndarray:
        """The values, after checking that nothing around them was written."""
        bits = self.data.view(torch.uint8).cpu().numpy()
        self.fence.bytes[:] = bits
        wrong = self.fence.check()
        assert wrong is None, wrong
        return self.fence.array.copy(order="C")


@pytest.mark.parametrize(("name", "layout"), in_turn(UNCUT, "Fortran", "sliced", "mixed"))
def test_layouts(name, layout):
    """Any strides, negative ones included, and nothing written beside the output."""
    cell = default(OPS[name], "f32")
    given = operands(cell, "normal")
    placed = {n: Placed(a.shape, a.dtype, layout, a).ref for n, a in given.items()}
    outputs = {n: Placed(cell.shape_of(n), cell.dtype, layout) for n in cell.outputs}
    plan_of(cell).run(**placed, **{n: p.ref for n, p in outputs.items()})
    wrong = wrong_with(cell, given, {n: p.fetch() for n, p in outputs.items()})
    assert not wrong, wrong[0]


@pytest.mark.parametrize("name", ["cumprod_backward", "softmax_backward", "norm2_backward", "lerp"])
def test_broadcast_operands(name):
    """A zero stride on inputs."""
    cell = default(OPS[name], "f32")
    given = operands(cell, "normal")
    lead = next(n for n in cell.op.names(Role.ELEMENT) if n in given)
    given[lead] = np.broadcast_to(given[lead][:1], given[lead].shape)
    tensors = {n: to_torch(a) for n, a in given.items()}
    tensors[lead] = tensors[lead][:1].expand(given[lead].shape)
    y = torch.full(cell.shape, float("nan"), device=DEVICE)
    plan_of(cell).run(**tensors, **{cell.op.outputs[0]: y})
    wrong = wrong_with(cell, given, {cell.op.outputs[0]: to_numpy(y, cell)})
    assert not wrong, wrong[0]


def test_far_apart():
    """Offsets that 32 bits do not hold; memory between the rows is never touched."""
    cell = default(OPS["cumsum"], "f16").but(shape=(3, 40))
    given = operands(cell, "normal")
    step = 2**30
    data = torch.empty(2 * step + 80, dtype=torch.float16, device=DEVICE)
    x = pb.TensorRef(data, cell.shape, (step, 1))
    y = pb.TensorRef(data, cell.shape, (step, 1), offset=40)
    for row in range(3):
        data[row * step : row * step + 40] = to_torch(given["x"])[row]
    plan = plan_of(cell)
    plan.run(x=x, y=y)
    (used,) = plan.runnable().runner._launches.values()
    assert used.shape.wide
    result = torch.stack([data[row * step + 40 : row * step + 80] for row in range(3)])
    wrong = wrong_with(cell, given, {"y": to_numpy(result, cell)})
    assert not wrong, wrong[0]


SCHEDULES = {
    "blocks along rows": ((1, 75), -1, Tile(1, 16, 1, 1 << 20, 1)),
    "blocks across columns": ((75, 3), 0, Tile(4, 16, 1, 1 << 20, 1)),
    "chunks along rows": ((1, 75), -1, Tile(1, 16, 1, 32, 3)),
    "chunks across columns": ((75, 3), 0, Tile(4, 16, 1, 32, 3)),
}
WORKING = [n for n, op in OPS.items() if op.parameter("axis")]


@pytest.mark.parametrize(
    ("name", "schedule"), in_turn([n for n in WORKING if works_on_rows(OPS[n])], *SCHEDULES)
)
def test_schedules(name, schedule, monkeypatch):
    """Loops over blocks, and rows shared by programs, with tiles made small; also in place."""
    shape, axis, tile = SCHEDULES[schedule]
    monkeypatch.setattr(launch, "choose_tile", lambda *a, **k: tile)
    run_in_place_too(default(OPS[name], "f32").but(shape=shape, axis=axis))


def run_in_place_too(cell) -> None:
    """Compare a result with the oracle's, and with the same computed on an operand."""
    op = cell.op
    given = operands(cell, "normal")
    shape = cell.shape_of(op.outputs[0])
    same = [n for n in given if cell.shape_of(n) == shape and cell.role(n) is op.writes[0].role]
    same = [n for n in same if op.operand(n).type is op.writes[0].type]
    tensors = {n: to_torch(a) for n, a in given.items()}
    out = torch.full(
        cell.shape_of(op.outputs[0]), float("nan"), dtype=TORCH[cell.element], device=DEVICE
    )
    plan = plan_of(cell)
    plan.run(**tensors, **{op.outputs[0]: out})
    wrong = wrong_with(cell, given, {op.outputs[0]: to_numpy(out, cell)})
    assert not wrong, wrong[0]
    if same:
        plan.run(**tensors, **{op.outputs[0]: tensors[same[0]]})
        assert torch.equal(tensors[same[0]], out), "in place differs"


PARTLY = ("softmax", "softmax_backward", "log_softmax_backward", "var", "std", "max_backward")


@pytest.mark.parametrize(("name", "element"), in_turn(PARTLY, "f32", "bf16"))
def test_rows_held_in_part(name, element, monkeypatch):
    """The tail of a row held, as it is stored if it is bf16, and blocks before it read again."""
    tile = Tile(1, 16, 1 if element == "f32" else 2 * tiles.MOST_WARPS, 128, 1, tail=32)
    monkeypatch.setattr(launch, "choose_tile", lambda *a, **k: tile)
    run_in_place_too(default(OPS[name], element).but(shape=(2, 75), axis=-1))


# Those with a record for rows that are not held, and one of those without.
ONLINE = ["sum"]
for n in UNCUT:
    record = OPS[n].record(element="f32")
    if getattr(in_singles(record, "f32") or record, "online", None):
        ONLINE.append(n)


@pytest.mark.parametrize(("name", "schedule"), in_turn(ONLINE, *list(SCHEDULES)[1:3]))
def test_edges_of_rows_that_are_read_less(name, schedule, monkeypatch):
    """Infinities, NaN and rows of nothing else, folded by fewer passes than a row that is held."""
    shape, axis, tile = SCHEDULES[schedule]
    monkeypatch.setattr(launch, "choose_tile", lambda *a, **k: tile)
    along = 0 if axis else 1
    cell = default(OPS[name], "f32").but(shape=shape, axis=axis)
    whole, parts = stacked(cell, along)
    given = {k: np.concatenate([p[1][k] for p in parts], along) for k in parts[0][1]}
    results = run(whole, given)
    split = {k: np.split(r, len(parts), along) for k, r in results.items()}
    wrong = []
    for i, (kind, part, one) in enumerate(parts):
        mine = {k: np.ascontiguousarray(r[i]) for k, r in split.items()}
        wrong += [f"[{kind}] {w}" for w in wrong_with(one, part, mine)]
    assert not wrong, "\n".join(wrong)


STAYING = ("softmax", "softmax_backward", "std_backward", "max_backward")


@pytest.mark.parametrize(("name", "element"), in_turn(STAYING, "f16", "bf16"))
def test_rows_that_stay_narrow(name, element, monkeypatch):
    """Held rows that are widened for every look have the bits of those that are widened once."""
    cell = default(OPS[name], element).but(shape=(2, 75))
    given, found = operands(cell, "normal"), []
    for warps in (tiles.MOST_WARPS, 2 * tiles.MOST_WARPS):
        tile = Tile(1, 128, warps, 128, 1)
        monkeypatch.setattr(launch, "choose_tile", lambda *a, tile=tile, **k: tile)
        found.append(run(cell, given)[cell.op.outputs[0]])
    assert not wrong_with(cell, given, {cell.op.outputs[0]: found[0]})
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("element", ["f32", "bf16"])
def test_sums_of_many_blocks_lose_nothing(element, monkeypatch):
    """Blocks whose sums are exact, carried in two floats: the result is rounded once."""
    monkeypatch.setattr(launch, "choose_tile", lambda *a, **k: Tile(1, 16, 1, 1 << 20, 1))
    cell = default(OPS["sum"], element).but(shape=(1, 3000))
    part = 16 * tiles.STEPS
    x = np.zeros(cell.shape)
    # An eighth in every part but the first and the last, of which a float32 holds nothing.
    x[:, part : 23 * part] = 2.0**-10
    x[:, 0], x[:, -1] = 2.0**22, -(2.0**22)
    result = run(cell, {"x": x.astype(cell.dtype)})["y"]
    assert float(result[0, 0]) == 22 / 8


def test_reversed_scans_in_blocks(monkeypatch):
    """Scans from the end, over several blocks."""
    monkeypatch.setattr(launch, "choose_tile", lambda *a, **k: Tile(1, 16, 1, 1 << 20, 1))
    wrong = []
    for op in OPS.values():
        if op.parameter("reverse"):
            cell = default(op, "f32").but(shape=(1, 75), reverse=True)
            given = operands(cell, "normal")
            wrong += wrong_with(cell, given, run(cell, given))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["sum", "cumsum_backward"])
def test_few_long_rows(name):
    """A row that several programs share, by the tiles that are really chosen."""
    cell = default(OPS[name], "f32").but(shape=(1, 66_000))
    rng = np.random.default_rng(3)
    # Whole numbers add without rounding, in any order.
    x = rng.integers(-8, 9, cell.shape).astype(np.float32)
    lead = cell.op.names(Role.ELEMENT)[0]
    result = run(cell, {lead: x})[cell.op.outputs[0]]
    exact = x.sum(1, keepdims=True) if name == "sum" else x[:, ::-1].cumsum(1)[:, ::-1]
    assert np.array_equal(result, exact)


@pytest.mark.parametrize(("name", "element"), in_turn(CUT, *TORCH))
def test_segments(name, element):
    wrong = []
    for is_sorted, policy, kind, (rows, columns, segments) in (
        (True, "raise", "normal", (14, 9, 4)),
        (False, "drop", "ties", (12, 70, 5)),
        (False, "raise", "nan", (5, 1, 40)),
        (True, "drop", "tiny", (200, 3, 1)),
    ):
        cell = default(OPS[name], element).but(
            shape=(rows, columns),
            is_sorted=is_sorted,
            segments=segments,
            out_of_range=policy,
        )
        given = operands(cell, kind)
        wrong += wrong_with(cell, given, run(cell, given))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("name", "layout"), in_turn(CUT, "Fortran", "sliced", "mixed"))
def test_segment_layouts(name, layout):
    cell = default(OPS[name], "f32")
    given = operands(cell, "normal")
    placed = {n: Placed(a.shape, a.dtype, layout, a).ref for n, a in given.items()}
    output = Placed(cell.shape_of(cell.op.outputs[0]), cell.dtype, layout)
    plan_of(cell).run(**placed, **{cell.op.outputs[0]: output.ref})
    wrong = wrong_with(cell, given, {cell.op.outputs[0]: output.fetch()})
    assert not wrong, wrong[0]
