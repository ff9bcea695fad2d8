"""What is asked of a segment problem before anything is chosen for it."""

from __future__ import annotations

from ..core.declare import Role
from ..core.problem import Problem, folded_by_segments
from ..formulas.record import RowFormula, is_pointwise, names_read
from .words import LANES


def record_of(problem: Problem) -> RowFormula:
    """The record that a kernel computes, in float64."""
    formula = _whole_record(problem)
    return formula.of_none[1] if formula.of_none and needs_no_counts(problem) else formula


def _whole_record(problem: Problem) -> RowFormula:
    return folded_by_segments(problem.op, problem.formula_in_doubles)


def needs_no_counts(problem: Problem) -> bool:
    """Whether a segment without rows is given what others would be given before their first."""
    formula = _whole_record(problem)
    if formula.of_none is None:
        return False
    monoid = formula.passes[0].monoid
    return monoid is not None and problem.constants[formula.of_none[0]] == monoid.identity[0]


def order_of(problem: Problem) -> str:
    """How the rows of a segment are found."""
    if problem.cut_by.role is Role.OFFSETS:
        return "offsets"
    return "sorted" if problem.is_sorted else "unsorted"


def way_of(problem: Problem) -> str:
    """How a problem is computed.

    In ``"runs"``, segment by segment, where something is known of a segment only by its rows. Else
    each row by itself: a ``"gather"`` of bits or, with arithmetic, ``"pointwise"``.
    """
    formula = record_of(problem)
    of_segment = {"extent", "index", "first"} & names_read(formula)
    is_wide = order_of(problem) == "offsets" and not has_few_runs(problem)
    if not is_pointwise(formula) or of_segment or is_wide:
        return "runs"
    rows, elements = problem.used(Role.ROW), problem.used(Role.ELEMENT)
    is_gather = formula.copies and len(rows) == 1 and not elements and len(problem.writes) == 1
    return "gather" if is_gather else "pointwise"


def is_narrow(problem: Problem) -> bool:
    """Whether lanes take a segment each, or several, rather than eight columns of one."""
    return 0 < problem.embedding_dim < LANES


def has_few_runs(problem: Problem) -> bool:
    """Whether there are runs of rows of few columns, which are worth some preparation."""
    is_any = problem.num_inputs > 0 and problem.num_segments > 0
    return is_any and is_narrow(problem) and order_of(problem) != "unsorted"


def lanes_of(problem: Problem) -> int:
    """Lanes that a row of few columns takes: a power of two, 0 where there are more than eight."""
    columns = problem.embedding_dim
    return 1 << (columns - 1).bit_length() if 0 < columns <= LANES else 0
