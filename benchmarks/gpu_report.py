"""What the compiler makes of every kernel, for GPUs that are not here.

    python benchmarks/gpu_report.py                                   # every op, type and target
    python benchmarks/gpu_report.py --ops cumsum --targets sm_89,gfx942 --dtypes f32,bf16
    python benchmarks/gpu_report.py --schedules rows --dtypes f32     # one of each

A line for each kernel of a launch, as it is compiled: registers, spilled bytes, shared memory, the
narrowest load, the share of a core's threads that fit at once, and the bytes that the whole GPU has
asked for before the first arrive. The exit code is 1 if anything spills, if rows of elements are
read or written in anything but vectors of 16 bytes, or if AMD's code has a buffer instruction where
a stride is negative. Nothing is run, and no time is estimated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click
from gpu_estimate import launch_of

import pullback as pb
from pullback.core.catalog import OPS
from pullback.core.declare import Role, Type
from pullback.gpu.launch import Launch
from pullback.gpu.offline import TARGETS, Built, compile_step
from pullback.gpu.segment import SegmentLaunch, check_step
from pullback.tools.case import Case, cuts

# Rows that are one block, columns, rows that are held in part, and rows that programs share.
SCHEDULES = {
    "rows": ((4096, 1024), 1),
    "columns": ((4096, 4096), 0),
    "long": ((2048, 65536), 1),
    "shared": ((2, 8_000_000), 1),
}
# Of ops that ids cut.
SEGMENTED, SEGMENTS = (65536, 256), 1000


@dataclass(frozen=True)
class Core:
    """How many cores a GPU has, and what one of them holds; shared memory in bytes."""

    count: int
    threads: int
    programs: int
    shared: int
    registers: int = 65536


# The largest chip of each architecture, from its maker's tables.
CORES = {
    "sm_75": Core(68, 1024, 16, 64 * 1024),
    "sm_80": Core(108, 2048, 32, 164 * 1024),
    "sm_86": Core(84, 1536, 16, 100 * 1024),
    "sm_89": Core(128, 1536, 24, 100 * 1024),
    "sm_90": Core(132, 2048, 32, 228 * 1024),
    "sm_100": Core(148, 2048, 32, 228 * 1024),
    "sm_120": Core(170, 1536, 24, 100 * 1024),
    # Registers are those of all lanes of four SIMDs, threads ten or eight waves on each.
    "gfx90a": Core(104, 2048, 32, 64 * 1024, 131072),
    "gfx942": Core(304, 2048, 32, 64 * 1024, 131072),
    "gfx950": Core(256, 2048, 32, 160 * 1024, 131072),
    "gfx1100": Core(96, 2048, 32, 64 * 1024, 98304),
    "gfx1201": Core(64, 2048, 32, 64 * 1024, 98304),
}


def at_once(step: Any, built: Built, target: str) -> tuple[int, float]:
    """Programs that the GPU holds at once, and the share of its threads that they are."""
    core, gpu = CORES[target], TARGETS[target]
    threads = step.options(gpu.backend, gpu.warp_size)["num_warps"] * gpu.warp_size
    fits = min(core.programs, core.threads // threads)
    fits = min(fits, core.registers // (threads * max(1, -(-built.registers // 8) * 8)))
    fits = min(fits, core.shared // (built.shared + 1024))
    return min(step.programs, fits * core.count), fits * threads / core.threads


@dataclass(frozen=True)
class Kernel:
    """A kernel of a launch: bytes of a tile of its operands, and loads and stores by row."""

    step: Any
    size: str
    tile: int
    by_row: int | None


def kernels(op: pb.Op, element: str, schedules: list[str]) -> Iterator[Kernel]:
    """The kernels of an op under each schedule; ``by_row`` where all else is whole vectors."""
    rows = [o for o in (*op.reads, *op.writes) if o.role is Role.ROW]
    if cuts(op):
        case = Case.of(op, element, SEGMENTED, (), SEGMENTS)
        size = "x".join(map(str, SEGMENTED))
        steps = [check_step(case.problem, 1, wants_order=False), *segment_launch(case).steps]
        yield from (Kernel(step, size, 0, None) for step in steps)
        return
    for schedule in schedules:
        shape, axis = SCHEDULES[schedule]
        if axis != 1 and op.parameter("axis") is None:
            continue
        case = Case.of(op, element, shape, axis=axis)
        made = launch_of(case.problem)
        inputs = sum(p.full for p in made.shape.inputs)
        tile = made.tile.units * made.tile.block * case.dtype.itemsize * inputs
        size = f"{'x'.join(map(str, shape))} axis {axis}"
        by_row = len(rows) if schedule == "rows" else None
        yield from (Kernel(step, size, tile, by_row) for step in made.steps)


def segment_launch(case: Case) -> SegmentLaunch:
    """A launch on contiguous rows."""
    problem = case.problem
    strides = {}
    for operand in (*problem.reads, *problem.writes):
        shape = problem.shape_of(operand.name)
        strides[operand.name] = (shape[1], 1) if len(shape) > 1 else (1,)
    return SegmentLaunch(problem, strides)


def line(kernel: Kernel, element: str, target: str) -> tuple[str, list[str]]:
    """What there is to say of a kernel, and what is wrong with it."""
    step = kernel.step
    built = compile_step(step, TARGETS[target])
    held, share = at_once(step, built, target)
    ahead = max(1, step.stages - 1) if "cp.async" in built.assembly else 1
    wrong = [f"spills {built.spilled} bytes"] if built.spilled else []
    narrow = [b for b in (*built.loads, *built.stores) if b < 128]
    if kernel.by_row is not None and len(narrow) > kernel.by_row:
        wrong.append(f"loads or stores of {sorted(set(narrow))} bits")
    flying = f"{held * kernel.tile * ahead / 2**20:>6.1f} MB in flight" if kernel.tile else ""
    return (
        f"{step.kernel.__name__:<44} {element:<5} {target:<8} {kernel.size:>18} "
        f"{built.registers:>4} registers {built.shared:>6} shared "
        f"{min(built.loads, default=0):>4} bits {share:>5.2f} {flying}"
    ).rstrip(), wrong


def negative_strides(op: pb.Op, target: str) -> list[str]:
    """Buffer instructions of AMD's under negative strides, which they do not take."""
    problem = Case.of(op, "f32", (64, 1024), axis=1).problem
    names = [o.name for o in (*problem.reads, *problem.writes)]
    strides = {}
    for n in names:
        columns = problem.shape_of(n)[1]
        strides[n] = (-4 * columns, -4) if columns > 1 else (-4, 4)
    for step in Launch(problem, strides, in_place=False).steps:
        if "buffer_load" in compile_step(step, TARGETS[target], far=names).assembly:
            return ["a buffer instruction under a negative stride"]
    return []


@click.command()
@click.option("--ops", default=",".join(OPS), help="Names, separated by commas; all of them.")
@click.option("--dtypes", default="f32,bf16,f64,f16", show_default=True)
@click.option("--targets", default=",".join(TARGETS), show_default=True)
@click.option("--schedules", default=",".join(SCHEDULES), show_default=True)
def main(ops: str, dtypes: str, targets: str, schedules: str) -> None:
    """Compile every kernel for every target, and say what came out."""
    compiled = failed = 0
    for element in dtypes.split(","):
        for op in (OPS[n] for n in ops.split(",")):
            for target in targets.split(","):
                for kernel in kernels(op, element, schedules.split(",")):
                    text, wrong = line(kernel, element, target)
                    compiled, failed = compiled + 1, failed + bool(wrong)
                    click.echo(f"{text}  {'; '.join(wrong)}".rstrip())
                plain = all(o.type is Type.ELEMENT for o in op.reads if not o.optional)
                if element == "f32" and target.startswith("gfx") and plain and not cuts(op):
                    wrong = negative_strides(op, target)
                    failed += bool(wrong)
                    what = f"{op.name:<44} f32   {target:<8} negative strides"
                    click.echo(f"{what}  {'; '.join(wrong)}".rstrip())
    click.echo(f"{compiled} kernels, {failed} with something wrong")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
