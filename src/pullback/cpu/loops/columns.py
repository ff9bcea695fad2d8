"""Row formulas with the eight lanes across columns: the axis is not the innermost dimension.

A tile of columns is streamed row by row, with a row of accumulators for each of the eight lanes
that the rows schedule would have used, so every column is folded in the same order as there.

What all functions need to know of a tile goes by one name:
``tile = (p, const, addresses, strides, steps, left, boxes)``, the parameter block, the op's
constants, where all operands begin, how far apart their positions and their columns lie, the first
column, and where the tile keeps its numbers: row operands, known values, lanes, totals, and row
operands and known values as float32.
"""

from __future__ import annotations

from typing import Any

from ...formulas.record import RowFormula
from ..codegen.block import least
from ..codegen.column_extremes import extremes_of_rows, has_zero, negative_zeros
from ..codegen.column_tallies import is_tally, tally_lane
from ..codegen.extremes import is_float_extreme
from ..codegen.fold import Fold
from ..codegen.functions import inlined, inner
from ..codegen.lanes import LANES
from ..codegen.memory import word
from ..codegen.neighbours import fetch_across, neighbours_of
from ..codegen.operands import Operands
from ..codegen.passes import BoundPass
from ..codegen.singles import FLOAT
from ..codegen.sixteen import Boxed, forget
from ..codegen.vectors import counting, no_vectors, stack, state_emitters
from ..words import BLOCKS, COLUMNS, EXTENT, FAR, KEPT, TILE, TILES
from .rows import BLOCK, strange_rows
from .tile import PITCH, keeps_columns, kept_at, kept_pitch, row_emitters
from .tile_finish import make_tile_finish
from .tile_stretches import make_tile_stretches
from .tile_tallies import make_tallies

PAGE = 4096
# Rows folded at a time, over all operands, so that an accumulator is loaded and stored once for
# several rows of its lane. A lane's rows are walked side by side: twice as many took a fifth more.
STREAMS = 32


def make_tile_pass(formula: RowFormula, bound: BoundPass, operands: Operands, known_size: int):
    """One pass over a tile: folds the axis into ``totals`` and appends to the known values."""
    most, first_values, rests = bound.most, bound.first, bound.rests
    read_before = state_emitters(known_size)[0]
    read_after, write_known = state_emitters(known_size + bound.gives)[:2]
    # What a pass knows that is taken again and again is what it gave before, too.
    read_known = read_after if most else read_before
    read_row, close, counts = row_emitters(operands)[0], bound.close, bound.counts
    fold, lift_pair, keeps = bound.fold, bound.lift_pair, bound.keeps
    if fold is None:

        @inner
        def tile_prepare(tile, width):
            _, const, _, _, _, _, (row_box, known_box, _, _, _) = tile
            for c in range(0, width, LANES):
                row = read_row(row_box + 8 * c, PITCH)
                known = read_known(known_box + 8 * c, PITCH)
                write_known(known_box + 8 * c, PITCH, close(const, row, known, no_vectors()))

        return tile_prepare

    lift, combine, identity = fold.lift, fold.combine, fold.identity
    read, write, begin = fold.read, fold.write, bound.begin
    split = Boxed(len(operands.row), known_size, PITCH).split()
    fetch = fetch_across(operands, neighbours_of(formula, operands))
    places, prefetch = operands.places, operands.prefetch()
    # Within a lane the components of a state lie one lane-set apart.
    apart = LANES * PITCH
    rows = max(LANES, STREAMS // max(1, len(operands.full)) // LANES * LANES)
    all_rows = tuple(range(0, rows, LANES))

    @inlined
    def join_four(at):
        """Every other lane."""
        here = combine(read(at, apart), read(at + 4 * PITCH, apart))
        return combine(here, combine(read(at + 2 * PITCH, apart), read(at + 6 * PITCH, apart)))

    @inner
    def fold_lanes(lanes_box, c, count):
        """The first lanes as one; the others hold the identity, which changes nothing."""
        at = lanes_box + 8 * c
        if count == LANES:
            return combine(join_four(at), join_four(at + PITCH))
        for half in (4, 2, 1):
            for lane in range(least(half, count - half)):
                a = read(at + lane * PITCH, apart)
                b = read(at + (lane + half) * PITCH, apart)
                write(at + lane * PITCH, apart, combine(a, b))
        return read(at, apart)

    @inlined
    def fold_row(tile, c, count, i, row, known, state, asks):
        p, const, addresses, strides, steps, left, _ = tile
        full = fetch(p, places(addresses, strides, i), strides, steps, left + c, count, i)
        if asks:
            prefetch(places(addresses, strides, i + rows), left + c)
        if counts is None or counts(counting(i, 0), const, full, row, known):
            state = combine(state, lift(counting(i, 0), const, full, row, known))
        return state

    @inlined
    def state_of(lane_box, c, fresh):
        state = identity()
        if not fresh:
            state = read(lane_box + 8 * c, apart)
        return state

    @inlined
    def fold_whole(tile, c, first, lane_box, asks, fresh):
        """As many rows of a lane as there are at a time."""
        row_box, known_box, _, _, _ = tile[6]
        row = read_row(row_box + 8 * c, PITCH)
        known = read_known(known_box + 8 * c, PITCH)
        state = state_of(lane_box, c, fresh)
        for k in all_rows:
            state = fold_row(tile, c, LANES, first + k, row, known, state, asks)
        write(lane_box + 8 * c, apart, state)

    @inlined
    def fold_some(tile, c, count, first, stop, lane_box, asks, fresh):
        """Every eighth row of [first, stop) into one accumulator."""
        row_box, known_box, _, _, _ = tile[6]
        row = read_row(row_box + 8 * c, PITCH)
        known = read_known(known_box + 8 * c, PITCH)
        state = state_of(lane_box, c, fresh)
        for i in range(first, stop, LANES):
            state = fold_row(tile, c, count, i, row, known, state, asks)
        write(lane_box + 8 * c, apart, state)

    @inner
    def fold_lane(tile, c, count, first, stop, lane_box, fresh):
        fold_some(tile, c, count, first, stop, lane_box, False, fresh)

    @inner
    def fold_columns(tile, begin, end, first, stop, lane_box, asks, fresh):
        """The same of many columns."""
        if stop - first <= rows - LANES:
            for c in range(begin, end, LANES):
                fold_some(tile, c, LANES, first, stop, lane_box, False, fresh)
        elif asks:
            for c in range(begin, end, LANES):
                fold_whole(tile, c, first, lane_box, True, fresh)
        else:
            for c in range(begin, end, LANES):
                fold_whole(tile, c, first, lane_box, False, fresh)

    @inlined
    def fold_pair(tile, c, first, stop, lane_box, fresh, pitch):
        """The same of sixteen columns, on float32 lanes."""
        _, const, addresses, strides, _, left, (row_box, known_box, _, _, split_box) = tile
        numbers = (row_box + 8 * c, known_box + 8 * c, split_box + 4 * c)
        state, next_state = state_of(lane_box, c, fresh), state_of(lane_box, c + LANES, fresh)
        i = first
        while i < stop:
            while i < stop:
                at = places(addresses, strides, i)
                found = lift_pair(at, left + c, const, numbers, kept_at(tile, i, pitch, c))
                prefetch(places(addresses, strides, i + rows), left + c)
                lifted, next_lifted, sure = found
                if not sure:
                    break
                state, next_state = combine(state, lifted), combine(next_state, next_lifted)
                i += LANES
            write(lane_box + 8 * c, apart, state)
            write(lane_box + 8 * c + 64, apart, next_state)
            if i < stop:
                if keeps:
                    forget(kept_at(tile, i, pitch, c))
                fold_lane(tile, c, LANES, i, i + 1, lane_box, False)
                fold_lane(tile, c + LANES, LANES, i, i + 1, lane_box, False)
                state = read(lane_box + 8 * c, apart)
                next_state = read(lane_box + 8 * c + 64, apart)
                i += LANES

    @inner
    def fold_pairs(tile, width, first, stop, fresh):
        """The same of many columns: what the arithmetic needs stays in registers."""
        pitch = kept_pitch(tile[0], width)
        for lane in range(least(LANES, stop - first)):
            lane_box = tile[6][2] + lane * PITCH
            for c in range(0, width, 2 * LANES):
                fold_pair(tile, c, first + lane, stop, lane_box, fresh, pitch)

    @inner
    def fold_rows(tile, begin, width, first, stop, asks, fresh):
        """Rows of the columns from ``begin`` on, in order; ``fresh`` where they are the first."""
        lanes_box = tile[6][2]
        whole = width // LANES * LANES
        if lift_pair is not None:
            begin = width // (2 * LANES) * (2 * LANES)
            fold_pairs(tile, begin, first, stop, fresh)
        for lane in range(least(LANES, stop - first)):
            lane_box = lanes_box + lane * PITCH
            fold_columns(tile, begin, whole, first + lane, stop, lane_box, asks, fresh)
        if whole < width:
            for lane in range(least(LANES, stop - first)):
                lane_box = lanes_box + lane * PITCH
                fold_lane(tile, whole, width - whole, first + lane, stop, lane_box, fresh)

    @inner
    def fold_in_order(tile, width, start, stop, asks):
        """Rows into lanes; gives how many columns have all in the first lane."""
        for first in range(start, stop, rows):
            last = least(first + rows, stop)
            fold_rows(tile, 0, width, first, last, asks, first == start)
        return 0

    fold_block, counts_singles = fold_in_order, False
    if fold.stretch is not None:
        fold_stretches = make_tile_stretches(bound, operands, fetch, read_row, read_known, rows)

        @inner
        def fold_by_stretches(tile, width, start, stop, asks):
            whole = width // LANES * LANES
            fold_stretches(tile, whole, start, stop)
            if whole < width:
                for first in range(start, stop, rows):
                    last = least(first + rows, stop)
                    fold_rows(tile, whole, width, first, last, False, first == start)
            return whole

        fold_block = fold_by_stretches
    elif is_float_extreme(bound.monoid, operands):
        fold_extremes, order_shows = _make_extremes(bound, operands, rows)

        @inner
        def fold_in_any_order(tile, width, start, stop, asks):
            pairs, met = width // (2 * LANES) * (2 * LANES), 0
            for first in range(start, stop, rows):
                last = least(first + rows, stop)
                met |= fold_extremes(tile, pairs, first, last, asks, first == start)
                fold_rows(tile, pairs, width, first, last, asks, first == start)
            if order_shows(tile, pairs, start, stop, met):
                pairs = fold_in_order(tile, width, start, stop, asks)
            return pairs

        fold_block = fold_in_any_order
    elif is_tally(bound.monoid, operands):
        fold_tallies, end_tallies = make_tallies(bound.monoid, operands)
        counts_singles = tally_lane(bound.monoid, operands) is FLOAT

        @inner
        def fold_as_integers(tile, width, start, stop, asks):
            pairs = width // (2 * LANES) * (2 * LANES)
            for first in range(start, stop, rows):
                last = least(first + rows, stop)
                fold_tallies(tile, pairs, first, last, first == start, rows * asks)
                fold_rows(tile, pairs, width, first, last, asks, first == start)
            end_tallies(tile, pairs)
            return pairs

        fold_block = fold_as_integers

    @inner
    def fold_tile(tile, width):
        p, const, _, _, _, _, (row_box, known_box, lanes_box, total_box, _) = tile
        extent = word(p, EXTENT)
        if lift_pair is not None or counts_singles:
            split_box = tile[6][4]
            for c in range(0, width, LANES):
                split(row_box + 8 * c, known_box + 8 * c, split_box + 4 * c)
        for c in range(0, width, LANES):
            row = read_row(row_box + 8 * c, PITCH)
            write(total_box + 8 * c, PITCH, begin(const, row))
        for b in range(word(p, BLOCKS)):
            start, stop = b * BLOCK, least((b + 1) * BLOCK, extent)
            lanes = least(LANES, stop - start)
            # A product keeps the CPU busy: asking for rows took a quarter more of it at any size.
            asks = fold.stretch is None and word(p, FAR) != 0
            joined = fold_block(tile, width, start, stop, asks)
            for c in range(0, joined, LANES):
                total = read(total_box + 8 * c, PITCH)
                write(total_box + 8 * c, PITCH, combine(total, read(lanes_box + 8 * c, apart)))
            for c in range(joined, width, LANES):
                total = read(total_box + 8 * c, PITCH)
                state = fold_lanes(lanes_box, c, lanes)
                if fold.stretch is not None:
                    state = fold.stretch.brought_near(state)
                write(total_box + 8 * c, PITCH, combine(total, state))

    if not most:

        @inner
        def tile_pass(tile, width):
            _, const, _, _, _, _, (row_box, known_box, _, total_box, _) = tile
            fold_tile(tile, width)
            for c in range(0, width, LANES):
                row = read_row(row_box + 8 * c, PITCH)
                known = read_known(known_box + 8 * c, PITCH)
                state = read(total_box + 8 * c, PITCH)
                write_known(known_box + 8 * c, PITCH, close(const, row, known, state))

        return tile_pass

    @inner
    def close_again(tile, width):
        """New values for all columns; whether these stay."""
        _, const, _, _, _, _, (row_box, known_box, _, total_box, _) = tile
        at_rest = True
        for c in range(0, width, LANES):
            row = read_row(row_box + 8 * c, PITCH)
            known = read_known(known_box + 8 * c, PITCH)
            after = close(const, row, known, read(total_box + 8 * c, PITCH))
            write_known(known_box + 8 * c, PITCH, after)
            at_rest = at_rest and rests(known, after)
        return at_rest

    @inner
    def tile_repeated(tile, width):
        _, const, _, _, _, _, (row_box, known_box, _, _, _) = tile
        for c in range(0, width, LANES):
            row, known = read_row(row_box + 8 * c, PITCH), read_before(known_box + 8 * c, PITCH)
            write_known(known_box + 8 * c, PITCH, first_values(const, row, known))
        for _ in range(most):
            fold_tile(tile, width)
            if close_again(tile, width):
                break

    return tile_repeated


def _make_extremes(bound: BoundPass, operands: Operands, rows: int):
    """``fold_extremes(tile, width, first, stop, asks, fresh)`` of whole pairs of eight columns.

    All go into the first lane: an extreme is one, in whatever lane it lies. Gives what has been
    met. And ``order_shows(tile, width, start, stop, met)``: whether another might give other bits.
    """
    combine, read, write = bound.fold.combine, bound.fold.read, bound.fold.write
    # Of twice as many rows at a time it took twice as long, of half as many a fifth longer.
    near = extremes_of_rows(bound.monoid, operands, LANES, asks=False)
    far = extremes_of_rows(bound.monoid, operands, LANES, asks=True)
    of_one = extremes_of_rows(bound.monoid, operands, 1, asks=False)
    negative = negative_zeros(operands)

    @inlined
    def keep(tile, c, one, other, fresh):
        at = tile[6][2] + 8 * c
        if not fresh:
            one = combine(read(at, PITCH), one)
            other = combine(read(at + 8 * LANES, PITCH), other)
        write(at, PITCH, one)
        write(at + 8 * LANES, PITCH, other)

    @inner
    def fold_extremes(tile, width, first, stop, asks, fresh):
        _, _, addresses, strides, _, left, _ = tile
        whole, met = first + (stop - first) // LANES * LANES, 0
        for i in range(first, whole, LANES):
            for c in range(0, width, 2 * LANES):
                if asks:
                    one, other, seen = far(addresses, strides, i, left + c, rows)
                else:
                    one, other, seen = near(addresses, strides, i, left + c, rows)
                keep(tile, c, one, other, fresh and i == first)
                met |= seen
        for i in range(whole, stop):
            for c in range(0, width, 2 * LANES):
                one, other, seen = of_one(addresses, strides, i, left + c, rows)
                keep(tile, c, one, other, fresh and i == first)
                met |= seen
        return met

    @inner
    def order_shows(tile, width, start, stop, met):
        if met:
            return True
        _, _, addresses, strides, _, left, (_, _, lanes_box, _, _) = tile
        for c in range(0, width, 2 * LANES):
            at = lanes_box + 8 * c
            if has_zero(read(at, PITCH)) or has_zero(read(at + 8 * LANES, PITCH)):
                for i in range(start, stop):
                    if negative(addresses, strides, i, left + c):
                        return True
        return False

    return fold_extremes, order_shows


def make_tile_rows(operands: Operands):
    """The beginning of a tile: row operands into their box, as float64."""
    fetch_row_columns, write_row = operands.fetch_row_columns, row_emitters(operands)[1]

    @inner
    def tile_rows(tile, width):
        p, _, addresses, _, steps, left, boxes = tile
        for c in range(0, width, LANES):
            row = fetch_row_columns(p, addresses, steps, left + c, least(LANES, width - c))
            write_row(boxes[0] + 8 * c, PITCH, row)

    return tile_rows


def _chain(before, after):
    """Run one pass and then the next."""

    @inner
    def both(tile, width):
        before(tile, width)
        after(tile, width)

    return both


def make_columns_kernel(formula: RowFormula, element: str, operands: Operands):
    """``kernel(p, begin, end)`` over tiles of columns."""
    compute, values, largest = _make_tile(formula, element, operands)
    if formula.usual:
        compute, more_values, more = _try_usual(formula, compute, element, operands)
        values, largest = max(values, more_values), max(largest, more)
    begin_tile = make_tile_rows(operands)
    rows_size, known_size = max(1, len(operands.row)) * PITCH, values * PITCH
    lanes_size, total_size = largest * LANES * PITCH, largest * PITCH
    split_size = rows_size + 2 * known_size + PITCH
    kept_size = 4 * KEPT if keeps_columns(formula, operands) else 0
    sizes = (kept_size, rows_size, known_size, lanes_size, total_size, split_size, PAGE)
    all_boxes = stack(sum(sizes) // 8)
    all_addresses, axis_strides = operands.addresses, operands.strides
    column_strides = operands.column_strides
    output, item = operands.output_at[0], operands.edge.item

    def kernel(p, begin, end):
        const = operands.constants(p)
        strides, steps = axis_strides(p), column_strides(p)
        widest, tiles, columns = word(p, TILE), word(p, TILES), word(p, COLUMNS)
        first_box = all_boxes() + kept_size
        for unit in range(begin, end):
            addresses = all_addresses(p, unit // tiles)
            left = unit % tiles * widest
            width = least(widest, columns - left)
            # Boxes begin at the output's place in a page, or less than a cache line behind: a load
            # waits for an earlier store past the caches to the same place in any page.
            behind = (addresses[output] + left * item - first_box) % PAGE
            row_box = first_box + (behind + 63) // 64 * 64
            known_box = row_box + rows_size
            lanes_box = known_box + known_size
            total_box = lanes_box + lanes_size
            boxes = (row_box, known_box, lanes_box, total_box, total_box + total_size)
            tile = (p, const, addresses, strides, steps, left, boxes)
            begin_tile(tile, width)
            compute(tile, width)

    return kernel


def _make_tile(formula: RowFormula, element: str, operands: Operands):
    """``compute(tile, width)``, how many values are known then, and the size of a state."""
    summary, known, largest = _make_summary(formula, element, operands)
    write_out = make_tile_finish(formula, element, operands, known)
    return _chain(summary, write_out) if summary else write_out, len(known), largest


def _make_summary(formula: RowFormula, element: str, operands: Operands):
    """All passes over a tile, or None; what is known then, and the size of a state."""
    summary: Any = None
    known: tuple[str, ...] = ("",)
    largest = 1
    for step in formula.passes:
        boxed = Boxed(len(operands.row), len(known), PITCH)
        keeps = step is formula.passes[-1] and keeps_columns(formula, operands)
        bound = BoundPass(formula, step, element, operands, known, boxed, keeps)
        made = make_tile_pass(formula, bound, operands, len(known))
        summary = _chain(summary, made) if summary else made
        known = known + step.names
        largest = max(largest, _boxed_size(bound.fold) if bound.fold else 1)
    return summary, known, largest


def _boxed_size(fold: Fold) -> int:
    """Numbers of a state, and of what is carried along a stretch."""
    return fold.size + (fold.stretch.size if fold.stretch else 0)


def _try_usual(formula: RowFormula, compute, element: str, operands: Operands):
    """The same, by the usual record where that does for all columns of a tile."""
    usual = formula.usual.formula
    summary, known, largest = _make_summary(usual, element, operands)
    write_out = make_tile_finish(usual, element, operands, known)
    is_strange = strange_rows(formula, element, operands, known)
    read_row, read_known = row_emitters(operands)[0], state_emitters(len(known))[0]

    @inlined
    def strange_at(tile, c):
        _, const, _, _, _, _, (row_box, known_box, _, _, _) = tile
        row, found = read_row(row_box + 8 * c, PITCH), read_known(known_box + 8 * c, PITCH)
        return is_strange(const, row, found)

    @inner
    def any_strange(tile, width):
        # The last eight columns, rather than what is left of the last eight lanes.
        found = width < LANES or strange_at(tile, width - LANES)
        for c in range(0, width - LANES, LANES):
            found = found or strange_at(tile, c)
        return found

    @inner
    def try_usual(tile, width):
        summary(tile, width)
        if any_strange(tile, width):
            compute(tile, width)
        else:
            write_out(tile, width)

    return try_usual, len(known), largest
