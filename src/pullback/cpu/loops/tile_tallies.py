"""Counts of a tile of columns: see :mod:`..codegen.column_tallies`."""

from __future__ import annotations

from ...formulas.record import Monoid
from ..codegen.column_tallies import Tallies
from ..codegen.functions import inlined, inner
from ..codegen.lanes import LANES
from ..codegen.operands import Operands
from ..codegen.vectors import state_emitters
from .tile import PITCH


def make_tallies(monoid: Monoid, operands: Operands):
    """``fold(tile, width, first, stop, fresh, ahead)`` of whole pairs of eight columns.

    And ``end(tile, width)``, after which the first lane holds what was counted. Integers lie in the
    place of the second meanwhile.
    """
    tallies = Tallies(monoid, operands, PITCH)
    item, widened, write = tallies.item, tallies.widened(), state_emitters(1)[1]
    of_eight, of_one = tallies.count(LANES), tallies.count(1)
    numbers_at = 4 if item == 4 else 0

    @inlined
    def places(tile, c):
        boxes = tile[6]
        return boxes[numbers_at] + item * c, boxes[2] + PITCH + item * c

    @inner
    def fold(tile, width, first, stop, fresh, ahead):
        _, _, addresses, strides, _, left, _ = tile
        whole = first + (stop - first) // LANES * LANES
        for i in range(first, whole, LANES):
            for c in range(0, width, 2 * LANES):
                numbers, box = places(tile, c)
                begins = fresh and i == first
                if ahead:
                    of_eight(addresses, strides, i, left + c, numbers, box, begins, ahead)
                else:
                    of_eight(addresses, strides, i, left + c, numbers, box, begins, None)
        for i in range(whole, stop):
            for c in range(0, width, 2 * LANES):
                numbers, box = places(tile, c)
                begins = fresh and i == first
                of_one(addresses, strides, i, left + c, numbers, box, begins, None)

    @inner
    def end(tile, width):
        for c in range(0, width, 2 * LANES):
            _, box = places(tile, c)
            one, other = widened(box)
            at = tile[6][2] + 8 * c
            write(at, PITCH, one)
            write(at + 8 * LANES, PITCH, other)

    return fold, end
