"""Formula functions as emitters: what a loop nest calls for an element or for a row."""

from __future__ import annotations

from collections.abc import Callable

from ...formulas.record import parameters
from ..words import CONSTANT_NAMES
from .functions import emitter
from .lanes import Lanes, traced
from .registers import any_piece, pieces
from .vectors import Names, emit_call, pack


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

    @emitter
    def call(builder, index, const, full, row, known):
        values = emit(builder, index=[index], const=const, full=full, row=row, known=known)
        return pack([values[k] for k in picked])

    return call


def any_element(function: Callable, primitives, full, row, known):
    """``f(index, const, full, row, known)``: whether a condition of a formula holds in any lane."""
    emit = element_emitter(function, primitives, full, row, known)

    @emitter
    def call(builder, index, const, full, row, known):
        tuples = {"index": [index], "const": const, "full": full, "row": row, "known": known}
        parts = {place: pieces(builder, vectors) for place, vectors in tuples.items()}
        masks = []
        for k in range(len(parts["index"])):
            (truth,) = emit(builder, **{place: part[k] for place, part in parts.items()})
            masks.append(truth.v)
        return any_piece(builder, masks)

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

    @emitter
    def call(builder, const, row, known, state):
        values = emit(builder, const=const, row=row, known=known, state=state)
        return pack([values[k] for k in picked])

    return call
