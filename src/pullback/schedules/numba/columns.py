"""Row formulas with the eight lanes across columns: the axis is not the innermost dimension.

A tile of columns is streamed row by row, with a row of accumulators for each of the eight lanes
that the rows schedule would have used, so every column is folded in the same order as there.
"""

from __future__ import annotations

from typing import Any

from ...formulas.record import RowFormula
from .access import Operands, constants, fence
from .bind import BoundPass, per_element, per_row
from .elementary import primitives_for
from .jit import inlined, inner
from .lanes import LANES
from .memory import BLOCKS, COLUMNS, EXTENT, TILE, TILES, least, word
from .rows import BLOCK, FIRST, writes_pairs
from .vectors import counting, no_vectors, stack, tuple_intrinsics

# Columns per tile at most: wide enough that memory is read in long runs. Of 512, 1024 and 2048
# columns, 1024 were fastest at 4096 x 4096.
WIDEST_TILE = 1024
PITCH = 8 * WIDEST_TILE
# Rows folded at a time, so that an accumulator is loaded and stored once for several rows of its
# lane. More streams than this, over all operands, are more than the prefetcher follows.
STREAMS = 32


def make_tile_pass(bound: BoundPass, operands: Operands, known_size: int):
    """One pass over a tile: folds the axis into ``totals`` and appends to the known values."""
    read_known = tuple_intrinsics(known_size)[0]
    fetch_row_columns, close = operands.fetch_row_columns, bound.close
    write_known = tuple_intrinsics(known_size + bound.gives)[1]
    fold = bound.fold
    if fold is None:

        @inner
        def tile_prepare(
            p, const, addresses, strides, steps, left, width, known_box, lanes_box, total_box
        ):
            for c in range(0, width, LANES):
                count = least(LANES, width - c)
                row = fetch_row_columns(p, addresses, steps, left + c, count)
                known = read_known(known_box + 8 * c, PITCH)
                write_known(known_box + 8 * c, PITCH, close(const, row, known, no_vectors()))

        return tile_prepare

    lift, combine, identity = fold.lift, fold.combine, fold.identity
    read, write = fold.read, fold.write
    fetch_columns, places, prefetch = operands.fetch_columns, operands.places, operands.prefetch()
    # Within a lane the components of a state lie one lane-set apart.
    apart = LANES * PITCH
    rows = max(LANES, STREAMS // max(1, len(operands.full)) // LANES * LANES)
    # Vectors that share a cache line are folded one after the other.
    line = max(1, 64 // (LANES * operands.edge.item))

    @inner
    def fold_lanes(lanes_box, c):
        at = lanes_box + 8 * c
        for half in (4, 2, 1):
            for lane in range(half):
                a = read(at + lane * PITCH, apart)
                b = read(at + (lane + half) * PITCH, apart)
                write(at + lane * PITCH, apart, combine(a, b))
        return read(at, apart)

    @inner
    def fold_lane(
        p, const, addresses, strides, steps, left, c, count, first, stop, known_box, lane_box
    ):
        """Every eighth row of [first, stop) into one accumulator."""
        row = fetch_row_columns(p, addresses, steps, left + c, count)
        known = read_known(known_box + 8 * c, PITCH)
        state = read(lane_box + 8 * c, apart)
        for i in range(first, stop, LANES):
            at = places(addresses, strides, i)
            full = fetch_columns(p, at, steps, left + c, count)
            prefetch(places(addresses, strides, i + rows), left + c)
            state = combine(state, lift(counting(i, 0), const, full, row, known))
        write(lane_box + 8 * c, apart, state)

    @inner
    def fold_rows(
        p, const, addresses, strides, steps, left, width, first, stop, known_box, lanes_box
    ):
        whole = width // LANES * LANES
        for start in range(0, whole, line * LANES):
            for lane in range(least(LANES, stop - first)):
                for c in range(start, least(start + line * LANES, whole), LANES):
                    fold_lane(
                        p, const, addresses, strides, steps, left, c, LANES, first + lane, stop,
                        known_box, lanes_box + lane * PITCH,
                    )  # fmt: skip
        if whole < width:
            for lane in range(least(LANES, stop - first)):
                fold_lane(
                    p, const, addresses, strides, steps, left, whole, width - whole, first + lane,
                    stop, known_box, lanes_box + lane * PITCH,
                )  # fmt: skip

    @inner
    def tile_pass(
        p, const, addresses, strides, steps, left, width, known_box, lanes_box, total_box
    ):
        extent = word(p, EXTENT)
        for c in range(0, width, LANES):
            write(total_box + 8 * c, PITCH, identity())
        for b in range(word(p, BLOCKS)):
            start, stop = b * BLOCK, least((b + 1) * BLOCK, extent)
            for lane in range(LANES):
                for c in range(0, width, LANES):
                    write(lanes_box + lane * PITCH + 8 * c, apart, identity())
            for first in range(start, stop, rows):
                fold_rows(
                    p, const, addresses, strides, steps, left, width, first,
                    least(first + rows, stop), known_box, lanes_box,
                )  # fmt: skip
            for c in range(0, width, LANES):
                total = read(total_box + 8 * c, PITCH)
                write(total_box + 8 * c, PITCH, combine(total, fold_lanes(lanes_box, c)))
        for c in range(0, width, LANES):
            count = least(LANES, width - c)
            row = fetch_row_columns(p, addresses, steps, left + c, count)
            known = read_known(known_box + 8 * c, PITCH)
            state = read(total_box + 8 * c, PITCH)
            write_known(known_box + 8 * c, PITCH, close(const, row, known, state))

    return tile_pass


def _chain(before, after):
    """Run one pass, if there is one yet, and then the next."""
    if before is None:
        return after

    @inner
    def both(p, const, addresses, strides, steps, left, width, known_box, lanes_box, total_box):
        before(p, const, addresses, strides, steps, left, width, known_box, lanes_box, total_box)
        after(p, const, addresses, strides, steps, left, width, known_box, lanes_box, total_box)

    return both


def make_columns_kernel(formula: RowFormula, element: str, operands: Operands):
    """``kernel(p, begin, end)`` over tiles of columns."""
    summary: Any = None
    known: tuple[str, ...] = ("",)
    largest = 1
    for step in formula.passes:
        bound = BoundPass(step, element, operands.full, operands.row, known)
        summary = _chain(summary, make_tile_pass(bound, operands, len(known)))
        known = known + step.names
        largest = max(largest, bound.fold.size if bound.fold else 1)
    if summary is None:

        @inner
        def summary(
            p, const, addresses, strides, steps, left, width, known_box, lanes_box, total_box
        ):
            pass

    write_out = _make_finish(formula, element, operands, known)
    known_scratch = stack(len(known) * WIDEST_TILE)
    lanes_scratch = stack(largest * LANES * WIDEST_TILE)
    total_scratch = stack(largest * WIDEST_TILE)
    all_addresses, axis_strides = operands.addresses, operands.strides
    column_strides = operands.column_strides

    def kernel(p, begin, end):
        const = constants(p)
        strides, steps = axis_strides(p), column_strides(p)
        tile, tiles, columns = word(p, TILE), word(p, TILES), word(p, COLUMNS)
        known_box, lanes_box, total_box = known_scratch(), lanes_scratch(), total_scratch()
        for unit in range(begin, end):
            addresses = all_addresses(p, unit // tiles)
            left = unit % tiles * tile
            width = least(tile, columns - left)
            summary(
                p, const, addresses, strides, steps, left, width, known_box, lanes_box, total_box
            )
            write_out(p, const, addresses, strides, steps, left, width, known_box)

    return kernel


def _make_finish(formula: RowFormula, element: str, operands: Operands, known):
    """Write one value per column, or one per element."""
    read_known = tuple_intrinsics(len(known))[0]
    fetch_row_columns, put_columns = operands.fetch_row_columns, operands.put_columns
    outputs = len(operands.outputs)
    if formula.finish:
        finish = per_row(formula.finish, element, operands.row, known, (), outputs)

        @inner
        def finish_tile(p, const, addresses, strides, steps, left, width, known_box):
            for c in range(0, width, LANES):
                count = least(LANES, width - c)
                row = fetch_row_columns(p, addresses, steps, left + c, count)
                found = read_known(known_box + 8 * c, PITCH)
                values = finish(const, row, found, no_vectors())
                put_columns(p, addresses, steps, left + c, count, values)

        return finish_tile

    apply = per_element(
        formula.apply, primitives_for(element), operands.full, operands.row, known, outputs
    )
    places, fetch_columns = operands.places, operands.fetch_columns

    @inner
    def apply_some(p, const, at, steps, left, c, count, index, known_box):
        full = fetch_columns(p, at, steps, left + c, count)
        row = fetch_row_columns(p, at, steps, left + c, count)
        values = apply(index, const, full, row, read_known(known_box + 8 * c, PITCH))
        put_columns(p, at, steps, left + c, count, values)

    if not operands.packed:

        @inner
        def apply_strided(p, const, addresses, strides, steps, left, width, known_box):
            for i in range(word(p, EXTENT)):
                at = places(addresses, strides, i)
                for c in range(0, width, LANES):
                    count = least(LANES, width - c)
                    apply_some(p, const, at, steps, left, c, count, counting(i, 0), known_box)

        return apply_strided

    prefetch, stream, item = operands.prefetch(), operands.stream_outputs(), operands.edge.item
    one, other, may_stream = operands.output_at[0], operands.output_at[-1], operands.may_stream()
    pairs = writes_pairs(formula, operands)
    fetch_pair, put_pair = operands.fetch_pair(), operands.put_pair()
    group = 2 * LANES if pairs else LANES

    @inner
    def apply_whole(p, const, at, steps, left, c, index, known_box, streamed):
        full = fetch_columns(p, at, steps, left + c, LANES)
        row = fetch_row_columns(p, at, steps, left + c, LANES)
        values = apply(index, const, full, row, read_known(known_box + 8 * c, PITCH))
        if streamed:
            stream(at, left + c, values)
        else:
            put_columns(p, at, steps, left + c, LANES, values)

    @inlined
    def apply_pair(p, const, at, steps, left, c, index, known_box, streamed):
        full, next_full = fetch_pair(at, left + c)
        row = fetch_row_columns(p, at, steps, left + c, LANES)
        values = apply(index, const, full, row, read_known(known_box + 8 * c, PITCH))
        c += LANES
        row = fetch_row_columns(p, at, steps, left + c, LANES)
        next_values = apply(index, const, next_full, row, read_known(known_box + 8 * c, PITCH))
        put_pair(at, left + c - LANES, values, next_values, streamed)

    apply_group = apply_pair if pairs else apply_whole

    @inner
    def apply_ragged(p, const, at, steps, left, start, stop, index, known_box):
        for c in range(start, stop, LANES):
            apply_some(p, const, at, steps, left, c, least(LANES, stop - c), index, known_box)

    @inner
    def apply_tile(p, const, addresses, strides, steps, left, width, known_box):
        vector = group * item
        alike = addresses[one] % vector == addresses[other] % vector
        alike = alike and (strides[one] - strides[other]) % vector == 0
        for i in range(word(p, EXTENT)):
            at = places(addresses, strides, i)
            streamed = alike and may_stream(p, at)
            below = places(addresses, strides, i + 1)
            index = counting(i, 0)
            inside = 0
            if streamed:
                inside = least(-(at[one] // item + left) % group, width)
                apply_ragged(p, const, at, steps, left, FIRST, inside, index, known_box)
            whole = inside + (width - inside) // group * group
            for c in range(inside, whole, group):
                prefetch(below, left + c)
                apply_group(p, const, at, steps, left, c, index, known_box, streamed)
            apply_ragged(p, const, at, steps, left, whole, width, index, known_box)
        fence()

    return apply_tile
