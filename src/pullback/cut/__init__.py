"""Ops on tensors that are cut into pieces, also along the op's own axis.

:class:`Cut` has the three functions that all engines stand on: ``summary`` gives the states of a
piece, ``combine`` joins states in order, ``apply`` makes the results of a piece from its operands
and the states that concern it. :class:`SegmentCut` does so for rows of segments. Bytes are those of
the uncut op.
"""

from .engine import Cut, Piece
from .evaluate import evaluate
from .grid import Move, moves, settled
from .layout import from_rows, to_rows
from .segments import SegmentCut
from .warm import warm

__all__ = [
    "Cut",
    "Move",
    "Piece",
    "SegmentCut",
    "evaluate",
    "from_rows",
    "moves",
    "settled",
    "to_rows",
    "warm",
]
