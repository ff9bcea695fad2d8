"""What a CPU kernel computes in, asked of the code that emits it."""

from __future__ import annotations

from ..core.problem import Problem
from ..formulas.record import RowFormula
from .codegen.operands import Operands
from .codegen.sixteen import lift_call, single_call
from .data import numbered
from .launch import computes_in_singles, element_of


def is_in_float32(problem: Problem) -> bool:
    """Whether some of the arithmetic on elements is in float32."""
    kinds = {o.symbol: element_of(problem, o.name, None) for o in problem.reads}
    types = tuple((n, kind) for n, kind in kinds.items() if kind != problem.element)
    if problem.is_segmented or not computes_in_singles(problem, types):
        return False
    full, row = problem.symbols()
    formula = numbered(problem.formula, problem.op.data, (*full, *row))
    assert isinstance(formula, RowFormula)
    outputs = tuple(o.name for o in problem.writes)
    operands = Operands(problem.element, full, row, outputs, singles=True)
    known: tuple[str, ...] = ("",)
    for step in formula.passes:
        if step.monoid and lift_call(formula, step.monoid, operands, known):
            return True
        known += step.names
    return formula.apply is not None and single_call(formula.apply, operands, known) is not None
