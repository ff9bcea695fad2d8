"""Groups of 64 positions of an axis as eight vectors, each lane holding eight consecutive ones.

Lane l of vector k is position 8·l + k of the group, so a scan along the axis is eight steps on whole
vectors, then one along the lanes. A group that lies packed in memory, forwards or backwards, comes in
by eight loads and a transposition; any other is read element by element.
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from .access import make_load, make_store
from .edges import Edge, narrow, widen
from .jit import inner
from .lanes import DOUBLES, I32, I64, LANES, constant, doubles, splat
from .memory import axis_offset
from .vectors import Vector, set_double, set_vector, vector_at

GROUP = LANES * LANES
GROUP_BYTES = 8 * GROUP


def transposed(builder, rows):
    """Eight vectors as the eight columns of the same square."""
    rows = list(rows)
    for d in (4, 2, 1):
        low = [lane if not lane & d else LANES + lane - d for lane in range(LANES)]
        high = [lane + d if not lane & d else LANES + lane for lane in range(LANES)]
        for i in range(LANES):
            if not i & d:
                a, b = rows[i], rows[i | d]
                rows[i] = builder.shuffle_vector(a, b, constant(low, I32))
                rows[i | d] = builder.shuffle_vector(a, b, constant(high, I32))
    return rows


@intrinsic
def group_mask(context, k, count):
    """1.0 in the lanes whose position k lies within the first ``count`` of the group."""

    def codegen(ctx, builder, sig, args):
        place = builder.add(constant(range(0, GROUP, LANES), I64), splat(builder, args[0]))
        inside = builder.icmp_signed("<", place, splat(builder, args[1]))
        return builder.select(inside, doubles(1.0), doubles(0.0))

    return Vector(types.int64, types.int64), codegen


def make_group_load(edge: Edge, bent: bool, packed: bool):
    """``load_group(p, operand, base, stride, start, count, box)``."""
    load = make_load(edge)

    @intrinsic
    def load_packed(context, address, backwards, box):
        def codegen(ctx, builder, sig, args):
            address, backwards, box = args
            # Backwards, the vector of chunk l ends 8·l elements below the address.
            first = builder.select(
                backwards, builder.sub(address, I64((LANES - 1) * edge.item)), address
            )
            step = LANES * edge.item
            stride = builder.select(backwards, I64(-step), I64(step))
            rows = []
            for _ in range(LANES):
                v = builder.load(builder.inttoptr(first, edge.stored.as_pointer()))
                v.align = edge.item
                rows.append(widen(builder, v, edge.element, edge.native_half))
                first = builder.add(first, stride)
            pointer = builder.inttoptr(box, DOUBLES.as_pointer())
            flip = builder.select(backwards, I64(LANES - 1), I64(0))
            for k, v in enumerate(transposed(builder, rows)):
                builder.store(v, builder.gep(pointer, [builder.xor(I64(k), flip)])).align = 8
            return ctx.get_dummy_value()

        return types.void(types.int64, types.boolean, types.int64), codegen

    @inner
    def load_scattered(p, operand, base, stride, start, count, box):
        for k in range(LANES):
            set_vector(box + k * 8 * LANES, load(base, stride, 0))
        for e in range(count):
            offset = axis_offset(p, operand, start + e) if bent else (start + e) * stride
            one = load(base + offset, stride, 1)
            set_double(box + ((e % LANES) * LANES + e // LANES) * 8, one)

    @inner
    def load_group(p, operand, base, stride, start, count, box):
        if packed and count == GROUP:
            load_packed(base + start * stride, stride < 0, box)
        else:
            load_scattered(p, operand, base, stride, start, count, box)

    return load_group


def make_group_store(edge: Edge, bent: bool, packed: bool):
    """``store_group(p, operand, base, stride, start, count, box)``."""
    store = make_store(edge)

    @intrinsic
    def store_packed(context, address, backwards, box):
        def codegen(ctx, builder, sig, args):
            address, backwards, box = args
            pointer = builder.inttoptr(box, DOUBLES.as_pointer())
            flip = builder.select(backwards, I64(LANES - 1), I64(0))
            rows = []
            for k in range(LANES):
                v = builder.load(builder.gep(pointer, [builder.xor(I64(k), flip)]))
                v.align = 8
                rows.append(v)
            first = builder.select(
                backwards, builder.sub(address, I64((LANES - 1) * edge.item)), address
            )
            step = LANES * edge.item
            stride = builder.select(backwards, I64(-step), I64(step))
            for v in transposed(builder, rows):
                value = narrow(builder, v, edge.element, edge.native_half)
                place = builder.inttoptr(first, edge.stored.as_pointer())
                builder.store(value, place).align = edge.item
                first = builder.add(first, stride)
            return ctx.get_dummy_value()

        return types.void(types.int64, types.boolean, types.int64), codegen

    @inner
    def store_scattered(p, operand, base, stride, start, count, box):
        for e in range(count):
            offset = axis_offset(p, operand, start + e) if bent else (start + e) * stride
            one = vector_at(box + ((e % LANES) * LANES + e // LANES) * 8)
            store(base + offset, stride, 1, one)

    @inner
    def store_group(p, operand, base, stride, start, count, box):
        if packed and count == GROUP:
            store_packed(base + start * stride, stride < 0, box)
        else:
            store_scattered(p, operand, base, stride, start, count, box)

    return store_group


