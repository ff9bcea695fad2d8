"""Four times sixteen packed columns on float32 lanes, of what rounds nothing there.

Elements that meet a condition are counted in integers, one of two is selected, or a number of the
column is chosen or 0: the bits are those of float64 lanes, of which there are half as many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ...formulas.record import Monoid, parameters
from .column_choices import Choice
from .column_tallies import is_tally, tally_lane, truth_of
from .extremes import is_float_extreme, widened_selected
from .functions import emitter
from .lanes import DOUBLES, I32, I64, LANES
from .operands import Operands
from .singles import FLOAT, Single, Trace, in_singles
from .sixteen import FLOATS, SIXTEEN, halves_of, load_sixteen
from .storage import narrow

GROUPS = range(4)
# Columns of a block.
BLOCK = len(GROUPS) * SIXTEEN
_INTEGERS = ir.VectorType(I32, SIXTEEN)


def _column_of(builder, column, group: int):
    return builder.add(column, I64(SIXTEEN * group))


def _loaded(builder, operands: Operands, o: int, at, column, group: int):
    return load_sixteen(builder, operands.edges[o], at[o], _column_of(builder, column, group))


def rows_of_block(operands: Operands):
    """``rows(at, column)``: row operands of a block, as float32."""

    @emitter
    def rows(builder, at, column):
        places = [(o, group) for o in operands.row_at for group in GROUPS]
        found = [_loaded(builder, operands, o, at, column, group) for o, group in places]
        return tuple(found) or (ir.Constant(FLOATS, None),)

    return rows


def _of_group(rows: Sequence[Any], group: int) -> Sequence[Any]:
    return rows[group :: len(GROUPS)]


@dataclass(frozen=True)
class NarrowFold:
    """Emitters of a fold of a block.

    ``begin()`` and ``join(at, column, rows, states)`` give the states, ``end(box, states)`` writes
    them as float64.
    """

    begin: Any
    join: Any
    end: Any


def narrow_fold_of(monoid: Monoid, operands: Operands) -> NarrowFold | None:
    """A monoid on float32 lanes; None where they would round."""
    twin = operands.packed_twin()
    if is_tally(monoid, twin) and tally_lane(monoid, twin) is FLOAT:
        return _counting(monoid, operands)
    return _selecting(monoid, operands)


def _make_fold(operands: Operands, identity: ir.Constant, emit_join: Callable, widen: Callable):
    """A fold with one vector for each group, whose joining and widening are given."""
    full_at = operands.full_at

    @emitter
    def begin(builder):
        return (identity,) * len(GROUPS)

    @emitter
    def join(builder, at, column, rows, states):
        found = []
        for group in GROUPS:
            full = [_loaded(builder, operands, o, at, column, group) for o in full_at]
            found.append(emit_join(builder, states[group], full, _of_group(rows, group)))
        return tuple(found)

    @emitter
    def end(builder, box, states):
        for group in GROUPS:
            for half, part in enumerate(halves_of(builder, states[group])):
                at = builder.add(box, I64(8 * (SIXTEEN * group + LANES * half)))
                place = builder.inttoptr(at, DOUBLES.as_pointer())
                builder.store(widen(builder, part), place).align = 8

    return NarrowFold(begin, join, end)


def _counting(monoid: Monoid, operands: Operands) -> NarrowFold:
    asked = parameters(monoid.lift)

    def emit_join(builder, state, full, row):
        trace = Trace(builder, SIXTEEN)
        names = (*operands.full, *operands.row)
        held = dict(zip(names, (*full, *row), strict=True))
        truth = truth_of(monoid.lift, trace, [trace.single(held[n]) for n in asked])
        assert truth is not None
        return builder.sub(state, builder.sext(truth.v, _INTEGERS))

    def widen(builder, part):
        return builder.sitofp(part, DOUBLES)

    return _make_fold(operands, ir.Constant(_INTEGERS, None), emit_join, widen)


def _selecting(monoid: Monoid, operands: Operands) -> NarrowFold | None:
    """Of a monoid that gives back one of two elements as they are."""
    if not is_float_extreme(monoid, operands.packed_twin()):
        return None
    combine = in_singles(monoid.combine)

    def emit_join(builder, state, full, row):
        trace = Trace(builder, SIXTEEN)
        (element,) = full
        made = combine(trace.single(state), trace.single(element))
        assert isinstance(made, Single)
        return made.v

    identity = FLOATS(list(monoid.identity) * SIXTEEN)
    return _make_fold(operands, identity, emit_join, widened_selected)


def choosing(choice: Choice, operands: Operands, pitch: int):
    """``prepare(row_box, known_box)`` and ``put(at, column, rows, numbers)`` of a block.

    The numbers of its columns are rounded once and held as they are stored.
    """
    edge, (group_of_place, k) = operands.edge, choice.place or ("", 0)
    ((target, _),) = operands.finished

    @emitter
    def prepare(builder, row_box, known_box):
        box = row_box if group_of_place == "row" else known_box
        found = []
        for group in GROUPS:
            halves = []
            for half in range(2):
                offset = k * pitch + 8 * (SIXTEEN * group + LANES * half)
                place = builder.inttoptr(builder.add(box, I64(offset)), DOUBLES.as_pointer())
                wide = builder.load(place)
                wide.align = 8
                halves.append(narrow(builder, wide, edge.element, edge.native_half))
            order = ir.VectorType(I32, SIXTEEN)(list(range(SIXTEEN)))
            found.append(builder.shuffle_vector(*halves, order))
        return tuple(found)

    @emitter
    def put(builder, at, column, rows, numbers):
        for group in GROUPS:
            full = [_loaded(builder, operands, o, at, column, group) for o in operands.full_at]
            mask = choice.mask(builder, full, list(_of_group(rows, group)))
            v = builder.select(mask, numbers[group], ir.Constant(numbers[group].type, None))
            first = builder.mul(_column_of(builder, column, group), I64(edge.item))
            place = builder.inttoptr(builder.add(at[target], first), v.type.as_pointer())
            builder.store(v, place).align = edge.item

    return prepare, put
