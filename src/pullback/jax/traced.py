"""A backward's formula as a JAX computation, for derivatives beyond the first and forward mode.

The kernels compute values and first derivatives. Where JAX asks for more it differentiates this:
the same formula record, with its scalar functions bound to ``jax.numpy`` and its folds run as
trees. Numbers that kernels hold as mantissa and exponent are held whole here, so that products
with zeros differentiate as products do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..formulas.record import Monoid, RowFormula, ScanFormula
from ..problem import Problem
from ..schedules.numba.lanes import traced
from ..schedules.numba.vectors import parameters

_PRIMITIVES = (
    ("where", jnp.where),
    ("isnan", jnp.isnan),
    ("exp", jnp.exp),
    ("log", jnp.log),
    ("sqrt", jnp.sqrt),
    ("absolute", jnp.abs),
    ("maximum", jnp.maximum),
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
    held["extent"] = float(problem.extent)
    held["correction"], held["weight"] = float(problem.correction), problem.weight
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


def _call(function: Callable, held: Values) -> tuple[Any, ...]:
    result = traced(function, _PRIMITIVES)(*(held[name] for name in parameters(function)))
    return result if isinstance(result, tuple) else (result,)


def _lifted(monoid: Monoid, held: Values, extent: int) -> list[Any]:
    states = _call(monoid.lift, held)
    shape = jnp.broadcast_shapes((extent,), *(jnp.shape(s) for s in states))
    wide = held["index"].dtype
    return [jnp.broadcast_to(jnp.asarray(s, wide), shape) for s in states]


def _joined(monoid: Monoid) -> Callable:
    combine = traced(monoid.combine, _PRIMITIVES)

    def join(first, then):
        result = combine(*first, *then)
        return list(result) if isinstance(result, tuple) else [result]

    return join


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


def _by_rows(formula: RowFormula, held: Values, extent: int) -> tuple[Any, ...]:
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
    states = jax.lax.associative_scan(
        _joined(monoid), _lifted(monoid, held, extent), reverse=against, axis=-1
    )
    if not inclusive:
        states = [
            jnp.concatenate(
                [s[..., 1:], _edge(s, v)] if against else [_edge(s, v), s[..., :-1]], -1
            )
            for s, v in zip(states, monoid.identity, strict=True)
        ]
    return dict(zip(monoid.state, states, strict=True))


def _by_scan(formula: ScanFormula, held: Values, problem: Problem) -> tuple[Any, ...]:
    if problem.extent == 0:
        return tuple(held["index"] for _ in problem.op.outputs)
    for name in problem.op.full:
        if name in held:
            before = jnp.concatenate([held[name][..., :1], held[name][..., :-1]], -1)
            held[f"{name}_before"] = before
    if formula.prefix is not None:
        held |= _scanned(formula.prefix, held, problem.extent, inclusive=False, against=False)
    held |= _scanned(
        formula.monoid, held, problem.extent, inclusive=formula.inclusive, against=formula.against
    )
    return _call(formula.finish, held)
