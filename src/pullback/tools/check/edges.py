"""Operands at the edges an op has rules for: zeros, ties, NaN, infinities."""

from __future__ import annotations

import numpy as np

from ...oracle import reference, round_to
from ..bench.case import Case
from ..bench.operands import dtype_of

INF, NAN = np.inf, np.nan

# Rows of x by kind; every row of a kind has the same length.
_ROWS: dict[tuple[str, ...], list[list[float]]] = {
    ("prod", "cumprod"): [
        [2, 0, -3, 0.5, 4, 1.5],
        [2, 0, -3, 0, 4, 1.5],
        [0, 0, 0, 0, 0, 0],
        [0, 2, 3, -1, 1, 0.25],
    ],
    ("max", "min", "cummax", "cummin"): [
        [1, 3, 3, -2, 3, -2],
        [0, NAN, 5, NAN, -7, 5],
        [2, 2, 2, 2, 2, 2],
        [-INF, INF, INF, -INF, 0, 1],
    ],
    ("logsumexp", "logcumsumexp"): [
        [-INF, -INF, 0, 1, -INF, 2],
        [-INF, -INF, -INF, -INF, -INF, -INF],
        [80, -80, 80, 0, -80, 80],
        [0, 0, 0, 0, 0, 0],
    ],
    ("softmax", "log_softmax"): [
        [-INF, 0, 1, -INF, 2, 0],
        [80, -80, 80, 0, -80, 80],
        [0, 0, 0, 0, 0, 0],
        [3, -INF, -INF, -INF, -INF, -INF],
    ],
    ("norm2", "std"): [
        [0, 0, 0, 0, 0, 0],
        [2, 2, 2, 2, 2, 2],
        [0, 0, 0, 0, 0, 1],
        [-1, 1, -1, 1, -1, 1],
    ],
}


def edge_case(case: Case) -> tuple[Case, dict[str, np.ndarray]] | None:
    """A small case at the edges with its operands; None for an op without rules of its own."""
    rows = next((r for kinds, r in _ROWS.items() if case.op.kind in kinds), None)
    if rows is None:
        return None
    dtype = dtype_of(case.element)
    x = np.array(rows, np.float64).astype(dtype)
    small = Case(case.op, case.element, x.shape, -1, ties=case.ties)
    made = {"x": x}
    if "y" in case.op.inputs:
        exact = reference(case.op.kind, {"x": x}, axis=-1)["y"]
        made["y"] = round_to(exact.value, case.element)
    if "dy" in case.op.inputs:
        steps = np.arange(np.prod(small.shape_of("dy"))) % 7 - 2.5
        made["dy"] = steps.reshape(small.shape_of("dy")).astype(dtype)
    return small, {n: made[n] for n in case.op.inputs}
