"""Scans with the eight lanes along the axis.

The axis is cut into chunks of 8, and blocks of ``SCAN_BLOCK``. A chunk is scanned by a tree of
fixed shape; the chunks of a block follow each other from the identity, and so do the blocks of a
row. A position's state is (block's carry, chunk's carry) and then its place in the chunk. That
order depends on the extent alone: the columns schedule builds the same one.
"""

from __future__ import annotations

from ...formulas.record import ScanFormula
from .access import Operands, constants
from .jit import inner
from .lanes import LANES
from .memory import BLOCKS, EXTENT, PARTS, SCRATCH, STRAINED, set_word, word
from .scan_parts import SCAN_BLOCK, ScanParts
from .vectors import counting, first_lanes, last_lanes, no_vectors, stack, tuple_intrinsics
from .watch import nothing_seen, was_moderate

VECTOR_BYTES = 8 * LANES
# What comes before every position of a block: one plane for each component of the prefix, behind a
# plane that stands for the empty first known value.
PLANE = 8 * SCAN_BLOCK


class RowScan:
    """Jitted pieces of a scan along rows; kernels are put together from them."""

    def __init__(self, formula: ScanFormula, element: str, operands: Operands, plain: bool):
        self.parts = ScanParts(formula, element, operands, plain)
        self.operands = operands
        self.flipped = flipped = operands.flipped
        self.lanes_of = last_lanes if flipped else first_lanes
        fetch_full = operands.fetch_full
        shifted = [n.endswith("_before") for n in operands.full]
        if any(shifted):
            self.fetch = self._fetch_with_neighbour()
        else:

            @inner
            def fetch(p, addresses, strides, start, count):
                return fetch_full(p, addresses, strides, start, count)

            self.fetch = fetch

        @inner
        def positions(start):
            return counting(start + LANES - 1, -1) if flipped else counting(start, 1)

        self.positions = positions

    def _fetch_with_neighbour(self):
        """Operands of a chunk; the last is the one before it in forward order, one further on."""
        operands = self.operands
        fetch_full = operands.fetch_full
        neighbour = operands.full_at.stop - 1
        read_last = operands.fetch_one(neighbour)
        swap = operands.replace_last()

        @inner
        def fetch(p, addresses, strides, start, count):
            full = fetch_full(p, addresses, strides, start, count)
            left = word(p, EXTENT) - start - 1
            return swap(full, read_last(p, addresses, strides, start + 1, min(count, left)))

        return fetch

    def chunk_scan(self, downwards: bool, writes: bool):
        """Scan eight positions and write their outputs; gives their total."""
        parts, operands = self.parts, self.operands
        fold, finish, extended = parts.fold, parts.finish, parts.extended
        lift, combine, identity, keep = fold.lift, fold.combine, fold.identity, fold.keep
        scan_lanes = fold.lane_scan(downwards, parts.inclusive)
        fetch, positions, lanes_of = self.fetch, self.positions, self.lanes_of
        put_outputs = operands.put_outputs

        @inner
        def scan_chunk(
            p, const, row, addresses, strides, start, count, known, block_carry, carried
        ):
            full = fetch(p, addresses, strides, start, count)
            index = positions(start)
            lifted = lift(index, const, full, row, known)
            if count < LANES:
                lifted = keep(lanes_of(count), lifted, identity())
            states, total = scan_lanes(lifted)
            if writes:
                here = combine(combine(block_carry, carried), states)
                value = finish(index, const, full, row, extended(known, here))
                put_outputs(p, addresses, strides, start, count, value)
            return total

        return scan_chunk

    def block_scan(self, writes: bool):
        """One block of a one-way scan; gives the block's own total."""
        scan_chunk = self.chunk_scan(self.flipped, writes)
        combine, identity = self.parts.fold.combine, self.parts.fold.identity

        @inner
        def scan_block(p, const, row, addresses, strides, b, block_carry):
            stop = min((b + 1) * SCAN_BLOCK, word(p, EXTENT))
            nothing = no_vectors()
            carried = identity()
            whole = b * SCAN_BLOCK + (stop - b * SCAN_BLOCK) // LANES * LANES
            for start in range(b * SCAN_BLOCK, whole, LANES):
                total = scan_chunk(
                    p, const, row, addresses, strides, start, LANES, nothing, block_carry, carried
                )
                carried = combine(carried, total)
            if whole < stop:
                total = scan_chunk(
                    p, const, row, addresses, strides, whole, stop - whole, nothing, block_carry,
                    carried,
                )  # fmt: skip
                carried = combine(carried, total)
            return carried

        return scan_block

    def prefix_block(self):
        """The prefix over one block from its carry, kept for every position in ``planes``.

        Gives the block's own total and what the watch has seen.
        """
        parts = self.parts
        prefix = parts.prefix
        lift, combine, identity, keep = prefix.lift, prefix.combine, prefix.identity, prefix.keep
        scan_lanes, write = prefix.lane_scan(self.flipped, False), prefix.write
        watch_factor, watch_carry = parts.watch_factor, parts.watch_carry
        fetch, positions, lanes_of = self.fetch, self.positions, self.lanes_of

        @inner
        def prefix_chunk(
            p, const, row, addresses, strides, start, count, block_carry, carried, at, seen
        ):
            full = fetch(p, addresses, strides, start, count)
            seen = watch_factor(seen, full)
            lifted = lift(positions(start), const, full, row, row)
            if count < LANES:
                lifted = keep(lanes_of(count), lifted, identity())
            states, total = scan_lanes(lifted)
            before = combine(block_carry, carried)
            seen = watch_carry(seen, before)
            write(at, PLANE, combine(before, states))
            return combine(carried, total), seen

        @inner
        def prefix_block(p, const, row, addresses, strides, b, block_carry, planes, seen):
            first = b * SCAN_BLOCK
            stop = min(first + SCAN_BLOCK, word(p, EXTENT))
            whole = first + (stop - first) // LANES * LANES
            carried = identity()
            for start in range(first, whole, LANES):
                at = planes + PLANE + (start - first) * 8
                carried, seen = prefix_chunk(
                    p, const, row, addresses, strides, start, LANES, block_carry, carried, at, seen
                )
            if whole < stop:
                at = planes + PLANE + (whole - first) * 8
                carried, seen = prefix_chunk(
                    p, const, row, addresses, strides, whole, stop - whole, block_carry, carried,
                    at, seen,
                )  # fmt: skip
            return carried, seen

        return prefix_block

    def back_block(self):
        """One block of a two-way scan from its end, the prefix being known."""
        parts = self.parts
        scan_chunk = self.chunk_scan(not self.flipped, writes=True)
        combine, identity, watch_carry = parts.fold.combine, parts.fold.identity, parts.watch_carry
        read_known = tuple_intrinsics(parts.known_size)[0]

        @inner
        def back_block(p, const, row, addresses, strides, b, block_carry, planes, seen):
            first = b * SCAN_BLOCK
            stop = min(first + SCAN_BLOCK, word(p, EXTENT))
            whole = first + (stop - first) // LANES * LANES
            carried = identity()
            if whole < stop:
                known = read_known(planes + (whole - first) * 8, PLANE)
                total = scan_chunk(
                    p, const, row, addresses, strides, whole, stop - whole, known, block_carry,
                    carried,
                )  # fmt: skip
                carried = combine(carried, total)
            for back in range((whole - first) // LANES):
                start = whole - (back + 1) * LANES
                known = read_known(planes + (start - first) * 8, PLANE)
                total = scan_chunk(
                    p, const, row, addresses, strides, start, LANES, known, block_carry, carried
                )
                carried = combine(carried, total)
                seen = watch_carry(seen, carried)
            return carried, seen

        return back_block


def make_scan_rows_kernel(formula: ScanFormula, element: str, operands: Operands, plain: bool):
    """``kernel(p, begin, end)`` over whole rows."""
    scan = RowScan(formula, element, operands, plain)
    scan_row = _both_ways(scan) if formula.prefix else _one_way(scan)
    addresses_of, strides_of, fetch_rows = operands.addresses, operands.strides, operands.fetch_rows

    def kernel(p, begin, end):
        const = constants(p)
        strides = strides_of(p)
        for unit in range(begin, end):
            addresses = addresses_of(p, unit)
            scan_row(p, const, fetch_rows(addresses), addresses, strides, unit)

    return kernel


def _one_way(scan: RowScan):
    combine, identity = scan.parts.fold.combine, scan.parts.fold.identity
    scan_block = scan.block_scan(writes=True)

    @inner
    def scan_row(p, const, row, addresses, strides, unit):
        carry = identity()
        for b in range(word(p, BLOCKS)):
            carry = combine(carry, scan_block(p, const, row, addresses, strides, b, carry))

    return scan_row


def _both_ways(scan: RowScan):
    """A prefix scan forwards and the scan itself backwards, block by block from the end.

    The prefix carry into every block is kept in the workspace where there are several.
    """
    fold, prefix = scan.parts.fold, scan.parts.prefix
    combine, identity = fold.combine, fold.identity
    p_combine, p_identity, p_size = prefix.combine, prefix.identity, prefix.size
    p_read_one, p_write_one = prefix.read_one, prefix.write_one
    prefix_block, back_block = scan.prefix_block(), scan.back_block()
    p_box = stack(SCAN_BLOCK * (1 + p_size))

    @inner
    def scan_row(p, const, row, addresses, strides, unit):
        blocks = word(p, BLOCKS)
        planes = p_box()
        seen = nothing_seen()
        kept = word(p, SCRATCH) + unit * blocks * p_size * 8
        before = p_identity()
        for b in range(blocks - 1):
            p_write_one(kept + b * p_size * 8, before)
            total, seen = prefix_block(p, const, row, addresses, strides, b, before, planes, seen)
            before = p_combine(before, total)
        carry = identity()
        for step in range(blocks):
            b = blocks - 1 - step
            if step > 0:
                before = p_read_one(kept + b * p_size * 8)
            _, seen = prefix_block(p, const, row, addresses, strides, b, before, planes, seen)
            total, seen = back_block(p, const, row, addresses, strides, b, carry, planes, seen)
            carry = combine(carry, total)
        if not was_moderate(seen):
            set_word(p, STRAINED, 1)

    return scan_row


def make_scan_totals_kernel(formula: ScanFormula, element: str, operands: Operands):
    """Totals of blocks of a one-way scan, for rows cut over threads.

    A unit is a block of a row; the blocks of the last part of a row are not needed by any other.
    """
    scan = RowScan(formula, element, operands, plain=False)
    identity, size = scan.parts.fold.identity, scan.parts.fold.size
    write_one = scan.parts.fold.write_one
    scan_block = scan.block_scan(writes=False)
    addresses_of, strides_of, fetch_rows = operands.addresses, operands.strides, operands.fetch_rows

    def kernel(p, begin, end):
        const = constants(p)
        strides = strides_of(p)
        blocks, parts = word(p, BLOCKS), word(p, PARTS)
        counted = min(blocks, (parts - 1) * ((blocks + parts - 1) // parts))
        for unit in range(begin, end):
            index, b = unit // counted, unit % counted
            addresses = addresses_of(p, index)
            row = fetch_rows(addresses)
            total = scan_block(p, const, row, addresses, strides, b, identity())
            write_one(word(p, SCRATCH) + (index * blocks + b) * size * 8, total)

    return kernel


def make_scan_parts_kernel(formula: ScanFormula, element: str, operands: Operands):
    """A one-way scan over parts of rows, each from the totals of the blocks before it."""
    scan = RowScan(formula, element, operands, plain=False)
    fold = scan.parts.fold
    combine, identity, size, read_one = fold.combine, fold.identity, fold.size, fold.read_one
    scan_block = scan.block_scan(writes=True)
    addresses_of, strides_of, fetch_rows = operands.addresses, operands.strides, operands.fetch_rows

    def kernel(p, begin, end):
        const = constants(p)
        strides = strides_of(p)
        blocks, parts = word(p, BLOCKS), word(p, PARTS)
        share = (blocks + parts - 1) // parts
        for unit in range(begin, end):
            index, part = unit // parts, unit % parts
            addresses = addresses_of(p, index)
            row = fetch_rows(addresses)
            first = min(part * share, blocks)
            carry = identity()
            for b in range(first):
                total = read_one(word(p, SCRATCH) + (index * blocks + b) * size * 8)
                carry = combine(carry, total)
            for b in range(first, min(first + share, blocks)):
                carry = combine(carry, scan_block(p, const, row, addresses, strides, b, carry))

    return kernel
