"""What the compiler makes of every kernel, for GPUs that are not here.

    python benchmarks/gpu_report.py                                   # every op, type and target
    python benchmarks/gpu_report.py --ops cumsum --targets sm_89,gfx942 --dtypes f32,bf16
    python benchmarks/gpu_report.py --schedules rows --dtypes f32     # one of each
    python benchmarks/gpu_report.py --dtypes f32 --keep found.jsonl --write

A line for each kernel of a launch, as it is compiled: registers, spilled bytes, shared memory,
loads and stores of whole vectors and of less, the share of a core's threads that fit at once, and
the bytes that the whole GPU has asked for before the first arrive. ``--keep`` puts what was found
into a file and leaves out what is there already; ``--write`` puts the table into docs/gpu.md. The
exit code is 1 if anything spills, if elements are read or written in anything but vectors of 16
bytes, or if AMD's code has a buffer instruction where a stride is negative. Nothing is run, and no
time is estimated.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import click
from gpu_estimate import LATENCY, PAGE, launch_of

import pullback as pb
from pullback.core.catalog import OPS
from pullback.core.declare import Type
from pullback.formulas.record import RowFormula, ScanFormula, names_read
from pullback.gpu.launch import Launch
from pullback.gpu.offline import TARGETS, Built, compile_step
from pullback.gpu.segment import SegmentLaunch, check_step
from pullback.gpu.tiles import room_of
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


TABLE = re.compile(r"(?<=<!-- matrix:begin -->\n).*?(?=<!-- matrix:end -->)", re.DOTALL)


@dataclass(frozen=True)
class Core:
    """How many cores a GPU has, what one of them holds, and the GPU's bandwidth in TB/s."""

    count: int
    threads: int
    programs: int
    shared: int
    bandwidth: float
    registers: int = 65536


# A large chip of each architecture, from its maker's tables.
CORES = {
    "sm_75": Core(68, 1024, 16, 64 * 1024, 0.616),
    "sm_80": Core(108, 2048, 32, 164 * 1024, 2.04),
    "sm_86": Core(84, 1536, 16, 100 * 1024, 1.01),
    "sm_89": Core(128, 1536, 24, 100 * 1024, 1.01),
    "sm_90": Core(132, 2048, 32, 228 * 1024, 3.35),
    "sm_100": Core(148, 2048, 32, 228 * 1024, 8.0),
    "sm_120": Core(170, 1536, 24, 100 * 1024, 1.79),
    # Registers are those of all lanes of four SIMDs, threads eight waves on each.
    "gfx90a": Core(104, 2048, 32, 64 * 1024, 1.6, 131072),
    "gfx942": Core(304, 2048, 32, 64 * 1024, 5.3, 131072),
    "gfx950": Core(256, 2048, 32, 160 * 1024, 8.0, 131072),
    "gfx1100": Core(96, 2048, 32, 64 * 1024, 0.96, 98304),
    "gfx1201": Core(64, 2048, 32, 64 * 1024, 0.64, 98304),
}


def at_once(step: Any, built: Built, target: str) -> tuple[int, float]:
    """Programs that the GPU holds at once, and the share of its threads that they are."""
    core, gpu = CORES[target], TARGETS[target]
    threads = step.options(gpu.backend, gpu.warp_size)["num_warps"] * gpu.warp_size
    fits = min(core.programs, core.threads // threads)
    fits = min(fits, core.registers // (threads * max(1, -(-built.registers // 8) * 8)))
    fits = min(fits, core.shared // (built.shared + 1024))
    return min(step.programs, fits * core.count // step.cores), fits * threads / core.threads


@dataclass(frozen=True)
class Kernel:
    """A kernel of a launch.

    ``tile`` is the bytes of a tile of its operands, 0 where it reads next to nothing, or what only
    ids tell; ``narrow`` is how many loads and stores of less than a vector are not of elements.
    """

    step: Any
    schedule: str
    tile: int
    narrow: int | None


@dataclass(frozen=True)
class Found:
    """What the compiler made of a kernel, or of an op under negative strides."""

    op: str
    element: str
    target: str
    schedule: str
    kernel: str
    registers: int = 0
    shared: int = 0
    spilled: int = 0
    vectors: int = 0
    narrow: int = 0
    occupancy: float = 0.0
    flying: float = 0.0
    wrong: str = ""


def kernels(op: pb.Op, element: str, target: str, schedule: str) -> Iterator[Kernel]:
    """The kernels of an op under a schedule."""
    if schedule == "segments":
        case = Case.of(op, element, SEGMENTED, (), SEGMENTS)
        steps = [check_step(case.problem, 1, wants_order=False), *segment_launch(case).steps]
        yield from (Kernel(step, schedule, 0, None) for step in steps)
        return
    shape, axis = SCHEDULES[schedule]
    case = Case.of(op, element, shape, axis=axis)
    made = launch_of(case.problem, room_of(target))
    inputs = sum(p.full for p in made.shape.inputs)
    tile = made.tile.units * max(made.tile.block, made.tile.tail) * case.dtype.itemsize * inputs
    for step in made.steps:
        joins = isinstance(made.formula, RowFormula) and made.formula.finish
        joins = joins and step.kernel.__name__.endswith("_end")
        yield Kernel(step, schedule, 0 if joins else tile, others(made, step))


def applies(op: pb.Op, schedule: str) -> bool:
    """Whether an op has a schedule."""
    if cuts(op) or schedule == "segments":
        return cuts(op) and schedule == "segments"
    return SCHEDULES[schedule][1] == 1 or op.parameter("axis") is not None


def others(made: Launch, step: Any) -> int:
    """Loads and stores that are not of elements: values of rows, states, the end of a block."""
    operands = made.shape.operands
    rows = sum(not p.full for p in operands) * made.tile.units
    if not made.workspace and made.tile.is_whole(made.walk.length):
        return rows
    formula = made.formula
    monoids = [formula.monoid, formula.prefix] if isinstance(formula, ScanFormula) else []
    monoids += [p.monoid for p in formula.passes] if isinstance(formula, RowFormula) else []
    states = sum(len(m.state) for m in monoids if m)
    before = sum(n.endswith("_before") for n in names_read(formula))
    # A thread loads the states of several chunks, or units, and stores its own.
    each = 1 + max(1, made.tile.units * step.meta.get("C", 1) // (32 * step.warps))
    return rows + each * states * 2 + 2 * before


def segment_launch(case: Case) -> SegmentLaunch:
    """A launch on contiguous rows."""
    problem = case.problem
    strides = {}
    for operand in (*problem.reads, *problem.writes):
        shape = problem.shape_of(operand.name)
        strides[operand.name] = (shape[1], 1) if len(shape) > 1 else (1,)
    return SegmentLaunch(problem, strides)


def found_of(op: pb.Op, kernel: Kernel, element: str, target: str) -> Found:
    """What there is to say of a kernel, and what is wrong with it."""
    step = kernel.step
    built = compile_step(step, TARGETS[target])
    held, share = at_once(step, built, target)
    ahead = max(1, step.stages - 1) if "cp.async" in built.assembly else 1
    wrong = [f"spills {built.spilled} bytes"] if built.spilled else []
    narrow = [b for b in (*built.loads, *built.stores) if b < 128]
    if kernel.narrow is not None and len(narrow) > kernel.narrow:
        wrong.append(f"{len(narrow)} loads or stores of {sorted(set(narrow))} bits")
    return Found(
        op.name,
        element,
        target,
        kernel.schedule,
        step.kernel.__name__,
        built.registers,
        built.shared,
        built.spilled,
        len(built.loads) + len(built.stores) - len(narrow),
        len(narrow),
        round(share, 3),
        round(held * kernel.tile * ahead / 2**20, 2),
        "; ".join(wrong),
    )


def negative_strides(op: pb.Op, target: str) -> str:
    """Buffer instructions of AMD's under negative strides, which they do not take."""
    problem = Case.of(op, "f32", (64, 1024), axis=1).problem
    names = [o.name for o in (*problem.reads, *problem.writes)]
    strides = {}
    for n in names:
        columns = problem.shape_of(n)[1]
        strides[n] = (-4 * columns, -4) if columns > 1 else (-4, 4)
    for step in Launch(problem, strides, in_place=False, room=room_of(target)).steps:
        text = compile_step(step, TARGETS[target], far=names).assembly
        if "buffer_load" in text or "buffer_store" in text:
            return "a buffer instruction under a negative stride"
    return ""


def looked_at(op: pb.Op, element: str, target: str, schedule: str) -> Iterator[Found]:
    """Everything about an op on a target under a schedule; with that of rows, negative strides."""
    for kernel in kernels(op, element, target, schedule):
        yield found_of(op, kernel, element, target)
    plain = all(o.type is Type.ELEMENT for o in op.reads if not o.optional)
    if (element, schedule) == ("f32", "rows") and target.startswith("gfx") and plain:
        wrong = negative_strides(op, target)
        yield Found(op.name, element, target, "negative strides", "", wrong=wrong)


def line(f: Found) -> str:
    """A line for a kernel."""
    flying = f"{f.flying:>6.1f} MB in flight" if f.flying else ""
    return (
        f"{f.kernel or f.op:<44} {f.element:<5} {f.target:<8} {f.schedule:>16} "
        f"{f.registers:>4} registers {f.shared:>6} shared {f.vectors:>3} vectors {f.narrow:>3} "
        f"narrow {f.occupancy:>5.2f} {flying}  {f.wrong}"
    ).rstrip()


def table(found: list[Found]) -> str:
    """What was found, a line for each target and schedule, in Markdown."""
    head = (
        "| target | schedule | ops | kernels | spill | narrow | fewest threads | least in flight |"
    )
    lines = [f"{head} wanted |", "|---|---|---:|---:|---:|---:|---|---|---:|"]
    for target in CORES:
        wanted = CORES[target].bandwidth * 1e12 * LATENCY / 2**20
        schedules = dict.fromkeys(f.schedule for f in found if f.target == target)
        for schedule in schedules:
            here = [f for f in found if (f.target, f.schedule) == (target, schedule)]
            cells = [len({f.op for f in here}), len(here)]
            cells += [sum(f.spilled > 0 for f in here)]
            cells += [sum("loads" in f.wrong or "buffer" in f.wrong for f in here)]
            least, flying = min(here, key=lambda f: f.occupancy or 9), [f for f in here if f.flying]
            cells += [f"{least.occupancy:.2f} {least.op}" if least.occupancy else ""]
            short = min(flying, key=lambda f: f.flying, default=None)
            below = len([f for f in flying if f.flying < 0.95 * wanted])
            text = (
                f"{short.flying:.1f} MB {short.op}; {below} of {len(flying)} below" if short else ""
            )
            cells += [text, f"{wanted:.1f} MB" if short else ""]
            lines.append(f"| {target} | {schedule} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


@click.command()
@click.option("--ops", default=",".join(OPS), help="Names, separated by commas; all of them.")
@click.option("--dtypes", default="f32,bf16,f64,f16", show_default=True)
@click.option("--targets", default=",".join(TARGETS), show_default=True)
@click.option("--schedules", default=",".join((*SCHEDULES, "segments")), show_default=True)
@click.option("--keep", type=click.Path(path_type=Path), help="A file for what was found.")
@click.option("--write", is_flag=True, help="Put the table into docs/gpu.md.")
def main(ops: str, dtypes: str, targets: str, schedules: str, keep: Path | None, write: bool):
    """Compile every kernel for every target, and say what came out."""
    found = []
    if keep and keep.exists():
        found = [Found(**json.loads(text)) for text in keep.read_text().splitlines()]
    known = {(f.element, f.schedule, f.op, f.target) for f in found}
    cells = product(dtypes.split(","), schedules.split(","), ops.split(","), targets.split(","))
    for cell in cells:
        element, schedule, name, target = cell
        if cell in known or not applies(OPS[name], schedule):
            continue
        here = list(looked_at(OPS[name], element, target, schedule))
        found += here
        click.echo("\n".join(map(line, here)))
        if keep:
            with keep.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(f)) + "\n" for f in here)
    failed = [f for f in found if f.wrong]
    click.echo(f"{len(found)} kernels, {len(failed)} with something wrong")
    click.echo("\n".join(map(line, failed)))
    if write:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(TABLE.sub(lambda _: table(found), text), encoding="utf-8")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
