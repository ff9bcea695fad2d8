"""The kernels of a cut op, compiled before there are pieces that wait for each other."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from ..core.problem import Problem
from .engine import Cut, Piece
from .evaluate import evaluate
from .layout import to_rows
from .segments import SegmentCut

_FEW = 32
# Rows of so many elements are cut over threads, which other kernels do.
_LONG = 1 << 20


@lru_cache(1024)
def warm(problem: Problem, dtypes: tuple[tuple[str, str], ...]) -> None:
    """Run an op on one piece of few rows; ``dtypes`` are those of the operands, by name."""
    segments = None if problem.segments is None else min(problem.segments, _FEW)
    shape = [min(n, _FEW) for n in problem.shape]
    if not problem.is_segmented and len(problem.axes) == 1:
        (axis,) = problem.axes
        shape = [1 if n == 1 else min(n, 2) for n in shape]
        shape[axis] = min(problem.shape[axis], _LONG)
    small = replace(problem, shape=tuple(shape), segments=segments)
    if 0 in small.shape:
        return
    tiny = {n: np.zeros(small.shape_of(n), dtype) for n, dtype in dtypes}
    if small.is_segmented:
        evaluate(SegmentCut(small), [Piece(tiny, length=small.shape[0])])
        return
    rows = {n: to_rows(small, n, a) for n, a in tiny.items()}
    evaluate(Cut(small), [Piece(rows, length=small.extent)])
