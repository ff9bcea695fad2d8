"""Operands by kind of data: the edges that the docs name, and ordinary numbers."""

from __future__ import annotations

import zlib

import numpy as np

from cells import Cell
from pullback.oracle import round_to

INF, NAN = np.inf, np.nan

# Exponents of "wide" data. The sums of exp are evaluated for |x| up to 2**9.
EXPONENTS = {"f64": 200, "f32": 30, "f16": 6, "bf16": 30}
LARGEST = {"f64": 2.0**1020, "f32": 2.0**126, "f16": 2.0**14, "bf16": 2.0**126}
SMALLEST = {"f64": 2.0**-1074, "f32": 2.0**-149, "f16": 2.0**-24, "bf16": 2.0**-133}
EXPONENTIAL = ("logcumsumexp", "logsumexp", "softmax", "log_softmax")

KINDS = (
    "normal", "wide", "one zero", "zeros", "all zero", "ties", "equal", "tiny", "huge",
    "infinite", "nan", "minus inf prefix",
)  # fmt: skip


def rng_for(cell: Cell, kind: str) -> np.random.Generator:
    """The same numbers in every process and for every layout and parameter of a cell."""
    return np.random.default_rng(zlib.crc32(f"{cell.op.kind} {cell.shape} {kind}".encode()))


def _rows_last(array: np.ndarray, cell: Cell) -> np.ndarray:
    """The elements as (rows, extent); a copy."""
    kept = [a for a in range(array.ndim) if a not in cell.axes]
    return array.transpose(*kept, *cell.axes).reshape(-1, cell.extent)


def _from_rows(rows: np.ndarray, cell: Cell) -> np.ndarray:
    kept = [a for a in range(len(cell.shape)) if a not in cell.axes]
    order = [*kept, *cell.axes]
    shaped = rows.reshape([cell.shape[a] for a in order])
    return shaped.transpose(np.argsort(order)) if order else shaped


def values(cell: Cell, kind: str, rng: np.random.Generator, shape=None) -> np.ndarray:
    """Numbers for x, a, b or input, as float64 that the element type holds."""
    shape = cell.shape if shape is None else shape
    x = rng.standard_normal(shape)
    exponential = cell.op.kind in EXPONENTIAL
    if kind == "wide":
        top = 9 if exponential else EXPONENTS[cell.element]
        x = np.sign(x) * 2.0 ** rng.uniform(-min(2 * top, 200), top, shape)
    elif kind == "ties":
        x = rng.integers(-2, 3, shape).astype(float)
    elif kind == "all zero":
        x = np.zeros(shape)
    elif kind == "equal":
        x = np.full(shape, 0.1)
    elif kind == "tiny":
        x = rng.integers(-9, 10, shape) * SMALLEST[cell.element]
    elif kind == "huge":
        top = min(LARGEST[cell.element], 2.0**60) if exponential else LARGEST[cell.element]
        x = np.sign(x) * top * rng.uniform(0.5, 1.0, shape)
    x = np.asarray(x).astype(cell.dtype).astype(np.float64)
    special = ("one zero", "zeros", "infinite", "nan", "minus inf prefix")
    if kind in special and x.size and shape == cell.shape:
        rows = _rows_last(x, cell).copy()
        _put_specials(rows, kind, rng)
        x = _from_rows(rows, cell)
    return x


def _put_specials(rows: np.ndarray, kind: str, rng: np.random.Generator) -> None:
    n = rows.shape[1]
    for r, row in enumerate(rows):
        some = rng.integers(0, n, 3)
        if kind == "one zero":
            row[some[0]] = 0.0
        elif kind == "zeros":
            row[some] = 0.0
        elif kind == "nan":
            row[some[: 1 + r % 2]] = NAN
        elif kind == "infinite":
            # Rows of +inf alone, of -inf alone, and of both.
            row[some[0]] = (INF, -INF, INF)[r % 3]
            if r % 3 == 2:
                row[some[1]] = -INF
        else:
            row[: min(n, (0, 1, 3, n)[r % 4])] = -INF


def ids_for(cell: Cell, rng: np.random.Generator, kind: str) -> np.ndarray:
    """Segment ids, int32 or int64 by kind of data; some segments stay empty."""
    low, high = 0, cell.num_segments
    if cell.out_of_range == "drop":
        low, high = -2, cell.num_segments + 2
    ids = rng.integers(low, max(high, low + 1), cell.shape[0])
    if kind == "ties":
        ids[ids == 1] = 0
    ids = np.sort(ids) if cell.is_sorted else ids
    return ids.astype(np.int32 if len(kind) % 2 else np.int64)


def operands(cell: Cell, kind: str) -> dict[str, np.ndarray]:
    """All inputs of a cell, in C order. y is the exact forward, rounded once."""
    op, dtype, rng = cell.op, cell.dtype, rng_for(cell, kind)
    if op.family == "segment":
        name = "input" if op.direction == "forward" else "d_output"
        shape = cell.shape_of(name)
        x = values(cell, kind, rng, shape)
        return {name: x.astype(dtype), "segment_ids": ids_for(cell, rng, kind)}
    if op.direction == "forward":
        return {n: values(cell, kind, rng).astype(dtype) for n in op.inputs}
    x = values(cell, kind, rng).astype(dtype)
    dy = rng.standard_normal(cell.shape_of("dy"))
    if kind == "ties":
        dy = rng.integers(-2, 3, cell.shape_of("dy")).astype(float)
    elif kind in ("infinite", "wide") and op.kind in ("cumprod", "prod"):
        # inf times a sum that cancels is nan or inf, depending on where the product is taken.
        x, dy = np.abs(x), np.abs(dy)
    made = {"dy": np.asarray(dy).astype(dtype)}
    if "x" in op.needs or "y" in op.needs:
        forward = cell.forward()
        made["x"] = x
        if cell.extent:
            made["y"] = round_to(forward.exact({"x": x})["y"].value, cell.element)
        else:  # max and min of nothing have no value; nothing is read
            made["y"] = np.zeros(cell.shape_of("y"), dtype)
    return {n: made[n] for n in op.inputs}
