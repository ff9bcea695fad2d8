"""An op cut along its axis: the state of a piece, states in order, and a piece from its states.

Arrays are NumPy's. An operand with an element for every position of a piece has the op's axes last
and as one; one with an element for each row has no axis. States have one component more in the last
place, and are float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ..api.plan import Runnable, check_positions
from ..core.declare import Op, Operand, Role, Type
from ..core.elements import ELEMENTS
from ..core.problem import Problem
from ..core.vocabulary import PlanPreference
from ..cpu.joining import join, of_states
from ..cpu.launch import computes_in_singles, element_of
from ..cpu.words import BLOCK, SCAN_BLOCK
from ..errors import InvalidProblemError
from ..formulas.record import Formula, Monoid, RowFormula, ScanFormula, names_read, repeats
from ..memory.view import output_view, view
from . import records
from .records import FRONT, HALO, ORIGIN, Sweep, carried

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Piece:
    """A part of every operand of an op.

    Attributes
    ----------
    operands
        By name: (…, n) with an element for every position, (…) with one for each row.
    start
        Where the piece begins along the axis.
    before
        The elements one position before it in forward order, of the operands that
        ``Cut.neighbours`` names; empty for the piece that comes first.
    length
        Its positions, where no operand has an element for each.
    """

    operands: Mapping[str, Array]
    start: int = 0
    before: Mapping[str, Array] = field(default_factory=dict)
    length: int = 0


@lru_cache(1024)
def runnable_of(problem: Problem) -> Runnable:
    return Runnable(problem, PlanPreference())


# Parts of an op on pieces of so many shapes are kept, which saves describing them again.
_MOST_KEPT = 256


class Cut:
    """An op on rows that are cut into pieces.

    Parameters
    ----------
    problem
        The op on the uncut operands. Of its shape only the axes matter: a piece may have any part
        of the other dimensions.

    Attributes
    ----------
    sweeps
        The folds along the axis, in the order they run; each asks for the states of those before.
    block
        Pieces begin and end at multiples of it, counted from the end of the row where ``from_end``;
        anywhere, unless it ``needs_grid``.
    reads
        The operands that the formula looks at: those that a piece must have.
    neighbours
        The operands of which a piece must know the element in front of it.
    """

    def __init__(self, problem: Problem):
        if problem.is_segmented:
            raise InvalidProblemError(f"{problem.op.name}: rows of segments are cut by SegmentCut")
        self.problem = problem
        self.formula: Formula = problem.formula_in_doubles
        self.extent = problem.extent
        is_scan = isinstance(self.formula, ScanFormula)
        self.sweeps = records.sweeps_of(self.formula, problem.reverse)
        self.block = SCAN_BLOCK if is_scan else BLOCK
        if repeats(self.formula):
            # How many sweeps there are only the elements tell: the whole row is a piece.
            self.sweeps, self.block = (), max(1, problem.extent)
        self.from_end = isinstance(self.formula, ScanFormula) and (
            problem.reverse != (self.formula.against and self.formula.prefix is None)
        )
        self.needs_grid = bool(self.sweeps) or repeats(self.formula)
        asked = names_read(self.formula)
        self.reads = (*problem.used(Role.ELEMENT), *problem.used(Role.ROW))
        self.neighbours = tuple(o.name for o in self.reads if f"{o.symbol}_before" in asked)
        self._bools = frozenset(o.symbol for o in self.reads if o.type is Type.BOOL)
        self._data = {**problem.constants, FRONT: self.extent - 1.0 if problem.reverse else 0.0}
        self._element_dtype = ELEMENTS[problem.element].dtype
        self._precision = problem.precision
        self._positions = problem.positions
        self._kept: dict[tuple[Any, ...], tuple[Op, Runnable]] = {}
        if isinstance(self.formula, RowFormula):
            kinds = {o.symbol: element_of(problem, o.name, None) for o in problem.reads}
            types = tuple((n, kind) for n, kind in kinds.items() if kind != problem.element)
            self._precision = (
                "fast" if computes_in_singles(problem, *problem.symbols(), types) else "tight"
            )

    # What runs.

    @cached_property
    def _summaries(self) -> tuple[Op, ...]:
        return self._folding(records.summary_record)

    @cached_property
    def _summaries_of_whole_blocks(self) -> tuple[Op, ...]:
        return self._folding(records.whole_blocks_record)

    def _folding(self, record_of: Callable[..., Formula]) -> tuple[Op, ...]:
        made = []
        for k, sweep in enumerate(self.sweeps):
            record = record_of(self.formula, k, self._bools)
            states = tuple(Operand(n, Role.ROW, Type.STATE) for n in sweep.monoid.state)
            if isinstance(record, ScanFormula):
                states = (Operand("nothing"), *states)
            made.append(records.part_of(self.problem, "cut-summary", record, states))
        return tuple(made)

    @cached_property
    def _apply(self) -> Op:
        record = records.apply_record(self.formula, self._bools)
        writes = tuple(replace(o, asked_by="") for o in self._elements)
        return records.part_of(self.problem, "cut-apply", record, writes)

    @cached_property
    def _finish(self) -> Op | None:
        writes = tuple(replace(o, asked_by="") for o in self._rows)
        if isinstance(self.formula, RowFormula):
            if self.formula.finish is None:
                return None
            record = records.finish_record(self.formula)
            return records.part_of(self.problem, "cut-finish", record, writes)
        if self.formula.end is None:
            return None
        writes = tuple(replace(o, role=Role.ELEMENT) for o in writes)
        record = records.end_record(self.formula)
        return records.part_of(self.problem, "cut-end", record, writes, by_element=True)

    @property
    def _elements(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.problem.writes if o.role is Role.ELEMENT)

    @property
    def _rows(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.problem.writes if o.role is Role.ROW)

    def _run(
        self,
        op: Op,
        shape: tuple[int, ...],
        arrays: Mapping[str, Array],
        element: str = "",
        by_row: bool = False,
        is_own: bool = True,
    ) -> None:
        """Run a part on arrays by name: the last dimension is the axis.

        ``is_own`` says that outputs are new arrays, which nothing else overlaps.
        """
        if 0 in shape:
            return
        key = (id(op), shape)
        found = self._kept.get(key)
        if found is None:
            data = tuple((n, v) for n, v in self._data.items() if n == "extent" or n in op.data)
            problem = Problem(
                op,
                element or self.problem.element,
                shape,
                (len(shape) - 1,),
                (),
                self.problem.reverse and isinstance(op.records(), ScanFormula),
                data,
                # What is of rows alone is computed in float64 in any case.
                precision="tight" if by_row else self._precision,
            )
            found = self._keep(key, op, problem)
        _execute(found[1], arrays, is_own)

    def _keep(self, key: tuple[Any, ...], op: Op, problem: Problem) -> tuple[Op, Runnable]:
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        # The op stays where it is as long as its address is a key.
        found = self._kept[key] = (op, runnable_of(problem))
        return found

    # What a part reads.

    def _halos(self, piece: Piece, start: int, count: int, length: int) -> dict[str, Array]:
        """The elements in front of equal parts of a piece, in forward order: (…, parts)."""
        borders = dict(self.formula.before)
        found = {}
        for name in self.neighbours:
            array = piece.operands[name]
            symbol = self.problem.op.operand(name).symbol
            halo = np.empty((*array.shape[:-1], count))
            first, last = (start + length, count - 1) if self.problem.reverse else (start - 1, 0)
            places = first + length * np.arange(count)
            inside = (places >= 0) & (places < array.shape[-1])
            halo[..., inside] = array[..., places[inside]]
            if not inside[last]:
                halo[..., last] = piece.before.get(name, borders.get(symbol, 0.0))
            found[symbol + HALO] = halo
        return found

    def rows_of(self, piece: Piece) -> tuple[tuple[int, ...], int]:
        """Shape of the rows of a piece, and its positions."""
        for o in self.reads:
            if o.role is Role.ELEMENT:
                shape = piece.operands[o.name].shape
                return shape[:-1], shape[-1]
        return piece.operands[self.reads[0].name].shape, piece.length

    def check_rows(self, rows: Mapping[str, Array]) -> None:
        """Raise for operands with one element for each row that name no position of the axis."""
        for o in self._positions:
            if o.name in rows:
                check_positions(self.problem, o, np.asarray(rows[o.name]))

    # The three functions.

    def begin(self, sweep: int, batch: tuple[int, ...], rows: Mapping[str, Array]) -> Array:
        """The states in front of rows.

        Parameters
        ----------
        sweep
            Which one.
        batch
            Shape of the rows.
        rows
            The operands with one element for each row, by name.
        """
        step = self.sweeps[sweep]
        state = np.empty((*batch, len(step.monoid.state)))
        if step.start is None:
            state[...] = step.identity
            return state
        writes = tuple(Operand(n) for n in step.monoid.state)
        op = _start_op(self.problem, step, writes)
        arrays: dict[str, Array] = {n: np.empty((*batch, 1)) for n in step.monoid.state}
        for o in self.reads:
            if o.name in rows:
                arrays[o.symbol] = rows[o.name].astype(np.float64)[..., None]
        self._run(op, (*batch, 1), arrays, "f64", by_row=True)
        for k, n in enumerate(step.monoid.state):
            state[..., k] = arrays[n][..., 0]
        return state

    def summary(
        self,
        sweep: int,
        piece: Piece,
        states: Sequence[Array] = (),
        own: Sequence[Array] = (),
    ) -> Array:
        """The states of the blocks of a piece, (…, blocks, components), in the sweep's order.

        Parameters
        ----------
        sweep
            Which one.
        piece
            The piece, on the grid.
        states
            Of the sweeps before it: the state of the whole row, or in front of the piece.
        own
            What this function gave for the sweeps before it; made again, unless given.
        """
        step = self.sweeps[sweep]
        batch, n = self.rows_of(piece)
        ragged = n % self.block
        blocks = -(-n // self.block)
        found = np.empty((*batch, blocks, len(step.monoid.state)))
        if not blocks:
            return found
        here = found if step.forward else found[..., ::-1, :]
        # The short block is the last one that the loops come to.
        whole = slice(ragged, n) if self.from_end else slice(0, n - ragged)
        rest = slice(0, ragged) if self.from_end else slice(n - ragged, n)
        at = slice(bool(ragged), None) if self.from_end else slice(0, n // self.block)
        last = slice(0, 1) if self.from_end else slice(blocks - 1, blocks)
        parts = []
        if n >= self.block:
            parts.append((self._summaries_of_whole_blocks[sweep], whole, at, self.block))
        if ragged:
            parts.append((self._summaries[sweep], rest, last, ragged))
        before = list(states)
        asked = {name for op, *_ in parts for name in op.inputs}
        if sweep and not self.sweeps[0].whole and asked & {*carried(0, self.sweeps[0].monoid)}:
            # In front of every block, not of the piece alone.
            _, fronts = self._joined(0, before[0], own[0] if own else self.summary(0, piece))
            before[0] = fronts if self.sweeps[0].forward else fronts[..., ::-1, :]
        for op, part, place, length in parts:
            given = [s[..., place, :] if s.ndim == here.ndim else s for s in before]
            self._fold(op, piece, part, length, given, here[..., place, :])
        return found

    def _fold(
        self,
        op: Op,
        piece: Piece,
        part: slice,
        length: int,
        states: Sequence[Array],
        into: Array,
    ) -> None:
        """The states of equal blocks of a piece, in the order of memory."""
        batch, n = into.shape[:-2], into.shape[-2]
        shape = (*batch, n, length)
        arrays: dict[str, Array] = {}
        for o in self.reads:
            array = piece.operands[o.name]
            if o.role is Role.ELEMENT:
                arrays[o.symbol] = array[..., part].reshape(shape)
            else:
                arrays[o.symbol] = np.broadcast_to(array[..., None, None], (*batch, n, 1))
        if ORIGIN in op.inputs:
            starts = piece.start + part.start + length * np.arange(n, dtype=np.float64)
            arrays[ORIGIN] = np.broadcast_to(starts[:, None], (*batch, n, 1))
        halos = self._halos(piece, part.start, n, length)
        arrays |= {name: a[..., None] for name, a in halos.items()}
        for k, (sweep, state) in enumerate(zip(self.sweeps, states, strict=False)):
            if state.ndim != into.ndim:
                state = np.broadcast_to(state[..., None, :], (*batch, n, state.shape[-1]))
            for j, name in enumerate(carried(k, sweep.monoid)):
                arrays[name] = state[..., j : j + 1]
        names = [o.name for o in op.writes if o.role is Role.ROW]
        arrays |= {name: into[..., k : k + 1] for k, name in enumerate(names)}
        self._run(op, shape, arrays)

    @cached_property
    def _folds(self) -> tuple[Monoid, ...]:
        return tuple(of_states(s.monoid) for s in self.sweeps)

    def _joined(self, sweep: int, state: Array, summary: Array) -> tuple[Array, Array]:
        """The states behind a piece, and those in front of each of its blocks."""
        *batch, blocks, size = summary.shape
        rows = math.prod(batch)
        front = np.ascontiguousarray(state).reshape(rows, size)
        states = np.ascontiguousarray(summary).reshape(rows, blocks, size)
        total, fronts = join(self._folds[sweep], self.problem.element, front, states)
        return total.reshape(state.shape), fronts.reshape(summary.shape)

    def combine(self, sweep: int, state: Array, summary: Array) -> Array:
        """The states behind a piece, of those in front of it and of its blocks."""
        return self._joined(sweep, state, summary)[0]

    def combined(self, sweep: int, state: Array, summary: Array) -> Array:
        """The states in front of every block of a piece, and then those behind it."""
        total, fronts = self._joined(sweep, state, summary)
        return np.concatenate((fronts, total[..., None, :]), -2)

    def apply(
        self, piece: Piece, states: Sequence[Array], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """The outputs with an element for every position of a piece, by name.

        Parameters
        ----------
        piece
            The piece, on the grid.
        states
            Of every sweep: the state of the whole row, or in front of the piece.
        out
            Where to write them; new arrays otherwise.
        """
        if not self._elements:
            return {}
        batch, n = self.rows_of(piece)
        arrays: dict[str, Array] = {}
        for o in self.reads:
            array = piece.operands[o.name]
            arrays[o.symbol] = array if o.role is Role.ELEMENT else array[..., None]
        if ORIGIN in self._apply.inputs:
            arrays[ORIGIN] = np.broadcast_to(np.float64(piece.start), (*batch, 1))
        arrays |= self._halos(piece, 0, 1, n)
        for k, (sweep, state) in enumerate(zip(self.sweeps, states, strict=True)):
            for j, name in enumerate(carried(k, sweep.monoid)):
                arrays[name] = state[..., j : j + 1]
        like = next((arrays[o.symbol] for o in self.reads if o.role is Role.ELEMENT), None)
        results = {}
        for o in self._elements:
            given = out.get(o.name) if out else None
            if given is None:
                given = (
                    np.empty((*batch, n), self._element_dtype)
                    if like is None
                    else np.empty_like(like, self._element_dtype)
                )
            results[o.name] = arrays[o.name] = given
        if self._is_uncut:
            self._run_uncut((*batch, n), arrays, out is None)
        else:
            self._run(self._apply, (*batch, n), arrays, is_own=out is None)
        return results

    @cached_property
    def _is_uncut(self) -> bool:
        """Whether elements do not ask for their place or for others: the op itself serves."""
        asked = names_read(self.formula)
        return not (self.sweeps or self.neighbours or {"index", "first"} & asked)

    def _run_uncut(self, shape: tuple[int, ...], arrays: Mapping[str, Array], is_own: bool) -> None:
        """The op itself on a piece; the extent is that of the uncut row."""
        if 0 in shape:
            return
        found = self._kept.get(("uncut", shape))
        if found is None:
            axes = (len(shape) - 1,)
            data = tuple((n, v) for n, v in self._data.items() if n != FRONT)
            problem = replace(self.problem, shape=shape, axes=axes, data=data)
            found = self._keep(("uncut", shape), problem.op, problem)
        called = {o.symbol: o.name for o in self.reads}
        _execute(found[1], {called.get(n, n): a for n, a in arrays.items()}, is_own)

    def finish(self, states: Sequence[Array], rows: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs with one element for each row, by name.

        Parameters
        ----------
        states
            Of every sweep: the state behind the whole row.
        rows
            The operands with one element for each row, by name.
        """
        op = self._finish
        if op is None:
            return {}
        batch = states[0].shape[:-1]
        # A state is made in float64, whatever the elements are.
        is_end = isinstance(self.formula, ScanFormula)
        arrays: dict[str, Array] = {"nothing": np.zeros((*batch, 1), self._element_dtype)}
        for o in self.reads:
            if o.name in rows:
                row = rows[o.name].astype(np.float64) if is_end else rows[o.name]
                arrays[o.symbol] = row[..., None]
        for k, (sweep, state) in enumerate(zip(self.sweeps, states, strict=True)):
            for j, name in enumerate(carried(k, sweep.monoid)):
                arrays[name] = state[..., j : j + 1]
        results = {}
        for o in self._rows:
            wide = is_end or o.type is Type.STATE
            made = np.empty((*batch, 1), np.float64 if wide else self._element_dtype)
            results[o.name] = arrays[o.name] = made
        self._run(op, (*batch, 1), arrays, "f64" if is_end else "", by_row=True)
        return {n: a[..., 0] for n, a in results.items()}

    def edge(self, piece: Piece) -> dict[str, Array]:
        """What the next piece in forward order must know of this one: its last elements."""
        at = 0 if self.problem.reverse else -1
        return {n: piece.operands[n][..., at] for n in self.neighbours}


def _execute(runnable: Runnable, arrays: Mapping[str, Array], is_own: bool) -> None:
    op = runnable.op
    views = {o.name: view(arrays[o.name], o.name) for o in op.reads if o.name in arrays}
    views |= {o.name: output_view(arrays[o.name], o.name) for o in op.writes if o.name in arrays}
    if is_own:
        runnable.check_kinds(views)
    else:
        runnable.check(views)
    runnable.execute(views, 0, 0, runnable.threads())


@lru_cache(256)
def _start_op(problem: Problem, sweep: Sweep, writes: tuple[Operand, ...]) -> Op:
    record = records.start_record(sweep)
    return records.part_of(problem, "cut-start", record, writes, by_element=True)
