"""Row formulas with the eight lanes across columns: the axis is not the innermost dimension.

A tile of columns is streamed row by row, with a row of accumulators for each of the eight lanes
that the rows schedule would have used, so every column is folded in the same order as there.
"""

from __future__ import annotations

from ...formulas.record import RowFormula, parameters
from ..codegen.bind import BoundPass, per_element, per_row
from ..codegen.block import BLOCKS, COLUMNS, EXTENT, TILE, TILES, is_streamed, least, word
from ..codegen.elementary import primitives_for
from ..codegen.jit import inlined, inner
from ..codegen.lanes import LANES
from ..codegen.operands import Operands, constants, fence
from ..codegen.vectors import counting, no_vectors, stack, tuple_intrinsics
from .flush import copy_bytes, flush
from .rows import BLOCK, FIRST, writes_pairs

# Columns per tile at most: wide enough that memory is read in long runs. Of 512, 1024 and 2048
# columns, 1024 were fastest at 4096 x 4096.
WIDEST_TILE = 1024
PITCH = 8 * WIDEST_TILE
PAGE = 4096
# Rows folded at a time, so that an accumulator is loaded and stored once for several rows of its
# lane. More streams than this, over all operands, are more than the prefetcher follows.
STREAMS = 32


def make_tile_pass(bound: BoundPass, operands: Operands, known_size: int):
    """One pass over a tile: folds the axis into ``totals`` and appends to the known values."""
    read_known = tuple_intrinsics(known_size)[0]
    read_row, close = row_intrinsics(operands)[0], bound.close
    write_known = tuple_intrinsics(known_size + bound.gives)[1]
    fold = bound.fold
    if fold is None:

        @inner
        def tile_prepare(p, const, addresses, strides, steps, left, width, boxes):
            row_box, known_box, _, _ = boxes
            for c in range(0, width, LANES):
                row = read_row(row_box + 8 * c, PITCH)
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
        p, const, addresses, strides, steps, left, c, count, first, stop, row_box, known_box,
        lane_box,
    ):  # fmt: skip
        """Every eighth row of [first, stop) into one accumulator."""
        row = read_row(row_box + 8 * c, PITCH)
        known = read_known(known_box + 8 * c, PITCH)
        state = read(lane_box + 8 * c, apart)
        for i in range(first, stop, LANES):
            at = places(addresses, strides, i)
            full = fetch_columns(p, at, steps, left + c, count)
            prefetch(places(addresses, strides, i + rows), left + c)
            state = combine(state, lift(counting(i, 0), const, full, row, known))
        write(lane_box + 8 * c, apart, state)

    @inner
    def fold_rows(p, const, addresses, strides, steps, left, width, first, stop, boxes):
        row_box, known_box, lanes_box, _ = boxes
        whole = width // LANES * LANES
        for start in range(0, whole, line * LANES):
            for lane in range(least(LANES, stop - first)):
                for c in range(start, least(start + line * LANES, whole), LANES):
                    fold_lane(
                        p, const, addresses, strides, steps, left, c, LANES, first + lane, stop,
                        row_box, known_box, lanes_box + lane * PITCH,
                    )  # fmt: skip
        if whole < width:
            for lane in range(least(LANES, stop - first)):
                fold_lane(
                    p, const, addresses, strides, steps, left, whole, width - whole, first + lane,
                    stop, row_box, known_box, lanes_box + lane * PITCH,
                )  # fmt: skip

    @inner
    def tile_pass(p, const, addresses, strides, steps, left, width, boxes):
        row_box, known_box, lanes_box, total_box = boxes
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
                    least(first + rows, stop), boxes,
                )  # fmt: skip
            for c in range(0, width, LANES):
                total = read(total_box + 8 * c, PITCH)
                write(total_box + 8 * c, PITCH, combine(total, fold_lanes(lanes_box, c)))
        for c in range(0, width, LANES):
            row = read_row(row_box + 8 * c, PITCH)
            known = read_known(known_box + 8 * c, PITCH)
            state = read(total_box + 8 * c, PITCH)
            write_known(known_box + 8 * c, PITCH, close(const, row, known, state))

    return tile_pass


def make_tile_rows(operands: Operands):
    """The beginning of a tile: row operands into their box, as float64."""
    fetch_row_columns, write_row = operands.fetch_row_columns, row_intrinsics(operands)[1]

    @inner
    def tile_rows(p, const, addresses, strides, steps, left, width, boxes):
        for c in range(0, width, LANES):
            row = fetch_row_columns(p, addresses, steps, left + c, least(LANES, width - c))
            write_row(boxes[0] + 8 * c, PITCH, row)

    return tile_rows


def row_intrinsics(operands: Operands):
    """Reading and writing the row operands of a tile in their box."""
    return tuple_intrinsics(max(1, len(operands.row)))


def _chain(before, after):
    """Run one pass and then the next."""

    @inner
    def both(p, const, addresses, strides, steps, left, width, boxes):
        before(p, const, addresses, strides, steps, left, width, boxes)
        after(p, const, addresses, strides, steps, left, width, boxes)

    return both


def make_columns_kernel(formula: RowFormula, element: str, operands: Operands):
    """``kernel(p, begin, end)`` over tiles of columns."""
    summary = make_tile_rows(operands)
    known: tuple[str, ...] = ("",)
    largest = 1
    for step in formula.passes:
        bound = BoundPass(step, element, operands.full, operands.row, known)
        summary = _chain(summary, make_tile_pass(bound, operands, len(known)))
        known = known + step.names
        largest = max(largest, bound.fold.size if bound.fold else 1)
    write_out = _make_finish(formula, element, operands, known)
    rows_size, known_size = max(1, len(operands.row)) * PITCH, len(known) * PITCH
    lanes_size, total_size = largest * LANES * PITCH, largest * PITCH
    all_boxes = stack((rows_size + known_size + lanes_size + total_size + PAGE) // 8)
    all_addresses, axis_strides = operands.addresses, operands.strides
    column_strides = operands.column_strides
    output, item = operands.output_at[0], operands.edge.item

    def kernel(p, begin, end):
        const = constants(p)
        strides, steps = axis_strides(p), column_strides(p)
        tile, tiles, columns = word(p, TILE), word(p, TILES), word(p, COLUMNS)
        first_box = all_boxes()
        for unit in range(begin, end):
            addresses = all_addresses(p, unit // tiles)
            left = unit % tiles * tile
            width = least(tile, columns - left)
            # Boxes begin at the output's place in a page, or less than a cache line behind: a load
            # waits for an earlier store past the caches to the same place in any page.
            behind = (addresses[output] + left * item - first_box) % PAGE
            row_box = first_box + (behind + 63) // 64 * 64
            known_box = row_box + rows_size
            lanes_box = known_box + known_size
            boxes = (row_box, known_box, lanes_box, lanes_box + lanes_size)
            summary(p, const, addresses, strides, steps, left, width, boxes)
            write_out(p, const, addresses, strides, steps, left, width, boxes)

    return kernel


def _make_finish(formula: RowFormula, element: str, operands: Operands, known):
    """Write one value per column, or one per element."""
    read_known = tuple_intrinsics(len(known))[0]
    read_row, put_columns = row_intrinsics(operands)[0], operands.put_columns
    outputs = len(operands.outputs)
    if formula.finish:
        finish = per_row(formula.finish, element, operands.row, known, (), outputs)

        @inner
        def finish_tile(p, const, addresses, strides, steps, left, width, boxes):
            row_box, known_box, _, _ = boxes
            for c in range(0, width, LANES):
                count = least(LANES, width - c)
                row = read_row(row_box + 8 * c, PITCH)
                found = read_known(known_box + 8 * c, PITCH)
                values = finish(const, row, found, no_vectors())
                put_columns(p, addresses, steps, left + c, count, values)

        return finish_tile

    apply = per_element(
        formula.apply, primitives_for(element), operands.full, operands.row, known, outputs
    )
    places, fetch_columns = operands.places, operands.fetch_columns

    @inner
    def apply_some(p, const, at, steps, left, c, count, index, row_box, known_box):
        full = fetch_columns(p, at, steps, left + c, count)
        row = read_row(row_box + 8 * c, PITCH)
        values = apply(index, const, full, row, read_known(known_box + 8 * c, PITCH))
        put_columns(p, at, steps, left + c, count, values)

    if not operands.packed:

        @inner
        def apply_strided(p, const, addresses, strides, steps, left, width, boxes):
            row_box, known_box, _, _ = boxes
            for i in range(word(p, EXTENT)):
                at = places(addresses, strides, i)
                for c in range(0, width, LANES):
                    count = least(LANES, width - c)
                    apply_some(
                        p, const, at, steps, left, c, count, counting(i, 0), row_box, known_box
                    )

        return apply_strided

    if is_constant(formula, operands):
        return _make_repeat(operands, apply_some)

    prefetch, stream, item = operands.prefetch(), operands.stream_outputs(), operands.edge.item
    one, other, may_stream = operands.output_at[0], operands.output_at[-1], operands.may_stream()
    pairs = writes_pairs(formula, operands)
    fetch_pair, put_pair = operands.fetch_pair(), operands.put_pair()
    group = 2 * LANES if pairs else LANES

    @inner
    def apply_whole(p, const, at, steps, left, c, index, row_box, known_box, streamed):
        full = fetch_columns(p, at, steps, left + c, LANES)
        row = read_row(row_box + 8 * c, PITCH)
        values = apply(index, const, full, row, read_known(known_box + 8 * c, PITCH))
        if streamed:
            stream(at, left + c, values)
        else:
            put_columns(p, at, steps, left + c, LANES, values)

    @inlined
    def apply_pair(p, const, at, steps, left, c, index, row_box, known_box, streamed):
        full, next_full = fetch_pair(at, left + c)
        row = read_row(row_box + 8 * c, PITCH)
        values = apply(index, const, full, row, read_known(known_box + 8 * c, PITCH))
        c += LANES
        row = read_row(row_box + 8 * c, PITCH)
        next_values = apply(index, const, next_full, row, read_known(known_box + 8 * c, PITCH))
        put_pair(at, left + c - LANES, values, next_values, streamed)

    apply_group = apply_pair if pairs else apply_whole

    @inner
    def apply_ragged(p, const, at, steps, left, start, stop, index, row_box, known_box):
        for c in range(start, stop, LANES):
            count = least(LANES, stop - c)
            apply_some(p, const, at, steps, left, c, count, index, row_box, known_box)

    @inner
    def apply_tile(p, const, addresses, strides, steps, left, width, boxes):
        row_box, known_box, _, _ = boxes
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
                apply_ragged(p, const, at, steps, left, FIRST, inside, index, row_box, known_box)
            whole = inside + (width - inside) // group * group
            for c in range(inside, whole, group):
                prefetch(below, left + c)
                apply_group(p, const, at, steps, left, c, index, row_box, known_box, streamed)
            apply_ragged(p, const, at, steps, left, whole, width, index, row_box, known_box)
        fence()

    return apply_tile


def is_constant(formula: RowFormula, operands: Operands) -> bool:
    """Whether all positions of the axis get the same value of one output, as those of a mean do."""
    changing = {"index", "first", *operands.full} & set(parameters(formula.apply))
    return not changing and len(operands.output_at) == 1


def _make_repeat(operands: Operands, apply_some):
    """Write one row of a tile in a box, and from there to all positions of the axis."""
    move, places, item = operands.staged(), operands.places, operands.edge.item

    @inner
    def repeat_tile(p, const, addresses, strides, steps, left, width, boxes):
        row_box, known_box, box, _ = boxes
        staged, _ = move(addresses, left, left + width, box)
        for c in range(0, width, LANES):
            count = least(LANES, width - c)
            apply_some(p, const, staged, steps, left, c, count, counting(0, 0), row_box, known_box)
        size = width * item
        for i in range(word(p, EXTENT)):
            _, place = move(places(addresses, strides, i), left, left + width, box)
            if is_streamed(p, place):
                flush(place, box, size)
            else:
                copy_bytes(place, box, size)
        fence()

    return repeat_tile
