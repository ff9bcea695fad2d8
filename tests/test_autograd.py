"""A second opinion: torch's float64 autograd on random data, forward and backward."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cells import OPS, Cell, as_tuple
from grid import default

SHAPE = (4, 6, 50)
KINDS = sorted({op.kind for op in OPS.values()})

# torch rounds as often as the library does, in another order: n terms, a few roundings each,
# relative to numbers of the size of the largest result.
EPS = 2.0**-53
ROUNDINGS = 16


def forward_in_torch(cell: Cell):
    """The op as torch writes it, from leaves to the output."""
    axis, kind = cell.axis, cell.op.kind
    keep = {"keepdim": True}
    scans = {
        "cumsum": torch.cumsum,
        "cumprod": torch.cumprod,
        "cummax": lambda x, a: torch.cummax(x, a).values,
        "cummin": lambda x, a: torch.cummin(x, a).values,
        "logcumsumexp": torch.logcumsumexp,
    }
    if kind in scans:
        if cell.reverse:
            return lambda x: scans[kind](x.flip(axis), axis).flip(axis)
        return lambda x: scans[kind](x, axis)
    return {
        "sum": lambda x: x.sum(axis, **keep),
        "mean": lambda x: x.mean(axis, **keep),
        "max": lambda x: x.amax(axis, **keep),
        "min": lambda x: x.amin(axis, **keep),
        "prod": lambda x: x.prod(axis, **keep),
        "norm2": lambda x: torch.linalg.vector_norm(x, 2, axis, **keep),
        "logsumexp": lambda x: x.logsumexp(axis, **keep),
        "var": lambda x: x.var(axis, correction=cell.correction, **keep),
        "std": lambda x: x.std(axis, correction=cell.correction, **keep),
        "softmax": lambda x: x.softmax(axis),
        "log_softmax": lambda x: x.log_softmax(axis),
        "lerp": lambda a, b: torch.lerp(a, b, cell.weight),
    }[kind]


def close(actual: np.ndarray, expected: np.ndarray, extent: int, what: str) -> None:
    assert actual.shape == expected.shape
    scale = np.abs(expected).max()
    error = np.abs(actual - expected).max()
    assert error <= ROUNDINGS * extent * EPS * scale, f"{what}: off by {error} beside {scale}"


def cells(kind: str) -> list[Cell]:
    op = OPS[kind]
    base = default(op, "f64", SHAPE)
    if op.family == "scan":
        return [replace(base, axis=a, reverse=r) for a in (0, 1, 2) for r in (False, True)]
    if op.family == "reduce":
        axes = (0, 1, 2) if kind == "prod" else (0, 1, 2, (0, 1), (1, 2), (0, 1, 2))
        corrections = (0, 1, 2) if kind in ("var", "std") else (1,)
        return [replace(base, axis=a, correction=c) for a in axes for c in corrections]
    if op.family == "lerp":
        return [replace(base, weight=w) for w in (0.3, 1.5)]
    return [replace(base, axis=a) for a in (0, 1, 2)]


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "segment_sum"])
def test_gradient_equals_torch(kind):
    rng = np.random.default_rng(7)
    for cell in cells(kind):
        op = cell.op
        arrays = [rng.standard_normal(SHAPE) for _ in op.inputs]
        leaves = [torch.from_numpy(a).clone().requires_grad_() for a in arrays]
        y = forward_in_torch(cell)(*leaves)
        forward = cell.run_function(dict(zip(op.inputs, arrays, strict=True)))
        close(forward, y.detach().numpy(), cell.extent, str(cell))
        dy = rng.standard_normal(y.shape)
        gradients = torch.autograd.grad(y, leaves, torch.from_numpy(dy))
        backward = OPS[f"{kind}_backward"]
        ties = backward.ties[0] if backward.ties else None
        cell = replace(cell, op=backward, ties=ties)
        saved = {"x": arrays[0], "y": forward}
        given = {"dy": dy, **{n: saved[n] for n in backward.needs}}
        for ours, theirs in zip(as_tuple(cell.run_function(given)), gradients, strict=True):
            close(ours, theirs.numpy(), cell.extent, str(cell))
        cell.cover("C", "torch")


@pytest.mark.parametrize("ids_dtype", ["int32", "int64"])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_segment_sum_equals_torch(is_sorted, ids_dtype):
    rng = np.random.default_rng(8)
    x = rng.standard_normal((300, 17))
    ids = rng.integers(0, 40, 300)
    ids = (np.sort(ids) if is_sorted else ids).astype(ids_dtype)
    cell = replace(
        default(OPS["segment_sum"], "f64", x.shape), num_segments=40, is_sorted=is_sorted
    )
    leaf = torch.from_numpy(x).clone().requires_grad_()
    y = torch.zeros(40, 17, dtype=torch.float64).index_add(0, torch.from_numpy(ids).long(), leaf)
    close(cell.run_function({"input": x, "segment_ids": ids}), y.detach().numpy(), 300, "forward")
    dy = rng.standard_normal(y.shape)
    y.backward(torch.from_numpy(dy))
    backward = replace(cell, op=OPS["segment_sum_backward"])
    result = backward.run_function({"d_output": dy, "segment_ids": ids})
    assert np.array_equal(result, leaf.grad.numpy())
    backward.cover("C", "torch")


@pytest.mark.parametrize("kind", ["cummax", "cummin"])
def test_ties_last_are_torch_ties(kind):
    x = np.random.default_rng(9).integers(-2, 3, (8, 40)).astype(float)
    leaf = torch.from_numpy(x).clone().requires_grad_()
    y = forward_in_torch(default(OPS[kind], "f64", x.shape))(leaf)
    dy = np.random.default_rng(10).integers(-4, 5, x.shape).astype(float)
    y.backward(torch.from_numpy(dy))
    cell = replace(default(OPS[f"{kind}_backward"], "f64", x.shape), ties="last")
    assert np.array_equal(cell.run_function({"dy": dy, "x": x}), leaf.grad.numpy())


@pytest.mark.parametrize("kind", ["max", "min"])
def test_ties_split_are_torch_ties(kind):
    x = np.random.default_rng(9).integers(-2, 3, (8, 40)).astype(float)
    leaf = torch.from_numpy(x).clone().requires_grad_()
    y = forward_in_torch(default(OPS[kind], "f64", x.shape))(leaf)
    y.sum().backward()
    cell = default(OPS[f"{kind}_backward"], "f64", x.shape)
    given = {"dy": np.ones((8, 1)), "x": x, "y": y.detach().numpy()}
    close(cell.run_function(given), leaf.grad.numpy(), 1, str(cell))
