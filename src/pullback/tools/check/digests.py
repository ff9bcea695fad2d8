"""Digests of what ops give for data that is the same everywhere, to compare machines by.

The data are integers of a seeded generator times powers of two, so that nothing of it depends on
how a machine computes a logarithm; what a backward is given of its forward comes from the forward's
own kernel. NaNs count as one, since which of their bits a machine keeps is its own affair.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...core.declare import Op
from ..case import Case, cuts
from ..operands import make_operands

# More than one block of a sum, and a ragged end; and rows down columns.
ROWS, COLUMNS = (3, 5003), (70, 37)
TABLE, SEGMENTS = (160, 7), 19
PUBLISHED = Path(__file__).with_name("digests.json")

Digests = dict[str, dict[str, str]]


def exact_numbers(case: Case, name: str, rng: np.random.Generator) -> np.ndarray:
    """Numbers of either sign over six powers of two; factors of a product stay near 1."""
    shape = case.shape_of(name)
    whole = rng.integers(-(2**20), 2**20, shape).astype(np.float64)
    power = rng.integers(-22, -16, shape)
    if case.has_products and case.op.direction == "forward":
        return np.where(whole < 0, -1.0, 1.0) * (1.0 + whole * 2.0**-26)
    return np.ldexp(whole, power)


def cases(op: Op, element: str) -> list[Case]:
    """Along the last axis and, in float32, the first."""
    if cuts(op):
        return [Case.of(op, element, TABLE, segments=SEGMENTS)]
    found = [Case.of(op, element, ROWS, axis=-1)]
    if element == "f32" and op.parameter("axis") is not None:
        found.append(Case.of(op, element, COLUMNS, axis=0))
    return found


def digest(op: Op, element: str) -> str:
    """The first 16 digits of the SHA-256 of all results."""
    held = hashlib.sha256()
    for case in cases(op, element):
        with np.errstate(all="ignore"):
            results = case.results(make_operands(case, draw=exact_numbers))
        for name, array in results.items():
            held.update(f"{name} {array.dtype.name} {array.shape}".encode())
            held.update(_plain_bytes(array))
    return held.hexdigest()[:16]


def _plain_bytes(array: np.ndarray) -> bytes:
    """Little-endian bytes with one NaN for all."""
    plain = np.where(np.isnan(array), array.dtype.type(np.nan), array).astype(array.dtype)
    bits = plain.view(f"u{plain.dtype.itemsize}")
    return bits.astype(bits.dtype.newbyteorder("<")).tobytes()


def digests(
    ops: Iterable[Op],
    dtypes: Iterable[str],
    progress: Callable[[str, str, Any], None] | None = None,
) -> Digests:
    """Digests by op and element type."""
    kinds = tuple(dtypes)
    found: Digests = {}
    for op in ops:
        for element in kinds:
            if element in op.dtypes:
                if progress:
                    progress(op.name, element, None)
                found.setdefault(op.name, {})[element] = digest(op, element)
                if progress:
                    progress(op.name, element, {})
    return found


def published() -> Digests:
    """Those that the documentation shows."""
    if not PUBLISHED.exists():
        return {}
    held: Digests = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    return held


def differing(found: Mapping[str, Mapping[str, str]], known: Digests) -> list[tuple[str, str]]:
    """Ops and types whose digest is another than a known one."""
    return [
        (op, element)
        for op, row in found.items()
        for element, value in row.items()
        if known.get(op, {}).get(element, value) != value
    ]
