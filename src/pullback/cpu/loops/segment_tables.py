"""Row formulas over rows of few columns whose ids come in any order, without sorting them.

A table has a place for every segment, to which rows are folded as they come: those of a segment in
row order, as if they had been sorted. That is the work of one thread. What is dear to make of a row
before it is folded is made by all of them, and lies beside the table: a million rows of one element
in 100000 segments took 35 ms for a softmax when they were sorted.
"""

from __future__ import annotations

from typing import Any

from ...formulas.record import LIFTED as LIFTED_NAME
from ...formulas.record import Pass, RowFormula, names_read
from ..codegen.bind import per_element, per_row
from ..codegen.block import again, is_below, least
from ..codegen.elementary import primitives_for
from ..codegen.few_columns import Rows, Table, extents_of
from ..codegen.functions import inlined, inner
from ..codegen.lanes import LANES
from ..codegen.memory import set_word, word
from ..codegen.operands import Operands
from ..codegen.passes import BoundPass
from ..codegen.vectors import counting, no_vectors, stack
from ..segment_words import (
    ID_SIZE,
    ID_STRIDE,
    IDS,
    LIFTED,
    NUM_COLUMNS,
    NUM_INPUTS,
    NUM_SEGMENTS,
    STATES,
    is_dear,
    reads_lifted,
    table_slots,
)
from ..words import LINE
from .segment import id_from, make_clear_row
from .segment_tile import operand_words

# Rows whose segments are listed at a time, in the first cache.
BLOCK = 256


@inlined
def _ids_of(p):
    return word(p, IDS), word(p, ID_STRIDE), word(p, ID_SIZE)


@inlined
def _id_at(ids, n):
    return id_from(ids[0] + n * ids[1], ids[2])


@inlined
def _places_of(p, counts):
    """Where the rows of each segment are counted, if they are, and where the table begins."""
    count = (word(p, STATES) + LINE - 1) // LINE * LINE
    if counts:
        return count, count + (8 * word(p, NUM_SEGMENTS) + LINE - 1) // LINE * LINE
    return count, count


class _Loops:
    """What the kernels of a formula share."""

    def __init__(
        self, formula: RowFormula, element: str, operands: Operands, pitch: int, dense: bool
    ):
        self.formula, self.element, self.operands = formula, element, operands
        self.pitch, self.side = pitch, LANES // pitch
        self.rows, self.table = Rows(operands, pitch, dense), Table(pitch, table_slots(formula))
        self.counts = "extent" in names_read(formula)
        addresses, row_strides, column_strides = (operand_words(operands, k) for k in range(3))

        @inlined
        def memory_of(p):
            return addresses(p), row_strides(p), column_strides(p)

        self.memory_of = memory_of
        self.lists = stack(BLOCK + LANES)
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

    def make_fold(self, step: Pass, bound: BoundPass, before: int, counts_rows: bool):
        """``fold_rows(p, const, memory, columns, states, count)``: a pass, row after row."""
        fold, table, rows = bound.fold, self.table, self.rows
        if fold is None and not counts_rows:
            return None
        row_bytes, segment_bytes, state_at = (
            table.row_bytes,
            table.segment_bytes,
            before * table.row_bytes,
        )
        from_lifted = is_dear(step)
        fetch, fetch_row = rows.fetch_one, rows.fetch_row_one
        read_known = table.read_row(before, known=True)
        size = fold.size if fold else 0
        read, write = table.read_row(size), table.write_row()
        lift: Any = fold.lift if fold else None
        combine: Any = fold.combine if fold else None
        lifted_bytes = size * row_bytes

        @inlined
        def lifted_of(const, memory, columns, states, made, n, s):
            if from_lifted:
                return read(made + n * lifted_bytes, row_bytes)
            full, row = fetch(memory, columns, n), fetch_row(memory, columns, s)
            known = read_known(states + s * segment_bytes, row_bytes)
            return lift(counting(0, 0), const, full, row, known)

        @inlined
        def walk(p, const, memory, columns, ids, size_of_id, states, count):
            segments, total = word(p, NUM_SEGMENTS), word(p, NUM_INPUTS)
            at_ids, stride = ids
            made = word(p, LIFTED)
            for n in range(total):
                s = id_from(at_ids + n * stride, size_of_id)
                if is_below(s, segments):
                    if counts_rows:
                        set_word(count, s, word(count, s) + 1)
                    if size > 0:
                        at = states + s * segment_bytes + state_at
                        lifted = lifted_of(const, memory, columns, states, made, n, s)
                        # To a place that is not known to be where the state was: of a state that
                        # is kept or not LLVM makes a masked store, on some CPUs 20 times as slow.
                        write(again(at), combine(read(at, row_bytes), lifted))

        @inner
        def fold_rows(p, const, memory, columns, states, count):
            # The size is known in either loop.
            ids = (word(p, IDS), word(p, ID_STRIDE))
            if word(p, ID_SIZE) == 8:
                walk(p, const, memory, columns, ids, 8, states, count)
            else:
                walk(p, const, memory, columns, ids, 4, states, count)

        return fold_rows


def make_fold_kernel(loops: _Loops, k: int):
    """``kernel(p, begin, end)``, for one unit: pass k, what it gives, and the finish if it is last.

    All rows are walked by one thread: there is no order of additions but theirs.
    """
    formula, element, operands = loops.formula, loops.element, loops.operands
    step, known, is_last = formula.passes[k], loops.known_before(k), k == len(formula.passes) - 1
    bound = BoundPass(formula, step, element, operands, known)
    table, rows, before = loops.table, loops.rows, len(known) - 1
    counts_rows = loops.counts and k == 0
    fold_rows = loops.make_fold(step, bound, before, counts_rows)
    folds, size = fold_rows is not None, bound.fold.size if bound.fold else 0
    begin_state: Any = bound.begin if bound.fold else None
    read_known = table.read(0, before, known=True)
    read_state, write_state = table.read(before, size), table.write(before, size)
    write_known, close = table.write(before, bound.gives), bound.close
    fetch_rows, put, memory_of = rows.fetch_rows, rows.put, loops.memory_of
    these, here, counts, side = loops.these, loops.here, loops.counts, loops.side
    lists, constants = loops.lists, operands.constants
    finish: Any = None
    finishes = is_last and formula.finish is not None
    if finishes:
        outputs = len(operands.outputs)
        after = (*known, *step.names)
        finish = per_row(formula.finish, primitives_for(element), operands.row, after, (), outputs)

    @inner
    def begun(const, memory, columns, segments, states, count):
        listed = lists()
        for s in range(0, segments, side):
            these(listed, s, segments)
            if size > 0:
                write_state(states, listed, begin_state(const, fetch_rows(memory, columns, listed)))
            if counts_rows:
                for r in range(s, least(s + side, segments)):
                    set_word(count, r, 0)

    @inner
    def closed(const, memory, columns, segments, states, count):
        listed = lists()
        for s in range(0, segments, side):
            these(listed, s, segments)
            row, known = fetch_rows(memory, columns, listed), read_known(states, listed)
            state = read_state(states, listed) if size > 0 else no_vectors()
            now = here(const, count, listed)
            found = close(now, row, known, state)
            if finishes:
                put(memory, columns, listed, finish(now, row, found, no_vectors()))
            else:
                write_known(states, listed, found)

    def kernel(p, begin, end):
        const, memory, columns = constants(p), memory_of(p), word(p, NUM_COLUMNS)
        segments = word(p, NUM_SEGMENTS)
        count, states = _places_of(p, counts)
        begun(const, memory, columns, segments, states, count)
        if folds:
            fold_rows(p, const, memory, columns, states, count)
        closed(const, memory, columns, segments, states, count)

    return kernel


def make_lift_kernel(loops: _Loops, k: int):
    """``kernel(p, begin, end)`` over rows: what pass k folds, beside the table."""
    formula, element, operands = loops.formula, loops.element, loops.operands
    known = loops.known_before(k)
    bound = BoundPass(formula, formula.passes[k], element, operands, known)
    lift = bound.fold.lift
    compute = _make_rows(loops, loops.table.read(0, len(known) - 1, known=True))
    store = loops.rows.put_beside()

    @inlined
    def put(memory, columns, made, n, left, values):
        store(made, n, left, values)

    return compute(lift, put, clears=False)


def make_apply_kernel(loops: _Loops):
    """``kernel(p, begin, end)`` over rows: each by itself, and by what is known of its segment.

    That is in the table, if there is a pass that folds; zeros where a row belongs to no segment.
    """
    formula, element, operands = loops.formula, loops.element, loops.operands
    known = loops.known_before(len(formula.passes))
    primitives, outputs = primitives_for(element), len(operands.outputs)
    full, apply_from = operands.full, formula.apply
    if reads_lifted(formula):
        full, apply_from = (*full, LIFTED_NAME), formula.from_lifted
    apply = per_element(apply_from, primitives, full, operands.row, known, outputs)
    put_next = loops.rows.put_next

    @inlined
    def put(memory, columns, made, n, left, values):
        put_next(memory, columns, n, left, values)

    read_known = None
    if loops.counts or any(step.monoid for step in formula.passes):
        read_known = loops.table.read(0, len(known) - 1, known=True)
    return _make_rows(loops, read_known, reads_lifted(formula))(apply, put, clears=True)


def _make_rows(loops: _Loops, read_known, with_lifted=False):
    """``make(function, put, clears)`` of a kernel over rows, each taken by itself.

    Without ``read_known`` what a formula asks for follows from operands of the segment alone.
    What was made of a row to be folded may be read ``with_lifted``, behind its operands.
    """
    fetch_next, fetch_beside = loops.rows.fetch_next, loops.rows.fetch_beside()

    @inlined
    def fetch(memory, columns, made, n, left):
        full = fetch_next(memory, columns, n, left)
        return full + fetch_beside(made, n, left) if with_lifted else full

    formula, element, operands = loops.formula, loops.element, loops.operands
    fetch_rows = loops.rows.fetch_rows
    memory_of, clear_row, side = loops.memory_of, make_clear_row(element), loops.side
    lists, counts, in_table = loops.lists, loops.counts, read_known is not None
    constants = operands.constants
    known_of = _known_by_table(read_known) if in_table else _known_by_itself
    if not in_table:
        for k, step in enumerate(formula.passes):
            bound = BoundPass(formula, step, element, operands, loops.known_before(k))
            known_of = _closed(known_of, bound.close)

    @inlined
    def list_sized(ids, size, first, after, segments, listed):
        inside = 0
        for n in range(first, after):
            s = id_from(ids[0] + n * ids[1], size)
            there = is_below(s, segments)
            set_word(listed, n - first, s if there else 0)
            inside += there
        return inside

    @inner
    def list_segments(ids, first, after, segments, listed):
        """The segments of rows, the first in the place of those outside; how many are inside.

        The last one stands for those that the last lanes lack, as the last row does.
        """
        inside = 0
        if ids[2] == 8:
            inside = list_sized(ids, 8, first, after, segments, listed)
        else:
            inside = list_sized(ids, 4, first, after, segments, listed)
        for k in range(after - first, after - first + side - 1):
            set_word(listed, k, word(listed, after - first - 1))
        return inside

    @inner
    def clear_outside(p, first, after, ids, segments):
        for n in range(first, after):
            if not is_below(_id_at(ids, n), segments):
                clear_row(p, n)

    def make(function, put, clears):
        def kernel(p, begin, end):
            const, memory, columns = constants(p), memory_of(p), word(p, NUM_COLUMNS)
            segments, listed, ids = word(p, NUM_SEGMENTS), lists(), _ids_of(p)
            states = _places_of(p, counts)[1] if in_table else 0
            made = word(p, LIFTED)
            if segments == 0:
                if clears:
                    clear_outside(p, begin, end, ids, segments)
                return
            for first in range(begin, end, BLOCK):
                after = least(first + BLOCK, end)
                inside = list_segments(ids, first, after, segments, listed)
                for n in range(first, after, side):
                    by, left = listed + 8 * (n - first), after - n
                    full = fetch(memory, columns, made, n, left)
                    own = fetch_rows(memory, columns, by)
                    found = known_of(const, own, states, by)
                    values = function(counting(0, 0), const, full, own, found)
                    put(memory, columns, made, n, left, values)
                if clears and inside < after - first:
                    clear_outside(p, first, after, ids, segments)

        return kernel

    return make


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
    formula: RowFormula, element: str, operands: Operands, pitch: int, dense: bool, what: str
):
    """The kernel of a phase: ``"fold 0"``, ``"lift 1"`` or ``"apply"``."""
    loops = _Loops(formula, element, operands, pitch, dense)
    name, *k = what.split()
    if name == "fold":
        return make_fold_kernel(loops, int(k[0]))
    return make_lift_kernel(loops, int(k[0])) if name == "lift" else make_apply_kernel(loops)
