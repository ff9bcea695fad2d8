"""Scans in the forms that no library has by name: exclusive, from the end, cut into runs.

A peer writes them with what its library has: a scan turned round or moved by one position, and for
runs a scan of pairs, or a loop, that takes a step of one's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..case import Case

# A scan of (flag, value) pairs: ``scan(step, flags, x, axis)`` gives the values.
Step = Callable[[Any, Any], Any]

NOTHING: Mapping[str, float] = {
    "cumsum": 0.0,
    "cumprod": 1.0,
    "cummax": float("-inf"),
    "cummin": float("inf"),
    "logcumsumexp": float("-inf"),
}
HANDLED = frozenset({"axis", "exclusive", "reverse", "ties"})


@dataclass(frozen=True)
class Library:
    """What a scan is written with."""

    steps: Mapping[str, Step]
    scan: Callable[[Step, Any, Any, int], Any]
    flip: Callable[[Any, int], Any]
    where: Callable[[Any, Any, Any], Any]
    concatenate: Callable[[list[Any], int], Any]
    full_like: Callable[[Any, float], Any]


def forward(
    case: Case, given: Mapping[str, Any], library: Library, plain: Callable[[Any], Any]
) -> Callable[[Any], Any] | None:
    """A form of a scan as a function of x, ``plain`` being the scan itself; None if no scan."""
    kind, axis = case.op.kind, case.axes[0] if case.axes else 0
    others = [n for n in case.parameters if n not in HANDLED]
    if kind not in NOTHING or others or not set(case.given) <= {"resets"}:
        return None
    exclusive, reverse = bool(case.get("exclusive")), bool(case.get("reverse"))
    begins, nothing, where = _borders(case, given, library, reverse), NOTHING[kind], library.where

    def scan(x: Any) -> Any:
        x = library.flip(x, axis) if reverse else x
        y = plain(x) if begins is None else library.scan(library.steps[kind], begins, x, axis)
        if exclusive:
            first, rest = _part(y, axis, 0, 1), _part(y, axis, 0, -1)
            y = library.concatenate([library.full_like(first, nothing), rest], axis)
            if begins is not None:
                y = where(begins, library.full_like(y, nothing), y)
        return library.flip(y, axis) if reverse else y

    return scan


def _borders(case: Case, given: Mapping[str, Any], library: Library, reverse: bool) -> Any:
    """Where a run begins, in the order of the scan. A mark stands behind its border in memory."""
    marks = given.get("resets")
    if marks is None or not reverse:
        return marks
    axis = case.axes[0]
    turned = library.flip(marks, axis)
    none = library.full_like(_part(turned, axis, 0, 1), False)
    return library.concatenate([none, _part(turned, axis, 0, -1)], axis)


def _part(v: Any, axis: int, start: int, stop: int) -> Any:
    return v[(slice(None),) * axis + (slice(start, stop),)]


def in_torch(torch: Any, by_scan: bool) -> Library:
    """torch: a loop over the positions, or its own scan, which it has under torch.compile."""

    def loop(step: Step, begins: Any, x: Any, axis: int) -> Any:
        states: list[Any] = []
        for begin, value in zip(begins.unbind(axis), x.unbind(axis), strict=True):
            joined = step(states[-1], value) if states else value
            states.append(torch.where(begin, value, joined))
        return torch.stack(states, axis)

    def scan(step: Step, begins: Any, x: Any, axis: int) -> Any:
        from torch._higher_order_ops.associative_scan import associative_scan

        pairs = (begins.to(x.dtype), x)
        joined = _joined(step, lambda c, a, b: torch.where(c > 0, a, b), torch.maximum)
        return associative_scan(joined, pairs, axis, False, "generic")[1]

    names = ("add", "mul", "maximum", "minimum", "logaddexp")
    return Library(
        dict(zip(NOTHING, (getattr(torch, n) for n in names), strict=True)),
        scan if by_scan else loop,
        lambda v, axis: v.flip(axis),
        torch.where,
        torch.cat,
        torch.full_like,
    )


def in_jax(jax: Any, by_loop: bool) -> Library:
    """JAX: ``jax.lax.associative_scan`` of pairs, or ``jax.lax.scan``."""
    jnp = jax.numpy

    def loop(step: Step, begins: Any, x: Any, axis: int) -> Any:
        def one(state: Any, given: tuple[Any, Any]) -> tuple[Any, Any]:
            state = jnp.where(given[0], given[1], step(state, given[1]))
            return state, state

        flags, values = (jnp.moveaxis(v, axis, 0) for v in (begins, x))
        _, rest = jax.lax.scan(one, values[0], (flags[1:], values[1:]))
        return jnp.moveaxis(jnp.concatenate([values[:1], rest]), 0, axis)

    def scan(step: Step, begins: Any, x: Any, axis: int) -> Any:
        joined = _joined(step, jnp.where, jnp.logical_or)
        return jax.lax.associative_scan(joined, (begins, x), axis=axis)[1]

    names = ("add", "multiply", "maximum", "minimum", "logaddexp")
    return Library(
        dict(zip(NOTHING, (getattr(jnp, n) for n in names), strict=True)),
        loop if by_loop else scan,
        lambda v, axis: jnp.flip(v, axis),
        jnp.where,
        jnp.concatenate,
        jnp.full_like,
    )


def _joined(step: Step, where: Callable[..., Any], either: Step) -> Callable[[Any, Any], Any]:
    """Two pieces of runs as one: nothing comes over a border."""

    def joined(first: tuple[Any, Any], later: tuple[Any, Any]) -> tuple[Any, Any]:
        value = where(later[0], later[1], step(first[1], later[1]))
        return either(first[0], later[0]), value

    return joined
