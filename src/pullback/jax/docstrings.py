"""Docstrings of the functions, written from the catalog."""

from __future__ import annotations

import jax.numpy as jnp

from ..core.catalog import find
from ..core.declare import Op

_ARRAY = "jax.Array\n    Of float32, float64, float16 or bfloat16, any rank."
_PARAMETERS = {
    "x": f"x : {_ARRAY}",
    "flat axis": "axis : int or None\n    The axis; None, the default, flattens x first.",
    "first axis": "axis : int or None, default 0\n    The axis; None flattens x first.",
    "axes": "axis : int, tuple of int or None\n    The axes; None, the default, means all of them.",
    "last axis": (
        "axis : int, tuple of int or None, default -1\n    The axes; None means all of them."
    ),
    "reverse": "reverse : bool, default False\n    Scan from the end.",
    "keepdims": "keepdims : bool, default False\n    Keep the reduced axes at length 1.",
    "where": "where : None\n    Not supported: anything else raises UnsupportedError.",
    "correction": (
        "ddof, correction : int or float, default 0\n"
        "    Two names for what is subtracted from the count; give one of them."
    ),
    "a": f"a : {_ARRAY}",
    "b": "b : jax.Array\n    Broadcast against a, and of the dtype that both promote to.",
    "weight": "weight : float\n    A constant when traced; no gradient flows to it.",
    "data": "data : jax.Array\n    Rows to add, of any number of further dimensions.",
    "segment_ids": "segment_ids : jax.Array of integers\n    The segment of each row.",
    "num_segments": (
        "num_segments : int, optional\n"
        "    Rows of the output; without it the largest id and one more, which jit cannot know."
    ),
    "hints": (
        "indices_are_sorted : bool, default False\n"
        "    The ids ascend, which saves ordering them; not checked.\n"
        "unique_indices : bool, default False\n"
        "    Accepted and not needed."
    ),
    "out_of_range": (
        'out_of_range : {"drop", "raise"}\n'
        "    What to do with an id outside [0, num_segments): leave its row out, or raise, which\n"
        "    needs ids that are known, so not under jit."
    ),
}


def takes_correction(op: Op) -> bool:
    """Whether an op's formula asks for a correction of the count."""
    return op.parameter("correction") is not None


def _parameter_names(op: Op) -> list[str]:
    ties = ["ties"] if find(op.kind, "backward").ties else []
    if op.family == "scan":
        return ["x", "flat axis" if hasattr(jnp, op.kind) else "first axis", "reverse", *ties]
    if op.family == "reduce":
        correction = ["correction"] if takes_correction(op) else []
        return ["x", "axes", "keepdims", "where", *correction, *ties]
    if op.family == "softmax":
        return ["x", "last axis", "where"]
    if op.family == "lerp":
        return ["a", "b", "weight"]
    return ["data", "segment_ids", "num_segments", "hints", "out_of_range"]


def docstring(op: Op) -> str:
    """The docstring of an op's function, NumPy style."""
    backward = find(op.kind, "backward")
    lines = [f"{op.kind}: {op.formula}.", "", "Parameters", "----------"]
    for name in _parameter_names(op):
        if name == "ties":
            choices = ", ".join(f'"{t}"' for t in backward.ties)
            lines += [
                f'ties : {{{choices}}}, default "{backward.ties[0]}"',
                "    Who takes the gradient where several elements hold the extreme.",
            ]
        else:
            lines += _PARAMETERS[name].splitlines()
    lines += ["", "Returns", "-------", "jax.Array", "", "Notes", "-----"]
    lines.append(f"Gradient: {backward.formula}.")
    if op.edges:
        lines.append(f"Edges: {op.edges}.")
    return "\n".join(lines) + "\n"
