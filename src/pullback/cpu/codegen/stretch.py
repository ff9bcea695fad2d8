"""Stretches: a shorter way over some elements, as emitters on tuples of vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...formulas.record import Monoid, Stretch, parameters
from .bind import per_element
from .functions import emitter
from .lanes import LANES, Lanes, as_tuple, expected, traced
from .registers import any_piece, pieces
from .vectors import pack, rotated, state_emitters


class _Named:
    """Functions of a stretch on vectors: what they ask for is found by name."""

    def __init__(self, way: Stretch, monoid: Monoid, states, primitives):
        self._names, self._carried, self._states = monoid.state, way.carried, states
        self._primitives = primitives

    def bound(self, function: Callable) -> Callable:
        """``f(builder, state, carried)``, of which it takes what it asks for."""
        made, asks = traced(function, self._primitives), parameters(function)

        def call(builder, state=(), carried=()):
            held = {}
            if state:
                whole = self._states.whole(builder, state)
                held = dict(zip(self._names, whole, strict=True))
            held |= zip(self._carried, (Lanes(builder, v) for v in carried), strict=bool(carried))
            return made(*(held[n] for n in asks))

        return call

    def everywhere(self, conditions: Sequence[Callable]):
        """``f(state, carried)``: whether one of the conditions holds in each lane, as expected."""
        truths = [self.bound(f) for f in conditions]

        @emitter
        def in_all_lanes(builder, state, carried):
            fails = []
            for part in pieces(builder, [*state, *carried]):
                front, along = part[: len(state)], part[len(state) :]
                first, *others = (truth(builder, front, along) for truth in truths)
                for other in others:
                    first = first | other
                fails.append(builder.not_(first.v))
            return expected(builder, builder.not_(any_piece(builder, fails)))

        return in_all_lanes


class BoundStretch:
    """A monoid's stretch bound to an element type; ``states`` are those of the monoid.

    What is carried has ``size`` components. ``most`` counts the elements of all lanes.
    """

    def __init__(self, monoid: Monoid, way: Stretch, states, primitives, full, row, known):
        self.size, self.every, self.most = len(way.carried), way.every, way.most * LANES
        self.lift = per_element(way.lift, primitives, full, row, known, len(way.nothing))
        self.read, self.write, _, _, _, self.keep = state_emitters(self.size)
        named = _Named(way, monoid, states, primitives)
        self.holds = named.everywhere([way.holds])
        self.far_holds = named.everywhere([way.far_holds, way.settled])
        begin_of, end_of, far_end_of = (named.bound(f) for f in (way.begin, way.end, way.end_far))
        near_of = named.bound(way.brought_near)
        join_of, look_of, meet_of = (traced(f, primitives) for f in (way.join, way.look, way.meet))

        @emitter
        def begin(builder, state):
            return pack(as_tuple(begin_of(builder, state)))

        @emitter
        def join(builder, carried, lifted):
            return pack(as_tuple(join_of(*(Lanes(builder, v) for v in (*carried, *lifted)))))

        @emitter
        def look(builder, carried):
            return pack(as_tuple(look_of(*(Lanes(builder, v) for v in carried))))

        @emitter
        def end(builder, state, carried):
            return tuple(states.without_constants(end_of(builder, state, carried)))

        @emitter
        def end_far(builder, state, carried):
            return tuple(states.without_constants(far_end_of(builder, state, carried)))

        def met(builder, a, b) -> list:
            whole = (*states.whole(builder, a), *states.whole(builder, b))
            return states.without_constants(meet_of(*whole))

        @emitter
        def meet(builder, a, b):
            return tuple(met(builder, a, b))

        @emitter
        def brought_near(builder, state):
            return tuple(states.without_constants(near_of(builder, state)))

        @emitter
        def join_lanes(builder, a):
            """All lanes as one state, by the tree of the monoid's; lane 0 holds it."""
            items, distance = list(a), LANES // 2
            while distance:
                items = met(builder, items, rotated(builder, items, distance))
                distance //= 2
            return tuple(states.without_constants(near_of(builder, items)))

        self.begin, self.join, self.look, self.meet = begin, join, look, meet
        self.end, self.end_far, self.brought_near = end, end_far, brought_near
        self.join_lanes = join_lanes
