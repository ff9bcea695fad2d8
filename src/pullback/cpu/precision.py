"""What a CPU kernel computes in, asked of the code that emits it."""

from __future__ import annotations

from ..core.problem import Problem
from .launch import computes_in_singles, element_of


def is_in_float32(problem: Problem) -> bool:
    """Whether some of the arithmetic on elements is in float32."""
    if problem.is_segmented:
        return False
    kinds = {o.symbol: element_of(problem, o.name, None) for o in problem.reads}
    types = tuple((n, kind) for n, kind in kinds.items() if kind != problem.element)
    return computes_in_singles(problem, *problem.symbols(), types)
