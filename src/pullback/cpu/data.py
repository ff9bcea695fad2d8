"""Data parameters of an op, which kernels know by number."""

from __future__ import annotations

import struct
from functools import cache

from ..core.problem import Problem
from ..formulas.compose import changed, renamed
from ..formulas.record import Formula
from .words import CONSTANT_NAMES, MOST_DATA


@cache
def numbered(formula: Formula, data: tuple[str, ...], operands: tuple[str, ...]) -> Formula:
    """The formula asking for data parameters by number, but for those that operands stand for."""
    if len(data) > MOST_DATA:
        raise TypeError(f"expected at most {MOST_DATA} data parameters, got {', '.join(data)}")
    names = {name: f"data{k}" for k, name in enumerate(data) if name not in operands}
    made: Formula = changed(formula, lambda function: renamed(function, **names))
    return made


def constant_words(problem: Problem) -> list[int]:
    """The extent and the data parameters, as words of the block."""
    held = problem.constants
    numbers = [held["extent"], *(held.get(name, 0.0) for name in problem.op.data)]
    numbers += [0.0] * (len(CONSTANT_NAMES) - len(numbers))
    return list(struct.unpack(f"<{len(numbers)}q", struct.pack(f"<{len(numbers)}d", *numbers)))
