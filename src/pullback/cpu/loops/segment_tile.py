"""One tile of columns of one segment: passes over its rows, and what follows them.

Where ids put the rows in order they lie anywhere in memory, and are asked for some rows ahead.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ...formulas.bind import primitives_of
from ...formulas.record import RowFormula, parameters
from ..codegen.bind import per_element, per_row
from ..codegen.block import emit_word, least
from ..codegen.column_choices import stored_choice_of
from ..codegen.elementary import primitives_for
from ..codegen.functions import emitter, inlined, inner
from ..codegen.lanes import DOUBLES, I64, LANES, splat
from ..codegen.memory import word
from ..codegen.narrow_blocks import (
    NarrowFold,
    choosing,
    narrow_fold_of,
    rows_of_block,
)
from ..codegen.operands import Operands
from ..codegen.passes import BoundPass
from ..codegen.rounded_alike import call_alike, put_alike
from ..codegen.sixteen import SIXTEEN
from ..codegen.vectors import counting, no_vectors, state_emitters
from ..segment_words import AHEAD, NUM_COLUMNS, OPERANDS, ORDER, TILE_COLUMNS
from ..words import ITEMSIZE, LINE

TILE = TILE_COLUMNS
PITCH = 8 * TILE
# Packed columns that are folded at a time, with states of at most so many components in registers.
BLOCK, MOST_HELD = 8 * LANES, 2


def make_places(operands: Operands, writes_rows: bool):
    """``places(addresses, strides, n, segment)``: where each operand has an input row's values.

    Operands with a row for every segment have them at the segment.
    """
    by_segment = {*operands.row_at, *(operands.output_at if writes_rows else ())}

    @emitter
    def places(builder, addresses, strides, n, segment):
        pairs = zip(addresses, strides, strict=True)
        items = [
            builder.add(base, builder.mul(segment if o in by_segment else n, step))
            for o, (base, step) in enumerate(pairs)
        ]
        return tuple(items)

    return places


def operand_words(operands: Operands, k: int):
    """``words(p)``: the address (0), row stride (1) or column stride (2) of every operand."""

    def emit(builder, block, operand: int) -> ir.Value:
        return emit_word(builder, block, I64(OPERANDS + 3 * operand + k))

    return operands.words(emit)


@emitter
def with_extent(builder, const, rows):
    """The constants of formulas with the number of rows of a segment as the extent."""
    if const[0] is None:
        return const
    extent = builder.sitofp(splat(builder, rows), DOUBLES)
    return (extent, *const[1:])


@inner
def row_itself(p, k):
    return k


@inner
def row_in_order(p, k):
    return word(word(p, ORDER), k)


@inner
def _no_block(p, const, memory, span, left, width, boxes, c):
    """In the place of a loop over blocks that does not pay."""


class Tile:
    """What the steps over one tile of one segment share."""

    def __init__(self, formula: RowFormula, element: str, operands: Operands, row_at):
        self.formula, self.element, self.operands = formula, element, operands
        self.row_at = row_at
        self.ordered = row_at is row_in_order
        self.places = make_places(operands, formula.finish is not None)
        rows = state_emitters(max(1, len(operands.row)))
        self.read_row, self.write_row = rows[0], rows[1]

    def make_rows(self):
        """Row operands into their box, as float64."""
        fetch, write_row, places = self.operands.fetch_row_columns, self.write_row, self.places

        @inner
        def tile_rows(p, const, memory, span, left, width, boxes):
            addresses, strides, steps = memory
            at = places(addresses, strides, span[1], span[0])
            for c in range(0, width, LANES):
                row = fetch(p, at, steps, left + c, least(LANES, width - c))
                write_row(boxes[0] + 8 * c, PITCH, row)

        return tile_rows

    def make_close(self, bound: BoundPass, known_size: int):
        """``close_at(const, boxes, c, state)``: append to the known values."""
        read_known = state_emitters(known_size)[0]
        write_known = state_emitters(known_size + bound.gives)[1]
        read_row, close = self.read_row, bound.close

        @inner
        def close_at(const, boxes, c, state):
            row = read_row(boxes[0] + 8 * c, PITCH)
            known = read_known(boxes[1] + 8 * c, PITCH)
            write_known(boxes[1] + 8 * c, PITCH, close(const, row, known, state))

        return close_at

    def make_pass(self, bound: BoundPass, known_size: int, finish_at):
        """One pass; ``finish_at`` follows at once, while what it knows is in registers."""
        close_at, fold = self.make_close(bound, known_size), bound.fold
        places = self.places
        if fold is None:

            @inner
            def tile_prepare(p, const, memory, span, left, width, boxes):
                at = places(memory[0], memory[1], span[1], span[0])
                for c in range(0, width, LANES):
                    close_at(const, boxes, c, no_vectors())
                    finish_at(p, const, at, memory[2], left, width, boxes, c)

            return tile_prepare

        lift, combine, begin = fold.lift, fold.combine, bound.begin
        read, write = fold.read, fold.write
        read_known, read_row = state_emitters(known_size)[0], self.read_row
        fetch, row_at = self.operands.fetch_columns, self.row_at
        ask_rows, fold_block = self.ask_rows(to_write=False), self.make_block(bound, known_size)
        is_packed, in_blocks = self.operands.all_packed(), fold_block is not None

        @inner
        def tile_pass(p, const, memory, span, left, width, boxes):
            addresses, strides, steps = memory
            segment, first, after = span
            row_box, known_box, state_box = boxes
            whole = 0
            if in_blocks and is_packed(steps):
                whole = width // BLOCK * BLOCK
                for c in range(0, whole, BLOCK):
                    fold_block(p, const, memory, span, left, width, boxes, c)
            if whole < width:
                for c in range(whole, width, LANES):
                    row = read_row(row_box + 8 * c, PITCH)
                    write(state_box + 8 * c, PITCH, begin(const, row))
                for k in range(first, after):
                    at = places(addresses, strides, row_at(p, k), segment)
                    index = counting(k - first, 0)
                    for c in range(whole, width, BLOCK):
                        ask_rows(p, memory, span, k, left, c, width)
                    for c in range(whole, width, LANES):
                        full = fetch(p, at, steps, left + c, least(LANES, width - c))
                        row = read_row(row_box + 8 * c, PITCH)
                        known = read_known(known_box + 8 * c, PITCH)
                        lifted = lift(index, const, full, row, known)
                        state = combine(read(state_box + 8 * c, PITCH), lifted)
                        write(state_box + 8 * c, PITCH, state)
            at = places(addresses, strides, first, segment)
            for c in range(0, width, LANES):
                close_at(const, boxes, c, read(state_box + 8 * c, PITCH))
                finish_at(p, const, at, steps, left, width, boxes, c)

        return tile_pass

    def make_block(self, bound: BoundPass, known_size: int):
        """``fold_block(p, const, memory, span, left, width, boxes, c)``: 64 packed columns.

        Their states stay in registers from the first row of the segment to the last.
        """
        fold = bound.fold
        narrow = narrow_fold_of(bound.monoid, self.operands)
        if narrow:
            return self._make_narrow_block(narrow)
        if fold.size > MOST_HELD:
            return None
        begin, write, briefly = bound.begin, fold.write, fold.briefly
        read_row = self.read_row
        join = self._make_join(bound, known_size, fold.combine)
        join_briefly = self._make_join(bound, known_size, fold.brief) if briefly else join

        @inlined
        def begun(const, boxes, c):
            return begin(const, read_row(boxes[0] + 8 * c, PITCH))

        @inner
        def fold_block(p, const, memory, span, left, width, boxes, c):
            first, after = span[1], span[2]
            states = (
                begun(const, boxes, c), begun(const, boxes, c + 8),
                begun(const, boxes, c + 16), begun(const, boxes, c + 24),
                begun(const, boxes, c + 32), begun(const, boxes, c + 40),
                begun(const, boxes, c + 48), begun(const, boxes, c + 56),
            )  # fmt: skip
            last = first
            if briefly > 0:
                last = first + (after - first) // (briefly + 1) * (briefly + 1)
                for k in range(first, last, briefly + 1):
                    for j in range(k, k + briefly):
                        states = join_briefly(
                            p, const, memory, span, j, left, width, boxes, c, states
                        )
                    states = join(
                        p, const, memory, span, k + briefly, left, width, boxes, c, states
                    )
            for k in range(last, after):
                states = join(p, const, memory, span, k, left, width, boxes, c, states)
            box = boxes[2] + 8 * c
            write(box, PITCH, states[0])
            write(box + 64, PITCH, states[1])
            write(box + 128, PITCH, states[2])
            write(box + 192, PITCH, states[3])
            write(box + 256, PITCH, states[4])
            write(box + 320, PITCH, states[5])
            write(box + 384, PITCH, states[6])
            write(box + 448, PITCH, states[7])

        return fold_block

    def _make_narrow_block(self, fold: NarrowFold):
        """The same on float32 lanes."""
        begin, join, end = fold.begin, fold.join, fold.end
        row_at, places, ask_rows = self.row_at, self.places, self.ask_rows(to_write=False)
        rows_at = rows_of_block(self.operands)

        @inner
        def fold_block(p, const, memory, span, left, width, boxes, c):
            addresses, strides, _ = memory
            segment, first, after = span
            rows = rows_at(places(addresses, strides, first, segment), left + c)
            states = begin()
            for k in range(first, after):
                at = places(addresses, strides, row_at(p, k), segment)
                ask_rows(p, memory, span, k, left, c, width)
                states = join(at, left + c, rows, states)
            end(boxes[2] + 8 * c, states)

        return fold_block

    def _make_join(self, bound: BoundPass, known_size: int, combine):
        """``join(p, const, memory, span, k, left, width, boxes, c, states)``: with the row k."""
        lift, read_known = bound.fold.lift, state_emitters(known_size)[0]
        read_row, row_at, places = self.read_row, self.row_at, self.places
        fetch, ask_rows = self.operands.packed_twin().fetch_columns, self.ask_rows(to_write=False)

        @inlined
        def with_row(p, const, at, steps, left, boxes, c, index, state):
            full = fetch(p, at, steps, left + c, LANES)
            row, known = read_row(boxes[0] + 8 * c, PITCH), read_known(boxes[1] + 8 * c, PITCH)
            return combine(state, lift(index, const, full, row, known))

        @inlined
        def join(p, const, memory, span, k, left, width, boxes, c, states):
            addresses, strides, steps = memory
            at = places(addresses, strides, row_at(p, k), span[0])
            index = counting(k - span[1], 0)
            ask_rows(p, memory, span, k, left, c, width)
            return (
                with_row(p, const, at, steps, left, boxes, c, index, states[0]),
                with_row(p, const, at, steps, left, boxes, c + 8, index, states[1]),
                with_row(p, const, at, steps, left, boxes, c + 16, index, states[2]),
                with_row(p, const, at, steps, left, boxes, c + 24, index, states[3]),
                with_row(p, const, at, steps, left, boxes, c + 32, index, states[4]),
                with_row(p, const, at, steps, left, boxes, c + 40, index, states[5]),
                with_row(p, const, at, steps, left, boxes, c + 48, index, states[6]),
                with_row(p, const, at, steps, left, boxes, c + 56, index, states[7]),
            )

        return join

    def ask_rows(self, to_write: bool):
        """``ask_rows(p, memory, span, k, left, c, width)``: for what is read some rows after k.

        Rows in order of their ids lie anywhere; nobody but their number tells where. Of those of
        the segment 64 columns are asked for, as they are folded; of those behind it all, when the
        first columns are.
        """
        operands, ordered, places = self.operands, self.ordered, self.places
        asked = operands.output_at if to_write else operands.full_at
        per_line = LINE // ITEMSIZE[self.element]
        ask = operands.ask_columns(asked, to_write)
        # Rows need not begin where a line does: the last column may lie in one more.
        columns = (*range(0, BLOCK, per_line), BLOCK - 1)
        ask_block = operands.ask_columns(asked, to_write, columns)

        @inlined
        def ask_rows(p, memory, span, k, left, c, width):
            if ordered and (c == 0 or k + AHEAD < span[2]):
                addresses, strides, steps = memory
                at = places(addresses, strides, row_in_order(p, k + AHEAD), span[0])
                if c + BLOCK <= width:
                    ask_block(at, steps, left + c)
                else:
                    for column in range(left + c, left + width, per_line):
                        ask(at, steps, column)
                if k + AHEAD >= span[2]:
                    for column in range(left + c + BLOCK, left + width, per_line):
                        ask(at, steps, column)

        return ask_rows

    def make_finish(self, known: tuple[str, ...]):
        """``finish_at(p, const, at, steps, left, width, boxes, c)``: one value a column."""
        operands, outputs = self.operands, len(self.operands.outputs)
        read_known, read_row = state_emitters(len(known))[0], self.read_row
        primitives = primitives_for(self.element)
        finish = per_row(self.formula.finish, primitives, operands.row, known, (), outputs)
        put = operands.put_columns

        @inner
        def finish_at(p, const, at, steps, left, width, boxes, c):
            row = read_row(boxes[0] + 8 * c, PITCH)
            found = read_known(boxes[1] + 8 * c, PITCH)
            values = finish(const, row, found, no_vectors())
            put(p, at, steps, left + c, least(LANES, width - c), values)

        return finish_at

    def make_apply(self, known: tuple[str, ...]):
        """One value for each row and column."""
        operands, outputs = self.operands, len(self.operands.outputs)
        read_known, read_row = state_emitters(len(known))[0], self.read_row
        fetch, put = operands.fetch_columns, operands.put_columns
        twin = operands.packed_twin()
        fetch_eight, put_eight, is_packed = (
            twin.fetch_columns,
            twin.put_columns,
            twin.all_packed(),
        )
        places, row_at = self.places, self.row_at
        ask_rows = self.ask_rows(to_write=True)
        primitives = primitives_for(self.element)
        apply = per_element(
            self.formula.apply, primitives, operands.full, operands.row, known, outputs
        )

        apply_block, in_blocks = self.make_apply_block(apply, known)

        @inner
        def apply_tile(p, const, memory, span, left, width, boxes):
            addresses, strides, steps = memory
            segment, first, after = span
            whole = width // LANES * LANES if is_packed(steps) else 0
            blocks = whole // BLOCK * BLOCK if in_blocks else 0
            for c in range(0, blocks, BLOCK):
                apply_block(p, const, memory, span, left, width, boxes, c)
            if blocks == width:
                return
            for k in range(first, after):
                at = places(addresses, strides, row_at(p, k), segment)
                index = counting(k - first, 0)
                for c in range(blocks, width, BLOCK):
                    ask_rows(p, memory, span, k, left, c, width)
                for c in range(blocks, whole, LANES):
                    full = fetch_eight(p, at, steps, left + c, LANES)
                    row = read_row(boxes[0] + 8 * c, PITCH)
                    found = read_known(boxes[1] + 8 * c, PITCH)
                    values = apply(index, const, full, row, found)
                    put_eight(p, at, steps, left + c, LANES, values)
                for c in range(whole, width, LANES):
                    count = least(LANES, width - c)
                    full = fetch(p, at, steps, left + c, count)
                    row = read_row(boxes[0] + 8 * c, PITCH)
                    found = read_known(boxes[1] + 8 * c, PITCH)
                    put(p, at, steps, left + c, count, apply(index, const, full, row, found))

        return apply_tile

    def make_alone(self):
        """``apply_row(p, memory, segment, n, box)``: a row that depends on no other.

        Nothing of the segment is held for other rows, and what it has is read as it is needed.
        """
        operands, outputs = self.operands, len(self.operands.outputs)
        twin, places, fetch_row = operands.packed_twin(), self.places, operands.fetch_row_columns
        fetch, put, is_packed = operands.fetch_columns, operands.put_columns, twin.all_packed()
        fetch_eight, put_eight = twin.fetch_columns, twin.put_columns
        primitives = primitives_for(self.element)
        apply = per_element(
            self.formula.apply, primitives, operands.full, operands.row, (), outputs
        )

        call = call_alike(self.formula.apply, operands)
        put_sixteen: Any = put_alike(call, operands) if call else None

        @inlined
        def apply_eight(p, const, at, steps, c, index):
            row = fetch_row(p, at, steps, c, LANES)
            full = fetch_eight(p, at, steps, c, LANES)
            put_eight(p, at, steps, c, LANES, apply(index, const, full, row, no_vectors()))

        @inner
        def apply_sixteen(p, at, steps, c):
            const, index = operands.constants(p), counting(0, 0)
            apply_eight(p, const, at, steps, c, index)
            apply_eight(p, const, at, steps, c + LANES, index)

        @inlined
        def apply_row(p, memory, segment, n, box):
            addresses, strides, steps = memory
            const = operands.constants(p)
            at, width = places(addresses, strides, n, segment), word(p, NUM_COLUMNS)
            index = counting(0, 0)
            whole = width // LANES * LANES if is_packed(steps) else 0
            done = 0
            if put_sixteen is not None:
                done = whole // SIXTEEN * SIXTEEN
                for c in range(0, done, SIXTEEN):
                    if not put_sixteen(at, c, const):
                        apply_sixteen(p, at, steps, c)
            for c in range(done, whole, LANES):
                apply_eight(p, const, at, steps, c, index)
            for c in range(whole, width, LANES):
                count = least(LANES, width - c)
                row, full = fetch_row(p, at, steps, c, count), fetch(p, at, steps, c, count)
                put(p, at, steps, c, count, apply(index, const, full, row, no_vectors()))

        return apply_row

    def make_apply_block(self, apply, known: tuple[str, ...]):
        """``apply_block(p, const, memory, span, left, width, boxes, c)``: 64 packed columns.

        What an element is computed with stays in registers from the first row of the segment to
        the last. With it, whether it does: an exponential wants them for itself.
        """
        choice = stored_choice_of(self.formula.apply, self.operands, known)
        if choice:
            return self._make_choice_block(*choosing(choice, self.operands, PITCH)), True
        asked = {*parameters(self.formula.apply)}
        held = len(asked & {*self.operands.row, *known})
        pays = held <= MOST_HELD and "exp" not in primitives_of(self.formula.apply)
        read_known, read_row = state_emitters(len(known))[0], self.read_row
        twin, places, row_at = self.operands.packed_twin(), self.places, self.row_at
        fetch, put, ask_rows = twin.fetch_columns, twin.put_columns, self.ask_rows(to_write=True)

        @inlined
        def held_at(boxes, c):
            return read_row(boxes[0] + 8 * c, PITCH), read_known(boxes[1] + 8 * c, PITCH)

        @inlined
        def one(p, const, at, steps, column, index, held):
            values = apply(index, const, fetch(p, at, steps, column, LANES), held[0], held[1])
            put(p, at, steps, column, LANES, values)

        @inner
        def apply_block(p, const, memory, span, left, width, boxes, c):
            addresses, strides, steps = memory
            segment, first, after = span
            h0, h1, h2, h3 = (
                held_at(boxes, c), held_at(boxes, c + 8),
                held_at(boxes, c + 16), held_at(boxes, c + 24),
            )  # fmt: skip
            h4, h5, h6, h7 = (
                held_at(boxes, c + 32), held_at(boxes, c + 40),
                held_at(boxes, c + 48), held_at(boxes, c + 56),
            )  # fmt: skip
            for k in range(first, after):
                at = places(addresses, strides, row_at(p, k), segment)
                index, column = counting(k - first, 0), left + c
                ask_rows(p, memory, span, k, left, c, width)
                one(p, const, at, steps, column, index, h0)
                one(p, const, at, steps, column + 8, index, h1)
                one(p, const, at, steps, column + 16, index, h2)
                one(p, const, at, steps, column + 24, index, h3)
                one(p, const, at, steps, column + 32, index, h4)
                one(p, const, at, steps, column + 40, index, h5)
                one(p, const, at, steps, column + 48, index, h6)
                one(p, const, at, steps, column + 56, index, h7)

        return (apply_block, True) if pays else (_no_block, False)

    def _make_choice_block(self, prepare, put):
        """The same of what is only chosen, as it is stored."""
        row_at, places, ask_rows = self.row_at, self.places, self.ask_rows(to_write=True)
        rows_at = rows_of_block(self.operands)

        @inner
        def choose_block(p, const, memory, span, left, width, boxes, c):
            addresses, strides, _ = memory
            segment, first, after = span
            rows = rows_at(places(addresses, strides, first, segment), left + c)
            numbers = prepare(boxes[0] + 8 * c, boxes[1] + 8 * c)
            for k in range(first, after):
                at = places(addresses, strides, row_at(p, k), segment)
                ask_rows(p, memory, span, k, left, c, width)
                put(at, left + c, rows, numbers)

        return choose_block
