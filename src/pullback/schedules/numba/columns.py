"""Row formulas with the eight lanes across columns: the axis is not the innermost dimension.

A tile of columns is streamed row by row, with a row of accumulators for each of the eight lanes
that the rows schedule would have used, so every column is folded in the same order as there.
"""

from __future__ import annotations

from ...formulas.record import RowFormula
from .access import Operands, constants
from .bind import BoundPass, per_element, per_row
from .elementary import primitives_for
from .jit import inner
from .lanes import LANES
from .memory import BLOCKS, COLUMNS, EXTENT, TILE, TILES, word
from .rows import BLOCK
from .vectors import counting, no_vectors, stack, tuple_intrinsics

# Columns per tile at most: 8 lanes of 512 accumulators are 32 KB.
WIDEST_TILE = 512
PITCH = 8 * WIDEST_TILE


def make_tile_pass(bound: BoundPass, operands: Operands, known_size: int):
    """One pass over a tile: folds the axis into ``totals`` and appends to the known values."""
    read_known = tuple_intrinsics(known_size)[0]
    fetch_row_columns, close = operands.fetch_row_columns, bound.close
    write_known = tuple_intrinsics(known_size + bound.gives)[1]
    fold = bound.fold
    if fold is None:

        @inner
        def tile_prepare(p, const, addresses, steps, left, width, known_box, lanes_box, total_box):
            for c in range(0, width, LANES):
                count = min(LANES, width - c)
                row = fetch_row_columns(p, addresses, steps, left + c, count)
                known = read_known(known_box + 8 * c, PITCH)
                write_known(known_box + 8 * c, PITCH, close(const, row, known, no_vectors()))

        return tile_prepare

    lift, combine, identity = fold.lift, fold.combine, fold.identity
    read, write = fold.read, fold.write
    positions, fetch_columns = operands.positions, operands.fetch_columns
    # Within a lane the components of a state lie one lane-set apart.
    apart = LANES * PITCH

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
    def tile_pass(p, const, addresses, steps, left, width, known_box, lanes_box, total_box):
        extent = word(p, EXTENT)
        for c in range(0, width, LANES):
            write(total_box + 8 * c, PITCH, identity())
        for b in range(word(p, BLOCKS)):
            start = b * BLOCK
            for lane in range(LANES):
                for c in range(0, width, LANES):
                    write(lanes_box + lane * PITCH + 8 * c, apart, identity())
            for i in range(start, min(start + BLOCK, extent)):
                at = positions(p, addresses, i)
                lane_box = lanes_box + (i & (LANES - 1)) * PITCH
                index = counting(i, 0)
                for c in range(0, width, LANES):
                    count = min(LANES, width - c)
                    full = fetch_columns(p, at, steps, left + c, count)
                    row = fetch_row_columns(p, at, steps, left + c, count)
                    known = read_known(known_box + 8 * c, PITCH)
                    state = read(lane_box + 8 * c, apart)
                    state = combine(state, lift(index, const, full, row, known))
                    write(lane_box + 8 * c, apart, state)
            for c in range(0, width, LANES):
                total = read(total_box + 8 * c, PITCH)
                write(total_box + 8 * c, PITCH, combine(total, fold_lanes(lanes_box, c)))
        for c in range(0, width, LANES):
            count = min(LANES, width - c)
            row = fetch_row_columns(p, addresses, steps, left + c, count)
            known = read_known(known_box + 8 * c, PITCH)
            state = read(total_box + 8 * c, PITCH)
            write_known(known_box + 8 * c, PITCH, close(const, row, known, state))

    return tile_pass


def _chain(before, after):
    """Run one pass and then the next."""

    @inner
    def both(p, const, addresses, steps, left, width, known_box, lanes_box, total_box):
        before(p, const, addresses, steps, left, width, known_box, lanes_box, total_box)
        after(p, const, addresses, steps, left, width, known_box, lanes_box, total_box)

    return both


def make_columns_kernel(formula: RowFormula, element: str, operands: Operands):
    """``kernel(p, begin, end)`` over tiles of columns."""

    @inner
    def summary(p, const, addresses, steps, left, width, known_box, lanes_box, total_box):
        pass

    known: tuple[str, ...] = ("",)
    largest = 1
    for step in formula.passes:
        bound = BoundPass(step, element, operands.full, operands.row, known)
        summary = _chain(summary, make_tile_pass(bound, operands, len(known)))
        known = known + step.names
        largest = max(largest, bound.fold.size if bound.fold else 1)
    write_out = _make_finish(formula, element, operands, known)
    known_scratch = stack(len(known) * WIDEST_TILE)
    lanes_scratch = stack(largest * LANES * WIDEST_TILE)
    total_scratch = stack(largest * WIDEST_TILE)
    all_addresses, column_strides = operands.addresses, operands.column_strides

    def kernel(p, begin, end):
        const = constants(p)
        steps = column_strides(p)
        tile, tiles, columns = word(p, TILE), word(p, TILES), word(p, COLUMNS)
        known_box, lanes_box, total_box = known_scratch(), lanes_scratch(), total_scratch()
        for unit in range(begin, end):
            addresses = all_addresses(p, unit // tiles)
            left = unit % tiles * tile
            width = min(tile, columns - left)
            summary(p, const, addresses, steps, left, width, known_box, lanes_box, total_box)
            write_out(p, const, addresses, steps, left, width, known_box)

    return kernel


def _make_finish(formula: RowFormula, element: str, operands: Operands, known):
    """Write one value per column, or one per element."""
    read_known = tuple_intrinsics(len(known))[0]
    fetch_row_columns, put_columns = operands.fetch_row_columns, operands.put_columns
    outputs = len(operands.outputs)
    if formula.finish:
        finish = per_row(formula.finish, element, operands.row, known, (), outputs)

        @inner
        def finish_tile(p, const, addresses, steps, left, width, known_box):
            for c in range(0, width, LANES):
                count = min(LANES, width - c)
                row = fetch_row_columns(p, addresses, steps, left + c, count)
                found = read_known(known_box + 8 * c, PITCH)
                values = finish(const, row, found, no_vectors())
                put_columns(p, addresses, steps, left + c, count, values)

        return finish_tile

    apply = per_element(
        formula.apply, primitives_for(element), operands.full, operands.row, known, outputs
    )
    positions, fetch_columns = operands.positions, operands.fetch_columns

    @inner
    def apply_tile(p, const, addresses, steps, left, width, known_box):
        for i in range(word(p, EXTENT)):
            at = positions(p, addresses, i)
            index = counting(i, 0)
            for c in range(0, width, LANES):
                count = min(LANES, width - c)
                full = fetch_columns(p, at, steps, left + c, count)
                row = fetch_row_columns(p, at, steps, left + c, count)
                found = read_known(known_box + 8 * c, PITCH)
                values = apply(index, const, full, row, found)
                put_columns(p, at, steps, left + c, count, values)

    return apply_tile
