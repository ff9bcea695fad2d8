"""The catalog's formulas run on torch tensors, in torch ops: differentiable, under every transform.

Not fast: a scan takes log2(n) sweeps. It serves where torch has no function of its own, or one that
cannot be differentiated again.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..core.declare import Op
from ..formulas.primitives import NOWHERE, PRIMITIVES
from ..formulas.record import Monoid, RowFormula, ScanFormula

Values = dict[str, Any]


def _either(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Two numbers or tensors as torch's binary functions take them: tensors of one dtype."""
    like = a if isinstance(a, Tensor) else b

    def tensor(v: Any) -> Tensor:
        if isinstance(v, Tensor):
            return v
        return torch.as_tensor(v, dtype=like.dtype, device=like.device)

    return tensor(a), tensor(b)


def where(condition: Any, a: Any, b: Any) -> Any:
    if not isinstance(condition, Tensor):
        return a if condition else b
    return torch.where(condition, a, b)


def isnan(v: Any) -> Any:
    return v != v


def maximum(a: Any, b: Any) -> Any:
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        return max(a, b)
    return torch.maximum(*_either(a, b))


def mantissa(v: Tensor) -> Tensor:
    return torch.frexp(v).mantissa


def exponent(v: Tensor) -> Tensor:
    e = torch.frexp(v).exponent.to(v.dtype)
    e = torch.where(torch.isfinite(v), e, 0.0)
    return torch.where(v == 0, NOWHERE, e)


def power_of_two(e: Tensor) -> Tensor:
    return torch.exp2(torch.clamp(e, -1022.0, 1023.0))


def ldexp(v: Any, e: Any) -> Tensor:
    v, e = _either(v, e)
    half = torch.trunc(torch.clamp(e, -2040.0, 2040.0) / 2)
    return v * torch.exp2(half) * torch.exp2(torch.clamp(e, -2040.0, 2040.0) - half)


_TORCH = {
    "where": where,
    "isnan": isnan,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "absolute": torch.abs,
    "maximum": maximum,
    "mantissa": mantissa,
    "exponent": exponent,
    "power_of_two": power_of_two,
    "ldexp": ldexp,
}
assert set(_TORCH) == set(PRIMITIVES)

_bound: dict[Callable[..., Any], Callable[..., Any]] = {}


def bound(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with the primitives it calls, directly or not, taken from torch."""
    made = _bound.get(function)
    if made is None:
        scope = dict(function.__globals__)
        for name in function.__code__.co_names:
            if name in _TORCH:
                scope[name] = _TORCH[name]
            elif isinstance(scope.get(name), types.FunctionType):
                scope[name] = bound(scope[name])
        made = _bound[function] = types.FunctionType(function.__code__, scope, function.__name__)
    return made


def _call(function: Callable[..., Any], values: Values) -> tuple[Any, ...]:
    code = function.__code__
    result = bound(function)(*[values[n] for n in code.co_varnames[: code.co_argcount]])
    return result if isinstance(result, tuple) else (result,)


def _lifted(monoid: Monoid, values: Values, like: Tensor) -> list[Tensor]:
    """The state of every element, as tensors of one shape."""
    return [
        (v if isinstance(v, Tensor) else like.new_full((), v)).expand(like.shape)
        for v in _call(monoid.lift, values)
    ]


def _scanned(monoid: Monoid, state: list[Tensor]) -> list[Tensor]:
    """Inclusive scan along the last dimension, by doubling."""
    combine, n, reach = bound(monoid.combine), state[0].shape[-1], 1
    while reach < n:
        first = [s[..., : n - reach] for s in state]
        later = [s[..., reach:] for s in state]
        joined = combine(*first, *later)
        joined = joined if isinstance(joined, tuple) else (joined,)
        state = [torch.cat((s[..., :reach], j), -1) for s, j in zip(state, joined, strict=True)]
        reach *= 2
    return state


def _exclusive(monoid: Monoid, state: list[Tensor]) -> list[Tensor]:
    """States without the element's own part."""
    return [
        torch.cat((torch.full_like(s[..., :1], unit), s[..., :-1]), -1)
        for s, unit in zip(state, monoid.identity, strict=True)
    ]


def _run_scan(formula: ScanFormula, values: Values, like: Tensor) -> tuple[Tensor, ...]:
    if formula.prefix is not None:
        prefix = _scanned(formula.prefix, _lifted(formula.prefix, values, like))
        before = _exclusive(formula.prefix, prefix)
        values = {**values, **dict(zip(formula.prefix.state, before, strict=True))}
    state = _lifted(formula.monoid, values, like)
    if formula.against:
        state = [s.flip(-1) for s in state]
    state = _scanned(formula.monoid, state)
    if not formula.inclusive:
        state = _exclusive(formula.monoid, state)
    if formula.against:
        state = [s.flip(-1) for s in state]
    values = {**values, **dict(zip(formula.monoid.state, state, strict=True))}
    return _call(formula.finish, values)


def _run_rows(formula: RowFormula, values: Values, like: Tensor) -> tuple[Tensor, ...]:
    for step in formula.passes:
        if step.monoid is not None:
            state = _scanned(step.monoid, _lifted(step.monoid, values, like))
            folded = [s[..., -1:] for s in state]
            values = {**values, **dict(zip(step.monoid.state, folded, strict=True))}
        if step.close is not None:
            closed = _call(step.close, values)
            values = {**values, **dict(zip(step.gives, closed, strict=True))}
    finish = formula.finish or formula.apply
    assert finish is not None
    return _call(finish, values)


def evaluate(
    op: Op,
    ties: str | None,
    operands: dict[str, Tensor],
    shape: tuple[int, ...],
    dims: tuple[int, ...],
    *,
    reverse: bool = False,
    **constants: float,
) -> tuple[Tensor, ...]:
    """The results of an op, computed in float64.

    Operands have the shape of the problem, or that with ``dims`` at length 1; so have the results.
    """
    formula = op.record((ties,) if ties else ())
    dtype = next(iter(operands.values())).dtype
    extent = math.prod(shape[k] for k in dims)
    last = tuple(range(-len(dims), 0))

    def as_rows(t: Tensor) -> Tensor:
        t = t.to(torch.float64).movedim(dims, last)
        t = t.reshape(*t.shape[: t.dim() - len(dims)], -1) if dims else t[..., None]
        return t.flip(-1) if reverse else t

    def as_given(t: Tensor) -> Tensor:
        t = t.flip(-1) if reverse else t
        outer = t.shape[:-1]
        inner = [shape[k] if t.shape[-1] == extent else 1 for k in dims]
        return t.reshape(*outer, *inner).movedim(last, dims).to(dtype)

    values: Values = {n: as_rows(t) for n, t in operands.items()}
    values |= {f"{n}_before": torch.cat((v[..., :1], v[..., :-1]), -1) for n, v in values.items()}
    like = max((v for n, v in values.items()), key=lambda v: v.shape[-1])
    if like.shape[-1] != extent:
        like = like.expand(*like.shape[:-1], extent)
    values["index"] = torch.arange(extent, dtype=torch.float64, device=like.device)
    values |= {"extent": float(extent), **constants}
    run = _run_scan if isinstance(formula, ScanFormula) else _run_rows
    results = run(formula, values, like)  # type: ignore[arg-type]
    return tuple(as_given(t) for t in results)
