"""Segment sums: rows added by id, and rows copied by id.

Forward, the rows of a segment are added in row order, a tile of columns at a time, in float64.
Sorted ids give each segment a run of rows; unsorted ids are put in order by a stable counting sort
of the row numbers in the workspace, which threads share by parts of the rows. Backward copies bits
and needs no arithmetic.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...formulas.record import RowFormula
from ..codegen.bind import Fold
from ..codegen.block import fetch_min, int32_at, least, set_word, word
from ..codegen.elementary import primitives_for
from ..codegen.jit import inner
from ..codegen.lanes import LANES
from ..codegen.operands import Operands
from ..codegen.storage import ITEMSIZE
from ..codegen.vectors import counting, no_vectors, stack

# Words of the parameter block of a segment kernel.
VALUES = 0  # input (forward) or d_output (backward)
IDS = 1
RESULT = 2
NUM_INPUTS = 3
NUM_COLUMNS = 4
NUM_SEGMENTS = 5
VALUE_ROW, VALUE_COLUMN = 6, 7  # byte strides
ID_STRIDE = 8
RESULT_ROW, RESULT_COLUMN = 9, 10
ORDER = 11  # workspace: row numbers in order of id; 0 for sorted ids
STARTS = 12  # workspace: where each segment begins in ORDER
FLAGS = 13  # answer of a check: two rows
COUNTS = 14  # workspace: rows of each part in each segment, then where the next of them goes
PARTS = 15  # parts the rows are sorted in
WORDS = 16

# Ids from this size on are sorted in as many parts as there are threads, up to so many.
PARTED_BYTES = 1 << 18
MOST_PARTS = 4

TILE = 256


def sorting_parts(rows: int, threads: int) -> int:
    return min(threads, MOST_PARTS) if 8 * rows >= PARTED_BYTES else 1


def sorting_offsets(segments: int) -> dict[int, int]:
    """Where in the workspace each array of the sort begins, by its word of the block."""
    counts = 8 * (segments + 1)
    return {STARTS: 0, COUNTS: counts, ORDER: counts + 8 * MOST_PARTS * segments}


def sorting_bytes(rows: int, segments: int) -> int:
    return sorting_offsets(segments)[ORDER] + 8 * rows


def make_id_at(ids: str):
    """``id_at(p, n)``: the id of a row."""
    wide = ids == "i64"

    @inner
    def id_at(p, n):
        address = word(p, IDS) + n * word(p, ID_STRIDE)
        return word(address, 0) if wide else int32_at(address)

    return id_at


def make_check_kernel(ids: str):
    """``kernel(p, begin, end)`` over rows: look for ids out of range and out of order.

    The two words at ``FLAGS`` are lowered to the first row out of range and the first out of order.
    """
    id_at = make_id_at(ids)

    def kernel(p, begin, end):
        segments, answer = word(p, NUM_SEGMENTS), word(p, FLAGS)
        outside = unordered = end
        previous = id_at(p, max(begin - 1, 0))
        for n in range(begin, end):
            s = id_at(p, n)
            if s < 0 or s >= segments:
                outside = least(outside, n)
            if s < previous:
                unordered = least(unordered, n)
            previous = s
        if outside < end:
            fetch_min(answer, outside)
        if unordered < end:
            fetch_min(answer + 8, unordered)

    return kernel


def make_count_kernel(ids: str):
    """``kernel(p, begin, end)`` over parts of the rows: how many of them each segment has."""
    id_at = make_id_at(ids)

    def kernel(p, begin, end):
        segments, rows, parts = word(p, NUM_SEGMENTS), word(p, NUM_INPUTS), word(p, PARTS)
        for part in range(begin, end):
            counts = word(p, COUNTS) + part * segments * 8
            for s in range(segments):
                set_word(counts, s, 0)
            for n in range(part * rows // parts, (part + 1) * rows // parts):
                s = id_at(p, n)
                if 0 <= s < segments:
                    set_word(counts, s, word(counts, s) + 1)

    return kernel


def make_place_kernel():
    """Where each segment begins, and its rows of every part: those of a segment part by part."""

    def kernel(p, begin, end):
        segments, parts = word(p, NUM_SEGMENTS), word(p, PARTS)
        starts, counts = word(p, STARTS), word(p, COUNTS)
        total = 0
        for s in range(segments):
            set_word(starts, s, total)
            for part in range(parts):
                count = word(counts, part * segments + s)
                set_word(counts, part * segments + s, total)
                total += count
        set_word(starts, segments, total)

    return kernel


def make_fill_kernel(ids: str):
    """``kernel(p, begin, end)`` over parts of the rows: their numbers to their places."""
    id_at = make_id_at(ids)

    def kernel(p, begin, end):
        segments, rows, parts = word(p, NUM_SEGMENTS), word(p, NUM_INPUTS), word(p, PARTS)
        order = word(p, ORDER)
        for part in range(begin, end):
            places = word(p, COUNTS) + part * segments * 8
            for n in range(part * rows // parts, (part + 1) * rows // parts):
                s = id_at(p, n)
                if 0 <= s < segments:
                    at = word(places, s)
                    set_word(order, at, n)
                    set_word(places, s, at + 1)

    return kernel


def make_sum_kernel(formula: RowFormula, element: str, ids: str, is_sorted: bool):
    """``kernel(p, begin, end)`` over segments."""
    fold = Fold(formula.passes[0].monoid, primitives_for(element), full=("x",))
    lift, combine, identity, read, write = (
        fold.lift,
        fold.combine,
        fold.identity,
        fold.read,
        fold.write,
    )
    # Only the value of a row travels through the fold.
    operands = Operands(element, ("x",), (), ("y",))
    fetch, put = operands.fetch_columns, operands.put_columns
    id_at = make_id_at(ids)
    scratch = stack(TILE * fold.size)
    pitch = 8 * TILE

    @inner
    def first_row(p, segment):
        """The first row whose id is at least ``segment``, ids being sorted."""
        low, high = 0, word(p, NUM_INPUTS)
        while low < high:
            middle = (low + high) // 2
            if id_at(p, middle) < segment:
                low = middle + 1
            else:
                high = middle
        return low

    def kernel(p, begin, end):
        columns = word(p, NUM_COLUMNS)
        values, value_row = word(p, VALUES), word(p, VALUE_ROW)
        result, result_row = word(p, RESULT), word(p, RESULT_ROW)
        steps = (word(p, VALUE_COLUMN), word(p, RESULT_COLUMN))
        order, starts = word(p, ORDER), word(p, STARTS)
        box = scratch()
        nothing = no_vectors()
        rows = word(p, NUM_INPUTS)
        after = first_row(p, begin) if is_sorted else word(starts, begin)
        for segment in range(begin, end):
            first = after
            if is_sorted:
                while after < rows and id_at(p, after) == segment:
                    after += 1
            else:
                after = word(starts, segment + 1)
            for left in range(0, columns, TILE):
                width = least(TILE, columns - left)
                for c in range(0, width, LANES):
                    write(box + 8 * c, pitch, identity())
                for k in range(first, after):
                    n = k if is_sorted else word(order, k)
                    at = (values + n * value_row, 0)
                    for c in range(0, width, LANES):
                        full = fetch(p, at, steps, left + c, least(LANES, width - c))
                        lifted = lift(counting(0, 0), nothing, full, nothing, nothing)
                        state = combine(read(box + 8 * c, pitch), lifted)
                        write(box + 8 * c, pitch, state)
                at = (0, result + segment * result_row)
                for c in range(0, width, LANES):
                    put(p, at, steps, left + c, least(LANES, width - c), read(box + 8 * c, pitch))

    return kernel


def _copier(item: int):
    """``copy(target, target_stride, source, source_stride, count)`` of elements of that size."""
    kind = ir.IntType(8 * item)

    @intrinsic
    def copy_one(context, target, source):
        def codegen(ctx, builder, sig, args):
            value = builder.load(builder.inttoptr(args[1], kind.as_pointer()))
            builder.store(value, builder.inttoptr(args[0], kind.as_pointer()))
            return ctx.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    @intrinsic
    def clear_one(context, target):
        def codegen(ctx, builder, sig, args):
            builder.store(kind(0), builder.inttoptr(args[0], kind.as_pointer()))
            return ctx.get_dummy_value()

        return types.void(types.int64), codegen

    @intrinsic
    def copy_eight(context, target, source):
        def codegen(ctx, builder, sig, args):
            eight = ir.VectorType(kind, LANES).as_pointer()
            value = builder.load(builder.inttoptr(args[1], eight))
            value.align = item
            builder.store(value, builder.inttoptr(args[0], eight)).align = item
            return ctx.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    @inner
    def copy(target, target_stride, source, source_stride, count):
        whole = 0
        if target_stride == item and source_stride == item:
            whole = count // LANES * LANES
            for c in range(0, whole, LANES):
                copy_eight(target + c * item, source + c * item)
        for c in range(whole, count):
            copy_one(target + c * target_stride, source + c * source_stride)

    @inner
    def clear(target, target_stride, count):
        for c in range(count):
            clear_one(target + c * target_stride)

    return copy, clear


def make_gather_kernel(element: str, ids: str):
    """``kernel(p, begin, end)`` over input rows."""
    copy, clear = _copier(ITEMSIZE[element])
    id_at = make_id_at(ids)

    def kernel(p, begin, end):
        columns, segments = word(p, NUM_COLUMNS), word(p, NUM_SEGMENTS)
        values, value_row, value_column = word(p, VALUES), word(p, VALUE_ROW), word(p, VALUE_COLUMN)
        result, result_row = word(p, RESULT), word(p, RESULT_ROW)
        result_column = word(p, RESULT_COLUMN)
        for n in range(begin, end):
            s = id_at(p, n)
            target = result + n * result_row
            if 0 <= s < segments:
                copy(target, result_column, values + s * value_row, value_column, columns)
            else:
                clear(target, result_column, columns)

    return kernel
