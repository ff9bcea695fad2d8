"""Folds that are cut into runs: nothing is carried across a border, not inf and not NaN.

The condition ``begins`` holds where a new run begins. It is a component more of the state: a state
that contains a border takes nothing from what came before it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from .compose import asking, compose
from .primitives import maximum, where
from .record import Monoid, parameters

BEGINS = "begins"


@cache
def cut_into_runs(monoid: Monoid, border: str = "border") -> Monoid:
    """The fold within runs; ``border`` is what the component of the state is called."""
    return replace(
        monoid,
        lift=_with_border(monoid),
        combine=_unless_cut(monoid),
        identity=(0.0, *monoid.identity),
        state=(border, *monoid.state),
        selects=False,
    )


def _with_border(monoid: Monoid):
    name = monoid.lift.__name__
    state = _numbered("s", monoid)
    lines = [
        f"{', '.join(state)} = {name}({', '.join(parameters(monoid.lift))})",
        f"return where({BEGINS}, 1.0, 0.0), {', '.join(state)}",
    ]
    asks = asking(monoid.lift, [BEGINS])
    return compose(f"{name}_with_border", asks, lines, **{name: monoid.lift, "where": where})


def _unless_cut(monoid: Monoid):
    name = monoid.combine.__name__
    first, later = _numbered("a", monoid), _numbered("b", monoid)
    nothing = {f"nothing{k}": v for k, v in enumerate(monoid.identity)}
    kept = [f"where(cut2 > 0, {n}, {a})" for n, a in zip(nothing, first, strict=True)]
    lines = [
        f"{', '.join(first)} = {', '.join(kept)}",
        f"{', '.join(later)} = {name}({', '.join([*first, *later])})",
        f"return maximum(cut1, cut2), {', '.join(later)}",
    ]
    asks = ["cut1", *first, "cut2", *later]
    made = {name: monoid.combine, "where": where, "maximum": maximum, **nothing}
    return compose(f"{name}_unless_cut", asks, lines, **made)


def _numbered(letter: str, monoid: Monoid) -> list[str]:
    return [f"{letter}{k}" for k in range(len(monoid.identity))]
