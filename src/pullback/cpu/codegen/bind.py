"""Formula records bound to an element type: what a schedule calls inside its loops."""

from __future__ import annotations

import math
from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...formulas.primitives import NOWHERE
from ...formulas.record import Monoid, Pass, parameters
from .block import CONSTANT_NAMES
from .elementary import primitives_for
from .lanes import (
    I32,
    I64,
    LANES,
    Lanes,
    as_tuple,
    constant,
    doubles,
    opaque_mask,
    scratch_builder,
    shuffle,
    splat,
    traced,
)
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
    function: Callable, element: str, row, known, state, results: int, constants=None, picked=None
):
    """``f(const, row, known, state)``: a close or a finish, as a tuple of vectors.

    ``constants`` and ``picked`` are as in :func:`per_element`.
    """
    names = Names(constants, const=CONSTANT_NAMES, row=row, known=known, state=state)
    emit = emit_call(traced(function, primitives_for(element)), names)
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


def constant_components(monoid: Monoid, identity, primitives) -> dict[int, float]:
    """Components of a state that are the same number whatever the data.

    The factor of a plain sum seen as a recurrence is one. They are found by calling the functions
    on values of which nothing is known, and are not carried along.
    """
    builder = scratch_builder()
    unknown = Lanes(builder, doubles(math.nan))
    asked = [unknown == unknown if n == "first" else unknown for n in parameters(monoid.lift)]
    lifted = as_tuple(traced(monoid.lift, primitives)(*asked))
    found = {k: v for k, v in enumerate(lifted) if not isinstance(v, Lanes) and v == identity[k]}
    state = [found.get(k, unknown) for k in range(len(monoid.state))]
    again = as_tuple(traced(monoid.combine, primitives)(*state, *state))
    return {k: v for k, v in found.items() if not isinstance(again[k], Lanes) and again[k] == v}


HALVES = (1, 2, 4)


def last_before(place: int, half: int) -> int | None:
    """The end of the lower half, for a place in the upper half of its ``2 * half`` places."""
    return place // half * half - 1 if place & half else None


class Fold:
    """A monoid on tuples of vectors, without the components that never vary."""

    def __init__(self, monoid: Monoid, primitives, full=(), row=(), known=()):
        # The exponent that a zero has, as these primitives see it.
        zero_exponent = dict(primitives)["exponent"](0.0)
        whole_identity = [zero_exponent if v == NOWHERE else v for v in monoid.identity]
        constants = constant_components(monoid, whole_identity, primitives)
        carried = [k for k in range(len(monoid.state)) if k not in constants]
        self.state = tuple(monoid.state[k] for k in carried)
        self.constants = {monoid.state[k]: v for k, v in constants.items()}
        self.size = size = len(carried)
        self.lift = per_element(
            monoid.lift, primitives, full, row, known, len(monoid.state), carried
        )
        emit_whole_lift = element_emitter(monoid.lift, primitives, full, row, known)
        function = traced(monoid.combine, primitives)
        kind = vectors(size)

        def emit_lift(builder, index, const, full, row, known):
            values = emit_whole_lift(
                builder, index=[index], const=const, full=full, row=row, known=known
            )
            picked = [values[k] for k in carried]
            return [v.v if isinstance(v, Lanes) else doubles(float(v)) for v in picked]

        def whole(builder, values):
            """A state with its constants put back."""
            items = iter(values)
            return [
                constants[k] if k in constants else Lanes(builder, next(items))
                for k in range(len(monoid.state))
            ]

        def joined(builder, a, b):
            result = as_tuple(function(*whole(builder, a), *whole(builder, b)))
            return [result[k].v for k in carried]

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
                return pack(ctx, builder, kind, [whole_identity[k] for k in carried])

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

        pair = types.Tuple((kind, kind))

        def filled_identity():
            return [doubles(whole_identity[k]) for k in carried]

        def shifted(builder, items, distance, downwards):
            """Every lane's state from ``distance`` lanes before it; the identity where none is."""
            order = [lane + (distance if downwards else -distance) for lane in range(LANES)]
            order = [i if 0 <= i < LANES else LANES for i in order]
            pairs = zip(items, filled_identity(), strict=True)
            return [builder.shuffle_vector(v, e, constant(order, I32)) for v, e in pairs]

        def lane_scan(downwards: bool, inclusive: bool):
            @intrinsic
            def scan_lanes(context, a):
                """Each lane with (or without) its own, and all eight in every lane.

                Halves join by ``last_before``, a tree of fixed shape, which :func:`scan_eight`
                builds over eight states one after the other.
                """

                def codegen(ctx, builder, sig, args):
                    items = unpack(builder, args[0])
                    turns = range(LANES - 1, -1, -1) if downwards else range(LANES)
                    for half in HALVES:
                        sources = [last_before(turn, half) for turn in turns]
                        order = [lane if s is None else turns[s] for lane, s in enumerate(sources)]
                        earlier = [shuffle(builder, v, order) for v in items]
                        has = opaque_mask(builder, [s is not None for s in sources])
                        both = joined(builder, earlier, items)
                        items = [
                            builder.select(has, x, y) for x, y in zip(both, items, strict=True)
                        ]
                    last = I32(0 if downwards else LANES - 1)
                    total = [splat(builder, builder.extract_element(v, last)) for v in items]
                    if not inclusive:
                        items = shifted(builder, items, 1, downwards)
                    parts = [ctx.make_tuple(builder, kind, v) for v in (items, total)]
                    return ctx.make_tuple(builder, pair, parts)

                return pair(kind), codegen

            return scan_lanes

        def lane_total(downwards: bool):
            @intrinsic
            def total_of_lanes(context, a):
                """The total that ``lane_scan`` gives, without the scan."""

                def codegen(ctx, builder, sig, args):
                    items = unpack(builder, args[0])
                    distance = 1
                    while distance < LANES:
                        back = distance if downwards else -distance
                        items = joined(builder, rotated(builder, items, back), items)
                        distance *= 2
                    last = I32(0 if downwards else LANES - 1)
                    total = [splat(builder, builder.extract_element(v, last)) for v in items]
                    return ctx.make_tuple(builder, kind, total)

                return kind(kind), codegen

            return total_of_lanes

        @intrinsic
        def keeps(context, a, b):
            """Whether the state b, after the state a, leaves it as it is in every lane."""

            def codegen(ctx, builder, sig, args):
                before, later = (unpack(builder, v) for v in args)
                bits = ir.VectorType(I64, LANES)
                answer = ir.IntType(1)(1)
                for x, y in zip(before, joined(builder, before, later), strict=True):
                    same = builder.icmp_signed(
                        "==", builder.bitcast(x, bits), builder.bitcast(y, bits)
                    )
                    all_lanes = builder.bitcast(same, ir.IntType(LANES))
                    answer = builder.and_(
                        answer, builder.icmp_signed("==", all_lanes, ir.IntType(LANES)(-1))
                    )
                return answer

            return types.boolean(kind, kind), codegen

        eight = types.UniTuple(kind, LANES)

        def unpacked(builder, args):
            return [unpack(builder, state) for state in unpack(builder, args[0])]

        @intrinsic
        def scan_eight(context, states):
            """The tree of ``scan_lanes`` over eight states one after the other, inclusive."""

            def codegen(ctx, builder, sig, args):
                found = unpacked(builder, args)
                for half in HALVES:
                    sources = [last_before(k, half) for k in range(LANES)]
                    found = [
                        found[k] if s is None else joined(builder, found[s], found[k])
                        for k, s in enumerate(sources)
                    ]
                parts = [ctx.make_tuple(builder, kind, items) for items in found]
                return ctx.make_tuple(builder, eight, parts)

            return eight(eight), codegen

        @intrinsic
        def join_eight(context, states):
            """The last of what ``scan_eight`` gives."""

            def codegen(ctx, builder, sig, args):
                found = unpacked(builder, args)
                while len(found) > 1:
                    pairs = zip(found[::2], found[1::2], strict=True)
                    found = [joined(builder, first, second) for first, second in pairs]
                return ctx.make_tuple(builder, kind, found[0])

            return kind(eight), codegen

        self.emit_lift, self.emit_combine, self.emit_identity = emit_lift, joined, filled_identity
        self.lane_total, self.keeps = lane_total, keeps
        self.lane_scan, self.scan_eight, self.join_eight = lane_scan, scan_eight, join_eight
        self.combine, self.identity, self.join_lanes = combine, identity, join_lanes
        self.read, self.write, self.read_one, self.write_one, self.spread, self.keep = (
            tuple_intrinsics(size)
        )


def with_constants(narrow: Fold, wide: Fold):
    """A state of one fold as a state of another that carries more components."""
    kind = vectors(wide.size)

    @intrinsic
    def widened(context, a):
        def codegen(ctx, builder, sig, args):
            held = dict(zip(narrow.state, unpack(builder, args[0]), strict=True))
            held |= {name: doubles(v) for name, v in narrow.constants.items()}
            return ctx.make_tuple(builder, kind, [held[name] for name in wide.state])

        return kind(vectors(narrow.size)), codegen

    return widened


class BoundPass:
    """A pass: its fold, and ``close`` that extends the tuple of known values."""

    def __init__(self, step: Pass, element: str, full, row, known):
        primitives = primitives_for(element)
        self.fold = Fold(step.monoid, primitives, full, row, known) if step.monoid else None
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
