"""Estimate, without a GPU, what share of its copy bandwidth each kernel can reach.

    python benchmarks/gpu_estimate.py            # writes the table into docs/gpu.md
    python benchmarks/gpu_estimate.py --print    # shows it instead

Nothing is measured. Every op is compiled for an H100 (sm_90) on 4096x1024, whose rows fit one
block: there is no loop, so the instructions of the machine code are those that a warp executes.
Counted by the unit they run on and divided by the throughput of that unit, they give a time; the
bytes of all operands, each once, divided by the bandwidth of a copy, give another. The share is the
second over the longer of the two. Latencies, barriers, bank conflicts and the start of a launch are
left out: a kernel may well be slower than this.

The kernel of a segment sum loops over rows that only the ids tell; of that op the bytes alone are
counted, those of the sort included.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import pullback as pb
from pullback.core.problem import Problem
from pullback.core.vocabulary import ElementKind
from pullback.gpu.launch import Launch
from pullback.gpu.offline import TARGETS, compile_step, cuobjdump
from pullback.gpu.segment import check_step, gather_steps
from pullback.tools.bench.case import Case

PAGE = Path(__file__).parents[1] / "docs" / "gpu.md"
TABLE = re.compile(r"(?<=<!-- estimates:begin -->\n).*?(?=<!-- estimates:end -->)", re.DOTALL)
SHAPE = (4096, 1024)
ROWS, COLUMNS, SEGMENTS = 65536, 256, 8192
DTYPES = ("f32", "bf16", "f64")
# H100 SXM: streaming multiprocessors, clock, and 0.92 of 3.35 TB/s, as copies reach.
CORES, HERTZ, BANDWIDTH = 132, 1.755e9, 0.92 * 3.35e12
# Threads per clock and core, by unit, from NVIDIA's table for compute capability 9.0. Every
# instruction takes one of the 128 slots to issue it as well.
UNITS = {"float64": 64, "integer": 64, "conversion": 16, "special": 16, "exchange": 32}
ISSUED = 128
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


def seconds(steps: list[Any], element: str) -> tuple[float, str]:
    """Time of the compiled code, and what takes it."""
    busy: Counter[str] = Counter()
    for step in steps:
        built = compile_step(step, element, TARGETS["sm_90"])
        threads = step.programs * step.options("cuda")["num_warps"] * 32
        for opcode in executed(cuobjdump(built.binary, "-sass")):
            busy["instructions"] += threads / ISSUED
            unit = unit_of(opcode)
            if unit:
                busy[unit] += threads / UNITS[unit]
    unit, clocks = max(busy.items(), key=lambda found: found[1])
    return clocks / (CORES * HERTZ), unit


def row_steps(case: Case) -> list[Any]:
    """The kernels of an op on contiguous operands."""
    ties = case.op.ties[0] if case.op.ties else None
    data = (("weight", case.weight),)
    selection = (ties,) if ties else ()
    problem = Problem(case.op, case.element, case.shape, case.axes, selection, data=data)
    item = ElementKind(case.element).itemsize
    strides = {
        n: (problem.shape_of(n)[1] * item, item) for n in (*case.op.inputs, *case.op.outputs)
    }
    return Launch(problem, strides, in_place=False).steps


def estimate(case: Case) -> tuple[float, str]:
    """The share of a copy's bandwidth, and what limits it."""
    if case.op.name == "segment_sum":
        # Ids are read by the check and by the sum; a sort adds its passes and the order it gives.
        extra = 8 * ROWS + ((SORT_BYTES + 16) * ROWS if case.order == "random" else 0)
        share = case.useful_bytes / (case.useful_bytes + extra)
        return share, "memory" if case.order == "sorted" else "sort"
    if case.family == "segment":
        problem = Problem(case.op, case.element, case.shape, (0,), segments=SEGMENTS)
        wide = (COLUMNS, 1)
        strides = {"segment_ids": (1,), "d_output": wide, "d_input": wide}
        steps = [check_step(problem, 1, wants_order=False), *gather_steps(problem, strides)]
    else:
        steps = row_steps(case)
    moved = case.useful_bytes / BANDWIDTH
    computed, unit = seconds(steps, case.element)
    return moved / max(moved, computed), "memory" if moved >= computed else unit


def cases(element: str) -> Iterator[tuple[str, Case]]:
    """Every op under the name the table has for it."""
    for op in pb.catalog():
        if op.family != "segment":
            yield op.name, Case(op, element, SHAPE, None if op.family == "lerp" else 1)
            continue
        for order in ("sorted", "random") if op.direction == "forward" else ("random",):
            name = f"{op.name}, {order} ids" if op.direction == "forward" else op.name
            rows = (ROWS, COLUMNS)
            yield name, Case(op, element, rows, None, segments=SEGMENTS, order=order)


def table() -> str:
    """The table in Markdown."""
    columns = [{name: estimate(case) for name, case in cases(element)} for element in DTYPES]
    head = " | ".join(f"{element} | limited by" for element in DTYPES)
    lines = [f"| op | {head} |", "|---|" + "---:|---|" * len(DTYPES)]
    for name in columns[0]:
        cells = " | ".join(f"{c[name][0]:.2f} | {c[name][1]}" for c in columns)
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines) + "\n"


@click.command()
@click.option("--print", "prints", is_flag=True, help="Show the table instead of writing it.")
def main(prints: bool) -> None:
    """Estimate the share of copy bandwidth of every op, and write it into docs/gpu.md."""
    made = table()
    if prints:
        click.echo(made, nl=False)
        return
    text = PAGE.read_text(encoding="utf-8")
    if not TABLE.search(text):
        raise click.ClickException(f"{PAGE.name} has no markers for the table")
    PAGE.write_text(TABLE.sub(lambda _: made, text), encoding="utf-8")


if __name__ == "__main__":
    main()
