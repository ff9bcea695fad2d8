"""A descriptor turned into what a backend runs: the op, its operands and their shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..formulas.record import Formula
from .catalog import Op


@dataclass(frozen=True)
class Problem:
    """Everything about a call but memory.

    Attributes
    ----------
    op, ties
        The op and, where ties matter, their policy.
    element
        Storage type of the operands.
    shape
        Shape of the full operands.
    axes
        The op's axes, ascending. A pointwise op has all of them.
    reverse, correction, weight
        Parameters of scans, of var and std, and of lerp.
    """

    op: Op
    ties: str | None
    element: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    reverse: bool = False
    correction: float = 1.0
    weight: float = 0.0

    @property
    def extent(self) -> int:
        """Elements along the axes."""
        return math.prod(self.shape[a] for a in self.axes)

    @property
    def numel(self) -> int:
        """Elements of a full operand."""
        return math.prod(self.shape)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape with the axes kept at length 1."""
        return tuple(1 if d in self.axes else n for d, n in enumerate(self.shape))

    @property
    def formula(self) -> Formula:
        """The formula record."""
        return self.op.record(self.ties)

    @property
    def writes_rows(self) -> bool:
        """Whether outputs have one element for each row."""
        return self.op.family == "reduce" and self.op.direction == "forward"

    def shape_of(self, operand: str) -> tuple[int, ...]:
        """Shape an operand must have."""
        if operand in self.op.row or (operand in self.op.outputs and self.writes_rows):
            return self.row_shape
        return self.shape


@dataclass(frozen=True)
class SegmentProblem:
    """A segment sum or its backward, but for memory and the type of the ids."""

    op: Op
    element: str
    num_inputs: int
    embedding_dim: int
    num_segments: int
    is_sorted: bool
    drops: bool

    @property
    def formula(self) -> Formula:
        """The formula record."""
        return self.op.record()

    def shape_of(self, operand: str) -> tuple[int, ...]:
        """Shape an operand must have."""
        if operand == "segment_ids":
            return (self.num_inputs,)
        if operand in ("input", "d_input"):
            return (self.num_inputs, self.embedding_dim)
        return (self.num_segments, self.embedding_dim)
