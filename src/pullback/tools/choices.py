"""What may be chosen of an op, and few choices that show every pair."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.declare import Op, Role
from ..formulas.record import names_read
from .case import Case, cuts

Choice = dict[str, Any]


def pairwise(choices: Mapping[str, Sequence[Any]]) -> list[Choice]:
    """Choices among which every two values of two names occur together.

    The first has every first value. Of one or two names these are all choices.
    """
    names = list(choices)
    first = dict.fromkeys(names, 0)
    rows = [first]
    every = [dict(zip(names, k, strict=True)) for k in itertools.product(*_ranges(choices))]
    if len(names) <= 2:
        rows = every
    else:
        missing = {pair for row in every for pair in _pairs(row)} - _pairs(first)
        while missing:
            best = max(every, key=lambda row: len(_pairs(row) & missing))
            rows.append(best)
            missing -= _pairs(best)
    return [{n: choices[n][k] for n, k in row.items()} for row in rows]


def _ranges(choices: Mapping[str, Sequence[Any]]) -> list[range]:
    return [range(len(values)) for values in choices.values()]


def _pairs(row: Mapping[str, int]) -> set[tuple[tuple[str, int], tuple[str, int]]]:
    return set(itertools.combinations(row.items(), 2))


def selectors(op: Op) -> dict[str, tuple[Any, ...]]:
    """What selects a record: parameters by name, operands that may be left out as ``+NAME``.

    What cuts rows into segments is one choice, called ``cut``.
    """
    cutting = [o.name for o in cuts(op)]
    found = {p.name: p.choices for p in op.parameters if p.choices}
    for o in op.reads:
        # A function makes resets of offsets, and the problem never sees them.
        if o.optional and o.name not in cutting and o.role is not Role.OFFSETS:
            found[f"+{o.name}"] = (False, True)
    if len(cutting) > 1:
        found["cut"] = tuple(cutting)
    return found


def chosen(case: Case, choice: Mapping[str, Any]) -> Case:
    """The case with a choice made, and with the operands that its record then asks for."""
    parameters = {n: v for n, v in choice.items() if n[0] != "+" and n != "cut"}
    given = tuple(n[1:] for n, v in choice.items() if n[0] == "+" and v)
    if "cut" in choice:
        given = (*given, choice["cut"])
    made = case.but(**parameters, given=given or case.given)
    if not made.op.optional or (made.op.refuses_empty and 0 in made.shape):
        return made
    asked = names_read(made.formula) - {o.symbol for o in made.problem.reads}
    # A number may stand for the array of a parameter's name.
    more = [o.name for o in made.op.reads if o.symbol in asked and not made.op.parameter(o.name)]
    return made.but(given=(*made.given, *more))


def selections(case: Case) -> list[Case]:
    """The case under selections of its op's records, every pair among them."""
    return [chosen(case, choice) for choice in pairwise(selectors(case.op))]
