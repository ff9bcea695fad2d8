"""What a tile of columns keeps, and where: boxes on the stack, a row of numbers each."""

from __future__ import annotations

from ...formulas.record import RowFormula
from ..codegen.functions import inlined
from ..codegen.memory import word
from ..codegen.operands import Operands
from ..codegen.vectors import state_emitters
from ..words import EXTENT, KEPT, LINE, WIDEST_TILE
from .rows import keeps_lifted

# Boxes of a tile lie a cache line more than its columns apart: at the same place of a page they
# would push each other out of the nearest cache (a sum of 8x1024 float32 took 12 microseconds
# instead of 7).
PITCH = 8 * WIDEST_TILE + LINE


@inlined
def kept_pitch(p, width):
    """Columns from one row of what is lifted of a tile to the next; 0 where it is not kept."""
    return width if word(p, EXTENT) * width <= KEPT else 0


@inlined
def kept_at(tile, i, pitch, c):
    """Where what is lifted of a column is kept: in front of the other boxes, as float32."""
    return tile[6][0] - 4 * KEPT + 4 * (i * pitch + c)


def keeps_columns(formula: RowFormula, operands: Operands) -> bool:
    """Whether ``apply`` is given what the last pass lifts, where a tile of it is small."""
    known: tuple[str, ...] = ("",)
    for step in formula.passes[:-1]:
        known += step.names
    return operands.singles and keeps_lifted(formula, operands, known)


def row_emitters(operands: Operands):
    """Reading and writing the row operands of a tile in their box."""
    return state_emitters(max(1, len(operands.row)))
