"""Operands with the op's axes last and as one, and results the way the op gives them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..core.declare import Role
from ..core.problem import Problem

Array = np.ndarray[Any, Any]


def to_rows(problem: Problem, name: str, array: Array) -> Array:
    """An operand of a piece as :class:`.Piece` has it: a view, where its axes lie as one.

    One with an element for each row may have the op's axes at length 1 or not at all.
    """
    axes = problem.axes
    rank = len(problem.shape)
    if problem.op.operand(name).role is Role.ELEMENT:
        array = np.broadcast_to(array, np.broadcast_shapes(array.shape, (1,) * rank))
        kept = [d for d in range(rank) if d not in axes]
        shape = [array.shape[d] for d in kept]
        return array.transpose(*kept, *axes).reshape(  # type: ignore[no-any-return]
            *shape, math.prod(array.shape[a] for a in axes)
        )
    if array.ndim != rank or not axes:
        return array
    return array.reshape([array.shape[d] for d in range(rank) if d not in axes])


def from_rows(problem: Problem, name: str, array: Array, lengths: tuple[int, ...]) -> Array:
    """A result of a piece in the op's own shape, rows with their axes at length 1.

    ``lengths`` are those of the piece along the op's axes.
    """
    axes, rank = problem.axes, len(problem.shape)
    kept = [d for d in range(rank) if d not in axes]
    if problem.op.operand(name).role is Role.ROW:
        lengths = (1,) * len(axes)
        array = array[..., None]
    shape = (*array.shape[:-1], *lengths)
    order = [*kept, *axes]
    return array.reshape(shape).transpose(*np.argsort(order)) if order else array.reshape(())
