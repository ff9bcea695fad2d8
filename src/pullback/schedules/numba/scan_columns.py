"""Scans with the eight lanes across columns, chunk by chunk down a tile.

The carries of a tile are rows of states in scratch; the order of every combination is that of
:mod:`.scan_rows`.
"""

from __future__ import annotations

from ...formulas.record import ScanFormula
from .access import Operands, constants
from .jit import inner
from .lanes import LANES
from .memory import BLOCKS, COLUMNS, EXTENT, SCRATCH, STRAINED, TILE, TILES, set_word, word
from .scan_parts import SCAN_BLOCK, ScanParts, make_places
from .vectors import counting, no_vectors, stack, tuple_intrinsics
from .watch import nothing_seen, was_moderate

# Columns per tile at most; the carries of the 64 chunks of a block are then 128 KB a component.
WIDEST_SCAN_TILE = 256
PITCH = 8 * WIDEST_SCAN_TILE
CHUNKS = SCAN_BLOCK // LANES
VECTOR_BYTES = 8 * LANES
# Bytes between the components of the eight states of a chunk.
APART = LANES * VECTOR_BYTES


def make_scan_columns_kernel(formula: ScanFormula, element: str, operands: Operands, plain: bool):
    """``kernel(p, begin, end)`` over tiles of columns."""
    parts = ScanParts(formula, element, operands, plain)
    scan_tile = _both_ways(parts, operands) if parts.prefix else _one_way(parts, operands)
    all_addresses, all_strides = operands.addresses, operands.strides
    column_strides = operands.column_strides

    def kernel(p, begin, end):
        const = constants(p)
        strides, steps = all_strides(p), column_strides(p)
        tile, tiles, columns = word(p, TILE), word(p, TILES), word(p, COLUMNS)
        for unit in range(begin, end):
            outer = unit // tiles
            left = unit % tiles * tile
            width = min(tile, columns - left)
            scan_tile(p, const, all_addresses(p, outer), strides, steps, left, width, outer)

    return kernel


def _make_scan_chunk(parts: ScanParts, operands: Operands, descending: bool):
    """Scan up to eight positions of eight columns and write the outputs.

    Gives their total and what was seen.
    """
    fold = parts.fold
    lift, combine, identity = fold.lift, fold.combine, fold.identity
    read, write, scan_states = fold.read, fold.write, fold.scan_chunk
    finish, extended, inclusive = parts.finish, parts.extended, parts.inclusive
    places = make_places(operands)
    fetch_columns, fetch_row_columns = operands.fetch_columns, operands.fetch_row_columns
    put_columns = operands.put_columns
    read_known = tuple_intrinsics(parts.known_size)[0]
    state_box = stack(LANES * LANES * fold.size)
    watch = parts.watch
    look_at_gradient, look_at_row, look_at_carry = watch.gradient, watch.row_gradient, watch.carry

    @inner
    def scan_chunk(
        p, const, addresses, strides, steps, start, count, column, lanes, before, known_box, seen
    ):
        extent = word(p, EXTENT)
        states = state_box()
        row = fetch_row_columns(p, addresses, steps, column, lanes)
        seen = look_at_carry(look_at_row(seen, row), before)
        if count < LANES:
            for turn in range(LANES):
                write(states + turn * VECTOR_BYTES, APART, identity())
        for k in range(count):
            turn = LANES - 1 - k if descending else k
            at = places(addresses, strides, start + k, extent)
            full = fetch_columns(p, at, steps, column, lanes)
            seen = look_at_gradient(seen, full)
            known = read_known(known_box + k * VECTOR_BYTES, APART)
            lifted = lift(counting(start + k, 0), const, full, row, known)
            write(states + turn * VECTOR_BYTES, APART, lifted)
        scan_states(states, APART)
        for step in range(count):
            k = count - 1 - step if descending else step
            turn = LANES - 1 - k if descending else k
            at = places(addresses, strides, start + k, extent)
            full = fetch_columns(p, at, steps, column, lanes)
            known = read_known(known_box + k * VECTOR_BYTES, APART)
            own = turn if inclusive else turn - 1
            state = identity()
            if own >= 0:
                state = read(states + own * VECTOR_BYTES, APART)
            here = extended(known, combine(before, state))
            value = finish(counting(start + k, 0), const, full, row, here)
            put_columns(p, at, steps, column, lanes, value)
        return read(states + (LANES - 1) * VECTOR_BYTES, APART), seen

    return scan_chunk


def _one_way(parts: ScanParts, operands: Operands):
    fold = parts.fold
    combine, identity, read, write = fold.combine, fold.identity, fold.read, fold.write
    scan_chunk = _make_scan_chunk(parts, operands, descending=False)
    block_scratch = stack(WIDEST_SCAN_TILE * fold.size)
    chunk_scratch = stack(WIDEST_SCAN_TILE * fold.size)
    known_scratch = stack(LANES * LANES)

    @inner
    def scan_tile(p, const, addresses, strides, steps, left, width, outer):
        extent = word(p, EXTENT)
        block_box, chunk_box, known_box = block_scratch(), chunk_scratch(), known_scratch()
        for c in range(0, width, LANES):
            write(block_box + 8 * c, PITCH, identity())
        for b in range(word(p, BLOCKS)):
            for c in range(0, width, LANES):
                write(chunk_box + 8 * c, PITCH, identity())
            for start in range(b * SCAN_BLOCK, min((b + 1) * SCAN_BLOCK, extent), LANES):
                count = min(LANES, extent - start)
                for c in range(0, width, LANES):
                    carried = read(chunk_box + 8 * c, PITCH)
                    before = combine(read(block_box + 8 * c, PITCH), carried)
                    lanes = min(LANES, width - c)
                    total, _ = scan_chunk(
                        p, const, addresses, strides, steps, start, count, left + c, lanes, before,
                        known_box, nothing_seen(),
                    )  # fmt: skip
                    write(chunk_box + 8 * c, PITCH, combine(carried, total))
            for c in range(0, width, LANES):
                carry = combine(read(block_box + 8 * c, PITCH), read(chunk_box + 8 * c, PITCH))
                write(block_box + 8 * c, PITCH, carry)

    return scan_tile


def _make_prefix_chunk(parts: ScanParts, operands: Operands):
    """The prefix total of a chunk, its states left in scratch; and what comes before each."""
    prefix = parts.prefix
    assert prefix is not None
    lift, combine, identity = prefix.lift, prefix.combine, prefix.identity
    read, write, scan_states = prefix.read, prefix.write, prefix.scan_chunk
    look_at_factor = parts.watch.factor
    places = make_places(operands)
    fetch_columns = operands.fetch_columns

    @inner
    def prefix_chunk(
        p, const, addresses, strides, steps, start, count, column, lanes, states, seen
    ):
        extent = word(p, EXTENT)
        if count < LANES:
            for k in range(LANES):
                write(states + k * VECTOR_BYTES, APART, identity())
        for k in range(count):
            at = places(addresses, strides, start + k, extent)
            full = fetch_columns(p, at, steps, column, lanes)
            seen = look_at_factor(seen, full)
            lifted = lift(counting(start + k, 0), const, full, no_vectors(), no_vectors())
            write(states + k * VECTOR_BYTES, APART, lifted)
        scan_states(states, APART)
        return read(states + (LANES - 1) * VECTOR_BYTES, APART), seen

    @inner
    def keep_before(states, before, box):
        """What comes before each of the eight positions, the chunk's carry included."""
        write(box, APART, combine(before, identity()))
        for k in range(1, LANES):
            state = read(states + (k - 1) * VECTOR_BYTES, APART)
            write(box + k * VECTOR_BYTES, APART, combine(before, state))

    return prefix_chunk, keep_before


def _both_ways(parts: ScanParts, operands: Operands):
    """A prefix scan down the tile and the scan itself up, block by block from the end.

    The prefix carry into every block is kept in the workspace, the one into every chunk of the
    current block on the stack.
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
    p_size = prefix.size
    look_at_carry = parts.watch.carry
    prefix_chunk, keep_before = _make_prefix_chunk(parts, operands)
    scan_chunk = _make_scan_chunk(parts, operands, descending=True)
    block_scratch = stack(WIDEST_SCAN_TILE * fold.size)
    chunk_scratch = stack(WIDEST_SCAN_TILE * fold.size)
    p_chunk_scratch = stack((CHUNKS + 1) * WIDEST_SCAN_TILE * p_size)
    known_scratch = stack(LANES * LANES * (1 + p_size))
    single_scratch = stack(WIDEST_SCAN_TILE * p_size)
    state_scratch = stack(LANES * LANES * p_size)
    row_of_chunks = PITCH * p_size

    @inner
    def prefix_block(p, const, addresses, strides, steps, left, width, b, p_chunks, states, seen):
        """Carries of the block's own prefix into each chunk, and after the last."""
        first, stop = b * SCAN_BLOCK, min((b + 1) * SCAN_BLOCK, word(p, EXTENT))
        for c in range(0, width, LANES):
            p_write(p_chunks + 8 * c, PITCH, p_identity())
        for start in range(first, stop, LANES):
            here = p_chunks + (start - first) // LANES * row_of_chunks
            count = min(LANES, stop - start)
            for c in range(0, width, LANES):
                lanes = min(LANES, width - c)
                total, seen = prefix_chunk(
                    p, const, addresses, strides, steps, start, count, left + c, lanes, states, seen
                )
                carried = p_combine(p_read(here + 8 * c, PITCH), total)
                p_write(here + row_of_chunks + 8 * c, PITCH, carried)
        return seen

    @inner
    def scan_tile(p, const, addresses, strides, steps, left, width, outer):
        extent, blocks = word(p, EXTENT), word(p, BLOCKS)
        block_box, chunk_box, p_chunks = block_scratch(), chunk_scratch(), p_chunk_scratch()
        known_box, states = known_scratch(), state_scratch()
        # Row b of the kept carries: for each component a plane of whole tiles. A single block
        # has none to keep, and its carry is read from the stack.
        plane = word(p, TILES) * word(p, TILE) * 8
        kept = word(p, SCRATCH) + outer * blocks * p_size * plane + left * 8
        if blocks == 1:
            kept, plane = single_scratch(), PITCH
        seen = nothing_seen()
        for c in range(0, width, LANES):
            write(block_box + 8 * c, PITCH, identity())
            p_write(kept + 8 * c, plane, p_identity())
        for b in range(blocks - 1):
            seen = prefix_block(
                p, const, addresses, strides, steps, left, width, b, p_chunks, states, seen
            )
            row = kept + b * p_size * plane
            for c in range(0, width, LANES):
                total = p_read(p_chunks + CHUNKS * row_of_chunks + 8 * c, PITCH)
                after = p_combine(p_read(row + 8 * c, plane), total)
                p_write(row + p_size * plane + 8 * c, plane, after)
        for back in range(blocks):
            b = blocks - 1 - back
            row = kept + b * p_size * plane
            seen = prefix_block(
                p, const, addresses, strides, steps, left, width, b, p_chunks, states, seen
            )
            for c in range(0, width, LANES):
                write(chunk_box + 8 * c, PITCH, identity())
            first = b * SCAN_BLOCK
            chunks = (min(SCAN_BLOCK, extent - first) + LANES - 1) // LANES
            for chunk_back in range(chunks):
                chunk = chunks - 1 - chunk_back
                start = first + chunk * LANES
                count = min(LANES, extent - start)
                for c in range(0, width, LANES):
                    lanes = min(LANES, width - c)
                    p_before = p_combine(
                        p_read(row + 8 * c, plane),
                        p_read(p_chunks + chunk * row_of_chunks + 8 * c, PITCH),
                    )
                    seen = look_at_carry(seen, p_before)
                    _, seen = prefix_chunk(
                        p,
                        const,
                        addresses,
                        strides,
                        steps,
                        start,
                        count,
                        left + c,
                        lanes,
                        states,
                        seen,
                    )
                    keep_before(states, p_before, known_box + APART)
                    carried = read(chunk_box + 8 * c, PITCH)
                    before = combine(read(block_box + 8 * c, PITCH), carried)
                    total, seen = scan_chunk(
                        p, const, addresses, strides, steps, start, count, left + c, lanes, before,
                        known_box, seen,
                    )  # fmt: skip
                    carried = combine(carried, total)
                    write(chunk_box + 8 * c, PITCH, carried)
            for c in range(0, width, LANES):
                carry = combine(read(block_box + 8 * c, PITCH), read(chunk_box + 8 * c, PITCH))
                write(block_box + 8 * c, PITCH, carry)
        if not was_moderate(seen):
            set_word(p, STRAINED, 1)

    return scan_tile
