"""What the JAX tests share: JAX's own functions, cases that reach every convention, and data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pullback as pb
import pullback.jax as pj

FAMILY = {op.name: op.family for op in pb.catalog() if op.direction == "forward"}
DTYPES = {"f32": jnp.float32, "f64": jnp.float64, "f16": jnp.float16, "bf16": jnp.bfloat16}
IDS = np.array([2, 0, 3, 2, 0, 7, -1, 3, 1], np.int32)
SEGMENTS = 4
WEIGHT = 0.375


def _norm2(x, axis=None, keepdims=False):
    return jnp.sqrt(jnp.sum(x * x, axis=axis, keepdims=keepdims))


def _scan(function):
    """A scan of jax.lax, which knows no negative axes."""
    return lambda x, axis, reverse=False: function(x, axis % x.ndim, reverse)


# JAX's own, with the same keywords; segment_sum and lerp have their own signatures.
PEERS: dict[str, Callable[..., Any]] = {
    "cumsum": _scan(jax.lax.cumsum),
    "cumprod": _scan(jax.lax.cumprod),
    "cummax": _scan(jax.lax.cummax),
    "cummin": _scan(jax.lax.cummin),
    "logcumsumexp": _scan(jax.lax.cumlogsumexp),
    "sum": jnp.sum,
    "mean": jnp.mean,
    "max": jnp.max,
    "min": jnp.min,
    "prod": jnp.prod,
    "norm2": _norm2,
    "logsumexp": jax.nn.logsumexp,
    "var": jnp.var,
    "std": jnp.std,
    "softmax": jax.nn.softmax,
    "log_softmax": jax.nn.log_softmax,
    "lerp": lambda a, b, weight: a + weight * (b - a),
    "segment_sum": jax.ops.segment_sum,
}

NAMES = list(PEERS)


def in_turn(names: list[str], *ways: Any) -> list[tuple[str, Any]]:
    """Every name with one of the ways, by turns: functions of one family meet them all."""
    return [(name, ways[k % len(ways)]) for k, name in enumerate(names)]


def cases(name: str) -> list[tuple[tuple[int, ...], dict[str, Any]]]:
    """Shapes and keywords: negative axes, several axes, kept axes, rank 0 and 1, length 1."""
    cube = (3, 5, 4)
    match FAMILY[name]:
        case "scan":
            return [
                (cube, {"axis": 1}),
                (cube, {"axis": -1, "reverse": True}),
                (cube, {"axis": 0}),
                ((7,), {"axis": 0, "reverse": True}),
                ((1, 1), {"axis": -1}),
            ]
        case "reduce":
            plain = [
                (cube, {"axis": 1}),
                (cube, {"axis": -1, "keepdims": True}),
                (cube, {"axis": (1, 2)}),
                (cube, {"axis": (-2, 0), "keepdims": True}),
                (cube, {}),
                (cube, {"axis": None, "keepdims": True}),
                ((7,), {"axis": -1}),
                ((), {}),
            ]
            if name in ("var", "std"):
                plain[-1] = ((7,), {"correction": 1})
                plain.append((cube, {"axis": 2, "ddof": 2}))
            return plain
        case "softmax":
            return [
                (cube, {}),
                (cube, {"axis": 0}),
                (cube, {"axis": -2}),
                (cube, {"axis": (1, 2)}),
                (cube, {"axis": None}),
                ((7,), {"axis": 0}),
                ((1,), {}),
            ]
        case "lerp":
            return [(cube, {}), ((7,), {}), ((), {})]
    return [((9, 4), {}), ((9, 2, 3), {}), ((9,), {}), ((9, 4), {"indices_are_sorted": True})]


def bind(name: str, keywords: dict[str, Any], module: Any = pj) -> Callable[..., Any]:
    """The function of arrays alone: of ``pullback.jax``, or JAX's own."""
    function = PEERS[name] if module is None else getattr(module, name)
    if name == "lerp":
        return lambda a, b: function(a, b, WEIGHT)
    if name == "segment_sum":
        ids = np.sort(IDS) if keywords.get("indices_are_sorted") else IDS
        return lambda data: function(data, ids, SEGMENTS, **keywords)
    return lambda x: function(x, **keywords)


def arity(name: str) -> int:
    """How many arrays an op takes that gradients flow to."""
    return 2 if name == "lerp" else 1


def data(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    """Distinct multiples of 1/128 in [0.5, 1.5], exact in every dtype: no ties, no cancellation."""
    size = int(np.prod(shape))
    picked = np.random.default_rng(seed).permutation(np.arange(64, 193))[:size]
    return (picked / 128).reshape(shape).astype(dtype)


def inputs(name: str, shape: tuple[int, ...], dtype: Any) -> list[np.ndarray]:
    """The arrays of a call."""
    return [data(shape, dtype, seed) for seed in range(arity(name))]


def bytes_of(array: Any) -> tuple[Any, ...]:
    """Everything that equal results share."""
    array = np.asarray(array)
    return array.shape, array.dtype, array.tobytes()
