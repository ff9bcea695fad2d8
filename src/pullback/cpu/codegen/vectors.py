"""Vectors in loop nests: tuples of them, and emitters that read, write and pick.

Loop nests pass vectors on; all arithmetic on them is emitted by :mod:`.lanes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from ...formulas.record import parameters
from .functions import emitter
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
from .registers import any_piece, pieces


def pack(values) -> tuple:
    """A tuple of vectors; numbers are spread over the lanes, none at all becomes one zero."""
    items = [v.v if isinstance(v, Lanes) else doubles(float(v)) for v in values]
    return tuple(items) or (doubles(0.0),)


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


@emitter
def no_vectors(builder):
    """The tuple that stands for no known values: one zero."""
    return pack([])


def zero_vectors(size: int):
    """``zeros()``: a tuple of so many vectors of zeros."""

    @emitter
    def zeros(builder):
        return (doubles(0.0),) * size

    return zeros


@emitter
def first_lanes(builder, count):
    """1.0 in the first ``count`` lanes, 0.0 in the others."""
    inside = builder.icmp_signed("<", constant(range(LANES), I64), splat(builder, count))
    return builder.select(inside, doubles(1.0), doubles(0.0))


@emitter
def last_lanes(builder, count):
    """1.0 in the last ``count`` lanes, 0.0 in the others."""
    from_the_end = constant(range(LANES - 1, -1, -1), I64)
    inside = builder.icmp_signed("<", from_the_end, splat(builder, count))
    return builder.select(inside, doubles(1.0), doubles(0.0))


@emitter
def counting(builder, start, step):
    """start, start + step, ... as floats: positions along an axis."""
    offsets = builder.mul(constant(range(LANES), I64), splat(builder, step))
    return builder.sitofp(builder.add(splat(builder, start), offsets), DOUBLES)


def emit_free_of_nan(builder, items):
    """Whether no lane of any of the vectors is NaN, as is expected; a comparison tells of two."""
    nans = []
    for part in pieces(builder, items):
        pairs = zip(part[::2], [*part[1::2], part[0]], strict=False)
        nans += [builder.fcmp_unordered("uno", x, y) for x, y in pairs]
    return expected(builder, builder.not_(any_piece(builder, nans)))


@emitter
def free_of_nan(builder, a, b, c):
    """Whether no lane of three tuples of vectors is NaN."""
    return emit_free_of_nan(builder, [*a, *b, *c])


@emitter
def vector_at(builder, address):
    """Eight float64 of scratch."""
    v = builder.load(builder.inttoptr(address, DOUBLES.as_pointer()))
    v.align = 8
    return v


@emitter
def set_vector(builder, address, v):
    builder.store(v, builder.inttoptr(address, DOUBLES.as_pointer())).align = 8


@emitter
def set_double(builder, address, v):
    """Lane 0 to one float64 of scratch."""
    lane = builder.extract_element(v, I32(0))
    builder.store(lane, builder.inttoptr(address, DOUBLE.as_pointer()))


def state_emitters(size: int):
    """``read``, ``write``, ``read_one``, ``write_one``, ``spread`` and ``keep`` for a state."""

    @emitter
    def read(builder, address, pitch):
        """A state whose components lie ``pitch`` bytes apart."""
        items = []
        for k in range(size):
            at = builder.add(address, builder.mul(pitch, I64(k)))
            v = builder.load(builder.inttoptr(at, DOUBLES.as_pointer()))
            v.align = 8
            items.append(v)
        return tuple(items)

    @emitter
    def write(builder, address, pitch, state):
        for k, v in enumerate(state):
            at = builder.add(address, builder.mul(pitch, I64(k)))
            builder.store(v, builder.inttoptr(at, DOUBLES.as_pointer())).align = 8

    @emitter
    def read_one(builder, address):
        """A state of single float64, side by side, in every lane."""
        pointer = builder.inttoptr(address, DOUBLE.as_pointer())
        singles = [builder.load(builder.gep(pointer, [I64(k)])) for k in range(size)]
        return tuple(splat(builder, v) for v in singles)

    @emitter
    def write_one(builder, address, state):
        pointer = builder.inttoptr(address, DOUBLE.as_pointer())
        for k, v in enumerate(state):
            builder.store(builder.extract_element(v, I32(0)), builder.gep(pointer, [I64(k)]))

    @emitter
    def spread(builder, state, lane):
        """One lane of a state in every lane."""
        at = builder.trunc(lane, I32)
        singles = [builder.extract_element(v, at) for v in state]
        return tuple(splat(builder, v) for v in singles)

    @emitter
    def keep(builder, mask, a, b):
        """``a`` where the mask is 1, else ``b``."""
        on = builder.fcmp_ordered("!=", mask, doubles(0.0))
        return tuple(builder.select(on, x, y) for x, y in zip(a, b, strict=True))

    return read, write, read_one, write_one, spread, keep


def write_last(count: int):
    """``write(address, values)``: lane 0 of the last ``count`` vectors of a tuple, side by side."""

    @emitter
    def write(builder, address, values):
        pointer = builder.inttoptr(address, DOUBLE.as_pointer())
        for k, v in enumerate(values[-count:] if count else ()):
            builder.store(builder.extract_element(v, I32(0)), builder.gep(pointer, [I64(k)]))

    return write


def rotated(builder, items, distance):
    return [shuffle(builder, v, [(i + distance) % LANES for i in range(LANES)]) for v in items]


def stack(count: int):
    """An emitter giving the address of that many float64 on the kernel's stack."""

    @emitter
    def allocate(builder):
        with builder.goto_entry_block():
            box = builder.alloca(ir.ArrayType(DOUBLE, count))
            box.align = 64
        return builder.ptrtoint(box, I64)

    return allocate
