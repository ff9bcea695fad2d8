"""lerp, element by element, with a constant weight w. IEEE throughout: 0 · inf is nan.

The weight is a Python float and counts exactly, whatever the type of the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .special import ONE, Term, number
from .table import EXACT, define, needed, object_array, to_terms

Row = list[Term]


def elementwise(
    formula: Callable[..., tuple[Row, ...]], operands: Mapping[str, Any], *, weight: float
) -> tuple[np.ndarray, ...]:
    """Feed all elements to the formula, which returns one list per output."""
    arrays = [to_terms(a) for a in needed(formula, operands).values()]
    shape = arrays[0].shape
    if any(a.shape != shape for a in arrays):
        raise ValueError(f"operand shapes differ: {[a.shape for a in arrays]}")
    results = formula(*(list(a.reshape(-1)) for a in arrays), weight=number(float(weight)))
    return tuple(object_array(items, shape) for items in results)


@define("lerp", elementwise, "y", EXACT)
def lerp(a: Row, b: Row, *, weight: Term) -> tuple[Row]:
    return ([s + weight * (t - s) for s, t in zip(a, b, strict=True)],)


@define("lerp_backward", elementwise, "da db", EXACT)
def lerp_backward(dy: Row, *, weight: Term) -> tuple[Row, Row]:
    return [(ONE - weight) * d for d in dy], [weight * d for d in dy]
