"""Scans of rows that are cut over threads: totals of blocks first, then parts from what is before.

The pieces and their order are those of :mod:`.scan_rows`.
"""

from __future__ import annotations

from ...formulas.record import ScanFormula
from ..codegen.block import least
from ..codegen.functions import inner
from ..codegen.memory import word
from ..codegen.operands import Operands, fence
from ..codegen.watch import nothing_seen
from ..words import BLOCKS, PARTS, SCRATCH, UNITS
from .scan_parts import SCAN_BLOCK
from .scan_rows import GROUP, BothWays, RowScan, row_end


def make_prefix_totals_kernel(formula: ScanFormula, element: str, operands: Operands, plain: bool):
    """Totals of the prefix of a two-way scan, for rows cut over threads; a unit is a block."""
    scan = RowScan(formula, element, operands, plain)
    ways, prefix = BothWays(scan), scan.parts.prefix
    identity, size, write_one = prefix.identity, prefix.size, prefix.write_one
    prefix_block, allocate = ways.prefix_block, ways.planes
    addresses_of, strides_of, fetch_rows = operands.addresses, operands.strides, operands.fetch_rows

    def kernel(p, begin, end):
        const, strides, blocks = operands.constants(p), strides_of(p), word(p, BLOCKS)
        planes = allocate()
        for unit in range(begin, end):
            addresses = addresses_of(p, unit // blocks)
            line = (p, const, fetch_rows(addresses), addresses, strides)
            total, _ = prefix_block(line, unit % blocks, identity(), planes, nothing_seen())
            write_one(word(p, SCRATCH) + unit * size * 8, total)

    return kernel


def make_back_totals_kernel(formula: ScanFormula, element: str, operands: Operands, plain: bool):
    """Totals of the blocks of a two-way scan behind the first part of a row, from the prefix's.

    A unit is a share of those blocks.
    """
    scan = RowScan(formula, element, operands, plain)
    ways, fold, prefix = BothWays(scan), scan.parts.fold, scan.parts.prefix
    identity, size, write_one = fold.identity, fold.size, fold.write_one
    p_combine, p_size, carry_into = prefix.combine, prefix.size, _carry_into(prefix)
    p_start = scan.parts.prefix_start
    prefix_block, allocate = ways.prefix_block, ways.planes
    back_block = scan.back_block(writes=False)
    addresses_of, strides_of, fetch_rows = operands.addresses, operands.strides, operands.fetch_rows

    def kernel(p, begin, end):
        const, strides = operands.constants(p), strides_of(p)
        rows, blocks, parts = word(p, UNITS), word(p, BLOCKS), word(p, PARTS)
        planes = allocate()
        totals = word(p, SCRATCH) + 2 * rows * blocks * p_size * 8
        skipped = (blocks + parts - 1) // parts
        share = (blocks - skipped + parts - 1) // parts
        for unit in range(begin, end):
            index, part = unit // parts, unit % parts
            addresses = addresses_of(p, index)
            row = fetch_rows(addresses)
            line = (p, const, row, addresses, strides)
            first = least(skipped + part * share, blocks)
            totals_before = word(p, SCRATCH) + index * blocks * p_size * 8
            before = carry_into(totals_before, first, p_start(const, row))
            for b in range(first, least(first + share, blocks)):
                total, _ = prefix_block(line, b, before, planes, nothing_seen())
                before = p_combine(before, total)
                back, _ = back_block(line, b, identity(), planes, nothing_seen())
                write_one(totals + (index * blocks + b) * size * 8, back)

    return kernel


def make_back_parts_kernel(formula: ScanFormula, element: str, operands: Operands, plain: bool):
    """A two-way scan over parts of rows, each from the totals on both sides of it."""
    scan = RowScan(formula, element, operands, plain)
    fold, prefix, finish_row = scan.parts.fold, scan.parts.prefix, row_end(scan)
    combine, size, read_one, start = fold.combine, fold.size, fold.read_one, scan.parts.start
    p_combine, p_size, carry_into = prefix.combine, prefix.size, _carry_into(prefix)
    p_start = scan.parts.prefix_start
    p_read_one, p_write_one = prefix.read_one, prefix.write_one
    ways = BothWays(scan)
    sweep, allocate = ways.sweep(), ways.planes
    addresses_of, strides_of, fetch_rows = operands.addresses, operands.strides, operands.fetch_rows

    def kernel(p, begin, end):
        const, strides = operands.constants(p), strides_of(p)
        rows, blocks, parts = word(p, UNITS), word(p, BLOCKS), word(p, PARTS)
        planes = allocate()
        area = rows * blocks * p_size * 8
        share = (blocks + parts - 1) // parts
        for unit in range(begin, end):
            index, part = unit // parts, unit % parts
            addresses = addresses_of(p, index)
            row = fetch_rows(addresses)
            first = least(part * share, blocks)
            last = least(first + share, blocks)
            totals = word(p, SCRATCH) + index * blocks * p_size * 8
            kept = totals + area + first * p_size * 8
            before = carry_into(totals, first, p_start(const, row))
            into_last = before
            for b in range(first, last):
                if (b - first) % GROUP == 0:
                    p_write_one(kept + (b - first) // GROUP * p_size * 8, before)
                    into_last = before
                before = p_combine(before, p_read_one(totals + b * p_size * 8))
            behind = word(p, SCRATCH) + 2 * area + index * blocks * size * 8
            carry = start(const, row)
            for back in range(blocks - last):
                carry = combine(carry, read_one(behind + (blocks - 1 - back) * size * 8))
            line = (p, const, row, addresses, strides)
            carry = sweep(line, first, last, 0, into_last, carry, kept, planes)
            if part == 0:
                finish_row(const, row, addresses, carry)
        fence()

    return kernel


def _carry_into(fold):
    """The totals before a block, joined in order behind a first state."""
    combine, size, read_one = fold.combine, fold.size, fold.read_one

    @inner
    def carry_into(totals, block, carry):
        for b in range(block):
            carry = combine(carry, read_one(totals + b * size * 8))
        return carry

    return carry_into


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
        const = operands.constants(p)
        strides = strides_of(p)
        blocks, parts = word(p, BLOCKS), word(p, PARTS)
        counted = least(blocks, (parts - 1) * ((blocks + parts - 1) // parts))
        for unit in range(begin, end):
            index, b = unit // counted, unit % counted
            addresses = addresses_of(p, index)
            line = (p, const, fetch_rows(addresses), addresses, strides)
            total = scan_block(line, b, identity(), addresses, (b + 1) * SCAN_BLOCK)
            write_one(word(p, SCRATCH) + (index * blocks + b) * size * 8, total)

    return kernel


def make_scan_parts_kernel(formula: ScanFormula, element: str, operands: Operands):
    """A one-way scan over parts of rows, each from the totals of the blocks before it."""
    scan = RowScan(formula, element, operands, plain=False)
    fold = scan.parts.fold
    combine, size, carry_into = fold.combine, fold.size, _carry_into(fold)
    scan_block, start, finish_row = scan.block_scan(writes=True), scan.parts.start, row_end(scan)
    addresses_of, strides_of, fetch_rows = operands.addresses, operands.strides, operands.fetch_rows

    def kernel(p, begin, end):
        const = operands.constants(p)
        strides = strides_of(p)
        blocks, parts = word(p, BLOCKS), word(p, PARTS)
        share = (blocks + parts - 1) // parts
        for unit in range(begin, end):
            index, part = unit // parts, unit % parts
            addresses = addresses_of(p, index)
            row = fetch_rows(addresses)
            first = least(part * share, blocks)
            last = least(first + share, blocks)
            totals = word(p, SCRATCH) + index * blocks * size * 8
            carry = carry_into(totals, first, start(const, row))
            line = (p, const, row, addresses, strides)
            for b in range(first, last):
                total = scan_block(line, b, carry, addresses, (b + 1) * SCAN_BLOCK)
                carry = combine(carry, total)
            if last == blocks and first < last:
                finish_row(const, row, addresses, carry)
        fence()

    return kernel
