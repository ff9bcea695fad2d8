"""Row formulas over rows of few columns whose ids come in any order, without sorting them.

A table has a place for every segment, to which rows are folded as they come: those of a segment in
row order, as if they had been sorted. Every pass walks the rows once. Threads share the segments,
and each walks all ids, picking out rows of its own. A million rows of one element in 100000
segments took 35 ms for a softmax when they were sorted.
"""

from __future__ import annotations

from ...formulas.record import Pass, RowFormula, names_read
from ..codegen.bind import per_element, per_row
from ..codegen.block import is_below, least
from ..codegen.elementary import primitives_for
from ..codegen.few_columns import Rows, Table, extents_of
from ..codegen.functions import inlined, inner
from ..codegen.lanes import LANES
from ..codegen.memory import set_word, word
from ..codegen.operands import Operands, constants
from ..codegen.passes import BoundPass
from ..codegen.vectors import counting, no_vectors, stack
from ..segment_words import (
    ID_SIZE,
    ID_STRIDE,
    IDS,
    NUM_COLUMNS,
    NUM_INPUTS,
    NUM_SEGMENTS,
    PARTS,
    STATES,
    table_slots,
)
from ..words import LINE
from .segment import id_from, make_clear_row
from .segment_tile import operand_words

# Rows that are picked out at a time, whose numbers and segments stay in the first cache.
PICKED = 256
# Words of a list, with room for what fills the last lanes; segments follow rows.
SEGMENTS = PICKED + LANES
VECTOR = 8 * LANES


def _make_memory(operands: Operands):
    """``memory_of(p)``: addresses, row strides and column strides of all operands."""
    addresses, row_strides, column_strides = (operand_words(operands, k) for k in range(3))

    @inlined
    def memory_of(p):
        return addresses(p), row_strides(p), column_strides(p)

    return memory_of


def _make_lists(side: int):
    """``pick`` lists the rows of segments [low, high); ``these`` lists segments themselves."""

    @inner
    def pick(ids, first, after, low, high, lists):
        at, stride, size = ids
        count = 0
        for n in range(first, after):
            s = id_from(at + n * stride, size)
            set_word(lists, count, n)
            set_word(lists, SEGMENTS + count, s)
            # No branch, which nobody could foretell.
            count += is_below(s - low, high - low)
        if count > 0:
            for k in range(count, count + side - 1):
                set_word(lists, k, word(lists, count - 1))
                set_word(lists, SEGMENTS + k, word(lists, SEGMENTS + count - 1))
        return count

    @inner
    def these(lists, segment, high):
        for k in range(side):
            set_word(lists, SEGMENTS + k, least(segment + k, high - 1))

    return pick, these


def make_tables_kernel(
    formula: RowFormula, element: str, operands: Operands, pitch: int, dense: bool
):
    """``kernel(p, begin, end)`` over parts of the segments: all that passes tell of them."""
    side = LANES // pitch
    rows, table = Rows(operands, pitch, dense), Table(pitch, table_slots(formula))
    fetch, fetch_rows, put = rows.fetch, rows.fetch_rows, rows.put
    pick, these = _make_lists(side)
    memory_of, with_extents = _make_memory(operands), extents_of(pitch)
    counts = "extent" in names_read(formula)
    row_bytes, segment_bytes = table.row_bytes, table.segment_bytes
    lists_on_stack = stack(2 * SEGMENTS)

    @inlined
    def here(const, count, listed):
        return with_extents(const, count, listed) if counts else const

    @inner
    def count_rows(p, ids, low, high, count):
        """How many rows each segment has."""
        at, stride, size = ids
        for s in range(low, high):
            set_word(count, s, 0)
        for n in range(word(p, NUM_INPUTS)):
            s = id_from(at + n * stride, size)
            if is_below(s - low, high - low):
                set_word(count, s, word(count, s) + 1)

    def step_of(step: Pass, known: tuple[str, ...], counts_rows: bool):
        """``passed(p, const, memory, columns, ids, part, room)``: one pass, and what it gives."""
        bound = BoundPass(formula, step, element, operands, known)
        fold, close, before = bound.fold, bound.close, len(known) - 1
        read_known = table.read(0, before, known=True)
        write_known = table.write(before, bound.gives)
        size = fold.size if fold else 0
        read_state, write_state = table.read(before, size), table.write(before, size)
        read_row, write_row = table.read_row(size), table.write_row()
        box_on_stack = stack(LANES * max(1, size))
        lift, combine, write, begin = (
            (fold.lift, fold.combine, fold.write, bound.begin) if fold else (None,) * 4
        )
        state_at = before * row_bytes

        @inner
        def begun(const, memory, columns, part, room):
            low, high = part
            states, lists, _ = room
            for s in range(low, high, side):
                these(lists, s, high)
                at = lists + 8 * SEGMENTS
                write_state(states, at, begin(const, fetch_rows(memory, columns, at)))

        @inner
        def fold_rows(p, const, memory, columns, ids, part, room):
            low, high = part
            states, lists, count = room
            total, box = word(p, NUM_INPUTS), box_on_stack()
            for first in range(0, total, PICKED):
                after = least(first + PICKED, total)
                picked = pick(ids, first, after, low, high, lists)
                for k in range(0, picked, side):
                    at, by = lists + 8 * k, lists + 8 * (SEGMENTS + k)
                    full = fetch(memory, columns, at)
                    row, known = fetch_rows(memory, columns, by), read_known(states, by)
                    write(box, VECTOR, lift(counting(0, 0), const, full, row, known))
                    for r in range(least(side, picked - k)):
                        s = word(by, r)
                        if counts_rows:
                            set_word(count, s, word(count, s) + 1)
                        place = states + s * segment_bytes + state_at
                        lifted = read_row(box + row_bytes * r, VECTOR)
                        write_row(place, combine(read_row(place, row_bytes), lifted))

        @inner
        def closed(const, memory, columns, part, room):
            low, high = part
            states, lists, count = room
            for s in range(low, high, side):
                these(lists, s, high)
                at = lists + 8 * SEGMENTS
                row, known = fetch_rows(memory, columns, at), read_known(states, at)
                state = read_state(states, at) if size > 0 else no_vectors()
                write_known(states, at, close(here(const, count, at), row, known, state))

        @inlined
        def passed(p, const, memory, columns, ids, part, room):
            if counts_rows:
                low, high = part
                for s in range(low, high):
                    set_word(room[2], s, 0)
            if size > 0:
                begun(const, memory, columns, part, room)
                fold_rows(p, const, memory, columns, ids, part, room)
            closed(const, memory, columns, part, room)

        return passed

    known: tuple[str, ...] = ("",)
    folds_at_once = bool(formula.passes) and formula.passes[0].monoid is not None
    steps = []
    for k, step in enumerate(formula.passes):
        steps.append(step_of(step, known, counts and k == 0 and folds_at_once))
        known = (*known, *step.names)
    all_steps = tuple(steps)
    read_found = table.read(0, len(known) - 1, known=True)
    finishes, finish = formula.finish is not None, None
    if formula.finish:
        primitives, outputs = primitives_for(element), len(operands.outputs)
        finish = per_row(formula.finish, primitives, operands.row, known, (), outputs)

    @inner
    def finished(const, memory, columns, part, room):
        low, high = part
        states, lists, count = room
        for s in range(low, high, side):
            these(lists, s, high)
            at = lists + 8 * SEGMENTS
            row, found = fetch_rows(memory, columns, at), read_found(states, at)
            values = finish(here(const, count, at), row, found, no_vectors())
            put(memory, columns, at, values)

    def kernel(p, begin, end):
        const, memory, columns = constants(p), memory_of(p), word(p, NUM_COLUMNS)
        ids = (word(p, IDS), word(p, ID_STRIDE), word(p, ID_SIZE))
        segments, parts = word(p, NUM_SEGMENTS), word(p, PARTS)
        count, states = places_of(p, counts)
        room = (states, lists_on_stack(), count)
        for k in range(begin, end):
            part = (segments * k // parts, segments * (k + 1) // parts)
            if counts and not folds_at_once:
                count_rows(p, ids, part[0], part[1], count)
            for step in all_steps:
                step(p, const, memory, columns, ids, part, room)
            if finishes:
                finished(const, memory, columns, part, room)

    return kernel


@inlined
def places_of(p, counts):
    """Where the rows of each segment are counted, if they are, and where the table begins."""
    count = (word(p, STATES) + LINE - 1) // LINE * LINE
    if counts:
        return count, count + (8 * word(p, NUM_SEGMENTS) + LINE - 1) // LINE * LINE
    return count, count


@inlined
def _known_by_itself(const, row, states, listed):
    return no_vectors()


def _closed(before, close):
    """What is known with what follows from it without looking at rows."""

    @inlined
    def known_of(const, row, states, listed):
        return close(const, row, before(const, row, states, listed), no_vectors())

    return known_of


def _known_by_table(read):
    @inlined
    def known_of(const, row, states, listed):
        return read(states, listed)

    return known_of


def make_apply_kernel(
    formula: RowFormula, element: str, operands: Operands, pitch: int, dense: bool
):
    """``kernel(p, begin, end)`` over rows: each by itself, and by what is known of its segment.

    That is in the table, if there is a pass that folds; zeros where a row belongs to no segment.
    """
    side = LANES // pitch
    rows, table = Rows(operands, pitch, dense), Table(pitch, table_slots(formula))
    fetch, fetch_rows, put = rows.fetch_next, rows.fetch_rows, rows.put_next
    memory_of, clear_row = _make_memory(operands), make_clear_row(element)
    counts = "extent" in names_read(formula)
    in_table = counts or any(step.monoid for step in formula.passes)
    known_of, known = _known_by_itself, ("",)
    for step in formula.passes:
        bound = BoundPass(formula, step, element, operands, known)
        known_of, known = _closed(known_of, bound.close), (*known, *step.names)
    if in_table:
        known_of = _known_by_table(table.read(0, len(known) - 1, known=True))
    primitives, outputs = primitives_for(element), len(operands.outputs)
    apply = per_element(formula.apply, primitives, operands.full, operands.row, known, outputs)
    lists_on_stack = stack(2 * LANES)

    @inner
    def clear_outside(p, first, after, ids, segments):
        at, stride, size = ids
        for n in range(first, after):
            if not is_below(id_from(at + n * stride, size), segments):
                clear_row(p, n)

    def kernel(p, begin, end):
        const, memory, columns = constants(p), memory_of(p), word(p, NUM_COLUMNS)
        at, stride, size = (word(p, IDS), word(p, ID_STRIDE), word(p, ID_SIZE))
        segments, lists = word(p, NUM_SEGMENTS), lists_on_stack()
        states = places_of(p, counts)[1] if in_table else 0
        by = lists + 8 * LANES
        if segments == 0:
            clear_outside(p, begin, end, (at, stride, size), segments)
            return
        for n in range(begin, end, side):
            inside = 0
            for k in range(side):
                row = least(n + k, end - 1)
                s = id_from(at + row * stride, size)
                there = is_below(s, segments)
                set_word(lists, k, row)
                set_word(by, k, s if there else 0)
                inside += there
            follow = n + side <= end
            full = fetch(memory, columns, lists, follow)
            own = fetch_rows(memory, columns, by)
            found = known_of(const, own, states, by)
            put(memory, columns, lists, follow, apply(counting(0, 0), const, full, own, found))
            if inside < side:
                clear_outside(p, n, least(n + side, end), (at, stride, size), segments)

    return kernel
