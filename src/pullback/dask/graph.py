"""Graphs of a cut op over chunks: summaries, states joined in order, results.

Tasks are as many as chunks, but for a constant: of every sweep one summary for each chunk, a tree
that gathers them, and one state for each chunk; then the results.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from ..core.declare import Operand, Role, Type
from ..core.elements import ELEMENTS
from ..core.problem import Problem
from ..cut import Cut, SegmentCut
from ..cut.text import cut_of, text_of
from . import tasks

Key = tuple[Any, ...]
Chunks = tuple[tuple[int, ...], ...]
# Summaries that are gathered at a time where the caller does not say: as many as dask.array takes.
SPLIT_EVERY = 16


class Graph:
    """Layers of tasks, named alike, over some arrays."""

    def __init__(self, kind: str, operands: Sequence[da.Array], *what: Any):
        self._token = tokenize(kind, [a.name for a in operands], *what)
        self._kind, self._operands = kind, operands
        self.layers: dict[str, dict[Key, Any]] = {}
        self._needs: dict[str, set[str]] = {}

    def layer(self, name: str) -> str:
        """The name of a new layer, which needs those before it."""
        full = f"{self._kind}-{name}-{self._token}"
        self._needs[full] = {*self.layers, *(a.name for a in self._operands)}
        self.layers[full] = {}
        return full

    def array(self, name: str, chunks: Chunks, dtype: Any, keys: Mapping[Key, Any]) -> da.Array:
        """An array whose blocks are these tasks."""
        full = f"{self._kind}-{name}-{self._token}"
        base = HighLevelGraph.merge(*(a.dask for a in self._operands))
        own = self.layers | {full: {(full, *k): v for k, v in keys.items()}}
        layers = {**base.layers, **{n: MaterializedLayer(v) for n, v in own.items()}}
        own_needs = {*self.layers, *(a.name for a in self._operands)}
        needs = {**base.dependencies, **self._needs, full: own_needs}
        meta = np.empty((0,) * len(chunks), dtype)
        return da.Array(HighLevelGraph(layers, needs), full, chunks, meta=meta)


def _at(*place: Any) -> Key:
    """A key; mypy takes a starred one between brackets for the syntax of a later Python."""
    return place


def starts(lengths: Sequence[int]) -> list[int]:
    """Where chunks of these lengths begin."""
    return [0, *itertools.accumulate(lengths[:-1])]


def _places(chunks: Chunks) -> Iterator[Key]:
    return itertools.product(*(range(len(c)) for c in chunks))


def dtype_of(problem: Problem, operand: Operand) -> Any:
    """The type of an output."""
    return np.float64 if operand.type is Type.STATE else ELEMENTS[problem.element].dtype


class Rows:
    """The graph of an op on operands whose last dimension is the axis, chunks on the grid.

    Parameters
    ----------
    problem
        The op.
    operands
        By name, of the op's ``reads``: (…, n) with an element for every position, (…) with one for
        each row, chunked alike.
    batch
        Chunks of the rows.
    lengths
        Chunks of the axis.
    split_every
        How many summaries are gathered at a time.
    """

    def __init__(
        self,
        problem: Problem,
        operands: Mapping[str, da.Array],
        batch: Chunks,
        lengths: tuple[int, ...],
        split_every: int | None = None,
    ):
        text = text_of(problem)
        cut = cut_of(text)
        assert isinstance(cut, Cut)
        self.text, self.cut, self.batch, self.lengths = text, cut, batch, lengths
        self.names = tuple(o.name for o in cut.reads)
        self.rows = tuple(o.name for o in cut.reads if o.role is Role.ROW)
        self._operands = {n: operands[n] for n in self.names}
        self._split = max(2, split_every or SPLIT_EVERY)
        arrays = list(self._operands.values())
        self.graph = Graph(problem.op.name, arrays, text, batch, lengths)
        self._made = self._build()

    def _keys(self, names: Sequence[str], place: Key, piece: int) -> list[Key]:
        found = []
        for name in names:
            array = self._operands[name]
            is_row = name in self.rows
            found.append((array.name, *place) if is_row else (array.name, *place, piece))
        return found

    def _build(self) -> dict[str, dict[Key, Any]]:
        """All layers; gives tasks with the results of chunks, and of rows."""
        text, cut, graph, count = self.text, self.cut, self.graph, len(self.lengths)
        places = list(_places(self.batch))
        at = starts(self.lengths)
        edges = self._edges(places)
        known: dict[Key, list[Any]] = {(*p, i): [] for p in places for i in range(count)}
        behind: dict[Key, list[Any]] = {p: [] for p in places}
        before: list[str] = []
        for k, sweep in enumerate(cut.sweeps):
            summaries, gathers = graph.layer(f"summary{k}"), graph.layer(f"gather{k}")
            joins, states = graph.layer(f"combine{k}"), graph.layer(f"state{k}")
            order = list(range(count)) if sweep.forward else list(reversed(range(count)))
            blocks = [-(-self.lengths[i] // cut.block) for i in order]
            for p in places:
                for i in order:
                    own = [(name, *p, i) for name in before]
                    graph.layers[summaries][_at(summaries, *p, i)] = (
                        partial(tasks.summary, self._place(p, i, at, edges), k),
                        *self._given(p, i, edges, known), *own,
                    )  # fmt: skip
                parts = [(summaries, *p, i) for i in order]
                root = self._gather(graph.layers[gathers], gathers, p, parts)
                rows = self._keys(self.rows, p, 0)
                join = (joins, *p)
                graph.layers[joins][join] = (
                    tasks.joined, text, k, list(self.rows), rows, root, blocks,
                )  # fmt: skip
                total = (states, *p, count)
                graph.layers[states][total] = (operator.getitem, join, -1)
                behind[p].append(total)
                for turn, i in enumerate(order):
                    state = total
                    if not sweep.whole:
                        state = (states, *p, i)
                        graph.layers[states][state] = (operator.getitem, join, turn)
                    known[_at(*p, i)].append(state)
            before.append(summaries)
        return self._results(places, at, edges, known, behind)

    def _place(
        self, place: Key, piece: int, at: Sequence[int], edges: Mapping[Key, Key]
    ) -> tasks.Place:
        has_edge = (*place, piece) in edges
        return tasks.Place(self.text, self.names, at[piece], self.lengths[piece], has_edge)

    def _given(
        self,
        place: Key,
        piece: int,
        edges: Mapping[Key, Key],
        known: Mapping[Key, list[Any]],
    ) -> list[Key]:
        """What tasks of a chunk are given, as :class:`.tasks.Place` takes it."""
        key = (*place, piece)
        edge = [edges[key]] if key in edges else []
        return [*self._keys(self.names, place, piece), *edge, *known[key]]

    def _edges(self, places: Sequence[Key]) -> dict[Key, Key]:
        """What chunks must know of the one before, by chunk."""
        if not self.cut.neighbours:
            return {}
        layer = self.graph.layer("edge")
        found, names = {}, list(self.cut.neighbours)
        step = 1 if self.cut.problem.reverse else -1
        for p in places:
            for i in range(len(self.lengths)):
                before = i + step
                if 0 <= before < len(self.lengths):
                    keys = self._keys(names, p, before)
                    self.graph.layers[layer][_at(layer, *p, i)] = (
                        partial(tasks.edge, self.text, names), *keys,
                    )  # fmt: skip
                    found[_at(*p, i)] = (layer, *p, i)
        return found

    def _gather(self, layer: dict[Key, Any], name: str, place: Key, parts: list[Key]) -> Key:
        """A tree over the summaries of a row of chunks."""
        level = 0
        while len(parts) > 1:
            groups = [parts[k : k + self._split] for k in range(0, len(parts), self._split)]
            parts = []
            for k, group in enumerate(groups):
                key = (name, *place, level, k)
                layer[key] = (tasks.gathered, group)
                parts.append(key)
            level += 1
        return parts[0]

    def _results(
        self,
        places: Sequence[Key],
        at: Sequence[int],
        edges: Mapping[Key, Key],
        known: Mapping[Key, list[Any]],
        behind: Mapping[Key, list[Any]],
    ) -> dict[str, dict[Key, Any]]:
        writes = self.cut.problem.writes
        found: dict[str, dict[Key, Any]] = {"elements": {}, "rows": {}}
        elements = [o.name for o in writes if o.role is Role.ELEMENT]
        if elements:
            only = elements[0] if len(elements) == 1 else ""
            layer = "" if only else self.graph.layer("apply")
            for p in places:
                for i in range(len(self.lengths)):
                    task = (
                        partial(tasks.applied, self._place(p, i, at, edges), only),
                        *self._given(p, i, edges, known),
                    )
                    if layer:
                        self.graph.layers[layer][_at(layer, *p, i)] = task
                        task = (layer, *p, i)
                    found["elements"][_at(*p, i)] = task
        if any(o.role is Role.ROW for o in writes):
            layer = self.graph.layer("finish")
            for p in places:
                rows = self._keys(self.rows, p, 0)
                self.graph.layers[layer][_at(layer, *p)] = (
                    tasks.finished, self.text, list(self.rows), rows, behind[p],
                )  # fmt: skip
                found["rows"][p] = (layer, *p)
        return found

    def output(self, operand: Operand) -> da.Array:
        """A result: (…, n) with an element for every position, (…) with one for each row."""
        is_row = operand.role is Role.ROW
        chunks = self.batch if is_row else (*self.batch, self.lengths)
        made = self._made["rows" if is_row else "elements"]
        elements = sum(o.role is Role.ELEMENT for o in self.cut.problem.writes)
        keys: dict[Key, Any] = dict(made)
        if is_row or elements > 1:
            keys = {k: (operator.getitem, task, operand.name) for k, task in made.items()}
        return self.graph.array(operand.name, chunks, dtype_of(self.cut.problem, operand), keys)


class Segments:
    """The graph of a segment op on a table whose rows are chunked anyhow.

    Parameters
    ----------
    problem
        The op on tables of two dimensions.
    operands
        By name: tables of any rank, chunked alike but for rows of segments, which are one chunk;
        ids chunked as the rows, offsets in one chunk.
    rest
        Chunks of the dimensions after the first.
    lengths
        Chunks of the rows.
    """

    def __init__(
        self,
        problem: Problem,
        operands: Mapping[str, da.Array],
        rest: Chunks,
        lengths: tuple[int, ...],
    ):
        text = text_of(problem)
        cut = cut_of(text)
        assert isinstance(cut, SegmentCut)
        self.text, self.cut, self.rest, self.lengths = text, cut, rest, lengths
        self.names = tuple(o.name for o in cut.reads)
        self.rows = tuple(o.name for o in cut.reads if o.role is Role.ROW)
        self._operands = {n: operands[n] for n in self.names}
        self.graph = Graph(problem.op.name, list(self._operands.values()), text, rest, lengths)
        self._made = self._build()

    def _keys(self, names: Sequence[str], piece: int, place: Key) -> list[Key]:
        found: list[Key] = []
        for name in names:
            array, role = self._operands[name], self.cut.problem.op.operand(name).role
            match role:
                case Role.ELEMENT:
                    found.append((array.name, piece, *place))
                case Role.ROW:
                    found.append((array.name, 0, *place))
                case Role.IDS:
                    found.append((array.name, piece))
                case Role.OFFSETS:
                    found.append((array.name, 0))
        return found

    def _befores(self) -> dict[int, Any]:
        """The last id of the chunk before, where ids must ascend."""
        by = self.cut.problem.cut_by
        if by.role is not Role.IDS or not self.cut.problem.is_sorted:
            return {}
        layer, found = self.graph.layer("last"), {}
        for i in range(1, len(self.lengths)):
            key = (layer, i)
            ids = (self._operands[by.name].name, i - 1)
            self.graph.layers[layer][key] = (tasks.last_id, ids)
            found[i] = key
        return found

    def _build(self) -> dict[str, dict[Key, Any]]:
        text, cut, graph = self.text, self.cut, self.graph
        at, names = starts(self.lengths), list(self.names)
        befores = self._befores()
        found: dict[str, dict[Key, Any]] = {"elements": {}, "rows": {}}
        layers = {k: graph.layer(f"fold{k}") for k in range(len(cut.sweeps))}
        writes = cut.problem.writes
        for p in _places(self.rest):
            sizes = tuple(self.rest[d][j] for d, j in enumerate(p))
            columns = int(np.prod(sizes, dtype=np.int64))
            behind: list[Key] = []
            fronts: list[Key | None] = [None] * len(self.lengths)
            for k, layer in layers.items():
                carry: Key = (layer, *p, -1)
                graph.layers[layer][carry] = (tasks.begun, text, k, columns)
                for i, length in enumerate(self.lengths):
                    if k == 0 and cut.keeps_fronts:
                        fronts[i] = carry
                    key = (layer, *p, i)
                    graph.layers[layer][key] = (
                        tasks.folded, text, k, names, self._keys(names, i, p), at[i], length,
                        befores.get(i), list(behind), carry, fronts[i],
                    )  # fmt: skip
                    carry = key
                behind.append(carry)
            if any(o.role is Role.ELEMENT for o in writes):
                layer = graph.layer("apply") if not found["elements"] else layer_of(found)
                for i, length in enumerate(self.lengths):
                    graph.layers[layer][_at(layer, *p, i)] = (
                        tasks.applied_to_rows, text, names, self._keys(names, i, p), at[i],
                        length, sizes, list(behind), fronts[i],
                    )  # fmt: skip
                    found["elements"][_at(i, *p)] = (layer, *p, i)
            else:
                layer = graph.layer("finish") if not found["rows"] else layer_of(found)
                graph.layers[layer][_at(layer, *p)] = (
                    tasks.finished_segments, text, list(self.rows),
                    self._keys(self.rows, 0, p), sizes, list(behind),
                )  # fmt: skip
                found["rows"][_at(0, *p)] = (layer, *p)
        return found

    def output(self, operand: Operand) -> da.Array:
        """A result: the table, or a row for each segment."""
        is_row = operand.role is Role.ROW
        segments = (self.cut.problem.num_segments,)
        chunks = ((segments if is_row else self.lengths), *self.rest)
        made = self._made["rows" if is_row else "elements"]
        keys = {k: (operator.getitem, task, operand.name) for k, task in made.items()}
        return self.graph.array(operand.name, chunks, dtype_of(self.cut.problem, operand), keys)


def layer_of(found: Mapping[str, Mapping[Key, Key]]) -> str:
    """The layer whose tasks give results."""
    made = found["elements"] or found["rows"]
    name: str = next(iter(made.values()))[0]
    return name
