"""Formula records bound to an element type: what a schedule calls inside its loops."""

from __future__ import annotations

from collections.abc import Callable


from numba.extending import intrinsic

from ...formulas.record import Monoid, Pass
from .elementary import primitives_for
from .lanes import LANES, Lanes, traced
from .memory import CONSTANT_NAMES
from .vectors import (
    Names,
    Vector,
    emit_call,
    pack,
    rotated,
    tuple_intrinsics,
    unpack,
    vectors,
)


def per_element(function: Callable, element: str, full, row, known, results: int):
    """``f(index, const, full, row, known)``: a lift or an apply, as a tuple of vectors."""
    names = Names(index=("index",), const=CONSTANT_NAMES, full=full, row=row, known=known)
    emit = emit_call(traced(function, primitives_for(element)), names, results)
    kind = vectors(results)

    @intrinsic
    def call(context, index, const, full, row, known):
        def codegen(ctx, builder, sig, args):
            const_, full_, row_, known_ = (unpack(builder, a) for a in args[1:])
            values = emit(
                builder, index=[args[0]], const=const_, full=full_, row=row_, known=known_
            )
            return pack(ctx, builder, kind, values)

        return kind(Vector, const, full, row, known), codegen

    return call


def per_row(function: Callable, element: str, row, known, state, results: int):
    """``f(const, row, known, state)``: a close or a finish, as a tuple of vectors."""
    names = Names(const=CONSTANT_NAMES, row=row, known=known, state=state)
    emit = emit_call(traced(function, primitives_for(element)), names, results)
    kind = vectors(results)

    @intrinsic
    def call(context, const, row, known, state):
        def codegen(ctx, builder, sig, args):
            const_, row_, known_, state_ = (unpack(builder, a) for a in args)
            values = emit(builder, const=const_, row=row_, known=known_, state=state_)
            return pack(ctx, builder, kind, values)

        return kind(const, row, known, state), codegen

    return call


class Fold:
    """A monoid on tuples of vectors."""

    def __init__(self, monoid: Monoid, element: str, full=(), row=(), known=()):
        self.size = size = len(monoid.state)
        self.lift = per_element(monoid.lift, element, full, row, known, size)
        function = traced(monoid.combine, primitives_for(element))
        kind = vectors(size)

        def joined(builder, a, b):
            result = function(*(Lanes(builder, v) for v in (*a, *b)))
            return [v.v for v in (result if size > 1 else (result,))]

        @intrinsic
        def combine(context, a, b):
            """The state a, then the state b."""

            def codegen(ctx, builder, sig, args):
                items = joined(builder, *(unpack(builder, v) for v in args))
                return ctx.make_tuple(builder, kind, items)

            return kind(kind, kind), codegen

        @intrinsic
        def identity(context):
            def codegen(ctx, builder, sig, args):
                return pack(ctx, builder, kind, monoid.identity)

            return kind(), codegen

        @intrinsic
        def join_lanes(context, a):
            """All lanes as one state by a tree of fixed shape; lane 0 holds it."""

            def codegen(ctx, builder, sig, args):
                items = unpack(builder, args[0])
                distance = LANES // 2
                while distance:
                    items = joined(builder, items, rotated(builder, items, distance))
                    distance //= 2
                return ctx.make_tuple(builder, kind, items)

            return kind(kind), codegen

        self.combine, self.identity, self.join_lanes = combine, identity, join_lanes
        self.read, self.write, self.read_one, self.write_one, self.spread, self.keep = (
            tuple_intrinsics(size)
        )


class BoundPass:
    """A pass: its fold, and ``close`` that extends the tuple of known values."""

    def __init__(self, step: Pass, element: str, full, row, known):
        self.fold = Fold(step.monoid, element, full, row, known) if step.monoid else None
        state = step.monoid.state if step.monoid else ()
        names = step.names
        after = vectors(len(known) + len(names))
        emit = None
        if step.close:
            places = Names(const=CONSTANT_NAMES, row=row, known=known, state=state)
            emit = emit_call(traced(step.close, primitives_for(element)), places, len(names))

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
