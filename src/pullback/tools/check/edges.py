"""Operands at the edges an op has rules for: zeros, ties, NaN, infinities."""

from __future__ import annotations

import numpy as np

from ...core.catalog import OPS
from ...core.declare import Role
from ..case import Case, monoids
from ..operands import exactly, make_operands

INF, NAN = np.inf, np.nan

Rows = list[list[float]]
PRODUCTS: Rows = [
    [2, 0, -3, 0.5, 4, 1.5],
    [2, 0, -3, 0, 4, 1.5],
    [0, 0, 0, 0, 0, 0],
    [0, 2, 3, -1, 1, 0.25],
]
EXPONENTIALS: Rows = [
    [-INF, -INF, 0, 1, -INF, 2],
    [-INF, -INF, -INF, -INF, -INF, -INF],
    [80, -80, 80, 0, -80, 80],
    [0, 0, 0, 0, 0, 0],
    [3, -INF, -INF, -INF, -INF, -INF],
]
EXTREMES: Rows = [
    [1, 3, 3, -2, 3, -2],
    [0, NAN, 5, NAN, -7, 5],
    [2, 2, 2, 2, 2, 2],
    [-INF, INF, INF, -INF, 0, 1],
]
ROOTS: Rows = [
    [0, 0, 0, 0, 0, 0],
    [2, 2, 2, 2, 2, 2],
    [0, 0, 0, 0, 0, 1],
    [-1, 1, -1, 1, -1, 1],
]


def _rows(case: Case) -> Rows | None:
    forward = case.forward() if case.pair_forward else case
    if case.has_products:
        return PRODUCTS
    if case.has_exponentials:
        return EXPONENTIALS
    if any(m.selects for m in monoids(forward.formula)):
        return EXTREMES
    return ROOTS if forward.calls("sqrt") else None


def edge_case(case: Case) -> tuple[Case, dict[str, np.ndarray]] | None:
    """A small case at the edges with its operands; None for an op without rules of its own."""
    rows = None if case.is_segmented or case.op.kind not in OPS else _rows(case)
    if rows is None:
        return None

    def draw(one: Case, name: str, rng: np.random.Generator) -> np.ndarray:
        if name in one.cotangents or one.role(name) is not Role.ELEMENT:
            shape = one.shape_of(name)
            return (np.arange(np.prod(shape)) % 7 - 2.5).reshape(shape)
        return np.array(rows, np.float64)

    small = case.but(shape=np.shape(rows), axis=-1)
    return small, make_operands(small, draw=draw, save=exactly)
