"""Passes of a row formula, bound to an element type."""

from __future__ import annotations

from typing import Any

from numba.extending import intrinsic

from ...formulas.record import Pass, RowFormula
from ..words import CONSTANT_NAMES
from .elementary import primitives_for
from .fold import Fold
from .lanes import Lanes, traced
from .operands import Operands
from .single_calls import lift_call
from .sixteen import Boxed, Spread, lift_sixteen, per_eight
from .vectors import Names, emit_call, pack, unpack, vectors


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
        self.fold = Fold(step.monoid, primitives, full, row, known) if step.monoid else None
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
