"""Scans with the eight lanes across columns, chunk by chunk down a tile.

The carries of a tile are rows of states in scratch; the order of every combination is that of
:mod:`.scan_rows`.

What all functions need to know of a tile goes by one name:
``tile = (p, const, addresses, strides, steps)``, as in :mod:`.columns`.
"""

from __future__ import annotations

from ...formulas.record import ScanFormula
from ..codegen.block import again, least
from ..codegen.functions import inlined, inner
from ..codegen.lanes import LANES
from ..codegen.memory import set_word, word
from ..codegen.operands import Operands
from ..codegen.vectors import no_vectors, stack
from ..codegen.watch import nothing_seen, was_moderate
from ..words import (
    BLOCKS,
    COLUMNS,
    EXTENT,
    GROUP,
    SCRATCH,
    STRAINED,
    TILE,
    TILES,
    WIDEST_BOTH_WAYS,
    WIDEST_ONE_WAY,
)
from .eight import (
    eight_free_of_nan,
    eight_zeros,
    make_befores,
    make_fetch,
    make_finish,
    make_in_turn,
    make_known,
    make_lift,
    make_put,
    make_wakes,
)
from .moderate_products import brought_to, carried_on, moderate_products, products_of_eight
from .scan_parts import SCAN_BLOCK, ScanParts

GROUPS = SCAN_BLOCK // GROUP


def make_scan_columns_kernel(formula: ScanFormula, element: str, operands: Operands, plain: bool):
    """``kernel(p, begin, end)`` over tiles of columns."""
    parts = ScanParts(formula, element, operands, plain)
    scan_tile = _both_ways(parts, operands) if parts.prefix else _one_way(parts, operands)
    all_addresses, all_strides = operands.addresses, operands.strides
    column_strides = operands.column_strides

    def kernel(p, begin, end):
        const = operands.constants(p)
        strides, steps = all_strides(p), column_strides(p)
        widest, tiles, columns = word(p, TILE), word(p, TILES), word(p, COLUMNS)
        for unit in range(begin, end):
            outer = unit // tiles
            left = unit % tiles * widest
            width = least(widest, columns - left)
            scan_tile((p, const, all_addresses(p, outer), strides, steps), left, width, outer)

    return kernel


def _make_scan_chunk(parts: ScanParts, operands: Operands, descending: bool):
    """Scan up to eight positions of eight columns and write the outputs.

    Gives their total and what was seen. ``known`` is what is known before each of the positions.
    """
    fold, watch, quiet = parts.fold, parts.watch, parts.quiet
    fetch, lift = make_fetch(operands, parts.neighbours), make_lift(fold)
    put = make_put(operands, paired=parts.prefix is None)
    outputs = len(operands.outputs) - len(operands.ends)
    finish = make_finish(parts, parts.guarded, outputs, descending)
    in_turn, scan_eight = make_in_turn(descending), fold.scan_eight
    fetch_row_columns = operands.fetch_row_columns
    look_at_gradient, look_at_row, look_at_carry = watch.gradient, watch.row_gradient, watch.carry
    short_cut, wakes = quiet.possible, make_wakes(parts)
    quiet_lift, quiet_turn = make_lift(quiet.fold), make_in_turn(descending)
    quiet_join, widened = quiet.fold.join_eight, quiet.widened

    @inlined
    def scan_chunk(tile, start, count, column, lanes, before, known, seen):
        p, const, addresses, strides, steps = tile
        row = fetch_row_columns(p, addresses, steps, column, lanes)
        full = fetch(addresses, strides, steps, start, word(p, EXTENT), column, lanes)
        seen = look_at_carry(look_at_gradient(look_at_row(seen, row), full), before)
        if short_cut and count == LANES and not wakes(p, start, const, full, row, known):
            put(addresses, strides, steps, start, count, column, lanes, eight_zeros())
            lifted = quiet_lift(p, start, count, const, full, row, known)
            return widened(quiet_join(quiet_turn(lifted))), seen
        states = scan_eight(in_turn(lift(p, start, count, const, full, row, known)))
        values = finish(p, start, const, full, row, known, before, states)
        put(addresses, strides, steps, start, count, column, lanes, values)
        return states[LANES - 1], seen

    return scan_chunk


def _make_whole_chunk(parts: ScanParts, operands: Operands):
    """Scan eight positions of eight columns by a shorter way, if there is one, in a one-way scan.

    Gives what is carried on, and whether it may: where it may not nothing has been written. Without
    guards it may not where a NaN shows, without scaling where a product is not moderate.
    """
    if parts.moderate is not None:
        return _make_moderate_chunk(parts, operands)
    made = parts.unguarded
    if made is None:

        @inlined
        def never(tile, start, column, lanes, block_carry, carried):
            return carried, False

        return never
    fetch, lift = make_fetch(operands, parts.neighbours), make_lift(made.fold)
    put = make_put(operands, paired=True)
    outputs = len(operands.outputs) - len(operands.ends)
    finish = make_finish(parts, made, outputs, descending=False)
    combine, scan_eight = made.fold.combine, made.fold.scan_eight
    fetch_row_columns = operands.fetch_row_columns

    @inlined
    def whole_chunk(tile, start, column, lanes, block_carry, carried):
        p, const, addresses, strides, steps = tile
        row = fetch_row_columns(p, addresses, steps, column, lanes)
        full = fetch(addresses, strides, steps, start, word(p, EXTENT), column, lanes)
        known = eight_zeros()
        states = scan_eight(lift(p, start, LANES, const, full, row, known))
        before, after = combine(block_carry, carried), combine(carried, states[LANES - 1])
        values = finish(p, start, const, full, row, known, before, states)
        fine = eight_free_of_nan(after, values)
        if fine:
            put(addresses, strides, steps, start, LANES, column, lanes, values)
        return after, fine

    return whole_chunk


def _make_moderate_chunk(parts: ScanParts, operands: Operands):
    """The same of a running product."""
    fetch, lift = make_fetch(operands, parts.neighbours), make_lift(parts.moderate)
    put, scan_eight = make_put(operands, paired=True), parts.moderate.scan_eight
    products = products_of_eight(parts.inclusive)
    (_, is_moderate), brought = moderate_products(parts.element), brought_to(parts.element)
    fetch_row_columns = operands.fetch_row_columns

    @inlined
    def moderate_chunk(tile, start, column, lanes, block_carry, carried):
        p, const, addresses, strides, steps = tile
        row = fetch_row_columns(p, addresses, steps, column, lanes)
        full = fetch(addresses, strides, steps, start, word(p, EXTENT), column, lanes)
        lifted = lift(p, start, LANES, const, full, row, eight_zeros())
        states = scan_eight(lifted)
        after, fine = carried, is_moderate(lifted, states[LANES - 1])
        if fine:
            values, product, by, e = products(block_carry, carried, states)
            values = brought(values, by)
            put(addresses, strides, steps, start, LANES, column, lanes, values)
            after = carried_on(product, e)
        return after, fine

    return moderate_chunk


def _one_way(parts: ScanParts, operands: Operands):
    fold = parts.fold
    combine, identity, read, write = fold.combine, fold.identity, fold.read, fold.write
    scan_chunk = _make_scan_chunk(parts, operands, descending=False)
    try_chunk = _make_whole_chunk(parts, operands)
    begin, finish_columns = parts.start, _columns_end(parts, operands)
    fetch_row_columns = operands.fetch_row_columns
    pitch = 8 * WIDEST_ONE_WAY
    block_scratch = stack(WIDEST_ONE_WAY * fold.size)
    chunk_scratch = stack(WIDEST_ONE_WAY * fold.size)

    @inner
    def scan_tile(tile, left, width, outer):
        p, const, addresses, _, steps = tile
        extent = word(p, EXTENT)
        block_box, chunk_box = block_scratch(), chunk_scratch()
        for c in range(0, width, LANES):
            row = fetch_row_columns(p, addresses, steps, left + c, least(LANES, width - c))
            write(block_box + 8 * c, pitch, begin(const, row))
        for b in range(word(p, BLOCKS)):
            for c in range(0, width, LANES):
                write(chunk_box + 8 * c, pitch, identity())
            for start in range(b * SCAN_BLOCK, least((b + 1) * SCAN_BLOCK, extent), LANES):
                count = least(LANES, extent - start)
                for c in range(0, width, LANES):
                    carried = read(chunk_box + 8 * c, pitch)
                    block_carry = read(block_box + 8 * c, pitch)
                    lanes = least(LANES, width - c)
                    after, fine = carried, False
                    if count == LANES:
                        after, fine = try_chunk(tile, start, left + c, lanes, block_carry, carried)
                    if not fine:
                        before, known = combine(block_carry, carried), eight_zeros()
                        total, _ = scan_chunk(
                            tile,
                            again(start),
                            count,
                            left + c,
                            lanes,
                            before,
                            known,
                            nothing_seen(),
                        )
                        after = combine(carried, total)
                    write(chunk_box + 8 * c, pitch, after)
            for c in range(0, width, LANES):
                carry = combine(read(block_box + 8 * c, pitch), read(chunk_box + 8 * c, pitch))
                write(block_box + 8 * c, pitch, carry)
        for c in range(0, width, LANES):
            lanes = least(LANES, width - c)
            carry = read(block_box + 8 * c, pitch)
            finish_columns(tile, left + c, lanes, carry)

    return scan_tile


def _columns_end(parts: ScanParts, operands: Operands):
    """The outputs of the state behind eight columns."""
    if parts.end is None:

        @inner
        def nothing(tile, column, lanes, carry):
            pass

        return nothing
    end, put, fetch_row_columns = parts.end, operands.put_end_columns, operands.fetch_row_columns

    @inner
    def finish_columns(tile, column, lanes, carry):
        p, const, addresses, _, steps = tile
        row = fetch_row_columns(p, addresses, steps, column, lanes)
        put(p, addresses, steps, column, lanes, end(const, row, no_vectors(), carry))

    return finish_columns


def _make_prefix_chunks(parts: ScanParts, operands: Operands):
    """The total of a chunk's prefix, or what is known before each of its positions."""
    prefix = parts.prefix
    assert prefix is not None
    fetch, lift = make_fetch(operands, parts.neighbours), make_lift(prefix)
    fetch_row_columns = operands.fetch_row_columns
    join_eight, scan_eight = prefix.join_eight, prefix.scan_eight
    befores, repeated = make_befores(prefix)
    known_of = make_known(prefix)
    look_at_factor, selects, keeps = parts.watch.factor, parts.selects, prefix.keeps

    @inlined
    def lifted_chunk(tile, start, count, column, lanes, seen):
        p, const, addresses, strides, steps = tile
        row = fetch_row_columns(p, addresses, steps, column, lanes)
        full = fetch(addresses, strides, steps, start, word(p, EXTENT), column, lanes)
        seen = look_at_factor(seen, full)
        return lift(p, start, count, const, full, row, eight_zeros()), seen

    @inlined
    def total(tile, start, count, column, lanes, seen):
        lifted, seen = lifted_chunk(tile, start, count, column, lanes, seen)
        return join_eight(lifted), seen

    @inlined
    def states(tile, start, count, column, lanes, before, seen):
        lifted, seen = lifted_chunk(tile, start, count, column, lanes, seen)
        if selects and keeps(before, join_eight(lifted)):
            return known_of(repeated(before)), seen
        return known_of(befores(before, scan_eight(lifted))), seen

    return total, states


def _both_ways(parts: ScanParts, operands: Operands):
    """A prefix scan down the tile and the scan itself up, group by group from the end.

    Kept in the workspace are the prefix before every block, and the block's own prefix before every
    group; on the stack, before every chunk of the current group.
    """
    fold, prefix = parts.fold, parts.prefix
    assert prefix is not None
    combine, identity, read, write = fold.combine, fold.identity, fold.read, fold.write
    p_combine, p_identity, p_read, p_write = (
        prefix.combine,
        prefix.identity,
        prefix.read,
        prefix.write,
    )
    p_size, pitch = prefix.size, 8 * WIDEST_BOTH_WAYS
    begin, p_begin, finish_columns = parts.start, parts.prefix_start, _columns_end(parts, operands)
    fetch_row_columns = operands.fetch_row_columns
    look_at_carry = parts.watch.carry
    prefix_total, prefix_states = _make_prefix_chunks(parts, operands)
    scan_chunk = _make_scan_chunk(parts, operands, descending=True)
    block_scratch = stack(WIDEST_BOTH_WAYS * fold.size)
    chunk_scratch = stack(WIDEST_BOTH_WAYS * fold.size)
    p_chunk_scratch = stack((GROUP // LANES + 1) * WIDEST_BOTH_WAYS * p_size)
    single_scratch = stack((1 + GROUPS) * WIDEST_BOTH_WAYS * p_size)
    row_of_chunks = pitch * p_size

    @inner
    def prefix_group(tile, left, width, first, stop, carries, apart, seen):
        """Carry the block's own prefix on over a group, the carries lying ``apart``."""
        for start in range(first, stop, LANES):
            count = least(LANES, stop - start)
            here = carries + (start - first) // LANES * apart
            for c in range(0, width, LANES):
                lanes = least(LANES, width - c)
                total, seen = prefix_total(tile, start, count, left + c, lanes, seen)
                carried = p_combine(p_read(here + 8 * c, pitch), total)
                p_write(here + apart + 8 * c, pitch, carried)
        return seen

    @inner
    def scan_tile(tile, left, width, outer):
        p, const, addresses, _, steps = tile
        extent, blocks = word(p, EXTENT), word(p, BLOCKS)
        block_box, chunk_box, carries = block_scratch(), chunk_scratch(), p_chunk_scratch()
        groups = (extent + GROUP - 1) // GROUP
        # A row of carries: for each component a plane of whole tiles. Those of a single block are
        # on the stack.
        plane = word(p, TILES) * word(p, TILE) * 8
        before_blocks = word(p, SCRATCH) + outer * (blocks + groups) * p_size * plane + left * 8
        if blocks == 1:
            before_blocks, plane = single_scratch(), pitch
        row_of_carries = p_size * plane
        before_groups = before_blocks + blocks * row_of_carries
        seen = nothing_seen()
        for c in range(0, width, LANES):
            row = fetch_row_columns(p, addresses, steps, left + c, least(LANES, width - c))
            write(block_box + 8 * c, pitch, begin(const, row))
            p_write(before_blocks + 8 * c, plane, p_begin(const, row))
        # All groups but the last in order, for the carries into them; then all from the last.
        for step in range(2 * groups - 1):
            back = step - (groups - 1)
            g = step if back < 0 else groups - 1 - back
            before_block = before_blocks + g // GROUPS * row_of_carries
            before_group = before_groups + g * row_of_carries
            first, stop = g * GROUP, least((g + 1) * GROUP, extent)
            for c in range(0, width, LANES):
                if g % GROUPS == 0:
                    p_write(before_group + 8 * c, plane, p_identity())
                p_write(carries + 8 * c, pitch, p_read(before_group + 8 * c, plane))
            apart = row_of_chunks if back >= 0 else 0
            seen = prefix_group(tile, left, width, first, stop, carries, apart, seen)
            if back < 0:
                for c in range(0, width, LANES):
                    after = p_read(carries + 8 * c, pitch)
                    if (g + 1) % GROUPS == 0:
                        after = p_combine(p_read(before_block + 8 * c, plane), after)
                        p_write(before_block + row_of_carries + 8 * c, plane, after)
                    else:
                        p_write(before_group + row_of_carries + 8 * c, plane, after)
                continue
            if back == 0 or (g + 1) % GROUPS == 0:
                for c in range(0, width, LANES):
                    write(chunk_box + 8 * c, pitch, identity())
            chunks = (stop - first + LANES - 1) // LANES
            for chunk_back in range(chunks):
                chunk = chunks - 1 - chunk_back
                start = first + chunk * LANES
                count = least(LANES, extent - start)
                for c in range(0, width, LANES):
                    lanes = least(LANES, width - c)
                    p_before = p_combine(
                        p_read(before_block + 8 * c, plane),
                        p_read(carries + chunk * row_of_chunks + 8 * c, pitch),
                    )
                    seen = look_at_carry(seen, p_before)
                    known, seen = prefix_states(tile, start, count, left + c, lanes, p_before, seen)
                    carried = read(chunk_box + 8 * c, pitch)
                    before = combine(read(block_box + 8 * c, pitch), carried)
                    total, seen = scan_chunk(
                        tile, start, count, left + c, lanes, before, known, seen
                    )
                    write(chunk_box + 8 * c, pitch, combine(carried, total))
            if g % GROUPS == 0:
                for c in range(0, width, LANES):
                    carry = combine(read(block_box + 8 * c, pitch), read(chunk_box + 8 * c, pitch))
                    write(block_box + 8 * c, pitch, carry)
        for c in range(0, width, LANES):
            lanes = least(LANES, width - c)
            carry = read(block_box + 8 * c, pitch)
            finish_columns(tile, left + c, lanes, carry)
        if not was_moderate(seen):
            set_word(p, STRAINED, 1)

    return scan_tile
