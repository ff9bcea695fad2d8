"""Stretches along a row: elements joined by a shorter way, with one test behind many."""

from __future__ import annotations

from ..codegen.block import least
from ..codegen.fold import Fold
from ..codegen.functions import inlined, inner
from ..codegen.lanes import LANES
from ..codegen.vectors import counting, first_lanes

# Elements of a lane without a look at how many are left.
TOGETHER = 8


class RowStretch:
    """Pieces of a loop over a stretch; ``line`` and ``known`` are as in :mod:`.rows`.

    ``fetch`` is that of the full operands. ``join_some`` takes in what lies within ``together``
    elements, ``join_rest`` less than that. ``ended`` gives the state behind a stretch.
    """

    def __init__(self, fold: Fold, fetch):
        way, lift_one, combine, keep_state = fold.stretch, fold.lift, fold.combine, fold.keep
        lift, join, look, end, keep = way.lift, way.join, way.look, way.end, way.keep
        holds, far_holds = way.holds, way.far_holds
        end_far, brought_near = way.end_far, way.brought_near
        self.begin, self.most, self.together = way.begin, way.most, TOGETHER * LANES
        self.join_lanes = way.join_lanes
        looks = tuple(range(0, TOGETHER * LANES, way.every * LANES))
        between = tuple(range(0, way.every * LANES, LANES))

        @inlined
        def joined(line, known, carried, i, count):
            p, const, row, addresses, strides, _ = line
            full = fetch(p, addresses, strides, i, count)
            return join(carried, lift(counting(i, 1), const, full, row, known))

        @inlined
        def join_some(line, known, carried, i):
            for first in looks:
                for k in between:
                    carried = joined(line, known, carried, i + first + k, LANES)
                carried = look(carried)
            return carried

        @inlined
        def join_rest(line, known, carried, first, stop):
            whole = first + (stop - first) // LANES * LANES
            for i in range(first, whole, LANES):
                carried = look(joined(line, known, carried, i, LANES))
            if whole < stop:
                left = stop - whole
                after = look(joined(line, known, carried, whole, left))
                carried = keep(first_lanes(left), after, carried)
            return carried

        @inner
        def combined(line, known, state, carried, first, stop):
            if far_holds(state, carried):
                return end_far(state, carried)
            p, const, row, addresses, strides, _ = line
            for i in range(first, stop, LANES):
                count = least(LANES, stop - i)
                full = fetch(p, addresses, strides, i, count)
                after = combine(state, lift_one(counting(i, 1), const, full, row, known))
                state = keep_state(first_lanes(count), after, state)
            return brought_near(state)

        @inlined
        def ended(line, known, state, carried, first, stop):
            after = end(state, carried)
            if not holds(state, carried):
                after = combined(line, known, state, carried, first, stop)
            return after

        self.join_some, self.join_rest, self.ended = join_some, join_rest, ended
