"""Eight positions of eight columns at a time: the pieces of a chunk of a column scan.

Every piece is emitted at once for all eight positions: the states stay in registers, one test
tells whether a chunk is whole, and Numba has little to infer.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..codegen.block import emit_index
from ..codegen.fold import Fold
from ..codegen.lanes import DOUBLES, I64, LANES, Lanes, doubles, splat
from ..codegen.neighbours import Neighbour
from ..codegen.operands import Operands
from ..codegen.vectors import emit_free_of_nan, pack, unpack, vectors
from .scan_parts import Arithmetic, ScanParts

EIGHT = range(LANES)


def eight(size: int):
    """The Numba type of a tuple of vectors for each of eight positions."""
    return types.UniTuple(vectors(max(1, size)), LANES)


def unpack_eight(builder, value) -> list[list]:
    return [unpack(builder, part) for part in unpack(builder, value)]


def pack_eight(ctx, builder, kind, chunk):
    parts = [pack(ctx, builder, kind.dtype, items) for items in chunk]
    return ctx.make_tuple(builder, kind, parts)


def _index(builder, block, start, k: int):
    """The index of the k-th position of a chunk in every lane, as a float."""
    index = emit_index(builder, block, builder.add(start, I64(k)))
    return builder.sitofp(splat(builder, index), DOUBLES)


def make_fetch(operands: Operands, neighbours: dict[int, Neighbour]):
    """``fetch(addresses, strides, steps, start, extent, column, lanes)`` of the full operands.

    Past the end of the axis the last position is read, which never reaches an output; beside it,
    a neighbour is its border.
    """
    edges, packed = operands.edges, operands.packed
    shifts = [neighbours[o].shift if o in neighbours else 0 for o in operands.full_at]
    kind = eight(len(operands.full))

    # Packed operands are told apart by one test; others may be packed one by one.
    together = [range(len(shifts))] if packed else [[o] for o in range(len(shifts))]

    def near(builder, edge, base, axis, start, column):
        at = builder.add(base, builder.mul(column, I64(edge.item)))
        at = builder.add(at, builder.mul(start, axis))
        rows = []
        for _ in EIGHT:
            rows.append(edge.near(builder, at))
            at = builder.add(at, axis)
        return rows

    def far(builder, edge, base, axis, across, start, last, column, lanes):
        first = builder.add(base, builder.mul(column, across))
        rows = []
        for k in EIGHT:
            wanted = builder.add(start, I64(k))
            inside = builder.icmp_signed("<", wanted, last)
            position = builder.select(inside, wanted, last)
            inside = builder.icmp_signed(">", position, I64(0))
            position = builder.select(inside, position, I64(0))
            at = builder.add(first, builder.mul(position, axis))
            rows.append(edge.far(builder, at, across, lanes))
        return rows

    @intrinsic
    def fetch(context, addresses, strides, steps, start, extent, column, lanes):
        def codegen(ctx, builder, sig, args):
            bases, axis, across = (unpack(builder, a) for a in args[:3])
            start_, extent_, column_, lanes_ = args[3:]
            starts = [builder.add(start_, I64(shift)) for shift in shifts]
            last = builder.sub(extent_, I64(1))
            end = builder.add(start_, I64(LANES + max([0, *shifts])))
            whole = builder.and_(
                builder.icmp_signed("==", lanes_, I64(LANES)),
                builder.icmp_signed("<=", end, extent_),
            )
            if min(shifts, default=0) < 0:
                whole = builder.and_(whole, builder.icmp_signed(">", start_, I64(0)))
            chunk: list[list] = [[] for _ in EIGHT]
            for some in together:
                close = whole
                if not packed:
                    beside = builder.icmp_signed("==", across[some[0]], I64(edges[some[0]].item))
                    close = builder.and_(whole, beside)
                with builder.if_else(close, likely=True) as (then, otherwise):
                    with then:
                        one = [
                            near(builder, edges[o], bases[o], axis[o], starts[o], column_)
                            for o in some
                        ]
                        one_block = builder.block
                    with otherwise:
                        other = [
                            far(builder, edges[o], bases[o], axis[o], across[o], starts[o], last,
                                column_, lanes_)
                            for o in some
                        ]  # fmt: skip
                        other_block = builder.block
                for o, *pairs in zip(some, one, other, strict=True):
                    for k, (near_, far_) in enumerate(zip(*pairs, strict=True)):
                        v = builder.phi(edges[o].stored)
                        v.add_incoming(near_, one_block)
                        v.add_incoming(far_, other_block)
                        chunk[k].append(v)
            chunk = [
                [
                    Lanes(builder, edge.widen(builder, v))
                    for edge, v in zip(edges, items, strict=False)
                ]
                for items in chunk
            ]
            for o, neighbour in neighbours.items():
                outside = I64(-1) if neighbour.shift < 0 else extent_
                for k in EIGHT:
                    at = builder.add(starts[o], I64(k))
                    beyond = builder.icmp_signed("==", at, outside)
                    v = builder.select(beyond, doubles(neighbour.border), chunk[k][o].v)
                    chunk[k][o] = Lanes(builder, v)
            return pack_eight(ctx, builder, kind, chunk)

        integers = [types.int64] * 4
        return kind(addresses, strides, steps, *integers), codegen

    return fetch


def make_put(operands: Operands, paired: bool):
    """``put(addresses, strides, steps, start, count, column, lanes, values)`` of the outputs.

    If ``paired``, bfloat16 is rounded for two positions at a time: an eighth faster for cumsum, but
    with the states of a two-way scan there are too few registers (cumprod took a sixth longer).
    """
    edge, packed = operands.edge, operands.packed
    finished = operands.finished

    @intrinsic
    def put(context, addresses, strides, steps, start, count, column, lanes, values):
        def codegen(ctx, builder, sig, args):
            bases, axis, across = (unpack(builder, a) for a in args[:3])
            start_, count_, column_, lanes_ = args[3:7]
            given = unpack_eight(builder, args[7])
            whole = builder.and_(
                builder.icmp_signed("==", lanes_, I64(LANES)),
                builder.icmp_signed("==", count_, I64(LANES)),
            )
            for o, w in finished:
                values_ = edge.narrow_all(builder, [items[w] for items in given], paired)
                step = I64(edge.item) if packed else across[o]
                at = builder.add(bases[o], builder.mul(column_, step))
                at = builder.add(at, builder.mul(start_, axis[o]))
                places = [at]
                for _ in EIGHT[1:]:
                    places.append(builder.add(places[-1], axis[o]))
                close = whole
                if not packed:
                    packed_here = builder.icmp_signed("==", across[o], I64(edge.item))
                    close = builder.and_(whole, packed_here)
                with builder.if_else(close, likely=True) as (then, otherwise):
                    with then:
                        for place, v in zip(places, values_, strict=True):
                            edge.set_near(builder, place, v)
                    with otherwise:
                        for k, (place, v) in enumerate(zip(places, values_, strict=True)):
                            with builder.if_then(builder.icmp_signed("<", I64(k), count_)):
                                edge.set_far(builder, place, step, lanes_, v)
            return ctx.get_dummy_value()

        integers = [types.int64] * 4
        return types.void(addresses, strides, steps, *integers, values), codegen

    return put


def make_lift(fold: Fold):
    """``lift(p, start, count, const, full, row, known)``, neutral from ``count`` positions on."""
    kind = eight(fold.size)

    def kept(builder, count, lifted):
        """The first ``count`` states, and the identity in the place of the others."""
        neutral = fold.emit_identity()
        all_on, all_off = (ir.VectorType(ir.IntType(1), LANES)([v] * LANES) for v in (1, 0))
        found = []
        for k, items in enumerate(lifted):
            inside = builder.icmp_signed("<", I64(k), count)
            mask = builder.select(inside, all_on, all_off)
            found.append([builder.select(mask, v, e) for v, e in zip(items, neutral, strict=True)])
        return found

    @intrinsic
    def lift(context, p, start, count, const, full, row, known):
        def codegen(ctx, builder, sig, args):
            p_, start_, count_ = args[:3]
            const_, row_ = unpack(builder, args[3]), unpack(builder, args[5])
            full_, known_ = unpack_eight(builder, args[4]), unpack_eight(builder, args[6])
            lifted = [
                fold.emit_lift(builder, _index(builder, p_, start_, k), const_, full_[k], row_,
                               known_[k])
                for k in EIGHT
            ]  # fmt: skip
            before = builder.block
            with builder.if_then(builder.icmp_signed("<", count_, I64(LANES)), likely=False):
                held = kept(builder, count_, lifted)
                inside = builder.block
            found = []
            for pairs in zip(lifted, held, strict=True):
                items = []
                for all_of_it, some_of_it in zip(*pairs, strict=True):
                    v = builder.phi(DOUBLES)
                    v.add_incoming(all_of_it, before)
                    v.add_incoming(some_of_it, inside)
                    items.append(Lanes(builder, v))
                found.append(items)
            return pack_eight(ctx, builder, kind, found)

        integers = [types.int64] * 3
        return kind(*integers, const, full, row, known), codegen

    return lift


def make_befores(prefix: Fold):
    """``befores(before, states)``: what comes before each position, after ``before``."""
    kind = eight(prefix.size)

    @intrinsic
    def befores(context, before, states):
        def codegen(ctx, builder, sig, args):
            first, found = unpack(builder, args[0]), unpack_eight(builder, args[1])
            earlier = [prefix.emit_identity(), *found[:-1]]
            chunk = [prefix.emit_combine(builder, first, state) for state in earlier]
            return pack_eight(ctx, builder, kind, _lanes(builder, chunk))

        return kind(vectors(prefix.size), kind), codegen

    @intrinsic
    def repeated(context, before):
        """The same before each position."""

        def codegen(ctx, builder, sig, args):
            return ctx.make_tuple(builder, kind, [args[0]] * LANES)

        return kind(vectors(prefix.size)), codegen

    return befores, repeated


@intrinsic
def eight_zeros(context):
    """A zero for each position: known values that are not there, or a single output."""
    kind = eight(1)

    def codegen(ctx, builder, sig, args):
        return pack_eight(ctx, builder, kind, [[]] * LANES)

    return kind(), codegen


@intrinsic
def eight_free_of_nan(context, after, values):
    """Whether no lane of a state and of the outputs of eight positions is NaN."""

    def codegen(ctx, builder, sig, args):
        outputs = [v for items in unpack_eight(builder, args[1]) for v in items]
        return emit_free_of_nan(builder, unpack(builder, args[0]) + outputs)

    return types.boolean(after, values), codegen


def make_known(prefix: Fold):
    """``known(befores)``: known values begin with an empty name."""
    kind = eight(1 + prefix.size)

    @intrinsic
    def known(context, befores):
        def codegen(ctx, builder, sig, args):
            found = unpack_eight(builder, args[0])
            chunk = [[doubles(0.0), *items] for items in found]
            return pack_eight(ctx, builder, kind, _lanes(builder, chunk))

        return kind(eight(prefix.size)), codegen

    return known


def make_finish(parts: ScanParts, made: Arithmetic, outputs: int, descending: bool):
    """``finish(p, start, const, full, row, known, before, states)``: outputs of eight positions.

    States are in the order of the scan; ``before`` is what comes before all of them.
    """
    kind, fold = eight(outputs), made.fold

    @intrinsic
    def finish(context, p, start, const, full, row, known, before, states):
        def codegen(ctx, builder, sig, args):
            const_, row_, before_ = (unpack(builder, args[k]) for k in (2, 4, 6))
            full_, known_, states_ = (unpack_eight(builder, args[k]) for k in (3, 5, 7))
            if not parts.inclusive:
                states_ = [fold.emit_identity(), *states_[:-1]]
            chunk: list = [None] * LANES
            for turn in EIGHT:
                k = LANES - 1 - turn if descending else turn
                here = fold.emit_combine(builder, before_, states_[turn])
                chunk[k] = made.emit_finish(
                    builder, index=[_index(builder, args[0], args[1], k)], const=const_,
                    full=full_[k], row=row_, known=[*known_[k], *here],
                )  # fmt: skip
            return pack_eight(ctx, builder, kind, chunk)

        integers = [types.int64] * 2
        return kind(*integers, const, full, row, known, before, states), codegen

    return finish


def make_in_turn(size: int, descending: bool):
    """Eight states in the order of the scan."""
    kind = eight(size)

    @intrinsic
    def in_turn(context, states):
        def codegen(ctx, builder, sig, args):
            parts = unpack(builder, args[0])
            return ctx.make_tuple(builder, kind, parts[::-1] if descending else parts)

        return kind(kind), codegen

    return in_turn


def make_wakes(parts: ScanParts):
    """``wakes(p, start, const, full, row, known)``: whether anything happens in the chunk."""
    emit = parts.quiet.emit_wakes

    @intrinsic
    def wakes(context, p, start, const, full, row, known):
        def codegen(ctx, builder, sig, args):
            const_, row_ = unpack(builder, args[2]), unpack(builder, args[4])
            full_, known_ = unpack_eight(builder, args[3]), unpack_eight(builder, args[5])
            awake = None
            for k in EIGHT:
                (truth,) = emit(
                    builder, index=[_index(builder, args[0], args[1], k)], const=const_,
                    full=full_[k], row=row_, known=known_[k],
                )  # fmt: skip
                awake = truth.v if awake is None else builder.or_(awake, truth.v)
            bits = builder.bitcast(awake, ir.IntType(LANES))
            return builder.icmp_unsigned("!=", bits, bits.type(0))

        return types.boolean(types.int64, types.int64, const, full, row, known), codegen

    return wakes


def _lanes(builder, chunk):
    return [[Lanes(builder, v) for v in items] for items in chunk]
