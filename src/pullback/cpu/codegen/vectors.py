"""Vectors inside Numba: one opaque type, tuples of it, and intrinsics that emit traced code.

Numba sees vectors only as values that pass between intrinsics; all arithmetic on them is emitted by
:mod:`.lanes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from ...formulas.record import parameters
from .lanes import (
    DOUBLE,
    DOUBLES,
    I32,
    I64,
    LANES,
    Lanes,
    Truth,
    as_tuple,
    constant,
    doubles,
    expected,
    shuffle,
    splat,
)


class VectorType(types.Type):
    def __init__(self):
        super().__init__(name="pullback.vector")


Vector = VectorType()


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, DOUBLES)


def vectors(size: int):
    return types.UniTuple(Vector, size)


def unpack(builder, values) -> list:
    return cgutils.unpack_tuple(builder, values)


def pack(context, builder, kind, values):
    """A Numba tuple of vectors; numbers are spread over the lanes, none at all becomes one zero."""
    items = [v.v if isinstance(v, Lanes) else doubles(float(v)) for v in values] or [doubles(0.0)]
    return context.make_tuple(builder, kind, items)


class Names:
    """Where a schedule keeps each named value: a tuple parameter and a position in it."""

    def __init__(self, constants: dict[str, float] | None = None, **tuples: Sequence[str]):
        self.constants = constants or {}
        self.places = {
            name: (place, k) for place, names in tuples.items() for k, name in enumerate(names)
        }

    def pick(self, function: Callable, held: dict[str, list]) -> list:
        """The arguments of a formula function, by the names of its parameters."""
        wanted = parameters(function)
        missing = [n for n in wanted if n not in self.places and n not in self.constants]
        if missing:
            raise TypeError(f"{function.__qualname__} asks for {missing}, which no operand gives")
        values = []
        for name in wanted:
            if name in self.places:
                place, k = self.places[name]
                values.append(held[place][k])
            else:
                values.append(self.constants[name])
        return values


def emit_call(function: Callable, names: Names):
    """An emitter calling a formula function on what ``names`` picks out of tuples of lanes."""

    def emit(builder, **tuples):
        held = {
            place: [v if isinstance(v, Truth) else Lanes(builder, v) for v in values]
            for place, values in tuples.items()
        }
        return list(as_tuple(function(*names.pick(function, held))))

    return emit


@intrinsic
def no_vectors(context):
    """The tuple that stands for no known values: one zero."""
    kind = vectors(1)

    def codegen(ctx, builder, sig, args):
        return pack(ctx, builder, kind, [])

    return kind(), codegen


def zero_vectors(size: int):
    """``zeros()``: a tuple of so many vectors of zeros."""
    kind = vectors(size)

    @intrinsic
    def zeros(context):
        def codegen(ctx, builder, sig, args):
            return ctx.make_tuple(builder, kind, [doubles(0.0)] * size)

        return kind(), codegen

    return zeros


@intrinsic
def first_lanes(context, count):
    """1.0 in the first ``count`` lanes, 0.0 in the others."""

    def codegen(ctx, builder, sig, args):
        inside = builder.icmp_signed("<", constant(range(LANES), I64), splat(builder, args[0]))
        return builder.select(inside, doubles(1.0), doubles(0.0))

    return Vector(types.int64), codegen


@intrinsic
def last_lanes(context, count):
    """1.0 in the last ``count`` lanes, 0.0 in the others."""

    def codegen(ctx, builder, sig, args):
        from_the_end = constant(range(LANES - 1, -1, -1), I64)
        inside = builder.icmp_signed("<", from_the_end, splat(builder, args[0]))
        return builder.select(inside, doubles(1.0), doubles(0.0))

    return Vector(types.int64), codegen


@intrinsic
def counting(context, start, step):
    """start, start + step, ... as floats: positions along an axis."""

    def codegen(ctx, builder, sig, args):
        offsets = builder.mul(constant(range(LANES), I64), splat(builder, args[1]))
        return builder.sitofp(builder.add(splat(builder, args[0]), offsets), DOUBLES)

    return Vector(types.int64, types.int64), codegen


def emit_free_of_nan(builder, items):
    """Whether no lane of any of the vectors is NaN, as is expected; a comparison tells of two."""
    pairs = zip(items[::2], [*items[1::2], items[0]], strict=False)
    found = [builder.fcmp_unordered("uno", x, y) for x, y in pairs]
    any_nan = found[0]
    for nan in found[1:]:
        any_nan = builder.or_(any_nan, nan)
    bits = builder.bitcast(any_nan, ir.IntType(LANES))
    return expected(builder, builder.icmp_unsigned("==", bits, bits.type(0)))


@intrinsic
def free_of_nan(context, a, b, c):
    """Whether no lane of three tuples of vectors is NaN."""

    def codegen(ctx, builder, sig, args):
        return emit_free_of_nan(builder, [v for a in args for v in unpack(builder, a)])

    return types.boolean(a, b, c), codegen


@intrinsic
def vector_at(context, address):
    """Eight float64 of scratch."""

    def codegen(ctx, builder, sig, args):
        v = builder.load(builder.inttoptr(args[0], DOUBLES.as_pointer()))
        v.align = 8
        return v

    return Vector(types.int64), codegen


@intrinsic
def set_vector(context, address, v):
    def codegen(ctx, builder, sig, args):
        builder.store(args[1], builder.inttoptr(args[0], DOUBLES.as_pointer())).align = 8
        return ctx.get_dummy_value()

    return types.void(types.int64, Vector), codegen


@intrinsic
def set_double(context, address, v):
    """Lane 0 to one float64 of scratch."""

    def codegen(ctx, builder, sig, args):
        lane = builder.extract_element(args[1], I32(0))
        builder.store(lane, builder.inttoptr(args[0], DOUBLE.as_pointer()))
        return ctx.get_dummy_value()

    return types.void(types.int64, Vector), codegen


def tuple_intrinsics(size: int):
    """``read``, ``write``, ``read_one``, ``write_one``, ``spread`` and ``keep`` for a state."""
    kind = vectors(size)

    @intrinsic
    def read(context, address, pitch):
        """A state whose components lie ``pitch`` bytes apart."""

        def codegen(ctx, builder, sig, args):
            items = []
            for k in range(size):
                at = builder.add(args[0], builder.mul(args[1], I64(k)))
                v = builder.load(builder.inttoptr(at, DOUBLES.as_pointer()))
                v.align = 8
                items.append(v)
            return ctx.make_tuple(builder, kind, items)

        return kind(types.int64, types.int64), codegen

    @intrinsic
    def write(context, address, pitch, state):
        def codegen(ctx, builder, sig, args):
            for k, v in enumerate(unpack(builder, args[2])):
                at = builder.add(args[0], builder.mul(args[1], I64(k)))
                builder.store(v, builder.inttoptr(at, DOUBLES.as_pointer())).align = 8
            return ctx.get_dummy_value()

        return types.void(types.int64, types.int64, kind), codegen

    @intrinsic
    def read_one(context, address):
        """A state of single float64, side by side, in every lane."""

        def codegen(ctx, builder, sig, args):
            pointer = builder.inttoptr(args[0], DOUBLE.as_pointer())
            singles = [builder.load(builder.gep(pointer, [I64(k)])) for k in range(size)]
            items = [splat(builder, v) for v in singles]
            return ctx.make_tuple(builder, kind, items)

        return kind(types.int64), codegen

    @intrinsic
    def write_one(context, address, state):
        def codegen(ctx, builder, sig, args):
            pointer = builder.inttoptr(args[0], DOUBLE.as_pointer())
            for k, v in enumerate(unpack(builder, args[1])):
                builder.store(builder.extract_element(v, I32(0)), builder.gep(pointer, [I64(k)]))
            return ctx.get_dummy_value()

        return types.void(types.int64, kind), codegen

    @intrinsic
    def spread(context, state, lane):
        """One lane of a state in every lane."""

        def codegen(ctx, builder, sig, args):
            at = builder.trunc(args[1], I32)
            singles = [builder.extract_element(v, at) for v in unpack(builder, args[0])]
            items = [splat(builder, v) for v in singles]
            return ctx.make_tuple(builder, kind, items)

        return kind(kind, types.int64), codegen

    @intrinsic
    def keep(context, mask, a, b):
        """``a`` where the mask is 1, else ``b``."""

        def codegen(ctx, builder, sig, args):
            on = builder.fcmp_ordered("!=", args[0], doubles(0.0))
            pairs = zip(unpack(builder, args[1]), unpack(builder, args[2]), strict=True)
            items = [builder.select(on, x, y) for x, y in pairs]
            return ctx.make_tuple(builder, kind, items)

        return kind(Vector, kind, kind), codegen

    return read, write, read_one, write_one, spread, keep


def concatenate(first: int, second: int):
    """Two tuples of vectors as one."""
    kind = vectors(first + second)

    @intrinsic
    def joined(context, a, b):
        def codegen(ctx, builder, sig, args):
            items = [*unpack(builder, args[0]), *unpack(builder, args[1])]
            return ctx.make_tuple(builder, kind, items)

        return kind(vectors(first), vectors(second)), codegen

    return joined


def leading_vectors(count: int):
    """``leading(values)``: the first vectors of a tuple."""
    kind = vectors(count)

    @intrinsic
    def leading(context, values):
        def codegen(ctx, builder, sig, args):
            return ctx.make_tuple(builder, kind, unpack(builder, args[0])[:count])

        return kind(values), codegen

    return leading


def write_last(size: int, count: int):
    """``write(address, values)``: lane 0 of the last ``count`` vectors of a tuple, side by side."""

    @intrinsic
    def write(context, address, values):
        def codegen(ctx, builder, sig, args):
            pointer = builder.inttoptr(args[0], DOUBLE.as_pointer())
            for k, v in enumerate(unpack(builder, args[1])[size - count :]):
                builder.store(builder.extract_element(v, I32(0)), builder.gep(pointer, [I64(k)]))
            return ctx.get_dummy_value()

        return types.void(types.int64, vectors(size)), codegen

    return write


def rotated(builder, items, distance):
    return [shuffle(builder, v, [(i + distance) % LANES for i in range(LANES)]) for v in items]


def stack(count: int):
    """An intrinsic giving the address of that many float64 on the kernel's stack."""

    @intrinsic
    def allocate(context):
        def codegen(ctx, builder, sig, args):
            with builder.goto_entry_block():
                box = builder.alloca(ir.ArrayType(DOUBLE, count))
                box.align = 64
            return builder.ptrtoint(box, I64)

        return types.int64(), codegen

    return allocate
