"""Row formulas over rows of few columns whose ids come in any order, without sorting them.

A table has a place for every segment, to which rows are folded as they come: those of a segment in
row order, as if they had been sorted. Threads share the segments: each looks at all ids and folds
the rows of its own. Rows next to each other of different segments are folded side by side in the
lanes. A million rows of one element in 100000 segments took 35 ms for a softmax when they were
sorted.
"""

from __future__ import annotations

from typing import Any

from ...formulas.record import RowFormula, names_read
from ..codegen.bind import per_element, per_row
from ..codegen.block import again, is_below, least
from ..codegen.elementary import primitives_for
from ..codegen.few_columns import Rows, Table, extents_of, make_are_apart
from ..codegen.functions import inlined, inner
from ..codegen.lanes import LANES
from ..codegen.listing import (
    doubles_at,
    make_list_clamped,
    make_list_eight,
    make_rooms,
    numbers_from,
    put_first,
)
from ..codegen.memory import set_word, word
from ..codegen.operands import Operands
from ..codegen.passes import BoundPass
from ..codegen.vectors import counting, no_vectors, stack, state_emitters
from ..segment_words import (
    ID_SIZE,
    ID_STRIDE,
    IDS,
    NUM_COLUMNS,
    NUM_INPUTS,
    NUM_SEGMENTS,
    PARTS,
    SELDOM_BLOCK,
    STATES,
    is_cheap,
    table_slots,
)
from ..words import LINE
from .segment import id_from, make_clear_row
from .segment_spans import SPILL, list_spans, segment_of
from .segment_tile import operand_words

# Rows whose segments are listed at a time, in the first cache.
BLOCK = SELDOM_BLOCK
_LIST_EIGHT = make_list_eight(8), make_list_eight(4)
_LIST_CLAMPED = make_list_clamped(8), make_list_clamped(4)
# Bytes between the components of states in the lanes.
VECTOR = 8 * LANES


@inlined
def ids_of(p):
    return word(p, IDS), word(p, ID_STRIDE), word(p, ID_SIZE)


@inlined
def id_at(ids, n):
    return id_from(ids[0] + n * ids[1], ids[2])


@inlined
def line_at(address):
    """The first line from an address on."""
    return (address + LINE - 1) // LINE * LINE


@inlined
def places_of(p, counts):
    """Where the rows of each segment are counted, if they are, and where the table begins."""
    count = line_at(word(p, STATES))
    return count, line_at(count + 8 * word(p, NUM_SEGMENTS)) if counts else count


@inner
def repeat_last(listed, found, side):
    """What is listed last once more for every lane that would be left over."""
    for k in range(found, found + side - 1):
        set_word(listed, k, word(listed, found - 1))


class Loops:
    """What the kernels of a formula share."""

    def __init__(
        self, formula: RowFormula, element: str, operands: Operands, pitch: int, dense: bool
    ):
        self.formula, self.element, self.operands = formula, element, operands
        self.pitch, self.side, self.dense = pitch, LANES // pitch, dense
        self.rows, self.table = Rows(operands, pitch, dense), Table(pitch, table_slots(formula))
        self.counts = "extent" in names_read(formula)
        addresses, row_strides, column_strides = (operand_words(operands, k) for k in range(3))

        @inlined
        def memory_of(p):
            return addresses(p), row_strides(p), column_strides(p)

        self.memory_of = memory_of
        self.lists = stack(BLOCK + SPILL)
        side, counts, with_extents = self.side, self.counts, extents_of(pitch)

        @inner
        def these(listed, segment, after):
            """List segments that follow each other, the last one as often as it takes."""
            for k in range(side):
                set_word(listed, k, least(segment + k, after - 1))

        @inlined
        def here(const, count, listed):
            return with_extents(const, count, listed) if counts else const

        self.these, self.here = these, here

    def known_before(self, k: int) -> tuple[str, ...]:
        """The names of what is known before a pass."""
        return ("", *(n for step in self.formula.passes[:k] for n in step.names))


class _Listing:
    """How rows of some segments are listed, and read from the list.

    Rows of one packed column are listed with their elements, as float64; of others the numbers are.
    """

    def __init__(self, loops: Loops):
        rows, full = loops.rows, loops.operands.full_at
        fetch, fetch_next = rows.fetch, rows.fetch_next
        by_value = loops.side == LANES and loops.dense and len(full) > 0
        self.rooms = make_rooms(len(full) if by_value else 1, BLOCK + LANES)

        @inlined
        def taken(memory, columns, n, left):
            return fetch_next(memory, columns, n, left) if by_value else numbers_from(n)

        @inlined
        def fetch_listed(memory, columns, rooms, k):
            return doubles_at(rooms, k) if by_value else fetch(memory, columns, rooms[0] + 8 * k)

        @inlined
        def list_sized(memory, columns, ids, size, span, segments, listed, rooms, list_eight):
            (start, end), (low, count) = span, segments
            found, alone = 0, start
            if ids[1] == size:
                alone = start + (end - start) // LANES * LANES
                for n in range(start, alone, LANES):
                    eight = taken(memory, columns, n, LANES)
                    found = list_eight(ids[0] + n * size, low, count, found, listed, eight, rooms)
            for n in range(alone, end):
                s = id_from(ids[0] + n * ids[1], size)
                set_word(listed, found, s)
                put_first(taken(memory, columns, n, 1), rooms, found)
                found += is_below(s - low, count)
            return found

        @inner
        def list_rows(memory, columns, ids, span, segments, listed, rooms):
            """Rows of some segments, and which those are; how many there are."""
            found, by_size = 0, _LIST_EIGHT
            if ids[2] == 8:
                found = list_sized(
                    memory, columns, ids, 8, span, segments, listed, rooms, by_size[0]
                )
            else:
                found = list_sized(
                    memory, columns, ids, 4, span, segments, listed, rooms, by_size[1]
                )
            return found

        self.fetch_listed, self.list_rows = fetch_listed, list_rows


def _make_fold_rows(
    loops: Loops, bound: BoundPass, before: int, counts_rows: bool, held: Any = None
):
    """``fold_rows(p, const, memory, columns, first, after, states, count)``: a pass, in row order.

    Of the rows of segments from ``first`` to ``after``, or of those that are ``held``.
    """
    fold, table, side = bound.fold, loops.table, loops.side
    listing, fetch_rows, lists = held or _Listing(loops), loops.rows.fetch_rows, loops.lists
    list_rows, fetch_listed, rooms = listing.list_rows, listing.fetch_listed, listing.rooms
    folds, size = fold is not None, fold.size if fold else 0
    lift: Any = fold.lift if fold else None
    combine: Any = fold.combine if fold else None
    brief: Any = fold.brief if fold else None
    holds: Any = fold.holds if fold else None
    read_known = table.read(0, before, known=True)
    read, write = table.read(before, size), table.write(before, size)
    write_changed = table.write_changed(before)
    read_one, write_one = table.read_row(size), table.write_row()
    put_beside = state_emitters(size)[1]
    row_bytes, segment_bytes = table.row_bytes, table.segment_bytes
    state_at = before * table.row_bytes
    are_apart: Any = make_are_apart(side)
    scratch = stack(LANES * max(1, size))
    walks = is_cheap(loops.formula) and not loops.operands.row
    fetch_one = loops.rows.fetch_one

    @inlined
    def join(states, listed, lifted):
        """To the states of different segments."""
        state = read(states, listed)
        if holds is None:
            write(again(states), listed, combine(state, lifted))
        else:
            after = brief(state, lifted)
            if holds(after):
                write_changed(again(states), listed, state, after)
            else:
                write(again(states), listed, combine(state, lifted))

    @inlined
    def fold_group(const, memory, columns, states, full, listed, left, beside):
        own = fetch_rows(memory, columns, listed)
        lifted = lift(counting(0, 0), const, full, own, read_known(states, listed))
        # A lane too many has the segment of the last.
        if side == 1 or are_apart(listed):
            join(states, listed, lifted)
        else:
            put_beside(beside, VECTOR, lifted)
            for k in range(least(left, side)):
                at = states + word(listed, k) * segment_bytes + state_at
                # To a place that is not known to be where the state was: of a state that is kept
                # or not LLVM makes a masked store, on some CPUs 20 times as slow.
                more = read_one(beside + k * row_bytes, VECTOR)
                write_one(again(at), combine(read_one(at, row_bytes), more))

    @inlined
    def walk(p, const, memory, columns, size_of_id, states, count):
        """All rows, one by one."""
        segments, (at_ids, stride, _) = word(p, NUM_SEGMENTS), ids_of(p)
        for n in range(word(p, NUM_INPUTS)):
            s = id_from(at_ids + n * stride, size_of_id)
            if is_below(s, segments):
                if counts_rows:
                    set_word(count, s, word(count, s) + 1)
                at, full = states + s * segment_bytes + state_at, fetch_one(memory, columns, n)
                lifted = lift(counting(0, 0), const, full, no_vectors(), no_vectors())
                write_one(again(at), combine(read_one(at, row_bytes), lifted))

    @inner
    def fold_rows(p, const, memory, columns, first, after, states, count):
        if walks and word(p, PARTS) == 1:
            if word(p, ID_SIZE) == 8:
                walk(p, const, memory, columns, 8, states, count)
            else:
                walk(p, const, memory, columns, 4, states, count)
            return
        room, listed, beside = rooms(), lists(), scratch()
        ids, total = ids_of(p), word(p, NUM_INPUTS)
        for start in range(0, total, BLOCK):
            span, own, found = (start, least(start + BLOCK, total)), (first, after - first), 0
            if held is None:
                found = list_rows(memory, columns, ids, span, own, listed, room)
            else:
                found = list_rows(p, start // BLOCK, own, listed, room)
            if counts_rows:
                for k in range(found):
                    s = word(listed, k)
                    set_word(count, s, word(count, s) + 1)
            if folds and found > 0:
                for some in (listed,) + room:  # noqa: RUF005 (a star is not translated)
                    repeat_last(some, found, side)
                for k in range(0, found, side):
                    full, by = fetch_listed(memory, columns, room, k), listed + 8 * k
                    fold_group(const, memory, columns, states, full, by, found - k, beside)

    return fold_rows


def _make_pass(loops: Loops, k: int, held: Any = None):
    """``take(p, const, memory, columns, first, after, states, count)``: pass k of some segments.

    Its fold, what it gives, and the finish if it is the last.
    """
    formula, element, operands = loops.formula, loops.element, loops.operands
    step, known, is_last = formula.passes[k], loops.known_before(k), k == len(formula.passes) - 1
    bound = BoundPass(formula, step, element, operands, known)
    table, rows, before = loops.table, loops.rows, len(known) - 1
    counts_rows = loops.counts and k == 0
    fold_rows, size = _make_fold_rows(loops, bound, before, counts_rows, held), 0
    begin_state: Any = None
    if bound.fold:
        begin_state, size = bound.begin, bound.fold.size
    read_known = table.read(0, before, known=True)
    read_state, write_state = table.read(before, size), table.write(before, size)
    write_known, close = table.write(before, bound.gives), bound.close
    fetch_rows, put = rows.fetch_rows, rows.put
    these, here, side, lists = loops.these, loops.here, loops.side, loops.lists
    finish: Any = None
    finishes = is_last and formula.finish is not None
    if finishes:
        outputs, after = len(operands.outputs), (*known, *step.names)
        finish = per_row(formula.finish, primitives_for(element), operands.row, after, (), outputs)

    # A state alone in its place is read and written with those of the segments beside it.
    is_near = (
        loops.dense and before == 0 and size == 1 and table_slots(formula) == 1 and loops.side > 1
    )
    near, (read_near, write_near) = rows.near, table.near()
    counts = loops.counts
    packed = near.all_packed if finishes else near.rows_packed

    @inner
    def begun(const, memory, columns, first, after, states, count):
        listed, alone = lists(), first
        if is_near and packed(memory):
            alone = first + (after - first) // side * side
            for s in range(first, alone, side):
                write_near(states, s, begin_state(const, near.fetch(memory, s)))
        for s in range(alone, after, side):
            these(listed, s, after)
            if size > 0:
                write_state(states, listed, begin_state(const, fetch_rows(memory, columns, listed)))
        if counts_rows:
            for s in range(first, after):
                set_word(count, s, 0)

    @inner
    def closed(const, memory, columns, first, after, states, count):
        listed, alone = lists(), first
        if is_near and packed(memory):
            alone = first + (after - first) // side * side
            for s in range(first, alone, side):
                if counts:
                    these(listed, s, after)
                row, now = near.fetch(memory, s), here(const, count, listed)
                found = close(now, row, no_vectors(), read_near(states, s))
                if finishes:
                    near.put(memory, s, finish(now, row, found, no_vectors()))
                else:
                    write_near(states, s, found)
        for s in range(alone, after, side):
            these(listed, s, after)
            row, known = fetch_rows(memory, columns, listed), read_known(states, listed)
            state = read_state(states, listed) if size > 0 else no_vectors()
            now = here(const, count, listed)
            found = close(now, row, known, state)
            if finishes:
                put(memory, columns, listed, finish(now, row, found, no_vectors()))
            else:
                write_known(states, listed, found)

    @inner
    def take(p, const, memory, columns, first, after, states, count):
        begun(const, memory, columns, first, after, states, count)
        if size > 0 or counts_rows:
            fold_rows(p, const, memory, columns, first, after, states, count)
        closed(const, memory, columns, first, after, states, count)

    return take


def _chain(before, after):
    """Take one pass and then the next."""

    @inner
    def both(p, const, memory, columns, first, end, states, count):
        before(p, const, memory, columns, first, end, states, count)
        after(p, const, memory, columns, first, end, states, count)

    return both


def make_fold_kernel(loops: Loops, held: Any = None):
    """``kernel(p, begin, end)`` over parts of the segments: all passes, and the finish.

    Of the rows that are ``held``, where a formula has one pass that others have no part in.
    """
    take = _make_pass(loops, 0, held)
    for k in range(1, len(loops.formula.passes)):
        take = _chain(take, _make_pass(loops, k))
    constants, memory_of, counts = loops.operands.constants, loops.memory_of, loops.counts

    def kernel(p, begin, end):
        const, memory, columns = constants(p), memory_of(p), word(p, NUM_COLUMNS)
        segments, parts = word(p, NUM_SEGMENTS), word(p, PARTS)
        count, states = places_of(p, counts)
        for part in range(begin, end):
            first, after = part * segments // parts, (part + 1) * segments // parts
            take(p, const, memory, columns, first, after, states, count)

    return kernel


def make_lists(loops: Loops, by_offsets: bool):
    """``list_segments(p, ids, first, after, segments, listed, s)`` and ``clear_outside``.

    The segments of rows, the first in the place of those outside, from the segment s of the first
    on where offsets cut them: how many are inside, and the segment of the row behind them.
    """
    side, clear_row = loops.side, make_clear_row(loops.element)

    @inlined
    def list_sized(ids, size, first, after, segments, listed, list_clamped):
        inside, alone = 0, first
        if ids[1] == size:
            alone = first + (after - first) // LANES * LANES
            for n in range(first, alone, LANES):
                inside += list_clamped(ids[0] + n * size, segments, listed + 8 * (n - first))
        for n in range(alone, after):
            s = id_from(ids[0] + n * ids[1], size)
            there = is_below(s, segments)
            set_word(listed, n - first, s if there else 0)
            inside += there
        return inside

    @inner
    def list_ids(p, ids, first, after, segments, listed, s):
        inside = 0
        if ids[2] == 8:
            inside = list_sized(ids, 8, first, after, segments, listed, _LIST_CLAMPED[0])
        else:
            inside = list_sized(ids, 4, first, after, segments, listed, _LIST_CLAMPED[1])
        repeat_last(listed, after - first, side)
        return inside, s

    @inner
    def list_offsets(p, ids, first, after, segments, listed, s):
        inside, s = list_spans(ids, first, after, word(p, NUM_INPUTS), segments, listed, s)
        repeat_last(listed, after - first, side)
        return inside, s

    @inner
    def clear_outside(p, first, after, ids, segments):
        for n in range(first, after):
            if by_offsets:
                if not is_below(segment_of(ids, segments, n), segments):
                    clear_row(p, n)
            elif not is_below(id_at(ids, n), segments):
                clear_row(p, n)

    return list_offsets if by_offsets else list_ids, clear_outside


def make_apply_kernel(loops: Loops, by_offsets: bool):
    """``kernel(p, begin, end)`` over rows: each by itself, and by what is known of its segment.

    That is in the table, if there is a pass that folds; zeros where a row belongs to no segment.
    """
    list_segments, clear_outside = make_lists(loops, by_offsets)
    formula, element, operands = loops.formula, loops.element, loops.operands
    known, primitives = loops.known_before(len(formula.passes)), primitives_for(element)
    apply = per_element(
        formula.apply, primitives, operands.full, operands.row, known, len(operands.outputs)
    )
    fetch_next, fetch_rows, put_next = (
        loops.rows.fetch_next,
        loops.rows.fetch_rows,
        loops.rows.put_next,
    )
    memory_of, side = loops.memory_of, loops.side
    lists, counts, constants = loops.lists, loops.counts, operands.constants
    in_table = counts or any(step.monoid for step in formula.passes)
    known_of = _known_by_itself
    if in_table:
        known_of = _known_by_table(loops.table.read(0, len(known) - 1, known=True))
    else:
        for k, step in enumerate(formula.passes):
            bound = BoundPass(formula, step, element, operands, loops.known_before(k))
            known_of = _closed(known_of, bound.close)

    def kernel(p, begin, end):
        const, memory, columns = constants(p), memory_of(p), word(p, NUM_COLUMNS)
        segments, listed, ids = word(p, NUM_SEGMENTS), lists(), ids_of(p)
        states = places_of(p, counts)[1] if in_table else 0
        if segments == 0:
            clear_outside(p, begin, end, ids, segments)
            return
        s = segment_of(ids, segments, begin) if by_offsets else 0
        for first in range(begin, end, BLOCK):
            after = least(first + BLOCK, end)
            inside, s = list_segments(p, ids, first, after, segments, listed, s)
            for n in range(first, after, side):
                by, left = listed + 8 * (n - first), after - n
                full = fetch_next(memory, columns, n, left)
                own = fetch_rows(memory, columns, by)
                values = apply(counting(0, 0), const, full, own, known_of(const, own, states, by))
                put_next(memory, columns, n, left, values)
            if inside < after - first:
                clear_outside(p, first, after, ids, segments)

    return kernel


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


def make_kernel(
    formula: RowFormula,
    element: str,
    operands: Operands,
    pitch: int,
    dense: bool,
    what: str,
    by_offsets: bool = False,
):
    """The kernel of a phase: ``"fold"`` or ``"apply"``."""
    loops = Loops(formula, element, operands, pitch, dense)
    return make_fold_kernel(loops) if what == "fold" else make_apply_kernel(loops, by_offsets)
