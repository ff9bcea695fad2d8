"""Reading and writing the operands of a kernel along the op's axis.

An axis is straight when it is one dimension (or several that merge into one); a bent axis is made
of several, and its positions are walked one by one where eight of them cross the end of a run.
Which of the two a kernel is built for is a compile key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

from llvmlite import ir

from ..words import AXIS, AXIS_RANK, CONSTANT_NAMES, CONSTANTS
from .block import (
    axis_offset,
    emit_axis_stride,
    emit_column_stride,
    emit_is_streamed,
    emit_prefetch,
    emit_unit_address,
)
from .functions import emitter, inner
from .lanes import I64, LANES
from .memory import word
from .storage import Edge
from .vectors import set_double, set_vector, stack, vector_at

eight_doubles = stack(LANES)


@emitter
def fence(builder):
    """Order what was written past the caches before whatever tells others that it is there."""
    builder.fence("seq_cst")


@inner
def stays_in_run(p, index, count):
    """Whether ``count`` positions from ``index`` lie in one run of the innermost dimension."""
    run = word(p, word(p, AXIS) + word(p, AXIS_RANK) - 1)
    return index % run + count <= run


def make_load(edge: Edge):
    """``load(address, stride, count)`` of one operand."""

    @emitter
    def load(builder, address, stride, count):
        return edge.load(builder, address, stride, count)

    return load


def make_store(edge: Edge):
    """``store(address, stride, count, v)`` of one operand."""

    @emitter
    def store(builder, address, stride, count, v):
        edge.store(builder, address, stride, count, v)

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
    """A function giving a tuple with one expression per operand.

    An operand is its place ``o``, the place ``w`` of its value, and its element type ``e``.
    """
    parts = ", ".join(expression.format(o=o, w=w, e=e) for o, w, e in operands)
    made: dict = {}
    source = f"def {name}({parameters}): return ({parts},)"
    exec(source, dict(tools), made)
    made[name].source = source
    return inner(made[name])


def _constants(asked: frozenset[str]):
    """``constants(p)``: extent, data parameters, the index of the first position, in every lane.

    None in the place of what no function asks for: it would be passed on from loop to loop.
    """
    edge, names = Edge("f64", plain_nan=True), (*CONSTANT_NAMES, "first")

    @emitter
    def constants(builder, p):
        front = builder.add(p, I64(8 * CONSTANTS))
        return tuple(
            edge.load_one(builder, builder.add(front, I64(8 * k))) if name in asked else None
            for k, name in enumerate(names)
        )

    return constants


class Operands:
    """The operands of a kernel in the order of the parameter block: full, row, outputs.

    ``full`` operands have an element for every position of the axis, ``row`` operands one for each
    row; ``outputs`` are either. Addresses and strides of all of them travel as tuples. ``packed``
    promises that neighbouring lanes are neighbours in memory, for all of them; ``flipped`` that
    they are so in descending order, and then the first position comes in the last lane. ``types``
    are those of operands that do not have the op's element type; ``ends`` are the outputs that a
    scan writes at the end of a row. ``singles`` lets elements be computed on float32 lanes.
    ``bounded`` lets it be tried where elements are of sixteen bits (:mod:`.bounded`). ``asked`` are
    the names that the formula's functions ask for.
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
        bounded=False,
        asked=frozenset(),
    ):
        self.singles, self.bounded = singles, bounded
        self.constants = _constants(asked)
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

        @emitter
        def addresses(builder, p, unit):
            items = [emit_unit_address(builder, p, o, unit) for o in range(count)]
            return tuple(items)

        return addresses

    def words(self, emit):
        """``words(p)``: one word of the parameter block for each operand."""
        count = self.count

        @emitter
        def words(builder, p):
            items = [emit(builder, p, o) for o in range(count)]
            return tuple(items)

        return words

    def _places(self):
        """``places(addresses, strides, index)`` of all operands."""

        @emitter
        def places(builder, addresses, strides, index):
            pairs = zip(addresses, strides, strict=True)
            items = [builder.add(base, builder.mul(index, step)) for base, step in pairs]
            return tuple(items)

        return places

    def _straight_fetch(self, places):
        edges, packed, flipped = self.edges, self.packed, self.flipped

        @emitter
        def fetch(builder, p, addresses, strides, index, count):
            bases, steps = addresses, strides
            items = []
            for o in places:
                edge = edges[o]
                step = I64(-edge.item if flipped else edge.item) if packed else steps[o]
                place = builder.add(bases[o], builder.mul(index, step))
                items.append(edge.load(builder, place, step, count, packed, flipped))
            return tuple(items or [Edge.zero()])

        return fetch

    def _straight_put(self, outputs):
        edges = self.edges
        packed, flipped = self.packed, self.flipped

        @emitter
        def put_outputs(builder, p, addresses, strides, index, count, values):
            bases, steps = addresses, strides
            given = values
            for o, w in outputs:
                edge = edges[o]
                step = I64(-edge.item if flipped else edge.item) if packed else steps[o]
                place = builder.add(bases[o], builder.mul(index, step))
                edge.store(builder, place, step, count, given[w], packed, flipped)

        return put_outputs

    def stream_outputs(self):
        """``put_outputs`` of eight packed elements at aligned addresses, past the caches."""
        edge, finished = self.edge, self.finished

        @emitter
        def stream(builder, addresses, index, values):
            bases, given = addresses, values
            offset = builder.mul(index, I64(edge.item))
            for o, w in finished:
                edge.stream(builder, builder.add(bases[o], offset), given[w])

        return stream

    def fetch_pair(self):
        """``fetch(addresses, index)``: full operands of sixteen packed positions, as two tuples."""
        edges, full_at = self.edges, self.full_at

        @emitter
        def fetch(builder, addresses, index):
            bases = addresses
            found = []
            for o in full_at:
                offset = builder.mul(index, I64(edges[o].item))
                found.append(edges[o].load_pair(builder, builder.add(bases[o], offset)))
            halves = zip(*found, strict=True) if found else [[Edge.zero()]] * 2
            return tuple(tuple(half) for half in halves)

        return fetch

    def put_pair(self):
        """``put(addresses, index, first, second, stream)``: outputs of sixteen packed positions."""
        edge, finished = self.edge, self.finished

        @emitter
        def put(builder, addresses, index, first, second, stream):
            bases = addresses
            offset = builder.mul(index, I64(edge.item))
            for o, w in finished:
                place = builder.add(bases[o], offset)
                edge.store_pair(builder, place, first[w], second[w], stream)

        return put

    def may_stream(self):
        """``may(p, addresses)``: outputs are large, and no load waits for a store past the caches.

        A load waits for an earlier store to an address that is the same modulo 4096. Where an
        output begins shortly behind an input, modulo that, the next load of every row is such a one
        (softmax of bfloat16 took 135 ms instead of 7 at 16 bytes, 7.1 at 512).
        """
        full_at, output_at = self.full_at, self.output_at

        @emitter
        def may(builder, p, addresses):
            bases = addresses
            answer = ir.IntType(1)(1)
            for o in output_at:
                large = emit_is_streamed(builder, p, bases[o])
                answer = builder.and_(answer, large)
                for i in full_at:
                    behind = builder.and_(builder.sub(bases[o], bases[i]), I64(4095))
                    clear = builder.icmp_unsigned(">=", behind, I64(512))
                    same = builder.icmp_signed("==", behind, I64(0))
                    answer = builder.and_(answer, builder.or_(clear, same))
            return answer

        return may

    def staged(self):
        """``move(addresses, first, stop, box)``: let positions of a single output lie in a box.

        Gives the addresses that say so, and where the positions [first, stop) begin in the output
        itself, lowest address first as they lie in the box.
        """
        edge, flipped = self.edge, self.flipped
        target = self.finished[0][0] if self.finished else 0

        @emitter
        def move(builder, addresses, first, stop, box):
            lowest = builder.sub(I64(1), stop) if flipped else first
            offset = builder.mul(lowest, I64(edge.item))
            place = builder.add(addresses[target], offset)
            moved = builder.sub(box, offset)
            return (*addresses[:target], moved, *addresses[target + 1 :]), place

        return move

    def prefetch(self):
        """Ask for the cache lines of packed full operands that will be read soon."""
        edges, sign = self.edges, -1 if self.flipped else 1
        full_at = self.full_at if self.packed else ()

        @emitter
        def ask(builder, addresses, index):
            bases = addresses
            for o in full_at:
                offset = builder.mul(index, I64(sign * edges[o].item))
                emit_prefetch(builder, builder.add(bases[o], offset))

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

        @emitter
        def packed(builder, strides):
            steps, answer = strides, ir.IntType(1)(1)
            for o in places:
                same = builder.icmp_signed("==", steps[o], I64(edges[o].item))
                answer = builder.and_(answer, same)
            return answer

        return packed

    def ask_columns(self, places, to_write: bool, columns: Sequence[int] = (0,)):
        """``ask(addresses, strides, column)``: for the lines of some columns from there on."""

        @emitter
        def ask(builder, addresses, strides, column):
            for o in places:
                for k in columns:
                    at = builder.add(column, I64(k))
                    place = builder.add(addresses[o], builder.mul(at, strides[o]))
                    emit_prefetch(builder, place, to_write)

        return ask

    def fetch_one(self, operand: int):
        """``fetch`` of a single full operand, for a position of its own."""
        return self._bent_fetch([operand]) if self.bent else self._straight_fetch([operand])

    def _row_fetch(self, places):
        """``fetch_rows(addresses)``: one element of each of some operands, in every lane."""
        edges = self.edges

        @emitter
        def fetch_rows(builder, addresses):
            bases = addresses
            items = [edges[o].load_one(builder, bases[o]) for o in places]
            return tuple(items or [Edge.zero()])

        return fetch_rows

    def _row_store(self, outputs):
        """``store_rows(addresses, values)``: one element of each of some outputs."""
        edges = self.edges

        @emitter
        def store_rows(builder, addresses, values):
            bases, given = addresses, values
            for o, w in outputs:
                edges[o].store_one(builder, bases[o], given[w])

        return store_rows
