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

from ..api import descriptors as d
from ..api import plan as p
from ..core.catalog import catalog, find
from ..core.declare import Op
from ..core.vocabulary import ElementKind, OutOfRange, element_kind, parse_enum
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


def _pair(forward: p.Plan, backward: p.Plan) -> Pair:
    return Pair(forward._problem, backward._problem)


def _no_where(op: Op, where: Any) -> None:
    if where is not None:
        raise UnsupportedError(
            f"where: not supported by pullback.jax.{op.name}; replace what is left out by a value "
            f"that does not count, jnp.where(mask, x, value), before the call"
        )


@lru_cache(maxsize=4096)
def _scan_pair(op: Op, shape: Any, dtype: Any, axis: Any, reverse: Any, ties: Any) -> Pair:
    fields = {"scan_axis": axis, "reverse": reverse, "element": dtype}
    extra = {} if ties is None else {"ties": ties}
    return _pair(
        p.ScanPlan.select(d.ScanDescriptor(op.kind, shape, **fields)),
        p.ScanBackwardPlan.select(d.ScanBackwardDescriptor(op.kind, shape, **fields, **extra)),
    )


def run_scan(op: Op, x: Any, axis: Any, reverse: bool, ties: Any) -> Any:
    x = _float_array(x, "x")
    if axis is None:
        x, axis = x.reshape(-1), 0
    return run(_scan_pair(op, x.shape, x.dtype, axis, reverse, ties), "forward", {"x": x})[0]


@lru_cache(maxsize=4096)
def _reduce_pair(op: Op, shape: Any, dtype: Any, axis: Any, correction: Any, ties: Any) -> Pair:
    fields = {"reduce_axis": axis, "element": dtype, "correction": correction}
    extra = {} if ties is None else {"ties": ties}
    return _pair(
        p.ReducePlan.select(d.ReduceDescriptor(op.kind, shape, **fields)),
        p.ReduceBackwardPlan.select(d.ReduceBackwardDescriptor(op.kind, shape, **fields, **extra)),
    )


def run_reduce(
    op: Op, x: Any, axis: Any, keepdims: bool, where: Any, correction: Any, ties: Any
) -> Any:
    _no_where(op, where)
    x = _float_array(x, "x")
    pair = _reduce_pair(op, x.shape, x.dtype, _hashable(axis), correction, ties)
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
    axes = d.normalize_axes(axis, len(shape), "axis")
    fields = {"softmax_axis": -1, "element": dtype}
    forward = p.SoftmaxPlan.select(d.SoftmaxDescriptor(op.kind, shape, **fields))
    backward = p.SoftmaxBackwardPlan.select(d.SoftmaxBackwardDescriptor(op.kind, shape, **fields))
    return Pair(replace(forward._problem, axes=axes), replace(backward._problem, axes=axes))


def run_softmax(op: Op, x: Any, axis: Any, where: Any) -> Any:
    _no_where(op, where)
    x = _float_array(x, "x")
    pair = _softmax_pair(op, x.shape, x.dtype, _hashable(axis))
    return run(pair, "forward", {"x": x})[0]


@lru_cache(maxsize=4096)
def _lerp_pair(op: Op, shape: Any, dtype: Any, weight: str) -> Pair:
    fields = (op.kind, shape, dtype, float.fromhex(weight))
    return _pair(
        p.BinaryParamPlan.select(d.BinaryParamDescriptor(*fields)),
        p.BinaryParamBackwardPlan.select(d.BinaryParamBackwardDescriptor(*fields)),
    )


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
    # The weight is looked up by its text: 0.0 equals -0.0 and NaN does not equal itself.
    pair = _lerp_pair(op, a.shape, a.dtype, weight.hex())
    return run(pair, "forward", {"a": a, "b": b})[0]


@lru_cache(maxsize=4096)
def _segment_pair(
    op: Op, rows: int, width: int, segments: int, dtype: Any, is_sorted: bool
) -> Pair:
    fields = (rows, width, segments, dtype, OutOfRange.DROP)
    return _pair(_segment_plan(fields, is_sorted), _segment_backward_plan(fields, is_sorted))


def _segment_plan(fields: tuple, is_sorted: bool) -> p.Plan:
    if is_sorted:
        return p.SegmentSumPlan.select(d.SegmentSumDescriptor(*fields))
    return p.UnsortedSegmentSumPlan.select(d.UnsortedSegmentSumDescriptor(*fields))


def _segment_backward_plan(fields: tuple, is_sorted: bool) -> p.Plan:
    if is_sorted:
        return p.SegmentSumBackwardPlan.select(d.SegmentSumBackwardDescriptor(*fields))
    return p.UnsortedSegmentSumBackwardPlan.select(d.UnsortedSegmentSumBackwardDescriptor(*fields))


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
    fields = (data.shape[0], width, num_segments, element_kind(data.dtype))
    if parse_enum(OutOfRange, out_of_range, "out_of_range") is OutOfRange.RAISE:
        known = np.asarray(_known(ids, 'out_of_range="raise"'))
        plan = _segment_plan((*fields, OutOfRange.RAISE), bool(is_sorted))
        plan.check_values({IDS: view(known, IDS)})
    pair = _segment_pair(op, *fields, bool(is_sorted))
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
