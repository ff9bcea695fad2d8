"""A segment op on a table whose rows are cut into pieces.

The rows of a segment are folded one after the other, and so the states of all segments travel from
piece to piece: a piece goes on from the states in front of it. What follows the folds needs no
order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from ..core.declare import Op, Operand, Role, Type
from ..core.elements import ELEMENTS
from ..core.problem import Problem
from ..errors import InvalidProblemError
from ..formulas.record import RowFormula, names_read
from ..memory.view import output_view, view
from . import records
from .engine import Piece, runnable_of
from .records import COUNT_BEFORE, IN_FRONT, carried

Array = np.ndarray[Any, Any]


class SegmentCut:
    """A segment op on a table that is cut into pieces of rows.

    Operands of a piece are (rows, columns) with an element for every position, (segments, columns)
    with one for each segment; ids are those of its rows, offsets those of the whole table. States
    are (segments, columns, components).

    Parameters
    ----------
    problem
        The op on the whole table.

    Attributes
    ----------
    sweeps
        The folds over the rows, in the order they run.
    reads
        The operands that the formula looks at, and what cuts the rows.
    keeps_fronts
        Whether :meth:`fold` and :meth:`apply` ask for the first sweep's states in front of a piece.
    """

    def __init__(self, problem: Problem):
        formula = problem.formula
        if not problem.is_segmented or not isinstance(formula, RowFormula):
            raise InvalidProblemError(f"{problem.op.name}: expected an op on segments")
        self.problem, self.formula = problem, formula
        self.sweeps = records.segment_sweeps(formula)
        self.keeps_fronts = bool({"index", "first"} & names_read(formula))
        self._dtype = ELEMENTS[problem.element].dtype
        self._by = problem.cut_by
        tables = (*problem.used(Role.ELEMENT), *problem.used(Role.ROW))
        self.reads = tuple(o for o in problem.reads if o in tables or o is self._by)

    @cached_property
    def _folds(self) -> tuple[Op, ...]:
        made = []
        for k, sweep in enumerate(self.sweeps):
            record = records.segment_fold_record(self.formula, k)
            states = tuple(Operand(n, Role.ROW, Type.STATE) for n in sweep.monoid.state)
            made.append(records.part_of(self.problem, "cut-segments", record, states))
        return tuple(made)

    @cached_property
    def _apply(self) -> Op:
        record = records.segment_apply_record(self.formula)
        writes = tuple(o for o in self.problem.writes if o.role is Role.ELEMENT)
        return records.part_of(self.problem, "cut-segments-apply", record, writes)

    @cached_property
    def _finish(self) -> Op | None:
        record = records.segment_finish_record(self.formula)
        if record is None:
            return None
        rows = [o for o in self.problem.writes if o.role is Role.ROW]
        writes = tuple(replace(o, role=Role.ELEMENT) for o in rows)
        return records.part_of(self.problem, "cut-finish", record, writes, by_element=True)

    def _run(self, op: Op, shape: tuple[int, ...], arrays: Mapping[str, Array]) -> None:
        if 0 in shape:
            return
        problem, cut = self.problem, any(o.role in (Role.IDS, Role.OFFSETS) for o in op.reads)
        data = tuple((n, v) for n, v in problem.constants.items() if n in op.data)
        made = Problem(
            op,
            problem.element,
            shape,
            (0,) if cut else (0, 1),
            (),
            False,
            data,
            problem.num_segments if cut else None,
            problem.is_sorted and cut,
            problem.drops and cut,
            precision="tight",
        )
        runnable = runnable_of(made)
        views = {o.name: view(arrays[o.name], o.name) for o in op.reads}
        views |= {o.name: output_view(arrays[o.name], o.name) for o in op.writes}
        runnable.check(views)
        if cut:
            runnable.check_values(views)
        runnable.execute(views, 0, 0, runnable.threads())

    def _arrays(
        self, piece: Piece, states: Sequence[Array], front: Array | None
    ) -> dict[str, Array]:
        found = {o.symbol: piece.operands[o.name] for o in self.reads}
        for k, (sweep, state) in enumerate(zip(self.sweeps, states, strict=False)):
            for j, name in enumerate(carried(k, sweep.monoid)):
                found[name] = state[..., j]
        if front is not None:
            found[COUNT_BEFORE] = front[..., 0]
        cut = found[self._by.symbol]
        if self._by.role is Role.OFFSETS:
            rows = self.rows_of(piece)
            found[self._by.symbol] = np.clip(cut - piece.start, 0, rows).astype(cut.dtype)
        elif self.problem.is_sorted and len(cut) and self._by.name in piece.before:
            last = int(np.asarray(piece.before[self._by.name]))
            if int(cut[0]) < last:
                raise InvalidProblemError(
                    f"{self._by.name}: expected ids in ascending order for a sorted plan, got "
                    f"{int(cut[0])} after {last} at row {piece.start}"
                )
        return found

    def rows_of(self, piece: Piece) -> int:
        """How many rows a piece has."""
        if self._by.role is Role.IDS:
            return len(piece.operands[self._by.name])
        for o in self.reads:
            if o.role is Role.ELEMENT:
                return len(piece.operands[o.name])
        return piece.length

    def columns_of(self, piece: Piece) -> int:
        """How many columns a piece has."""
        tables = (o.name for o in self.reads if o is not self._by)
        return int(piece.operands[next(tables)].shape[1])

    def begin(self, sweep: int, columns: int) -> Array:
        """The states of segments in front of all rows."""
        step = self.sweeps[sweep]
        planes = np.empty((len(step.monoid.state), self.problem.num_segments, columns))
        planes[...] = np.array(step.identity)[:, None, None]
        return np.moveaxis(planes, 0, -1)

    def fold(
        self,
        sweep: int,
        piece: Piece,
        states: Sequence[Array],
        carry: Array,
        front: Array | None = None,
    ) -> Array:
        """The states of segments behind a piece, of those in front of it.

        Parameters
        ----------
        sweep
            Which one.
        piece
            The piece.
        states
            The states behind all rows, of the sweeps before this one.
        carry
            This sweep's states in front of the piece.
        front
            Where ``keeps_fronts``, those of the first sweep in front of the piece.
        """
        step, rows, columns = self.sweeps[sweep], self.rows_of(piece), self.columns_of(piece)
        if not rows:
            return carry
        arrays = self._arrays(piece, states, front)
        names = step.monoid.state
        for j, name in enumerate(names):
            arrays[name + IN_FRONT] = carry[..., j]
        planes = np.empty((len(names), self.problem.num_segments, columns))
        arrays |= dict(zip(names, planes, strict=True))
        self._run(self._folds[sweep], (rows, columns), arrays)
        return np.moveaxis(planes, 0, -1)

    def apply(
        self,
        piece: Piece,
        states: Sequence[Array],
        front: Array | None = None,
        out: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]:
        """The outputs with an element for every position of a piece, by name.

        Parameters
        ----------
        piece
            The piece.
        states
            Of every sweep, the states behind all rows.
        front
            Where ``keeps_fronts``, those of the first sweep in front of the piece.
        out
            Where to write them; new arrays otherwise.
        """
        if self.formula.apply is None:
            return {}
        shape = (self.rows_of(piece), self.columns_of(piece))
        arrays = self._arrays(piece, states, front)
        results = {}
        for o in self._apply.writes:
            given = out.get(o.name) if out else None
            results[o.name] = np.empty(shape, self._dtype) if given is None else given
        self._run(self._apply, shape, arrays | results)
        return results

    def finish(self, states: Sequence[Array], rows: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs with a row for each segment, by name, of the states behind all rows."""
        op = self._finish
        if op is None:
            return {}
        shape = states[0].shape[:-1]
        arrays = {self.problem.op.operand(n).symbol: a for n, a in rows.items()}
        for k, (sweep, state) in enumerate(zip(self.sweeps, states, strict=True)):
            for j, name in enumerate(carried(k, sweep.monoid)):
                arrays[name] = state[..., j]
        results = {o.name: np.empty(shape, self._dtype) for o in op.writes}
        self._run(op, shape, arrays | results)
        return results
