"""Four rows folded side by side.

A lane adds its elements one after the other, and an addition must wait for the one before. Four
rows at a time give the CPU four that need not wait for each other: a sum of rows of 1024 float32 in
a cache takes half of the time. Every row is folded as it would be alone.

Beyond the caches lines are asked for: four rows at a time are more than a core foresees (a sum of
4096x4096 float32 took 0.65 ms instead of 0.85, of bfloat16 0.41 instead of 0.63).
"""

from __future__ import annotations

import sys

from ...formulas.bind import primitives_of
from ...formulas.record import (
    Monoid,
    Pass,
    RowFormula,
    parameters,
    reads_neighbours,
    reads_once,
)
from ..codegen.block import least
from ..codegen.extremes import is_extreme
from ..codegen.functions import inlined
from ..codegen.lanes import LANES
from ..codegen.memory import word
from ..codegen.operands import Operands
from ..codegen.passes import BoundPass
from ..codegen.registers import registers
from ..codegen.vectors import counting, first_lanes, no_vectors
from ..words import BLOCK, BLOCKS, EXTENT, ITEMSIZE, LINE
from .row_stretches import RowStretch

ROWS = 4
# Bytes of a row and operand up to which four rows stay in a core's nearest cache.
LONGEST = 1 << 14
# Bytes from what is folded to what is asked for. Half and twice as many took an eighth more.
AHEAD = 1 << 12
# What keeps the CPU busy by itself.
HEAVY = {"exp", "log", "mantissa", "exponent"}


def leading(formula: RowFormula, operands: Operands) -> int:
    """How many of the first passes are folded in four rows at a time.

    Of one operand: two keep the CPU busy, and eight streams push each other out of the nearest
    cache (softmax_backward on 512x1024 took a sixth more). An extreme is found by other means.
    """
    if not operands.packed or operands.flipped or reads_neighbours(formula):
        return 0
    count = 0
    read: set[str] = set()
    for step in formula.passes:
        if _is_heavy(step) or step.again or is_extreme(step.monoid, operands):
            break
        if step.monoid and not _fits(step.monoid):
            break
        read |= _operands_of(step, operands)
        if len(read) > 1:
            break
        count += 1
    return count if any(step.monoid for step in formula.passes[:count]) else 0


def longest_for(formula: RowFormula, item: int) -> int:
    """Elements of a row up to which four are folded together.

    Rows of two bytes an element that are read once may be any: a chain of additions takes 16 bytes
    at a time, and memory brings more (norm2 of 16384x8192 bfloat16 took 6.6 ms instead of 9.3).
    """
    is_long = reads_once(formula) and item < ITEMSIZE["f32"]
    return sys.maxsize if is_long else LONGEST // item


def _fits(monoid: Monoid) -> bool:
    """Whether the states of four rows leave half of the registers to arithmetic.

    What a stretch changes at every element is one number, and counts.
    """
    carried = 1 if monoid.stretch else len(monoid.state)
    return 2 * ROWS * carried * registers().of_lanes <= registers().count


def _operands_of(step: Pass, operands: Operands) -> set[str]:
    """What a pass reads of every element."""
    functions = (step.monoid.lift, step.monoid.counts) if step.monoid else ()
    return {n for f in functions if f for n in parameters(f)} & {*operands.full}


def _is_heavy(step: Pass) -> bool:
    if step.monoid is None or step.monoid.stretch:
        return False
    functions = (step.monoid.lift, step.monoid.combine)
    return any(primitives_of(f) & HEAVY for f in functions)


def make_four(formula: RowFormula, count: int, element: str, operands: Operands):
    """The first passes over four rows: what each gives."""

    @inlined
    def nothing(p, const, strides, addresses, rows, ahead, far):
        return no_vectors(), no_vectors(), no_vectors(), no_vectors()

    four = nothing
    known: tuple[str, ...] = ("",)
    for step in formula.passes[:count]:
        bound = BoundPass(formula, step, element, operands, known)
        four = _with_pass(four, bound, operands)
        known += step.names
    return four


def _with_pass(before, bound: BoundPass, operands: Operands):
    close = bound.close
    if bound.fold is None:

        @inlined
        def prepared(p, const, strides, addresses, rows, ahead, far):
            a, b, c, d = before(p, const, strides, addresses, rows, ahead, far)
            ra, rb, rc, rd = rows
            none = no_vectors()
            return (
                close(const, ra, a, none),
                close(const, rb, b, none),
                close(const, rc, c, none),
                close(const, rd, d, none),
            )

        return prepared

    fold = bound.fold
    lift, combine, identity, keep = fold.lift, fold.combine, fold.identity, fold.keep
    join_lanes, spread, fetch = fold.join_lanes, fold.spread, operands.fetch_full
    begin, prefetch = bound.begin, operands.prefetch()
    item = operands.edge.item
    line = LINE // item

    @inlined
    def ask(at, ahead, extent, i):
        """For a line of a row, or of the one that takes its place in the next four."""
        if i >= extent:
            at = ahead
            i -= extent
        prefetch(at, i)

    @inlined
    def step(p, const, strides, address, row, known, i, count, state):
        full = fetch(p, address, strides, i, count)
        return combine(state, lift(counting(i, 1), const, full, row, known))

    @inlined
    def fold_block(p, const, strides, addresses, rows, known, ahead, far, start, stop):
        """The elements [start, stop) of each row; lane 0 of what is given holds their state."""
        known_a, known_b, known_c, known_d = known
        at_a, at_b, at_c, at_d = addresses
        row_a, row_b, row_c, row_d = rows
        next_a, next_b, next_c, next_d = ahead
        extent = word(p, EXTENT)
        whole = start + (stop - start) // LANES * LANES
        a, b, c, d = identity(), identity(), identity(), identity()
        for i in range(start, whole, LANES):
            if far and i % line == 0:
                ask(at_a, next_a, extent, i + AHEAD // item)
                ask(at_b, next_b, extent, i + AHEAD // item)
                ask(at_c, next_c, extent, i + AHEAD // item)
                ask(at_d, next_d, extent, i + AHEAD // item)
            a = step(p, const, strides, at_a, row_a, known_a, i, LANES, a)
            b = step(p, const, strides, at_b, row_b, known_b, i, LANES, b)
            c = step(p, const, strides, at_c, row_c, known_c, i, LANES, c)
            d = step(p, const, strides, at_d, row_d, known_d, i, LANES, d)
        if whole < stop:
            left = stop - whole
            lanes = first_lanes(left)
            a = keep(lanes, step(p, const, strides, at_a, row_a, known_a, whole, left, a), a)
            b = keep(lanes, step(p, const, strides, at_b, row_b, known_b, whole, left, b), b)
            c = keep(lanes, step(p, const, strides, at_c, row_c, known_c, whole, left, c), c)
            d = keep(lanes, step(p, const, strides, at_d, row_d, known_d, whole, left, d), d)
        return join_lanes(a), join_lanes(b), join_lanes(c), join_lanes(d)

    if fold.stretch is not None:
        fold_block = _stretched(RowStretch(fold, fetch), identity, ask, item)

    @inlined
    def passed(p, const, strides, addresses, rows, ahead, far):
        known = before(p, const, strides, addresses, rows, ahead, far)
        known_a, known_b, known_c, known_d = known
        row_a, row_b, row_c, row_d = rows
        extent = word(p, EXTENT)
        a, b, c, d = (
            begin(const, row_a),
            begin(const, row_b),
            begin(const, row_c),
            begin(const, row_d),
        )
        for k in range(word(p, BLOCKS)):
            start = k * BLOCK
            stop = least(start + BLOCK, extent)
            more_a, more_b, more_c, more_d = fold_block(
                p, const, strides, addresses, rows, known, ahead, far, start, stop
            )
            a, b = combine(a, more_a), combine(b, more_b)
            c, d = combine(c, more_c), combine(d, more_d)
        return (
            close(const, row_a, known_a, spread(a, 0)),
            close(const, row_b, known_b, spread(b, 0)),
            close(const, row_c, known_c, spread(c, 0)),
            close(const, row_d, known_d, spread(d, 0)),
        )

    return passed


def _stretched(way: RowStretch, identity, ask, item: int):
    """``fold_block`` by stretches."""
    most, together, join_lanes = way.most, way.together, way.join_lanes
    join_rest, ended = way.join_rest, way.ended
    lines = tuple(range(0, together, LINE // item))

    @inlined
    def join_some(line, known, carried, i, ahead, far):
        if far:
            for k in lines:
                ask(line[3], ahead, word(line[0], EXTENT), i + k + AHEAD // item)
        return way.join_some(line, known, carried, i)

    @inlined
    def fold_block(p, const, strides, addresses, rows, known, ahead, far, start, stop):
        at_a, at_b, at_c, at_d = addresses
        row_a, row_b, row_c, row_d = rows
        known_a, known_b, known_c, known_d = known
        next_a, next_b, next_c, next_d = ahead
        line_a, line_b = (p, const, row_a, at_a, strides, 0), (p, const, row_b, at_b, strides, 0)
        line_c, line_d = (p, const, row_c, at_c, strides, 0), (p, const, row_d, at_d, strides, 0)
        a, b, c, d = identity(), identity(), identity(), identity()
        for first in range(start, stop, most):
            last = least(first + most, stop)
            ra, rb, rc, rd = way.begin(a), way.begin(b), way.begin(c), way.begin(d)
            until = first + (last - first) // together * together
            for i in range(first, until, together):
                ra = join_some(line_a, known_a, ra, i, next_a, far)
                rb = join_some(line_b, known_b, rb, i, next_b, far)
                rc = join_some(line_c, known_c, rc, i, next_c, far)
                rd = join_some(line_d, known_d, rd, i, next_d, far)
            if until < last:
                ra = join_rest(line_a, known_a, ra, until, last)
                rb = join_rest(line_b, known_b, rb, until, last)
                rc = join_rest(line_c, known_c, rc, until, last)
                rd = join_rest(line_d, known_d, rd, until, last)
            a = ended(line_a, known_a, a, ra, first, last)
            b = ended(line_b, known_b, b, rb, first, last)
            c = ended(line_c, known_c, c, rc, first, last)
            d = ended(line_d, known_d, d, rd, first, last)
        return join_lanes(a), join_lanes(b), join_lanes(c), join_lanes(d)

    return fold_block
