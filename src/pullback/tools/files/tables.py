"""Segment ops on tables that are larger than memory, whatever they read and write.

Columns do not depend on each other, so a block is some of them. Its rows come piece by piece, once
for every fold and once more where something is written for each of them; the states of all segments
go on from piece to piece (:class:`pullback.cut.SegmentCut`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...core.declare import Role
from ...cut import Piece, SegmentCut
from ..case import Case
from .boxes import Box
from .operands import Operands

Arrays = Mapping[str, np.ndarray]
Runs = Callable[[Callable[[], Any]], Any]
# Of the room, what states and rows of segments may take; pieces of the tables have the rest.
STATES_SHARE = 0.5


@dataclass(frozen=True)
class TableCut:
    """Blocks of columns: the dimensions of a table after its first, and lengths of a block."""

    tail: tuple[int, ...]
    block: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of blocks."""
        return math.prod(-(-n // b) for n, b in zip(self.tail, self.block, strict=True))

    def boxes(self) -> Iterator[Box]:
        """The columns of each block."""
        ranges = [
            [slice(k, min(k + b, n)) for k in range(0, n, b)]
            for n, b in zip(self.tail, self.block, strict=True)
        ]
        return itertools.product(*ranges)


def column_bytes(case: Case) -> int:
    """Bytes of a column that are in memory whatever the rows: states, and rows of segments."""
    cut, segments = SegmentCut(case.problem), case.segments or 0
    sizes = [len(s.monoid.state) for s in cut.sweeps]
    # Those of every sweep, and of the one that runs those in front and behind; and of the first
    # again, where a piece asks for them.
    states = 8 * (sum(sizes) + 2 * max(sizes, default=0) + 2 * cut.keeps_fronts * sum(sizes[:1]))
    rows = [n for n in (*case.reads, *case.outputs) if case.role(n) is Role.ROW]
    return segments * (states + 2 * sum(case.dtype_of(n).itemsize for n in rows))


def cut_columns(case: Case, tail: tuple[int, ...], room: int) -> TableCut | None:
    """Blocks of columns whose states fit, as few as can be; None where one column's do not."""
    left = int(room * STATES_SHARE) // max(1, column_bytes(case))
    if left < 1:
        return None
    block = list(tail)
    for d, n in enumerate(tail):
        if math.prod(block) <= left:
            break
        inside = math.prod(block[d + 1 :])
        block[d] = max(1, min(n, left // inside))
    return TableCut(tail, tuple(max(1, b) for b in block))


def restored_table(state: Mapping[str, Any], tail: tuple[int, ...]) -> TableCut | None:
    """A cut from a note, or None where that is no cut of such a table."""
    block = state.get("block")
    if set(state) != {"tail", "block"} or state["tail"] != list(tail):
        return None
    if not isinstance(block, list) or len(block) != len(tail):
        return None
    if not all(type(b) is int and 1 <= b <= max(1, n) for b, n in zip(block, tail, strict=True)):
        return None
    return TableCut(tail, tuple(block))


class TableRun:
    """A block of columns of a segment op.

    Parameters
    ----------
    operands
        Where operands come from and results go.
    case
        The op.
    arrays, parts
        The inputs and the outputs as they lie in their files: tables have the dimensions that the
        block cuts, ids and offsets one.
    columns
        The block.
    room
        Bytes that operands may occupy.
    run
        Runs a function and gives its result.
    tell
        Called with the share of the work that is done.
    """

    def __init__(
        self,
        operands: Operands,
        case: Case,
        arrays: Arrays,
        parts: Arrays,
        columns: Box,
        room: int,
        run: Runs,
        tell: Callable[[float], None],
    ):
        self._operands, self._case, self._run, self._tell = operands, case, run, tell
        self._cut = SegmentCut(case.problem)
        self._arrays, self._parts = arrays, parts
        self._columns = columns
        self._width = math.prod(s.stop - s.start for s in columns)
        tables = [n for n in (*case.reads, *parts) if case.role(n) is Role.ELEMENT]
        # A piece is loaded, and copied where its columns do not lie together.
        a_row = 2 * self._width * sum(case.dtype_of(n).itemsize for n in tables) + 16
        self._step = max(1, int(room * (1 - STATES_SHARE)) // a_row)
        writes = any(case.role(n) is Role.ELEMENT for n in parts)
        self._sweeps, self._walked = len(self._cut.sweeps) + writes, 0

    def go(self) -> None:
        """Compute the block and write its results."""
        cut = self._cut
        whole = {n: self._whole(n) for n in self._held(Role.ROW, Role.OFFSETS)}
        known: list[np.ndarray] = []
        for k in range(len(cut.sweeps)):
            state = cut.begin(k, self._width)
            for piece, front in self._pieces(whole, None if k == 0 else known):
                own = state if k == 0 and cut.keeps_fronts else front
                state = self._run(partial(cut.fold, k, piece, known, state, own))
            known.append(state)
        self._write_elements(whole, known)
        rows = {n: whole[n] for n in self._held(Role.ROW)}
        for name, result in cut.finish(known, rows).items():
            if name in self._parts:
                self._save(name, self._parts[name][self._at(slice(None))], result)

    def _write_elements(self, whole: Arrays, known: list[np.ndarray]) -> None:
        names = [n for n in self._parts if self._case.role(n) is Role.ELEMENT]
        if not names:
            return
        for piece, front in self._pieces(whole, known):
            found = self._run(partial(self._cut.apply, piece, known, front))
            rows = slice(piece.start, piece.start + piece.length)
            for name in names:
                self._save(name, self._parts[name][self._at(rows)], found[name])

    def _held(self, *roles: Role) -> list[str]:
        return [n for n in self._arrays if self._case.role(n) in roles]

    def _at(self, rows: slice) -> tuple[slice, ...]:
        return (rows, *self._columns)

    def _whole(self, name: str) -> np.ndarray:
        array = self._arrays[name]
        if self._case.role(name) is Role.OFFSETS:
            offsets: np.ndarray = self._operands.load(name, array).copy()
            return offsets
        loaded = self._operands.load(name, array[self._at(slice(None))])
        table: np.ndarray = loaded.reshape(len(array), self._width)
        return table

    def _pieces(
        self, whole: Arrays, known: list[np.ndarray] | None
    ) -> Iterator[tuple[Piece, np.ndarray | None]]:
        """Pieces in order, each with the first fold's states in front of it where it asks."""
        cut, case = self._cut, self._case
        follows = known is not None and cut.keeps_fronts
        front = cut.begin(0, self._width) if follows else None
        last: dict[str, np.ndarray] = {}
        rows = case.shape[0]
        for start in range(0, rows, self._step):
            stop = min(start + self._step, rows)
            held = dict(whole)
            for name in self._held(Role.IDS):
                held[name] = self._operands.load(name, self._arrays[name][start:stop]).copy()
            for name in self._held(Role.ELEMENT):
                part = self._arrays[name][self._at(slice(start, stop))]
                held[name] = self._operands.load(name, part).reshape(stop - start, self._width)
            piece = Piece(held, start, last, stop - start)
            yield piece, front
            if follows:
                assert front is not None
                front = cut.fold(0, piece, [], front, front)
            last = {n: held[n][-1] for n in self._held(Role.IDS)}
            self._walked += stop - start
            self._tell(self._walked / max(1, self._sweeps * rows))

    def _save(self, name: str, part: np.ndarray, values: np.ndarray) -> None:
        buffer = self._operands.buffer(name, part)
        buffer[...] = values.reshape(part.shape)
        self._operands.save({name: part}, {name: buffer})
