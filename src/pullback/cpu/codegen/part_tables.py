"""Tables of 32-bit states, a vector of columns at a time: rows joined to them, and what follows.

Elements that meet a condition are counted in integers; of elements that a monoid selects float32
holds the one selected. Neither rounds anything, and both may be joined part by part.
"""

from __future__ import annotations

from llvmlite import ir

from ...formulas.folds import is_itself
from ...formulas.record import Monoid, RowFormula, names_read, parameters
from .column_choices import Choice, stored_choice_of
from .column_tallies import is_tally, tally_lane, truth_of
from .extremes import IN_FLOATS, is_float_extreme, widened_selected
from .functions import emitter
from .lanes import DOUBLES, I1, I32, I64, LANES, constant, scratch_builder, splat
from .listing import put_together
from .operands import Operands
from .singles import FLOAT, Single, Trace, in_singles
from .sixteen import SIXTEEN
from .storage import narrow, to_float

STATE_BYTES = 4


def _load(builder, address, item: ir.Type, count: int, align: int):
    v = builder.load(builder.inttoptr(address, ir.VectorType(item, count).as_pointer()))
    v.align = align
    return v


def _store(builder, address, v, align: int) -> None:
    builder.store(v, builder.inttoptr(address, v.type.as_pointer())).align = align


class NarrowStates:
    """A monoid whose states are 32-bit lanes: counts, or selected elements.

    ``emit_lift(builder, count, full, row)`` gives the state of elements, from float32;
    ``emit_join`` joins two, ``emit_widen`` makes float64 of eight.
    """

    lane: ir.Type
    identity: float

    def emit_lift(self, builder, count: int, full: dict, row: dict):
        raise NotImplementedError

    def emit_join(self, builder, earlier, later):
        raise NotImplementedError

    def emit_widen(self, builder, v):
        raise NotImplementedError


class Counts(NarrowStates):
    """How many elements meet a condition."""

    lane, identity = I32, 0

    def __init__(self, monoid: Monoid):
        self._lift, self._asked = monoid.lift, parameters(monoid.lift)

    def emit_mask(self, builder, count, full, row):
        """Which elements are counted."""
        held, trace = {**full, **row}, Trace(builder, count)
        truth = truth_of(self._lift, trace, [trace.single(held[n]) for n in self._asked])
        assert truth is not None
        return truth.v

    def emit_lift(self, builder, count, full, row):
        mask = self.emit_mask(builder, count, full, row)
        return builder.zext(mask, ir.VectorType(I32, count))

    def emit_join(self, builder, earlier, later):
        return builder.add(earlier, later)

    def emit_widen(self, builder, v):
        return builder.sitofp(v, DOUBLES)


class Selected(NarrowStates):
    """The element that is selected."""

    lane = FLOAT

    def __init__(self, monoid: Monoid):
        self._combine, (self.identity,) = in_singles(monoid.combine), monoid.identity

    def emit_lift(self, builder, count, full, row):
        (element,) = full.values()
        return element

    def emit_join(self, builder, earlier, later):
        trace = Trace(builder, earlier.type.count)
        made = self._combine(trace.single(earlier), trace.single(later))
        assert isinstance(made, Single)
        return made.v

    def emit_widen(self, builder, v):
        return widened_selected(builder, v)


def narrow_states(monoid: Monoid | None, operands: Operands) -> NarrowStates | None:
    """A monoid on 32-bit lanes; None where they would round."""
    twin = operands.packed_twin()
    if monoid and is_tally(monoid, twin) and tally_lane(monoid, twin) is FLOAT:
        return Counts(monoid)
    return Selected(monoid) if monoid and is_float_extreme(monoid, twin) else None


def pieces_of(width: int) -> tuple[range, int]:
    """Where vectors of some columns begin, and the columns of each."""
    piece = min(width, SIXTEEN)
    return range(0, width, piece), piece


class Elements:
    """Elements of operands as float32, so many columns at a time."""

    def __init__(self, operands: Operands, width: int):
        self._operands, self._width = operands, width

    def _read(self, builder, names, places, at, column) -> dict:
        found = {}
        for n, o in zip(names, places, strict=True):
            edge = self._operands.edges[o]
            place = builder.add(at[o], builder.mul(column, I64(edge.item)))
            v = _load(builder, place, edge.storage, self._width, edge.item)
            found[n] = to_float(builder, v, edge.element, edge.native_half)
        return found

    def full(self, builder, at, column) -> dict:
        return self._read(builder, self._operands.full, self._operands.full_at, at, column)

    def row(self, builder, at, column) -> dict:
        return self._read(builder, self._operands.row, self._operands.row_at, at, column)


def keeps_masks(states: NarrowStates | None, choice: Choice | None, operands: Operands) -> bool:
    """Whether what is counted is what is chosen, so that nobody need look at elements again."""
    if choice is None or not isinstance(states, Counts):
        return False
    builder, kind = scratch_builder(), ir.VectorType(FLOAT, LANES)
    names = (*operands.full, *operands.row)
    # Of each operand another number, by which it is told.
    held = {n: ir.Constant(kind, [k + 1.0] * LANES) for k, n in enumerate(names)}
    full, row = ({n: held[n] for n in group} for group in (operands.full, operands.row))
    counted = states.emit_mask(builder, LANES, full, row)
    chosen = choice.mask(builder, list(full.values()), list(row.values()))
    return _made_of(counted) == _made_of(chosen)


def _made_of(v):
    """What a value is computed from, and how."""
    if not isinstance(v, ir.Instruction):
        return str(v)
    return v.opname, getattr(v, "op", ""), tuple(map(_made_of, v.operands))


def _bits_of(count: int) -> ir.IntType:
    """The integer that a mask is kept as."""
    return ir.IntType(max(8, count))


def _keep_mask(builder, place, mask) -> None:
    count = mask.type.count
    bits = builder.bitcast(mask, ir.IntType(count))
    bits = builder.zext(bits, _bits_of(count)) if count < 8 else bits
    builder.store(bits, builder.inttoptr(place, bits.type.as_pointer())).align = 1


def _kept_mask(builder, place, count: int):
    kind = _bits_of(count)
    bits = builder.load(builder.inttoptr(place, kind.as_pointer()))
    bits.align = 1
    bits = builder.trunc(bits, ir.IntType(count)) if count < 8 else bits
    return builder.bitcast(bits, ir.VectorType(I1, count))


def fold_columns(states: NarrowStates, operands: Operands, width: int, keeps: bool):
    """``fold(at, column, place, masks)``: the columns of a row into the state at a place.

    If it ``keeps`` them, masks of what was counted go to an address.
    """
    starts, count = pieces_of(width)
    elements = Elements(operands, count)

    @emitter
    def fold(builder, at, column, place, masks):
        for start in starts:
            here = builder.add(column, I64(start))
            full, row = elements.full(builder, at, here), elements.row(builder, at, here)
            state_at = builder.add(place, I64(STATE_BYTES * start))
            state = _load(builder, state_at, states.lane, count, STATE_BYTES)
            if keeps:
                assert isinstance(states, Counts)
                mask = states.emit_mask(builder, count, full, row)
                _keep_mask(builder, builder.add(masks, I64(start // 8)), mask)
                lifted = builder.zext(mask, ir.VectorType(I32, count))
            else:
                lifted = states.emit_lift(builder, count, full, row)
            _store(builder, state_at, states.emit_join(builder, state, lifted), STATE_BYTES)

    return fold


def row_places(operands: Operands):
    """``rows(at)``: where the row operands lie, of the places of all."""
    row_at = operands.row_at

    @emitter
    def rows(builder, at):
        return tuple(at[o] for o in row_at)

    return rows


def fill_line(states: NarrowStates | None):
    """``fill(address)``: a line of states of nothing, or of zeros."""
    kind = ir.VectorType(states.lane if states else I32, SIXTEEN)
    value = kind([states.identity if states else 0] * SIXTEEN)

    @emitter
    def fill(builder, address):
        _store(builder, address, value, STATE_BYTES)

    return fill


@emitter
def count_one(builder, place):
    """One more in a 32-bit integer."""
    pointer = builder.inttoptr(place, I32.as_pointer())
    builder.store(builder.add(builder.load(pointer), I32(1)), pointer)


def join_parts(states: NarrowStates):
    """``first(place)``, ``join(state, place)`` of eight states, ``widened(state)`` as float64."""

    def load(builder, place):
        return _load(builder, place, states.lane, LANES, STATE_BYTES)

    @emitter
    def first(builder, place):
        return load(builder, place)

    @emitter
    def join(builder, state, place):
        return states.emit_join(builder, state, load(builder, place))

    @emitter
    def widened(builder, state):
        return (states.emit_widen(builder, state),)

    return first, join, widened


def extents_of_segments(side: int):
    """``rows_at(place)``, ``add(rows, place)`` and ``with_extents(const, rows)``.

    Of as many segments as lie side by side in the lanes, counted in 32-bit integers.
    """
    kind = ir.VectorType(I32, side)

    @emitter
    def rows_at(builder, place):
        return _load(builder, place, I32, side, STATE_BYTES)

    @emitter
    def add(builder, rows, place):
        return builder.add(rows, _load(builder, place, I32, side, STATE_BYTES))

    @emitter
    def with_extents(builder, const, rows):
        order = ir.VectorType(I32, LANES)([lane * side // LANES for lane in range(LANES)])
        spread = builder.shuffle_vector(rows, ir.Constant(kind, ir.Undefined), order)
        return (builder.sitofp(spread, DOUBLES), *const[1:])

    return rows_at, add, with_extents


def flat_rows(operands: Operands):
    """``fetch(addresses, first, count)`` of row operands whose rows follow each other."""
    edges, row_at = operands.edges, operands.row_at

    @emitter
    def fetch(builder, addresses, first, count):
        items = []
        for o in row_at:
            place = builder.add(addresses[o], builder.mul(first, I64(edges[o].item)))
            items.append(edges[o].load(builder, place, I64(edges[o].item), count, packed=True))
        return tuple(items) or (operands.edge.zero(),)

    return fetch


def flat_outputs(operands: Operands):
    """``put(addresses, first, count, values)`` of outputs whose rows follow each other."""
    edges, finished = operands.edges, operands.finished

    @emitter
    def put(builder, addresses, first, count, values):
        for o, w in finished:
            place = builder.add(addresses[o], builder.mul(first, I64(edges[o].item)))
            edges[o].store(builder, place, I64(edges[o].item), count, values[w], packed=True)

    return put


def put_number(operands: Operands, k: int):
    """``put(place, values)``: eight of the values at k as they are stored."""
    edge = operands.edge

    @emitter
    def put(builder, place, values):
        v = narrow(builder, values[k], edge.element, edge.native_half)
        _store(builder, place, v, edge.item)

    return put


def give_columns(choice: Choice | None, operands: Operands, width: int, kept: bool):
    """``give(at, column, place, masks)``: the numbers stored at a place, where they are chosen.

    By masks that were ``kept``, or else by elements.
    """
    starts, count = pieces_of(width)
    elements, edge = Elements(operands, count), operands.edge
    ((target, _),) = operands.finished

    @emitter
    def give(builder, at, column, place, masks):
        for start in starts:
            here = builder.add(column, I64(start))
            number_at = builder.add(place, I64(edge.item * start))
            v = _load(builder, number_at, edge.storage, count, edge.item)
            if kept:
                mask = _kept_mask(builder, builder.add(masks, I64(start // 8)), count)
                v = builder.select(mask, v, ir.Constant(v.type, None))
            elif choice:
                full = list(elements.full(builder, at, here).values())
                row = list(elements.row(builder, at, here).values())
                v = builder.select(choice.mask(builder, full, row), v, ir.Constant(v.type, None))
            output = builder.add(at[target], builder.mul(here, I64(edge.item)))
            _store(builder, output, v, edge.item)

    return give


def holders_of(formula: RowFormula, operands: Operands, size: int, count: int):
    """``holders(addresses, n, ids, numbers, owners, found)``: how many rows are listed then.

    Of so many rows of one packed column, from n on, those in which the formula's condition holds,
    and their segments; ids are of ``size`` bytes and lie at an address.
    """
    condition, asked = in_singles(formula.seldom), parameters(formula.seldom)
    longs, kind = ir.VectorType(I64, count), ir.VectorType(ir.IntType(8 * size), count)

    def gathered(builder, edge, base, segments):
        v = ir.Constant(ir.VectorType(edge.storage, count), ir.Undefined)
        for lane, s in enumerate(segments):
            at = builder.add(base, builder.mul(s, I64(edge.item)))
            value = builder.load(builder.inttoptr(at, edge.storage.as_pointer()))
            v = builder.insert_element(v, value, I32(lane))
        return v

    @emitter
    def holders(builder, addresses, n, ids, numbers, owners, found):
        own = _load(builder, ids, kind.element, count, size)
        own = own if size == 8 else builder.sext(own, longs)
        segments = [emit_id(builder, ids, k, size) for k in range(count)]
        trace, held = Trace(builder, count), {}
        for name, o in zip(operands.full, operands.full_at, strict=True):
            edge = operands.edges[o]
            at = builder.add(addresses[o], builder.mul(n, I64(edge.item)))
            held[name] = _load(builder, at, edge.storage, count, edge.item), edge
        for name, o in zip(operands.row, operands.row_at, strict=True):
            edge = operands.edges[o]
            if name in asked:
                held[name] = gathered(builder, edge, addresses[o], segments), edge
        singles = [
            trace.single(to_float(builder, v, edge.element, edge.native_half))
            for v, edge in (held[name] for name in asked)
        ]
        mask = condition(*singles).v
        if count < LANES:
            rooms = ((numbers, n), (owners, segments[0]))
            for room, value in rooms:
                at = builder.add(room, builder.mul(found, I64(8)))
                builder.store(value, builder.inttoptr(at, I64.as_pointer()))
            holds = builder.extract_element(mask, I32(0))
            return builder.add(found, builder.zext(holds, I64))
        places = builder.add(splat(builder, n), constant(range(LANES), I64))
        return put_together(builder, mask, found, [(places, numbers), (own, owners)])

    return holders


def emit_id(builder, ids, k: int, size: int):
    """The k-th of packed ids as an integer."""
    kind = ir.IntType(8 * size)
    at = builder.add(ids, I64(k * size))
    value = builder.load(builder.inttoptr(at, kind.as_pointer()))
    return value if size == 8 else builder.sext(value, I64)


def clear_elements(operands: Operands, count: int):
    """``clear(addresses, n)``: zeros in so many elements of the output, of one packed column."""
    edge, ((target, _),) = operands.edge, operands.finished
    kind = ir.VectorType(edge.storage, count)

    @emitter
    def clear(builder, addresses, n):
        at = builder.add(addresses[target], builder.mul(n, I64(edge.item)))
        _store(builder, at, ir.Constant(kind, None), edge.item)

    return clear


def copy_element(operands: Operands):
    """``copy(addresses, n, place)``: what is stored at a place to an element of the output."""
    edge, ((target, _),) = operands.edge, operands.finished

    @emitter
    def copy(builder, addresses, n, place):
        at = builder.add(addresses[target], builder.mul(n, I64(edge.item)))
        _store(builder, at, _load(builder, place, edge.storage, 1, edge.item), edge.item)

    return copy


def given_to_all(formula: RowFormula, known) -> int:
    """Which known value every row is given as it is; 0 if none is."""
    apply = formula.apply
    return known.index(parameters(apply)[0]) if apply and is_itself(apply) else 0


def number_given(formula: RowFormula, operands: Operands, known) -> int:
    """Which known value rows are given as it is, all or some of their elements; 0 if none is."""
    choice = stored_choice_of(formula.apply, operands, known) if formula.apply else None
    if choice and choice.place:
        group, k = choice.place
        return k if group == "known" else 0
    return given_to_all(formula, known)


def folds_in_parts(formula: RowFormula, operands: Operands) -> bool:
    """Whether a formula needs nothing but such a table, and numbers that rows are given."""
    if len(formula.passes) != 1 or {"index", "first"} & names_read(formula):
        return False
    if len(operands.finished) != 1 or not {e.element for e in operands.edges} <= {*IN_FLOATS}:
        return False
    (step,) = formula.passes
    if step.monoid and narrow_states(step.monoid, operands) is None:
        return False
    if formula.finish:
        return step.monoid is not None
    return number_given(formula, operands, ("", *step.names)) > 0
