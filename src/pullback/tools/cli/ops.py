"""``pullback ops``."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

import click

from ...core.catalog import catalog
from ...core.declare import Op
from . import tables
from .output import console, print_json
from .parameters import DTYPE

EPILOG = """
\b
Examples:
  pullback ops
  pullback ops cum                          names that contain "cum"
  pullback ops --family reduce --direction backward
  pullback ops softmax --formulas
  pullback ops --needs y --json
"""


def as_record(op: Op) -> dict[str, Any]:
    """An op as plain data."""
    return {
        "name": op.name,
        "family": op.family,
        "kind": op.kind,
        "direction": op.direction,
        "formula": op.formula,
        "inputs": list(op.inputs),
        "outputs": list(op.outputs),
        "needs": sorted(op.needs),
        "optional": list(op.optional),
        "selects": {n: list(v) for n, v in op.selectors.items()},
        "ties": list(op.ties),
        "dtypes": list(op.dtypes),
        "backends": list(op.backends),
        "edges": op.edges,
    }


class Known(click.ParamType):  # type: ignore[type-arg]
    """A name that an op of the catalog has for something, such as its family."""

    def __init__(self, name: str, names_of: Callable[[Op], Iterable[str]]):
        self.name, self._names_of = name, names_of

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """The name."""
        known = list(dict.fromkeys(n for op in catalog() for n in self._names_of(op)))
        if value not in known:
            listed = ", ".join(known)
            self.fail(f"{value!r} is not one of {listed}{meant(value, known)}", param, ctx)
        return str(value)


def meant(text: str, known: Iterable[str]) -> str:
    """The names nearest to a text, as the end of a message."""
    near = difflib.get_close_matches(text, list(known), 2)
    return f"; did you mean {' or '.join(near)}?" if near else ""


FAMILY = Known("family", lambda op: [op.family])
BACKEND = Known("backend", lambda op: op.backends)


@click.command("ops", epilog=EPILOG)
@click.argument("text", required=False)
@click.option("--family", type=FAMILY, multiple=True, help="For example scan or reduce.")
@click.option("--direction", type=click.Choice(["forward", "backward"]))
@click.option(
    "--needs",
    type=click.Choice(["x", "y", "none"]),
    help="Only ops whose backward needs this tensor.",
)
@click.option("--dtype", type=DTYPE, help="Only ops with this dtype, such as bf16.")
@click.option("--backend", type=BACKEND, help="Only ops with this backend, numba or triton.")
@click.option("--formulas", is_flag=True, help="Show formulas instead of edge cases.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(
    text: str | None,
    family: tuple[str, ...],
    direction: str | None,
    needs: str | None,
    dtype: str | None,
    backend: str | None,
    formulas: bool,
    as_json: bool,
) -> None:
    """List the ops whose name contains TEXT, or all of them."""
    names = [op.name for op in catalog()]
    if text and not any(text in name for name in names):
        hint = meant(text, names) or "; pullback ops lists them all"
        raise click.UsageError(f"no op has {text!r} in its name{hint}")
    found = [
        op
        for op in catalog()
        if (not text or text in op.name)
        and (not family or op.family in family)
        and (not direction or op.direction == direction)
        and (not needs or (needs in op.needs if needs != "none" else not op.needs))
        and (not dtype or dtype in op.dtypes)
        and (not backend or backend in op.backends)
    ]
    if as_json:
        print_json([as_record(op) for op in found])
        return
    out = console()
    if not found:
        out.print("no op matches; pullback ops lists them all")
        return
    for part in tables.ops(found, formulas, out):
        out.print(part)
