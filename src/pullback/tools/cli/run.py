"""``pullback run``."""

from __future__ import annotations

from collections.abc import Iterable
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

from ...core import parse
from ...core.catalog import OPS, catalog
from ...core.declare import Op, Parameter
from ..bench import find_op
from ..files import Interrupted, Job
from ..files.zarrs import is_zarr
from . import tables
from .encoding import in_ascii
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
  pullback run cumsum --x x.zarr --out y.zarr --workers 4

A .npy file or a zarr array is read in blocks, never as a whole. From a .npz archive, the member
named like the operand is used; any other file is raw and needs --dtype and --shape. An existing
output is replaced only with --force. An interrupted run leaves nothing under the name of the
output; --resume continues it.
"""

# Operands with a shorter name for the command line.
SHORT = {"segment_ids": "ids"}


class OpOptions(click.Command):
    """Has an option for every operand and parameter of the ops in the catalog.

    Its help lists those of the op that it is asked about.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own options after those of the ops."""
        own = super().get_params(ctx)
        known = {p.name for p in own}
        made = [o for o in _op_options(catalog()) if o.name not in known]
        return [*own[:1], *made, *own[1:]]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remember the op: help is printed before arguments are read."""
        ctx.meta[__name__] = next((OPS[a] for a in args if a in OPS), None)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options of the op, and then the command's own."""
        op = ctx.meta[__name__]
        if op is not None:
            with formatter.section(f"Options of {op.name}"):
                own = [o for o in _op_options([op]) if o.name not in _written_to_out(op)]
                formatter.write_dl(_told(ctx, own))
        with formatter.section("Options"):
            formatter.write_dl(_told(ctx, super().get_params(ctx)))


def _told(ctx: click.Context, options: Iterable[click.Parameter]) -> list[tuple[str, str]]:
    named = (o.get_help_record(ctx) for o in options if isinstance(o, click.Option))
    return [told for told in named if told is not None]


def _op_options(ops: Iterable[Op]) -> list[click.Option]:
    """Operands, then parameters, each as the last op that has it describes it."""
    ops = list(ops)
    operands = {o.name: o for op in ops for o in (*op.reads, *op.writes)}
    parameters = {p.name: p for op in ops for p in op.parameters}
    found = []
    for name, operand in operands.items():
        words = [f"--{_word(name)}", *([f"--{_dashed(name)}"] if name in SHORT else [])]
        kind = "number or file" if name in parameters else "file"
        found.append(click.Option([*words, name], metavar=kind.upper(), help=in_ascii(operand.doc)))
    for name, p in parameters.items():
        if name not in operands:
            flag = p.parse is parse.flag
            how: dict[str, Any] = {"is_flag": True} if flag else {"metavar": _metavar(p)}
            made = click.Option(
                [f"--{_dashed(name)}", name], default=None, help=in_ascii(p.doc), **how
            )
            found.append(made)
    return found


def _written_to_out(op: Op) -> tuple[str, ...]:
    """The result that has no option of its own: a single one is named by --out."""
    return op.outputs if len(op.outputs) == 1 else ()


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _word(name: str) -> str:
    return _dashed(SHORT.get(name, name))


def _metavar(p: Parameter) -> str:
    return "AXES" if p.parse in (parse.axis, parse.axes) else (p.kind.usual or "text").upper()


def _value(p: Parameter, text: Any) -> Any:
    """A parameter from its text; the op's own parser has the last word."""
    if not isinstance(text, str):
        return text
    if p.parse in (parse.axis, parse.axes):
        return _axis(text)
    read = {"int": int, "float": float}.get(p.kind.usual, str)
    try:
        if p.parse is parse.correction:
            return float(text)
        return None if text.lower() == "none" else read(text)
    except ValueError:
        kind = {int: "an integer", float: "a number"}[read]
        raise click.ClickException(f"{p.name}: expected {kind}, got {text[:40]!r}") from None


def _axis(text: str) -> Any:
    if text.strip().lower() in ("all", "none"):
        return None
    try:
        axes = tuple(int(part) for part in text.split(","))
    except ValueError:
        message = f"axis: expected an axis such as -1, axes such as 0,2, or all, got {text[:40]!r}"
        raise click.ClickException(message) from None
    return axes[0] if len(axes) == 1 else axes


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@click.command("run", cls=OpOptions, epilog=EPILOG)
@click.argument("op", type=OP)
@click.option("--out", type=click.Path(path_type=Path, readable=False),
              help="File for the result; several go into one .npz, or to --NAME each.")  # fmt: skip
@click.option("--shape", type=SHAPE, help="Shape of the full operands, if no file tells it.")
@click.option(
    "--dtype", type=DTYPE, help="Type of raw files: float32, float64, float16 or bfloat16."
)
@click.option("--memory", type=SIZE, help="The most memory this process may use, such as 2GB.")
@click.option("--threads", type=THREADS, help="Default: all CPUs.")
@click.option("--workers", type=click.IntRange(1), metavar="N",
              help="Number of processes to run on; --memory is their total.")  # fmt: skip
@click.option("--cluster", metavar="ADDRESS",
              help="Run on the dask cluster with this scheduler: tcp://host:8786.")  # fmt: skip
@click.option("--zarr-format", type=click.Choice(["2", "3"]),
              help="Format of zarr outputs; default: that of the inputs, or 3.")  # fmt: skip
@click.option("--resume", is_flag=True, help="Continue an interrupted run of the same command.")
@click.option("--force", is_flag=True, help="Replace an existing output.")
def command(op: str, **given: Any) -> None:
    """Run OP on files; they may be larger than memory.

    The options of an op are named after its operands and parameters; pullback run OP --help
    lists them.
    """
    row = find_op(op)
    inputs, parameters = _read(row, given)
    outputs = _outputs(row, given, {**parameters, **dict.fromkeys(inputs, True)})
    shape, dtype, memory = given["shape"], given["dtype"], given["memory"]
    job = Job(row, inputs, outputs, parameters, shape, dtype, memory, given["threads"],
              int(given["zarr_format"]) if given["zarr_format"] else None,
              given["cluster"], given["workers"])  # fmt: skip
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
    speed = tables.size(summary.moved / max(summary.seconds, 1e-9))
    limit = f" of {tables.size(given['memory'])}" if given["memory"] else ""
    where = "of a worker " if given["workers"] or given["cluster"] else ""
    again = f", {summary.resumed} done earlier" if summary.resumed else ""
    console().print(
        f"{', '.join(str(p) for p in dict.fromkeys(outputs.values()))}: "
        f"{tables.size(summary.moved)} in {summary.seconds:.1f} s, {speed}/s; "
        f"{summary.blocks} block{'s' * (summary.blocks != 1)}{again}; "
        f"peak memory {where}{tables.size(summary.peak)}{limit}"
    )


def _interrupted(interrupt: Interrupted) -> NoReturn:
    """Say what is left, and leave."""
    fail(f"interrupted; {interrupt}", 130)


# Names that promise nothing but bytes.
RAW = ("", ".bin", ".raw", ".dat")

OWN = (
    "out", "shape", "dtype", "memory", "threads", "resume", "force", "workers", "cluster",
    "zarr_format",
)  # fmt: skip


def _read(op: Op, given: dict[str, Any]) -> tuple[dict[str, Path], dict[str, Any]]:
    """Files by operand that is read, and parameters by name."""
    several = len(op.outputs) > 1
    inputs, parameters = {}, {}
    for name, text in given.items():
        p, known = op.parameter(name), name in op.inputs
        if name in OWN or text is None or (several and name in op.outputs and not known):
            continue
        if p and not (known and not _is_number(str(text))):
            parameters[name] = _value(p, text)
        elif known:
            inputs[name] = Path(text)
        else:
            raise click.ClickException(_refusal(op, name, str(text)))
    return inputs, parameters


def _refusal(op: Op, name: str, text: str) -> str:
    if name in op.outputs:
        return f"{_word(name)}: {op.name} has one result; use --out"
    known = any(name in (*other.inputs, *other.outputs) for other in catalog())
    if known and not _is_number(text):
        wanted = ", ".join(map(_word, op.inputs))
        return f"{_word(name)}: {op.name} reads {wanted} only"
    return f"{name}: {op.name} has no such parameter"


def _check_format(option: str, path: Path) -> None:
    """Refuse a name that promises a format other than those that are written, or that is none."""
    if not path.name:
        raise click.ClickException(f"--{option}: expected the name of a file, got a folder")
    if path.suffix.lower() not in (".npy", ".npz", *RAW) and not is_zarr(path):
        listed = ", ".join(s for s in RAW if s)
        raise click.ClickException(
            f"--{option}: {path.suffix} files are not written; use .npy, .npz or .zarr, or for raw "
            f"bytes {listed} or no suffix"
        )


def _outputs(op: Op, given: dict[str, Any], told: dict[str, Any]) -> dict[str, Path]:
    """Files by output; of those that something must ask for, ``told`` says which it asked for."""
    names = [o.name for o in op.writes if not o.asked_by or told.get(o.asked_by) is True]
    out, words = given["out"], ", ".join(f"--{_dashed(n)}" for n in names)
    for option, path in [("out", out), *((n, given.get(n)) for n in op.outputs)]:
        if path is not None and option not in op.inputs:
            _check_format(_dashed(option), Path(path))
    if out is not None:
        if len(names) > 1 and out.suffix.lower() != ".npz":
            raise click.ClickException(f"--out: several results need a .npz, or {words}")
        return dict.fromkeys(names, out)
    several = len(op.outputs) > 1
    found = {n: Path(given[n]) for n in op.outputs if several and given[n] and n not in op.inputs}
    if not found:
        raise click.ClickException(f"{words if several else '--out'}: no file to write given")
    return found
