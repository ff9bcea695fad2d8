"""Kernels built for real GPUs, none of which need be there: does the compiled code look right?

The contiguous path of every op is compiled for every element type, for AMD and for one of NVIDIA's
generations in turn: every op meets every type, every op and every type every generation. The
generations share one compiler and one register file, so what an op spills or loads hangs on the
type, and which generation builds it on the op. Other schedules (long rows, inner axes, shared rows,
other ties) are compiled for one target and a sample of ops. ``PULLBACK_COMPILE=all`` compiles them
all.
"""

from __future__ import annotations

import os
from itertools import product

import pytest

from cells import ELEMENTS, OPS
from triton_cells import COMPILED, built, launch_of, segment_steps, steps_of

pytest.importorskip("triton")

from pullback.gpu.offline import TARGETS

# Shared memory that a program may use without asking for more, in bytes.
SHARED = {"sm_80": 48 * 1024, "sm_90": 48 * 1024, "sm_100": 48 * 1024, "gfx942": 64 * 1024}
# These read no operand position by position, or every one of them one position aside.
READS_ASIDE = {"sum_backward", "mean_backward", "prod_backward"}
EVERYTHING = os.environ.get("PULLBACK_COMPILE") == "all"


def check(step, kernel, target: str) -> None:
    what = f"{step.kernel.__name__} {dict(step.meta)} {target}"
    assert kernel.spilled == 0, f"{what} spills {kernel.spilled} bytes"
    assert kernel.shared <= SHARED[target], f"{what} uses {kernel.shared} bytes of shared memory"


def targets_of(name: str, element: str) -> list[str]:
    """The targets to compile a cell for: AMD's, and one of NVIDIA's by turns."""
    if EVERYTHING:
        return list(TARGETS)
    generations = [t for t, target in TARGETS.items() if target.backend == "cuda"]
    others = [t for t in TARGETS if t not in generations]
    turn = list(OPS).index(name) + ELEMENTS.index(element)
    return [generations[turn % len(generations)], *others]


def test_pairs_are_all_compiled():
    cells = [(n, e, t) for n in OPS for e in ELEMENTS for t in targets_of(n, e)]
    assert {(n, e) for n, e, _ in cells} == set(product(OPS, ELEMENTS))
    assert {(n, t) for n, _, t in cells} == set(product(OPS, TARGETS))
    assert {(e, t) for _, e, t in cells} == set(product(ELEMENTS, TARGETS))


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("name", OPS)
def test_contiguous_path(name, element):
    """No spills, little shared memory, loads and stores of 128 bits."""
    op = OPS[name]
    for target in targets_of(name, element):
        loads = stores = 0
        for step, kernel in built(steps_of(name, element), element, target):
            check(step, kernel, target)
            if step.kernel.__name__ not in ("check_ids", "find_starts"):
                loads, stores = max(loads, kernel.loads), max(stores, kernel.stores)
        if name not in READS_ASIDE:
            assert loads >= 128, f"{target}: widest load of {loads} bits"
        if op.direction == "backward" or op.family not in ("reduce", "segment"):
            assert stores >= 128, f"{target}: widest store of {stores} bits"
        COMPILED.add((name, element, target))


SCHEDULES = {
    "long rows": ((4096, 20000), 1),
    "inner axis": ((2048, 8192), 0),
    "shared rows": ((2, 2_000_000), 1),
    "shared columns": ((100_000, 64), 0),
}
SAMPLE = ("cumsum_backward", "cummax_backward", "logcumsumexp", "var", "softmax_backward", "prod")
WORKING = tuple(n for n, op in OPS.items() if op.family in ("scan", "reduce", "softmax"))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", WORKING if EVERYTHING else SAMPLE)
def test_other_schedules(name, schedule):
    shape, axis = SCHEDULES[schedule]
    for element in ELEMENTS if EVERYTHING else ("f32",):
        launch = launch_of(name, element, shape, axis)
        for step, kernel in built(launch.steps, element, "sm_80"):
            check(step, kernel, "sm_80")


@pytest.mark.parametrize("name", [n for n, op in OPS.items() if op.ties])
def test_other_ties(name):
    for ties in OPS[name].ties[1:]:
        for step, kernel in built(launch_of(name, "f32", ties=ties).steps, "f32", "sm_80"):
            check(step, kernel, "sm_80")


@pytest.mark.parametrize("is_sorted", [True, False])
def test_segments_shared_by_programs(is_sorted):
    steps = segment_steps("segment_sum", "f32", is_sorted, segments=4)
    assert [s.kernel.__name__ for s in steps][2:] == ["segment_sum_part", "segment_sum_join"]
    for step, kernel in built(steps, "f32", "sm_80"):
        check(step, kernel, "sm_80")


def test_wide_offsets():
    """Beyond 2**31 elements positions have 64 bits, and loads are as wide as ever."""
    launch = launch_of("softmax_backward", "f32", (2**21, 2048))
    assert launch.shape.wide
    for step, kernel in built(launch.steps, "f32", "sm_80"):
        check(step, kernel, "sm_80")
        assert kernel.loads == 128
