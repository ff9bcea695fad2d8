"""``pullback explain``."""

from __future__ import annotations

import dataclasses
import doctest
from typing import Any

import click
from rich.syntax import Syntax

from ...core.declare import Op
from ..bench import find_op
from ..case import Case, cuts, function_of
from . import tables
from .derivations import DERIVATIONS
from .ops import as_record
from .output import console, print_json
from .parameters import DTYPE, OP, SHAPE

EPILOG = """
\b
Examples:
  pullback explain softmax_backward
  pullback explain cumprod_backward --shape 2x8000000 --dtype bf16
"""


def snippet(op: Op) -> str:
    """The example of the op's docstring as a program that prints what it shows there."""
    shown = doctest.DocTestParser().get_examples(function_of(op).__doc__ or "")
    if not shown:
        return f"import pullback as pb\nhelp(pb.{op.name})"
    *setup, last = [example.source.rstrip("\n") for example in shown]
    wanted = "".join(f"\n# {line}" for line in shown[-1].want.splitlines())
    return "\n".join([*setup, f"print(repr({last}))"]) + wanted


def _case(op: Op, shape: tuple[int, ...], dtype: str, axis: int) -> Case:
    if cuts(op) and len(shape) != 2:
        raise click.ClickException(f"{op.name} wants a shape of (rows, embedding), got {shape}")
    segments = max(1, shape[0] // 26) if shape else 1
    return Case.of(op, dtype, shape, segments=segments, axis=axis)


def facts(op: Op, case: Case) -> dict[str, Any]:
    """Everything the command shows, as plain data."""
    plan = case.plan()
    sku = dataclasses.asdict(plan.sku)
    guarantee = sku.pop("precision_guarantee")
    return as_record(op) | {
        "derivation": list(DERIVATIONS.get(op.kind, ())) if op.direction == "backward" else [],
        "shape": list(case.shape),
        "axis": case.axis_label,
        "dtype": case.element,
        "sku": {k: None if v is None else str(v) for k, v in sku.items()},
        "guarantee": {k: v if isinstance(v, bool) else str(v) for k, v in guarantee.items()},
        "reads": list(case.looks_at),
        "bytes_moved": case.useful_bytes,
        "workspace_bytes": plan.workspace_size,
        "snippet": snippet(op),
    }


@click.command("explain", epilog=EPILOG)
@click.argument("op", type=OP)
@click.option("--shape", type=SHAPE, default="4096x4096", show_default=True,
              help="Shape for which to show kernel and bytes.")  # fmt: skip
@click.option("--dtype", type=DTYPE, default="f32", show_default=True)
@click.option("--axis", default=-1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def command(op: str, shape: tuple[int, ...], dtype: str, axis: int, as_json: bool) -> None:
    """Show what OP computes, how that is derived, and which kernel runs it."""
    row = find_op(op)
    found = facts(row, _case(row, shape, dtype, axis))
    if as_json:
        print_json(found)
        return
    out = console()
    for part in tables.explanation(found):
        out.print(part)
    # Longer lines than the terminal stay whole, so that they can be copied.
    code = Syntax("", "python", background_color="default").highlight(found["snippet"])
    out.print(code, soft_wrap=True, end="")
