"""Kernels built for real GPUs, none of which need be there: does the compiled code look right?

The contiguous path of every op is compiled once, types and targets by turns: every type meets every
target. Other schedules (long rows, inner axes, shared rows, other ties) are compiled for one target
and a sample of ops. ``PULLBACK_COMPILE=all`` compiles every op for every type and target.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from itertools import product

import pytest

import new_ops
import test_segment_records as records
import triton_declared as declared
from cells import DTYPES, ELEMENTS, OPS
from triton_cells import (
    COMPILED,
    built,
    declared_steps,
    launch,
    launch_of,
    segment_steps,
    steps_of,
)

pytest.importorskip("triton")

from pullback.core.declare import Role
from pullback.gpu.launch import Launch
from pullback.gpu.offline import TARGETS, compile_step
from pullback.gpu.tiles import room_of
from pullback.tools.case import Case, cuts

# Shared memory that a program may use without asking for more, in bytes.
SHARED = {t: (64 if t.startswith("gfx") else 48) * 1024 for t in TARGETS}
EVERYTHING = os.environ.get("PULLBACK_COMPILE") == "all"


def check(step, kernel, target: str) -> None:
    what = f"{step.kernel.__name__} {dict(step.meta)} {target}"
    assert kernel.spilled == 0, f"{what} spills {kernel.spilled} bytes"
    assert kernel.shared <= SHARED[target], f"{what} uses {kernel.shared} bytes of shared memory"


def cells() -> list[tuple[str, str, str]]:
    """What to compile: every op once, every type with every target."""
    if EVERYTHING:
        return list(product(OPS, ELEMENTS, TARGETS))
    types, targets, found = list(ELEMENTS), list(TARGETS), []
    for k, name in enumerate(OPS):
        # One step more after each round of targets, or a target would meet but one type.
        turn = k + k // len(targets)
        found.append((name, types[k % len(types)], targets[turn % len(targets)]))
    return found


def test_pairs_are_all_compiled():
    assert {n for n, _, _ in cells()} == set(OPS)
    assert {(e, t) for _, e, t in cells()} == set(product(ELEMENTS, TARGETS))


@pytest.mark.parametrize(("name", "element", "target"), cells())
def test_contiguous_path(name, element, target):
    """No spills, little shared memory, all that is read position by position in 128 bits."""
    op = OPS[name]
    rows = len(op.names(Role.ROW))
    for step, kernel in built(steps_of(name, element), target):
        check(step, kernel, target)
        if cuts(op):
            continue
        narrow = [bits for bits in kernel.loads if bits < 128]
        assert len(narrow) <= rows, f"loads of {narrow} bits"
        narrow = [bits for bits in kernel.stores if bits < 128]
        by_row = len([o for o in op.writes if o.role is Role.ROW])
        assert len(narrow) <= by_row, f"stores of {narrow} bits"
    COMPILED.add((name, element, target))


@pytest.mark.parametrize("name", ["segment_sum", "segment_sum_backward"])
@pytest.mark.parametrize("columns", [256, 100])
def test_rows_of_segments_are_read_in_vectors(name, columns):
    case = Case.of(OPS[name], "f32", (65536, columns), (), 1000)
    for step in launch(case.problem).steps:
        kernel = compile_step(step, TARGETS["sm_90"])
        if step.kernel.__name__ != "mark_segments":
            assert 128 in kernel.loads
            assert 32 not in kernel.loads


@pytest.mark.parametrize(
    ("name", "element", "shape", "axis", "bits"),
    [
        ("softmax_backward", "f32", (64, 1000), 1, 128),
        ("softmax_backward", "bf16", (64, 1000), 1, 128),
        ("cumsum", "f64", (64, 1002), 1, 128),
        ("sum", "f16", (64, 20_008), 1, 128),
        ("softmax", "f32", (4096, 1004), 0, 128),
        ("softmax_backward", "bf16", (64, 1004), 1, 64),
        ("sum", "f32", (64, 1002), 1, 64),
    ],
)
def test_rows_of_whole_vectors_are_read_in_vectors(name, element, shape, axis, bits):
    """Where Triton, which looks for multiples of 16, sees none; half as long where they are."""
    for target in ("sm_80", "gfx942"):
        for step, kernel in built(launch_of(name, element, shape, axis).steps, target):
            check(step, kernel, target)
            assert set(kernel.loads) == {bits}, f"{step.kernel.__name__}: {kernel.loads}"


# Rows that are held in registers for a second look, as long as they may be: by one core, by a
# cluster of up to eight, or by one that has more registers.
HELD = [
    ("softmax", "f32", 32768, "sm_90"),
    ("softmax_backward", "f32", 32768, "sm_100"),
    ("softmax_backward", "f32", 131_072, "sm_90"),
    ("softmax_backward", "f32", 32768, "gfx1100"),
    ("softmax", "f32", 131_072, "sm_120"),
    ("log_softmax_backward", "f32", 32768, "gfx942"),
    ("entmax15_backward", "f32", 65536, "sm_90"),
    ("var_backward", "f32", 65536, "sm_90"),
    ("log_softmax", "bf16", 32768, "sm_80"),
    ("softmax_backward", "f32", 16384, "sm_90"),
    ("softmax_backward", "bf16", 32768, "sm_90"),
    ("log_softmax_backward", "bf16", 16384, "sm_90"),
    ("var_backward", "f16", 32768, "gfx942"),
    ("std", "f32", 32768, "sm_90"),
    ("std_backward", "f16", 32768, "sm_75"),
    ("norm2", "f64", 16384, "sm_90"),
    ("logsumexp", "bf16", 16384, "sm_90"),
    ("max_backward", "f32", 32768, "sm_90"),
]


@pytest.mark.parametrize(("name", "element", "length", "target"), HELD)
def test_held_rows(name, element, length, target):
    """One kernel that reads every operand once, and spills nothing of it."""
    made = launch_of(name, element, (4096, length), target=target)
    assert made.tile.is_whole(length)
    ((step, kernel),) = built(made.steps, target)
    check(step, kernel, target)
    operands = len([p for p in made.shape.inputs if p.full])
    assert looks(made, step, kernel, target) == operands
    assert ("barrier.cluster" in kernel.assembly) == (made.tile.cores > 1)


def looks(made, step, kernel, target: str) -> float:
    """How often a kernel reads its tile, by the vectors that it loads."""
    gpu = TARGETS[target]
    threads = step.options(gpu.backend, gpu.warp_size)["num_warps"] * gpu.warp_size
    bits = 8 * made.tile.units * made.tile.block * DTYPES[made.shape.element].itemsize
    return 128 * kernel.loads.count(128) * threads * step.cores / bits


# Times that a row too long to be held is read, all operands together.
LONG = {
    "softmax": 2,
    "logsumexp": 1,
    "cross_entropy": 1,
    "softmax_backward": 4,
    "var_backward": 2,
    "norm2": 1,
}


@pytest.mark.parametrize("name", LONG)
def test_reads_of_long_rows(name):
    made = launch_of(name, "f32", (4096, 200_000), target="sm_90")
    ((step, kernel),) = built(made.steps, "sm_90")
    check(step, kernel, "sm_90")
    assert looks(made, step, kernel, "sm_90") == LONG[name]


# Rows of which the tail is held: operands, elements of the tail, and how often the row is read.
PARTLY = [
    ("softmax_backward", "f32", 32768, 2, 16384, 3.0, "sm_89"),
    ("softmax_backward", "f32", 65536, 2, 16384, 3.5, "gfx942"),
    ("softmax", "f32", 65536, 1, 16384, 1.75, "sm_80"),
    ("var_backward", "bf16", 65536, 1, 32768, 1.5, "gfx90a"),
]


@pytest.mark.parametrize(
    ("name", "element", "length", "operands", "tail", "reads", "target"), PARTLY
)
def test_reads_of_rows_held_in_part(name, element, length, operands, tail, reads, target):
    made = launch_of(name, element, (4096, length), target=target)
    ((step, kernel),) = built(made.steps, target)
    check(step, kernel, target)
    assert made.tile.tail == tail
    # In the text stand the tail, once, and a block of either loop.
    blocks = looks(made, step, kernel, target)
    assert blocks == operands * (tail / made.tile.block + 2)
    assert operands * (tail + 2 * (length - tail)) / length == reads


SCHEDULES = {
    "long rows": ((4096, 20000), 1),
    "inner axis": ((2048, 8192), 0),
    "shared rows": ((2, 2_000_000), 1),
    "shared columns": ((100_000, 64), 0),
}
SAMPLE = ("cumsum_backward", "cummax_backward", "logcumsumexp", "var", "softmax_backward", "prod")
WORKING = tuple(n for n, op in OPS.items() if op.family in ("scan", "reduce", "softmax"))


# Two of the schedules for each op of the sample, by turns.
SCHEDULED = [
    (name, schedule)
    for k, name in enumerate(WORKING if EVERYTHING else SAMPLE)
    for n, schedule in enumerate(SCHEDULES)
    if EVERYTHING or (n + k) % 2
]


@pytest.mark.parametrize(("name", "schedule"), SCHEDULED)
def test_other_schedules(name, schedule):
    shape, axis = SCHEDULES[schedule]
    for element in ELEMENTS if EVERYTHING else ("f32",):
        for step, kernel in built(launch_of(name, element, shape, axis).steps, "sm_80"):
            check(step, kernel, "sm_80")


@pytest.mark.parametrize(("element", "ahead"), [("f32", 2), ("bf16", 4)])
def test_scans_read_ahead(element, ahead):
    """While a block is scanned, those after it are on their way, in vectors of 16 bytes."""
    made = launch_of("cumsum", element, (4096, 4096), 0)
    ((step, kernel),) = built(made.steps, "sm_90")
    check(step, kernel, "sm_90")
    assert "ld.global" not in kernel.assembly
    assert re.search(rf"cp\.async\.wait_group\s+{ahead - 1};", kernel.assembly)
    assert set(kernel.loads) == {128}
    # Where there are no such copies, and on AMD, nothing is read ahead.
    for target in ("sm_75", "gfx942"):
        ((_, plain),) = built(made.steps, target)
        assert plain.loads == (128,)


@pytest.mark.parametrize("element", ["f32", "bf16"])
def test_scans_that_run_both_ways_leave_registers(element):
    """Three programs on a core, each of which reads ahead: 2 MB on 132 of them and more."""
    made = launch_of("cumprod_backward", element, (4096, 4096), 0)
    ((step, kernel),) = built(made.steps, "sm_90")
    check(step, kernel, "sm_90")
    assert "cp.async" in kernel.assembly
    threads = 32 * step.options("cuda")["num_warps"]
    fit = 65536 // (threads * -(-kernel.registers // 8) * 8)
    assert fit >= 3
    at_once = min(step.programs, 132 * fit)
    nbytes = 2 * made.tile.units * made.tile.block * DTYPES[element].itemsize
    assert at_once * nbytes * (step.stages - 1) >= 2**21


@pytest.mark.parametrize("name", ["sum", "softmax"])
def test_folds_of_half_floats_down_columns_leave_registers(name):
    """For all 512 programs at once, and so for 2 MB under way."""
    made = launch_of(name, "bf16", (4096, 4096), 0)
    step, kernel = next(built(made.steps, "sm_90"))
    check(step, kernel, "sm_90")
    threads = 32 * step.options("cuda")["num_warps"]
    fit = 65536 // (threads * -(-kernel.registers // 8) * 8)
    assert 132 * fit >= step.programs
    assert step.programs * made.tile.units * made.tile.block * 2 >= 2**21


@pytest.mark.parametrize(
    ("name", "element", "length"),
    [
        ("logsumexp", "f32", 1024),
        ("logsumexp", "bf16", 1024),
        ("norm2", "f32", 1024),
        ("std", "bf16", 1024),
        ("norm2_backward", "bf16", 1024),
        ("std_backward", "f16", 1024),
        ("sum", "bf16", 100_000),
        ("norm2", "bf16", 100_000),
        ("std", "f32", 100_000),
    ],
)
def test_fast_rows_take_no_float64(name, element, length):
    """Neither values of short rows nor sums of long ones; with "tight" they do."""
    problem = Case.of(OPS[name], element, (4096, length), axis=1).problem
    ways = [("fast", False), ("tight", True)]
    for precision, takes in ways if length == 1024 and "backward" not in name else ways[:1]:
        made = launch(replace(problem, precision=precision))
        ((step, kernel),) = built(made.steps, "sm_89")
        check(step, kernel, "sm_89")
        assert bool(re.search(r"(add|mul|fma|div)\S*\.f64", kernel.assembly)) == takes


@pytest.mark.parametrize("name", [n for n, op in OPS.items() if op.ties])
def test_other_ties(name):
    for ties in OPS[name].ties[1:]:
        for step, kernel in built(launch_of(name, "f32", ties=ties).steps, "sm_80"):
            check(step, kernel, "sm_80")


@pytest.mark.parametrize("is_sorted", [True, False])
def test_segments_shared_by_programs(is_sorted):
    steps = segment_steps("segment_sum", "f32", is_sorted, segments=4)
    names = [s.kernel.__name__ for s in steps]
    assert [n.split("_", 4)[-1] for n in names[2:]] == ["all", "fold_0", "end"]
    for step, kernel in built(steps, "sm_80"):
        check(step, kernel, "sm_80")


# Ops of other shapes: every type of operand and output, states, borders, passes over segments.
DECLARED = {
    "recurrence": (new_ops.BY_NAME["two_step"], "f32", (64, 20000), "sm_90"),
    "its gradient": (new_ops.BY_NAME["two_step_backward"], "bf16", (2, 2_000_000), "gfx942"),
    "mask": (new_ops.BY_NAME["picky_softmax"], "f16", (64, 1000), "sm_80"),
    "resets": (declared.EXCLUSIVE, "f32", (64, 1000), "gfx942"),
    "integers": (declared.CROSS_ENTROPY, "bf16", (64, 50_000), "sm_100"),
    "weights": (declared.MIX_BACKWARD, "f64", (64, 1000), "sm_80"),
    "segments with a mask": (declared.MASKED_SEGMENTS, "f32", (65536, 64), "gfx942"),
    "saves of segments": (records.OPS["made_max_backward"], "bf16", (65536, 256), "sm_90"),
    "segments of two passes": (records.OPS["made_softmax"], "f32", (65536, 1), "sm_80"),
    "offsets": (records.OPS["offset_softmax"], "f16", (65536, 64), "sm_100"),
}


@pytest.mark.parametrize("which", DECLARED)
def test_declared_ops(which):
    op, element, shape, target = DECLARED[which]
    for step, kernel in built(declared_steps(op, element, shape), target):
        check(step, kernel, target)


# Each of them folded or scanned, along rows and down columns, whole and in parts.
LAID = [
    ("softmax_backward", "f32", (64, 1024), 1, "sm_90"),
    ("softmax_backward", "f32", (128, 32768), 1, "sm_90"),
    ("sum", "f64", (4096, 4096), 0, "gfx942"),
    ("logsumexp", "f16", (64, 20_000), 1, "sm_80"),
    ("cumsum", "bf16", (64, 20_000), 1, "gfx942"),
    ("cumsum", "f32", (4096, 4096), 0, "sm_90"),
    ("cumprod_backward", "f32", (4096, 4096), 0, "sm_90"),
    ("segment_sum", "f32", (65536, 64), 0, "sm_100"),
]


def steps_at(name, element, shape, axis, target, odd) -> list:
    """The launches of an op whose inputs lie at odd addresses, or not."""
    problem = Case.of(OPS[name], element, shape, (), 100, axis=axis).problem
    how = {} if problem.is_segmented else {"room": room_of(target)}
    return launch(problem, odd=odd, **how).steps


@pytest.mark.parametrize(("name", "element", "shape", "axis", "target"), LAID)
def test_addresses_do_not_change_the_order_of_a_sum(name, element, shape, axis, target):
    """Tiles lie over threads the same way wherever the operands lie."""
    op = OPS[name]
    everything = (*op.inputs, *op.outputs)
    alone = 0
    steps = zip(
        steps_at(name, element, shape, axis, target, ()),
        steps_at(name, element, shape, axis, target, everything),
        strict=True,
    )
    for plain, twinned in steps:
        even = compile_step(plain, TARGETS[target])
        odd = compile_step(twinned, TARGETS[target], odd=everything)
        assert odd.layouts == even.layouts
        check(twinned, odd, target)
        # Without the twins they would not: what is compared does differ.
        alone += compile_step(plain, TARGETS[target], odd=everything).layouts != even.layouts
    assert alone


@pytest.mark.parametrize("name", ["softmax_backward", "cumsum", "lerp"])
def test_negative_strides_on_amd(name):
    """Buffer instructions take no negative offset; others are used there, and only there."""
    op = OPS[name]
    problem = Case.of(op, "f32", (64, 1024), axis=1).problem
    everything = (*op.inputs, *op.outputs)
    for sign, far in ((1, ()), (-1, everything)):
        strides = dict.fromkeys(everything, (4096 * sign, 4 * sign))
        for step in Launch(problem, strides, in_place=False).steps:
            text = compile_step(step, TARGETS["gfx942"], far=far).assembly
            assert ("buffer_load" in text or "buffer_store" in text) == (sign > 0)
            assert "global_load" in text or sign > 0


# What waves exchange through shared memory, and lanes of a wave among themselves.
EXCHANGES = r"_dpp|ds_swizzle|ds_bpermute|v_permlane|v_readlane"


def unguarded(text: str) -> bool:
    """Whether a wave reads shared memory that one has written, with no barrier in between.

    Of code without branches back, in which what follows in the text follows in time.
    """
    written = False
    for opcode in re.findall(r"^\s+(ds_(?:write|store|read|load)\w*|s_barrier\w*)", text, re.M):
        if opcode.startswith("s_barrier"):
            written = False
        elif opcode.startswith(("ds_write", "ds_store")):
            written = True
        elif written:
            return True
    return False


@pytest.mark.parametrize("target", ["gfx942", "gfx1100"])
@pytest.mark.parametrize("name", ["cumsum", "cummax_backward", "softmax_backward"])
def test_folds_and_scans_on_amd(name, target):
    """Lanes exchange within a wave, waves through shared memory behind a barrier, none by atomics.

    That is all that is looked at of AMD's lowering: nothing of it is run.
    """
    ((step, kernel),) = built(launch_of(name, "f32", (4096, 4096)).steps, target)
    check(step, kernel, target)
    assert re.search(EXCHANGES, kernel.assembly)
    assert kernel.shared > 0
    assert not unguarded(kernel.assembly)
    assert unguarded(re.sub(r"s_barrier\w*", "s_nop", kernel.assembly))
    assert not re.search(r"atomic", kernel.assembly)


@pytest.mark.parametrize("target", TARGETS if EVERYTHING else ("sm_75", "sm_100", "gfx942"))
def test_parameters_of_the_problem_arrive_in_float64(target):
    """A weight that float32 does not hold is not rounded on its way to float64 elements."""
    steps = launch_of("lerp", "f64").steps
    for _, kernel in built(steps, target):
        assert not re.search(r"cvt\.f64\.f32|v_cvt_f64_f32", kernel.assembly)
    for _, kernel in built(launch_of("lerp", "f32").steps, target):
        assert re.search(r"cvt\.rn\.f32\.f64|v_cvt_f32_f64", kernel.assembly)


def test_wide_offsets():
    """Beyond 2**31 elements positions have 64 bits, and loads are as wide as ever."""
    made = launch_of("softmax_backward", "f32", (2**21, 2048))
    assert made.shape.wide
    for step, kernel in built(made.steps, "sm_80"):
        check(step, kernel, "sm_80")
        assert set(kernel.loads) == {128}
