"""What a plan promises beside its numbers: workspace, allocation, guarantee and reuse."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

import pullback as pb
from cells import ELEMENTS, OPS, Fenced, as_tuple, same_bytes
from grid import default
from quick_data import quick_operands, quick_run

# Shapes for which some op wants a workspace, in either schedule.
PLACES = [((3, 2000), -1), ((2000, 19), 0)]


def cells(op: pb.Op, element: str = "f32"):
    if op.family == "segment":
        base = replace(default(op, element, (900, 8)), num_segments=50)
        return [base, replace(base, is_sorted=True)]
    return [default(op, element, shape, axis) for shape, axis in PLACES]


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_workspace_of_exactly_the_stated_size(op):
    """Enough, not overrun, and without influence on the result."""
    for cell in cells(op):
        given = quick_operands(cell)
        base = quick_run(cell, given)
        for threads in (1, 7):
            plan = cell.plan(threads)
            space = Fenced((plan.workspace_size // 8,), np.dtype(np.float64))
            first = 67 * 8
            held = space.bytes[first : first + plan.workspace_size]
            outputs = {n: np.empty(cell.shape_of(n), cell.dtype) for n in op.outputs}
            plan.run(**given, **outputs, workspace=held)
            assert all(map(same_bytes, outputs.values(), base)), str(cell)
            assert (space.bytes[:first] == 0xFF).all(), f"{cell}: wrote in front"
            assert (space.bytes[first + plan.workspace_size :] == 0xFF).all(), f"{cell}: overran"


def test_some_op_wants_a_workspace():
    sizes = {n: max(c.plan().workspace_size for c in cells(op)) for n, op in OPS.items()}
    assert sizes["segment_sum"] == 8 * (50 + 1 + 4 * 50 + 900)
    assert sizes["cumprod_backward"] > 0
    assert sizes["softmax_backward"] == 0


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_run_allocates_no_tensor_memory(op):
    """With a workspace the peak of a run is far below one operand."""
    for cell in cells(op):
        given = quick_operands(cell)
        plan = cell.plan(threads=2)
        outputs = {n: np.empty(cell.shape_of(n), cell.dtype) for n in op.outputs}
        space = np.empty(plan.workspace_size, np.uint8)
        plan.run(**given, **outputs, workspace=space)
        tracemalloc.start()
        try:
            plan.run(**given, **outputs, workspace=space)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 8192, f"{cell}: {peak} bytes"


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_plan_runs_on_other_memory_and_strides(op):
    """One plan, selected once, on several buffers and layouts."""
    cell = cells(op)[0]
    plan = cell.plan()
    for seed, layout in enumerate(("C", "Fortran", "sliced", "C")):
        given = quick_operands(cell, seed)
        expected = as_tuple(cell.run_function(given))
        fenced = {
            n: a if n == "segment_ids" else Fenced(a.shape, a.dtype, layout, a).array
            for n, a in given.items()
        }
        outputs = {n: Fenced(cell.shape_of(n), cell.dtype, layout).array for n in op.outputs}
        plan.run(**fenced, **outputs)
        assert all(map(same_bytes, outputs.values(), expected)), f"{cell} {layout}"


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
    cell = default(OPS["cumsum"], "f32", (64, 100))
    plan = cell.plan(threads=3)
    assert plan.preference == pb.PlanPreference(threads=3)
    given = quick_operands(cell)
    results = []
    for stream in (None, pb.Stream(threads=1), pb.Stream(threads=5), pb.Stream()):
        y = np.empty(cell.shape, cell.dtype)
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
        cell = default(op, "f32")
        given = quick_operands(cell)
        outputs = {n: Fenced(cell.shape_of(n), cell.dtype) for n in op.outputs}
        arrays = {n: f.array for n, f in outputs.items()}
        assert cell.plan().can_implement(**given, **arrays) is None
        assert all(f.is_untouched() for f in outputs.values())
