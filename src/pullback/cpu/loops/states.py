"""States of blocks, joined in block order behind the state in front of them."""

from __future__ import annotations

from ...formulas.record import Monoid
from ..codegen.elementary import primitives_for
from ..codegen.fold import States, combined
from ..codegen.memory import word
from ..codegen.vectors import state_emitters
from ..state_words import BLOCKS, FRONT, FRONTS, STATES, TOTAL


def make_join_kernel(monoid: Monoid, element: str):
    """``kernel(p, begin, end)`` over rows: the state behind each, and those in front of blocks."""
    states = States(monoid, primitives_for(element))
    combine, size = combined(states.combine, states), len(states.names)
    _, _, read_one, write_one, _, _ = state_emitters(size)

    def kernel(p, begin, end):
        blocks = word(p, BLOCKS)
        for row in range(begin, end):
            state = read_one(word(p, FRONT) + row * size * 8)
            for b in range(row * blocks, (row + 1) * blocks):
                write_one(word(p, FRONTS) + b * size * 8, state)
                state = combine(state, read_one(word(p, STATES) + b * size * 8))
            write_one(word(p, TOTAL) + row * size * 8, state)

    return kernel
