"""Row formulas with the eight lanes along the axis.

The axis is cut into blocks of ``BLOCK`` elements. Within a block, element i belongs to lane i mod 8
and a lane folds its elements in order; the lanes join by a tree, then the blocks in order. That
order depends on the extent alone: the columns schedule builds the same one.
"""

from __future__ import annotations

import numpy as np

from ...formulas.record import RowFormula, is_pointwise
from ..codegen.bind import BoundPass, per_element, per_row
from ..codegen.block import BLOCKS, EXTENT, least, word
from ..codegen.elementary import primitives_for
from ..codegen.jit import inlined
from ..codegen.lanes import LANES
from ..codegen.operands import Operands, constants, fence
from ..codegen.vectors import counting, first_lanes, no_vectors

BLOCK = 4096
# Inputs of the next row are asked for while a row is written, when memory would have nothing to
# read, up to this many bytes.
AHEAD_BYTES = 1 << 18
# Not a literal, for which Numba would compile a function a second time.
FIRST = np.int64(0)


def make_block_fold(fold, operands: Operands):
    """Fold the elements [start, stop) of one row; lane 0 of the result holds their state."""
    lift, combine, identity, keep = fold.lift, fold.combine, fold.identity, fold.keep
    join_lanes, fetch_full = fold.join_lanes, operands.fetch_full

    @inlined
    def block_fold(p, const, row, known, addresses, strides, start, stop):
        state = identity()
        whole = start + (stop - start) // LANES * LANES
        for i in range(start, whole, LANES):
            full = fetch_full(p, addresses, strides, i, LANES)
            state = combine(state, lift(counting(i, 1), const, full, row, known))
        if whole < stop:
            full = fetch_full(p, addresses, strides, whole, stop - whole)
            more = combine(state, lift(counting(whole, 1), const, full, row, known))
            state = keep(first_lanes(stop - whole), more, state)
        return join_lanes(state)

    return block_fold


def make_summary(formula: RowFormula, element: str, operands: Operands):
    """All passes over one row: ``summary(p, const, row, addresses, strides)``, and its names."""

    @inlined
    def nothing(p, const, row, addresses, strides):
        return no_vectors()

    summary, known = nothing, ("",)
    for step in formula.passes:
        bound = BoundPass(step, element, operands.full, operands.row, known)
        summary = _with_pass(summary, bound, operands)
        known = known + step.names
    return summary, known


def _with_pass(before, bound: BoundPass, operands: Operands):
    close = bound.close
    if bound.fold is None:

        @inlined
        def prepared(p, const, row, addresses, strides):
            return close(const, row, before(p, const, row, addresses, strides), no_vectors())

        return prepared

    fold = bound.fold
    block_fold = make_block_fold(fold, operands)
    combine, identity, spread = fold.combine, fold.identity, fold.spread

    @inlined
    def passed(p, const, row, addresses, strides):
        known = before(p, const, row, addresses, strides)
        extent = word(p, EXTENT)
        state = identity()
        for b in range(word(p, BLOCKS)):
            start = b * BLOCK
            stop = least(start + BLOCK, extent)
            part = block_fold(p, const, row, known, addresses, strides, start, stop)
            state = combine(state, part)
        return close(const, row, known, spread(state, 0))

    return passed


def make_apply_range(formula: RowFormula, element: str, operands: Operands, known, asks: bool):
    """Write the elements [start, stop) of one row, everything about the row being known.

    If it ``asks``, the inputs of the row at ``ahead`` are brought near meanwhile.

    Outputs larger than the caches are written past them, eight aligned elements at a time: an
    ordinary store reads the line first, which costs a third of the traffic of a one-operand op.
    """
    outputs = len(operands.outputs)
    apply = per_element(
        formula.apply, primitives_for(element), operands.full, operands.row, known, outputs
    )
    fetch_full, put_outputs = operands.fetch_full, operands.put_outputs

    @inlined
    def apply_chunk(p, const, row, known, addresses, strides, start, count):
        full = fetch_full(p, addresses, strides, start, count)
        values = apply(counting(start, 1), const, full, row, known)
        put_outputs(p, addresses, strides, start, count, values)

    if not operands.packed:

        @inlined
        def apply_strided(p, const, row, known, addresses, strides, start, stop, ahead):
            for i in range(start, stop, LANES):
                count = least(LANES, stop - i)
                apply_chunk(p, const, row, known, addresses, strides, i, count)

        return apply_strided

    stream, prefetch, item = operands.stream_outputs(), operands.prefetch(), operands.edge.item
    first, last, may_stream = operands.output_at[0], operands.output_at[-1], operands.may_stream()
    pairs = writes_pairs(formula, operands)
    fetch_pair, put_pair = operands.fetch_pair(), operands.put_pair()
    # Elements written at a time, and between two prefetches: a cache line of them.
    group = 2 * LANES if pairs else LANES
    step = 64 // item if asks else group

    @inlined
    def apply_whole(p, const, row, known, addresses, strides, i, streamed):
        full = fetch_full(p, addresses, strides, i, LANES)
        values = apply(counting(i, 1), const, full, row, known)
        if streamed:
            stream(addresses, i, values)
        else:
            put_outputs(p, addresses, strides, i, LANES, values)

    @inlined
    def apply_pair(p, const, row, known, addresses, strides, i, streamed):
        full, next_full = fetch_pair(addresses, i)
        values = apply(counting(i, 1), const, full, row, known)
        next_values = apply(counting(i + LANES, 1), const, next_full, row, known)
        put_pair(addresses, i, values, next_values, streamed)

    apply_group = apply_pair if pairs else apply_whole

    @inlined
    def apply_some(p, const, row, known, addresses, strides, start, stop):
        for i in range(start, stop, LANES):
            apply_chunk(p, const, row, known, addresses, strides, i, least(LANES, stop - i))

    @inlined
    def apply_range(p, const, row, known, addresses, strides, start, stop, ahead):
        alike = addresses[first] % (group * item) == addresses[last] % (group * item)
        streamed = alike and may_stream(p, addresses)
        inside = start
        if streamed:
            inside = least(start + -(addresses[first] // item + start) % group, stop)
            apply_some(p, const, row, known, addresses, strides, start, inside)
        steps = inside + (stop - inside) // step * step
        whole = inside + (stop - inside) // group * group
        for i in range(inside, steps, step):
            if asks:
                prefetch(ahead, i)
            for k in range(i, i + step, group):
                apply_group(p, const, row, known, addresses, strides, k, streamed)
        for i in range(steps, whole, group):
            apply_group(p, const, row, known, addresses, strides, i, streamed)
        apply_some(p, const, row, known, addresses, strides, whole, stop)

    return apply_range


def make_rows_kernel(formula: RowFormula, element: str, operands: Operands):
    """``kernel(p, begin, end)`` over whole rows."""
    summary, known = make_summary(formula, element, operands)
    outputs = len(operands.outputs)
    all_addresses, all_strides = operands.addresses, operands.strides
    fetch_rows = operands.fetch_rows
    if formula.finish:
        finish = per_row(formula.finish, element, operands.row, known, (), outputs)
        store_rows = operands.store_rows

        def kernel(p, begin, end):
            const = constants(p)
            strides = all_strides(p)
            for unit in range(begin, end):
                addresses = all_addresses(p, unit)
                row = fetch_rows(addresses)
                found = summary(p, const, row, addresses, strides)
                store_rows(addresses, finish(const, row, found, no_vectors()))

        return kernel

    apply_range = make_apply_range(
        formula, element, operands, known, asks=not is_pointwise(formula)
    )
    longest = AHEAD_BYTES // (operands.edge.item * max(1, len(operands.full)))
    if is_pointwise(formula):

        def kernel(p, begin, end):
            const = constants(p)
            strides = all_strides(p)
            extent, blocks = word(p, EXTENT), word(p, BLOCKS)
            for unit in range(begin, end):
                index = unit if blocks == 1 else unit // blocks
                addresses = all_addresses(p, index)
                row = fetch_rows(addresses)
                found = summary(p, const, row, addresses, strides)
                start = (unit - index * blocks) * BLOCK
                stop = least(start + BLOCK, extent)
                apply_range(p, const, row, found, addresses, strides, start, stop, addresses)
            fence()

        return kernel

    def kernel(p, begin, end):
        const = constants(p)
        strides = all_strides(p)
        extent = word(p, EXTENT)
        # Only a row that is still cached when its turn comes is worth asking for.
        ask = extent <= longest
        for unit in range(begin, end):
            addresses = all_addresses(p, unit)
            ahead = all_addresses(p, unit + 1) if ask and unit + 1 < end else addresses
            row = fetch_rows(addresses)
            found = summary(p, const, row, addresses, strides)
            apply_range(p, const, row, found, addresses, strides, FIRST, extent, ahead)
        fence()

    return kernel


def writes_pairs(formula: RowFormula, operands: Operands) -> bool:
    """Whether to apply a formula to two vectors at a time: two exp at a time are no gain."""
    return operands.edge.pairs and not formula.heavy
