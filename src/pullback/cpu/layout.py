"""How a kernel walks memory: dimensions merged, and the lanes laid where most operands are packed.

All choices give the same bytes.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ..core.problem import Problem
from ..formulas.record import RowFormula, ScanFormula, is_pointwise
from ..memory.dimensions import merge
from .words import LANES

# Lanes lie along folded rows from this extent on, though it is less than the lanes are: columns of
# short packed rows would be read element by element (softmax of rows of 5 took 20 ms instead of 12;
# of rows of 3 about the same).
SHORTEST_FOLD = 4


class Walk(Enum):
    """Where the elements of neighbouring lanes lie."""

    PACKED = "packed"  # side by side
    FLIPPED = "flipped"  # side by side, the first one last
    STRIDED = "strided"  # a stride apart
    BENT = "bent"  # along several dimensions, which do not merge


@dataclass(frozen=True)
class Schedule:
    """Which loop nest, and how it finds its elements."""

    walk: Walk
    columns: bool = False  # lanes lie across columns, not along the axis

    @property
    def is_packed(self) -> bool:
        return self.walk in (Walk.PACKED, Walk.FLIPPED)

    def __str__(self) -> str:
        return f"{self.walk.value}-{'columns' if self.columns else 'rows'}"


@dataclass
class Layout:
    """Dimensions after merging: the axis, the rest, and which way the lanes lie."""

    schedule: Schedule
    outer_sizes: list[int]
    outer_strides: list[list[int]]  # per operand
    axis_sizes: list[int]
    axis_strides: list[list[int]]
    columns: int = 0
    column_strides: list[int] | None = None

    def turn(self) -> list[int]:
        """Walk the axis from its end; how far each operand's end lies from its start."""
        offsets = []
        for strides in self.axis_strides:
            offsets.append((self.axis_sizes[0] - 1) * strides[0])
            strides[0] = -strides[0]
        return offsets

    def cut_axis(self, most: int) -> None:
        """Cut the axis into equal parts, at most so many; for a formula that has no order to keep.

        Threads that write columns beside each other in the same rows take lines from each other
        where a row goes on: the gradient of a sum of 512x1024 float32 took 65 microseconds on two
        threads, 19 on one, and takes 12 where they have rows of their own.
        """
        parts = next(n for n in range(most, 0, -1) if self.axis_sizes[0] % n == 0)
        size = self.axis_sizes[0] // parts
        self.outer_sizes = [*self.outer_sizes, parts]
        self.outer_strides = [
            [*outer, size * axis[0]]
            for outer, axis in zip(self.outer_strides, self.axis_strides, strict=True)
        ]
        self.axis_sizes = [size]

    def flip_lanes(self) -> None:
        """Load and store lanes the other way round where packed rows descend in memory."""
        if self.schedule == Schedule(Walk.PACKED) and self.axis_strides[0][0] < 0:
            self.schedule = replace(self.schedule, walk=Walk.FLIPPED)


def _packed(strides: Sequence[int], items: Sequence[int]) -> int:
    """How many operands would be read element by element with lanes along these strides."""
    return sum(abs(s) != item for s, item in zip(strides, items, strict=True))


def choose_layout(
    problem: Problem,
    strides: Sequence[Sequence[int]],
    items: Sequence[int],
    lanes: Sequence[int],
) -> Layout:
    """Split dimensions into axis and rest and decide which way the lanes lie.

    ``strides`` are per operand and dimension of the problem, ``items`` the sizes of the operands'
    elements; ``lanes`` are the operands that are walked along the lanes, the others are constant
    along the axis.
    """
    shape, axes = problem.shape, problem.axes
    per_operand = [list(s) for s in strides]
    pointwise = is_pointwise(problem.formula_in_doubles)
    outer = [d for d in range(len(shape)) if d not in axes]
    guide = per_operand[lanes[0]] if lanes else per_operand[-1]
    outer.sort(key=lambda d: -abs(guide[d]))
    outer_sizes, outer_strides = merge(
        [shape[d] for d in outer], [[s[d] for d in outer] for s in per_operand]
    )
    axis = list(axes)
    if pointwise:  # no order to keep: walk the axis as memory lies
        axis.sort(key=lambda d: -abs(per_operand[-1][d]))
    axis_sizes, axis_strides = merge(
        [shape[d] for d in axis], [[s[d] for d in axis] for s in per_operand]
    )
    if pointwise and len(axis_sizes) > 1:  # all but the innermost are independent rows
        outer_sizes = outer_sizes + axis_sizes[:-1]
        outer_strides = [o + a[:-1] for o, a in zip(outer_strides, axis_strides, strict=True)]
        axis_sizes, axis_strides = axis_sizes[-1:], [a[-1:] for a in axis_strides]
    if not axis_sizes:
        axis_sizes, axis_strides = [1], [[item] for item in items]
    if len(axis_sizes) > 1:
        return Layout(Schedule(Walk.BENT), outer_sizes, outer_strides, axis_sizes, axis_strides)
    # In elements: 1 where neighbours are neighbours in memory, -1 where they descend.
    along = [axis_strides[o][0] / items[o] for o in lanes]
    one_way = along.count(along[0]) == len(along) and abs(along[0]) == 1
    packed = one_way and (along[0] > 0 or isinstance(problem.formula_in_doubles, ScanFormula))
    rows = Layout(
        Schedule(Walk.PACKED if packed else Walk.STRIDED),
        outer_sizes,
        outer_strides,
        axis_sizes,
        axis_strides,
    )
    if not outer_sizes:
        return rows
    sizes = [items[o] for o in lanes]
    along_axis = _packed([axis_strides[o][0] for o in lanes], sizes)
    candidates = [
        (_packed([outer_strides[o][d] for o in lanes], sizes), -size, d)
        for d, size in enumerate(outer_sizes)
    ]
    across, negative_size, d = min(candidates)
    extent, width = axis_sizes[0], -negative_size
    folds = isinstance(problem.formula_in_doubles, RowFormula) and not pointwise
    shortest = SHORTEST_FOLD if folds else LANES
    if width < LANES or (extent >= shortest and along_axis <= across):
        return rows
    steps = [s[d] for s in outer_strides]
    side_by_side = all(map(operator.eq, steps, items))
    return Layout(
        Schedule(Walk.PACKED if side_by_side else Walk.STRIDED, columns=True),
        outer_sizes[:d] + outer_sizes[d + 1 :],
        [s[:d] + s[d + 1 :] for s in outer_strides],
        axis_sizes,
        axis_strides,
        width,
        steps,
    )
