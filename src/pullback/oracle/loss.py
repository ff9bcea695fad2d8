"""Cross entropy of one row of logits against a class, by its definition.

Smoothing mixes the class with all classes evenly; z-loss adds the square of log Σ exp. A row whose
target is ignored gives zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .special import ONE, ZERO, Term, exp, extreme, log_of_sum, number, total
from .table import LOGS, Definition, define, full_shape, map_rows, normalized_axes

Row = list[Term]


def classes(
    definition: Definition, operands: Mapping[str, Any], *, axis: int = -1, **options: Any
) -> tuple[np.ndarray, ...]:
    """Feed the logits of every row, and its class, to the formula."""
    arrays = definition.gather(operands)
    shape = full_shape(definition, arrays)
    return map_rows(definition, arrays, shape, normalized_axes(int(axis), len(shape)), options)


@define("cross_entropy", classes, "loss lse", LOGS, per_row="target loss lse")
def cross_entropy(
    logits: Row,
    target: int,
    *,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[Term, Term]:
    if target == ignore_index:
        return ZERO, ZERO
    lse = log_of_sum(total(exp(t) for t in logits), extreme(logits, 1))
    loss = (ONE - number(label_smoothing)) * (lse - logits[target])
    if label_smoothing:
        mean = total(logits) / number(len(logits))
        loss = loss + number(label_smoothing) * (lse - mean)
    return loss + (number(z_loss) * lse * lse if z_loss else ZERO), lse


@define("cross_entropy_backward", classes, "d_logits", per_row="d_loss target lse")
def cross_entropy_backward(
    d_loss: Term,
    logits: Row,
    target: int,
    lse: Term,
    *,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Row:
    if target == ignore_index or d_loss.value == 0:
        return [ZERO for _ in logits]
    scale = ONE + number(2) * number(z_loss) * lse if z_loss else ONE
    even = number(label_smoothing) / number(len(logits))
    hit = ONE - number(label_smoothing)
    return [
        d_loss * (scale * exp(t - lse) - (hit if j == target else ZERO) - even)
        for j, t in enumerate(logits)
    ]
