"""How formulas see the arrays of a library: NumPy's here, those of PyTorch and JAX beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..core.problem import Problem
from .bind import Binder
from .primitives import NOWHERE
from .record import Formula, RowFormula

# From what a pass gave to what it gives next.
Turn = Callable[[list[Any]], list[Any]]


class Namespace:
    """The arrays of one library, and how formulas see the numbers in them.

    Parameters
    ----------
    module
        The library's functions on arrays.
    primitives
        Its version of each primitive.
    """

    # Whether what is computed may be differentiated.
    differentiates = False

    def __init__(self, module: Any, primitives: Mapping[str, Callable]):
        self.module = module
        self.boolean = module.bool_ if hasattr(module, "bool_") else module.bool
        self._bind = Binder(primitives)

    def call(self, function: Callable, arguments: Sequence[Any]) -> list[Any]:
        """What a formula function returns on arrays and numbers, one value or several."""
        result = self._bind(function)(*map(self.number, arguments))
        return [self.array(v) for v in (result if isinstance(result, tuple) else (result,))]

    def formula_of(self, problem: Problem) -> Formula:
        """The record that arrays of this library are run through."""
        formula = problem.formula
        other = formula.differentiable if isinstance(formula, RowFormula) else None
        return other if other is not None and self.differentiates else formula

    def number(self, value: Any) -> Any:
        """An array as formulas compute with it."""
        return value

    def array(self, number: Any) -> Any:
        """The array of what a formula computed."""
        return number

    def wide(self, array: Any) -> Any:
        """An operand in the type that formulas compute in; a condition stays one."""
        return array if self.is_condition(array) else self.cast(array, self.module.float64)

    def is_condition(self, array: Any) -> bool:
        """Whether an array holds truth values."""
        return bool(array.dtype == self.boolean)

    def cast(self, array: Any, dtype: Any) -> Any:
        """An array in another type."""
        return array.astype(dtype)

    def full(self, like: Any, value: Any, shape: tuple[int, ...]) -> Any:
        """An array of one number, of the type and on the device of another."""
        return self.module.full_like(like, value, shape=shape)

    def counting(self, like: Any, length: int) -> Any:
        """0, 1, 2 and so on, as numbers."""
        return self.module.arange(length, dtype=like.dtype)

    def transposed(self, array: Any, order: Sequence[int]) -> Any:
        """An array with its dimensions in another order."""
        return array.transpose(tuple(order))

    def ascending(self, numbers: Any) -> Any:
        """The places of numbers from the smallest on; equal ones stay in order."""
        return self.module.argsort(numbers, stable=True)

    def until_rest(
        self, step: Turn, values: list[Any], moving: Sequence[int], most: int
    ) -> list[Any]:
        """``values`` after as many steps as it takes until those at ``moving`` stay."""
        for _ in range(most):
            before, values = values, step(values)
            if not any(bool(self.moved(before[k], values[k])) for k in moving):
                break
        return values

    def moved(self, before: Any, after: Any) -> Any:
        """Whether any number differs; NaN is NaN."""
        return ((before != after) & ((before == before) | (after == after))).any()


def _exponent(v: Any) -> Any:
    e = np.where(np.isfinite(v), np.frexp(v)[1], 0.0)
    return np.where(v == 0, NOWHERE, e)


def _ldexp(v: Any, e: Any) -> Any:
    return np.ldexp(v, np.clip(e, -4000.0, 4000.0).astype(np.int32))


def _power_of_two(e: Any) -> Any:
    return np.exp2(np.clip(e, -1022.0, 1023.0))


class _NumPy(Namespace):
    def ascending(self, numbers: Any) -> Any:
        return np.argsort(numbers, kind="stable")


NUMPY = _NumPy(
    np,
    {
        "where": np.where,
        "isnan": np.isnan,
        "exp": np.exp,
        "log": np.log,
        "sqrt": np.sqrt,
        "absolute": np.abs,
        "maximum": np.maximum,
        "mantissa": lambda v: np.frexp(v)[0],
        "exponent": _exponent,
        "power_of_two": _power_of_two,
        "ldexp": _ldexp,
    },
)
