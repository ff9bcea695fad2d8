"""Scans with the eight lanes along the axis.

The axis is cut into chunks of 8, and blocks of ``SCAN_BLOCK``. A chunk is scanned from the identity;
so are the chunks of a block, and the blocks of a row, always one after the other. A position's state
is (block's carry, chunk's carry) and then its place in the chunk. That order depends on the extent
alone: the columns schedule builds the same one.
"""

from __future__ import annotations

from ...formulas.record import ScanFormula
from .access import Operands, constants
from .bind import Fold, per_element
from .groups import GROUP, GROUP_BYTES, group_mask, make_group_load, make_group_store
from .jit import inner
from .lanes import LANES
from .memory import BLOCKS, EXTENT, SCRATCH, word
from .vectors import concatenate, counting, only_lane, parameters, stack, tuple_intrinsics

SCAN_BLOCK = 512
GROUPS = SCAN_BLOCK // GROUP
VECTOR_BYTES = 8 * LANES


class ScanParts:
    """A scan formula bound to an element type, shared by both schedules."""

    def __init__(self, formula: ScanFormula, element: str, operands: Operands):
        full, row = operands.full, operands.row
        self.prefix = Fold(formula.prefix, element, full, row) if formula.prefix else None
        known = ("", *(self.prefix.state if self.prefix else ()))
        self.fold = Fold(formula.monoid, element, full, row, known)
        names = (*known, *self.fold.state)
        self.finish = per_element(formula.finish, element, full, row, names, len(operands.outputs))
        self.extended = concatenate(len(known), self.fold.size)
        self.inclusive = formula.inclusive


def make_lane_carries(fold: Fold, descending: bool):
    """What has come before each lane's chunk, and what has come after all eight."""
    combine, identity, keep, spread = fold.combine, fold.identity, fold.keep, fold.spread

    @inner
    def lane_carries(carried, totals):
        before = identity()
        for step in range(LANES):
            lane = LANES - 1 - step if descending else step
            before = keep(only_lane(lane), carried, before)
            carried = combine(carried, spread(totals, lane))
        return before, carried

    return lane_carries


def make_group_reader(operands: Operands, bent: bool, wanted):
    """Load wanted operands of a group side by side; ``y_before`` is one position further on."""
    load_group = make_group_load(operands.edge, bent, operands.packed)
    made: dict = {}
    lines = []
    for o, name in enumerate(operands.full):
        if name not in wanted:
            continue
        box = f"box + {o} * GROUP_BYTES"
        if name.endswith("_before"):
            count = "max(0, min(count, extent - start - 1))"
            call = f"load_group(p, {o}, addresses[{o}], strides[{o}], start + 1, {count}, {box})"
        else:
            call = f"load_group(p, {o}, addresses[{o}], strides[{o}], start, count, {box})"
        lines.append(f"    {call}")
    source = "def read_group(p, addresses, strides, start, count, extent, box):\n" + "\n".join(lines)
    exec(source, {"load_group": load_group, "GROUP_BYTES": GROUP_BYTES}, made)
    return inner(made["read_group"])


def make_scan_rows_kernel(formula: ScanFormula, element: str, operands: Operands, bent: bool):
    """``kernel(p, begin, end)`` over whole rows."""
    parts = ScanParts(formula, element, operands)
    read_group = make_group_reader(operands, bent, operands.full)
    store_group = make_group_store(operands.edge, bent, operands.packed)
    read_full = tuple_intrinsics(len(operands.full))[0]
    full_box = stack(GROUP * len(operands.full))
    if parts.prefix is None:
        scan_row = _one_way(parts, read_group, store_group, read_full, full_box, operands)
    else:
        read_prefix = make_group_reader(operands, bent, parameters(formula.prefix.lift))
        scan_row = _both_ways(
            parts, read_prefix, read_group, store_group, read_full, full_box, operands
        )
    all_addresses, all_strides, fetch_rows = (
        operands.addresses,
        operands.strides,
        operands.fetch_rows,
    )

    def kernel(p, begin, end):
        const = constants(p)
        strides = all_strides(p)
        for unit in range(begin, end):
            addresses = all_addresses(p, unit)
            scan_row(p, const, fetch_rows(addresses), addresses, strides, unit)

    return kernel


def _make_scan_group(parts: ScanParts, read_full, descending: bool):
    """Scan a loaded group; ``known`` is read at each vector, outputs replace operand 0's box."""
    fold = parts.fold
    lift, combine, identity, keep = fold.lift, fold.combine, fold.identity, fold.keep
    read, write, size = fold.read, fold.write, fold.size
    finish, extended, inclusive = parts.finish, parts.extended, parts.inclusive
    lane_carries = make_lane_carries(fold, descending)
    state_box = stack(GROUP * size)
    known_size = 1 + (parts.prefix.size if parts.prefix else 0)
    read_known = tuple_intrinsics(known_size)[0]
    write_out = tuple_intrinsics(1)[1]

    @inner
    def scan_group(p, const, row, block_carry, carried, start, count, box, known_box, known_pitch):
        states = state_box()
        state = identity()
        for step in range(LANES):
            k = LANES - 1 - step if descending else step
            full = read_full(box + k * VECTOR_BYTES, GROUP_BYTES)
            known = read_known(known_box + k * VECTOR_BYTES, known_pitch)
            lifted = lift(counting(start + k, LANES), const, full, row, known)
            after = combine(state, keep(group_mask(k, count), lifted, identity()))
            write(states + k * VECTOR_BYTES, GROUP_BYTES, after if inclusive else state)
            state = after
        before, carried = lane_carries(carried, state)
        before = combine(block_carry, before)
        for k in range(LANES):
            full = read_full(box + k * VECTOR_BYTES, GROUP_BYTES)
            known = read_known(known_box + k * VECTOR_BYTES, known_pitch)
            state = combine(before, read(states + k * VECTOR_BYTES, GROUP_BYTES))
            value = finish(counting(start + k, LANES), const, full, row, extended(known, state))
            write_out(box + k * VECTOR_BYTES, GROUP_BYTES, value)
        return carried

    return scan_group


def _one_way(parts, read_group, store_group, read_full, full_box, operands):
    fold = parts.fold
    combine, identity, spread = fold.combine, fold.identity, fold.spread
    scan_group = _make_scan_group(parts, read_full, descending=False)
    output = operands.output_at[0]

    @inner
    def scan_row(p, const, row, addresses, strides, unit):
        extent = word(p, EXTENT)
        box = full_box()
        block_carry = identity()
        for b in range(word(p, BLOCKS)):
            carried = identity()
            for start in range(b * SCAN_BLOCK, min((b + 1) * SCAN_BLOCK, extent), GROUP):
                count = min(GROUP, extent - start)
                read_group(p, addresses, strides, start, count, extent, box)
                carried = scan_group(
                    p, const, row, block_carry, carried, start, count, box, box, 0
                )
                store_group(p, output, addresses[output], strides[output], start, count, box)
            block_carry = combine(block_carry, spread(carried, 0))

    return scan_row


def _both_ways(parts, read_prefix, read_group, store_group, read_full, full_box, operands):
    """A prefix scan forwards and the scan itself backwards, block by block from the end."""
    fold, prefix = parts.fold, parts.prefix
    combine, identity, spread = fold.combine, fold.identity, fold.spread
    p_lift, p_combine, p_identity, p_keep = (
        prefix.lift,
        prefix.combine,
        prefix.identity,
        prefix.keep,
    )
    p_read, p_write, p_size = prefix.read, prefix.write, prefix.size
    p_spread, p_read_one, p_write_one = prefix.spread, prefix.read_one, prefix.write_one
    p_lane_carries = make_lane_carries(prefix, descending=False)
    p_states = stack(GROUP * p_size)
    # What comes before every position of a block: one plane of SCAN_BLOCK for each component,
    # behind a plane that stands for the empty first known value.
    p_box = stack(SCAN_BLOCK * (1 + p_size))
    plane = 8 * SCAN_BLOCK
    scan_group = _make_scan_group(parts, read_full, descending=True)
    output = operands.output_at[0]

    @inner
    def prefix_block(p, const, row, addresses, strides, b, block_carry, box, planes):
        """Scan the prefix over a block from its carry; gives the block's own total."""
        extent = word(p, EXTENT)
        states = p_states()
        carried = p_identity()
        for start in range(b * SCAN_BLOCK, min((b + 1) * SCAN_BLOCK, extent), GROUP):
            count = min(GROUP, extent - start)
            read_prefix(p, addresses, strides, start, count, extent, box)
            state = p_identity()
            for k in range(LANES):
                full = read_full(box + k * VECTOR_BYTES, GROUP_BYTES)
                lifted = p_lift(counting(start + k, LANES), const, full, row, row)
                p_write(states + k * VECTOR_BYTES, GROUP_BYTES, state)
                state = p_combine(state, p_keep(group_mask(k, count), lifted, p_identity()))
            before, carried = p_lane_carries(carried, state)
            before = p_combine(block_carry, before)
            at = planes + plane + (start - b * SCAN_BLOCK) * 8
            for k in range(LANES):
                here = p_combine(before, p_read(states + k * VECTOR_BYTES, GROUP_BYTES))
                p_write(at + k * VECTOR_BYTES, plane, here)
        return p_spread(carried, 0)

    @inner
    def scan_row(p, const, row, addresses, strides, unit):
        extent, blocks = word(p, EXTENT), word(p, BLOCKS)
        box, planes = full_box(), p_box()
        kept = word(p, SCRATCH) + unit * blocks * p_size * 8
        if blocks > 1:
            block_carry = p_identity()
            for b in range(blocks):
                p_write_one(kept + b * p_size * 8, block_carry)
                total = prefix_block(p, const, row, addresses, strides, b, block_carry, box, planes)
                block_carry = p_combine(block_carry, total)
        carry = identity()
        for step in range(blocks):
            b = blocks - 1 - step
            block_carry = p_identity()
            if blocks > 1:
                block_carry = p_read_one(kept + b * p_size * 8)
            prefix_block(p, const, row, addresses, strides, b, block_carry, box, planes)
            carried = identity()
            first = b * SCAN_BLOCK
            groups = (min(SCAN_BLOCK, extent - first) + GROUP - 1) // GROUP
            for back in range(groups):
                start = first + (groups - 1 - back) * GROUP
                count = min(GROUP, extent - start)
                read_group(p, addresses, strides, start, count, extent, box)
                known = planes + (start - first) * 8
                carried = scan_group(
                    p, const, row, carry, carried, start, count, box, known, plane
                )
                store_group(p, output, addresses[output], strides[output], start, count, box)
            carry = combine(carry, spread(carried, 0))

    return scan_row
