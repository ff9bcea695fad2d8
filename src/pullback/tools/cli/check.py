"""``pullback check``."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ...core.catalog import catalog
from ...core.declare import Op
from ...core.elements import FLOATS
from ..bench import named_ops
from . import on_device, tables
from .on_device import DEVICES
from .output import FILE, console, ensure_all_writable, steps, write_atomically, write_json
from .parameters import DTYPE_LIST, OP

EPILOG = """
\b
Examples:
  pullback check                         every op and dtype; some minutes
  pullback check softmax cumprod --dtypes f32,bf16
  pullback check --json check.json --html check.html
  pullback check --digest                compare bytes with the published ones
  pullback check --device cuda           the kernels of this machine's GPU

The exit code is 0 if all pass and 1 if any fails.
"""


def _digest(chosen: Sequence[Op], dtypes: Sequence[str], json_file: Path | None) -> None:
    """Digests of the bytes, and whether they are those that the documentation shows."""
    from ..bench.machine import describe
    from ..check.digests import differing, digests, published

    with steps(sum(d in op.dtypes for op in chosen for d in dtypes)) as (progress, task):

        def advance(name: str, element: str, result: Any) -> None:
            progress.update(task, description=f"{name} {element}")
            if result is not None:
                progress.advance(task)

        found = digests(chosen, dtypes, advance)
    known = published()
    others = differing(found, known)
    if json_file:
        report = {"machine": describe(), "digests": found, "differing": others, "ok": not others}
        write_json(json_file, report)
    if str(json_file) != "-":
        out = console()
        for part in tables.digests(found, known, others):
            out.print(part)
    if others:
        raise SystemExit(1)


@click.command("check", epilog=EPILOG)
@click.argument("ops", nargs=-1, type=OP)
@click.option("--dtypes", type=DTYPE_LIST, default=",".join(FLOATS), show_default=True)
@click.option("--direction", type=click.Choice(["backward", "forward", "both"]), default="both",
              show_default=True)  # fmt: skip
@click.option("--torch/--no-torch", "with_torch", default=None, help="Also measure torch's errors.")
@click.option("--device", type=click.Choice(DEVICES), default="cpu", show_default=True,
              help="Where the kernels run.")  # fmt: skip
@click.option("--long", "long", is_flag=True, help="One line per op and dtype.")
@click.option(
    "--digest", is_flag=True, help="Instead, print digests of the bytes, to compare machines."
)
@click.option("--json", "json_file", type=FILE, help="Write the report to a file (- for stdout).")
@click.option("--html", "html_file", type=FILE, help="Write an HTML page that needs no network.")
def command(
    ops: tuple[str, ...],
    dtypes: tuple[str, ...],
    direction: str,
    with_torch: bool | None,
    device: str,
    long: bool,
    digest: bool,
    json_file: Path | None,
    html_file: Path | None,
) -> None:
    """Certify this installation on this machine.

    Compares the results of each op with an oracle written from the definitions in high precision,
    and its bytes across memory layouts and thread counts; on a GPU, across runs, addresses,
    streams and a CUDA graph. Errors are in units in the last place.
    """
    from ..check import certify

    ensure_all_writable(json_file, html_file)
    if with_torch and importlib.util.find_spec("torch") is None:
        raise click.ClickException("--torch: torch is not installed")
    chosen = named_ops(ops, direction) if ops else [
        op for op in catalog() if direction in ("both", op.direction)
    ]  # fmt: skip
    if digest:
        if html_file or with_torch or long or device != "cpu":
            raise click.ClickException(
                "--digest cannot be combined with --html, --torch, --long or --device"
            )
        _digest(chosen, dtypes, json_file)
        return
    if device != "cpu":
        if html_file or with_torch or long:
            raise click.ClickException(
                "--device cuda cannot be combined with --html, --torch or --long"
            )
        on_device.check(chosen, dtypes, json_file)
        return
    total = sum(d in op.dtypes for op in chosen for d in dtypes)
    with steps(total) as (progress, task):

        def advance(name: str, element: str, result: dict[str, Any] | None) -> None:
            progress.update(task, description=f"{name} {element}")
            if result is not None:
                progress.advance(task)

        report = certify(chosen, dtypes, with_torch, advance)
    if json_file:
        write_json(json_file, report)
    if html_file:
        from .pages import check_page

        write_atomically(html_file, check_page(report).encode())
    if str(json_file) != "-":
        out = console()
        for part in tables.checks(report, long, out):
            out.print(part)
    if not report["ok"]:
        raise SystemExit(1)
