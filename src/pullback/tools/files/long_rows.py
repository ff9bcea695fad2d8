"""Rows and segments that are larger than memory, piece by piece.

What is folded goes on from piece to piece as states (:mod:`pullback.cut`); a piece is read once for
every sweep along the axis, and once more where something is written for each of its elements.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from ...core.declare import Role
from ...cut import Cut, Piece, SegmentCut, from_rows, to_rows
from ..case import Case
from .boxes import Box, boxes
from .operands import Operands

Arrays = dict[str, np.ndarray]
# Runs a function beside this thread, so that an interrupt is seen, and gives its result.
Runs = Callable[[Callable[[], Any]], Any]


class LongRows:
    """A block of rows of which only a part along the axis is in memory at a time.

    Parameters
    ----------
    operands
        Where operands come from and results go.
    case
        The op on the block.
    block, parts
        The inputs and the outputs of the block, as they lie in their files.
    room
        Bytes that operands may occupy.
    run
        Runs what takes long.
    tell
        Called with the bytes that were walked, of those of the block.
    """

    def __init__(
        self,
        operands: Operands,
        case: Case,
        block: Arrays,
        parts: Arrays,
        room: int,
        run: Runs,
        tell: Callable[[int], None],
    ):
        self._operands, self._case, self._block, self._parts = operands, case, block, parts
        self._run, self._tell, self._walked = run, tell, 0
        self._cut = Cut(case.problem)
        self._lengths = tuple(case.shape[a] for a in case.axes)
        self._elements = [o.name for o in self._cut.reads if o.role is Role.ELEMENT]
        writes = [n for n in parts if case.role(n) is Role.ELEMENT]
        names = [*self._elements, *writes]
        self._row_elements = case.problem.numel // max(1, case.extent)
        each = sum(case.dtype_of(n).itemsize for n in names) * self._row_elements
        self._each = max(1, each)
        # Results lie in their own memory and in a buffer. A part of several axes is copied twice,
        # so that it lies as one; so is one whose neighbour is read.
        share = 4 if len(self._lengths) > 1 or self._cut.neighbours else 2
        positions = room // (share * self._each) // self._cut.block * self._cut.block
        self._length = max(self._cut.block, positions)
        self._sweeps = len(self._cut.sweeps) + bool(writes)

    def go(self) -> None:
        """Compute the block and write its results."""
        cut, case = self._cut, self._case
        rows = {
            o.name: to_rows(case.problem, o.name, self._loaded(o.name).copy())
            for o in cut.reads
            if o.role is Role.ROW
        }
        cut.check_rows(rows)
        batch = tuple(n for d, n in enumerate(case.shape) if d not in case.axes)
        bounds = list(itertools.pairwise(self._bounds()))
        known: list[list[np.ndarray]] = [[] for _ in bounds]
        behind = []
        for k, sweep in enumerate(cut.sweeps):
            state = cut.begin(k, batch, rows)
            order = range(len(bounds)) if sweep.forward else reversed(range(len(bounds)))
            fronts: dict[int, np.ndarray] = {}
            for i in order:
                fronts[i] = state
                piece = self._piece(*bounds[i], rows)
                summary = self._run(partial(cut.summary, k, piece, known[i]))
                state = cut.combine(k, state, summary)
                self._walk(bounds[i])
            behind.append(state)
            for i in range(len(bounds)):
                known[i].append(state if sweep.whole else fronts[i])
        self._write_elements(bounds, rows, known)
        for name, result in cut.finish(behind, rows).items():
            if name in self._parts:
                ones = (1,) * len(self._lengths)
                self._save(name, self._parts[name], from_rows(case.problem, name, result, ones))

    def _bounds(self) -> list[int]:
        """Where pieces begin, on the grid, and where the last one ends."""
        extent = self._cut.extent
        found = [*range(0, extent, self._length), extent]
        return [extent - at for at in reversed(found)] if self._cut.from_end else found

    def _walk(self, bounds: tuple[int, int]) -> None:
        self._walked += (bounds[1] - bounds[0]) * self._each
        self._tell(self._walked // max(1, self._sweeps))

    def _write_elements(
        self, bounds: list[tuple[int, int]], rows: Arrays, known: list[list[np.ndarray]]
    ) -> None:
        case = self._case
        names = [n for n in self._parts if case.role(n) is Role.ELEMENT]
        if not names:
            return
        for (start, stop), states in zip(bounds, known, strict=True):
            piece = self._piece(start, stop, rows)
            found = self._run(partial(self._cut.apply, piece, states))
            for name in names:
                at = 0
                for box in boxes(self._lengths, start, stop):
                    part = self._parts[name][self._index(box)]
                    lengths = tuple(s.stop - s.start for s in box)
                    count = math.prod(lengths)
                    values = found[name][..., at : at + count]
                    self._save(name, part, from_rows(case.problem, name, values, lengths))
                    at += count
            self._walk((start, stop))

    def _index(self, box: Box) -> tuple[Any, ...]:
        along = dict(zip(self._case.axes, box, strict=True))
        index = [along.get(d, slice(None)) for d in range(len(self._case.shape))]
        return (*index, ...)

    def _piece(self, start: int, stop: int, rows: Arrays) -> Piece:
        held: dict[str, np.ndarray] = dict(rows)
        for name in self._elements:
            held[name] = self._positions(name, start, stop)
        before = {}
        at = stop if self._case.problem.reverse else start - 1
        if self._cut.neighbours and 0 <= at < self._cut.extent:
            for name in self._cut.neighbours:
                # What is loaded is good until another part of it is.
                held[name] = held[name].copy()
                before[name] = self._positions(name, at, at + 1)[..., 0].copy()
        return Piece(held, start, before, stop - start)

    def _positions(self, name: str, start: int, stop: int) -> np.ndarray:
        """Positions of an operand, with the axes last and as one."""
        case = self._case
        found = []
        parts = list(boxes(self._lengths, start, stop))
        for box in parts:
            array = self._block[name]
            index = tuple(
                slice(None) if n == 1 else part
                for n, part in zip(array.shape, self._index(box)[:-1], strict=True)
            )
            everywhere: tuple[Any, ...] = (*index, ...)
            loaded = self._operands.load(name, array[everywhere])
            lengths = dict(zip(case.axes, (s.stop - s.start for s in box), strict=True))
            shape = [lengths.get(d, n) for d, n in enumerate(case.shape)]
            rows = to_rows(case.problem, name, np.broadcast_to(loaded, shape))
            found.append(rows if len(parts) == 1 else rows.copy())
        return found[0] if len(found) == 1 else np.concatenate(found, -1)

    def _loaded(self, name: str) -> np.ndarray:
        return self._operands.load(name, self._block[name])

    def _save(self, name: str, part: np.ndarray, values: np.ndarray) -> None:
        buffer = self._operands.buffer(name, part)
        buffer[...] = values
        self._operands.save({name: part}, {name: buffer})


def fold_segments(
    case: Case,
    chunks: Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]],
    table: str,
    ids: str,
    run: Runs,
) -> Mapping[str, np.ndarray]:
    """The results of an op that makes a row for each segment, by name.

    ``chunks`` gives the rows of the table and their ids, once for every sweep.
    """
    cut = SegmentCut(case.problem)
    known: list[np.ndarray] = []
    for k in range(len(cut.sweeps)):
        state = cut.begin(k, case.shape[1])
        for rows, near in chunks():
            state = run(partial(cut.fold, k, Piece({table: rows, ids: near}), known, state))
        known.append(state)
    return cut.finish(known, {})
