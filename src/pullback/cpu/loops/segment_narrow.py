"""Row formulas over segments of less than eight columns, so that all lanes have something to do.

A lane takes one column of one segment, whose rows it folds one after the other as ever: a million
rows of one element, cut into 100000 segments by sorted ids, took 50 ms for a softmax with lanes
across columns.
"""

from __future__ import annotations

from ...formulas.record import RowFormula, names_read
from ..codegen.bind import per_element, per_row
from ..codegen.block import is_below
from ..codegen.elementary import primitives_for
from ..codegen.functions import inlined, inner
from ..codegen.lanes import LANES
from ..codegen.memory import set_word, word
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
from ..segment_words import ID_SIZE, ID_STRIDE, IDS, NUM_COLUMNS, NUM_INPUTS, NUM_SEGMENTS, STATES
from ..words import LINE
from .segment import id_at, id_from, make_clear_row
from .segment_runs import runs
from .segment_tile import make_places, operand_words, with_extent


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

    @inner
    def passed(p, const, group, longest, row):
        known = before(p, const, group, longest, row)
        state = begin(const, row)
        for k in range(longest):
            lifted = lift(counting(k, 0), const, fetch(p, group, k), row, known)
            state = keep(lanes_at(group, k), combine(state, lifted), state)
        return close(const, row, known, state)

    return passed


def _make_group(formula: RowFormula, element: str, operands: Operands, lanes: SideBySide):
    """``compute(p, const, group, longest)`` of the lanes of a group; ``longest`` has most rows."""
    known: tuple[str, ...] = ("",)
    known_after = _nothing_known
    for step in formula.passes:
        bound = BoundPass(formula, step, element, operands, known)
        known_after, known = _with_pass(known_after, bound, lanes), known + step.names
    row, outputs = operands.row, len(operands.outputs)
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


def make_runs_kernel(formula: RowFormula, element: str, operands: Operands, together: bool):
    """``kernel(p, begin, end)`` over segments, as many at a time as have room in the lanes."""
    start, stop = runs(together)
    lanes = SideBySide(operands, not together, formula.finish is not None)
    compute, place = _make_group(formula, element, operands, lanes), lanes.place
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


def make_pointwise_kernel(formula: RowFormula, element: str, operands: Operands):
    """``kernel(p, begin, end)`` over input rows, each a segment of one row."""
    clear_row = make_clear_row(element)
    lanes = SideBySide(operands, False, formula.finish is not None)
    compute, place = _make_group(formula, element, operands, lanes), lanes.place
    scratch = stack(scratch_words(operands))

    def kernel(p, begin, end):
        const, group, columns = operands.constants(p), scratch(), word(p, NUM_COLUMNS)
        segments, side = word(p, NUM_SEGMENTS), LANES // columns
        no_lanes(group, columns)
        for left in range(begin, end, side):
            for k in range(side):
                n, s, there = left + k, 0, 0
                if n < end:
                    s = id_at(p, n)
                    there = 1 if is_below(s, segments) else 0
                    if there == 0:
                        clear_row(p, n)
                set_lanes(group, k * columns, columns, s, n, there, there)
            place(p, group)
            compute(p, with_extents(const, group), group, 1)

    return kernel


def make_tiles_kernel(formula: RowFormula, element: str, operands: Operands):
    """``kernel(p, begin, end)`` of one column, for rows in any order: a state for every segment.

    States of whole vectors would take eight times the room, and miss the caches as much more often.
    """
    (step,) = formula.passes
    bound = BoundPass(formula, step, element, operands, ("",))
    fold, close = bound.fold, bound.close
    assert fold is not None
    lift, combine, identity = fold.lift, fold.combine, fold.identity
    read, write, width = fold.read_one, fold.write_one, 8 * fold.size
    fetch, store = operands.fetch_elements, operands.store_rows
    places = make_places(operands, writes_rows=True)
    primitives, outputs = primitives_for(element), len(operands.outputs)
    finish = per_row(formula.finish, primitives, (), ("", *step.names), (), outputs)
    all_addresses, row_strides = (operand_words(operands, k) for k in range(2))
    counts = "extent" in names_read(formula)

    @inner
    def fold_rows(p, const, count, states):
        addresses, strides = all_addresses(p), row_strides(p)
        rows, segments = word(p, NUM_INPUTS), word(p, NUM_SEGMENTS)
        ids_at, id_stride, id_size = word(p, IDS), word(p, ID_STRIDE), word(p, ID_SIZE)
        for n in range(rows):
            s = id_from(ids_at + n * id_stride, id_size)
            if is_below(s, segments):
                if counts:
                    set_word(count, s, word(count, s) + 1)
                full = fetch(places(addresses, strides, n, s))
                lifted = lift(counting(0, 0), const, full, no_vectors(), no_vectors())
                at = states + s * width
                write(at, combine(read(at), lifted))

    def kernel(p, begin, end):
        const = operands.constants(p)
        addresses, strides = all_addresses(p), row_strides(p)
        segments = word(p, NUM_SEGMENTS)
        count = (word(p, STATES) + LINE - 1) // LINE * LINE
        states = count + ((8 * segments + LINE - 1) // LINE * LINE if counts else 0)
        for s in range(segments):
            if counts:
                set_word(count, s, 0)
            write(states + s * width, identity())
        fold_rows(p, const, count, states)
        for s in range(segments):
            here = with_extent(const, word(count, s)) if counts else const
            known = close(here, no_vectors(), no_vectors(), read(states + s * width))
            values = finish(here, no_vectors(), known, no_vectors())
            store(places(addresses, strides, s, s), values)

    return kernel
