"""Scans with the eight lanes along the axis.

The axis is cut into chunks of 8, and blocks of ``SCAN_BLOCK``. A chunk is scanned by a tree of
fixed shape; the chunks of a block follow each other from the identity, and so do the blocks of a
row. A position's state is (block's carry, chunk's carry) and then its place in the chunk. That
order depends on the extent alone: the columns schedule builds the same one.

A row goes by the name ``line``, as in :mod:`.rows`.
"""

from __future__ import annotations

from ...formulas.record import ScanFormula
from ..codegen.block import index_of, is_streamed, least
from ..codegen.fold import Fold
from ..codegen.functions import inner
from ..codegen.lanes import LANES
from ..codegen.memory import set_word, word
from ..codegen.neighbours import fetch_along
from ..codegen.operands import Operands, fence
from ..codegen.vectors import (
    counting,
    first_lanes,
    free_of_nan,
    last_lanes,
    no_vectors,
    stack,
)
from ..codegen.watch import nothing_seen, was_moderate
from ..words import BLOCKS, EXTENT, SCRATCH, STRAINED, TURN
from .flush import flush
from .moderate_products import brought_to, carried_on, moderate_products, products_of_two
from .scan_parts import SCAN_BLOCK, ScanParts

# Blocks whose prefix is kept at a time: 8192 positions, which stay in the second-level cache.
GROUP = 16
# Blocks between what is scanned one way and what is asked for meanwhile: the chain from chunk to
# chunk leaves no room for waiting.
AHEAD = 2
# What comes before every position of a group: one plane for each component of the prefix.
PLANE = 8 * SCAN_BLOCK * GROUP


class RowScan:
    """Jitted pieces of a scan along rows; kernels are put together from them."""

    def __init__(self, formula: ScanFormula, element: str, operands: Operands, plain: bool):
        self.parts = ScanParts(formula, element, operands, plain)
        self.operands = operands
        self.flipped = flipped = operands.flipped
        self.lanes_of = last_lanes if flipped else first_lanes
        self.fetch = fetch_along(operands, self.parts.neighbours)

        @inner
        def indices(p, start):
            turn = word(p, TURN)
            if flipped:
                return counting(index_of(p, start + LANES - 1), -turn)
            return counting(index_of(p, start), turn)

        self.indices = indices

    def chunk_scan(self, downwards: bool, writes: bool):
        """Scan eight positions and write their outputs; gives their total and what was seen."""
        parts, operands = self.parts, self.operands
        fold, finish = parts.fold, parts.finish
        lift, combine, identity, keep = fold.lift, fold.combine, fold.identity, fold.keep
        scan_lanes = fold.lane_scan(downwards, parts.inclusive)
        fetch, indices, lanes_of = self.fetch, self.indices, self.lanes_of
        put_outputs, watch = operands.put_outputs, parts.watch
        look_at_gradient, look_at_carry = watch.gradient, watch.carry
        quiet = parts.quiet
        short_cut, wakes, widened = quiet.possible, quiet.wakes, quiet.widened
        quiet_lift, quiet_total = quiet.fold.lift, quiet.fold.lane_total(downwards)

        @inner
        def scan_chunk(line, start, count, known, block_carry, carried, seen):
            p, const, row, addresses, strides = line
            full = fetch(p, addresses, strides, start, count)
            seen = look_at_gradient(seen, full)
            index = indices(p, start)
            if short_cut and count == LANES and not wakes(index, const, full, row, known):
                if writes:
                    put_outputs(p, addresses, strides, start, count, no_vectors())
                total = widened(quiet_total(quiet_lift(index, const, full, row, known)))
                return total, seen
            lifted = lift(index, const, full, row, known)
            if count < LANES:
                lifted = keep(lanes_of(count), lifted, identity())
            states, total = scan_lanes(lifted)
            before = combine(block_carry, carried)
            seen = look_at_carry(seen, before)
            if writes:
                here = combine(before, states)
                value = finish(index, const, full, row, known + here)
                put_outputs(p, addresses, strides, start, count, value)
            return total, seen

        return scan_chunk

    def unguarded_pair(self, writes: bool):
        """Two chunks of a one-way scan, without guards: what is carried on, and whether it may.

        It may not where a NaN shows, and then nothing has been written. A NaN that the first of
        them passes on shows behind the second, so that one test serves both.
        """
        parts, operands = self.parts, self.operands
        fold, finish = parts.unguarded.fold, parts.unguarded.finish
        lift, combine = fold.lift, fold.combine
        scan_lanes, places = fold.lane_scans(self.flipped), self.places(fold)
        fetch, indices, put_outputs = self.fetch, self.indices, operands.put_outputs

        @inner
        def lifted(line, start, full):
            p, const, row, _, _ = line
            return lift(indices(p, start), const, full, row, no_vectors())

        @inner
        def finished(line, start, before, full, states):
            p, const, row, _, _ = line
            known = no_vectors() + places(before, states)
            return finish(indices(p, start), const, full, row, known)

        @inner
        def try_pair(line, start, block_carry, carried):
            p, _, _, addresses, strides = line
            second = start + LANES
            full1 = fetch(p, addresses, strides, start, LANES)
            full2 = fetch(p, addresses, strides, second, LANES)
            chunks = (lifted(line, start, full1), lifted(line, second, full2))
            (states1, states2), (total1, total2) = scan_lanes(chunks)
            between = combine(carried, total1)
            after = combine(between, total2)
            if not writes:
                return after, free_of_nan(after, no_vectors(), no_vectors())
            value1 = finished(line, start, combine(block_carry, carried), full1, states1)
            value2 = finished(line, second, combine(block_carry, between), full2, states2)
            fine = free_of_nan(after, value1, value2)
            if fine:
                put_outputs(p, addresses, strides, start, LANES, value1)
                put_outputs(p, addresses, strides, second, LANES, value2)
            return after, fine

        return try_pair

    def moderate_pair(self, writes: bool):
        """Two chunks of a running product, hardly scaled: what is carried on, and whether it may.

        It may not where one is not moderate, and then nothing has been written.
        """
        operands, fold = self.operands, self.parts.moderate
        lift, scan_lanes, moved = fold.lift, fold.lane_scans(self.flipped), None
        if not self.parts.inclusive:
            moved = fold.moved_on(self.flipped)
        fetch, indices, put_outputs = self.fetch, self.indices, operands.put_outputs
        two_are_moderate, _ = moderate_products(self.parts.element)
        brought = brought_to(self.parts.element)

        @inner
        def try_pair(line, start, block_carry, carried):
            p, const, row, addresses, strides = line
            second = start + LANES
            full1 = fetch(p, addresses, strides, start, LANES)
            full2 = fetch(p, addresses, strides, second, LANES)
            lifted = (
                lift(indices(p, start), const, full1, row, no_vectors()),
                lift(indices(p, second), const, full2, row, no_vectors()),
            )
            states, totals = scan_lanes(lifted)
            if not two_are_moderate(lifted, totals):
                return carried, False
            found = products_of_two(block_carry, carried, states, totals)
            (value1, value2), after, (before1, before2), by, e = found
            if writes:
                if moved is not None:
                    value1, value2 = moved(value1, before1), moved(value2, before2)
                value1, value2 = brought((value1, value2), by)
                put_outputs(p, addresses, strides, start, LANES, value1)
                put_outputs(p, addresses, strides, second, LANES, value2)
            return carried_on(after, e), True

        return try_pair

    def places(self, fold: Fold):
        """``places(before, states)``: the state that each place of a chunk sees.

        An exclusive scan moves them on by one place at the end: the factors need no moving.
        """
        combine, identity, moved = fold.combine, fold.identity, fold.moved_on(self.flipped)
        if self.parts.inclusive:
            return combine

        @inner
        def exclusive(before, states):
            return moved(combine(before, states), combine(before, identity()))

        return exclusive

    def chunks_scan(self, writes: bool):
        """The chunks of a block, one after the other; gives the block's own total."""
        scan_chunk = self.chunk_scan(self.flipped, writes)
        combine, identity = self.parts.fold.combine, self.parts.fold.identity
        prefetch = self.operands.prefetch()

        @inner
        def scan_chunks(line, first, stop, block_carry, ahead, next_first):
            nothing, unseen = no_vectors(), nothing_seen()
            carried = identity()
            whole = first + (stop - first) // LANES * LANES
            for start in range(first, whole, LANES):
                prefetch(ahead, next_first + start - first)
                total, _ = scan_chunk(line, start, LANES, nothing, block_carry, carried, unseen)
                carried = combine(carried, total)
            if whole < stop:
                count = stop - whole
                total, _ = scan_chunk(line, whole, count, nothing, block_carry, carried, unseen)
                carried = combine(carried, total)
            return carried

        if self.parts.unguarded is not None:
            try_pair = self.unguarded_pair(writes)
        elif self.parts.moderate is not None:
            try_pair = self.moderate_pair(writes)
        else:
            return scan_chunks
        # Two chunks of what is narrower than float64 fill a line of the caches at most.
        lines = self.operands.edge.item == 8

        @inner
        def try_chunks(line, first, stop, block_carry, ahead, next_first):
            nothing, unseen = no_vectors(), nothing_seen()
            carried, start = identity(), first
            while start < stop:
                while start + 2 * LANES <= stop:
                    prefetch(ahead, next_first + start - first)
                    if lines:
                        prefetch(ahead, next_first + start + LANES - first)
                    after, fine = try_pair(line, start, block_carry, carried)
                    if not fine:
                        break
                    carried = after
                    start += 2 * LANES
                if start < stop:
                    count = least(LANES, stop - start)
                    total, _ = scan_chunk(line, start, count, nothing, block_carry, carried, unseen)
                    carried = combine(carried, total)
                    start += LANES
            return carried

        return try_chunks

    def block_scan(self, writes: bool):
        """One block of a one-way scan; gives the block's own total."""
        scan_chunks = self.chunks_scan(writes)
        staging_box, stage, unstage = self.staging(writes)

        @inner
        def scan_block(line, b, block_carry, ahead, next_first):
            p, const, row, addresses, strides = line
            first, stop = b * SCAN_BLOCK, least((b + 1) * SCAN_BLOCK, word(p, EXTENT))
            box = staging_box()
            addresses, place = stage(p, addresses, first, stop, box)
            line = (p, const, row, addresses, strides)
            carried = scan_chunks(line, first, stop, block_carry, ahead, next_first)
            unstage(place, box, stop - first)
            return carried

        return scan_block

    def staging(self, writes: bool):
        """``stage`` and ``unstage``, around a block whose output is larger than the caches.

        Meanwhile the output of the block lies in a box, and the addresses say so.
        """
        # One box holds one output. Where a factor is carried along, memory has time to spare:
        # discounted sums took 9.1 ms with boxes and 7.8 without at 43 GB/s.
        possible = writes and self.operands.packed and len(self.operands.finished) == 1
        if not possible or self.parts.unguarded is not None:

            @inner
            def stay(p, addresses, first, stop, box):
                return addresses, 0

            @inner
            def leave(place, box, count):
                pass

            return stack(1), stay, leave
        item, move = self.operands.edge.item, self.operands.staged()

        @inner
        def stage(p, addresses, first, stop, box):
            staged, place = move(addresses, first, stop, box)
            if is_streamed(p, place):
                return staged, place
            return addresses, 0

        @inner
        def unstage(place, box, count):
            if place != 0:
                flush(place, box, count * item)

        return stack(SCAN_BLOCK), stage, unstage

    def prefix_block(self):
        """The prefix over one block from its carry, kept for every position in ``planes``.

        Gives the block's own total and what the watch has seen.
        """
        parts = self.parts
        prefix = parts.prefix
        lift, combine, identity, keep = prefix.lift, prefix.combine, prefix.identity, prefix.keep
        scan_lanes, write = prefix.lane_scan(self.flipped, False), prefix.write
        look_at_factor, look_at_carry = parts.watch.factor, parts.watch.carry
        selects, keeps = parts.selects, prefix.keeps
        fetch, indices, lanes_of = self.fetch, self.indices, self.lanes_of

        @inner
        def prefix_chunk(line, start, count, block_carry, carried, at, seen):
            p, const, row, addresses, strides = line
            full = fetch(p, addresses, strides, start, count)
            seen = look_at_factor(seen, full)
            lifted = lift(indices(p, start), const, full, row, row)
            if count < LANES:
                lifted = keep(lanes_of(count), lifted, identity())
            before = combine(block_carry, carried)
            if selects and keeps(before, lifted):
                write(at, PLANE, before)
                return carried, seen
            states, total = scan_lanes(lifted)
            seen = look_at_carry(seen, before)
            write(at, PLANE, combine(before, states))
            return combine(carried, total), seen

        @inner
        def prefix_block(line, b, block_carry, planes, seen):
            first = b * SCAN_BLOCK
            stop = least(first + SCAN_BLOCK, word(line[0], EXTENT))
            whole = first + (stop - first) // LANES * LANES
            carried = identity()
            for start in range(first, whole, LANES):
                at = planes + (start - first) * 8
                carried, seen = prefix_chunk(line, start, LANES, block_carry, carried, at, seen)
            if whole < stop:
                at, count = planes + (whole - first) * 8, stop - whole
                carried, seen = prefix_chunk(line, whole, count, block_carry, carried, at, seen)
            return carried, seen

        return prefix_block

    def back_block(self, writes: bool):
        """One block of a two-way scan from its end, the prefix being known."""
        parts = self.parts
        scan_chunk = self.chunk_scan(not self.flipped, writes)
        combine, identity = parts.fold.combine, parts.fold.identity
        read = parts.prefix.read
        staging_box, stage, unstage = self.staging(writes)

        @inner
        def back_block(line, b, block_carry, planes, seen):
            p, const, row, addresses, strides = line
            first = b * SCAN_BLOCK
            stop = least(first + SCAN_BLOCK, word(p, EXTENT))
            box = staging_box()
            addresses, place = stage(p, addresses, first, stop, box)
            line = (p, const, row, addresses, strides)
            whole = first + (stop - first) // LANES * LANES
            carried = identity()
            if whole < stop:
                before = read(planes + (whole - first) * 8, PLANE)
                known = no_vectors() + before
                count = stop - whole
                total, seen = scan_chunk(line, whole, count, known, block_carry, carried, seen)
                carried = combine(carried, total)
            for back in range((whole - first) // LANES):
                start = whole - (back + 1) * LANES
                before = read(planes + (start - first) * 8, PLANE)
                known = no_vectors() + before
                total, seen = scan_chunk(line, start, LANES, known, block_carry, carried, seen)
                carried = combine(carried, total)
            unstage(place, box, stop - first)
            return carried, seen

        return back_block


def make_scan_rows_kernel(formula: ScanFormula, element: str, operands: Operands, plain: bool):
    """``kernel(p, begin, end)`` over whole rows."""
    scan = RowScan(formula, element, operands, plain)
    if formula.prefix:
        return _both_ways(scan)
    scan_row = _one_way(scan)
    addresses_of, strides_of, fetch_rows = operands.addresses, operands.strides, operands.fetch_rows

    def kernel(p, begin, end):
        const = operands.constants(p)
        strides = strides_of(p)
        for unit in range(begin, end):
            addresses = addresses_of(p, unit)
            following = addresses_of(p, least(unit + 1, end - 1))
            scan_row((p, const, fetch_rows(addresses), addresses, strides), following)
        fence()

    return kernel


def _one_way(scan: RowScan):
    combine, start = scan.parts.fold.combine, scan.parts.start
    scan_block, finish_row = scan.block_scan(writes=True), row_end(scan)

    @inner
    def scan_row(line, following):
        p, const, row, addresses, _ = line
        carry = start(const, row)
        blocks = word(p, BLOCKS)
        for b in range(blocks):
            ahead, next_first = addresses, (b + AHEAD) * SCAN_BLOCK
            if b + AHEAD >= blocks:
                ahead, next_first = following, (b + AHEAD - blocks) * SCAN_BLOCK
            carry = combine(carry, scan_block(line, b, carry, ahead, next_first))
        finish_row(const, row, addresses, carry)

    return scan_row


def row_end(scan: RowScan):
    """``finish_row(const, row, addresses, carry)``: the outputs of the state behind a row."""
    if scan.parts.end is None:

        @inner
        def nothing(const, row, addresses, carry):
            pass

        return nothing
    end, store = scan.parts.end, scan.operands.store_ends

    @inner
    def finish_row(const, row, addresses, carry):
        store(addresses, end(const, row, no_vectors(), carry))

    return finish_row


def _both_ways(scan: RowScan):
    """The carry into every group is kept in the workspace, where there are several."""
    operands, start, p_start = scan.operands, scan.parts.start, scan.parts.prefix_start
    p_size, finish_row = scan.parts.prefix.size, row_end(scan)
    ways = BothWays(scan)
    sweep, allocate = ways.sweep(), ways.planes
    addresses_of, strides_of, fetch_rows = operands.addresses, operands.strides, operands.fetch_rows

    def kernel(p, begin, end):
        const, strides, blocks = operands.constants(p), strides_of(p), word(p, BLOCKS)
        groups = (blocks + GROUP - 1) // GROUP
        planes = allocate()
        for unit in range(begin, end):
            addresses = addresses_of(p, unit)
            row = fetch_rows(addresses)
            line = (p, const, row, addresses, strides)
            kept = word(p, SCRATCH) + unit * groups * p_size * 8
            before, carry = p_start(const, row), start(const, row)
            carry = sweep(line, 0, blocks, groups - 1, before, carry, kept, planes)
            finish_row(const, row, addresses, carry)
        fence()

    return kernel


class BothWays:
    """A prefix scan forwards and the scan itself backwards, group by group from the end."""

    def __init__(self, scan: RowScan):
        self.scan = scan
        self.prefix_block = scan.prefix_block()
        self.planes = stack(SCAN_BLOCK * GROUP * scan.parts.prefix.size)

    def sweep(self):
        """Scan a range of blocks.

        The first ``forwards`` steps go over groups in order, each leaving in ``kept`` the prefix
        carry into it; then all groups follow from the last, whose carry is at hand, to the first.
        Gives the state behind them all.
        """
        parts = self.scan.parts
        prefix, combine, look_at_row = parts.prefix, parts.fold.combine, parts.watch.row_gradient
        p_size, p_combine = prefix.size, prefix.combine
        p_read_one, p_write_one = prefix.read_one, prefix.write_one
        prefix_block, back_block = self.prefix_block, self.scan.back_block(writes=True)

        @inner
        def sweep(line, first, last, forwards, before, carry, kept, planes):
            seen = look_at_row(nothing_seen(), line[2])
            groups = (last - first + GROUP - 1) // GROUP
            for step in range(forwards + groups):
                back = step - forwards
                g = step if back < 0 else groups - 1 - back
                if back < 0:
                    p_write_one(kept + g * p_size * 8, before)
                elif back > 0:
                    before = p_read_one(kept + g * p_size * 8)
                start = first + g * GROUP
                stop = least(start + GROUP, last)
                for b in range(start, stop):
                    at = planes + (b - start) * 8 * SCAN_BLOCK
                    p_total, seen = prefix_block(line, b, before, at, seen)
                    before = p_combine(before, p_total)
                if back >= 0:
                    for k in range(stop - start):
                        b = stop - 1 - k
                        at = planes + (b - start) * 8 * SCAN_BLOCK
                        total, seen = back_block(line, b, carry, at, seen)
                        carry = combine(carry, total)
            if not was_moderate(seen):
                set_word(line[0], STRAINED, 1)
            return carry

        return sweep
