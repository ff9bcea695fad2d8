"""Operands read beside a position: what a formula calls ``NAME_before``."""

from __future__ import annotations

from dataclasses import dataclass

from ...formulas.record import Formula, ScanFormula
from ..words import EXTENT
from .block import least
from .functions import emitter, inner
from .lanes import I32, I64, LANES, constant, doubles, splat
from .memory import word
from .operands import Operands


@dataclass(frozen=True)
class Neighbour:
    """An operand one position before in forward order.

    ``shift`` is where the loops find it: at the position before or, where they run against the
    forward direction, at the next one. ``border`` is what it is where there is none.
    """

    shift: int
    border: float


def neighbours_of(formula: Formula, operands: Operands) -> dict[int, Neighbour]:
    """The full operands that are read beside a position, by their place."""
    backwards = isinstance(formula, ScanFormula) and formula.against and formula.prefix is None
    borders = dict(formula.before)
    return {
        o: Neighbour(1 if backwards else -1, float(borders.get(name.removesuffix("_before"), 0.0)))
        for o, name in enumerate(operands.full)
        if name.endswith("_before")
    }


def fetch_along(operands: Operands, neighbours: dict[int, Neighbour]):
    """``fetch(p, addresses, strides, start, count)``: full operands, with lanes along the axis."""
    fetch = operands.fetch_full
    for operand, neighbour in neighbours.items():
        fetch = _with_neighbour(fetch, operands, operand, neighbour)
    return fetch


def fetch_across(operands: Operands, neighbours: dict[int, Neighbour]):
    """``fetch(p, at, strides, steps, column, count, index)``: full operands, lanes across columns.

    ``at`` are the addresses of the position ``index``.
    """
    fetch_columns = operands.fetch_columns

    @inner
    def fetch(p, at, strides, steps, column, count, index):
        return fetch_columns(p, at, steps, column, count)

    for operand, neighbour in neighbours.items():
        fetch = _with_row_before(fetch, operands, operand, neighbour)
    return fetch


def _with_neighbour(fetch_others, operands: Operands, operand: int, neighbour: Neighbour):
    read, swap = operands.fetch_one(operand), _replaced(operand)
    if neighbour.shift > 0:
        filled = _filled_behind(operands, neighbour.border)

        @inner
        def fetch_next(p, addresses, strides, start, count):
            full = fetch_others(p, addresses, strides, start, count)
            there = least(count, word(p, EXTENT) - start - 1)
            one = read(p, addresses, strides, start + 1, there)
            return swap(full, filled(one, there))

        return fetch_next
    moved = _moved_on(operands, neighbour.border)

    @inner
    def fetch_previous(p, addresses, strides, start, count):
        full = fetch_others(p, addresses, strides, start, count)
        if start == 0:
            return swap(full, moved(read(p, addresses, strides, 0, count)))
        return swap(full, read(p, addresses, strides, start - 1, count))

    return fetch_previous


def _with_row_before(fetch_others, operands: Operands, operand: int, neighbour: Neighbour):
    read, swap, places = operands.fetch_one(operand), _replaced(operand), operands.places
    border = _border(neighbour.border)

    @inner
    def fetch_previous(p, at, strides, steps, column, count, index):
        full = fetch_others(p, at, strides, steps, column, count, index)
        if index == 0:
            return swap(full, border())
        return swap(full, read(p, places(at, strides, -1), steps, column, count))

    return fetch_previous


def _replaced(operand: int):
    """``replaced(full, one)``: a tuple of full operands with another vector for one of them."""

    @emitter
    def replaced(builder, full, one):
        return (*full[:operand], *one, *full[operand + 1 :])

    return replaced


def _border(value: float):
    """``border()``: what is in front of the first position, in every lane."""

    @emitter
    def border(builder):
        return (doubles(value),)

    return border


def _moved_on(operands: Operands, border: float):
    """``moved(one)``: lanes moved on by one position, the border in the place of the first."""
    back = 1 if operands.flipped else -1
    order = [k if 0 <= k < LANES else LANES for k in range(back, LANES + back)]

    @emitter
    def moved(builder, one):
        (v,) = one
        v = builder.shuffle_vector(v, doubles(border), constant(order, I32))
        return (v,)

    return moved


def _filled_behind(operands: Operands, border: float):
    """``filled(one, count)``: the border behind the first ``count`` positions."""
    lanes = range(LANES - 1, -1, -1) if operands.flipped else range(LANES)

    @emitter
    def filled(builder, one, count):
        (v,) = one
        there = builder.icmp_signed("<", constant(lanes, I64), splat(builder, count))
        v = builder.select(there, v, doubles(border))
        return (v,)

    return filled
