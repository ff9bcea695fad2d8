"""Row formulas on few long rows, cut over threads at their blocks.

Stage k folds every block by pass k into a partial state in the workspace; the last stage finishes
or applies. Each stage joins the partials of the passes before it, in block order, which is the
order a single thread would have used.
"""

from __future__ import annotations

from ...formulas.record import RowFormula
from ..codegen.bind import per_row
from ..codegen.block import least, word
from ..codegen.elementary import primitives_for
from ..codegen.jit import inner
from ..codegen.operands import Operands, constants, fence
from ..codegen.passes import BoundPass
from ..codegen.vectors import no_vectors
from ..words import BLOCKS, EXTENT, SCRATCH, UNITS
from .rows import BLOCK, make_apply_range, make_block_fold


def make_stage_kernel(formula: RowFormula, element: str, operands: Operands, stage: int):
    """``kernel(p, begin, end)``: blocks of rows; whole rows where the last stage only finishes."""

    @inner
    def joined(p, const, row, index):
        return no_vectors()

    known: tuple[str, ...] = ("",)
    before = 0  # components of earlier passes' states, one for each block of every row
    for step in formula.passes[:stage]:
        bound = BoundPass(formula, step, element, operands, known)
        joined = _with_pass(joined, bound, before)
        before += bound.fold.size if bound.fold else 0
        known = known + step.names
    if stage < len(formula.passes):
        bound = BoundPass(formula, formula.passes[stage], element, operands, known)
        return _partials(formula, bound, operands, joined, before)
    if formula.finish:
        return _finish(formula, element, operands, joined, known)
    return _apply(formula, element, operands, joined, known)


def _with_pass(joined, bound: BoundPass, before: int):
    """Join the partials of one more pass and close it."""
    close = bound.close
    if bound.fold is None:

        @inner
        def prepared(p, const, row, index):
            return close(const, row, joined(p, const, row, index), no_vectors())

        return prepared

    combine, begin, size = bound.fold.combine, bound.begin, bound.fold.size
    read_one = bound.fold.read_one

    @inner
    def folded(p, const, row, index):
        known = joined(p, const, row, index)
        rows, blocks = word(p, UNITS), word(p, BLOCKS)
        at = word(p, SCRATCH) + (rows * blocks * before + index * blocks * size) * 8
        state = begin(const, row)
        for b in range(blocks):
            state = combine(state, read_one(at + b * size * 8))
        return close(const, row, known, state)

    return folded


def _partials(formula: RowFormula, bound: BoundPass, operands: Operands, joined, before: int):
    fold = bound.fold
    if fold is None:  # nothing to fold: the next stage prepares it

        def nothing(p, begin, end):
            pass

        return nothing

    block_fold = make_block_fold(formula, bound, operands)
    size, write_one = fold.size, fold.write_one
    addresses_of, strides_of, fetch_rows = operands.addresses, operands.strides, operands.fetch_rows

    def kernel(p, begin, end):
        const, strides = constants(p), strides_of(p)
        rows, blocks, extent = word(p, UNITS), word(p, BLOCKS), word(p, EXTENT)
        base = word(p, SCRATCH) + rows * blocks * before * 8
        for index in range(begin // blocks, (end + blocks - 1) // blocks):
            addresses = addresses_of(p, index)
            row = fetch_rows(addresses)
            line = (p, const, row, addresses, strides)
            known = joined(p, const, row, index)
            for unit in range(max(begin, index * blocks), least(end, (index + 1) * blocks)):
                start = (unit - index * blocks) * BLOCK
                stop = least(start + BLOCK, extent)
                write_one(base + unit * size * 8, block_fold(line, known, start, stop))

    return kernel


def _apply(formula: RowFormula, element: str, operands: Operands, joined, known):
    apply_range = make_apply_range(formula, element, operands, known, asks=False)
    addresses_of, strides_of, fetch_rows = operands.addresses, operands.strides, operands.fetch_rows

    def kernel(p, begin, end):
        const, strides = constants(p), strides_of(p)
        blocks, extent = word(p, BLOCKS), word(p, EXTENT)
        for index in range(begin // blocks, (end + blocks - 1) // blocks):
            addresses = addresses_of(p, index)
            row = fetch_rows(addresses)
            found = joined(p, const, row, index)
            first, last = max(begin, index * blocks), least(end, (index + 1) * blocks)
            start = (first - index * blocks) * BLOCK
            stop = least((last - index * blocks) * BLOCK, extent)
            line = (p, const, row, addresses, strides)
            apply_range(line, found, start, stop, addresses)
        fence()

    return kernel


def _finish(formula: RowFormula, element: str, operands: Operands, joined, known):
    outputs, primitives = len(operands.outputs), primitives_for(element)
    finish = per_row(formula.finish, primitives, operands.row, known, (), outputs)
    addresses_of, fetch_rows, store_rows = (
        operands.addresses,
        operands.fetch_rows,
        operands.store_rows,
    )

    def kernel(p, begin, end):
        const = constants(p)
        for index in range(begin, end):
            addresses = addresses_of(p, index)
            row = fetch_rows(addresses)
            found = joined(p, const, row, index)
            store_rows(addresses, finish(const, row, found, no_vectors()))

    return kernel
