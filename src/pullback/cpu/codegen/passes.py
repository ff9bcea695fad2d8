"""Passes of a row formula, bound to an element type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.extending import intrinsic

from ...formulas.record import Monoid, Pass, RowFormula
from ..words import CONSTANT_NAMES
from .bind import per_row
from .elementary import primitives_for
from .fold import Fold
from .jit import inner
from .lanes import Lanes, traced
from .operands import Operands
from .single_calls import lift_call
from .sixteen import Boxed, Spread, lift_sixteen, per_eight
from .vectors import Names, emit_call, no_vectors, pack, unpack, vectors


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

    Of ``operands`` that may be computed on float32 lanes it has ``lift_pair`` where that pays: the
    states of sixteen packed elements at a time, along a row or, if ``boxed``, of as many columns.
    """

    def __init__(
        self,
        formula: RowFormula,
        step: Pass,
        element: str,
        operands: Operands,
        known,
        boxed: Boxed | None = None,
    ):
        full, row = operands.full, operands.row
        primitives = primitives_for(element)
        self.fold = None
        if step.monoid:
            self.fold = Fold(step.monoid, primitives, full, row, known, step.start)
            self.begin = state_in_front(step.start, step.monoid, self.fold, row)
        self.lift_pair: Any = None
        tried = step.monoid if operands.singles else None
        call = lift_call(formula, tried, full, row, known) if tried else None
        if call and step.monoid and self.fold:
            function, carried = step.monoid.lift, self.fold.carried
            self.fold.lift = per_eight(call, function, primitives, operands, known, carried)
            if operands.packed and not any(n.endswith("_before") for n in full):
                rows = boxed or Spread()
                self.lift_pair = lift_sixteen(
                    call, step.monoid, primitives, operands, known, carried, rows
                )
        state = step.monoid.state if step.monoid else ()
        names = step.names
        after = vectors(len(known) + len(names))
        emit = None
        if step.close:
            places = Names(const=CONSTANT_NAMES, row=row, known=known, state=state)
            emit = emit_call(traced(step.close, primitives_for(element)), places)

        @intrinsic
        def close(context, const, row, known, state):
            def codegen(ctx, builder, sig, args):
                const_, row_, known_, state_ = (unpack(builder, a) for a in args)
                gained = [Lanes(builder, v) for v in state_]
                if emit:
                    gained = emit(builder, const=const_, row=row_, known=known_, state=state_)
                before = [Lanes(builder, v) for v in known_]
                return pack(ctx, builder, after, [*before, *gained])

            return after(const, row, known, state), codegen

        self.close = close
        self.gives = len(names)
