"""The table of definitions, and the one helper which maps a row formula over an array."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
from mpmath import mp, mpf

from .special import Term

# Bits of working precision. Sums of products of two float64 numbers are exact in EXACT bits.
# log(1 + exp(x)) down to the smallest float64 needs about 1074 bits below 1, hence LOGS.
BITS, LOGS, EXACT = 640, 1300, 4500

_FLOATS = {np.dtype(t) for t in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)}


@dataclass(frozen=True)
class Reference:
    """One output of an op: object arrays of mpf, with mpf inf and nan.

    ``magnitude`` is the sum of the absolute values of the terms that make up ``value``. An
    argument of exp is not a term: exp(x-y) counts as itself, however large x and y are.
    mpf arithmetic, abs() included, rounds to ``mpmath.mp.prec`` (53 by default), so enter
    ``mpmath.mp.workprec`` before computing with these numbers.
    """

    value: np.ndarray
    magnitude: np.ndarray


@dataclass(frozen=True)
class Definition:
    """A formula, and how operands become the rows that it sees.

    ``per_row`` names the operands and outputs with one element for every row.
    """

    formula: Callable[..., Any]
    layout: Callable[..., tuple[np.ndarray, ...]]
    outputs: tuple[str, ...]
    bits: int
    per_row: frozenset[str]

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the operands the formula may want: its positional parameters."""
        return tuple(p.name for p in _parameters(self.formula) if p.kind is not p.KEYWORD_ONLY)

    def gather(self, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The operands that are there, floats as terms; one without a default must be there."""
        listed = _parameters(self.formula)
        required = [p.name for p in listed if p.kind is not p.KEYWORD_ONLY and p.default is p.empty]
        missing = [name for name in required if operands.get(name) is None]
        if missing:
            raise TypeError(f"{self.formula.__name__} needs the operands {missing}")
        return {n: to_terms(operands[n]) for n in self.operands if operands.get(n) is not None}

    def call(
        self, rows: Mapping[str, Any], options: Mapping[str, Any], extent: int | None = None
    ) -> list[list[Any]]:
        """What the formula makes of one row: a list for every output.

        Operands with one element for every row come as that element, those that are not there as
        None. A formula may ask for ``extent``; options it does not know must be None.
        """
        taken = {k: v for k, v in options.items() if v is not None}
        if extent is not None and "extent" in inspect.signature(self.formula).parameters:
            taken["extent"] = extent
        given = [
            row[0] if name in self.per_row and row is not None else row
            for name in self.operands
            for row in [rows.get(name)]
        ]
        found = self.formula(*given, **taken)
        several = found if isinstance(found, tuple) else (found,)
        # A layout may want fewer outputs than the formula knows of, those that nothing asks for.
        named = zip(self.outputs, several, strict=False)
        return [[r] if n in self.per_row else r for n, r in named]


_TABLE: dict[str, Definition] = {}

_FormulaT = TypeVar("_FormulaT", bound=Callable[..., Any])


def define(
    name: str, layout: Callable[..., Any], outputs: str, bits: int = BITS, per_row: str = ""
) -> Callable[[_FormulaT], _FormulaT]:
    """Register a formula.

    Parameters
    ----------
    name
        The op.
    layout
        Feeds rows to the formula and returns one array of terms per output.
    outputs, per_row
        Names, separated by spaces: the outputs in the order in which the formula returns them, and
        the operands and outputs that have one element for every row. A formula sees such an operand
        as a single term, any other as a list.
    bits
        Working precision.

    The formula's positional parameters name the operands it needs; one that may be left out has the
    default None. A bool or integer operand is a list of Python's. Keyword-only parameters are
    parameters of the op.
    """

    def register(formula: _FormulaT) -> _FormulaT:
        held = frozenset(per_row.split())
        _TABLE[name] = Definition(formula, layout, tuple(outputs.split()), bits, held)
        return formula

    return register


def names() -> tuple[str, ...]:
    """Return the names of all defined ops."""
    return tuple(sorted(_TABLE))


def reference(name: str, operands: Mapping[str, Any], **params: Any) -> dict[str, Reference]:
    """Evaluate an op from its definition.

    Parameters
    ----------
    name : str
        One of ``names()``, e.g. ``"cumprod_backward"``.
    operands : mapping of str to array
        Arrays of float64, float32, float16 or bfloat16, bools and integers. Those with one element
        for every row have the keepdims shape. Operands the op does not need may be present or
        missing.
    **params
        The op's parameters that change its value, as its function takes them; None means the
        default.

    Returns
    -------
    dict of str to Reference
    """
    if name not in _TABLE:
        raise ValueError(f"unknown op {name!r}; defined are {', '.join(names())}")
    definition = _TABLE[name]
    with mp.workprec(definition.bits):
        results = definition.layout(definition, operands, **params)
        return {
            output: Reference(_pick(terms, "value"), _pick(terms, "size"))
            for output, terms in zip(definition.outputs, results, strict=False)
        }


def object_array(items: Sequence[Any], shape: Sequence[int]) -> np.ndarray:
    """Return items, in C order, as an object array of that shape (0-d included)."""
    array = np.empty(len(items), dtype=object)
    for i, item in enumerate(items):
        array[i] = item
    return array.reshape(tuple(shape))


def _pick(terms: np.ndarray, field: str) -> np.ndarray:
    return object_array([getattr(term, field) for term in terms.reshape(-1)], terms.shape)


def to_terms(array: Any) -> np.ndarray:
    """Convert a float array, each element exactly, to an object array of terms.

    Bools and integers become those of Python.
    """
    array = np.asarray(array)
    if array.dtype.kind in "bi":
        return object_array(array.ravel().tolist(), array.shape)
    if array.dtype not in _FLOATS:
        raise TypeError(f"the oracle reads floats, bools and integers, not {array.dtype}")
    exact = array.astype(np.float64)
    return object_array([Term(mpf(v)) for v in exact.ravel().tolist()], array.shape)


def check_option(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")


def _parameters(formula: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(formula).parameters.values())


def normalized_axes(axis: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Return the axes as sorted non-negative ints; None is all of them.

    A rank-0 array counts as one row of one element, for axis 0 and -1 too.
    """
    if axis is None:
        return tuple(range(rank))
    axes = (axis,) if isinstance(axis, int | np.integer) else tuple(axis)
    if not all(-max(rank, 1) <= a < max(rank, 1) for a in axes):
        raise ValueError(f"axis {axis} out of range for rank {rank}")
    positive = sorted(a % max(rank, 1) for a in axes)
    if len(set(positive)) != len(positive):
        raise ValueError(f"axis {axis} names an axis twice")
    return tuple(positive) if rank else ()


def map_rows(
    definition: Definition,
    arrays: Mapping[str, np.ndarray],
    shape: Sequence[int],
    axes: tuple[int, ...],
    options: Mapping[str, Any],
    step: int = 1,
) -> tuple[np.ndarray, ...]:
    """Apply a formula over ``axes`` for every index of the other axes.

    The elements along ``axes`` form a row in C order, whatever the memory layout, from its end if
    ``step`` is -1. ``shape`` is that of the operands with an element for every position.
    """
    kept = [a for a in range(len(shape)) if a not in axes]
    batch = [shape[a] for a in kept]
    count = math.prod(batch)
    tables = {}
    for name, array in arrays.items():
        wanted = _shape_of(definition, name, shape, axes)
        if array.shape != wanted:
            raise ValueError(f"{name} must have shape {wanted}, not {array.shape}")
        width = math.prod(array.shape[a] for a in axes)
        tables[name] = array.transpose(*kept, *axes).reshape(count, width)
    found: list[list[Any]] = [[] for _ in definition.outputs]
    for at in range(count):
        rows = {name: list(table[at])[::step] for name, table in tables.items()}
        for items, row in zip(found, definition.call(rows, options), strict=True):
            items.extend(row[::step])
    results = []
    for name, items in zip(definition.outputs, found, strict=True):
        full = _shape_of(definition, name, shape, axes)
        result = object_array(items, [*batch, *(full[a] for a in axes)])
        results.append(result.transpose(np.argsort([*kept, *axes])) if shape else result)
    return tuple(results)


def _shape_of(
    definition: Definition, name: str, shape: Sequence[int], axes: tuple[int, ...]
) -> tuple[int, ...]:
    one = name in definition.per_row
    return tuple(1 if one and a in axes else n for a, n in enumerate(shape))


def full_shape(definition: Definition, arrays: Mapping[str, np.ndarray]) -> tuple[int, ...]:
    """The shape of the first operand with an element for every position."""
    return next(tuple(a.shape) for n, a in arrays.items() if n not in definition.per_row)
