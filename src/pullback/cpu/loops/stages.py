"""Row formulas on few long rows, cut over threads at their blocks.

Stage k folds every block by pass k into a partial state in the workspace; the last stage finishes
or applies. Each stage joins the partials of the passes before it, in block order, which is the
order a single thread would have used.

A pass that is taken again and again keeps what it gives in the workspace, too, one set of values
for each row. One unit begins it. Then every time has two stages: blocks are folded, and one unit
joins them, puts the new values there and says in the word ``MOVING`` whether another time is due.
"""

from __future__ import annotations

from ...formulas.record import RowFormula
from ..codegen.bind import per_row
from ..codegen.block import least
from ..codegen.elementary import primitives_for
from ..codegen.functions import inner
from ..codegen.memory import set_word, word
from ..codegen.operands import Operands, fence
from ..codegen.passes import BoundPass
from ..codegen.vectors import no_vectors, state_emitters, write_last
from ..kernels import Step
from ..words import BLOCKS, EXTENT, MOVING, SCRATCH, UNITS
from .rows import BLOCK, make_apply_range, make_block_fold


def make_stage_kernel(
    formula: RowFormula, element: str, operands: Operands, stage: int, step: Step = Step.STAGE
):
    """``kernel(p, begin, end)``: blocks of rows; whole rows where the last stage only finishes.

    ``step`` is what is done of a pass that is taken again and again.
    """

    @inner
    def joined(p, const, row, index):
        return no_vectors()

    known: tuple[str, ...] = ("",)
    before = 0  # components of earlier passes' states, one for each block of every row
    for earlier in formula.passes[:stage]:
        bound = BoundPass(formula, earlier, element, operands, known)
        if bound.most:
            joined = _with_kept(joined, bound, len(known), before)
        else:
            joined = _with_pass(joined, bound, before)
        before += _kept_by(bound)
        known = known + earlier.names
    if stage < len(formula.passes):
        bound = BoundPass(formula, formula.passes[stage], element, operands, known)
        if step is Step.BEGIN:
            return _begin(bound, operands, joined, len(known), before)
        if step is Step.CLOSE:
            return _close(bound, operands, joined, len(known), before)
        if bound.most:
            joined = _with_kept(joined, bound, len(known), before)
        return _partials(formula, bound, operands, joined, before)
    if formula.finish:
        return _finish(formula, element, operands, joined, known)
    return _apply(formula, element, operands, joined, known)


def _kept_by(bound: BoundPass) -> int:
    """Components that a pass keeps for each block: its state, and values as often as there is room.

    Only those of the first block of a row are used.
    """
    return (bound.fold.size if bound.fold else 0) + (bound.gives if bound.most else 0)


def _place_of(bound: BoundPass, before: int):
    """``place(p, index)``: where the values of a row lie."""
    size, gives = bound.fold.size, bound.gives

    @inner
    def place(p, index):
        rows, blocks = word(p, UNITS), word(p, BLOCKS)
        return word(p, SCRATCH) + (rows * blocks * (before + size) + index * gives) * 8

    return place


def _with_kept(joined, bound: BoundPass, known_size: int, before: int):
    """What a pass that is taken again and again gave last."""
    place, read_one = _place_of(bound, before), state_emitters(bound.gives)[2]

    @inner
    def kept(p, const, row, index):
        return joined(p, const, row, index) + read_one(place(p, index))

    return kept


def _begin(bound: BoundPass, operands: Operands, joined, known_size: int, before: int):
    place, first_values = _place_of(bound, before), bound.first
    write_tail = write_last(bound.gives)
    addresses_of, fetch_rows = operands.addresses, operands.fetch_rows

    def kernel(p, first, last):
        const = operands.constants(p)
        for index in range(word(p, UNITS)):
            row = fetch_rows(addresses_of(p, index))
            values = first_values(const, row, joined(p, const, row, index))
            write_tail(place(p, index), values)
        set_word(p, MOVING, 1)

    return kernel


def _close(bound: BoundPass, operands: Operands, joined, known_size: int, before: int):
    place, rests = _place_of(bound, before), bound.rests
    write_tail = write_last(bound.gives)
    kept = _with_kept(joined, bound, known_size, before)
    closed = _with_pass(kept, bound, before)
    addresses_of, fetch_rows = operands.addresses, operands.fetch_rows

    def kernel(p, first, last):
        const, moving = operands.constants(p), 0
        for index in range(word(p, UNITS)):
            row = fetch_rows(addresses_of(p, index))
            earlier, values = kept(p, const, row, index), closed(p, const, row, index)
            write_tail(place(p, index), values)
            if not rests(earlier, values):
                moving = 1
        set_word(p, MOVING, moving)

    return kernel


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
        const, strides = operands.constants(p), strides_of(p)
        rows, blocks, extent = word(p, UNITS), word(p, BLOCKS), word(p, EXTENT)
        base = word(p, SCRATCH) + rows * blocks * before * 8
        for index in range(begin // blocks, (end + blocks - 1) // blocks):
            addresses = addresses_of(p, index)
            row = fetch_rows(addresses)
            line = (p, const, row, addresses, strides, 0)
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
        const, strides = operands.constants(p), strides_of(p)
        blocks, extent = word(p, BLOCKS), word(p, EXTENT)
        for index in range(begin // blocks, (end + blocks - 1) // blocks):
            addresses = addresses_of(p, index)
            row = fetch_rows(addresses)
            found = joined(p, const, row, index)
            first, last = max(begin, index * blocks), least(end, (index + 1) * blocks)
            start = (first - index * blocks) * BLOCK
            stop = least((last - index * blocks) * BLOCK, extent)
            line = (p, const, row, addresses, strides, 0)
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
        const = operands.constants(p)
        for index in range(begin, end):
            addresses = addresses_of(p, index)
            row = fetch_rows(addresses)
            found = joined(p, const, row, index)
            store_rows(addresses, finish(const, row, found, no_vectors()))

    return kernel
