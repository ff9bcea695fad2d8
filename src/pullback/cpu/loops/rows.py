"""Row formulas with the eight lanes along the axis.

The axis is cut into blocks of ``BLOCK`` elements. Within a block, element i belongs to lane i mod 8
and a lane folds its elements in order; the lanes join by a tree, then the blocks in order. That
order depends on the extent alone: the columns schedule builds the same one.

What all functions need to know of a row goes by one name:
``line = (p, const, row, addresses, strides)``, the parameter block, the op's constants, the row's
operands, and where all operands begin and how far apart their positions lie.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...formulas.record import RowFormula, is_pointwise, reads_neighbours
from ..codegen.bind import any_element, per_element, per_row
from ..codegen.block import least, word
from ..codegen.elementary import primitives_for
from ..codegen.jit import inlined
from ..codegen.lanes import LANES
from ..codegen.neighbours import fetch_along, neighbours_of
from ..codegen.operands import Operands, constants, fence
from ..codegen.passes import BoundPass
from ..codegen.single_calls import single_call
from ..codegen.sixteen import Spread, apply_sixteen, per_eight
from ..codegen.vectors import (
    counting,
    first_lanes,
    no_vectors,
    stack,
    tuple_intrinsics,
    zero_vectors,
)
from ..words import BLOCK as BLOCK
from ..words import BLOCKS, EXTENT
from .four_rows import LONGEST, ROWS, leading, make_four

# Inputs of the next row are asked for while a row is written, when memory would have nothing to
# read, up to this many bytes.
AHEAD_BYTES = 1 << 18
# Not a literal, for which Numba would compile a function a second time.
FIRST = np.int64(0)


def make_block_fold(formula: RowFormula, bound: BoundPass, operands: Operands):
    """Fold the elements [start, stop) of one row; lane 0 of the result holds their state."""
    fold, lift_pair, counts = bound.fold, bound.lift_pair, bound.counts
    lift, combine, identity, keep = fold.lift, fold.combine, fold.identity, fold.keep
    join_lanes = fold.join_lanes
    fetch_full = fetch_along(operands, neighbours_of(formula, operands))

    @inlined
    def block_fold(line, known, start, stop):
        p, const, row, addresses, strides = line
        state = identity()
        whole = start + (stop - start) // LANES * LANES
        if lift_pair is not None:
            pairs = start + (stop - start) // (2 * LANES) * (2 * LANES)
            for i in range(start, pairs, 2 * LANES):
                first, second = lift_pair(addresses, i, const, row, known)
                state = combine(combine(state, first), second)
            start = pairs
        for i in range(start, whole, LANES):
            full = fetch_full(p, addresses, strides, i, LANES)
            if counts is None or counts(counting(i, 1), const, full, row, known):
                state = combine(state, lift(counting(i, 1), const, full, row, known))
        if whole < stop:
            full = fetch_full(p, addresses, strides, whole, stop - whole)
            more = combine(state, lift(counting(whole, 1), const, full, row, known))
            state = keep(first_lanes(stop - whole), more, state)
        return join_lanes(state)

    return block_fold


def make_summary(formula: RowFormula, steps, element: str, operands: Operands, known=("",)):
    """Some passes over one row: ``summary(line, known)``, and the names of what it gives."""

    @inlined
    def nothing(line, known):
        return known

    summary = nothing
    for step in steps:
        bound = BoundPass(formula, step, element, operands, known)
        summary = _with_pass(summary, formula, bound, operands)
        known = known + step.names
    return summary, known


def _with_pass(before, formula: RowFormula, bound: BoundPass, operands: Operands):
    close = bound.close
    if bound.fold is None:

        @inlined
        def prepared(line, known):
            return close(line[1], line[2], before(line, known), no_vectors())

        return prepared

    fold = bound.fold
    block_fold = make_block_fold(formula, bound, operands)
    combine, begin, spread = fold.combine, bound.begin, fold.spread

    @inlined
    def folded(line, known):
        p, const, row, _, _ = line
        extent = word(p, EXTENT)
        state = begin(const, row)
        for b in range(word(p, BLOCKS)):
            start = b * BLOCK
            stop = least(start + BLOCK, extent)
            state = combine(state, block_fold(line, known, start, stop))
        return close(const, row, known, spread(state, 0))

    if not bound.most:

        @inlined
        def passed(line, known):
            return folded(line, before(line, known))

        return passed

    most, first, rests = bound.most, bound.first, bound.rests

    @inlined
    def repeated(line, known):
        known = first(line[1], line[2], before(line, known))
        for _ in range(most):
            earlier, known = known, folded(line, known)
            if rests(earlier, known):
                break
        return known

    return repeated


def make_apply_range(formula: RowFormula, element: str, operands: Operands, known, asks: bool):
    """Write the elements [start, stop) of one row, everything about the row being known.

    If it ``asks``, the inputs of the row at ``ahead`` are brought near meanwhile.

    Outputs larger than the caches are written past them, eight aligned elements at a time: an
    ordinary store reads the line first, which costs a third of the traffic of a one-operand op.
    """
    apply, sixteen = element_functions(formula, element, operands, known, Spread())
    fetch_full = fetch_along(operands, neighbours_of(formula, operands))
    put_outputs = operands.put_outputs

    @inlined
    def apply_chunk(line, known, start, count):
        p, const, row, addresses, strides = line
        full = fetch_full(p, addresses, strides, start, count)
        values = apply(counting(start, 1), const, full, row, known)
        put_outputs(p, addresses, strides, start, count, values)

    if not operands.packed:

        @inlined
        def apply_strided(line, known, start, stop, ahead):
            for i in range(start, stop, LANES):
                apply_chunk(line, known, i, least(LANES, stop - i))

        return apply_strided

    stream, prefetch, item = operands.stream_outputs(), operands.prefetch(), operands.edge.item
    first, last, may_stream = operands.output_at[0], operands.output_at[-1], operands.may_stream()
    pairs = writes_pairs(formula, operands)
    fetch_pair, put_pair = operands.fetch_pair(), operands.put_pair()
    counts, zeros = None, zero_vectors(len(operands.outputs))
    if formula.counts:
        primitives = primitives_for(element)
        counts = any_element(formula.counts, primitives, operands.full, operands.row, known)
    # Elements written at a time, and between two prefetches: a cache line of them.
    group = 2 * LANES if pairs or sixteen else LANES
    step = 64 // item if asks else group

    @inlined
    def apply_whole(line, known, i, streamed):
        p, const, row, addresses, strides = line
        full = fetch_full(p, addresses, strides, i, LANES)
        values = zeros()
        if counts is None or counts(counting(i, 1), const, full, row, known):
            values = apply(counting(i, 1), const, full, row, known)
        if streamed:
            stream(addresses, i, values)
        else:
            put_outputs(p, addresses, strides, i, LANES, values)

    @inlined
    def apply_pair(line, known, i, streamed):
        _, const, row, addresses, _ = line
        full, next_full = fetch_pair(addresses, i)
        values = next_values = zeros()
        if counts is None or counts(counting(i, 1), const, full, row, known):
            values = apply(counting(i, 1), const, full, row, known)
        if counts is None or counts(counting(i + LANES, 1), const, next_full, row, known):
            next_values = apply(counting(i + LANES, 1), const, next_full, row, known)
        put_pair(addresses, i, values, next_values, streamed)

    @inlined
    def apply_singles(line, known, i, streamed):
        _, const, row, addresses, _ = line
        sixteen(addresses, i, const, row, known, streamed)

    apply_group = apply_singles if sixteen else apply_pair if pairs else apply_whole

    @inlined
    def apply_some(line, known, start, stop):
        for i in range(start, stop, LANES):
            apply_chunk(line, known, i, least(LANES, stop - i))

    @inlined
    def apply_range(line, known, start, stop, ahead):
        p, _, _, addresses, _ = line
        alike = addresses[first] % (group * item) == addresses[last] % (group * item)
        streamed = alike and may_stream(p, addresses)
        inside = start
        if streamed:
            inside = least(start + -(addresses[first] // item + start) % group, stop)
            apply_some(line, known, start, inside)
        steps = inside + (stop - inside) // step * step
        whole = inside + (stop - inside) // group * group
        for i in range(inside, steps, step):
            if asks:
                prefetch(ahead, i)
            for k in range(i, i + step, group):
                apply_group(line, known, k, streamed)
        for i in range(steps, whole, group):
            apply_group(line, known, i, streamed)
        apply_some(line, known, whole, stop)

    return apply_range


def element_functions(formula: RowFormula, element: str, operands: Operands, known, rows):
    """``apply`` of eight elements, and of sixteen packed ones or None; ``rows`` as there."""
    primitives, outputs = primitives_for(element), len(operands.outputs)
    full, row = operands.full, operands.row
    call = single_call(formula.apply, full, row, known) if operands.singles else None
    if call is None:
        return per_element(formula.apply, primitives, full, row, known, outputs), None
    apply = per_eight(call, formula.apply, primitives, operands, known, range(outputs))
    if not operands.packed or reads_neighbours(formula):
        return apply, None
    return apply, apply_sixteen(call, formula.apply, primitives, operands, known, rows)


def make_rows_kernel(formula: RowFormula, element: str, operands: Operands):
    """``kernel(p, begin, end)`` over whole rows."""
    if is_pointwise(formula):
        return _make_pointwise_kernel(formula, element, operands)
    # Passes over four rows at a time where they are short, then the others over each.
    count = leading(formula, operands)
    lead, names = make_summary(formula, formula.passes[:count], element, operands)
    rest, known = make_summary(formula, formula.passes[count:], element, operands, names)
    four: Any = make_four(formula, count, element, operands) if count else None
    read, write = tuple_intrinsics(len(names))[:2]
    box_of_four, size = stack(ROWS * len(names) * LANES), len(names) * LANES * 8
    longest = AHEAD_BYTES // (operands.edge.item * max(1, len(operands.full)))
    shortest_alone = min(BLOCK, LONGEST // operands.edge.item) + 1
    all_addresses, all_strides = operands.addresses, operands.strides
    fetch_rows = operands.fetch_rows
    write_row = _make_write_row(formula, element, operands, known)

    @inlined
    def lines_of(p, const, strides, unit):
        addresses = all_addresses(p, unit)
        return p, const, fetch_rows(addresses), addresses, strides

    @inlined
    def fold_four(p, const, strides, unit, box):
        at = (
            all_addresses(p, unit), all_addresses(p, unit + 1), all_addresses(p, unit + 2),
            all_addresses(p, unit + 3),
        )  # fmt: skip
        row = (fetch_rows(at[0]), fetch_rows(at[1]), fetch_rows(at[2]), fetch_rows(at[3]))
        a, b, c, d = four(p, const, strides, at, row)
        write(box, 64, a)
        write(box + size, 64, b)
        write(box + 2 * size, 64, c)
        write(box + 3 * size, 64, d)

    def kernel(p, begin, end):
        const = constants(p)
        strides = all_strides(p)
        extent = word(p, EXTENT)
        # Only a row that is still cached when its turn comes is worth asking for.
        ask = extent <= longest
        box = box_of_four()
        first = begin
        while first < end:
            together = 1
            if four is not None and extent < shortest_alone and first + ROWS <= end:
                together = ROWS
                fold_four(p, const, strides, first, box)
            else:
                line = lines_of(p, const, strides, first)
                write(box, 64, lead(line, no_vectors()))
            for k in range(together):
                unit = first + k
                line = lines_of(p, const, strides, unit)
                next_unit = unit + together if ask and unit + together < end else unit
                known = rest(line, read(box + k * size, 64))
                write_row(line, known, extent, all_addresses(p, next_unit))
            first += together
        fence()

    return kernel


def _make_write_row(formula: RowFormula, element: str, operands: Operands, known):
    """``write_row(line, known, extent, ahead)``: what is to be written of one row."""
    if formula.finish:
        primitives, outputs = primitives_for(element), len(operands.outputs)
        finish = per_row(formula.finish, primitives, operands.row, known, (), outputs)
        store_rows = operands.store_rows

        @inlined
        def write_finish(line, known, extent, ahead):
            _, const, row, addresses, _ = line
            store_rows(addresses, finish(const, row, known, no_vectors()))

        return write_finish
    apply_range = make_apply_range(formula, element, operands, known, asks=True)

    @inlined
    def write_elements(line, known, extent, ahead):
        apply_range(line, known, FIRST, extent, ahead)

    return write_elements


def _make_pointwise_kernel(formula: RowFormula, element: str, operands: Operands):
    """Rows cut into blocks: no element depends on another."""
    summary, known = make_summary(formula, formula.passes, element, operands)
    apply_range = make_apply_range(formula, element, operands, known, asks=False)
    all_addresses, all_strides = operands.addresses, operands.strides
    fetch_rows = operands.fetch_rows

    def kernel(p, begin, end):
        const = constants(p)
        strides = all_strides(p)
        extent, blocks = word(p, EXTENT), word(p, BLOCKS)
        for unit in range(begin, end):
            index = unit if blocks == 1 else unit // blocks
            addresses = all_addresses(p, index)
            line = (p, const, fetch_rows(addresses), addresses, strides)
            start = (unit - index * blocks) * BLOCK
            stop = least(start + BLOCK, extent)
            apply_range(line, summary(line, no_vectors()), start, stop, addresses)
        fence()

    return kernel


def writes_pairs(formula: RowFormula, operands: Operands) -> bool:
    """Whether to apply a formula to two vectors at a time: two exp at a time are no gain."""
    return operands.edge.pairs and not formula.heavy and not reads_neighbours(formula)
