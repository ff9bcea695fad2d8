"""The table of definitions, and the one helper which maps a row formula over an array."""

from __future__ import annotations

import functools
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
    formula: Callable[..., Any]
    layout: Callable[..., tuple[np.ndarray, ...]]
    outputs: tuple[str, ...]
    bits: int


_TABLE: dict[str, Definition] = {}

_FormulaT = TypeVar("_FormulaT", bound=Callable[..., Any])


def define(
    name: str, layout: Callable[..., Any], outputs: str, bits: int = BITS
) -> Callable[[_FormulaT], _FormulaT]:
    """Register a formula.

    The formula's positional parameters name the operands it needs. ``layout`` feeds it rows
    and returns one array of terms per name in ``outputs`` (separated by spaces).
    """

    def register(formula: _FormulaT) -> _FormulaT:
        _TABLE[name] = Definition(formula, layout, tuple(outputs.split()), bits)
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
        Arrays of float64, float32, float16 or bfloat16 (ids: integers). A reduction's dy and y
        have the keepdims shape. Operands the op does not need may be present or missing.
    **params
        The op's parameters, as its function takes them; None means the default.

    Returns
    -------
    dict of str to Reference
    """
    if name not in _TABLE:
        raise ValueError(f"unknown op {name!r}; defined are {', '.join(names())}")
    definition = _TABLE[name]
    with mp.workprec(definition.bits):
        results = definition.layout(definition.formula, operands, **params)
        return {
            output: Reference(_pick(terms, "value"), _pick(terms, "size"))
            for output, terms in zip(definition.outputs, results, strict=True)
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
    """Convert a float array, each element exactly, to an object array of terms."""
    array = np.asarray(array)
    if array.dtype not in _FLOATS:
        raise TypeError(f"the oracle reads f64, f32, f16 and bf16, not {array.dtype}")
    exact = array.astype(np.float64)
    return object_array([Term(mpf(v)) for v in exact.ravel().tolist()], array.shape)


def needed(formula: Callable[..., Any], operands: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operands the formula names, in its order."""
    wanted = [p.name for p in _parameters(formula) if p.kind is not p.KEYWORD_ONLY]
    missing = [name for name in wanted if operands.get(name) is None]
    if missing:
        raise TypeError(f"{formula.__name__} needs the operands {missing}")
    return {name: operands[name] for name in wanted}


def with_options(formula: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Bind those options which the formula declares and which are not None."""
    declared = {p.name for p in _parameters(formula) if p.kind is p.KEYWORD_ONLY}
    return functools.partial(
        formula, **{k: v for k, v in options.items() if k in declared and v is not None}
    )


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
    formula: Callable[..., list[Term]],
    arrays: Sequence[np.ndarray],
    axes: tuple[int, ...],
    lengths: Sequence[int],
) -> np.ndarray:
    """Apply a row formula over ``axes`` for every index of the other axes.

    The elements along ``axes`` form a row in C order, whatever the memory layout. ``lengths``
    are the extents of the output along ``axes``.
    """
    rank = arrays[0].ndim
    kept = [a for a in range(rank) if a not in axes]
    batch = [arrays[0].shape[a] for a in kept]
    tables = []
    for array in arrays:
        if array.ndim != rank or [array.shape[a] for a in kept] != batch:
            raise ValueError(f"operand shapes do not match: {[a.shape for a in arrays]}")
        width = math.prod(array.shape[a] for a in axes)
        tables.append(array.transpose(*kept, *axes).reshape(math.prod(batch), width))
    items = [term for rows in zip(*tables, strict=True) for term in formula(*map(list, rows))]
    result = object_array(items, [*batch, *lengths])
    return result.transpose(np.argsort([*kept, *axes])) if rank else result
