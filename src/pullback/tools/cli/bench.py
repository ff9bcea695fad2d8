"""``pullback bench``."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from ...threads import get_num_threads
from .. import bench as b
from ..bench.plot import bars, lines, require
from . import on_device, tables
from .on_device import DEVICES
from .output import (
    EXISTING,
    FILE,
    console,
    ensure_all_writable,
    ensure_writable,
    read_json,
    steps,
    write_atomically,
    write_json,
)
from .parameters import AXIS_LIST, DTYPE_LIST, OP, SHAPE_LIST, THREADS, ListOf
from .records import RecordOptions, choices_of

EPILOG = """
\b
Examples:
  pullback bench                                  all ops, f32; some minutes
  pullback bench softmax cumsum --dtypes f32,bf16 --shapes 4096x4096 --axes -1
  pullback bench --grid --json now.json           all sizes; an hour
  pullback bench --full --json now.json           hours; can be resumed
  pullback bench --from now.json --html now.html --plot now.png
  pullback bench --compare before.json
  pullback bench cumprod --exclusive --resets --peers jax,torch
  pullback bench segment_softmax --shapes 477263x256 --segments 135361 \\
    --order random
  pullback bench cumprod --scaling
  pullback bench --frontends
  pullback bench --device cuda --peers torch,compile,liger,flaggems
"""

GRIDS = {"quick": b.QUICK, "grid": b.SIZES, "full": b.FULL}
USUAL_PEERS = {"quick": b.QUICK_PEERS, "grid": ("torch", "compile", "jax", "numpy")}
# Where a long run is saved that names no file.
FULL_REPORT = "pullback-bench.json"
PEER_LIST = ListOf("peers", str.strip, (*b.PEERS, "liger", "flaggems", "none"))


class _TimeIsUp(Exception):
    """No more cases are to be measured."""


@click.command("bench", cls=RecordOptions, epilog=EPILOG)
@click.argument("ops", nargs=-1, type=OP)
@click.option(
    "--quick", "mode", flag_value="quick", default=True, help="Takes some minutes (the default)."
)
@click.option(
    "--full",
    "mode",
    flag_value="full",
    help="All shapes and peers; takes hours. Saved after every case; run it again to continue.",
)
@click.option(
    "--grid",
    "mode",
    flag_value="grid",
    help="Every op, forward and backward, from 16x64 to beyond the caches; an hour. Saved "
    "after every case.",
)
@click.option("--minutes", type=click.FloatRange(min=0), help="Stop after this many minutes.")
@click.option("--direction", type=click.Choice(b.DIRECTIONS),
              help="Default: backward; both with --grid.")  # fmt: skip
@click.option("--dtypes", type=DTYPE_LIST, help="For example f32,bf16.")
@click.option("--shapes", type=SHAPE_LIST, help="For example 4096x4096,64x256x1024.")
@click.option("--axes", type=AXIS_LIST, help="For example -1,0.")
@click.option("--segments", type=click.IntRange(min=1),
              help="Number of segments for the rows of --shapes; default: rows / 26.")  # fmt: skip
@click.option("--order", type=ListOf("order", str.strip, b.ORDERS),
              help="Order of segment ids: sorted,random, or one of them.")  # fmt: skip
@click.option("--threads", type=THREADS, help="Default: all CPUs.")
@click.option("--peers", type=PEER_LIST, help=f"From {', '.join(b.PEERS)}; or none, or all.")
@click.option("--rounds", type=click.IntRange(min=1), help="Samples per contender.")
@click.option("--stat", type=click.Choice(["min", "median"]), default="min", show_default=True)
@click.option("--device", type=click.Choice(DEVICES), default="cpu", show_default=True,
              help="Where the kernels run; on a GPU one line is printed per case.")  # fmt: skip
@click.option(
    "--scaling", is_flag=True, help="Instead, measure time against size, zeros and threads."
)
@click.option(
    "--frontends", is_flag=True, help="Instead, time forward and backward through torch and JAX."
)
@click.option("--json", "json_file", type=FILE, help="Write the report to a file (- for stdout).")
@click.option("--from", "from_file", type=EXISTING, help="Show a saved report and measure nothing.")
@click.option("--plot", "plot_file", type=FILE, help="Draw a bar chart as a PNG file.")
@click.option("--html", "html_file", type=FILE, help="Write an HTML page that needs no network.")
@click.option(
    "--compare", "old_file", type=EXISTING, help="Show what changed since this JSON report."
)
def command(
    ops: tuple[str, ...],
    mode: str,
    minutes: float | None,
    direction: str | None,
    dtypes: tuple[str, ...] | None,
    shapes: tuple[tuple[int, ...], ...] | None,
    axes: tuple[int, ...] | None,
    segments: int | None,
    order: tuple[str, ...] | None,
    threads: int | None,
    peers: tuple[str, ...] | None,
    rounds: int | None,
    stat: str,
    device: str,
    scaling: bool,
    frontends: bool,
    json_file: Path | None,
    from_file: Path | None,
    plot_file: Path | None,
    html_file: Path | None,
    old_file: Path | None,
    **choices: Any,
) -> None:
    """Time ops against a copy of the same number of bytes and against other libraries.

    Every case is checked first; a wrong result is not timed. A peer's ratio is its time over that
    of plan.run into the caller's buffer: 2x means that pullback takes half the time. Options that
    select a form of an op, such as --exclusive or --resets, apply to the ops that have it.
    """
    given = {
        "--scaling": scaling,
        "--threads": threads,
        "--dtypes": dtypes,
        "--shapes": shapes,
        "--axes": axes,
        "--segments": segments,
        "--order": order,
        "--peers": peers,
        "--plot": plot_file,
        "--html": html_file,
        "--compare": old_file,
        "--frontends": frontends,
        "--from": from_file,
        "a choice of an op's form": any(choices.values()),
    }
    if device != "cpu":
        _refuse(
            "--device cuda",
            given,
            (
                "--scaling",
                "--frontends",
                "--threads",
                "--plot",
                "--html",
                "--compare",
                "--from",
                "--segments",
                "--order",
            ),
        )
    if from_file:
        measuring = {"OPS": ops, "--threads": threads, "--rounds": rounds, "--json": json_file,
                     "--scaling": scaling, "--minutes": minutes}  # fmt: skip
        shown = ("--from", "--plot", "--html", "--compare")
        _refuse("--from", given | measuring, [n for n in (given | measuring) if n not in shown])
    if scaling:
        unused = ("--shapes", "--axes", "--segments", "--order", "--peers", "--compare",
                  "--frontends")  # fmt: skip
        _refuse("--scaling", given, (*unused, "a choice of an op's form"))
        if dtypes and len(dtypes) > 1:
            raise click.ClickException("--scaling: takes one dtype at a time")
    elif frontends:
        _refuse(
            "--frontends",
            given,
            [n for n in given if n not in ("--shapes", "--frontends", "--threads")],
        )
    ensure_all_writable(json_file, plot_file, html_file)
    if minutes is not None and not math.isfinite(minutes):
        raise click.ClickException(f"--minutes: expected a finite number, got {minutes}")
    if plot_file:
        require()
    old = _old_report(old_file) if old_file else None
    stat_key = "ms" if stat == "min" else "median_ms"
    if from_file:
        _show(_old_report(from_file), stat_key, None, plot_file, html_file, old, mode == "grid")
        return
    if any(0 in shape for shape in shapes or ()):
        raise click.ClickException("--shapes: a shape without elements has nothing to time")
    direction = direction or ("both" if mode == "grid" else "backward")
    chosen = b.named_ops(ops, direction) if ops else b.default_ops(direction)
    if device != "cpu":
        on_device.bench(chosen, dtypes or (), shapes or (), axes or (), peers, json_file)
        return
    settings = _settings(mode, threads, peers, rounds)
    if scaling:
        _scaling(chosen, dtypes, mode, settings, json_file, plot_file, html_file)
        return
    if frontends:
        _frontends(chosen, shapes, settings, json_file)
        return
    if segments and not shapes:
        raise click.ClickException("--segments: needs --shapes too, such as 477263x256")
    grid = dataclasses.replace(GRIDS[mode], orders=order or GRIDS[mode].orders, into=segments)
    picked = choices_of(chosen, choices)
    cases = list(b.cells(grid, chosen, dtypes or (), shapes or (), axes or (), picked))
    if not cases:
        raise click.ClickException("nothing to run: no op fits these shapes and axes")
    if mode == "grid":  # what is most of it first, if time is short
        cases.sort(key=lambda case: case.useful_bytes)
    if mode != "quick" and json_file is None:
        json_file = Path(FULL_REPORT)
        ensure_writable(json_file)
    saved = None if json_file is None or str(json_file) == "-" else json_file
    kept = b.Kept(saved, b.heading(settings), write_json)
    if kept.resumed:
        click.echo(f"{saved}: {kept.resumed} cases are there, measuring the others", err=True)
    load = [b.busy_share()]
    todo = [c for c in cases if c.key not in kept.done]
    until = None if minutes is None else time.monotonic() + 60 * minutes
    with steps(len(cases)) as (progress, task):
        progress.advance(task, len(cases) - len(todo))

        def advance(case: b.Case, record: dict[str, Any] | None) -> None:
            if record is None:
                if until is not None and time.monotonic() >= until:
                    raise _TimeIsUp
                progress.update(task, description=" ".join(case.key))
            else:
                kept.add(record)
                progress.advance(task)

        try:
            # Sizes come in order: what a peer takes of the next one can be told.
            without = (lambda case: b.far_behind(case, kept.cells)) if mode == "grid" else None
            _run(todo, settings, grid, advance, without)
        except _TimeIsUp:
            left = len(cases) - len(kept.cells)
            said = f"time is up: {left} of {len(cases)} cases are left out"
            if not kept.cells:
                raise click.ClickException(said) from None
            click.echo(said, err=True)
        except KeyboardInterrupt:
            again = f"; the same command continues, {saved} has them" if saved else ""
            done = f"stopped after {len(kept.cells)} of {len(cases)} cases{again}"
            raise click.ClickException(done) from None
    load.append(b.busy_share())
    report = kept.report() | {"load": load} | ({"unfinished": True} if kept.lacks(cases) else {})
    _show(report, stat_key, json_file, plot_file, html_file, old, mode == "grid")


def _show(
    report: dict[str, Any],
    stat_key: str,
    json_file: Path | None,
    plot_file: Path | None,
    html_file: Path | None,
    old: dict[str, Any] | None,
    by_op: bool,
) -> None:
    """Write what is asked for, and the tables."""
    report["summary"] = b.summarise(report["cells"], stat_key)
    report["warnings"] = b.warnings(report.get("load", ()), report["summary"]["noise"])
    if json_file:
        write_json(json_file, report)
    if plot_file:
        write_atomically(plot_file, bars(report, stat_key))
    if html_file:
        from .pages import bench_page

        write_atomically(html_file, bench_page(report, stat_key, old).encode())
    if str(json_file) != "-":
        out = console()
        for part in tables.bench(report, stat_key, out, by_op):
            out.print(part)
        if old is not None:
            for part in tables.changes(b.compare(old, report)):
                out.print(part)
    if report["summary"]["failed"]:
        raise SystemExit(1)


def _refuse(mode: str, given: Mapping[str, Any], unused: Iterable[str]) -> None:
    """Fail over an option that would be ignored."""
    for name in unused:
        if given[name]:
            raise click.ClickException(f"{mode} cannot be combined with {name}")


def _old_report(path: Path) -> dict[str, Any]:
    """A report to compare with, of this version of the format."""
    old = read_json(path)
    reason = b.objection(old)
    if reason:
        raise click.ClickException(f"{path}: {reason}")
    return dict(old)


def _run(
    cases: list[b.Case], settings: b.Settings, grid: b.Grid, advance: Any, without: Any
) -> None:
    """All cases; torch.compile, which takes seconds a case, on a sample of any but a quick run."""
    if grid is b.QUICK or "compile" not in settings.peers:
        b.run(cases, settings, advance, without)
        return
    shape, axes = grid.shapes[0]
    # Of the sizes, the last axis alone.
    wanted = axes if grid is b.FULL else axes[:1]
    first = [
        c for c in cases if c.element == "f32" and c.shape == shape and c.get("axis") in wanted
    ]
    others = tuple(p for p in settings.peers if p != "compile")
    rest = [c for c in cases if c not in first]
    alone = dataclasses.replace(settings, peers=others)
    for part, held in ((first, settings), (rest, alone))[:: 1 if grid is b.FULL else -1]:
        b.run(part, held, advance, without)


def _settings(
    mode: str, threads: int | None, peers: tuple[str, ...] | None, rounds: int | None
) -> b.Settings:
    wanted = peers if peers is not None else USUAL_PEERS.get(mode, tuple(b.PEERS))
    if wanted == ("none",):
        wanted = ()
    if wanted == ("all",):
        wanted = tuple(b.PEERS)
    unknown = [n for n in wanted if n not in b.PEERS]
    if unknown:
        raise click.ClickException(
            f"unknown peer {unknown[0]!r}; peers are {', '.join(b.PEERS)}, none and all"
        )
    absent = set(wanted) - set(b.installed(wanted))
    if peers is not None and absent - {"none"} and wanted != tuple(b.PEERS):
        raise click.ClickException(f"not installed: {', '.join(sorted(absent))}")
    samples, budget = {"quick": (5, 0.15), "grid": (5, 0.1), "full": (7, 0.4)}[mode]
    return b.Settings(threads or get_num_threads(), b.installed(wanted), rounds or samples, budget)


def _scaling(
    ops: Any,
    dtypes: tuple[str, ...] | None,
    mode: str,
    settings: b.Settings,
    json_file: Path | None,
    plot_file: Path | None,
    html_file: Path | None,
) -> None:
    from ..bench import scaling

    settings = dataclasses.replace(settings, peers=())
    largest = 10**7 if mode == "quick" else 10**8
    planned = scaling.plan_steps(ops, dtypes[0] if dtypes else "f32", largest, settings)
    with steps(len(planned)) as (progress, task):

        def advance(name: str, done: bool) -> None:
            progress.update(task, description=name)
            if done:
                progress.advance(task)

        report = scaling.run_steps(planned, settings, advance)
    if json_file:
        write_json(json_file, report)
    if plot_file:
        write_atomically(plot_file, lines(report))
    if html_file:
        from .pages import scaling_page

        write_atomically(html_file, scaling_page(report).encode())
    if str(json_file) != "-":
        out = console()
        for part in tables.scaling(report):
            out.print(part)


def _frontends(
    ops: Any,
    shapes: tuple[tuple[int, ...], ...] | None,
    settings: b.Settings,
    json_file: Path | None,
) -> None:
    from ..bench import frontends

    here = frontends.installed()
    if not here:
        raise click.ClickException("neither torch nor jax is installed")
    wanted = [s for s in shapes or frontends.SHAPES if len(s) == 2]
    if not wanted:
        raise click.ClickException("nothing to run: the frameworks are compared on matrices")
    kinds = {op.kind for op in ops}
    settings = dataclasses.replace(settings, peers=(), budget=1.0)
    with steps(len(kinds) * len(here) * len(wanted)) as (progress, task):

        def advance(name: str, done: bool) -> None:
            progress.update(task, description=name)
            if done:
                progress.advance(task)

        report = frontends.run(ops, here, wanted, settings, advance)
    if json_file:
        write_json(json_file, report)
    if str(json_file) != "-":
        out = console()
        for part in tables.frontends(report):
            out.print(part)
