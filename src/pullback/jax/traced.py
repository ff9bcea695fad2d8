"""A backward's formula as a JAX computation, for derivatives beyond the first and forward mode.

The kernels compute values and first derivatives. Where JAX asks for more it differentiates this:
the same formula record, with its scalar functions bound to ``jax.numpy`` and its folds run as
trees. Numbers that kernels hold as mantissa and exponent are held whole here, so that products
with zeros differentiate as products do.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..core.declare import Role
from ..core.problem import Problem
from ..cpu.codegen.lanes import traced
from ..formulas.record import Monoid, RowFormula, ScanFormula, parameters


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
    """

    def __init__(self, array: Any, factors: tuple[Any, ...] = (), zero: Number | None = None):
        self.array, self.factors, self.zero = array, factors, zero

    def __sub__(self, other: Any) -> Number:
        return Number(_difference(self.array, _plain(other)))

    def __rsub__(self, other: Any) -> Number:
        return Number(_difference(_plain(other), self.array))

    def __mul__(self, other: Any) -> Number:
        return Number(self.array * _plain(other), (self, other))

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
    return Number(jnp.where(condition.array, _plain(a), _plain(b)))


def _on_numbers(function: Callable) -> Callable:
    return lambda *values: Number(function(*map(_plain, values)))


for _name in ("add", "radd", "lt", "le", "gt", "ge", "ne", "and", "or"):
    _plainly = getattr(operator, f"__{_name.removeprefix('r')}__")
    setattr(Number, f"__{_name}__", _on_numbers(_plainly))

_PRIMITIVES = (
    ("where", _where),
    ("isnan", _on_numbers(jnp.isnan)),
    ("exp", _on_numbers(jnp.exp)),
    ("log", _on_numbers(jnp.log)),
    ("sqrt", _on_numbers(jnp.sqrt)),
    ("absolute", _on_numbers(jnp.abs)),
    ("maximum", _on_numbers(jnp.maximum)),
    ("mantissa", lambda v: v),
    ("exponent", lambda v: 0.0),
    ("power_of_two", lambda e: 1.0),
    ("ldexp", lambda v, e: v),
)

Values = dict[str, Any]


def backward(problem: Problem, operands: Values) -> tuple[Any, ...]:
    """The outputs of a backward, differentiable to any order."""
    dtype = operands[next(iter(operands))].dtype
    wide = jnp.promote_types(dtype, jnp.float32)
    held = {n: _rows_last(problem, a.astype(wide)) for n, a in operands.items()}
    held |= problem.constants
    held["index"] = jnp.arange(problem.extent, dtype=wide)
    formula = problem.formula
    if isinstance(formula, RowFormula):
        results = _by_rows(formula, held, problem.extent)
    else:
        assert isinstance(formula, ScanFormula)
        results = _by_scan(formula, held, problem)
    return tuple(_restored(problem, r).astype(dtype) for r in results)


def _rows_last(problem: Problem, array: Any) -> Any:
    """The op's axes as one, at the end; in the order of a forward scan."""
    axes = problem.axes
    rest = [d for d in range(array.ndim) if d not in axes]
    array = jnp.transpose(array, (*rest, *axes))
    array = array.reshape(*(array.shape[: len(rest)]), math.prod(array.shape[len(rest) :]))
    return jnp.flip(array, -1) if problem.reverse else array


def _restored(problem: Problem, array: Any) -> Any:
    axes = problem.axes
    rest = [d for d in range(len(problem.shape)) if d not in axes]
    order = (*rest, *axes)
    array = jnp.broadcast_to(array, (*(problem.shape[d] for d in rest), problem.extent))
    array = jnp.flip(array, -1) if problem.reverse else array
    array = array.reshape([problem.shape[d] for d in order])
    return jnp.transpose(array, [order.index(d) for d in range(len(order))])


def _apply(function: Callable, arguments: Iterable[Any]) -> list[Any]:
    result = traced(function, _PRIMITIVES)(*map(Number, arguments))
    return [_plain(r) for r in (result if isinstance(result, tuple) else (result,))]


def _call(function: Callable, held: Values) -> list[Any]:
    return _apply(function, [held[name] for name in parameters(function)])


def _lifted(monoid: Monoid, held: Values, extent: int) -> list[Any]:
    states = _call(monoid.lift, held)
    shape = jnp.broadcast_shapes((extent,), *(jnp.shape(s) for s in states))
    wide = held["index"].dtype
    return [jnp.broadcast_to(jnp.asarray(s, wide), shape) for s in states]


def _joined(monoid: Monoid) -> Callable:
    return lambda first, then: _apply(monoid.combine, [*first, *then])


def _edge(state: Any, value: float) -> Any:
    return jnp.full_like(state[..., :1], value)


def _fold(monoid: Monoid, held: Values, extent: int) -> list[Any]:
    """All states along the axis as one, by halving."""
    states, join = _lifted(monoid, held, extent), _joined(monoid)
    if extent == 0:
        return [
            jnp.full((*s.shape[:-1], 1), v, s.dtype)
            for s, v in zip(states, monoid.identity, strict=True)
        ]
    while states[0].shape[-1] > 1:
        if states[0].shape[-1] % 2:
            states = [
                jnp.concatenate([s, _edge(s, v)], -1)
                for s, v in zip(states, monoid.identity, strict=True)
            ]
        states = join([s[..., ::2] for s in states], [s[..., 1::2] for s in states])
    return states


def _by_rows(formula: RowFormula, held: Values, extent: int) -> Sequence[Any]:
    for step in formula.passes:
        known = dict(held)
        if step.monoid:
            states = _fold(step.monoid, held, extent)
            known.update(zip(step.monoid.state, states, strict=True))
        gained = _call(step.close, known) if step.close else [known[n] for n in step.names]
        held = {**held, **dict(zip(step.names, gained, strict=True))}
    assert formula.apply is not None
    return _call(formula.apply, held)


def _scanned(
    monoid: Monoid, held: Values, extent: int, *, inclusive: bool, against: bool
) -> dict[str, Any]:
    lifted = _lifted(monoid, held, extent)
    states = jax.lax.associative_scan(
        _joined(monoid), lifted, reverse=against, axis=lifted[0].ndim - 1
    )
    if not inclusive:
        states = [
            jnp.concatenate(
                [s[..., 1:], _edge(s, v)] if against else [_edge(s, v), s[..., :-1]], -1
            )
            for s, v in zip(states, monoid.identity, strict=True)
        ]
    return dict(zip(monoid.state, states, strict=True))


def _by_scan(formula: ScanFormula, held: Values, problem: Problem) -> Sequence[Any]:
    if problem.extent == 0:
        return tuple(held["index"] for _ in problem.op.outputs)
    for name in problem.op.names(Role.ELEMENT):
        if name in held:
            before = jnp.concatenate([held[name][..., :1], held[name][..., :-1]], -1)
            held[f"{name}_before"] = before
    if formula.prefix is not None:
        held |= _scanned(formula.prefix, held, problem.extent, inclusive=False, against=False)
    held |= _scanned(
        formula.monoid, held, problem.extent, inclusive=formula.inclusive, against=formula.against
    )
    return _call(formula.finish, held)
