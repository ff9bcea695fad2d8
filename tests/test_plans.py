"""What a plan promises beside its numbers: workspace, allocation, guarantee and reuse."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import pullback as pb
from cells import ELEMENTS, OPS, Fenced, arrays_of, lies_anyhow, outputs_for, same_bytes
from grid import default, is_segmented
from machines import assume
from pullback.core import parse
from pullback.core.declare import Op, Operand, Parameter, Role, Text, Type
from pullback.formulas.folds import TOTAL
from pullback.formulas.primitives import where
from pullback.formulas.record import Pass, RowFormula
from quick_data import quick_operands, quick_run

# Shapes for which some op wants a workspace, in either schedule.
PLACES = [((3, 2000), -1), ((2000, 19), 0)]


def cases(op: pb.Op, element: str = "f32"):
    if is_segmented(op):
        base = default(op, element, (900, 8)).but(segments=50)
        return [base, base.but(is_sorted=True)]
    return [default(op, element, shape, axis) for shape, axis in PLACES]


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_workspace_of_exactly_the_stated_size(op):
    """Enough, not overrun, and without influence on the result."""
    for case in cases(op):
        given = quick_operands(case)
        base = quick_run(case, given)
        for threads in (1, 7):
            plan = case.plan(threads)
            space = Fenced((plan.workspace_size // 8,), np.dtype(np.float64))
            first = 67 * 8
            held = space.bytes[first : first + plan.workspace_size]
            outputs = {n: np.empty(case.shape_of(n), case.dtype_of(n)) for n in case.outputs}
            plan.run(**given, **outputs, workspace=held)
            assert all(map(same_bytes, outputs.values(), base)), str(case)
            assert (space.bytes[:first] == 0xFF).all(), f"{case}: wrote in front"
            assert (space.bytes[first + plan.workspace_size :] == 0xFF).all(), f"{case}: overran"


def test_some_op_wants_a_workspace(monkeypatch):
    # Without a cache that holds the states of a tile, what is left is the order of the rows.
    assume(monkeypatch, last_level=0)
    sizes = {n: max(c.plan().workspace_size for c in cases(op)) for n, op in OPS.items()}
    assert sizes["segment_sum"] == 8 * (50 + 1 + 4 * 50 + 900 + 8)
    assert sizes["cumprod_backward"] > 0
    assert sizes["softmax_backward"] == 0


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_run_allocates_no_tensor_memory(op):
    """With a workspace the peak of a run is far below one operand."""
    for case in cases(op):
        given = quick_operands(case)
        plan = case.plan(threads=2)
        outputs = {n: np.empty(case.shape_of(n), case.dtype_of(n)) for n in case.outputs}
        space = np.empty(plan.workspace_size, np.uint8)
        plan.run(**given, **outputs, workspace=space)
        tracemalloc.start()
        try:
            plan.run(**given, **outputs, workspace=space)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 8192, f"{case}: {peak} bytes"


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_plan_runs_on_other_memory_and_strides(op):
    """One plan, selected once, on several buffers and layouts."""
    case = cases(op)[0]
    plan = case.plan()
    for seed, layout in enumerate(("C", "Fortran", "sliced", "C")):
        given = quick_operands(case, seed)
        expected = case.results(given).values()
        fenced = {
            n: Fenced(a.shape, a.dtype, layout, a).array if lies_anyhow(case, n) else a
            for n, a in given.items()
        }
        outputs = arrays_of(outputs_for(case, layout))
        plan.run(**fenced, **outputs)
        assert all(map(same_bytes, outputs.values(), expected)), f"{case} {layout}"


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_sku_and_guarantee(op, element):
    plan = default(op, element).plan()
    sku, promise = plan.sku, plan.precision_guarantee
    assert (sku.op, sku.element, sku.backend) == (op.name, element, "numba")
    category = {"reduce": "reduction", "lerp": "binary_elementwise"}.get(op.family, op.family)
    assert sku.category == category
    assert sku.precision_guarantee == promise
    assert promise.deterministic
    assert promise.bit_stable_on_same_hardware
    assert promise.bit_stable_across_threads
    assert promise.bit_stable_across_layouts
    assert hash(sku) == hash(default(op, element).plan().sku)


@pytest.mark.parametrize("element", ELEMENTS)
def test_accumulator_is_what_the_guarantee_says(element):
    """A sum that float32 would lose and float64 keeps: 2**24 ones beside 2**25, as one row."""
    plan = default(OPS["sum"], element, (1, 8193)).plan()
    assert plan.precision_guarantee.accumulator == "f64"
    assert plan.precision_guarantee.math_precision == "f64"
    x = np.ones((1, 8193), plan_dtype(element))
    big = {"f64": 2.0**52, "f32": 2.0**30, "bf16": 2.0**30, "f16": 2.0**15}[element]
    x[0, 0], x[0, 4096] = big, -big
    y = np.empty((1, 1), plan_dtype(element))
    plan.run(x=x, y=y)
    # 8191 ones; bf16 keeps 8 bits of it and f16 eleven.
    assert float(y[0, 0]) == {"f32": 8191.0, "f64": 8191.0}.get(element, 8192.0)


def plan_dtype(element: str) -> np.dtype:
    return pb.ElementKind(element).numpy_dtype


def test_preference_and_stream_choose_the_threads():
    case = default(OPS["cumsum"], "f32", (64, 100))
    plan = case.plan(threads=3)
    assert plan.preference == pb.PlanPreference(threads=3)
    given = quick_operands(case)
    results = []
    for stream in (None, pb.Stream(threads=1), pb.Stream(threads=5), pb.Stream()):
        y = np.empty(case.shape, case.dtype)
        plan.run(**given, y=y, stream=stream)
        results.append(y.tobytes())
    assert len(set(results)) == 1


def test_numba_may_be_asked_for_by_name():
    descriptor = pb.ScanDescriptor("cumsum", (4,), element="f64")
    for backend in ("numba", pb.BackendKind.NUMBA):
        plan = pb.ScanPlan.select(descriptor, preference=pb.PlanPreference(backend=backend))
        y = np.empty(4)
        plan.run(x=np.ones(4), y=y)
        assert y.tolist() == [1, 2, 3, 4]


def test_can_implement_writes_nothing():
    for op in OPS.values():
        case = default(op, "f32")
        given = quick_operands(case)
        outputs = outputs_for(case)
        assert case.plan().can_implement(**given, **arrays_of(outputs)) is None
        assert all(f.is_untouched() for f in outputs.values())


# The plan of any op: operands that may be left out, a number for an array, outputs asked for.


def scaled(x, weight):
    return x * weight


def scaled_and_twice(x, weight):
    return x * weight, 2 * x * weight


def masked(x, weight, mask):
    return where(mask, x * weight, 0.0)


def masked_and_twice(x, weight, mask):
    return where(mask, x * weight, 0.0), where(mask, 2 * x * weight, 0.0)


def scale_record(return_twice, weight, mask):
    both = (scaled_and_twice, masked_and_twice) if return_twice else (scaled, masked)
    return RowFormula(apply=both[mask])


SCALE = Op(
    "scale",
    "scale",
    "scale",
    "forward",
    Text("y = w·x"),
    (
        Operand("x"),
        Operand("weight", optional=True, broadcasts=True),
        Operand("mask", type=Type.BOOL, optional=True, broadcasts=True),
    ),
    (Operand("y"), Operand("twice", asked_by="return_twice")),
    scale_record,
    (
        Parameter("weight", parse.real, is_data=True),
        Parameter("return_twice", parse.flag, False, (False, True)),
    ),
)
X = np.arange(12.0).reshape(3, 4)
COLUMN, MASK = np.array([[1.0], [2.0], [3.0]]), np.array([True, False, True, True])


def scale_plan(**parameters):
    return pb.Plan.select(pb.Descriptor(SCALE, (3, 4), "f64", **parameters))


def test_operands_of_any_plan_may_be_left_out_or_stretched():
    plan, y = scale_plan(weight=0.5), np.empty((3, 4))
    plan.run(x=X, y=y)
    assert np.array_equal(y, 0.5 * X)
    plan.run(x=X, mask=MASK, y=y)
    assert np.array_equal(y, np.where(MASK, 0.5 * X, 0))
    assert plan.sku.category == "other"
    with pytest.raises(pb.InvalidProblemError, match=r"^mask: expected a shape that stretches"):
        plan.run(x=X, mask=MASK[:3], y=y)
    with pytest.raises(pb.InvalidProblemError, match=r"^x: required by scale, got None"):
        plan.run(mask=MASK, y=y)
    with pytest.raises(TypeError, match="scale has no operand 'z'"):
        plan.run(x=X, y=y, z=y)


def test_an_array_stands_for_a_number_that_a_descriptor_leaves_out():
    plan, y = scale_plan(), np.empty((3, 4))
    plan.run(x=X, weight=COLUMN, y=y)
    assert np.array_equal(y, X * COLUMN)
    for check in (plan.run, plan.can_implement):
        with pytest.raises(pb.InvalidProblemError, match=r"^weight: required by scale, got None"):
            check(x=X, y=y)
        with pytest.raises(pb.InvalidProblemError, match=r"^weight: expected None .* has 0.5"):
            getattr(scale_plan(weight=0.5), check.__name__)(x=X, weight=COLUMN, y=y)


def test_outputs_are_made_where_asked_for():
    y, twice = np.empty((2, 3, 4))
    with pytest.raises(pb.InvalidProblemError, match=r"^twice: expected None without return_twice"):
        scale_plan(weight=0.5).run(x=X, y=y, twice=twice)
    with pytest.raises(pb.InvalidProblemError, match=r"^y: required as the output"):
        scale_plan(weight=0.5).run(x=X)
    plan = scale_plan(weight=0.5, return_twice=True)
    plan.run(x=X, y=y, twice=twice)
    assert np.array_equal(twice, 2 * y)
    twice[:] = 0
    plan.run(x=X, twice=twice)
    assert np.array_equal(twice, X)


CUT = tuple(
    Operand(name, role, Type.INDEX, optional=True)
    for name, role in (("segment_ids", Role.IDS), ("offsets", Role.OFFSETS))
)


def total_itself(total):
    return total


TOTALS = Op(
    "totals",
    "segment",
    "totals",
    "forward",
    Text("sums by ids or offsets"),
    (Operand("input", known_as="x"), *CUT),
    (Operand("output", Role.ROW, known_as="y"),),
    lambda segment_ids, offsets: RowFormula((Pass(TOTAL),), finish=total_itself),
    (Parameter("num_segments", parse.optional_count, None),),
)


def test_rows_are_cut_by_ids_or_by_offsets():
    plan, output = (
        pb.Plan.select(pb.Descriptor(TOTALS, (3, 4), "f64", segments=2)),
        np.empty((2, 4)),
    )
    expected = np.stack([X[:2].sum(0), X[2]])
    for cut in ({"segment_ids": np.array([0, 0, 1])}, {"offsets": np.array([0, 2, 3])}):
        output[:] = np.nan
        space = np.empty(plan.workspace_size, np.uint8)
        plan.run(input=X, **cut, output=output, workspace=space)
        assert np.array_equal(output, expected), cut
    both = {"segment_ids": np.array([0, 0, 1]), "offsets": np.array([0, 2, 3])}
    for cut, got in (({}, "None"), (both, "segment_ids and offsets")):
        with pytest.raises(pb.InvalidProblemError, match=f"^segment_ids or offsets: .*got {got}$"):
            plan.run(input=X, **cut, output=output)


def test_the_general_plan_gives_the_bytes_of_the_family_plan():
    cell = default(OPS["cumprod_backward"], "f32")
    given = quick_operands(cell)
    (expected,) = quick_run(cell, given)
    described = pb.Descriptor("cumprod_backward", cell.shape)
    plan, dx = pb.Plan.select(described), np.empty(cell.shape, "f4")
    plan.run(**given, dx=dx)
    assert same_bytes(dx, expected)
    assert plan.needs == {"x", "y"}
    assert plan.reads == {"dy", "x"}
    dx[:] = np.nan
    plan.run(dy=given["dy"], x=given["x"], dx=dx)
    assert same_bytes(dx, expected), "y is not read and may be left out"
