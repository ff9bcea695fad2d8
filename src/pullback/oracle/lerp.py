"""lerp, element by element, with a weight w. IEEE throughout: 0 · inf is nan.

The weight is an array, or a Python float that counts exactly, whatever the type of the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .special import ONE, Term, number
from .table import EXACT, Definition, define, full_shape, map_rows

Row = list[Term]


def elementwise(
    definition: Definition,
    operands: Mapping[str, Any],
    *,
    weight: float | None = None,
    **options: Any,
) -> tuple[np.ndarray, ...]:
    """Feed all elements to the formula as one row."""
    arrays = definition.gather({"weight": np.zeros(()), **operands})
    shape = full_shape(definition, arrays)
    arrays["weight"] = np.broadcast_to(
        arrays["weight"] if weight is None else np.array(number(float(weight)), dtype=object), shape
    )
    if operands.get("weight") is None:
        definition = replace(definition, outputs=definition.outputs[:2])
    return map_rows(definition, arrays, shape, tuple(range(len(shape))), options)


@define("lerp", elementwise, "y", EXACT)
def lerp(a: Row, b: Row, weight: Row) -> Row:
    return [s + w * (t - s) for s, t, w in zip(a, b, weight, strict=True)]


@define("lerp_backward", elementwise, "da db dweight", EXACT)
def lerp_backward(
    dy: Row, weight: Row, a: Row | None = None, b: Row | None = None
) -> tuple[Row, ...]:
    ours = [(ONE - w) * d for d, w in zip(dy, weight, strict=True)]
    theirs = [w * d for d, w in zip(dy, weight, strict=True)]
    if a is None or b is None:
        return ours, theirs
    return ours, theirs, [d * (t - s) for d, s, t in zip(dy, a, b, strict=True)]
