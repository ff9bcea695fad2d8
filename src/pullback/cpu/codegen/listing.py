"""Ids of rows, eight at a time: which rows belong to some segments, and to which."""

from __future__ import annotations

from llvmlite import ir

from .functions import emitter
from .lanes import DOUBLES, I32, I64, LANES, constant, expected, splat
from .memory import declared, is_x86
from .registers import any_piece, registers
from .vectors import stack

_IDS, _MASK = ir.VectorType(I64, LANES), ir.VectorType(ir.IntType(1), LANES)
_COMPRESS = "llvm.x86.avx512.mask.compress.v8i64"


def _loaded(builder, address, size: int):
    kind = ir.VectorType(ir.IntType(8 * size), LANES)
    v = builder.load(builder.inttoptr(address, kind.as_pointer()))
    v.align = size
    return v if size == 8 else builder.sext(v, _IDS)


def _stored(builder, address, v) -> None:
    builder.store(v, builder.inttoptr(address, v.type.as_pointer())).align = 8


def _how_many(builder, inside):
    count = declared(builder, "llvm.ctpop.i64", I64, I64)
    bits = builder.bitcast(inside, ir.IntType(LANES))
    return builder.call(count, [builder.zext(bits, I64)])


def put_together(builder, inside, found, pairs):
    """The lanes inside of each vector one after the other, behind what was found before."""
    if registers().masks and is_x86():
        compress = declared(builder, _COMPRESS, _IDS, _IDS, _IDS, _MASK)
        for v, room in pairs:
            packed = builder.call(compress, [v, ir.Constant(_IDS, None), inside])
            _stored(builder, builder.add(room, builder.mul(found, I64(8))), packed)
        return builder.add(found, _how_many(builder, inside))
    for lane in range(LANES):
        # Where the next goes, unless this is not to be listed: a branch would be guessed wrong.
        for v, room in pairs:
            at = builder.add(room, builder.mul(found, I64(8)))
            _stored(builder, at, builder.extract_element(v, I32(lane)))
        here = builder.extract_element(inside, I32(lane))
        found = builder.add(found, builder.zext(here, I64))
    return found


def make_list_eight(size: int):
    """``list_eight(address, low, segments, found, listed, vectors, rooms)``: how many are listed.

    Of eight packed ids of ``size`` bytes those of segments from ``low`` on, and the same lanes of
    vectors, each to a room of its own.
    """

    @emitter
    def list_eight(builder, address, low, segments, found, listed, vectors, rooms):
        ids = _loaded(builder, address, size)
        away = builder.sub(ids, splat(builder, low))
        inside = builder.icmp_unsigned("<", away, splat(builder, segments))
        words = [builder.bitcast(v, _IDS) for v in vectors]
        pairs = [(ids, listed), *zip(words, rooms, strict=True)]
        return put_together(builder, inside, found, pairs)

    return list_eight


@emitter
def numbers_from(builder, n):
    """Eight integers that follow each other."""
    return (builder.add(splat(builder, n), constant(range(LANES), I64)),)


@emitter
def words_at(builder, address):
    """Eight integers."""
    v = builder.load(builder.inttoptr(address, _IDS.as_pointer()))
    v.align = 8
    return (v,)


def list_holding(builder, mask, n, after, segments, found, rooms):
    """How many rows are listed then, and their segments: those with a lane in the mask.

    Rows from n on, up to one; ``segments`` are those of each, or where eight of them are.
    """
    if not isinstance(segments, list):
        numbers = builder.add(splat(builder, n), constant(range(LANES), I64))
        there = builder.icmp_signed("<", numbers, splat(builder, after))
        pairs = zip((numbers, _loaded(builder, segments, 8)), rooms, strict=True)
        return put_together(builder, builder.and_(mask, there), found, list(pairs))
    bits, pitch = builder.bitcast(mask, ir.IntType(LANES)), LANES // len(segments)
    for r, segment in enumerate(segments):
        number, own = builder.add(n, I64(r)), ((1 << pitch) - 1) << (r * pitch)
        for value, room in zip((number, segment), rooms, strict=True):
            at = builder.add(room, builder.mul(found, I64(8)))
            builder.store(value, builder.inttoptr(at, I64.as_pointer()))
        holds = builder.icmp_unsigned("!=", builder.and_(bits, bits.type(own)), bits.type(0))
        holds = builder.and_(holds, builder.icmp_signed("<", number, after))
        found = builder.add(found, builder.zext(holds, I64))
    return found


@emitter
def put_first(builder, vectors, rooms, found):
    """The first lane of vectors, each to its room."""
    for v, room in zip(vectors, rooms, strict=True):
        at = builder.add(room, builder.mul(found, I64(8)))
        _stored(builder, at, builder.extract_element(v, I32(0)))


@emitter
def doubles_at(builder, rooms, k):
    """Eight float64 of every room, from one on."""
    return tuple(
        _load_doubles(builder, builder.add(room, builder.mul(k, I64(8)))) for room in rooms
    )


def _load_doubles(builder, address):
    v = builder.load(builder.inttoptr(address, DOUBLES.as_pointer()))
    v.align = 8
    return v


def make_rooms(count: int, words: int):
    """``rooms()``: the addresses of so many rooms on the stack, of so many words each."""
    allocate = stack(count * words).function

    @emitter
    def rooms(builder):
        first = allocate(builder)
        return tuple(builder.add(first, I64(8 * words * k)) for k in range(count))

    return rooms


def make_list_clamped(size: int):
    """``list_clamped(address, segments, listed)``: how many of eight ids are inside.

    The first segment is listed in the place of others.
    """

    @emitter
    def list_clamped(builder, address, segments, listed):
        ids = _loaded(builder, address, size)
        inside = builder.icmp_unsigned("<", ids, splat(builder, segments))
        _stored(builder, listed, builder.select(inside, ids, ir.Constant(_IDS, None)))
        return _how_many(builder, inside)

    return list_clamped


def make_are_inside(size: int):
    """``are_inside(address, segments)``: whether eight packed ids name segments, as is expected."""

    @emitter
    def are_inside(builder, address, segments):
        ids = _loaded(builder, address, size)
        outside = builder.icmp_unsigned(">=", ids, splat(builder, segments))
        return expected(builder, builder.not_(any_piece(builder, [outside])))

    return are_inside


def make_list_changes(size: int):
    """``list_changes(address, n, rows, found)``: how many rows are listed then.

    Of eight from row n on, those that have not the id of the row before.
    """

    @emitter
    def list_changes(builder, address, n, rows, found):
        ids = _loaded(builder, address, size)
        before = _loaded(builder, builder.sub(address, I64(size)), size)
        changed = builder.icmp_signed("!=", ids, before)
        numbers = builder.add(splat(builder, n), constant(range(LANES), I64))
        return put_together(builder, changed, found, [(numbers, rows)])

    return list_changes


@emitter
def set_eight(builder, address, value):
    """One integer in eight words."""
    _stored(builder, address, splat(builder, value))
