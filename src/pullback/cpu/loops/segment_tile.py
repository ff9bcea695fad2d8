"""One tile of columns of one segment: passes over its rows, and what follows them.

Where ids put the rows in order they lie anywhere in memory, and are asked for some rows ahead.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...formulas.record import RowFormula
from ..codegen.bind import per_element, per_row
from ..codegen.block import emit_word, least, word
from ..codegen.elementary import primitives_for
from ..codegen.jit import inlined, inner
from ..codegen.lanes import DOUBLES, I64, LANES, splat
from ..codegen.operands import Operands
from ..codegen.passes import BoundPass
from ..codegen.vectors import counting, no_vectors, tuple_intrinsics, unpack
from ..segment_words import AHEAD, OPERANDS, ORDER, TILE_COLUMNS
from ..words import ITEMSIZE, LINE

TILE = TILE_COLUMNS
PITCH = 8 * TILE
# Packed columns that are folded at a time, with states of at most so many components in registers.
BLOCK, MOST_HELD = 8 * LANES, 2


def make_places(operands: Operands, writes_rows: bool):
    """``places(addresses, strides, n, segment)``: where each operand has an input row's values.

    Operands with a row for every segment have them at the segment.
    """
    kind = types.UniTuple(types.int64, operands.count)
    by_segment = {*operands.row_at, *(operands.output_at if writes_rows else ())}

    @intrinsic
    def places(context, addresses, strides, n, segment):
        def codegen(ctx, builder, sig, args):
            pairs = zip(unpack(builder, args[0]), unpack(builder, args[1]), strict=True)
            items = [
                builder.add(base, builder.mul(args[3] if o in by_segment else args[2], step))
                for o, (base, step) in enumerate(pairs)
            ]
            return ctx.make_tuple(builder, kind, items)

        return kind(kind, kind, types.int64, types.int64), codegen

    return places


def operand_words(operands: Operands, k: int):
    """``words(p)``: the address (0), row stride (1) or column stride (2) of every operand."""

    def emit(builder, block, operand: int) -> ir.Value:
        return emit_word(builder, block, I64(OPERANDS + 3 * operand + k))

    return operands.words(emit)


@intrinsic
def with_extent(context, const, rows):
    """The constants of formulas with the number of rows of a segment as the extent."""

    def codegen(ctx, builder, sig, args):
        extent = builder.sitofp(splat(builder, args[1]), DOUBLES)
        return ctx.make_tuple(builder, const, [extent, *unpack(builder, args[0])[1:]])

    return const(const, types.int64), codegen


@inner
def row_itself(p, k):
    return k


@inner
def row_in_order(p, k):
    return word(word(p, ORDER), k)


class Tile:
    """What the steps over one tile of one segment share."""

    def __init__(self, formula: RowFormula, element: str, operands: Operands, row_at):
        self.formula, self.element, self.operands = formula, element, operands
        self.row_at = row_at
        self.ordered = row_at is row_in_order
        self.places = make_places(operands, formula.finish is not None)
        rows = tuple_intrinsics(max(1, len(operands.row)))
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
        read_known = tuple_intrinsics(known_size)[0]
        write_known = tuple_intrinsics(known_size + bound.gives)[1]
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
        read_known, read_row = tuple_intrinsics(known_size)[0], self.read_row
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
        if fold.size > MOST_HELD:
            return None
        lift, combine, begin, write = fold.lift, fold.combine, bound.begin, fold.write
        read_known, read_row = tuple_intrinsics(known_size)[0], self.read_row
        fetch, row_at = self.operands.packed_twin().fetch_columns, self.row_at
        places, ask_rows = self.places, self.ask_rows(to_write=False)

        @inlined
        def begun(const, boxes, c):
            return begin(const, read_row(boxes[0] + 8 * c, PITCH))

        @inlined
        def with_row(p, const, at, steps, left, boxes, c, index, state):
            full = fetch(p, at, steps, left + c, LANES)
            row, known = read_row(boxes[0] + 8 * c, PITCH), read_known(boxes[1] + 8 * c, PITCH)
            return combine(state, lift(index, const, full, row, known))

        @inner
        def fold_block(p, const, memory, span, left, width, boxes, c):
            addresses, strides, steps = memory
            segment, first, after = span
            s0, s1 = begun(const, boxes, c), begun(const, boxes, c + 8)
            s2, s3 = begun(const, boxes, c + 16), begun(const, boxes, c + 24)
            s4, s5 = begun(const, boxes, c + 32), begun(const, boxes, c + 40)
            s6, s7 = begun(const, boxes, c + 48), begun(const, boxes, c + 56)
            for k in range(first, after):
                at = places(addresses, strides, row_at(p, k), segment)
                index = counting(k - first, 0)
                ask_rows(p, memory, span, k, left, c, width)
                s0 = with_row(p, const, at, steps, left, boxes, c, index, s0)
                s1 = with_row(p, const, at, steps, left, boxes, c + 8, index, s1)
                s2 = with_row(p, const, at, steps, left, boxes, c + 16, index, s2)
                s3 = with_row(p, const, at, steps, left, boxes, c + 24, index, s3)
                s4 = with_row(p, const, at, steps, left, boxes, c + 32, index, s4)
                s5 = with_row(p, const, at, steps, left, boxes, c + 40, index, s5)
                s6 = with_row(p, const, at, steps, left, boxes, c + 48, index, s6)
                s7 = with_row(p, const, at, steps, left, boxes, c + 56, index, s7)
            box = boxes[2] + 8 * c
            write(box, PITCH, s0)
            write(box + 64, PITCH, s1)
            write(box + 128, PITCH, s2)
            write(box + 192, PITCH, s3)
            write(box + 256, PITCH, s4)
            write(box + 320, PITCH, s5)
            write(box + 384, PITCH, s6)
            write(box + 448, PITCH, s7)

        return fold_block

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
        read_known, read_row = tuple_intrinsics(len(known))[0], self.read_row
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
        read_known, read_row = tuple_intrinsics(len(known))[0], self.read_row
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

        @inner
        def apply_tile(p, const, memory, span, left, width, boxes):
            addresses, strides, steps = memory
            segment, first, after = span
            whole = width // LANES * LANES if is_packed(steps) else 0
            for k in range(first, after):
                at = places(addresses, strides, row_at(p, k), segment)
                index = counting(k - first, 0)
                for c in range(0, width, BLOCK):
                    ask_rows(p, memory, span, k, left, c, width)
                for c in range(0, whole, LANES):
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
