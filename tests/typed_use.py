"""What a type checker must make of the public API. Checked by mypy, not run.

Lines marked ``type: ignore`` must be errors: an ignore that is not needed is one itself.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
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
    assert_type(pb.lerp_backward(x, weight=x, a=x, b=x)[2], NDArray[np.float32])
    assert_type(pb.linear_recurrence(x, x, initial=x), NDArray[np.float32])
    _, final = pb.linear_recurrence(x, x, return_final=True)
    assert_type(final, NDArray[np.float64])
    assert_type(pb.linear_recurrence_backward(t, a=t, y=t)[2], torch.Tensor | None)
    assert_type(pb.segment_max(x, offsets=ids, empty=0.0), NDArray[np.float32])
    assert_type(pb.gae(t, t, t, gamma=0.9, lam=1.0), tuple[torch.Tensor, torch.Tensor])
    pb.gae(t, t, t, gamma=0.9)  # type: ignore[call-arg]
    assert_type(pb.cumprod_backward(x, x=x), NDArray[np.float32])
    pb.logcumsumexp_backward(x, x=x)  # type: ignore[call-arg]
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
    plan.run(d_output=x, dx=x)  # type: ignore[call-arg]
    pb.ReduceBackwardDescriptor("max", 4)  # type: ignore[arg-type]
    assert_type(descriptor.reduce_axis, tuple[int, ...])
    assert_type(descriptor.dy_shape(), tuple[int, ...])
    assert_type(dataclasses.replace(descriptor, correction=0), pb.ReduceBackwardDescriptor)
    descriptor.ties = pb.Ties.FIRST  # type: ignore[misc]
    segment = pb.SegmentDescriptor("segment_sum", 5, 3, 4, sorted=True, out_of_range="drop")
    assert_type(segment.kind, pb.SegmentKind)
    pb.SegmentDescriptor("segment_sum", 5, 3, 4, "f32", True)  # type: ignore[call-arg]


def plans_of_any_op(x: Any) -> None:
    descriptor = pb.Descriptor("lerp_backward", (2, 3), np.float64, weight=0.5)
    assert_type(descriptor.parameters["weight"], Any)
    assert_type(descriptor.op, pb.Op)
    plan = pb.Plan.select(descriptor)
    assert_type(plan, pb.Plan)
    assert_type(plan.reads, frozenset[str])
    assert_type(plan.workspace_size, int)
    plan.run(dy=x, da=x, db=None)
    pb.Descriptor("lerp_backward")  # type: ignore[call-arg]


def integrations(x: jax.Array, t: torch.Tensor) -> None:
    assert_type(pj.logcumsumexp(x, axis=0, reverse=True), jax.Array)
    assert_type(pj.max(x, (0, 1), ties="first"), jax.Array)
    assert_type(pt.logcumsumexp(t, 0), torch.Tensor)
    assert_type(pt.cummax(t, 0, ties="last"), torch.return_types.cummax)
    assert_type(pt.std(t, False), torch.Tensor)
    assert_type(pt.linear_recurrence(t, t, return_final=True), tuple[torch.Tensor, torch.Tensor])
    assert_type(pj.linear_recurrence(x, x), jax.Array)
    pt.amax(t, ties="middle")  # type: ignore[arg-type]
    assert_type(pt.max(t, 0), torch.return_types.max)
    assert_type(pt.var_mean(t, axis=0), tuple[torch.Tensor, torch.Tensor])
    assert_type(pt.linalg.vector_norm(t), torch.Tensor)
    assert_type(pj.sum(x, 0, jnp.float32, None, True), jax.Array)
    pt.cumsum(t, 0, ties="first")  # type: ignore[call-arg]
    pj.cummax(x, ties="split")  # type: ignore[arg-type]
    pj.cumsum_backward(x)  # type: ignore[attr-defined]
