"""Recurrences as one would write them: a loop over the steps, or a framework's own scan.

``recur(a, b, axis, reverse)`` is s ← b + a·s along the axis. An op is made of one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..case import Case

Recur = Callable[[Any, Any, int, bool], Any]
# A loop of more steps than this is not what anybody would wait for.
LONGEST = 1 << 16


# The recurrences, with the operands that may be left out and are served here.
KINDS: Mapping[str, tuple[str, ...]] = {
    "linear_recurrence": ("resets",),
    "discounted_sum": ("discount", "done"),
    "gae": ("terminated", "truncated"),
}


def forward(
    case: Case, given: Mapping[str, Any], library: Any, recur: Recur
) -> Callable[..., Any] | None:
    """The forward of a case as a function of its operands; None where none is written down.

    ``given`` are the operands of the case, ``library`` has ``where`` and ``full_like``.
    """
    get, kind = case.get, case.op.kind
    if not set(case.given) <= {*KINDS.get(kind, ())} or get("reverse") or get("return_final"):
        return None
    axis = case.axes[0] if case.axes else 0

    def stopped(factor: Any, *marks: str) -> Any:
        for name in marks:
            if name in given:
                factor = library.where(given[name], library.full_like(factor, 0.0), factor)
        return factor

    def linear(a: Any, b: Any) -> Any:
        return recur(stopped(a, "resets"), b, axis, False)

    def discounted(x: Any) -> Any:
        discount = given.get("discount")
        if discount is None:
            discount = library.full_like(x, get("discount"))
        return recur(stopped(discount, "done"), x, axis, True)

    def advantages(rewards: Any, values: Any, following: Any) -> Any:
        coming = stopped(get("gamma") * following, "terminated")
        delta = rewards + coming - values
        factor = library.full_like(delta, get("gamma") * get("lam"))
        found = recur(stopped(factor, "terminated", "truncated"), delta, axis, True)
        return found, found + values

    made: Mapping[str, Callable[..., Any]] = {
        "linear_recurrence": linear,
        "discounted_sum": discounted,
        "gae": advantages,
    }
    return made.get(kind)


def joined(first: tuple[Any, Any], later: tuple[Any, Any]) -> tuple[Any, Any]:
    """Two steps as one."""
    return first[0] * later[0], later[0] * first[1] + later[1]


def numpy_loop(a: np.ndarray, b: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
    """All rows at once, one step after the other."""
    y = np.empty_like(b)
    factors, added, states = (np.moveaxis(v, axis, 0) for v in (a, b, y))
    state = np.zeros_like(added[0])
    for t in range(len(added))[:: -1 if reverse else 1]:
        state = states[t] = added[t] + factors[t] * state
    return y


def torch_loop(torch: Any) -> Recur:
    """All rows at once, one step after the other."""

    def recur(a: Any, b: Any, axis: int, reverse: bool) -> Any:
        states: list[Any] = []
        steps = list(zip(a.unbind(axis), b.unbind(axis), strict=True))
        state = torch.zeros_like(steps[0][1])
        for factor, added in reversed(steps) if reverse else steps:
            state = added + factor * state
            states.append(state)
        return torch.stack(states[::-1] if reverse else states, axis)

    return recur


def torch_scan(torch: Any) -> Recur:
    """torch's own scan, which it has under ``torch.compile``."""
    from torch._higher_order_ops.associative_scan import associative_scan

    def recur(a: Any, b: Any, axis: int, reverse: bool) -> Any:
        return associative_scan(joined, (a, b), axis, reverse, "generic")[1]

    return recur


def jax_associative(jax: Any) -> Recur:
    """``jax.lax.associative_scan``."""

    def recur(a: Any, b: Any, axis: int, reverse: bool) -> Any:
        return jax.lax.associative_scan(joined, (a, b), reverse=reverse, axis=axis)[1]

    return recur


def jax_scan(jax: Any) -> Recur:
    """``jax.lax.scan``, a loop over the steps that XLA compiles."""

    def recur(a: Any, b: Any, axis: int, reverse: bool) -> Any:
        def step(state: Any, given: tuple[Any, Any]) -> tuple[Any, Any]:
            state = given[1] + given[0] * state
            return state, state

        in_time = tuple(jax.numpy.moveaxis(v, axis, 0) for v in (a, b))
        begin = jax.numpy.zeros_like(in_time[1][0])
        return jax.numpy.moveaxis(jax.lax.scan(step, begin, in_time, reverse=reverse)[1], 0, axis)

    return recur


# In NumPy, with the gradients written out: the contender, and in float64 the check.

Held = Mapping[str, np.ndarray]


def _moved(v: np.ndarray, by: int, axis: int) -> np.ndarray:
    """What lies ``by`` steps before each position, 0 beyond the end."""
    found = np.roll(v, by, axis)
    np.moveaxis(found, axis, 0)[0 if by > 0 else -1] = 0
    return found


def _made(case: Case, held: Held) -> tuple[np.ndarray, ...]:
    function = forward(case, held, np, numpy_loop)
    assert function is not None
    found = function(*(held[o.name] for o in case.problem.reads if not o.optional))
    return found if isinstance(found, tuple) else (found,)


def _linear_backward(case: Case, held: Held) -> tuple[np.ndarray, ...]:
    axis = case.axes[0]
    g = numpy_loop(_moved(held["a"], -1, axis), held["dy"], axis, True)
    return g * _moved(held["y"], 1, axis), g


def _discounted_backward(case: Case, held: Held) -> tuple[np.ndarray, ...]:
    factors = np.full_like(held["dy"], case.get("discount"))
    return (numpy_loop(factors, held["dy"], case.axes[0], False),)


FORMULAS: Mapping[str, Callable[[Case, Held], tuple[np.ndarray, ...]]] = {
    "linear_recurrence": _made,
    "linear_recurrence_backward": _linear_backward,
    "discounted_sum": _made,
    "discounted_sum_backward": _discounted_backward,
    "gae": _made,
}


def magnitudes(case: Case, held: Held) -> tuple[np.ndarray, ...]:
    """Sums of the absolute values of all terms, by output."""
    wide = {n: np.abs(v) for n, v in held.items()}
    if case.op.kind != "gae":
        return FORMULAS[case.op.name](case, wide)
    # Values are taken off where they enter the sum and added to make the returns.
    size = _made(case, {**wide, "values": -wide["values"]})[0]
    return size, size + wide["values"]
