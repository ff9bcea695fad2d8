"""Row formulas over segments of less than eight columns, so that all lanes have something to do.

A lane takes one column of one segment, whose rows it folds one after the other as ever: a million
rows of one element, cut into 100000 segments by sorted ids, took 50 ms for a softmax with lanes
across columns.
"""

from __future__ import annotations

from ...formulas.record import RowFormula, names_read
from ..codegen.bind import per_element, per_row
from ..codegen.elementary import primitives_for
from ..codegen.functions import inlined, inner
from ..codegen.lanes import LANES
from ..codegen.memory import word
from ..codegen.operands import Operands
from ..codegen.passes import BoundPass
from ..codegen.side_by_side import (
    SideBySide,
    lanes_at,
    no_lanes,
    scratch_words,
    set_lanes,
    with_extents,
)
from ..codegen.vectors import counting, no_vectors, stack
from ..segment_words import NUM_COLUMNS, table_slots
from .segment_runs import runs
from .segment_tables import places_of


@inner
def _nothing_known(p, const, group, longest, row):
    return no_vectors()


def _with_pass(before, bound: BoundPass, lanes: SideBySide):
    """``known(p, const, group, longest, row)``: what is known after one pass more."""
    fold, close = bound.fold, bound.close
    if fold is None:

        @inner
        def prepared(p, const, group, longest, row):
            return close(const, row, before(p, const, group, longest, row), no_vectors())

        return prepared
    lift, combine, keep, begin, fetch = fold.lift, fold.combine, fold.keep, bound.begin, lanes.fetch
    holds, combine_next, identity = fold.holds, fold.combine_next, fold.identity

    @inner
    def passed(p, const, group, longest, row):
        known = before(p, const, group, longest, row)
        state = begin(const, row)
        for k in range(longest):
            lifted = lift(counting(k, 0), const, fetch(p, group, k), row, known)
            if holds is None:
                state = keep(lanes_at(group, k), combine(state, lifted), state)
            else:  # nothing, in a lane that is done, goes with it briefly
                state = combine_next(state, keep(lanes_at(group, k), lifted, identity()))
        return close(const, row, known, state)

    return passed


def _make_group(
    formula: RowFormula, element: str, operands: Operands, lanes: SideBySide, pitch: int
):
    """``compute(p, const, group, longest)`` of the lanes of a group; ``longest`` has most rows.

    With a ``pitch`` all that is known of a segment goes to a table, for rows to be computed from.
    """
    known: tuple[str, ...] = ("",)
    known_after = _nothing_known
    for step in formula.passes:
        bound = BoundPass(formula, step, element, operands, known)
        known_after, known = _with_pass(known_after, bound, lanes), known + step.names
    row, outputs = operands.row, len(operands.outputs)
    if pitch:
        slots, counts = table_slots(formula), "extent" in names_read(formula)
        put_known, fetch_own = lanes.put_known(len(known) - 1, pitch, slots), lanes.fetch_rows

        @inlined
        def found_out(p, const, group, longest):
            own, table = fetch_own(p, group, 0), places_of(p, counts)[1]
            put_known(group, table, known_after(p, const, group, longest, own))

        return found_out
    primitives = primitives_for(element)
    fetch_rows, fetch, put_rows, put = lanes.fetch_rows, lanes.fetch, lanes.put_rows, lanes.put
    if formula.finish:
        finish = per_row(formula.finish, primitives, row, known, (), outputs)

        @inlined
        def finished(p, const, group, longest):
            own = fetch_rows(p, group, 0)
            found = known_after(p, const, group, longest, own)
            put_rows(p, group, 0, finish(const, own, found, no_vectors()))

        return finished
    apply = per_element(formula.apply, primitives, operands.full, row, known, outputs)

    @inlined
    def applied(p, const, group, longest):
        own = fetch_rows(p, group, 0)
        found = known_after(p, const, group, longest, own)
        for k in range(longest):
            put(p, group, k, apply(counting(k, 0), const, fetch(p, group, k), own, found))

    return applied


def make_runs_kernel(
    formula: RowFormula,
    element: str,
    operands: Operands,
    together: bool,
    packed: int = 1,
    pitch: int = 0,
):
    """``kernel(p, begin, end)`` over segments, as many at a time as have room in the lanes.

    Columns are ``packed``, all that a segment has, or taken one by one.
    """
    start, stop = runs(together)
    lanes = SideBySide(operands, not together, formula.finish is not None, packed)
    compute, place = _make_group(formula, element, operands, lanes, pitch), lanes.place
    scratch = stack(scratch_words(operands))

    def kernel(p, begin, end):
        const, group, columns = operands.constants(p), scratch(), word(p, NUM_COLUMNS)
        side = LANES // columns
        no_lanes(group, columns)
        after = start(p, begin)
        for left in range(begin, end, side):
            longest = 0
            for k in range(side):
                segment, first, there = left + k, after, 0
                if segment < end:
                    after, there = stop(p, segment, first), 1
                longest = max(longest, after - first)
                set_lanes(group, k * columns, columns, segment, first, after - first, there)
            place(p, group)
            compute(p, with_extents(const, group), group, longest)

    return kernel
