"""Estimate, without a GPU, what share of its copy bandwidth each kernel can reach.

    python benchmarks/gpu_estimate.py            # writes the table into docs/gpu.md
    python benchmarks/gpu_estimate.py --print    # shows it instead

Nothing is measured. Every op is compiled for an H100 (sm_90) on 4096x1024, whose rows fit one
block: there is no loop, so the instructions of the machine code are those that a warp executes.
Counted by the unit they run on and divided by the throughput of that unit, they give a time; the
bytes of all operands, each once, divided by the bandwidth of a copy, give another. The share is the
second over the longer of the two. Latencies, barriers, bank conflicts and the start of a launch are
left out: a kernel may well be slower than this.

A fold of segments loops over rows that only the ids tell; of those ops the bytes alone are counted,
those of the sort included. How often a pass is taken that repeats until it rests, only the data
tell; ops with one have no estimate.

The same is done for a GPU with few units for float64, and the ops that have records in float32 for
such: with the precision "fast" beside "tight".

A second table has the latencies. What all programs that fit on the GPU at once have asked for,
before any of it arrives, divided by the time that takes, is a bandwidth that no schedule exceeds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

import pullback as pb
from pullback.core.catalog import OPS
from pullback.core.elements import ELEMENTS
from pullback.core.problem import Problem
from pullback.formulas.record import RowFormula, repeats
from pullback.gpu.frame import default_dtype
from pullback.gpu.launch import Launch
from pullback.gpu.offline import TARGETS, compile_step, cuobjdump
from pullback.gpu.segment import SegmentLaunch, check_step, has_runs
from pullback.gpu.tiles import ALONE, Room, room_of
from pullback.tools.case import Case, cuts

PAGE = Path(__file__).parents[1] / "docs" / "gpu.md"
TABLE = re.compile(r"(?<=<!-- estimates:begin -->\n).*?(?=<!-- estimates:end -->)", re.DOTALL)
DOUBLES = re.compile(r"(?<=<!-- doubles:begin -->\n).*?(?=<!-- doubles:end -->)", re.DOTALL)
FLYING = re.compile(r"(?<=<!-- flights:begin -->\n).*?(?=<!-- flights:end -->)", re.DOTALL)
SHAPE = (4096, 1024)
ROWS, COLUMNS, SEGMENTS = 65536, 256, 8192
DTYPES = ("f32", "bf16", "f64")
# From a load to its data, in seconds, with the memory busy.
LATENCY = 0.6e-6
# Instructions that a core can issue in a clock, for all threads together.
ISSUED = 128


@dataclass(frozen=True)
class Gpu:
    """Cores, clock, and 0.92 of the data sheet's bandwidth, as copies reach.

    ``units`` has threads per clock and core, from NVIDIA's table of throughputs. Every instruction
    takes one of the slots to issue it as well.
    """

    target: str
    cores: int
    hertz: float
    bandwidth: float
    units: dict[str, int]


_UNITS = {"float64": 64, "integer": 64, "conversion": 16, "special": 16, "exchange": 32}
H100 = Gpu("sm_90", 132, 1.755e9, 0.92 * 3.35e12, _UNITS)
RTX_4090 = Gpu("sm_89", 128, 2.52e9, 0.92 * 1.008e12, _UNITS | {"float64": 2, "conversion": 2})
OPCODES = {
    "float64": "DADD DMUL DFMA DSETP DMNMX",
    "integer": "IADD3 LOP3 SHF LEA ISETP IMNMX VIMNMX FSETP FMNMX SEL FSEL PRMT PLOP3 F2FP I2FP",
    "special": "MUFU",
    "exchange": "LDG STG LDS STS SHFL",
}
UNIT_OF = {opcode: unit for unit, opcodes in OPCODES.items() for opcode in opcodes.split()}
# Radix passes of 8 bits over 64-bit ids and positions, each read and written.
SORT_BYTES = 8 * 32
LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)([^;]*)", re.M)


def unit_of(opcode: str) -> str | None:
    """The unit that may limit an instruction; None where only its issue does."""
    name = opcode.split(".")[0]
    if name in ("F2F", "I2F", "F2I", "FRND") and "64" in opcode:
        return "conversion"
    return UNIT_OF.get(name)


def executed(sass: str) -> Iterator[str]:
    """Opcodes up to the end of the kernel; what follows are the slow paths of divisions and roots.

    Code that runs more than once cannot be counted this way and is refused.
    """
    for address, condition, opcode, operands in LINE.findall(sass):
        target = re.search(r"0x([0-9a-f]+)", operands) if opcode.startswith("BRA") else None
        if target and int(target[1], 16) <= int(address, 16):
            raise ValueError(f"a loop back to {target[1]} at {address}")
        if opcode != "NOP":
            yield opcode
        if opcode == "EXIT" and not condition:
            return
    raise ValueError("a kernel without an end")


def seconds(steps: list[Any], gpu: Gpu = H100) -> tuple[float, str]:
    """Time of the compiled code, and what takes it."""
    busy: Counter[str] = Counter()
    for step in steps:
        built = compile_step(step, TARGETS[gpu.target])
        threads = step.programs * step.options("cuda")["num_warps"] * 32
        for opcode in executed(cuobjdump(built.binary, "-sass")):
            busy["instructions"] += threads / ISSUED
            unit = unit_of(opcode)
            if unit:
                busy[unit] += threads / gpu.units[unit]
    unit, clocks = max(busy.items(), key=lambda found: found[1])
    return clocks / (gpu.cores * gpu.hertz), unit


def row_steps(case: Case) -> list[Any]:
    """The kernels of an op on contiguous operands."""
    problem = case.problem
    return launch_of(problem, room_of(H100.target)).steps


def launch_of(problem: Problem, room: Room = ALONE) -> Launch:
    """A launch on contiguous matrices."""
    strides = {}
    for operand in (*problem.reads, *problem.writes):
        item = ELEMENTS[default_dtype(operand, problem.element)].itemsize
        strides[operand.name] = (problem.shape_of(operand.name)[1] * item, item)
    return Launch(problem, strides, in_place=False, room=room)


def estimate(case: Case, gpu: Gpu = H100) -> tuple[float, str]:
    """The share of a copy's bandwidth, and what limits it."""
    if case.is_segmented and has_runs(case.problem):
        # Ids are read by the check and by the fold; a sort adds its passes and the order it gives.
        extra = 8 * ROWS + ((SORT_BYTES + 16) * ROWS if not case.is_sorted else 0)
        share = case.useful_bytes / (case.useful_bytes + extra)
        return share, "memory" if case.is_sorted else "sort"
    if case.is_segmented:
        problem = case.problem
        operands = [o.name for o in (*problem.reads, *problem.writes)]
        strides = {n: (COLUMNS, 1) if n != problem.cut_by.name else (1,) for n in operands}
        launch = SegmentLaunch(problem, strides)
        steps = [check_step(problem, 1, wants_order=False), *launch.steps]
    else:
        steps = row_steps(case)
    moved = case.useful_bytes / gpu.bandwidth
    computed, unit = seconds(steps, gpu)
    return moved / max(moved, computed), "memory" if moved >= computed else unit


def cases(element: str) -> Iterator[tuple[str, Case]]:
    """Every op under the name the table has for it, but for those with passes that repeat."""
    for op in pb.catalog():
        if repeats(op.record()):
            continue
        if not cuts(op):
            yield op.name, Case.of(op, element, SHAPE, axis=1)
            continue
        for is_sorted in (True, False) if op.direction == "forward" else (False,):
            order = "sorted" if is_sorted else "random"
            name = f"{op.name}, {order} ids" if op.direction == "forward" else op.name
            yield name, Case.of(op, element, (ROWS, COLUMNS), (), SEGMENTS, is_sorted)


# Schedules that loop, and a shape for each.
FLIGHTS = (
    ("softmax_backward", (4096, 1024), 1),
    ("softmax_backward", (4096, 4096), 0),
    ("softmax", (4096, 32768), 1),
    ("softmax_backward", (4096, 65536), 1),
    ("sum", (4096, 4096), 0),
    ("sum", (2, 8_000_000), 1),
    ("cumsum", (4096, 4096), 0),
    ("cumsum", (128, 20_000), 1),
    ("cumsum", (1, 100_000_000), 1),
    ("cumprod_backward", (4096, 4096), 0),
)


def resident(step: Any, registers: int, shared: int) -> int:
    """Programs that an H100 holds at once."""
    threads = 32 * step.options("cuda")["num_warps"]
    fits = min(32, 2048 // threads, 65536 // (threads * -(-registers // 8) * 8))
    fits = min(fits, 227 * 1024 // (shared + 1024))
    return min(step.programs, fits * H100.cores // step.cores)


def in_flight(name: str, element: str, shape: tuple[int, int], axis: int) -> str:
    """A line of the table of what a schedule asks for before the first of it arrives."""
    case = Case.of(OPS[name], element, shape, axis=axis)
    launch = launch_of(case.problem, room_of("sm_90"))
    inputs = sum(p.full for p in launch.shape.inputs)
    asked = []
    # What joins the chunks of a fold reads next to nothing.
    formula = case.problem.formula
    joins = isinstance(formula, RowFormula) and formula.finish and len(launch.steps) > 1
    for step in launch.steps[: -1 if joins else None]:
        built = compile_step(step, TARGETS["sm_90"])
        held = resident(step, built.registers, built.shared)
        # A loop that reads ahead has asked for all but the block that it computes.
        tile = launch.tile.units * launch.tile.block * max(1, step.stages - 1)
        asked.append((held, built.registers, held * tile * case.dtype.itemsize * inputs))
    held, registers, flying = min(asked, key=lambda a: a[2])
    share = min(1.0, flying / LATENCY / H100.bandwidth)
    size = "x".join(map(str, shape))
    cut = f"{launch.tile.units}x{launch.tile.block}"
    return (
        f"| {name} {size} axis {axis} | {element} | {cut} | {launch.steps[0].programs} | {held} "
        f"| {registers} | {flying / 2**20:.1f} | {share:.2f} |"
    )


def flights() -> str:
    """The table of bytes in flight in Markdown."""
    head = "| schedule | type | tile | programs | at once | registers | MB in flight | share |"
    lines = [head, "|---|---|---|---:|---:|---:|---:|---:|"]
    lines += [in_flight(n, e, s, a) for n, s, a in FLIGHTS for e in ("f32", "bf16")]
    return "\n".join(lines) + "\n"


def table() -> str:
    """The table in Markdown."""
    columns = [{name: estimate(case) for name, case in cases(element)} for element in DTYPES]
    head = " | ".join(f"{element} | limited by" for element in DTYPES)
    lines = [f"| op | {head} |", "|---|" + "---:|---|" * len(DTYPES)]
    for name in columns[0]:
        cells = " | ".join(f"{c[name][0]:.2f} | {c[name][1]}" for c in columns)
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines) + "\n"


def doubles() -> str:
    """The table of a GPU with few units for float64, in Markdown."""
    head = "| op | type | fast | limited by | tight | limited by |"
    lines = [head, "|---|---|---:|---|---:|---|"]
    for name in ("norm2", "std", "logsumexp"):
        for element in ("bf16", "f32"):
            case, cells = Case.of(OPS[name], element, SHAPE, axis=1), []
            for precision in ("fast", "tight"):
                steps = launch_of(replace(case.problem, precision=precision)).steps
                moved = case.useful_bytes / RTX_4090.bandwidth
                computed, unit = seconds(steps, RTX_4090)
                limit = "memory" if moved >= computed else unit
                cells.append(f"{moved / max(moved, computed):.2f} | {limit}")
            lines.append(f"| {name} | {element} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


@click.command()
@click.option("--print", "prints", is_flag=True, help="Show the table instead of writing it.")
def main(prints: bool) -> None:
    """Estimate the share of copy bandwidth of every op, and write it into docs/gpu.md."""
    made = {DOUBLES: doubles(), FLYING: flights(), TABLE: table()}
    text = PAGE.read_text(encoding="utf-8")
    for markers, content in made.items():
        if prints:
            click.echo(content)
            continue
        if not markers.search(text):
            raise click.ClickException(f"{PAGE.name} has no markers for the table")
        text = markers.sub(lambda _, content=content: content, text)
    if not prints:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
