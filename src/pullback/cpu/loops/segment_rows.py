"""Row formulas over the rows of a segment, a tile of columns at a time.

The rows of a segment are folded one after the other in row order, in float64, whichever way they
were found. What one thread computes is a segment, so that their number changes nothing.
"""

from __future__ import annotations

from ...formulas.record import Pass, RowFormula, names_read
from ..codegen.block import is_below, least
from ..codegen.functions import inlined, inner
from ..codegen.lanes import LANES
from ..codegen.memory import set_word, word
from ..codegen.operands import Operands
from ..codegen.passes import BoundPass
from ..codegen.vectors import counting, no_vectors, stack
from ..segment_words import (
    AHEAD,
    ID_SIZE,
    ID_STRIDE,
    IDS,
    NUM_COLUMNS,
    NUM_INPUTS,
    NUM_SEGMENTS,
    STATES,
)
from ..segment_words import TILE as WIDTH
from ..words import ITEMSIZE, LINE
from .segment import id_at, id_from, make_clear_row
from .segment_runs import runs
from .segment_tile import (
    PITCH,
    TILE,
    Tile,
    make_places,
    operand_words,
    row_in_order,
    row_itself,
    with_extent,
)


def _make_memory(operands: Operands):
    """``memory_of(p)``: addresses, row strides and column strides of all operands."""
    addresses, row_strides, column_strides = (operand_words(operands, k) for k in range(3))

    @inner
    def memory_of(p):
        return addresses(p), row_strides(p), column_strides(p)

    return memory_of


def _nothing():
    """What a pass gives that is there only for a finish to follow."""
    return ()


@inner
def _not_yet(p, const, at, steps, left, width, boxes, c):
    """In the place of a finish that comes later, or never."""


def _chain(before, after):
    """Run one step and then the next."""

    @inner
    def both(p, const, memory, span, left, width, boxes):
        before(p, const, memory, span, left, width, boxes)
        after(p, const, memory, span, left, width, boxes)

    return both


def _make_segment(formula: RowFormula, element: str, operands: Operands, row_at):
    """``compute(p, memory, segment, first, after, box)`` of the rows [first, after).

    With it the doubles of the box.
    """
    tile = Tile(formula, element, operands, row_at)
    steps = [tile.make_rows()] if operands.row else []
    known: tuple[str, ...] = ("",)
    largest = 1
    passes = formula.passes
    if formula.finish and not passes:
        passes = (Pass(close=_nothing),)
    for k, step in enumerate(passes):
        bound = BoundPass(formula, step, element, operands, known)
        after = known + step.names
        is_last = formula.finish is not None and k == len(passes) - 1
        finish_at = tile.make_finish(after) if is_last else _not_yet
        steps.append(tile.make_pass(bound, len(known), finish_at))
        known = after
        largest = max(largest, bound.fold.size if bound.fold else 1)
    if formula.apply:
        steps.append(tile.make_apply(known))
    whole = steps[0]
    for step in steps[1:]:
        whole = _chain(whole, step)
    known_at = max(1, len(operands.row)) * PITCH
    state_at = known_at + len(known) * PITCH

    # A call of it took a tenth of the time, at two rows a segment.
    @inlined
    def compute(p, memory, segment, first, after, box):
        const = with_extent(operands.constants(p), after - first)
        span, boxes = (segment, first, after), (box, box + known_at, box + state_at)
        columns = word(p, NUM_COLUMNS)
        for left in range(0, columns, TILE):
            whole(p, const, memory, span, left, least(TILE, columns - left), boxes)

    return compute, state_at // 8 + largest * TILE


def make_runs_kernel(formula: RowFormula, element: str, operands: Operands, together: bool):
    """``kernel(p, begin, end)`` over segments.

    Their rows lie ``together``, or their numbers were put in order.
    """
    start, stop = runs(together)
    row_at = row_itself if together else row_in_order
    compute, size = _make_segment(formula, element, operands, row_at)
    scratch, memory_of = stack(size), _make_memory(operands)

    def kernel(p, begin, end):
        box, memory = scratch(), memory_of(p)
        after = start(p, begin)
        for segment in range(begin, end):
            first = after
            after = stop(p, segment, first)
            compute(p, memory, segment, first, after, box)

    return kernel


def _make_ask_segment(element: str, operands: Operands, formula: RowFormula):
    """``ask(p, memory, segment, segments)``: for rows of a segment that are read soon.

    They lie anywhere: 477263 rows of 256 took 108 ms for the gradient of a logsumexp without.
    """
    places = make_places(operands, formula.finish is not None)
    ask, per_line = operands.ask_columns(operands.row_at, False), LINE // ITEMSIZE[element]

    @inner
    def ask_segment(p, memory, segment, segments):
        if is_below(segment, segments):
            addresses, strides, steps = memory
            at = places(addresses, strides, 0, segment)
            for column in range(0, word(p, NUM_COLUMNS), per_line):
                ask(at, steps, column)

    return ask_segment


def make_pointwise_kernel(formula: RowFormula, element: str, operands: Operands):
    """``kernel(p, begin, end)`` over input rows that do not depend on each other."""
    clear_row, memory_of = make_clear_row(element), _make_memory(operands)
    ask_segment = _make_ask_segment(element, operands, formula)
    if not formula.passes:
        apply_row, size = Tile(formula, element, operands, row_itself).make_alone(), 1
    else:
        compute, size = _make_segment(formula, element, operands, row_itself)

        @inner
        def apply_row(p, memory, segment, n, box):
            compute(p, memory, segment, n, n + 1, box)

    scratch = stack(size)

    def kernel(p, begin, end):
        box, memory, segments = scratch(), memory_of(p), word(p, NUM_SEGMENTS)
        for n in range(begin, end):
            ask_segment(p, memory, id_at(p, least(n + AHEAD, end - 1)), segments)
            s = id_at(p, n)
            if is_below(s, segments):
                apply_row(p, memory, s, n, box)
            else:
                clear_row(p, n)

    return kernel


def make_tiles_kernel(formula: RowFormula, element: str, operands: Operands):
    """``kernel(p, begin, end)`` over tiles of columns, for rows in any order.

    A tile holds the states of all segments, to which rows are added as they come: those of a
    segment in row order, as if they had been sorted.
    """
    (step,) = formula.passes
    tile = Tile(formula, element, operands, row_itself)
    bound = BoundPass(formula, step, element, operands, ("",))
    fold = bound.fold
    close_at, finish_at = tile.make_close(bound, 1), tile.make_finish(("", *step.names))
    lift, combine, identity, size = fold.lift, fold.combine_next, fold.identity, fold.size
    read, write, fetch, places = fold.read, fold.write, operands.fetch_columns, tile.places
    all_addresses, row_strides, column_strides = (operand_words(operands, k) for k in range(3))
    known_at = max(1, len(operands.row)) * PITCH
    scratch = stack((known_at + (1 + len(step.names)) * PITCH) // 8)
    counts = "extent" in names_read(formula)

    @inlined
    def fold_row(p, const, at, steps, left, width, states, pitch):
        """One row into the states of its segment."""
        whole = width // LANES * LANES
        for c in range(0, whole, LANES):
            full = fetch(p, at, steps, left + c, LANES)
            lifted = lift(counting(0, 0), const, full, no_vectors(), no_vectors())
            write(states + 8 * c, pitch, combine(read(states + 8 * c, pitch), lifted))
        if whole < width:
            full = fetch(p, at, steps, left + whole, width - whole)
            lifted = lift(counting(0, 0), const, full, no_vectors(), no_vectors())
            write(states + 8 * whole, pitch, combine(read(states + 8 * whole, pitch), lifted))

    @inner
    def fold_rows(p, const, left, width, box, count, pitch):
        addresses, strides, steps = all_addresses(p), row_strides(p), column_strides(p)
        rows, segments = word(p, NUM_INPUTS), word(p, NUM_SEGMENTS)
        # Not looked up for every row: a store to a state could have changed them.
        ids_at, id_stride, id_size = word(p, IDS), word(p, ID_STRIDE), word(p, ID_SIZE)
        for n in range(rows):
            s = id_from(ids_at + n * id_stride, id_size)
            if is_below(s, segments):
                if counts:
                    set_word(count, s, word(count, s) + 1)
                at = places(addresses, strides, n, s)
                fold_row(p, const, at, steps, left, width, box + s * size * pitch, pitch)

    def kernel(p, begin, end):
        const, room = operands.constants(p), scratch()
        boxes = (room, room + known_at, room)
        addresses, strides, steps = all_addresses(p), row_strides(p), column_strides(p)
        columns, segments = word(p, NUM_COLUMNS), word(p, NUM_SEGMENTS)
        pitch = 8 * word(p, WIDTH)
        counting_size = (8 * segments + LINE - 1) // LINE * LINE if counts else 0
        for unit in range(begin, end):
            left = unit * word(p, WIDTH)
            width = least(word(p, WIDTH), columns - left)
            # Vectors that cross a line are loaded and stored in two halves.
            count = (word(p, STATES) + LINE - 1) // LINE * LINE
            count += unit * (segments * size * pitch + counting_size)
            box = count + counting_size
            for s in range(segments):
                if counts:
                    set_word(count, s, 0)
                for c in range(0, width, LANES):
                    write(box + s * size * pitch + 8 * c, pitch, identity())
            fold_rows(p, const, left, width, box, count, pitch)
            for s in range(segments):
                at = places(addresses, strides, s, s)
                here = with_extent(const, word(count, s)) if counts else const
                for c in range(0, width, LANES):
                    close_at(here, boxes, c, read(box + s * size * pitch + 8 * c, pitch))
                    finish_at(p, here, at, steps, left, width, boxes, c)

    return kernel
