"""Rows that ids or offsets cut into segments: looking at the ids, and putting the rows in order.

Sorted ids and offsets give each segment a run of rows; unsorted ids are put in order by a stable
counting sort of the row numbers in the workspace, which threads share by parts of the rows. Rows
that are only copied by id need no order, and no arithmetic either.
"""

from __future__ import annotations

from llvmlite import ir

from ..codegen.block import ask_to_write, fetch_min, is_below, least
from ..codegen.functions import emitter, inlined, inner
from ..codegen.lanes import I64, LANES, splat
from ..codegen.listing import make_are_inside
from ..codegen.memory import int32_at, set_word, word
from ..codegen.storage import ITEMSIZE
from ..segment_words import (
    COUNTS,
    FIRST_OUTPUT,
    FLAGS,
    ID_SIZE,
    ID_STRIDE,
    IDS,
    NUM_COLUMNS,
    NUM_INPUTS,
    NUM_OPERANDS,
    NUM_SEGMENTS,
    OPERANDS,
    ORDER,
    ORDERED,
    PARTS,
    PLACED_AHEAD,
    STARTS,
)

# Elements that are copied at a time, where rows have as many.
BLOCK = 4 * LANES
LONGS, BYTE = ir.VectorType(I64, LANES), ir.IntType(LANES)


@inner
def id_from(address, size):
    """An id or an offset of four bytes or eight."""
    return word(address, 0) if size == 8 else int32_at(address)


@inner
def id_at(p, n):
    """The id of a row, or an offset, of the size that the block says."""
    return id_from(word(p, IDS) + n * word(p, ID_STRIDE), word(p, ID_SIZE))


def make_id_at(ids: str):
    """``id_at(p, n)`` of ids of one type, for kernels that do little else than read them."""
    size = ITEMSIZE[ids]

    @inner
    def typed_id_at(p, n):
        return id_from(word(p, IDS) + n * word(p, ID_STRIDE), size)

    return typed_id_at


def _any_of_eight(bits: int):
    """``any_of(address, segments, order)``: whether one of eight packed ids is not as it should be.

    Out of range or, where ``order`` asks for it, less than the one before.
    """
    kind = ir.VectorType(ir.IntType(bits), LANES)

    def load(builder, address):
        value = builder.load(builder.inttoptr(address, kind.as_pointer()))
        value.align = bits // 8
        return value if bits == 64 else builder.sext(value, LONGS)

    @emitter
    def any_of(builder, address, segments, order):
        ids = load(builder, address)
        wrong = builder.icmp_unsigned(">=", ids, splat(builder, segments))
        before = load(builder, builder.sub(address, I64(bits // 8)))
        falls = builder.icmp_signed(">", before, ids)
        asked = splat(builder, builder.icmp_signed("!=", order, I64(0)))
        wrong = builder.or_(wrong, builder.and_(falls, asked))
        return builder.icmp_unsigned("!=", builder.bitcast(wrong, BYTE), BYTE(0))

    return any_of


def make_check_kernel(ids: str):
    """``kernel(p, begin, end)`` over rows: look for ids out of range and out of order.

    The two words at ``FLAGS`` are lowered to the first row out of range and the first out of order,
    if the order matters.
    """
    id_at = make_id_at(ids)
    any_of, size = _any_of_eight(8 * ITEMSIZE[ids]), ITEMSIZE[ids]

    @inner
    def look(p, begin, end):
        """One id after the other."""
        segments, answer = word(p, NUM_SEGMENTS), word(p, FLAGS)
        previous = id_at(p, max(begin - 1, 0))
        for n in range(begin, end):
            s = id_at(p, n)
            if s < 0 or s >= segments:
                fetch_min(answer, n)
            if s < previous and word(p, ORDERED) != 0:
                fetch_min(answer + 8, n)
            previous = s

    def kernel(p, begin, end):
        segments, ordered, at = word(p, NUM_SEGMENTS), word(p, ORDERED), word(p, IDS)
        first, whole = begin, begin
        if word(p, ID_STRIDE) == size:
            first = max(begin, 1)  # the id before is looked at too
            whole = first + max(end - first, 0) // LANES * LANES
        look(p, begin, first)
        for n in range(first, whole, LANES):
            if any_of(at + n * size, segments, ordered):
                look(p, n, n + LANES)
        look(p, whole, end)

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
                if is_below(s, segments):
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
            last = (part + 1) * rows // parts
            for n in range(part * rows // parts, last):
                # Stores to lines that are not there wait for each other, requests do not.
                ahead = id_at(p, least(n + PLACED_AHEAD, last - 1))
                if is_below(ahead, segments):
                    ask_to_write(order + 8 * word(places, ahead))
                s = id_at(p, n)
                if is_below(s, segments):
                    at = word(places, s)
                    set_word(order, at, n)
                    set_word(places, s, at + 1)

    return kernel


def _copying(item: int, elements: int):
    """``copy(target, source)`` of so many packed elements of that size."""
    kind = ir.VectorType(ir.IntType(8 * item), elements) if elements > 1 else ir.IntType(8 * item)

    @emitter
    def copy_packed(builder, target, source):
        value = builder.load(builder.inttoptr(source, kind.as_pointer()))
        value.align = item
        builder.store(value, builder.inttoptr(target, kind.as_pointer())).align = item

    return copy_packed


def _copier(item: int):
    """``copy(target, target_stride, source, source_stride, count)`` of elements of that size."""
    kind = ir.IntType(8 * item)

    @emitter
    def clear_one(builder, target):
        builder.store(kind(0), builder.inttoptr(target, kind.as_pointer()))

    copy_one, copy_eight, copy_block = (_copying(item, k) for k in (1, LANES, BLOCK))

    @inner
    def copy(target, target_stride, source, source_stride, count):
        whole = 0
        if target_stride == item and source_stride == item:
            blocks, whole = count // BLOCK * BLOCK, count // LANES * LANES
            for c in range(0, blocks, BLOCK):
                copy_block(target + c * item, source + c * item)
            for c in range(blocks, whole, LANES):
                copy_eight(target + c * item, source + c * item)
        for c in range(whole, count):
            copy_one(target + c * target_stride, source + c * source_stride)

    @inner
    def clear(target, target_stride, count):
        for c in range(count):
            clear_one(target + c * target_stride)

    return copy, clear


def make_is_inside(ids: str, by_offsets: bool):
    """``inside(p, n)``: whether a row belongs to a segment."""
    id_at = make_id_at(ids)
    if by_offsets:

        @inner
        def inside_offsets(p, n):
            return id_at(p, 0) <= n < id_at(p, word(p, NUM_SEGMENTS))

        return inside_offsets

    @inner
    def inside(p, n):
        return 0 <= id_at(p, n) < word(p, NUM_SEGMENTS)

    return inside


def make_clear_row(element: str):
    """``clear_row(p, n)``: zeros in a row of every output."""
    clear = _copier(ITEMSIZE[element])[1]

    @inner
    def clear_row(p, n):
        for o in range(word(p, FIRST_OUTPUT), word(p, NUM_OPERANDS)):
            at = OPERANDS + 3 * o
            target = word(p, at) + n * word(p, at + 1)
            clear(target, word(p, at + 2), word(p, NUM_COLUMNS))

    return clear_row


def make_clear_kernel(element: str, ids: str, by_offsets: bool):
    """``kernel(p, begin, end)`` over input rows: zeros where a row belongs to no segment."""
    inside, clear_row = make_is_inside(ids, by_offsets), make_clear_row(element)

    def kernel(p, begin, end):
        for n in range(begin, end):
            if not inside(p, n):
                clear_row(p, n)

    return kernel


EIGHT = tuple(range(LANES))
# Columns whose rows are copied by one load and one store each.
FEW_COLUMNS = (1, 2, 4, 8)


def make_gather_kernel(element: str, ids: str):
    """``kernel(p, begin, end)`` over input rows: bits of the row that an id names, or zeros."""
    item, size = ITEMSIZE[element], ITEMSIZE[ids]
    copy, clear = _copier(item)
    are_inside, result_at = make_are_inside(size), OPERANDS + 3

    @inlined
    def gather(p, begin, end, copy_row):
        columns, segments = word(p, NUM_COLUMNS), word(p, NUM_SEGMENTS)
        values, value_row = word(p, OPERANDS), word(p, OPERANDS + 1)
        value_column = word(p, OPERANDS + 2)
        result, result_row = word(p, result_at), word(p, result_at + 1)
        result_column = word(p, result_at + 2)
        ids_at, id_stride = word(p, IDS), word(p, ID_STRIDE)
        alone = begin
        if copy_row is not None and id_stride == size:
            # One branch for eight rows, up to one with an id outside.
            whole = begin + (end - begin) // LANES * LANES
            while alone < whole and are_inside(ids_at + alone * size, segments):
                for k in EIGHT:
                    s = id_from(ids_at + (alone + k) * size, size)
                    copy_row(result + (alone + k) * result_row, values + s * value_row)
                alone += LANES
        for n in range(alone, end):
            s = id_from(ids_at + n * id_stride, size)
            target = result + n * result_row
            if not is_below(s, segments):
                clear(target, result_column, columns)
            elif copy_row is None:
                copy(target, result_column, values + s * value_row, value_column, columns)
            else:
                copy_row(target, values + s * value_row)

    few = tuple((columns, _copying(item, columns)) for columns in FEW_COLUMNS)

    def kernel(p, begin, end):
        packed = word(p, OPERANDS + 2) == item and word(p, result_at + 2) == item
        done = 0
        if packed:
            for columns, copy_row in few:
                if word(p, NUM_COLUMNS) == columns:
                    gather(p, begin, end, copy_row)
                    done = 1
        if done == 0:
            gather(p, begin, end, None)

    return kernel
