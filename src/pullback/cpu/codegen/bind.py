"""Formula functions as intrinsics: what a loop nest calls for an element or for a row."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...formulas.record import parameters
from ..words import CONSTANT_NAMES
from .lanes import LANES, Lanes, traced
from .vectors import Names, Vector, emit_call, pack, unpack, vectors


def element_emitter(function: Callable, primitives, full, row, known, constants=None):
    """``emit(builder, index, const, full, row, known)`` of a formula function, from lists."""
    places = ("index", "first") if "first" in parameters(function) else ("index",)
    names = Names(constants, index=places, const=CONSTANT_NAMES, full=full, row=row, known=known)
    emit_placed = emit_call(traced(function, primitives), names)

    def emit(builder, index, const, full, row, known):
        if "first" in places:
            here, front = (Lanes(builder, v) for v in (index[0], const[len(CONSTANT_NAMES)]))
            index = [*index, here == front]
        return emit_placed(builder, index=index, const=const, full=full, row=row, known=known)

    return emit


def per_element(
    function: Callable, primitives, full, row, known, results: int, picked=None, constants=None
):
    """``f(index, const, full, row, known)``: a lift or an apply, as a tuple of vectors.

    ``picked`` are the results to give, all of them if not said; ``constants`` are names that stand
    for numbers.
    """
    picked = range(results) if picked is None else picked
    emit = element_emitter(function, primitives, full, row, known, constants)
    kind = vectors(len(picked))

    @intrinsic
    def call(context, index, const, full, row, known):
        def codegen(ctx, builder, sig, args):
            const_, full_, row_, known_ = (unpack(builder, a) for a in args[1:])
            values = emit(
                builder, index=[args[0]], const=const_, full=full_, row=row_, known=known_
            )
            return pack(ctx, builder, kind, [values[k] for k in picked])

        return kind(Vector, const, full, row, known), codegen

    return call


def any_element(function: Callable, primitives, full, row, known):
    """``f(index, const, full, row, known)``: whether a condition of a formula holds in any lane."""
    emit = element_emitter(function, primitives, full, row, known)

    @intrinsic
    def call(context, index, const, full, row, known):
        def codegen(ctx, builder, sig, args):
            const_, full_, row_, known_ = (unpack(builder, a) for a in args[1:])
            (truth,) = emit(
                builder, index=[args[0]], const=const_, full=full_, row=row_, known=known_
            )
            bits = builder.bitcast(truth.v, ir.IntType(LANES))
            return builder.icmp_unsigned("!=", bits, bits.type(0))

        return types.boolean(Vector, const, full, row, known), codegen

    return call


def per_row(
    function: Callable, primitives, row, known, state, results: int, constants=None, picked=None
):
    """``f(const, row, known, state)``: a close or a finish, as a tuple of vectors.

    ``constants`` and ``picked`` are as in :func:`per_element`.
    """
    names = Names(constants, const=CONSTANT_NAMES, row=row, known=known, state=state)
    emit = emit_call(traced(function, primitives), names)
    picked = range(results) if picked is None else picked
    kind = vectors(len(picked))

    @intrinsic
    def call(context, const, row, known, state):
        def codegen(ctx, builder, sig, args):
            const_, row_, known_, state_ = (unpack(builder, a) for a in args)
            values = emit(builder, const=const_, row=row_, known=known_, state=state_)
            return pack(ctx, builder, kind, [values[k] for k in picked])

        return kind(const, row, known, state), codegen

    return call
