"""Which problems are folded to tables that parts of the rows have to themselves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ..core.declare import Role, Type
from ..core.problem import Problem
from ..formulas.record import RowFormula, names_read
from . import machine
from .segment_ways import order_of, record_of, way_of
from .segment_words import whole_lines
from .words import ITEMSIZE, LANES, LINE

# Columns that are taken at a time, where they are not all there are.
PART_WIDTHS = (64, 32, 16, 8)
STATE_BYTES = 4
# Of operands: those with a row for every row, those with one for every segment, and outputs.
Names = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class PartTables:
    """Tables of 32-bit states, one for each part of rows that come in any order."""

    parts: int
    width: int  # columns taken at a time
    bytes: int
    masks: int  # bytes behind the tables, of what was counted in every row


@cache
def _folds_in_parts(formula: RowFormula, element: str, names: Names) -> bool:
    from .codegen.operands import Operands
    from .codegen.part_tables import folds_in_parts

    asked, outputs = names_read(formula), names[2]
    full, row = (tuple(n for n in group if n in asked) for group in names[:2])
    return folds_in_parts(formula, Operands(element, full, row, outputs))


def part_tables_of(problem: Problem, most: int) -> PartTables | None:
    """Tables for at most so many parts; None where there are none.

    As many as fit the caches, and as are worth it: to begin and to join a table takes about as
    long as the rows that it stands for, where there are as many rows as segments.
    """
    formula, columns = record_of(problem), problem.embedding_dim
    width = next(
        (w for w in PART_WIDTHS if columns % w == 0), columns if columns in (1, 2, 4) else 0
    )
    in_any_order = order_of(problem) == "unsorted" and way_of(problem) == "runs"
    if not in_any_order or not columns or not width or not problem.num_segments:
        return None
    used = (*problem.used(Role.ELEMENT), *problem.used(Role.ROW), *problem.writes)
    if any(o.type is not Type.ELEMENT for o in used) or problem.num_inputs >= 1 << 31:
        return None
    names = (*problem.symbols(), tuple(o.name for o in problem.writes))
    if not _folds_in_parts(formula, problem.element, names):
        return None
    elements, item = problem.num_segments * columns, ITEMSIZE[problem.element]
    states = whole_lines(STATE_BYTES * elements) if formula.passes[0].monoid else 0
    counts = whole_lines(STATE_BYTES * problem.num_segments)
    each = states + (counts if "extent" in names_read(formula) else 0)
    rest = (whole_lines(item * elements) if formula.apply else 0) + 2 * LINE
    masks = problem.num_inputs * -(-columns // 8) if formula.apply and states else 0
    fitting = (machine.here().caches.last_level // 2 - rest) // each
    parts = min(most, fitting, problem.num_inputs // problem.num_segments)
    return PartTables(parts, width, parts * each + rest, masks) if parts >= min(most, 2) else None


def holder_bytes(problem: Problem, parts: int) -> int:
    """Bytes for lists of the few rows of one column that are given anything; 0 where all are."""
    if problem.embedding_dim != 1 or not record_of(problem).seldom:
        return 0
    return parts * 16 * (-(-problem.num_inputs // parts) + 2 * LANES)
