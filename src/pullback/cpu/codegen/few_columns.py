"""Rows of few columns, several side by side in the lanes: 8 of one, 4 of two, 2 of four, 1 of more.

Columns between these sizes take the lanes of the next; the last column is in those that are left
over too, where it is read, computed and written like itself. Which rows there are, and of which
segments, is told by two lists of words.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from .block import emit_word
from .functions import emitter
from .lanes import DOUBLE, DOUBLES, I32, I64, LANES, expected
from .operands import Operands
from .registers import any_piece
from .storage import Edge, narrow


def _indices(values: Sequence[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(I32, len(values)), list(values))


def joined(builder, parts: list) -> ir.Value:
    """Parts of the lanes, which are vectors or single values, as one vector."""
    if not isinstance(parts[0].type, ir.VectorType):
        return _first(builder, parts)
    while len(parts) > 1:
        both = _indices(range(2 * parts[0].type.count))
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [builder.shuffle_vector(a, b, both) for a, b in pairs]
    return parts[0]


def _first(builder, parts: list) -> ir.Value:
    """Single values, or one vector, in the first lanes; nothing in the others."""
    if not isinstance(parts[0].type, ir.VectorType):
        v = ir.Constant(ir.VectorType(parts[0].type, LANES), ir.Undefined)
        for lane, part in enumerate(parts):
            v = builder.insert_element(v, part, I32(lane))
        return v
    (part,), width = parts, parts[0].type.count
    if width == LANES:
        return part
    nothing, lanes = ir.Constant(part.type, ir.Undefined), range(LANES)
    return builder.shuffle_vector(part, nothing, _indices([min(k, width) for k in lanes]))


def part(builder, v, k: int, pitch: int) -> ir.Value:
    """The k-th part of the lanes."""
    if pitch == 1:
        return builder.extract_element(v, I32(k))
    return builder.shuffle_vector(v, v, _indices(range(k * pitch, (k + 1) * pitch)))


def _kind(item: ir.Type, pitch: int) -> ir.Type:
    return item if pitch == 1 else ir.VectorType(item, pitch)


def _load(builder, address, item: ir.Type, pitch: int, align: int) -> ir.Value:
    v = builder.load(builder.inttoptr(address, _kind(item, pitch).as_pointer()))
    v.align = align
    return v


def _store(builder, address, v, align: int) -> None:
    builder.store(v, builder.inttoptr(address, v.type.as_pointer())).align = align


def load_part(builder, address, edge: Edge, pitch: int) -> ir.Value:
    """So many stored elements, which are neighbours."""
    return _load(builder, address, edge.storage, pitch, edge.item)


def store_part(builder, address, v, edge: Edge) -> None:
    _store(builder, address, v, edge.item)


class Rows:
    """Operands at listed rows or segments.

    ``dense`` promises that the columns of every operand fill their lanes and are neighbours in
    memory, and so are rows that follow each other in operands with an element for every row.
    """

    def __init__(self, operands: Operands, pitch: int, dense: bool):
        self._operands, self._pitch, self._dense = operands, pitch, dense
        self.fetch = self._fetch(operands.full_at)
        self.fetch_one = self._fetch_one(operands.full_at)
        self.fetch_rows = self._fetch(operands.row_at)
        self.put = self._put()
        self.fetch_next, self.put_next = self._fetch_next(), self._put_next()
        self.near = _Near(operands, pitch)

    def _listed(self, builder, listed) -> list:
        return [emit_word(builder, listed, I64(r)) for r in range(LANES // self._pitch)]

    def _places(self, builder, memory, columns, numbers: list, o: int) -> list:
        """Where rows of these numbers begin; their every column, if they are not dense."""
        base, stride, step = (words[o] for words in memory)
        if self._dense and o in self._operands.full_at:
            stride = I64(self._pitch * self._operands.edges[o].item)
        rows = [builder.add(base, builder.mul(n, stride)) for n in numbers]
        if self._dense:
            return rows
        last = builder.sub(columns, I64(1))
        offsets = []
        for c in range(self._pitch):
            column = builder.select(builder.icmp_signed("<", I64(c), last), I64(c), last)
            offsets.append(builder.mul(column, step))
        return [builder.add(row, offset) for row in rows for offset in offsets]

    def _fetch_one(self, operands):
        """``fetch(memory, columns, n)`` of one row, in the first lanes."""
        edges, width = self._operands.edges, self._pitch if self._dense else 1

        @emitter
        def fetch(builder, memory, columns, n):
            items = []
            for o in operands:
                places = self._places(builder, memory, columns, [n], o)
                parts = [load_part(builder, a, edges[o], width) for a in places]
                items.append(edges[o].widen(builder, _first(builder, parts)))
            return tuple(items) or (Edge.zero(),)

        return fetch

    def _read(self, builder, edge: Edge, places: list) -> ir.Value:
        width = LANES // len(places)
        return joined(builder, [load_part(builder, a, edge, width) for a in places])

    def _write(self, builder, edge: Edge, places: list, v) -> None:
        width = LANES // len(places)
        for k, a in enumerate(places):
            store_part(builder, a, part(builder, v, k, width), edge)

    def _fetch(self, operands):
        """``fetch(memory, columns, listed)`` of what is listed."""
        edges = self._operands.edges

        @emitter
        def fetch(builder, memory, columns, listed):
            items = []
            for o in operands:
                places = self._places(builder, memory, columns, self._listed(builder, listed), o)
                items.append(edges[o].widen(builder, self._read(builder, edges[o], places)))
            return tuple(items) or (Edge.zero(),)

        return fetch

    def _put(self):
        """``put(memory, columns, listed, values)``: where ``fetch`` would read."""
        edges, outputs = self._operands.edges, self._operands.finished

        @emitter
        def put(builder, memory, columns, listed, values):
            for o, w in outputs:
                edge, numbers = edges[o], self._listed(builder, listed)
                places = self._places(builder, memory, columns, numbers, o)
                v = narrow(builder, values[w], edge.element, edge.native_half)
                self._write(builder, edge, places, v)

        return put

    def _following(self, builder, n, left) -> list:
        """The numbers of rows from n on; the last of those that are left as often as it takes."""
        last = builder.add(n, builder.sub(left, I64(1)))
        found = [builder.add(n, I64(r)) for r in range(LANES // self._pitch)]
        return [builder.select(builder.icmp_signed("<", k, last), k, last) for k in found]

    def _near_or_far(self, builder, left, near, far):
        """What one of two emitters gives: all lanes at once, or the rows that are left."""
        whole = builder.icmp_signed(">=", left, I64(LANES // self._pitch))
        with builder.if_else(whole, likely=True) as (then, otherwise):
            with then:
                found, found_block = near(), builder.block
            with otherwise:
                other, other_block = far(), builder.block
        if found is None:
            return None
        v = builder.phi(found.type)
        v.add_incoming(found, found_block)
        v.add_incoming(other, other_block)
        return v

    def _near(self, builder, memory, n, o: int) -> ir.Value:
        base, stride, _ = (words[o] for words in memory)
        return builder.add(base, builder.mul(n, stride))

    def _fetch_next(self):
        """``fetch(memory, columns, n, left)``: rows from n on, as many of them as are left."""
        edges, operands = self._operands.edges, self._operands.full_at

        @emitter
        def fetch(builder, memory, columns, n, left):
            items = []
            for o in operands:

                def far(o=o):
                    numbers = self._following(builder, n, left)
                    places = self._places(builder, memory, columns, numbers, o)
                    return self._read(builder, edges[o], places)

                def near(o=o):
                    return edges[o].near(builder, self._near(builder, memory, n, o))

                v = self._near_or_far(builder, left, near, far) if self._dense else far()
                items.append(edges[o].widen(builder, v))
            return tuple(items) or (Edge.zero(),)

        return fetch

    def _put_next(self):
        """``put(memory, columns, n, left, values)``: where ``fetch_next`` would read."""
        edges, outputs = self._operands.edges, self._operands.finished

        @emitter
        def put(builder, memory, columns, n, left, values):
            for o, w in outputs:
                edge = edges[o]
                v = narrow(builder, values[w], edge.element, edge.native_half)

                def far(o=o, v=v):
                    numbers = self._following(builder, n, left)
                    places = self._places(builder, memory, columns, numbers, o)
                    self._write(builder, edges[o], places, v)

                def near(o=o, v=v):
                    edges[o].set_near(builder, self._near(builder, memory, n, o), v)

                if self._dense:
                    self._near_or_far(builder, left, near, far)
                else:
                    far()

        return put


class _Near:
    """Operands with a row for every segment, at segments that follow each other in memory."""

    def __init__(self, operands: Operands, pitch: int):
        edges, outputs, row_at = operands.edges, operands.finished, operands.row_at

        def place(builder, memory, s, o: int) -> ir.Value:
            return builder.add(memory[0][o], builder.mul(s, I64(pitch * edges[o].item)))

        def are_packed(some: Sequence[int]):
            @emitter
            def packed(builder, memory):
                answer = ir.IntType(1)(1)
                for o in some:
                    stride = I64(pitch * edges[o].item)
                    own = builder.icmp_signed("==", memory[1][o], stride)
                    answer = builder.and_(answer, own)
                return answer

            return packed

        @emitter
        def fetch(builder, memory, s):
            items = [
                edges[o].widen(builder, edges[o].near(builder, place(builder, memory, s, o)))
                for o in row_at
            ]
            return tuple(items) or (Edge.zero(),)

        @emitter
        def put(builder, memory, s, values):
            for o, w in outputs:
                v = narrow(builder, values[w], edges[o].element, edges[o].native_half)
                edges[o].set_near(builder, place(builder, memory, s, o), v)

        self.fetch, self.put = fetch, put
        self.rows_packed = are_packed(row_at)
        self.all_packed = are_packed([*row_at, *(o for o, _ in outputs)])


class Table:
    """float64 values of every segment, ``slots`` of them in each column."""

    def __init__(self, pitch: int, slots: int):
        self._pitch, self.row_bytes = pitch, 8 * pitch
        self.segment_bytes = slots * self.row_bytes

    def _places(self, builder, table, listed, slot: int) -> list:
        segments = [emit_word(builder, listed, I64(r)) for r in range(LANES // self._pitch)]
        first = builder.add(table, I64(slot * self.row_bytes))
        return [builder.add(first, builder.mul(s, I64(self.segment_bytes))) for s in segments]

    def read(self, first: int, count: int, known: bool = False):
        """``read(table, listed)`` of so many slots; what is ``known`` begins with a zero."""

        @emitter
        def read(builder, table, listed):
            items = [Edge.zero()] if known else []
            for slot in range(first, first + count):
                at = self._places(builder, table, listed, slot)
                parts = [_load(builder, a, DOUBLE, self._pitch, 8) for a in at]
                items.append(joined(builder, parts))
            return tuple(items)

        return read

    def write(self, first: int, count: int):
        """``write(table, listed, values)``: the last ``count`` of the values to slots."""

        @emitter
        def write(builder, table, listed, values):
            for slot, v in enumerate(values[len(values) - count :], first):
                for r, a in enumerate(self._places(builder, table, listed, slot)):
                    _store(builder, a, part(builder, v, r, self._pitch), 8)

        return write

    def near(self):
        """``read(table, s)`` and ``write(table, s, values)`` of the only slot, from one segment on.

        As many segments as the lanes have room for, which follow each other.
        """
        size = self.segment_bytes

        @emitter
        def read(builder, table, s):
            return (
                _load(builder, builder.add(table, builder.mul(s, I64(size))), DOUBLE, LANES, 8),
            )

        @emitter
        def write(builder, table, s, values):
            _store(builder, builder.add(table, builder.mul(s, I64(size))), values[-1], 8)

        return read, write

    def write_changed(self, first: int):
        """``write(table, listed, before, values)``: the values but for those that are as before."""

        @emitter
        def write(builder, table, listed, before, values):
            for slot, (old, v) in enumerate(zip(before, values, strict=True), first):
                for r, a in enumerate(self._places(builder, table, listed, slot)):
                    if v is not old:
                        _store(builder, a, part(builder, v, r, self._pitch), 8)

        return write

    def read_row(self, count: int):
        """``read(address, distance)``: a row of each of so many vectors, that far apart."""

        @emitter
        def read(builder, address, distance):
            items = []
            for k in range(count):
                at = builder.add(address, builder.mul(distance, I64(k)))
                items.append(_first(builder, [_load(builder, at, DOUBLE, self._pitch, 8)]))
            return tuple(items)

        return read

    def write_row(self):
        """``write(address, values)``: the first row of each, one after the other."""

        @emitter
        def write(builder, address, values):
            for k, v in enumerate(values):
                at = builder.add(address, I64(k * self.row_bytes))
                _store(builder, at, part(builder, v, 0, self._pitch), 8)

        return write


def make_are_apart(side: int):
    """``are_apart(listed)``: whether so many words that are listed differ, as is expected."""
    if side == 1:
        return None
    kind = ir.VectorType(I64, side)

    @emitter
    def are_apart(builder, listed):
        if side == 2:
            pair = [emit_word(builder, listed, I64(k)) for k in range(side)]
            return expected(builder, builder.icmp_signed("!=", *pair))
        words = builder.load(builder.inttoptr(listed, kind.as_pointer()))
        words.align = 8
        same = []
        for distance in range(1, side // 2 + 1):
            turned = _indices([(k + distance) % side for k in range(side)])
            other = builder.shuffle_vector(words, words, turned)
            same.append(builder.icmp_signed("==", words, other))
        return expected(builder, builder.not_(any_piece(builder, same)))

    return are_apart


def extents_of(pitch: int):
    """``with_extents(const, counts, listed)``: the rows of each listed segment as the extent."""

    @emitter
    def with_extents(builder, const, counts, listed):
        found = []
        for r in range(LANES // pitch):
            rows = emit_word(builder, counts, emit_word(builder, listed, I64(r)))
            found += [rows] * pitch
        return (builder.sitofp(joined(builder, found), DOUBLES), *const[1:])

    return with_extents
