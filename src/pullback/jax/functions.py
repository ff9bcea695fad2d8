"""The functions, made from the forward rows of the catalog with the conventions of JAX."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..api.plan import Runnable
from ..core import parse
from ..core.catalog import catalog, find
from ..core.declare import Op
from ..core.problem import describe
from ..core.vocabulary import ElementKind, PlanPreference, element_kind
from ..errors import InvalidProblemError, UnsupportedError
from ..memory.view import view
from .docstrings import docstring, takes_correction
from .pairs import IDS, Pair
from .primitives import run, varying_alike

_DTYPES = {kind.numpy_dtype: kind for kind in ElementKind}


def _float_array(x: Any, name: str) -> Any:
    if not isinstance(x, jax.Array):
        x = jnp.asarray(x)
    if x.dtype not in _DTYPES:
        names = ", ".join(dtype.name for dtype in _DTYPES)
        raise UnsupportedError(f"{name}: expected dtype {names}, got {x.dtype}")
    return x


def _hashable(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


@lru_cache(maxsize=4096)
def _pair(
    op: Op, shape: Any, dtype: Any, parameters: tuple[tuple[str, Any], ...], segments: Any = None
) -> Pair:
    """An op and its backward on one shape, by parsed parameters."""
    element = element_kind(dtype).value
    held = dict(parameters)
    both = (op, find(op.kind, "backward"))
    return Pair(*(describe(one, element, shape, held, segments=segments) for one in both))


def _no_where(op: Op, where: Any) -> None:
    if where is not None:
        raise UnsupportedError(
            f"where: not supported by pullback.jax.{op.name}; replace what is left out by a value "
            f"that does not count, jnp.where(mask, x, value), before the call"
        )


def run_scan(op: Op, x: Any, axis: Any, reverse: bool, ties: Any) -> Any:
    x = _float_array(x, "x")
    if axis is None:
        x, axis = x.reshape(-1), 0
    parameters = _parsed(op, axis=axis, reverse=reverse, ties=ties)
    return run(_pair(op, x.shape, x.dtype, parameters), "forward", {"x": x})[0]


def _parsed(op: Op, **values: Any) -> tuple[tuple[str, Any], ...]:
    """Parameters of an op or its backward in their one form, to be looked up by."""
    declared = {p.name: p for p in (*find(op.kind, "backward").parameters, *op.parameters)}
    return tuple(
        (name, declared[name].parse(value, name))
        for name, value in values.items()
        if name in declared and value is not None
    )


def run_reduce(
    op: Op, x: Any, axis: Any, keepdims: bool, where: Any, correction: Any, ties: Any
) -> Any:
    _no_where(op, where)
    x = _float_array(x, "x")
    parameters = _parsed(op, axis=axis, correction=correction, ties=ties)
    pair = _pair(op, x.shape, x.dtype, parameters)
    (y,) = run(pair, "forward", {"x": x})
    return y if keepdims else jnp.squeeze(y, pair.forward.axes)


def resolve_correction(ddof: Any, correction: Any) -> Any:
    """The one of ddof and correction that was given."""
    if correction is None:
        return ddof
    if ddof != 0:
        raise InvalidProblemError("correction: expected it or ddof, got both")
    return correction


@lru_cache(maxsize=4096)
def _softmax_pair(op: Op, shape: Any, dtype: Any, axis: Any) -> Pair:
    """JAX takes several axes, which the kernels do too."""
    axes = parse.normalized_axes(axis, len(shape), "axis")
    pair = _pair(op, shape, dtype, ())
    return Pair(replace(pair.forward, axes=axes), replace(pair.backward, axes=axes))


def run_softmax(op: Op, x: Any, axis: Any, where: Any) -> Any:
    _no_where(op, where)
    x = _float_array(x, "x")
    pair = _softmax_pair(op, x.shape, x.dtype, _hashable(axis))
    return run(pair, "forward", {"x": x})[0]


@lru_cache(maxsize=4096)
def _lerp_pair(op: Op, shape: Any, dtype: Any, weight: str) -> Pair:
    """By the weight's text: 0.0 equals -0.0 and NaN does not equal itself."""
    return _pair.__wrapped__(op, shape, dtype, (("weight", float.fromhex(weight)),))


def run_lerp(op: Op, a: Any, b: Any, weight: Any) -> Any:
    try:
        weight = float(weight)
    except (TypeError, ValueError) as error:
        raise UnsupportedError(
            f"weight: expected a number that is known when the function is traced, got "
            f"{type(weight).__name__}; no gradient flows to it"
        ) from error
    a, b = jnp.asarray(a), jnp.asarray(b)
    dtype = jnp.result_type(a, b)
    a, b = jnp.broadcast_arrays(_float_array(a.astype(dtype), "a"), b.astype(dtype))
    a, b = varying_alike(a, b)
    pair = _lerp_pair(op, a.shape, a.dtype, weight.hex())
    return run(pair, "forward", {"a": a, "b": b})[0]


def run_segment(
    op: Op, data: Any, ids: Any, num_segments: Any, is_sorted: bool, out_of_range: Any
) -> Any:
    data, ids = _float_array(data, "data"), jnp.asarray(ids)
    if data.ndim == 0:
        raise InvalidProblemError("data: expected at least one dimension, got shape ()")
    if ids.shape != data.shape[:1]:
        raise InvalidProblemError(f"{IDS}: expected shape {data.shape[:1]}, got {ids.shape}")
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise InvalidProblemError(f"{IDS}: expected integers, got {ids.dtype}")
    if ids.dtype not in (jnp.int32, jnp.int64):
        ids = ids.astype(jnp.int32)
    if num_segments is None:
        num_segments = int(np.asarray(_known(ids, "num_segments")).max(initial=-1)) + 1
    rest = data.shape[1:]
    width = math.prod(rest)
    shape, segments = (data.shape[0], width), parse.count(num_segments, "num_segments")
    is_sorted = parse.flag(is_sorted, "indices_are_sorted")
    if parse.out_of_range(out_of_range, "out_of_range") == "raise":
        known = np.asarray(_known(ids, 'out_of_range="raise"'))
        strict = _pair(op, shape, data.dtype, (("sorted", is_sorted),), segments)
        Runnable(strict.forward, PlanPreference()).check_values({IDS: view(known, IDS)})
    parameters = (("sorted", is_sorted), ("out_of_range", "drop"))
    pair = _pair(op, shape, data.dtype, parameters, segments)
    values, ids = varying_alike(data.reshape(data.shape[0], width), ids)
    (output,) = run(pair, "forward", {pair.variables[0]: values, IDS: ids})
    return output.reshape(output.shape[0], *rest)


def _known(ids: Any, what: str) -> Any:
    if isinstance(ids, jax.core.Tracer):
        raise UnsupportedError(
            f"{what}: needs the values of {IDS}, which are not known while the function is traced"
            + ("; give it as an int" if what == "num_segments" else '; use "drop"')
        )
    return ids


def _signature(op: Op) -> tuple[str, str]:
    """Parameters and body of an op's function."""
    policies = find(op.kind, "backward").ties
    ties, ties_value = (f', ties="{policies[0]}"', "ties") if policies else ("", "None")
    if op.family == "scan":
        # jnp.cumsum and jnp.cumprod run over the flattened array, the scans of jax.lax over axis 0.
        axis = None if hasattr(jnp, op.kind) else 0
        return (
            f"x, axis={axis}, *, reverse=False{ties}",
            f"run_scan(op, x, axis, reverse, {ties_value})",
        )
    if op.family == "reduce":
        corrected = takes_correction(op)
        return (
            "x, axis=None, *, keepdims=False, where=None"
            + (", ddof=0, correction=None" if corrected else "")
            + ties,
            "run_reduce(op, x, axis, keepdims, where, "
            + ("resolve_correction(ddof, correction)" if corrected else "1")
            + f", {ties_value})",
        )
    if op.family == "softmax":
        return "x, axis=-1, *, where=None", "run_softmax(op, x, axis, where)"
    if op.family == "lerp":
        return "a, b, weight", "run_lerp(op, a, b, weight)"
    return (
        "data, segment_ids, num_segments=None, indices_are_sorted=False, "
        'unique_indices=False, *, out_of_range="drop"',
        "run_segment(op, data, segment_ids, num_segments, indices_are_sorted, out_of_range)",
    )


def make_function(op: Op) -> Callable[..., Any]:
    """The function of a forward op, with the signature of its family."""
    parameters, body = _signature(op)
    made: dict[str, Any] = {}
    exec(f"def {op.name}({parameters}):\n    return {body}", {**globals(), "op": op}, made)
    function = made[op.name]
    function.__module__ = "pullback.jax"
    function.__doc__ = docstring(op)
    return function


FUNCTIONS: dict[str, Callable[..., Any]] = {
    op.name: make_function(op) for op in catalog() if op.direction == "forward"
}
