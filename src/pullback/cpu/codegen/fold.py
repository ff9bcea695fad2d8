"""A monoid on vectors: states of eight rows, columns or positions side by side.

``States`` emits LLVM code for single steps. Every function below it makes of that one emitter,
which loop nests find as an attribute of a ``Fold``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir

from ...formulas.primitives import NOWHERE
from ...formulas.record import Monoid, parameters
from .bind import element_emitter, per_element
from .functions import emitter, inlined
from .lanes import (
    DOUBLE,
    I32,
    I64,
    LANES,
    Lanes,
    as_tuple,
    constant,
    doubles,
    expected,
    opaque_mask,
    scratch_builder,
    shuffle,
    splat,
    traced,
)
from .registers import any_piece, pieces, registers
from .stretch import BoundStretch
from .vectors import rotated, state_emitters

HALVES = (1, 2, 4)


def last_before(place: int, half: int) -> int | None:
    """The end of the lower half, for a place in the upper half of its ``2 * half`` places."""
    return place // half * half - 1 if place & half else None


def constant_components(
    monoid: Monoid, identity, primitives, start: Callable | None
) -> dict[int, float]:
    """Components of a state that are the same number whatever the data.

    The factor of a plain sum seen as a recurrence is one. They are found by calling the functions
    on values of which nothing is known, and are not carried along.
    """
    builder = scratch_builder()
    unknown = Lanes(builder, doubles(math.nan))

    def made_by(function: Callable) -> dict[int, float]:
        asked = [unknown == unknown if n == "first" else unknown for n in parameters(function)]
        made = enumerate(as_tuple(traced(function, primitives)(*asked)))
        return {k: v for k, v in made if not isinstance(v, Lanes) and v == identity[k]}

    found = made_by(monoid.lift)
    if start:
        found = {k: v for k, v in made_by(start).items() if k in found}
    state = [found.get(k, unknown) for k in range(len(monoid.state))]
    again = as_tuple(traced(monoid.combine, primitives)(*state, *state))
    return {k: v for k, v in found.items() if not isinstance(again[k], Lanes) and again[k] == v}


class States:
    """Emitters of a monoid's steps, on lists of vectors without the components that never vary.

    ``start`` is what makes the state in front of a row, if the record has one.
    """

    def __init__(self, monoid: Monoid, primitives, start: Callable | None = None):
        # The exponent that a zero has, as these primitives see it.
        zero_exponent = dict(primitives)["exponent"](0.0)
        identity = [zero_exponent if v == NOWHERE else v for v in monoid.identity]
        self._constants = constant_components(monoid, identity, primitives, start)
        self._combine = traced(monoid.combine, primitives)
        self.bound = partial(traced, primitives=primitives)
        self.brief = monoid.brief and self.bound(monoid.brief)
        self._components = range(len(monoid.state))
        self.carried = [k for k in self._components if k not in self._constants]
        self.names = tuple(monoid.state[k] for k in self.carried)
        self.constants = {monoid.state[k]: v for k, v in self._constants.items()}
        self.identity = [doubles(identity[k]) for k in self.carried]

    def combine(self, builder, earlier, later) -> list:
        """Two states as one."""
        return self._joined(self._combine, builder, earlier, later)

    def combine_briefly(self, builder, earlier, later) -> list:
        return self._joined(self.brief, builder, earlier, later)

    def _joined(self, function, builder, earlier, later) -> list:
        return self.without_constants(
            function(*self.whole(builder, earlier), *self.whole(builder, later))
        )

    def without_constants(self, values) -> list:
        found = as_tuple(values)
        return [found[k].v for k in self.carried]

    def whole(self, builder, values) -> list:
        """A state with its constants put back."""
        items = iter(values)
        return [
            self._constants[k] if k in self._constants else Lanes(builder, next(items))
            for k in self._components
        ]

    def moved_on(self, builder, items, first, downwards: bool) -> list:
        """Every lane's state from the lane before it; that of ``first`` where none is."""
        back = 1 if downwards else -1
        # The end of ``first`` that is next to the others: one instruction aligns the two.
        order = [k if 0 <= k < LANES else LANES + k % LANES for k in range(back, LANES + back)]
        pairs = zip(items, first, strict=True)
        return [builder.shuffle_vector(v, e, constant(order, I32)) for v, e in pairs]

    def last_lane(self, builder, items, downwards: bool) -> list:
        """The state of the lane that a scan comes to last, in every lane."""
        last = I32(0 if downwards else LANES - 1)
        return [splat(builder, builder.extract_element(v, last)) for v in items]


class Fold:
    """A monoid bound to an element type, as emitters on tuples of vectors.

    ``start`` is what makes the state in front of a row, if the record has one.
    """

    def __init__(
        self, monoid: Monoid, primitives, full=(), row=(), known=(), start: Callable | None = None
    ):
        self._states = states = States(monoid, primitives, start)
        self.carried = states.carried
        self.state, self.constants, self.size = states.names, states.constants, len(states.names)
        self.lift = per_element(
            monoid.lift, primitives, full, row, known, len(monoid.state), states.carried
        )
        self._emit_whole_lift = element_emitter(monoid.lift, primitives, full, row, known)
        self.combine, self.identity = combined(states.combine, states), identity_of(states)
        # With a few elements before the next is combined; None without.
        self.brief: Any = combined(states.combine_briefly, states) if states.brief else None
        self.briefly = monoid.briefly if states.brief else 0
        # Whether what was joined briefly is what joining in full gives; None where nobody can tell.
        self.holds: Any = brief_holding(states, monoid) if states.brief else None
        self.combine_next = next_combined(self.combine, self.brief, self.holds)
        self.stretch: Any = None
        if monoid.stretch:
            self.stretch = BoundStretch(
                monoid, monoid.stretch, states, primitives, full, row, known
            )
        self.join_lanes, self.keeps = joined_lanes(states), keeping(states)
        self.scan_eight, self.join_eight = scanned_eight(states), joined_eight(states)
        # Away from a position of the row, and which operand of the row that is; None without.
        self.lift_away: Any = None
        if monoid.away:
            away = monoid.away
            count, self.position = len(away.state), row.index(away.position)
            self.lift_away = per_element(
                away.lift, primitives, full, row, known, count, range(count)
            )
            self.combine_away = combined_away(states, [states.names.index(n) for n in away.state])
        self.read, self.write, self.read_one, self.write_one, self.spread, self.keep = (
            state_emitters(self.size)
        )

    def lane_scan(self, downwards: bool, inclusive: bool):
        return scanned_lanes(self._states, downwards, inclusive)

    def lane_scans(self, downwards: bool):
        return scanned_side_by_side(self._states, downwards)

    def moved_on(self, downwards: bool):
        return lanes_moved_on(self._states, downwards)

    def lane_total(self, downwards: bool):
        return total_of_lanes(self._states, downwards)

    def emit_lift(self, builder, index, const, full, row, known) -> list:
        """The state of an element, as a list of vectors."""
        values = self._emit_whole_lift(
            builder, index=[index], const=const, full=full, row=row, known=known
        )
        picked = [values[k] for k in self._states.carried]
        return [v.v if isinstance(v, Lanes) else doubles(float(v)) for v in picked]

    def emit_combine(self, builder, earlier, later) -> list:
        return self._states.combine(builder, earlier, later)

    def emit_identity(self) -> list:
        return list(self._states.identity)


def combined(join: Callable, states: States):
    """``combine(a, b)``: the state a, then the state b."""

    @emitter
    def combine(builder, a, b):
        return tuple(join(builder, a, b))

    return combine


def combined_away(states: States, places: list[int]):
    """``combine_away(a, b)``: the state a, then some of the components of one; a's others stay."""

    @emitter
    def combine_away(builder, a, b):
        later, found = list(states.identity), list(a)
        for k, v in zip(places, b, strict=True):
            later[k] = v
        both = states.combine(builder, a, later)
        for k in places:
            found[k] = both[k]
        return tuple(found)

    return combine_away


def group_at(position: int):
    """``group(row, start, stop)``: where the eight elements with a position of the row begin.

    ``stop`` where none of [start, stop) is that; ``start`` is a multiple of eight.
    """

    @emitter
    def group(builder, row, start, stop):
        at = builder.extract_element(row[position], I32(0))
        first, end = (builder.sitofp(k, DOUBLE) for k in (start, stop))
        low, high = builder.fcmp_ordered(">=", at, first), builder.fcmp_ordered("<", at, end)
        inside = builder.and_(low, high)
        index = builder.fptosi(builder.select(inside, at, first), I64)
        return builder.select(inside, builder.and_(index, I64(-LANES)), stop)

    return group


def brief_holding(states: States, monoid: Monoid):
    """``holds(state)``: whether joining briefly has given what joining in full would."""
    if monoid.brief_holds is None:
        return None
    held = {n: k for k, n in enumerate(states.names)}
    asked, condition = parameters(monoid.brief_holds), states.bound(monoid.brief_holds)

    @emitter
    def holds(builder, state):
        parts = pieces(builder, [state[held[n]] for n in asked])
        truths = [condition(*(Lanes(builder, v) for v in part)).v for part in parts]
        fails = any_piece(builder, [builder.not_(truth) for truth in truths])
        return expected(builder, builder.not_(fails))

    return holds


def next_combined(combine: Any, brief: Any, holds: Any):
    """``combine_next(a, b)`` with the state of an element: briefly, where that gives the same."""
    if holds is None:
        return combine

    @inlined
    def combine_next(a, b):
        after = brief(a, b)
        if not holds(after):
            after = combine(a, b)
        return after

    return combine_next


def identity_of(states: States):
    """``identity()`` in every lane."""

    @emitter
    def identity(builder):
        return tuple(states.identity)

    return identity


def joined_lanes(states: States):
    """``join_lanes(a)``: all lanes as one state by a tree of fixed shape; lane 0 holds it."""

    @emitter
    def join_lanes(builder, a):
        items = a
        distance = LANES // 2
        while distance:
            items = states.combine(builder, items, rotated(builder, items, distance))
            distance //= 2
        return tuple(items)

    return join_lanes


def chosen(builder, lanes: list[bool], x, y):
    """x in these lanes, y in the others.

    Without registers for masks it is a shuffle: a select by a mask that is not known would be
    joined with conditions of x, all brought to one width and back (cummax of 64x1024 float32 took
    183 microseconds).
    """
    if registers().masks:
        return builder.select(opaque_mask(builder, lanes), x, y)
    order = [lane if on else LANES + lane for lane, on in enumerate(lanes)]
    return builder.shuffle_vector(x, y, constant(order, I32))


def lane_steps(states: States, downwards: bool) -> list[Callable]:
    """The steps of a scan of the lanes: ``step(builder, items)`` joins the halves of one size.

    Halves join by ``last_before``, a tree of fixed shape, which :func:`scanned_eight` builds over
    eight states one after the other.
    """
    turns = range(LANES - 1, -1, -1) if downwards else range(LANES)

    def with_lower_half(half, builder, items):
        sources = [last_before(turn, half) for turn in turns]
        order = [lane if s is None else turns[s] for lane, s in enumerate(sources)]
        earlier = [shuffle(builder, v, order) for v in items]
        has = [s is not None for s in sources]
        both = states.combine(builder, earlier, items)
        return [chosen(builder, has, x, y) for x, y in zip(both, items, strict=True)]

    return [partial(with_lower_half, half) for half in HALVES]


def scanned_lanes(states: States, downwards: bool, inclusive: bool):
    """``scan_lanes(a)``: each lane with (or without) its own, and all eight in every lane."""
    steps = lane_steps(states, downwards)

    @emitter
    def scan_lanes(builder, a):
        items = a
        for step in steps:
            items = step(builder, items)
        total = states.last_lane(builder, items, downwards)
        if not inclusive:
            items = states.moved_on(builder, items, states.identity, downwards)
        return tuple(items), tuple(total)

    return scan_lanes


def scanned_side_by_side(states: States, downwards: bool):
    """``scan_lanes(chunks)``: inclusive scans of several chunks, step by step, and their totals.

    One after the other they would be chains that wait for each other's instructions to be done.
    """
    steps = lane_steps(states, downwards)

    @emitter
    def scan_lanes(builder, chunks):
        found = list(chunks)
        for step in steps:
            found = [step(builder, items) for items in found]
        totals = [states.last_lane(builder, items, downwards) for items in found]
        return tuple(tuple(tuple(v) for v in made) for made in (found, totals))

    return scan_lanes


def lanes_moved_on(states: States, downwards: bool):
    """``moved_on(a, first)``: each lane has what the one before it had, the first has ``first``."""

    @emitter
    def moved_on(builder, a, first):
        return tuple(states.moved_on(builder, a, first, downwards))

    return moved_on


def total_of_lanes(states: States, downwards: bool):
    """``total(a)``: the total that ``scan_lanes`` gives, without the scan."""

    @emitter
    def total(builder, a):
        items = a
        distance = 1
        while distance < LANES:
            back = distance if downwards else -distance
            items = states.combine(builder, rotated(builder, items, back), items)
            distance *= 2
        return tuple(states.last_lane(builder, items, downwards))

    return total


def keeping(states: States):
    """``keeps(a, b)``: whether the state b, after the state a, leaves it as it is in every lane."""
    bits = ir.VectorType(I64, LANES)

    @emitter
    def keeps(builder, a, b):
        changed = []
        for pair in zip(a, states.combine(builder, a, b), strict=True):
            parts = pieces(builder, [builder.bitcast(v, bits) for v in pair])
            changed += [builder.icmp_signed("!=", *part) for part in parts]
        return builder.not_(any_piece(builder, changed))

    return keeps


def scanned_eight(states: States):
    """``scan_eight(states)``: the tree of ``scan_lanes`` over eight states in order, inclusive."""

    @emitter
    def scan_eight(builder, chunk):
        found = list(chunk)
        for half in HALVES:
            sources = [last_before(k, half) for k in range(LANES)]
            found = [
                found[k] if s is None else states.combine(builder, found[s], found[k])
                for k, s in enumerate(sources)
            ]
        return tuple(tuple(items) for items in found)

    return scan_eight


def joined_eight(states: States):
    """``join_eight(states)``: the last of what ``scan_eight`` gives."""

    @emitter
    def join_eight(builder, chunk):
        found = list(chunk)
        while len(found) > 1:
            pairs = zip(found[::2], found[1::2], strict=True)
            found = [states.combine(builder, first, second) for first, second in pairs]
        return tuple(found[0])

    return join_eight


def with_constants(narrow: Fold, wide: Fold):
    """``widened(a)``: a state of one fold as a state of another that carries more components."""

    @emitter
    def widened(builder, a):
        held = dict(zip(narrow.state, a, strict=True))
        held |= {name: doubles(v) for name, v in narrow.constants.items()}
        return tuple(held[name] for name in wide.state)

    return widened
