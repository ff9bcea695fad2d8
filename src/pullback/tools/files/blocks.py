"""How a case is cut into blocks along its independent dimensions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.declare import Role
from ...formulas.record import RowFormula
from ..case import Case

# The least width of a block across memory, in bytes: narrower ones would touch each page again.
NARROWEST = 1 << 14


@dataclass(frozen=True)
class Cut:
    """The lengths of a block along every dimension, and whether one fits into the budget."""

    shape: tuple[int, ...]
    block: tuple[int, ...]
    fits: bool

    @property
    def count(self) -> int:
        """Number of blocks."""
        pairs = zip(self.shape, self.block, strict=True)
        return math.prod(-(-n // b) for n, b in pairs if b)

    def slices(self) -> Iterator[tuple[slice, ...]]:
        """Blocks in memory order."""
        ranges = [
            [slice(k, min(k + b, n)) for k in range(0, n, b)] if n else [slice(0, 0)]
            for n, b in zip(self.shape, self.block, strict=True)
        ]
        return itertools.product(*ranges)


def free_dimensions(case: Case) -> list[int]:
    """Dimensions along which results do not depend on each other."""
    if case.is_segmented:
        return [0] if gathers(case) else []
    axes = () if case.is_pointwise else case.axes
    return [k for k in range(len(case.shape)) if k not in axes]


def gathers(case: Case) -> bool:
    """Whether a segment op gives every row a copy of that of its segment."""
    formula = case.formula
    by_ids = all(case.role(n) in (Role.ROW, Role.IDS) for n in case.reads)
    return case.is_segmented and by_ids and isinstance(formula, RowFormula) and formula.copies


def folds(case: Case) -> bool:
    """Whether a segment op makes rows of segments out of one table and its ids, and no more."""
    roles = sorted(case.role(n).value for n in case.reads)
    results = all(case.role(n) is Role.ROW for n in case.outputs)
    return case.is_segmented and roles == ["element", "ids"] and results


def cut(
    case: Case,
    strides: Sequence[int],
    bytes_each: float,
    budget: int,
    narrowest: int | None = None,
    grain: Sequence[int] = (),
) -> Cut:
    """Blocks of at most ``budget`` bytes, as far as the independent dimensions allow.

    Parameters
    ----------
    strides
        Of an operand of the full shape; they tell which dimensions lie outside.
    bytes_each
        Bytes of all operands for one element of the full shape.
    narrowest
        The least width of a block across memory, in bytes; ``NARROWEST`` if None.
    grain
        Lengths of what is read as one: blocks end there where that leaves anything of them.
    """
    narrowest = NARROWEST if narrowest is None else narrowest
    block = list(case.shape)
    order = sorted(free_dimensions(case), key=lambda k: -abs(strides[k]))
    for k in order:
        size = math.prod(block) * bytes_each
        if size <= budget:
            break
        inside = [abs(strides[d]) for d in range(len(block)) if d != k and block[d] > 1]
        across = any(step > abs(strides[k]) for step in inside)
        least = max(1, narrowest // max(1, abs(strides[k]))) if across else 1
        wanted = max(least, int(block[k] * budget / size))
        if across:
            wanted = wanted // least * least
        if grain and wanted > grain[k]:
            wanted = wanted // grain[k] * grain[k]
        block[k] = max(1, min(block[k], wanted))
    fits = math.prod(block) * bytes_each <= budget
    return Cut(case.shape, tuple(max(1, b) for b in block), fits)


def restored_cut(state: Mapping[str, Any], case: Case) -> Cut | None:
    """A cut from a note, or None where that is no cut of the case."""
    if set(state) != {"shape", "block", "fits"} or state["shape"] != list(case.shape):
        return None
    block, fits = state["block"], state["fits"]
    if not isinstance(block, list) or len(block) != len(case.shape) or type(fits) is not bool:
        return None
    free = free_dimensions(case)
    for k, (n, b) in enumerate(zip(case.shape, block, strict=True)):
        whole = max(1, n)
        if type(b) is not int or not 1 <= b <= whole or (b < whole and k not in free):
            return None
    return Cut(case.shape, tuple(block), fits)


def chunks(array: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Parts of about ``size`` bytes, in the order in which the array lies in memory."""
    if not array.ndim or not array.size:
        yield array
        return
    outer = max(range(array.ndim), key=lambda k: array.strides[k] * (array.shape[k] > 1))
    length = array.shape[outer]
    step = max(1, size * length // array.nbytes)
    for start in range(0, length, step):
        index = (*[slice(None)] * outer, slice(start, start + step))
        part = array[index]
        if part.nbytes > size and length > 1:
            yield from chunks(part, size)
        else:
            yield part


def piece(array: np.ndarray, where: Sequence[slice]) -> np.ndarray:
    """The part of an operand that belongs to a block; length-1 dimensions stay whole."""
    pairs = zip(array.shape, where, strict=True)
    index: list[Any] = [slice(None) if n == 1 else part for n, part in pairs]
    index.append(...)  # keeps an array without dimensions an array
    found: np.ndarray = array[tuple(index)]
    return found


def pieces(
    case: Case, arrays: Mapping[str, np.ndarray], where: Sequence[slice]
) -> dict[str, np.ndarray]:
    """The operands of a block; a gather reads its whole table."""
    if case.is_segmented:
        rows = where[0]
        return {n: a if case.role(n) is Role.ROW else a[rows] for n, a in arrays.items()}
    return {n: piece(a, where) for n, a in arrays.items()}
