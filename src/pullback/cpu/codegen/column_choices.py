"""What columns give to the elements that meet a condition, and 0 to all others.

Where that is a number of the column it is rounded once for all of them, as any element's would be,
and elements are compared and chosen as they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from llvmlite import ir

from ...formulas.record import parameters
from .extremes import IN_FLOATS
from .functions import emitter
from .lanes import I64, LANES, scratch_builder
from .operands import Operands
from .singles import Condition, NotInSingles, Single, Trace, in_singles
from .sixteen import SIXTEEN, Boxed, load_sixteen
from .storage import from_float, narrow


class Choice:
    """``apply`` as a choice between a number of a column and 0.

    ``place`` is where the number is found, among known values or row operands.
    """

    def __init__(self, function: Callable, operands: Operands, known, boxed: Boxed):
        self._function, self._asked = in_singles(function), parameters(function)
        self._operands, self._known, self._boxed = operands, known, boxed
        self.place: tuple[str, int] | None = None
        trace = Trace(scratch_builder(), LANES)
        groups = {"full": operands.full, "row": operands.row, "known": known}
        numbers = {
            group: [trace.single(trace.number(0.0), exact=group != "known") for _ in names]
            for group, names in groups.items()
        }
        found = self._chosen(**numbers)
        for group in ("row", "known"):
            for k, number in enumerate(numbers[group]):
                if found and found[1] is number:
                    self.place = (group, k)

    def _chosen(self, full, row, known) -> tuple[Condition, Single] | None:
        operands = self._operands
        held = dict(zip(operands.full, full, strict=True))
        held |= zip(operands.row, row, strict=True)
        held |= zip(self._known, known, strict=True)
        if any(n not in held for n in self._asked) or len(operands.output_at) != 1:
            return None
        try:
            made = self._function(*(held[n] for n in self._asked))
        except NotInSingles:
            return None
        return made.chosen if isinstance(made, Single) else None

    def mask(self, builder, full: list, row: list):
        """Which elements are given the number, of operands as float32."""
        trace = Trace(builder, full[0].type.count)
        known = [trace.single(trace.number(0.0), exact=False) for _ in self._known]
        found = self._chosen([trace.single(v) for v in full], [trace.single(v) for v in row], known)
        assert found is not None
        return found[0].v

    def prepare(self):
        """``prepare(row_at, known_at, split_at, c)``: the number of eight columns, as stored."""
        edge, boxed, (group, k) = self._operands.edge, self._boxed, self.place or ("", 0)

        @emitter
        def prepare(builder, row_at, known_at, split_at, c):
            eight = builder.mul(c, I64(8))
            at = (builder.add(row_at, eight), builder.add(known_at, eight))
            row, known = boxed.doubles(builder, at)
            wide = row[k] if group == "row" else known[k]
            trace = Trace(builder, LANES)
            number = trace.of_elements([wide]) if group == "row" else trace.of_doubles([wide])
            whole = number.whole()
            size = trace.call("llvm.fabs", whole)
            sure = trace.compare("<", size, trace.number(math.inf))
            single = from_float(builder, whole, edge.element, edge.native_half)
            double = narrow(builder, wide, edge.element, edge.native_half)
            v = builder.select(sure, single, double)
            place = builder.add(split_at, I64(boxed.stored_at()))
            place = builder.add(place, builder.mul(c, I64(edge.item)))
            builder.store(v, builder.inttoptr(place, v.type.as_pointer())).align = edge.item

        return prepare

    def apply(self):
        """``apply(addresses, index, numbers, stored, streamed)`` for sixteen packed columns.

        ``stored`` is where what was prepared of them lies.
        """
        operands, boxed = self._operands, self._boxed
        edge, edges = operands.edge, operands.edges
        kind = ir.VectorType(edge.storage, SIXTEEN)

        @emitter
        def apply(builder, addresses, index, numbers, stored, streamed):
            full = [load_sixteen(builder, edges[o], addresses[o], index) for o in operands.full_at]
            trace = Trace(builder, SIXTEEN)
            row, known = boxed.singles(builder, numbers, range(SIXTEEN))
            found = self._chosen(
                [trace.single(v) for v in full], [f(trace) for f in row], [f(trace) for f in known]
            )
            assert found is not None
            place = builder.add(stored, I64(boxed.stored_at()))
            value = builder.load(builder.inttoptr(place, kind.as_pointer()))
            value.align = edge.item
            v = builder.select(found[0].v, value, ir.Constant(kind, None))
            ((o, _),) = operands.finished
            place = builder.add(addresses[o], builder.mul(index, I64(edge.item)))
            edge.put_stored(builder, place, v, streamed)

        return apply


def choice_of(function: Callable, operands: Operands, known, boxed: Boxed) -> Choice | None:
    """A formula function as a choice, if it is one."""
    choice = Choice(function, operands, known, boxed)
    return choice if choice.place else None


def stored_choice_of(function: Callable, operands: Operands, known) -> Choice | None:
    """A choice among elements that a float32 holds; of it only ``mask`` and ``place`` are used."""
    places = (*operands.full_at, *operands.row_at)
    kinds = {operands.edges[o].element for o in places}
    if not kinds or not kinds <= {*IN_FLOATS}:
        return None
    return choice_of(function, operands, known, Boxed(len(operands.row), len(known), 0))
