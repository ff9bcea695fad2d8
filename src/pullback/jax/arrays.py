"""JAX's arrays for the formulas of the catalog, for derivatives beyond the first and forward mode.

The kernels compute values and first derivatives. Where JAX asks for more it differentiates the
same formula record, run on its arrays. Numbers that kernels hold as mantissa and exponent are held
whole here, so that products with zeros differentiate as products do.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..formulas.namespaces import Namespace, Turn


class Number:
    """An array in a formula, with arithmetic that differentiates where formulas have edges.

    JAX differentiates both branches of a choice and multiplies the one not chosen by zero, so the
    other must not hold NaN: a quotient by zero and -inf less -inf are made zero. And "zero where a
    factor is zero, else the product" is the product, whose derivative by that factor is not zero.

    Attributes
    ----------
    factors
        The two numbers this one is the product of, if it is one.
    zero
        The number that was compared with zero to give this condition, if one was.
    is_infinite
        Whether it is infinite everywhere: what is multiplied by it has no derivative, and none that
        is 0 times infinity.
    """

    def __init__(
        self,
        array: Any,
        factors: tuple[Any, ...] = (),
        zero: Number | None = None,
        is_infinite: bool = False,
    ):
        self.array, self.factors, self.zero = array, factors, zero
        self.is_infinite = is_infinite

    def __sub__(self, other: Any) -> Number:
        return Number(_difference(self.array, _plain(other)))

    def __rsub__(self, other: Any) -> Number:
        return Number(_difference(_plain(other), self.array))

    def __mul__(self, other: Any) -> Number:
        product = self.array * _plain(other)
        if _is_infinite(self) or _is_infinite(other):
            return Number(jax.lax.stop_gradient(product))
        return Number(product, (self, other))

    def __truediv__(self, other: Any) -> Number:
        return Number(_quotient(self.array, _plain(other)))

    def __rtruediv__(self, other: Any) -> Number:
        return Number(_quotient(_plain(other), self.array))

    def __neg__(self) -> Number:
        return Number(-self.array)

    def __eq__(self, other: object) -> Number:  # type: ignore[override]
        against_zero = not isinstance(other, Number) and other == 0
        return Number(self.array == _plain(other), zero=self if against_zero else None)

    __hash__ = None  # type: ignore[assignment]
    __rmul__ = __mul__


def _plain(value: Any) -> Any:
    return value.array if isinstance(value, Number) else value


def _is_infinite(value: Any) -> bool:
    if isinstance(value, Number):
        return value.is_infinite
    return isinstance(value, float) and math.isinf(value)


def _exp(v: Number) -> Number:
    """Exponents are at most 0 where they count: beyond all numbers is one that is not chosen."""
    beyond = v.array == jnp.inf
    return Number(jnp.where(beyond, 0.0, jnp.exp(jnp.where(beyond, 0.0, v.array))))


def _difference(a: Any, b: Any) -> Any:
    nowhere = (a == -jnp.inf) & (b == -jnp.inf)
    return jnp.where(nowhere, 0.0, a) - jnp.where(nowhere, 0.0, b)


def _quotient(a: Any, b: Any) -> Any:
    nothing = b == 0
    return jnp.where(nothing, 0.0, a / jnp.where(nothing, 1.0, b))


def _where(condition: Number, a: Any, b: Any) -> Number:
    if condition.zero is not None and isinstance(b, Number) and type(a) is float and a == 0:
        others = [_plain(f) for f in b.factors if f is not condition.zero]
        if len(others) == 1:
            # Not the product itself: an infinite factor of zero is to give zero too.
            kept = jnp.where(condition.array & ~jnp.isfinite(others[0]), 0.0, others[0])
            return Number(kept * condition.zero.array)
    chosen = jnp.where(condition.array, _plain(a), _plain(b))
    return Number(chosen, is_infinite=_is_infinite(a) and _is_infinite(b))


def _on_numbers(function: Callable) -> Callable:
    return lambda *values: Number(function(*map(_plain, values)))


for _name in ("add", "radd", "lt", "le", "gt", "ge", "ne", "and", "or"):
    _plainly = getattr(operator, f"__{_name.removeprefix('r')}__")
    setattr(Number, f"__{_name}__", _on_numbers(_plainly))


class _Arrays(Namespace):
    differentiates = True

    def number(self, value: Any) -> Number:
        return Number(value)

    def array(self, number: Any) -> Any:
        return _plain(number)

    def wide(self, array: Any) -> Any:
        if self.is_condition(array):
            return array
        return array.astype(jnp.promote_types(array.dtype, jnp.float32))

    def cast(self, array: Any, dtype: Any) -> Any:
        return array.astype(jax.dtypes.canonicalize_dtype(dtype))

    def until_rest(
        self, step: Turn, values: list[Any], moving: Sequence[int], most: int
    ) -> list[Any]:
        def goes_on(carried: Any) -> Any:
            turns, moves, _ = carried
            return moves & (turns < most)

        def turn(carried: Any) -> Any:
            turns, _, before = carried
            after = step(before)
            moves = jnp.stack([self.moved(before[k], after[k]) for k in moving]).any()
            return turns + 1, moves, after

        found: list[Any] = jax.lax.while_loop(goes_on, turn, (0, True, values))[2]
        return found


JAX = _Arrays(
    jnp,
    {
        "where": _where,
        "isnan": _on_numbers(jnp.isnan),
        "exp": _exp,
        "log": _on_numbers(jnp.log),
        "sqrt": _on_numbers(jnp.sqrt),
        "absolute": _on_numbers(jnp.abs),
        "maximum": _on_numbers(jnp.maximum),
        "mantissa": lambda v: v,
        "exponent": lambda v: 0.0,
        "power_of_two": lambda e: 1.0,
        "ldexp": lambda v, e: v,
    },
)
