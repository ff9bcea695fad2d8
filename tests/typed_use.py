"""What a type checker must make of the public API. Checked by mypy, not run.

Lines marked ``type: ignore`` must be errors: an ignore that is not needed is one itself.
"""

from typing import Any

import jax
import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import assert_type

import pullback as pb
import pullback.jax as pj
import pullback.torch as pt


def functions(x: NDArray[np.float32], ids: NDArray[np.int64], t: torch.Tensor) -> None:
    assert_type(pb.cumsum_backward(x), NDArray[np.float32])
    assert_type(pb.cumprod_backward(x, x=x, y=x, axis=0, out=x), NDArray[np.float32])
    assert_type(pb.cummax_backward(t, x=t, ties="last"), torch.Tensor)
    assert_type(pb.sum(x, (0, 1), keepdims=True), NDArray[np.float32])
    assert_type(pb.sum_backward(t, shape=(2, 3), axis=1), torch.Tensor)
    assert_type(pb.std_backward(x, x=x, y=x, correction=0), NDArray[np.float32])
    assert_type(pb.softmax_backward(t, y=t), torch.Tensor)
    assert_type(pb.lerp_backward(t, weight=0.25), tuple[torch.Tensor, torch.Tensor])
    assert_type(pb.segment_sum(x, ids, 4, out_of_range="drop"), NDArray[np.float32])
    pb.cumprod_backward(x, x=x)  # type: ignore[call-arg]
    pb.cummax_backward(x, x=x, ties="split")  # type: ignore[arg-type]
    pb.max_backward(x, x=x, y=x, ties="middle")  # type: ignore[call-overload]
    pb.cumsum_backward(x, 0)  # type: ignore[call-arg]
    pb.convolve(x)  # type: ignore[attr-defined]


def shape_of_a_matrix_is_forgotten(
    x: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> None:
    assert_type(pb.max(x, 1), NDArray[np.float64])
    assert_type(pb.cumsum(x), np.ndarray[tuple[int, int], np.dtype[np.float64]])


def plans(x: Any) -> None:
    descriptor = pb.ReduceBackwardDescriptor("max", (4, 8), 1, element=np.float32, ties="all")
    assert_type(descriptor.kind, pb.ReduceKind)
    assert_type(descriptor.element, pb.ElementKind)
    plan = pb.ReduceBackwardPlan.select(descriptor, pb.PlanPreference(backend="numba", threads=2))
    assert_type(plan, pb.ReduceBackwardPlan)
    assert_type(plan.needs, frozenset[str])
    assert_type(plan.sku.precision_guarantee.deterministic, bool)
    plan.run(dy=x, x=x, y=x, dx=x, stream=pb.Stream(threads=1))
    pb.ReduceBackwardDescriptor("max", 4)  # type: ignore[arg-type]


def integrations(x: jax.Array, t: torch.Tensor) -> None:
    assert_type(pj.logcumsumexp(x, axis=0, reverse=True), jax.Array)
    assert_type(pj.max(x, (0, 1), ties="first"), jax.Array)
    assert_type(pt.logcumsumexp(t, 0), torch.Tensor)
    pj.cummax(x, ties="split")  # type: ignore[arg-type]
    pj.cumsum_backward(x)  # type: ignore[attr-defined]
