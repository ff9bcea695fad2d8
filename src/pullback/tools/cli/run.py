"""``pullback run``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from ..bench import find_op
from ..files import Interrupted, Job, Options
from . import tables
from .output import bar, console
from .parameters import DTYPE, OP, SHAPE, SIZE, THREADS
from .root import fail

EPILOG = """
\b
Examples:
  pullback run softmax_backward --dy dy.npy --y y.npy --axis -1 --out dx.npy
  pullback run cumsum_backward --dy dy.npy --out dx.npy --memory 2GB
  pullback run sum_backward --dy dy.npy --shape 4096x512 --axis 0 --out dx.npy
  pullback run segment_sum --input x.npy --ids i.npy --num-segments 9 \\
    --out y.npy
  pullback run segment_sum_backward --d-output g.npy --ids i.npy --out dx.npy
  pullback run lerp_backward --dy dy.npy --weight 0.25 --da da.npy --db db.npy
  pullback run softmax --x x.bin --dtype bfloat16 --shape 64x4096 --out y.bin

A .npy file is read in blocks, never as a whole. Of a .npz the member called like the operand is
used; any other file is raw and needs --dtype and --shape. An output that exists is replaced with
--force only. An interrupted run leaves nothing under the name of the output; --resume continues it.
"""

FILE = click.Path(path_type=Path)
OUTPUT = click.Path(path_type=Path, readable=False)
# Option -> operand.
INPUTS = {
    "dy": "dy", "x": "x", "y": "y", "a": "a", "b": "b",
    "input": "input", "d_output": "d_output", "ids": "segment_ids",
}  # fmt: skip


def _axis(text: str) -> Any:
    if text.strip().lower() in ("all", "none"):
        return None
    try:
        axes = tuple(int(part) for part in text.split(","))
    except ValueError:
        message = f"axis: expected an axis such as -1, axes such as 0,2, or all, got {text!r}"
        raise click.ClickException(message) from None
    return axes[0] if len(axes) == 1 else axes


@click.command("run", epilog=EPILOG)
@click.argument("op", type=OP)
@click.option("--dy", type=FILE, help="Gradient by the output of the forward.")
@click.option("--x", type=FILE, help="Input of the forward.")
@click.option("--y", type=FILE, help="Output of the forward.")
@click.option("--a", type=FILE, help="Of lerp: the value at weight 0.")
@click.option("--b", type=FILE, help="Of lerp: the value at weight 1.")
@click.option("--input", "input", type=FILE, help="Of segment_sum: the rows to add.")
@click.option("--d-output", type=FILE, help="Of segment_sum_backward: one row a segment.")
@click.option("--ids", type=FILE, help="Of segment ops: int32 or int64 ids.")
@click.option("--out", type=OUTPUT, help="The result.")
@click.option("--da", type=OUTPUT, help="Of lerp_backward.")
@click.option("--db", type=OUTPUT, help="Of lerp_backward.")
@click.option("--axis", default="-1", show_default=True, help="Such as -1, 0,2 or all.")
@click.option("--shape", type=SHAPE, help="Of the full operands, where no file tells.")
@click.option("--dtype", type=DTYPE, help="Of raw files: float32, float64, float16 or bfloat16.")
@click.option("--reverse", is_flag=True, help="The scan runs from the end.")
@click.option("--ties", type=click.Choice(["first", "last", "split", "all"]),
              help="Of max, min, cummax and cummin.")  # fmt: skip
@click.option("--correction", type=float, default=1.0, show_default=True, help="Of var and std.")
@click.option("--weight", type=float, help="Of lerp.")
@click.option("--keepdims", is_flag=True, help="Keep the reduced axes at length 1.")
@click.option("--num-segments", type=click.IntRange(min=0), help="Of segment_sum.")
@click.option("--sorted", "is_sorted", is_flag=True, help="The ids ascend.")
@click.option("--out-of-range", type=click.Choice(["raise", "drop"]), default="raise",
              show_default=True, help="Of ids.")  # fmt: skip
@click.option("--memory", type=SIZE, help="Such as 2GB: the most this process may occupy.")
@click.option("--threads", type=THREADS, help="Default: all CPUs.")
@click.option("--resume", is_flag=True, help="Continue an interrupted run of the same command.")
@click.option("--force", is_flag=True, help="Replace an output that exists.")
def command(op: str, **given: Any) -> None:
    """Run OP on files; they may be larger than memory."""
    row = find_op(op)
    inputs = {name: given[o] for o, name in INPUTS.items() if given[o] is not None}
    outputs = _outputs(row.outputs, given)
    options = Options(
        axis=_axis(given["axis"]),
        shape=given["shape"],
        dtype=given["dtype"],
        reverse=given["reverse"],
        ties=given["ties"],
        correction=given["correction"],
        weight=given["weight"],
        keepdims=given["keepdims"],
        num_segments=given["num_segments"],
        is_sorted=given["is_sorted"],
        out_of_range=given["out_of_range"],
    )
    job = Job(row, inputs, outputs, options, given["memory"], given["threads"])
    columns = (
        TextColumn(row.name, markup=False),
        BarColumn(bar_width=24),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    try:
        with bar(*columns) as progress:
            task = progress.add_task("", total=None)
            summary = job.run(
                given["resume"],
                lambda done, total: progress.update(task, completed=done, total=total),
                given["force"],
            )
    except Interrupted as interrupt:
        _interrupted(interrupt)
    except KeyboardInterrupt:
        fail("interrupted", 130)
    if summary.discarded:
        click.echo(
            f"pullback: discarded {summary.discarded} blocks of an earlier run, "
            "which --resume would have continued",
            err=True,
        )
    if given["resume"] and not summary.resumed:
        click.echo("pullback: found nothing to resume; ran from the start", err=True)
    speed = tables.size(summary.bytes / max(summary.seconds, 1e-9))
    limit = f" of {tables.size(given['memory'])}" if given["memory"] else ""
    again = f", {summary.resumed} of them before" if summary.resumed else ""
    console().print(
        f"{', '.join(str(p) for p in dict.fromkeys(outputs.values()))}: "
        f"{tables.size(summary.bytes)} in {summary.seconds:.1f} s, {speed}/s; "
        f"{summary.blocks} block{'s' * (summary.blocks != 1)}{again}; "
        f"peak memory {tables.size(summary.peak)}{limit}"
    )


def _interrupted(interrupt: Interrupted) -> NoReturn:
    """Say what is left, and leave; at once if a kernel runs on, whose code an exit would free."""
    try:
        fail(f"interrupted; {interrupt}", 130)
    finally:
        if interrupt.still_running:
            os._exit(130)


def _outputs(names: tuple[str, ...], given: dict[str, Any]) -> dict[str, Path]:
    if len(names) == 1:
        if given["da"] or given["db"]:
            raise click.ClickException("--da and --db are for lerp_backward; use --out")
        if given["out"] is None:
            raise click.ClickException("--out: no file to write given")
        return {names[0]: given["out"]}
    if given["out"] is not None:
        if given["out"].suffix.lower() != ".npz":
            raise click.ClickException("--out: two results need a .npz, or --da and --db")
        return dict.fromkeys(names, given["out"])
    found = {n: given[n] for n in names if given[n] is not None}
    if not found:
        raise click.ClickException("--da, --db: no file to write given")
    return found
