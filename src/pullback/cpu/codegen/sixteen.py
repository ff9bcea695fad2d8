"""Elements on float32 lanes: formula functions as emitters, eight or sixteen elements at a time.

A lane's bits depend on its own values alone, so eight and sixteen give the same. Doubtful lanes
(:mod:`.singles`) are computed again in float64: of eight, by a function that is called. Sixteen
only say that there are some, and loops leave those to eight: a call inside of a loop would leave
no number in a register, the sum included.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from llvmlite import ir

from ...formulas.record import parameters
from ..words import CONSTANT_NAMES
from .bind import element_emitter
from .functions import emitter
from .lanes import DOUBLE, DOUBLES, I32, I64, LANES, Lanes, doubles, expected, scratch_builder
from .operands import Operands
from .positions import Position
from .registers import any_piece, registers
from .single_calls import (
    EIGHT_FLOATS,
    SingleCall,
    elements,
    numbers_of_one_row,
    row_elements,
    row_numbers,
)
from .singles import FLOAT, Trace, inverse_of
from .storage import Edge, to_float

SIXTEEN = 2 * LANES
FLOATS = ir.VectorType(FLOAT, SIXTEEN)


def any_of(builder, mask):
    """Whether a lane of a mask is set."""
    return any_piece(builder, [mask])


def _with_doubtful(builder, doubtful, values, again):
    """``values``, but ``again()`` where they are doubtful; both lists of vectors."""
    before = builder.block
    with builder.if_then(any_of(builder, doubtful), likely=False):
        sure = [builder.select(doubtful, v, w) for v, w in zip(again(), values, strict=True)]
        inside = builder.block
    found = []
    for value, mended in zip(values, sure, strict=True):
        v = builder.phi(value.type)
        v.add_incoming(value, before)
        v.add_incoming(mended, inside)
        found.append(v)
    return found


def emit_eight(call: SingleCall, in_doubles: InDoubles, builder, const, full, row, known) -> list:
    """Results for eight elements as float64, from operands as float64."""
    floats = [builder.fptrunc(v, EIGHT_FLOATS) for v in full]
    values, doubtful = call.emit(
        builder, LANES, row_numbers(const, 1), elements(floats), row_elements(row, 1),
        row_numbers(known, 1),
    )  # fmt: skip

    def again():
        return in_doubles(builder, const, full, row, known)

    wide = [builder.fpext(v, DOUBLES) for v in values]
    return _with_doubtful(builder, doubtful, wide, again)


class InDoubles:
    """A formula function on eight float64 lanes, called where float32 does not do.

    It is a function of its own, so that the registers of a loop are left to what is computed in
    float32 (logsumexp_backward took a third more time with it inside).
    """

    def __init__(self, function: Callable, primitives, operands: Operands, known):
        full, row = operands.full, operands.row
        self._emit = element_emitter(function, primitives, full, row, known)
        self._name = f"{function.__name__}_in_doubles"
        self._made: ir.Function | None = None
        self._sizes = {"const": CONSTANT_NAMES, "full": full, "row": row, "known": known}
        places = {n: (t, k) for t, names in self._sizes.items() for k, n in enumerate(names)}
        self._wanted = [places[n] for n in parameters(function)]
        unknown = [doubles(math.nan)] * len(self._wanted)
        self._outputs = len(self._values(scratch_builder(), unknown))

    def __call__(self, builder, const, full, row, known) -> list:
        given = {"const": const, "full": full, "row": row, "known": known}
        arguments = [given[place][k] for place, k in self._wanted]
        found = builder.call(self._function(builder.module), arguments)
        return [builder.extract_value(found, k) for k in range(self._outputs)]

    def _function(self, module):
        function = self._made
        if function is None or function.parent is not module:
            result = ir.LiteralStructType([DOUBLES] * self._outputs)
            kind = ir.FunctionType(result, [DOUBLES] * len(self._wanted))
            function = self._made = ir.Function(module, kind, module.get_unique_name(self._name))
            function.linkage = "internal"
            for fact in ("noinline", "cold", "nounwind"):
                function.attributes.add(fact)
            builder = ir.IRBuilder(function.append_basic_block())
            made = ir.Constant(result, ir.Undefined)
            for k, v in enumerate(self._values(builder, function.args)):
                made = builder.insert_value(made, v, k)
            builder.ret(made)
        return function

    def _values(self, builder, arguments) -> list:
        given = {place: [None] * len(names) for place, names in self._sizes.items()}
        for (place, k), value in zip(self._wanted, arguments, strict=True):
            given[place][k] = value
        index = [doubles(0.0)]  # which no function on float32 lanes asks for
        found = self._emit(builder, index=index, **given)
        return [v.v if isinstance(v, Lanes) else doubles(float(v)) for v in found]


def per_eight(call: SingleCall, function: Callable, primitives, operands: Operands, known, picked):
    """``f(index, const, full, row, known)`` as :func:`.bind.per_element` makes it."""
    in_doubles = InDoubles(function, primitives, operands, known)

    @emitter
    def apply(builder, index, const, full, row, known):
        found = emit_eight(call, in_doubles, builder, const, full, row, known)
        return tuple(found[k] for k in picked)

    return apply


def load_sixteen(builder, edge: Edge, base, index):
    """Sixteen packed elements as float32."""
    kind = ir.VectorType(edge.storage, SIXTEEN)
    place = builder.add(base, builder.mul(index, I64(edge.item)))
    v = builder.load(builder.inttoptr(place, kind.as_pointer()))
    v.align = edge.item
    if edge.element == "bool":
        there = builder.icmp_unsigned("!=", v, ir.Constant(kind, None))
        return builder.uitofp(there, ir.VectorType(FLOAT, SIXTEEN))
    return to_float(builder, v, edge.element, edge.native_half)


def halves_of(builder, v) -> list:
    """Sixteen lanes as two times eight."""
    return [_lanes_of(builder, v, half) for half in (range(LANES), range(LANES, SIXTEEN))]


def _wide_halves_of(builder, v) -> list:
    """Sixteen float32 as two times eight float64."""
    return [builder.fpext(part, DOUBLES) for part in halves_of(builder, v)]


def emit_sixteen(call: SingleCall, builder, const, floats, rows, numbers, position=None):
    """Results for sixteen elements, and whether no lane is doubtful.

    ``position`` is that of the first along the axis.

    Where sixteen float32 take two registers they are computed eight at a time: conditions on all
    of them would be brought to one register, and back.
    """
    pieces = [range(SIXTEEN)]
    if registers().of_lanes > 1:
        pieces = [range(LANES), range(LANES, SIXTEEN)]
    found, doubtful = [], None
    for lanes in pieces:
        row, known = rows.singles(builder, numbers, lanes)
        mine = [_lanes_of(builder, v, lanes) for v in floats]
        times = len(lanes) // LANES
        values, unsure = call.emit(
            builder, len(lanes), row_numbers(const, times), elements(mine), row, known,
            _positions(builder, position, lanes, rows.along_axis),
        )  # fmt: skip
        found.append(values)
        doubtful = unsure if doubtful is None else builder.or_(doubtful, unsure)
    sure = expected(builder, builder.not_(any_of(builder, doubtful)))
    if len(pieces) == 1:
        return found[0], sure
    order = ir.VectorType(I32, SIXTEEN)(list(range(SIXTEEN)))
    return [builder.shuffle_vector(*both, order) for both in zip(*found, strict=True)], sure


def _positions(builder, position, lanes: range, along_axis: bool) -> list:
    """What gives the positions of some lanes, if that of the first is known."""
    if position is None:
        return []

    def positions(trace: Trace) -> Position:
        first = builder.add(position, I64(lanes.start)) if along_axis else position
        return Position(trace, builder.sitofp(first, DOUBLE), along_axis)

    return [positions]


def _lanes_of(builder, v, lanes: range):
    """Some of the lanes of a vector."""
    if len(lanes) == v.type.count:
        return v
    return builder.shuffle_vector(v, v, ir.VectorType(I32, len(lanes))(list(lanes)))


class Spread:
    """Numbers of one row for sixteen of its elements: tuples of eight equal float64."""

    along_axis = True

    def singles(self, builder, args, lanes: range) -> tuple[list, list]:
        row, known = args
        times = len(lanes) // LANES
        return row_elements(row, times), numbers_of_one_row(known, times)


class Boxed:
    """Numbers of sixteen columns for an element of each, by where they lie.

    Three addresses: row operands and known values as float64, ``pitch`` bytes from one to the next,
    and both of them as float32, the second half of a known value half a pitch behind the first.
    Behind these lies 1 over the known values that elements are divided by, likewise: a division
    for every element was a third of what a softmax takes to write.
    """

    along_axis = False

    def __init__(self, row: int, known: int, pitch: int):
        self._row, self._known, self._pitch = row, known, pitch
        self._divisors: list[int] = []

    def divide_by(self, divisors: frozenset[int]) -> None:
        """Have ``split`` keep 1 over these known values."""
        self._divisors = sorted({*self._divisors, *divisors})

    @staticmethod
    def _floats(builder, address, offset: int, count: int):
        kind = ir.VectorType(FLOAT, count)
        at = builder.add(address, I64(offset))
        v = builder.load(builder.inttoptr(at, kind.as_pointer()))
        v.align = 4
        return v

    def singles(self, builder, args, lanes: range) -> tuple[list, list]:
        pitch, count = self._pitch, len(lanes)
        split = builder.add(args[2], I64(4 * lanes.start))

        def element(trace, k):
            return trace.single(self._floats(builder, split, k * pitch, count))

        def both(trace, place):
            at = (self._row + place) * pitch
            parts = [self._floats(builder, split, at + half, count) for half in (0, pitch // 2)]
            return trace.single(*parts)

        def number(trace, k):
            made = both(trace, k)
            if k in self._divisors:
                place = self._known + self._divisors.index(k)
                made.inverse = partial(both, trace, place)
            return made

        row = [lambda trace, k=k: element(trace, k) for k in range(self._row)]
        return row, [lambda trace, k=k: number(trace, k) for k in range(self._known)]

    def stored_at(self) -> int:
        """Where, behind the numbers as float32, there is room for one that is stored."""
        return (self._row + 2 * self._known) * self._pitch

    def doubles(self, builder, args) -> tuple[list, list]:
        found: list[list] = []
        for address, count in zip(args, (max(1, self._row), self._known), strict=False):
            found.append([])
            for k in range(count):
                at = builder.add(address, I64(k * self._pitch))
                v = builder.load(builder.inttoptr(at, DOUBLES.as_pointer()))
                v.align = 8
                found[-1].append(v)
        return found[0], found[1]

    def split(self):
        """``split(row_at, known_at, split_at)``: the float32 of eight columns, from the float64."""

        @emitter
        def split(builder, row_at, known_at, split_at):
            row, known = self.doubles(builder, (row_at, known_at))
            trace = Trace(builder, LANES)
            numbers = [trace.of_doubles([v]) for v in known]
            numbers += [inverse_of(numbers[k]) for k in self._divisors]
            singles = [[trace.of_elements([v]).v] for v in row[: self._row]]
            for k, parts in enumerate([*singles, *([n.v, n.low] for n in numbers)]):
                for half, part in enumerate(parts):
                    offset = k * self._pitch + half * self._pitch // 2
                    at = builder.add(split_at, I64(offset))
                    place = builder.inttoptr(at, part.type.as_pointer())
                    builder.store(part, place).align = 4

        return split


@emitter
def forget(builder, place):
    """Sixteen NaN where float32 values of elements are kept, which are doubtful."""
    pointer = builder.inttoptr(place, FLOATS.as_pointer())
    builder.store(FLOATS([math.nan] * SIXTEEN), pointer).align = 4


def apply_sixteen(call: SingleCall, operands: Operands, rows, lifted: bool = False):
    """``f(addresses, index, const, row numbers, streamed)``: whether no lane is doubtful.

    Across columns ``index`` is that of a column, and the position along the axis comes behind it.
    Reads, computes and then writes sixteen packed elements, past the caches if ``streamed``.
    ``rows`` says how the numbers of rows come: :class:`Spread` or :class:`Boxed`. A function of
    ``lifted`` values, which come behind the operands, is also given where these are kept.
    """
    edge, edges = operands.edge, operands.edges
    full_at, finished = operands.full_at, operands.finished

    def emit(builder, bases, index, position, const, numbers, streamed, kept=None):
        floats = [load_sixteen(builder, edges[o], bases[o], index) for o in full_at]
        if kept is not None:
            floats.append(builder.load(builder.inttoptr(kept, FLOATS.as_pointer())))
            floats[-1].align = 4
        values, sure = emit_sixteen(call, builder, const, floats, rows, numbers, position)
        offset = builder.mul(index, I64(edge.item))
        with builder.if_then(sure):
            for o, w in finished:
                v = call.stored(builder, values[w], edge)
                edge.put_stored(builder, builder.add(bases[o], offset), v, streamed)
        return sure

    if isinstance(rows, Boxed):
        rows.divide_by(call.divisors)

        @emitter
        def apply_columns(builder, addresses, index, position, const, numbers, streamed, kept):
            return emit(builder, addresses, index, position, const, numbers, streamed, kept)

        return apply_columns

    @emitter
    def apply(builder, addresses, index, const, row, known, streamed, kept):
        kept = kept if lifted else None
        return emit(builder, addresses, index, index, const, (row, known), streamed, kept)

    return apply


def lift_sixteen(call: SingleCall, operands: Operands, carried, rows, keeps: bool = False):
    """``f(addresses, index, const, row numbers)``: states of sixteen packed elements, as two.

    And whether no lane is doubtful. ``carried`` are the components of a state that vary. If it
    ``keeps`` values, it is given where.
    """
    edges, full_at = operands.edges, operands.full_at

    def emit(builder, bases, index, const, numbers, kept=None):
        floats = [load_sixteen(builder, edges[o], bases[o], index) for o in full_at]
        values, sure = emit_sixteen(call, builder, const, floats, rows, numbers)
        if kept is not None:
            place = builder.inttoptr(kept, FLOATS.as_pointer())
            builder.store(values[carried[0]], place).align = 4
        parts = [_wide_halves_of(builder, values[c]) for c in carried]
        states = [tuple(both[k] for both in parts) for k in (0, 1)]
        return (*states, sure)

    if isinstance(rows, Boxed):

        @emitter
        def lift_columns(builder, addresses, index, const, numbers, kept):
            return emit(builder, addresses, index, const, numbers, kept if keeps else None)

        return lift_columns

    @emitter
    def lift(builder, addresses, index, const, row, known, kept):
        return emit(builder, addresses, index, const, (row, known), kept if keeps else None)

    return lift
