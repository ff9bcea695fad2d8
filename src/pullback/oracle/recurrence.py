"""Recurrences, step by step. A formula sees one row in the order of the scan.

A product with a zero factor is zero, whatever the other factor holds: a = 0 cuts, and a state of 0
passes nothing on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .parts import stretched
from .special import ZERO, Term, number
from .table import Definition, define, full_shape, map_rows, normalized_axes

Row = list[Term]
Marks = list[bool] | None


def steps(
    definition: Definition,
    operands: Mapping[str, Any],
    *,
    axis: int = -1,
    reverse: bool = False,
    discount: float | None = None,
    return_final: bool | None = None,
    **options: Any,
) -> tuple[np.ndarray, ...]:
    """Feed rows along one axis to the formula, with a border in front of step t where a run begins.

    ``resets`` mark the position behind a border in memory order. A reverse scan comes to the
    position in front of it later: that one begins the run.
    """
    held = dict(operands)
    full = next(o for n, o in held.items() if n in ("a", "x", "dy", "rewards"))
    shape = np.asarray(full).shape
    axes = normalized_axes(int(axis), len(shape))
    if discount is not None:
        held["discount"] = np.full(shape, float(discount))
    marks = held.pop("resets", None)
    arrays = definition.gather(held)
    for name, array in arrays.items():
        if name not in definition.per_row:
            arrays[name] = np.broadcast_to(array, shape)
    if marks is not None:
        begins = stretched(marks, shape)
        if reverse and shape:
            begins = np.roll(begins, -1, axis=axes[0])
            np.moveaxis(begins, axes[0], 0)[-1] = False
        arrays["begins"] = begins
    assert full_shape(definition, arrays) == shape
    return map_rows(definition, arrays, shape, axes, options, -1 if reverse else 1)


def times(a: Term, b: Term) -> Term:
    return ZERO if a.value == 0 or b.value == 0 else a * b


@define("linear_recurrence", steps, "y final", per_row="initial final")
def linear_recurrence(
    a: Row, b: Row, initial: Term | None = None, begins: Marks = None
) -> tuple[Row, Term]:
    state = initial or ZERO
    y = []
    for t, (factor, added) in enumerate(zip(a, b, strict=True)):
        carried = ZERO if begins and begins[t] else times(factor, state)
        state = carried + added
        y.append(state)
    return y, state


@define("linear_recurrence_backward", steps, "da db d_initial", per_row="initial d_final d_initial")
def linear_recurrence_backward(
    dy: Row,
    a: Row,
    y: Row,
    initial: Term | None = None,
    d_final: Term | None = None,
    begins: Marks = None,
) -> tuple[Row, Row, Term]:
    """Each step passes its gradient times a on to the one before."""
    passed = d_final or ZERO
    da, db = [ZERO] * len(a), [ZERO] * len(a)
    for t in reversed(range(len(a))):
        g = db[t] = dy[t] + passed
        if begins and begins[t]:
            passed = ZERO
            continue
        da[t] = times(g, y[t - 1] if t else initial or ZERO)
        passed = times(a[t], g)
    return da, db, passed


@define("discounted_sum", steps, "y", per_row="initial")
def discounted_sum(x: Row, discount: Row, done: Marks = None, initial: Term | None = None) -> Row:
    state = initial or ZERO
    y = [ZERO] * len(x)
    for t in reversed(range(len(x))):
        state = x[t] + (ZERO if done and done[t] else times(discount[t], state))
        y[t] = state
    return y


@define("discounted_sum_backward", steps, "dx")
def discounted_sum_backward(dy: Row, discount: Row, done: Marks = None) -> Row:
    passed, dx = ZERO, []
    for t, d in enumerate(dy):
        dx.append(d + passed)
        passed = ZERO if done and done[t] else times(discount[t], dx[-1])
    return dx


@define("gae", steps, "advantages returns")
def gae(
    rewards: Row,
    values: Row,
    next_values: Row,
    terminated: Marks = None,
    truncated: Marks = None,
    *,
    gamma: float,
    lam: float,
) -> tuple[Row, Row]:
    discount, ahead = number(gamma), number(gamma) * number(lam)
    state = ZERO
    found = [ZERO] * len(rewards)
    for t in reversed(range(len(rewards))):
        ends = bool(terminated and terminated[t])
        coming = ZERO if ends else discount * next_values[t]
        cut = ends or bool(truncated and truncated[t])
        state = rewards[t] + coming - values[t] + (ZERO if cut else times(ahead, state))
        found[t] = state
    return found, [f + v for f, v in zip(found, values, strict=True)]
