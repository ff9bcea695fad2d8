"""Operands by kind of data: the edges that the docs name, and ordinary numbers."""

from __future__ import annotations

import zlib

import numpy as np

from pullback.core.declare import Role
from pullback.formulas.record import RowFormula
from pullback.tools.case import Case
from pullback.tools.operands import exactly, make_operands

INF, NAN = np.inf, np.nan

# Exponents of "wide" data. The sums of exp are evaluated for |x| up to 2**9.
EXPONENTS = {"f64": 200, "f32": 30, "f16": 6, "bf16": 30}
LARGEST = {"f64": 2.0**1020, "f32": 2.0**126, "f16": 2.0**14, "bf16": 2.0**126}
SMALLEST = {"f64": 2.0**-1074, "f32": 2.0**-149, "f16": 2.0**-24, "bf16": 2.0**-133}

KINDS = (
    "normal", "wide", "one zero", "zeros", "all zero", "ties", "equal", "tiny", "huge",
    "infinite", "nan", "minus inf prefix",
)  # fmt: skip


def seed_for(case: Case, kind: str) -> int:
    """The same numbers in every process and for every layout and parameter of a case."""
    return zlib.crc32(f"{case.op.kind} {case.shape} {kind}".encode())


def _rows_last(array: np.ndarray, case: Case) -> np.ndarray:
    """The elements as (rows, extent); a copy."""
    kept = [a for a in range(array.ndim) if a not in case.axes]
    return array.transpose(*kept, *case.axes).reshape(-1, case.extent)


def _from_rows(rows: np.ndarray, case: Case) -> np.ndarray:
    kept = [a for a in range(len(case.shape)) if a not in case.axes]
    order = [*kept, *case.axes]
    shaped = rows.reshape([case.shape[a] for a in order])
    return shaped.transpose(np.argsort(order)) if order else shaped


def values(
    case: Case, kind: str, rng: np.random.Generator, shape: tuple[int, ...] | None = None
) -> np.ndarray:
    """Numbers of a kind, as float64 that the element type holds."""
    shape = case.shape if shape is None else shape
    x = rng.standard_normal(shape)
    exponential = case.has_exponentials
    if kind == "wide":
        top = 9 if exponential else EXPONENTS[case.element]
        x = np.sign(x) * 2.0 ** rng.uniform(-min(2 * top, 200), top, shape)
    elif kind == "ties":
        x = rng.integers(-2, 3, shape).astype(float)
    elif kind == "all zero":
        x = np.zeros(shape)
    elif kind == "equal":
        x = np.full(shape, 0.1)
    elif kind == "tiny":
        x = rng.integers(-9, 10, shape) * SMALLEST[case.element]
    elif kind == "huge":
        top = min(LARGEST[case.element], 2.0**60) if exponential else LARGEST[case.element]
        x = np.sign(x) * top * rng.uniform(0.5, 1.0, shape)
    x = np.asarray(x).astype(case.dtype).astype(np.float64)
    special = ("one zero", "zeros", "infinite", "nan", "minus inf prefix")
    if kind in special and x.size and shape == case.shape:
        rows = _rows_last(x, case).copy()
        _put_specials(rows, kind, rng)
        x = _from_rows(rows, case)
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


def _gradient(case: Case, name: str, kind: str, rng: np.random.Generator) -> np.ndarray:
    """A gradient by an output of the forward; one that is only moved may hold anything."""
    shape = case.shape_of(name)
    if isinstance(case.formula, RowFormula) and case.formula.copies:
        return values(case, kind, rng, shape)
    if kind == "ties":
        return rng.integers(-2, 3, shape).astype(float)
    return rng.standard_normal(shape)


def operands(case: Case, kind: str) -> dict[str, np.ndarray]:
    """All inputs of a case, in C order. What the forward saves is exact, rounded once."""

    def draw(one: Case, name: str, rng: np.random.Generator) -> np.ndarray:
        if name in one.cotangents:
            x = _gradient(one, name, kind, rng)
        elif one.role(name) is Role.ELEMENT:
            x = values(one, kind, rng)
        else:  # a state
            x = rng.standard_normal(one.shape_of(name))
        # inf times a sum that cancels is nan or inf, depending on where the product is taken.
        one_sign = kind in ("infinite", "wide") and case.has_products
        return np.abs(x) if one_sign and case.op.direction == "backward" else x

    made = make_operands(case, seed_for(case, kind), draw, exactly)
    narrow = np.int32 if len(kind) % 2 else np.int64
    return {n: a.astype(narrow) if a.dtype == np.int64 else a for n, a in made.items()}
