"""Parts of a row: the elements that a mask lets in, the runs that marks cut it into, all but one.

An op with a mask is the op on a shorter row. One that is cut into runs is the op on each of them.
An exclusive scan is the scan moved by one place, so that no element meets itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .special import ZERO, Term
from .table import Definition

Rows = Mapping[str, Any]


def stretched(marks: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A mask as Python bools, in the shape of the elements that it speaks of."""
    return np.broadcast_to(np.asarray(marks, dtype=bool), shape).astype(object)


@dataclass(frozen=True)
class Masked(Definition):
    """The same op on the elements where ``where`` holds, with ``outside`` in all other places.

    ``empty`` is the value for a row of which nothing is let in, where the op itself has none.
    """

    outside: Term = ZERO
    empty: Term | None = None

    def call(
        self, rows: Rows, options: Mapping[str, Any], extent: int | None = None
    ) -> list[list[Any]]:
        let_in = [bool(m) for m in rows["where"]]
        given = {
            name: row
            if name in self.per_row
            else [v for v, m in zip(row, let_in, strict=True) if m]
            for name, row in rows.items()
            if name != "where"
        }
        if self.empty is not None and not any(let_in):
            return [[self.empty] for _ in self.outputs]
        found = super().call(given, options, extent)
        return [
            row if name in self.per_row else self._put_back(row, let_in)
            for name, row in zip(self.outputs, found, strict=True)
        ]

    def _put_back(self, row: list[Any], let_in: list[bool]) -> list[Any]:
        left = iter(row)
        return [next(left) if m else self.outside for m in let_in]


def masked(definition: Definition, outside: Term = ZERO, empty: Term | None = None) -> Masked:
    """The definition for rows that come with ``where``."""
    return Masked(**_fields(definition), outside=outside, empty=empty)


@dataclass(frozen=True)
class InRuns(Definition):
    """The same scan on every run. Rows come in the order of the scan, with their ``resets``.

    A mark stands behind its border in memory order; ``backwards`` says that the scan comes to that
    side of the border first. ``first`` is what an exclusive scan begins with; None: not exclusive.
    """

    backwards: bool = False
    exclusive: bool = False
    first: Term | None = None

    def call(
        self, rows: Rows, options: Mapping[str, Any], extent: int | None = None
    ) -> list[list[Any]]:
        given = {name: row for name, row in rows.items() if name != "resets"}
        length = len(next(iter(given.values())))
        marks = [bool(m) for m in rows.get("resets", [False] * length)]
        begins = [False, *marks[:-1]] if self.backwards else marks
        starts = [0, *(j for j in range(1, length) if begins[j])]
        found: list[list[Any]] = [[] for _ in self.outputs]
        for start, stop in zip(starts, [*starts[1:], length], strict=True):
            run = {name: row[start:stop] for name, row in given.items()}
            for items, row in zip(found, self._of_run(run, options), strict=True):
                items.extend(row)
        return found

    def _of_run(self, run: Rows, options: Mapping[str, Any]) -> list[list[Any]]:
        if not self.exclusive:
            return super().call(run, options)
        if not next(iter(run.values())):
            return [[] for _ in self.outputs]
        if self.first is not None:
            (y,) = super().call({name: row[:-1] for name, row in run.items()}, options)
            return [[self.first, *y]]
        # The gradient: what comes out at j + 1 is made of what lies up to j.
        moved = {n: row[1:] if n in ("dy", "y") else row[:-1] for n, row in run.items()}
        (dx,) = super().call(moved, options)
        # What only zeros come to gets 0, as the last does, whatever lies before it.
        last = max((j for j, d in enumerate(moved["dy"]) if d.value != 0), default=-1)
        found = [ZERO if j > last else d for j, d in enumerate(dx)]
        return [[*found, ZERO]]


def in_runs(definition: Definition, backwards: bool, exclusive: bool, first: Term | None) -> InRuns:
    """The definition for rows that may come with ``resets``."""
    return InRuns(**_fields(definition), backwards=backwards, exclusive=exclusive, first=first)


def _fields(definition: Definition) -> dict[str, Any]:
    names = ("formula", "layout", "outputs", "bits", "per_row")
    return {name: getattr(definition, name) for name in names}


def marks_of(operands: Mapping[str, Any], extent: int) -> Any:
    """Marks along the axis from ``resets``, or from ``offsets``; None where there are neither."""
    if operands.get("offsets") is None:
        return operands.get("resets")
    marks = np.zeros(extent, dtype=bool)
    for start in operands["offsets"][:-1]:
        if start < extent:
            marks[start] = True
    return marks
