"""How many elements of packed columns meet a condition, counted in integers.

A lift that is 1 or 0 is a count if states are added: exact in any order and any type that holds it.
Rows are compared sixteen columns at a time as they are stored, on float32 lanes or, of float64, on
those; a mask is subtracted from integers as wide.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ...formulas.bind import primitives_of
from ...formulas.folds import add
from ...formulas.record import Monoid, parameters
from .block import emit_prefetch
from .functions import emitter
from .lanes import DOUBLE, DOUBLES, I32, I64, LANES, scratch_builder
from .operands import Operands
from .singles import FLOAT, Condition, NotInSingles, Single, Trace, in_singles
from .sixteen import SIXTEEN, halves_of, load_sixteen

# What rounds nothing.
_EXACT = {"where", "isnan", "absolute"}


def is_tally(monoid: Monoid | None, operands: Operands) -> bool:
    """Whether a pass counts elements of a condition, of packed columns."""
    if monoid is None or monoid.combine is not add or monoid.identity != (0.0,):
        return False
    if not operands.packed or operands.flipped or not primitives_of(monoid.lift) <= _EXACT:
        return False
    lane = tally_lane(monoid, operands)
    return lane is not None and truth_of(monoid.lift, *_unknown(monoid.lift, lane)) is not None


def tally_lane(monoid: Monoid, operands: Operands) -> ir.Type | None:
    """The type of lanes that hold what a lift asks for, as it is; None if none does."""
    asked = set(parameters(monoid.lift))
    full, row = asked & {*operands.full}, asked & {*operands.row}
    if not full or asked - full - row or any(n.endswith("_before") for n in full):
        return None
    places = [*(operands.full.index(n) for n in full)]
    places += [operands.row_at[operands.row.index(n)] for n in row]
    elements = {operands.edges[o].element for o in places} - {"bool"}
    if elements <= {"f64"} and elements:
        return DOUBLE
    return FLOAT if elements <= {"f32", "f16", "bf16"} else None


def _unknown(lift: Callable, lane: ir.Type):
    trace = Trace(scratch_builder(), LANES, lane)
    return trace, [trace.single(trace.number(0.0)) for _ in parameters(lift)]


def truth_of(lift: Callable, trace: Trace, arguments: list) -> Condition | None:
    """The condition for which a lift is 1, and 0 elsewhere."""
    try:
        made = in_singles(lift)(*arguments)
    except NotInSingles:
        return None
    return made.truth if isinstance(made, Single) else None


class Tallies:
    """Emitters that count sixteen columns at a time, in a box of integers.

    ``lane`` is the type of lanes, ``item`` the bytes of one, and of an integer in the box.
    """

    def __init__(self, monoid: Monoid, operands: Operands, pitch: int):
        lane = tally_lane(monoid, operands)
        assert lane is not None
        self._lift, self._asked, self._lane = monoid.lift, parameters(monoid.lift), lane
        self._full, self._row, self._edges = operands.full, operands.row, operands.edges
        self._pitch = pitch
        self.item = 4 if lane is FLOAT else 8
        self._count = SIXTEEN if lane is FLOAT else LANES
        self._integers = ir.VectorType(I32 if lane is FLOAT else I64, self._count)
        self._parts = range(SIXTEEN // self._count)

    def _vector(self, builder, address, part: int, kind):
        at = builder.add(address, I64(64 * part))
        return builder.inttoptr(at, kind.as_pointer())

    def _elements(self, builder, operand: int, at) -> list:
        """Sixteen elements of a row, as one vector of float32 or two of float64."""
        edge = self._edges[operand]
        if self._lane is FLOAT:
            return [load_sixteen(builder, edge, at, I64(0))]
        size = LANES * edge.item
        places = [builder.add(at, I64(size * k)) for k in self._parts]
        return [edge.widen(builder, edge.near(builder, place)) for place in places]

    def count(self, rows: int):
        """``count(addresses, strides, index, column, numbers, box, fresh, ahead)`` of some rows.

        ``numbers`` is where row operands of the columns lie, as lanes hold them. A ``fresh`` box is
        begun. If ``ahead`` is not 0, rows so far below are brought near.
        """

        @emitter
        def count(builder, addresses, strides, index, column, numbers, box, fresh, ahead):
            kind, integers = ir.VectorType(self._lane, self._count), self._integers
            places = {
                n: builder.add(
                    builder.add(addresses[o], builder.mul(index, strides[o])),
                    builder.mul(column, I64(self._edges[o].item)),
                )
                for o, n in enumerate(self._full)
                if n in self._asked
            }
            held: dict[str, list] = {}
            for k, n in enumerate(self._row):
                at = builder.add(numbers, I64(k * self._pitch))
                held[n] = []
                for part in self._parts:
                    v = builder.load(self._vector(builder, at, part, kind))
                    v.align = 4
                    held[n].append(v)
            totals = []
            for part in self._parts:
                before = builder.load(self._vector(builder, box, part, integers))
                before.align = 8
                zero = ir.Constant(integers, None)
                totals.append(builder.select(fresh, zero, before))
            for _ in range(rows):
                for n, at in places.items():
                    held[n] = self._elements(builder, self._full.index(n), at)
                    if ahead is not None:
                        o = self._full.index(n)
                        below = builder.mul(ahead, strides[o])
                        emit_prefetch(builder, builder.add(at, below))
                for part in self._parts:
                    trace = Trace(builder, self._count, self._lane)
                    truth = truth_of(
                        self._lift, trace, [trace.single(held[n][part]) for n in self._asked]
                    )
                    assert truth is not None
                    totals[part] = builder.sub(totals[part], builder.sext(truth.v, integers))
                places = {
                    n: builder.add(at, strides[self._full.index(n)]) for n, at in places.items()
                }
            for part, total in zip(self._parts, totals, strict=True):
                builder.store(total, self._vector(builder, box, part, integers)).align = 8

        return count

    def widened(self):
        """``widened(box)``: what was counted of sixteen columns, as two states."""
        integers = self._integers

        @emitter
        def widened(builder, box):
            totals = []
            for part in self._parts:
                v = builder.load(self._vector(builder, box, part, integers))
                v.align = 8
                totals.append(v)
            if len(totals) == 1:
                totals = halves_of(builder, totals[0])
            return tuple((builder.sitofp(v, DOUBLES),) for v in totals)

        return widened
