"""Docstrings of the functions, written from the rows of the catalog."""

from __future__ import annotations

from collections.abc import Iterable

from ..api.docstrings import entries
from ..core.declare import Op, Role
from ..core.pair import Pair
from .conventions import HOMES, hint_of


def _example(op: Op) -> list[str]:
    """A call beside JAX's own, where there is one, or the row's example in arrays of JAX."""
    if op.kind in HOMES:
        by_ids = any(o.role is Role.IDS for o in op.reads)
        call = "(x, ids, 2)" if by_ids else "(x, axis=1)"
        return [
            ">>> import jax, jax.numpy as jnp, pullback.jax as pj",
            ">>> x, ids = jnp.array([[1.0, 2.0], [4.0, 3.0]]), jnp.array([1, 0])"
            if by_ids
            else ">>> x = jnp.array([[1.0, 2.0], [4.0, 3.0]])",
            f">>> bool(jnp.allclose(pj.{op.name}{call}, {HOMES[op.kind]}{call}))",
            "True",
        ]
    if op.text.example is None or not op.text.example[1].startswith("array("):
        return []
    call, shown = op.text.example
    want = " ".join(shown.split()).replace("inf", "jnp.inf").replace("array", "jnp.array", 1)
    return [
        ">>> import jax.numpy as jnp, pullback.jax as pj",
        f">>> y = pj.{call.replace('np.', 'jnp.')}",
        f">>> bool(jnp.allclose(y, {want}))",
        "True",
    ]


def docstring(pair: Pair, row: Op, names: Iterable[str]) -> str:
    """The docstring of the function of a kind, NumPy style.

    ``row`` is the forward row as JAX has it, ``names`` are those of the arguments.
    """
    op, backward = pair.forward, pair.backward
    what = f"``{HOMES[op.kind]}`` on pullback's kernels" if op.kind in HOMES else op.kind
    lines = [f"{what}: {op.formula}.", "", "Parameters", "----------"]
    lines += [*entries(iter(names), row, "jax.Array", hint_of), "", "Returns", "-------"]
    for operand in op.writes:
        lines += [f"{operand.name} : jax.Array", f"    {operand.doc}"]
    lines += ["", "Notes", "-----"]
    lines.append(f"Gradient: {backward.formula}." if backward else "No gradient flows through it.")
    through = {*pair.cotangents.values(), *(o.name for o in pair.saves)}
    constant = [n for n in op.outputs if backward and n not in through]
    if constant:
        lines.append(f"No gradient flows through {', '.join(constant)}.")
    if op.edges:
        lines.append(f"Edge cases: {op.edges}.")
    example = _example(op)
    if example:
        lines += ["", "Examples", "--------", *example]
    return "\n".join(lines) + "\n"
