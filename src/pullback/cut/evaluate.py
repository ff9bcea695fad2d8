"""A cut op in one process: the order in which the functions of the engine are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.declare import Role
from .engine import Cut, Piece
from .segments import SegmentCut

Array = np.ndarray[Any, Any]
Results = tuple[list[dict[str, Array]], dict[str, Array]]


def evaluate(cut: Cut | SegmentCut, pieces: Sequence[Piece]) -> Results:
    """The outputs of every piece by name, and those with one element for each row or segment.

    Pieces come in the order of memory, on the grid, and cover the rows.

    Examples
    --------
    >>> import numpy as np
    >>> from pullback.core.catalog import OPS
    >>> from pullback.core.problem import describe
    >>> x = np.ones(1000)
    >>> cut = Cut(describe(OPS["cumsum"], "f64", x.shape, {}))
    >>> pieces = [Piece({"x": x[:512]}), Piece({"x": x[512:]}, start=512)]
    >>> (first, second), _ = evaluate(cut, pieces)
    >>> first["y"][-1], second["y"][0]
    (np.float64(512.0), np.float64(513.0))
    """
    rows = {o.name: pieces[0].operands[o.name] for o in cut.reads if o.role is Role.ROW}
    if isinstance(cut, SegmentCut):
        return _segments(cut, pieces, rows)
    cut.check_rows(rows)
    forward = range(len(pieces))
    batch, _ = cut.rows_of(pieces[0])
    known: list[list[Array]] = [[] for _ in pieces]
    made: list[list[Array]] = [[] for _ in pieces]
    behind = []
    for k, sweep in enumerate(cut.sweeps):
        summaries = [cut.summary(k, p, known[i], made[i]) for i, p in enumerate(pieces)]
        state = cut.begin(k, batch, rows)
        fronts: dict[int, Array] = {}
        for i in forward if sweep.forward else reversed(forward):
            fronts[i] = state
            state = cut.combine(k, state, summaries[i])
        behind.append(state)
        for i in forward:
            known[i].append(state if sweep.whole else fronts[i])
            made[i].append(summaries[i])
    outputs = [cut.apply(p, s) for p, s in zip(pieces, known, strict=True)]
    return outputs, cut.finish(behind, rows)


def _segments(cut: SegmentCut, pieces: Sequence[Piece], rows: dict[str, Array]) -> Results:
    known: list[Array] = []
    fronts: list[Array | None] = [None] * len(pieces)
    for k in range(len(cut.sweeps)):
        state = cut.begin(k, cut.columns_of(pieces[0]))
        for i, piece in enumerate(pieces):
            if k == 0 and cut.keeps_fronts:
                fronts[i] = state
            state = cut.fold(k, piece, known, state, fronts[i])
        known.append(state)
    outputs = [cut.apply(p, known, f) for p, f in zip(pieces, fronts, strict=True)]
    return outputs, cut.finish(known, rows)
