"""Docstrings of the functions, written from the rows of the catalog."""

from __future__ import annotations

from collections.abc import Iterable

from ..api.docstrings import entries
from ..core.declare import Op
from ..core.pair import Pair


def docstring(pair: Pair, row: Op, names: Iterable[str]) -> str:
    """The docstring of the function of a kind, NumPy style.

    ``row`` is the forward row as JAX has it, ``names`` are those of the arguments.
    """
    op, backward = pair.forward, pair.backward
    lines = [f"{op.kind}: {op.formula}.", "", "Parameters", "----------"]
    lines += [*entries(iter(names), row), "", "Returns", "-------"]
    for operand in op.writes:
        lines += [f"{operand.name} : jax.Array", f"    {operand.doc}"]
    lines += ["", "Notes", "-----"]
    lines.append(f"Gradient: {backward.formula}." if backward else "No gradient flows through it.")
    through = {*pair.cotangents.values(), *(o.name for o in pair.saves)}
    constant = [n for n in op.outputs if backward and n not in through]
    if constant:
        lines.append(f"No gradient flows through {', '.join(constant)}.")
    if op.edges:
        lines.append(f"Edges: {op.edges}.")
    return "\n".join(lines) + "\n"
