"""Reading and writing the operands of a kernel along the op's axis.

An axis is straight when it is one dimension (or several that merge into one); a bent axis is made
of several, and its positions are walked one by one where eight of them cross the end of a run.
Which of the two a kernel is built for is a compile key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..words import AXIS, AXIS_RANK, CONSTANT_NAMES, CONSTANTS
from .block import (
    axis_offset,
    emit_axis_stride,
    emit_column_stride,
    emit_is_streamed,
    emit_prefetch,
    emit_unit_address,
    word,
)
from .jit import inner
from .lanes import I64, LANES
from .storage import Edge
from .vectors import Vector, set_double, set_vector, stack, unpack, vector_at, vectors

eight_doubles = stack(LANES)


@intrinsic
def constants(context, p):
    """Extent, correction, weight and the index of the first position, in every lane."""
    count = len(CONSTANT_NAMES) + 1
    kind = vectors(count)
    edge = Edge("f64", plain_nan=True)

    def codegen(ctx, builder, sig, args):
        first = builder.add(args[0], I64(8 * CONSTANTS))
        items = [edge.load_one(builder, builder.add(first, I64(8 * k))) for k in range(count)]
        return ctx.make_tuple(builder, kind, items)

    return kind(types.int64), codegen


@intrinsic
def fence(context):
    """Order what was written past the caches before whatever tells others that it is there."""

    def codegen(ctx, builder, sig, args):
        builder.fence("seq_cst")
        return ctx.get_dummy_value()

    return types.void(), codegen


@inner
def stays_in_run(p, index, count):
    """Whether ``count`` positions from ``index`` lie in one run of the innermost dimension."""
    run = word(p, word(p, AXIS) + word(p, AXIS_RANK) - 1)
    return index % run + count <= run


def make_load(edge: Edge):
    """``load(address, stride, count)`` of one operand."""

    @intrinsic
    def load(context, address, stride, count):
        def codegen(ctx, builder, sig, args):
            return edge.load(builder, *args)

        return Vector(types.int64, types.int64, types.int64), codegen

    return load


def make_store(edge: Edge):
    """``store(address, stride, count, v)`` of one operand."""

    @intrinsic
    def store(context, address, stride, count, v):
        def codegen(ctx, builder, sig, args):
            edge.store(builder, *args)
            return ctx.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, Vector), codegen

    return store


def make_bent_fetch(edge: Edge):
    load = make_load(edge)

    @inner
    def fetch(p, operand, base, stride, index, count):
        if stays_in_run(p, index, count):
            return load(base + axis_offset(p, operand, index), stride, count)
        box = eight_doubles()
        set_vector(box, load(base, stride, 0))
        for lane in range(count):
            one = load(base + axis_offset(p, operand, index + lane), stride, 1)
            set_double(box + 8 * lane, one)
        return vector_at(box)

    return fetch


def make_bent_put(edge: Edge):
    store = make_store(edge)

    @inner
    def put(p, operand, base, stride, index, count, v):
        if stays_in_run(p, index, count):
            store(base + axis_offset(p, operand, index), stride, count, v)
        else:
            box = eight_doubles()
            set_vector(box, v)
            for lane in range(count):
                one = vector_at(box + 8 * lane)
                store(base + axis_offset(p, operand, index + lane), stride, 1, one)

    return put


def _each_operand(name: str, parameters: str, expression: str, operands, tools):
    """A jitted function giving a tuple with one expression per operand.

    An operand is its place ``o``, the place ``w`` of its value, and its element type ``e``.
    """
    parts = ", ".join(expression.format(o=o, w=w, e=e) for o, w, e in operands)
    made: dict = {}
    exec(f"def {name}({parameters}): return ({parts},)", dict(tools), made)
    return inner(made[name])


class Operands:
    """The operands of a kernel in the order of the parameter block: full, row, outputs.

    ``full`` operands have an element for every position of the axis, ``row`` operands one for each
    row; ``outputs`` are either. Addresses and strides of all of them travel as tuples. ``packed``
    promises that neighbouring lanes are neighbours in memory, for all of them; ``flipped`` that
    they are so in descending order, and then the first position comes in the last lane. ``types``
    are those of operands that do not have the op's element type; ``ends`` are the outputs that a
    scan writes at the end of a row. ``singles`` lets elements be computed on float32 lanes.
    """

    def __init__(
        self,
        element: str,
        full,
        row,
        outputs,
        written=None,
        *,
        bent=False,
        packed=False,
        flipped=False,
        types: Mapping[str, str] | None = None,
        ends=(),
        singles=False,
    ):
        self.singles = singles
        self.full, self.row, self.outputs = tuple(full), tuple(row), tuple(outputs)
        # A formula gives all outputs; only those at these positions are written.
        self.written = tuple(range(len(self.outputs))) if written is None else written
        self.edge = Edge(element)
        self.ends = tuple(ends)
        names = (*self.full, *self.row, *(self.outputs[w] for w in self.written))
        stored = types or {}
        held = [stored.get(n.removesuffix("_before"), element) for n in names]
        # A state of float64 may bring a NaN that a narrower type cannot hold.
        self.edges = [Edge(k, plain_nan=k == "f64" and element != "f64") for k in held]
        self.packed, self.flipped = packed, flipped
        count = len(self.full) + len(self.row) + len(self.written)
        self.count = count
        self.full_at = full_at = range(len(self.full))
        self.row_at = row_at = range(full_at.stop, full_at.stop + len(self.row))
        self.output_at = range(row_at.stop, count)
        # Where an output lies among the operands, and its place among the values of its function.
        self.finished = self._placed([n for n in self.outputs if n not in ends])
        self.ended = self._placed(list(ends))
        self.addresses = self._addresses()
        self.strides = self.words(emit_axis_stride)
        self.fetch_rows, self.fetch_elements = self._row_fetch(row_at), self._row_fetch(full_at)
        self.store_rows = self._row_store(self.finished)
        self.store_ends = self._row_store(self.ended)
        # For columns: where a position of the (straight) axis begins, and lanes across columns.
        self.places = self._places()
        self.column_strides = self.words(emit_column_stride)
        self.fetch_columns = self._straight_fetch(full_at)
        self.fetch_row_columns = self._straight_fetch(row_at)
        self.put_columns = self._straight_put(self.finished)
        self.put_end_columns = self._straight_put(self.ended)
        self.bent = bent
        if bent:
            self.fetch_full = self._bent_fetch(full_at if self.full else [0])
            self.put_outputs = self._bent_put()
        else:
            self.fetch_full, self.put_outputs = self.fetch_columns, self.put_columns

    def _bent_fetch(self, places):
        kinds = {e.element: e for e in self.edges}
        return _each_operand(
            "fetch_full",
            "p, addresses, strides, index, count",
            "fetch_{e}(p, {o}, addresses[{o}], strides[{o}], index, count)",
            [(o, o, self.edges[o].element) for o in places],
            {f"fetch_{k}": make_bent_fetch(e) for k, e in kinds.items()},
        )

    def _bent_put(self):
        kinds = {e.element: e for e in self.edges}
        return _each_operand(
            "put_outputs",
            "p, addresses, strides, index, count, values",
            "put_{e}(p, {o}, addresses[{o}], strides[{o}], index, count, values[{w}])",
            [(o, w, self.edges[o].element) for o, w in self.finished],
            {f"put_{k}": make_bent_put(e) for k, e in kinds.items()},
        )

    def _placed(self, group) -> list[tuple[int, int]]:
        """Of outputs of one function: which operand each is that is written, and which value."""
        places = {self.outputs[w]: o for o, w in zip(self.output_at, self.written, strict=True)}
        return [(places[n], k) for k, n in enumerate(group) if n in places]

    def _addresses(self):
        """``addresses(p, unit)`` of all operands at the start of a unit."""
        count = self.count
        kind = types.UniTuple(types.int64, count)

        @intrinsic
        def addresses(context, p, unit):
            def codegen(ctx, builder, sig, args):
                items = [emit_unit_address(builder, args[0], o, args[1]) for o in range(count)]
                return ctx.make_tuple(builder, kind, items)

            return kind(types.int64, types.int64), codegen

        return addresses

    def words(self, emit):
        """``words(p)``: one word of the parameter block for each operand."""
        count = self.count
        kind = types.UniTuple(types.int64, count)

        @intrinsic
        def words(context, p):
            def codegen(ctx, builder, sig, args):
                items = [emit(builder, args[0], o) for o in range(count)]
                return ctx.make_tuple(builder, kind, items)

            return kind(types.int64), codegen

        return words

    def _places(self):
        """``places(addresses, strides, index)`` of all operands."""
        kind = types.UniTuple(types.int64, self.count)

        @intrinsic
        def places(context, addresses, strides, index):
            def codegen(ctx, builder, sig, args):
                pairs = zip(unpack(builder, args[0]), unpack(builder, args[1]), strict=True)
                items = [builder.add(base, builder.mul(args[2], step)) for base, step in pairs]
                return ctx.make_tuple(builder, kind, items)

            return kind(kind, kind, types.int64), codegen

        return places

    def _straight_fetch(self, places):
        edges, packed, flipped = self.edges, self.packed, self.flipped
        kind = vectors(max(1, len(places)))

        @intrinsic
        def fetch(context, p, addresses, strides, index, count):
            def codegen(ctx, builder, sig, args):
                _, addresses_, strides_, at, n = args
                bases, steps = unpack(builder, addresses_), unpack(builder, strides_)
                items = []
                for o in places:
                    edge = edges[o]
                    step = I64(-edge.item if flipped else edge.item) if packed else steps[o]
                    place = builder.add(bases[o], builder.mul(at, step))
                    items.append(edge.load(builder, place, step, n, packed, flipped))
                return ctx.make_tuple(builder, kind, items or [Edge.zero()])

            return kind(types.int64, addresses, strides, types.int64, types.int64), codegen

        return fetch

    def _straight_put(self, outputs):
        edges = self.edges
        packed, flipped = self.packed, self.flipped

        @intrinsic
        def put_outputs(context, p, addresses, strides, index, count, values):
            def codegen(ctx, builder, sig, args):
                _, addresses_, strides_, at, n, values_ = args
                bases, steps = unpack(builder, addresses_), unpack(builder, strides_)
                given = unpack(builder, values_)
                for o, w in outputs:
                    edge = edges[o]
                    step = I64(-edge.item if flipped else edge.item) if packed else steps[o]
                    place = builder.add(bases[o], builder.mul(at, step))
                    edge.store(builder, place, step, n, given[w], packed, flipped)
                return ctx.get_dummy_value()

            kinds = (types.int64, addresses, strides, types.int64, types.int64, values)
            return types.void(*kinds), codegen

        return put_outputs

    def stream_outputs(self):
        """``put_outputs`` of eight packed elements at aligned addresses, past the caches."""
        edge, finished = self.edge, self.finished

        @intrinsic
        def stream(context, addresses, index, values):
            def codegen(ctx, builder, sig, args):
                bases, given = unpack(builder, args[0]), unpack(builder, args[2])
                offset = builder.mul(args[1], I64(edge.item))
                for o, w in finished:
                    edge.stream(builder, builder.add(bases[o], offset), given[w])
                return ctx.get_dummy_value()

            return types.void(addresses, types.int64, values), codegen

        return stream

    def fetch_pair(self):
        """``fetch(addresses, index)``: full operands of sixteen packed positions, as two tuples."""
        edges, full_at = self.edges, self.full_at
        kind = vectors(max(1, len(full_at)))
        pair = types.UniTuple(kind, 2)

        @intrinsic
        def fetch(context, addresses, index):
            def codegen(ctx, builder, sig, args):
                bases = unpack(builder, args[0])
                found = []
                for o in full_at:
                    offset = builder.mul(args[1], I64(edges[o].item))
                    found.append(edges[o].load_pair(builder, builder.add(bases[o], offset)))
                halves = zip(*found, strict=True) if found else [[Edge.zero()]] * 2
                parts = [ctx.make_tuple(builder, kind, list(half)) for half in halves]
                return ctx.make_tuple(builder, pair, parts)

            return pair(addresses, types.int64), codegen

        return fetch

    def put_pair(self):
        """``put(addresses, index, first, second, stream)``: outputs of sixteen packed positions."""
        edge, finished = self.edge, self.finished

        @intrinsic
        def put(context, addresses, index, first, second, stream):
            def codegen(ctx, builder, sig, args):
                bases = unpack(builder, args[0])
                offset = builder.mul(args[1], I64(edge.item))
                one, two = (unpack(builder, a) for a in args[2:4])
                for o, w in finished:
                    place = builder.add(bases[o], offset)
                    edge.store_pair(builder, place, one[w], two[w], args[4])
                return ctx.get_dummy_value()

            return types.void(addresses, types.int64, first, second, types.boolean), codegen

        return put

    def may_stream(self):
        """``may(p, addresses)``: outputs are large, and no load waits for a store past the caches.

        A load waits for an earlier store to an address that is the same modulo 4096. Where an
        output begins shortly behind an input, modulo that, the next load of every row is such a one
        (softmax of bfloat16 took 135 ms instead of 7 at 16 bytes, 7.1 at 512).
        """
        full_at, output_at = self.full_at, self.output_at

        @intrinsic
        def may(context, p, addresses):
            def codegen(ctx, builder, sig, args):
                bases = unpack(builder, args[1])
                answer = ir.IntType(1)(1)
                for o in output_at:
                    large = emit_is_streamed(builder, args[0], bases[o])
                    answer = builder.and_(answer, large)
                    for i in full_at:
                        behind = builder.and_(builder.sub(bases[o], bases[i]), I64(4095))
                        clear = builder.icmp_unsigned(">=", behind, I64(512))
                        same = builder.icmp_signed("==", behind, I64(0))
                        answer = builder.and_(answer, builder.or_(clear, same))
                return answer

            return types.boolean(types.int64, addresses), codegen

        return may

    def staged(self):
        """``move(addresses, first, stop, box)``: let positions of a single output lie in a box.

        Gives the addresses that say so, and where the positions [first, stop) begin in the output
        itself, lowest address first as they lie in the box.
        """
        edge, count, flipped = self.edge, self.count, self.flipped
        target = self.finished[0][0] if self.finished else 0
        kind = types.UniTuple(types.int64, count)
        pair = types.Tuple((kind, types.int64))

        @intrinsic
        def move(context, addresses, first, stop, box):
            def codegen(ctx, builder, sig, args):
                items = unpack(builder, args[0])
                lowest = builder.sub(I64(1), args[2]) if flipped else args[1]
                offset = builder.mul(lowest, I64(edge.item))
                place = builder.add(items[target], offset)
                items[target] = builder.sub(args[3], offset)
                moved = ctx.make_tuple(builder, kind, items)
                return ctx.make_tuple(builder, pair, [moved, place])

            return pair(kind, types.int64, types.int64, types.int64), codegen

        return move

    def prefetch(self):
        """Ask for the cache lines of packed full operands that will be read soon."""
        edges, sign = self.edges, -1 if self.flipped else 1
        full_at = self.full_at if self.packed else ()

        @intrinsic
        def ask(context, addresses, index):
            def codegen(ctx, builder, sig, args):
                bases = unpack(builder, args[0])
                for o in full_at:
                    offset = builder.mul(args[1], I64(sign * edges[o].item))
                    emit_prefetch(builder, builder.add(bases[o], offset))
                return ctx.get_dummy_value()

            return types.void(addresses, types.int64), codegen

        return ask

    def packed_twin(self) -> Operands:
        """The same operands with the promise that columns are packed; who reads asks first."""
        twin = copy(self)
        twin.packed = True
        twin.fetch_columns = twin._straight_fetch(twin.full_at)
        twin.put_columns = twin._straight_put(twin.finished)
        return twin

    def all_packed(self):
        """``packed(strides)``: whether these are those of packed full operands and outputs."""
        edges, places = self.edges, (*self.full_at, *self.output_at)

        @intrinsic
        def packed(context, strides):
            def codegen(ctx, builder, sig, args):
                steps, answer = unpack(builder, args[0]), ir.IntType(1)(1)
                for o in places:
                    same = builder.icmp_signed("==", steps[o], I64(edges[o].item))
                    answer = builder.and_(answer, same)
                return answer

            return types.boolean(strides), codegen

        return packed

    def ask_columns(self, places, to_write: bool, columns: Sequence[int] = (0,)):
        """``ask(addresses, strides, column)``: for the lines of some columns from there on."""

        @intrinsic
        def ask(context, addresses, strides, column):
            def codegen(ctx, builder, sig, args):
                bases, steps = (unpack(builder, a) for a in args[:2])
                for o in places:
                    for k in columns:
                        at = builder.add(args[2], I64(k))
                        place = builder.add(bases[o], builder.mul(at, steps[o]))
                        emit_prefetch(builder, place, to_write)
                return ctx.get_dummy_value()

            return types.void(addresses, strides, types.int64), codegen

        return ask

    def fetch_one(self, operand: int):
        """``fetch`` of a single full operand, for a position of its own."""
        return self._bent_fetch([operand]) if self.bent else self._straight_fetch([operand])

    def _row_fetch(self, places):
        """``fetch_rows(addresses)``: one element of each of some operands, in every lane."""
        edges, kind = self.edges, vectors(max(1, len(places)))

        @intrinsic
        def fetch_rows(context, addresses):
            def codegen(ctx, builder, sig, args):
                bases = unpack(builder, args[0])
                items = [edges[o].load_one(builder, bases[o]) for o in places]
                return ctx.make_tuple(builder, kind, items or [Edge.zero()])

            return kind(addresses), codegen

        return fetch_rows

    def _row_store(self, outputs):
        """``store_rows(addresses, values)``: one element of each of some outputs."""
        edges = self.edges

        @intrinsic
        def store_rows(context, addresses, values):
            def codegen(ctx, builder, sig, args):
                bases, given = unpack(builder, args[0]), unpack(builder, args[1])
                for o, w in outputs:
                    edges[o].store_one(builder, bases[o], given[w])
                return ctx.get_dummy_value()

            return types.void(addresses, values), codegen

        return store_rows
