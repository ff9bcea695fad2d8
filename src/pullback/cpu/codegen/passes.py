"""Passes of a row formula, bound to an element type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from ...formulas.record import Again, Monoid, Pass, RowFormula
from ..words import CONSTANT_NAMES
from .bind import any_element, per_row
from .elementary import primitives_for
from .fold import Fold
from .functions import emitter, inner
from .lanes import I64, LANES, Lanes, traced
from .operands import Operands
from .single_calls import lift_call
from .sixteen import Boxed, Spread, lift_sixteen, per_eight
from .vectors import Names, emit_call, no_vectors, pack


def state_in_front(
    start: Callable | None, monoid: Monoid, fold: Fold, row: tuple[str, ...], plain: bool = False
):
    """``begun(const, row)``: the state in front of a row."""
    identity = fold.identity
    if start is None:

        @inner
        def nothing(const, row):
            return identity()

        return nothing
    # A state may be read as float64, whatever the elements are.
    primitives = primitives_for("f64", plain)
    size, places = len(monoid.state), [monoid.state.index(name) for name in fold.state]
    begin = per_row(start, primitives, row, (), (), size, picked=places)

    @inner
    def begun(const, row):
        return begin(const, row, no_vectors(), no_vectors())

    return begun


class BoundPass:
    """A pass: its fold, and ``close`` that extends the tuple of known values.

    One that is taken again and again has ``first``, which extends the tuple, and a ``close`` that
    puts new values in the place of the last. ``rests(before, after)`` says whether a time was the
    last one in all lanes; there are ``most``. Without, ``most`` is 0.

    Of ``operands`` that may be computed on float32 lanes it has ``lift_pair`` where that pays: the
    states of sixteen packed elements at a time, along a row or, if ``boxed``, of as many columns.
    If it ``keeps`` what is lifted, ``apply`` finds it there.
    """

    def __init__(
        self,
        formula: RowFormula,
        step: Pass,
        element: str,
        operands: Operands,
        known,
        boxed: Boxed | None = None,
        keeps: bool = False,
    ):
        full, row = operands.full, operands.row
        primitives = primitives_for(element)
        kept, again = len(known), step.again
        self.most = again.most if again else 0
        self.first: Any = None
        self.rests: Any = None
        if again:
            self.first = _first_values(again, primitives, row, known)
            known = known + step.gives
            self.rests = _resting([known.index(n) for n in again.moving])
        self.fold, self.monoid = None, step.monoid
        if step.monoid:
            self.fold = Fold(step.monoid, primitives, full, row, known, step.start)
            self.begin = state_in_front(step.start, step.monoid, self.fold, row)
        self.lift_pair: Any = None
        self.keeps = keeps
        tried = step.monoid if operands.singles else None
        call = lift_call(formula, tried, full, row, known) if tried else None
        if call and step.monoid and self.fold:
            function, carried = step.monoid.lift, self.fold.carried
            self.fold.lift = per_eight(call, function, primitives, operands, known, carried)
            if operands.packed and not any(n.endswith("_before") for n in full):
                rows = boxed or Spread()
                self.lift_pair = lift_sixteen(call, operands, carried, rows, keeps)
        state = step.monoid.state if step.monoid else ()
        names = step.names
        emit = None
        if step.close:
            places = Names(const=CONSTANT_NAMES, row=row, known=known, state=state)
            emit = emit_call(traced(step.close, primitives_for(element)), places)

        @emitter
        def close(builder, const, row, known, state):
            gained = [Lanes(builder, v) for v in state]
            if emit:
                gained = emit(builder, const=const, row=row, known=known, state=state)
            before = [Lanes(builder, v) for v in known[:kept]]
            return pack([*before, *gained])

        self.close = close
        self.gives = len(names)
        self.counts: Any = None
        if step.monoid and step.monoid.counts:
            self.counts = any_element(step.monoid.counts, primitives, full, row, known)


def _first_values(again: Again, primitives, row, known):
    """``first(const, row, known)``: the known values and those that a pass begins with."""
    places = Names(const=CONSTANT_NAMES, row=row, known=known)
    emit = emit_call(traced(again.start, primitives), places)

    @emitter
    def first(builder, const, row, known):
        before = [Lanes(builder, v) for v in known]
        gained = emit(builder, const=const, row=row, known=known)
        return pack([*before, *gained])

    return first


def _resting(moving: Sequence[int]):
    """``rests(before, after)``: whether the values at ``moving`` are the same in all lanes."""
    bits, all_set = ir.VectorType(I64, LANES), ir.IntType(LANES)(-1)

    @emitter
    def rests(builder, before, after):
        pairs = list(zip(before, after, strict=True))
        answer = ir.IntType(1)(1)
        for k in moving:
            same = builder.icmp_signed("==", *(builder.bitcast(v, bits) for v in pairs[k]))
            lanes = builder.bitcast(same, all_set.type)
            answer = builder.and_(answer, builder.icmp_signed("==", lanes, all_set))
        return answer

    return rests
