"""Scans with the eight lanes across columns, chunk by chunk down a tile.

The carries of a tile are rows of states in scratch; the order of every combination is that of
:mod:`.scan_rows`.
"""

from __future__ import annotations

from ...formulas.record import ScanFormula
from .access import Operands, constants
from .jit import inner
from .lanes import LANES
from .memory import BLOCKS, COLUMNS, EXTENT, SCRATCH, TILE, TILES, word
from .scan_rows import SCAN_BLOCK, ScanParts
from .vectors import counting, no_vectors, stack, tuple_intrinsics

# Columns per tile at most; the carries of the 64 chunks of a block are then 128 KB a component.
WIDEST_SCAN_TILE = 256
PITCH = 8 * WIDEST_SCAN_TILE
CHUNKS = SCAN_BLOCK // LANES
VECTOR_BYTES = 8 * LANES


def make_scan_columns_kernel(formula: ScanFormula, element: str, operands: Operands):
    """``kernel(p, begin, end)`` over tiles of columns."""
    parts = ScanParts(formula, element, operands)
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


def make_fetch_at(operands: Operands):
    """Read the full operands of one position; ``y_before`` is one position further on.

    At the end of the axis there is nothing further on, and what is read in its place never reaches
    an output.
    """
    shift = "min(index + 1, extent - 1)"
    parts = ", ".join(
        f"addresses[{o}] + ({shift if name.endswith('_before') else 'index'}) * strides[{o}]"
        for o, name in enumerate((*operands.full, *operands.row, *operands.outputs))
    )
    made: dict = {}
    exec(f"def places(addresses, strides, index, extent): return ({parts},)", {}, made)
    return inner(made["places"])


def _make_scan_chunk(parts: ScanParts, operands: Operands, descending: bool):
    """Scan up to eight positions of up to eight columns and write the outputs.

    ``chunk_carry`` is what the block has passed on so far; gives what it passes on after.
    """
    fold = parts.fold
    lift, combine, identity = fold.lift, fold.combine, fold.identity
    read, write = fold.read, fold.write
    finish, extended, inclusive = parts.finish, parts.extended, parts.inclusive
    places = make_fetch_at(operands)
    fetch_columns, fetch_row_columns = operands.fetch_columns, operands.fetch_row_columns
    put_columns = operands.put_columns
    known_size = 1 + (parts.prefix.size if parts.prefix else 0)
    read_known = tuple_intrinsics(known_size)[0]
    state_box = stack(LANES * LANES * fold.size)
    apart = LANES * VECTOR_BYTES

    @inner
    def scan_chunk(
        p, const, addresses, strides, steps, start, count, column, lanes,
        block_carry, chunk_carry, known_box, known_pitch,
    ):  # fmt: skip
        extent = word(p, EXTENT)
        states = state_box()
        row = fetch_row_columns(p, addresses, steps, column, lanes)
        state = identity()
        for step in range(count):
            k = count - 1 - step if descending else step
            at = places(addresses, strides, start + k, extent)
            full = fetch_columns(p, at, steps, column, lanes)
            known = read_known(known_box + k * VECTOR_BYTES, known_pitch)
            lifted = lift(counting(start + k, 0), const, full, row, known)
            after = combine(state, lifted)
            write(states + k * VECTOR_BYTES, apart, after if inclusive else state)
            state = after
        before = combine(block_carry, chunk_carry)
        for step in range(count):
            k = count - 1 - step if descending else step
            at = places(addresses, strides, start + k, extent)
            full = fetch_columns(p, at, steps, column, lanes)
            known = read_known(known_box + k * VECTOR_BYTES, known_pitch)
            here = combine(before, read(states + k * VECTOR_BYTES, apart))
            value = finish(counting(start + k, 0), const, full, row, extended(known, here))
            put_columns(p, at, steps, column, lanes, value)
        return combine(chunk_carry, state)

    return scan_chunk


def _one_way(parts: ScanParts, operands: Operands):
    fold = parts.fold
    combine, identity, read, write = fold.combine, fold.identity, fold.read, fold.write
    scan_chunk = _make_scan_chunk(parts, operands, descending=False)
    block_scratch = stack(WIDEST_SCAN_TILE * fold.size)
    chunk_scratch = stack(WIDEST_SCAN_TILE * fold.size)

    @inner
    def scan_tile(p, const, addresses, strides, steps, left, width, outer):
        extent = word(p, EXTENT)
        block_box, chunk_box = block_scratch(), chunk_scratch()
        for c in range(0, width, LANES):
            write(block_box + 8 * c, PITCH, identity())
        for b in range(word(p, BLOCKS)):
            for c in range(0, width, LANES):
                write(chunk_box + 8 * c, PITCH, identity())
            for start in range(b * SCAN_BLOCK, min((b + 1) * SCAN_BLOCK, extent), LANES):
                count = min(LANES, extent - start)
                for c in range(0, width, LANES):
                    carried = scan_chunk(
                        p, const, addresses, strides, steps, start, count,
                        left + c, min(LANES, width - c),
                        read(block_box + 8 * c, PITCH), read(chunk_box + 8 * c, PITCH),
                        block_box, 0,
                    )  # fmt: skip
                    write(chunk_box + 8 * c, PITCH, carried)
            for c in range(0, width, LANES):
                carry = combine(read(block_box + 8 * c, PITCH), read(chunk_box + 8 * c, PITCH))
                write(block_box + 8 * c, PITCH, carry)

    return scan_tile


def _make_prefix_chunk(parts: ScanParts, operands: Operands):
    """The prefix total of a chunk, and what comes before each of its positions."""
    prefix = parts.prefix
    assert prefix is not None
    lift, combine, identity, write = prefix.lift, prefix.combine, prefix.identity, prefix.write
    places = make_fetch_at(operands)
    fetch_columns = operands.fetch_columns
    apart = LANES * VECTOR_BYTES

    @inner
    def prefix_chunk(p, const, addresses, strides, steps, start, count, column, lanes, before, box):
        extent = word(p, EXTENT)
        state = identity()
        for k in range(count):
            full = fetch_columns(p, places(addresses, strides, start + k, extent), steps, column, lanes)
            write(box + k * VECTOR_BYTES, apart, combine(before, state))
            state = combine(state, lift(counting(start + k, 0), const, full, no_vectors(), no_vectors()))
        return state

    return prefix_chunk


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
    prefix_chunk = _make_prefix_chunk(parts, operands)
    scan_chunk = _make_scan_chunk(parts, operands, descending=True)
    block_scratch = stack(WIDEST_SCAN_TILE * fold.size)
    chunk_scratch = stack(WIDEST_SCAN_TILE * fold.size)
    p_chunk_scratch = stack((CHUNKS + 1) * WIDEST_SCAN_TILE * p_size)
    known_scratch = stack(LANES * LANES * (1 + p_size))
    single_scratch = stack(WIDEST_SCAN_TILE * p_size)
    apart = LANES * VECTOR_BYTES
    row_of_chunks = PITCH * p_size

    @inner
    def prefix_block(p, const, addresses, strides, steps, left, width, b, p_chunks, known):
        """Carries of the block's own prefix into each chunk, and after the last."""
        extent = word(p, EXTENT)
        first, stop = b * SCAN_BLOCK, min((b + 1) * SCAN_BLOCK, extent)
        for c in range(0, width, LANES):
            p_write(p_chunks + 8 * c, PITCH, p_identity())
        for start in range(first, stop, LANES):
            here = p_chunks + (start - first) // LANES * row_of_chunks
            for c in range(0, width, LANES):
                carried = p_read(here + 8 * c, PITCH)
                total = prefix_chunk(
                    p, const, addresses, strides, steps, start, min(LANES, stop - start),
                    left + c, min(LANES, width - c), carried, known,
                )  # fmt: skip
                p_write(here + row_of_chunks + 8 * c, PITCH, p_combine(carried, total))

    @inner
    def scan_tile(p, const, addresses, strides, steps, left, width, outer):
        extent, blocks = word(p, EXTENT), word(p, BLOCKS)
        block_box, chunk_box, p_chunks = block_scratch(), chunk_scratch(), p_chunk_scratch()
        known_box = known_scratch()
        # Row b of the kept carries: for each component a plane of whole tiles. A single block
        # has none to keep, and its carry is read from the stack.
        plane = word(p, TILES) * word(p, TILE) * 8
        kept = word(p, SCRATCH) + outer * blocks * p_size * plane + left * 8
        if blocks == 1:
            kept, plane = single_scratch(), PITCH
        for c in range(0, width, LANES):
            write(block_box + 8 * c, PITCH, identity())
            p_write(kept + 8 * c, plane, p_identity())
        for b in range(blocks - 1):
            prefix_block(p, const, addresses, strides, steps, left, width, b, p_chunks, known_box)
            row = kept + b * p_size * plane
            for c in range(0, width, LANES):
                total = p_read(p_chunks + CHUNKS * row_of_chunks + 8 * c, PITCH)
                before = p_read(row + 8 * c, plane)
                p_write(row + p_size * plane + 8 * c, plane, p_combine(before, total))
        for back in range(blocks):
            b = blocks - 1 - back
            row = kept + b * p_size * plane
            prefix_block(p, const, addresses, strides, steps, left, width, b, p_chunks, known_box)
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
                    before = p_combine(
                        p_read(row + 8 * c, plane),
                        p_read(p_chunks + chunk * row_of_chunks + 8 * c, PITCH),
                    )
                    prefix_chunk(
                        p, const, addresses, strides, steps, start, count,
                        left + c, lanes, before, known_box + apart,
                    )  # fmt: skip
                    carried = scan_chunk(
                        p, const, addresses, strides, steps, start, count, left + c, lanes,
                        read(block_box + 8 * c, PITCH), read(chunk_box + 8 * c, PITCH),
                        known_box, apart,
                    )  # fmt: skip
                    write(chunk_box + 8 * c, PITCH, carried)
            for c in range(0, width, LANES):
                carry = combine(read(block_box + 8 * c, PITCH), read(chunk_box + 8 * c, PITCH))
                write(block_box + 8 * c, PITCH, carry)

    return scan_tile
