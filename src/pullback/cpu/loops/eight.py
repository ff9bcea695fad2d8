"""Eight positions of eight columns at a time: the pieces of a chunk of a column scan.

Every piece is emitted at once for all eight positions: the states stay in registers, and one test
tells whether a chunk is whole.
"""

from __future__ import annotations

from llvmlite import ir

from ..codegen.block import emit_index
from ..codegen.fold import Fold
from ..codegen.functions import emitter
from ..codegen.lanes import DOUBLES, I64, LANES, Lanes, doubles, splat
from ..codegen.neighbours import Neighbour
from ..codegen.operands import Operands
from ..codegen.registers import any_piece, pieces
from ..codegen.vectors import emit_free_of_nan, pack
from .scan_parts import Arithmetic, ScanParts

EIGHT = range(LANES)


def pack_eight(chunk) -> tuple:
    """A tuple of vectors for each of eight positions."""
    return tuple(pack(items) for items in chunk)


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

    @emitter
    def fetch(builder, addresses, strides, steps, start, extent, column, lanes):
        starts = [builder.add(start, I64(shift)) for shift in shifts]
        last = builder.sub(extent, I64(1))
        end = builder.add(start, I64(LANES + max([0, *shifts])))
        whole = builder.and_(
            builder.icmp_signed("==", lanes, I64(LANES)),
            builder.icmp_signed("<=", end, extent),
        )
        if min(shifts, default=0) < 0:
            whole = builder.and_(whole, builder.icmp_signed(">", start, I64(0)))
        chunk: list[list] = [[] for _ in EIGHT]
        for some in together:
            close = whole
            if not packed:
                beside = builder.icmp_signed("==", steps[some[0]], I64(edges[some[0]].item))
                close = builder.and_(whole, beside)
            with builder.if_else(close, likely=True) as (then, otherwise):
                with then:
                    one = [
                        near(builder, edges[o], addresses[o], strides[o], starts[o], column)
                        for o in some
                    ]
                    one_block = builder.block
                with otherwise:
                    other = [
                        far(builder, edges[o], addresses[o], strides[o], steps[o], starts[o], last,
                            column, lanes)
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
            [Lanes(builder, edge.widen(builder, v)) for edge, v in zip(edges, items, strict=False)]
            for items in chunk
        ]
        for o, neighbour in neighbours.items():
            outside = I64(-1) if neighbour.shift < 0 else extent
            for k in EIGHT:
                at = builder.add(starts[o], I64(k))
                beyond = builder.icmp_signed("==", at, outside)
                v = builder.select(beyond, doubles(neighbour.border), chunk[k][o].v)
                chunk[k][o] = Lanes(builder, v)
        return pack_eight(chunk)

    return fetch


def make_put(operands: Operands, paired: bool):
    """``put(addresses, strides, steps, start, count, column, lanes, values)`` of the outputs.

    If ``paired``, bfloat16 is rounded for two positions at a time: an eighth faster for cumsum, but
    with the states of a two-way scan there are too few registers (cumprod took a sixth longer).
    """
    edge, packed = operands.edge, operands.packed
    finished = operands.finished

    @emitter
    def put(builder, addresses, strides, steps, start, count, column, lanes, values):
        whole = builder.and_(
            builder.icmp_signed("==", lanes, I64(LANES)),
            builder.icmp_signed("==", count, I64(LANES)),
        )
        for o, w in finished:
            narrowed = edge.narrow_all(builder, [items[w] for items in values], paired)
            step = I64(edge.item) if packed else steps[o]
            at = builder.add(addresses[o], builder.mul(column, step))
            at = builder.add(at, builder.mul(start, strides[o]))
            places = [at]
            for _ in EIGHT[1:]:
                places.append(builder.add(places[-1], strides[o]))
            close = whole
            if not packed:
                packed_here = builder.icmp_signed("==", steps[o], I64(edge.item))
                close = builder.and_(whole, packed_here)
            with builder.if_else(close, likely=True) as (then, otherwise):
                with then:
                    for place, v in zip(places, narrowed, strict=True):
                        edge.set_near(builder, place, v)
                with otherwise:
                    for k, (place, v) in enumerate(zip(places, narrowed, strict=True)):
                        with builder.if_then(builder.icmp_signed("<", I64(k), count)):
                            edge.set_far(builder, place, step, lanes, v)

    return put


def make_lift(fold: Fold):
    """``lift(p, start, count, const, full, row, known)``, neutral from ``count`` positions on."""

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

    @emitter
    def lift(builder, p, start, count, const, full, row, known):
        lifted = [
            fold.emit_lift(builder, _index(builder, p, start, k), const, full[k], row, known[k])
            for k in EIGHT
        ]
        before = builder.block
        with builder.if_then(builder.icmp_signed("<", count, I64(LANES)), likely=False):
            held = kept(builder, count, lifted)
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
        return pack_eight(found)

    return lift


def make_befores(prefix: Fold):
    """``befores(before, states)``: what comes before each position, after ``before``."""

    @emitter
    def befores(builder, before, states):
        earlier = [prefix.emit_identity(), *states[:-1]]
        chunk = [prefix.emit_combine(builder, before, state) for state in earlier]
        return pack_eight(_lanes(builder, chunk))

    @emitter
    def repeated(builder, before):
        """The same before each position."""
        return (before,) * LANES

    return befores, repeated


@emitter
def eight_zeros(builder):
    """A zero for each position: known values that are not there, or a single output."""
    return pack_eight([[]] * LANES)


@emitter
def eight_free_of_nan(builder, after, values):
    """Whether no lane of a state and of the outputs of eight positions is NaN."""
    return emit_free_of_nan(builder, [*after, *(v for items in values for v in items)])


def make_known(prefix: Fold):
    """``known(befores)``: known values begin with an empty name."""

    @emitter
    def known(builder, befores):
        chunk = [[doubles(0.0), *items] for items in befores]
        return pack_eight(_lanes(builder, chunk))

    return known


def make_finish(parts: ScanParts, made: Arithmetic, outputs: int, descending: bool):
    """``finish(p, start, const, full, row, known, before, states)``: outputs of eight positions.

    States are in the order of the scan; ``before`` is what comes before all of them.
    """
    fold = made.fold

    @emitter
    def finish(builder, p, start, const, full, row, known, before, states):
        if not parts.inclusive:
            states = [fold.emit_identity(), *states[:-1]]
        chunk: list = [None] * LANES
        for turn in EIGHT:
            k = LANES - 1 - turn if descending else turn
            here = fold.emit_combine(builder, before, states[turn])
            chunk[k] = made.emit_finish(
                builder, index=[_index(builder, p, start, k)], const=const,
                full=full[k], row=row, known=[*known[k], *here],
            )  # fmt: skip
        return pack_eight(chunk)

    return finish


def make_in_turn(descending: bool):
    """Eight states in the order of the scan."""

    @emitter
    def in_turn(builder, states):
        return states[::-1] if descending else states

    return in_turn


def make_wakes(parts: ScanParts):
    """``wakes(p, start, const, full, row, known)``: whether anything happens in the chunk."""
    emit = parts.quiet.emit_wakes

    @emitter
    def wakes(builder, p, start, const, full, row, known):
        awake = []
        for k in EIGHT:
            here = {"index": [_index(builder, p, start, k)], "full": full[k], "known": known[k]}
            here |= {"const": const, "row": row}
            parts = {place: pieces(builder, vectors) for place, vectors in here.items()}
            for n in range(len(parts["index"])):
                (truth,) = emit(builder, **{place: part[n] for place, part in parts.items()})
                awake.append(truth.v)
        return any_piece(builder, awake)

    return wakes


def _lanes(builder, chunk):
    return [[Lanes(builder, v) for v in items] for items in chunk]
