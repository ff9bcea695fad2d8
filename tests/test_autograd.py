"""A second opinion: torch's float64 autograd on random data, forward and backward."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from cells import OPS, cover
from grid import default, has_axes
from pullback.tools.case import Case

SHAPE = (4, 6, 50)
# The kinds that torch has, as forward_in_torch writes them.
TORCH = (
    "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "sum", "mean", "max", "min", "prod",
    "norm2", "logsumexp", "var", "std", "softmax", "log_softmax", "lerp",
)  # fmt: skip

# torch rounds as often as the library does, in another order: n terms, a few roundings each,
# relative to numbers of the size of the largest result.
EPS = 2.0**-53
ROUNDINGS = 16


def forward_in_torch(case: Case):
    """The op as torch writes it, from leaves to the output."""
    axis, kind = case.get("axis"), case.op.kind
    keep = {"keepdim": True}
    scans = {
        "cumsum": torch.cumsum,
        "cumprod": torch.cumprod,
        "cummax": lambda x, a: torch.cummax(x, a).values,
        "cummin": lambda x, a: torch.cummin(x, a).values,
        "logcumsumexp": torch.logcumsumexp,
    }
    if kind in scans:
        if case.get("reverse"):
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
        "var": lambda x: x.var(axis, correction=case.get("correction"), **keep),
        "std": lambda x: x.std(axis, correction=case.get("correction"), **keep),
        "softmax": lambda x: x.softmax(axis),
        "log_softmax": lambda x: x.log_softmax(axis),
        "lerp": lambda a, b: torch.lerp(a, b, case.get("weight")),
    }[kind]


def close(actual: np.ndarray, expected: np.ndarray, extent: int, what: str) -> None:
    assert actual.shape == expected.shape
    scale = np.abs(expected).max()
    error = np.abs(actual - expected).max()
    assert error <= ROUNDINGS * extent * EPS * scale, f"{what}: off by {error} beside {scale}"


# torch's prod takes one axis.
ONE_AXIS = ("prod",)


def cases(kind: str) -> list[Case]:
    op = OPS[kind]
    several = has_axes(op) and kind not in ONE_AXIS
    choices = {
        "axis": (0, 1, 2, (0, 1), (1, 2), (0, 1, 2)) if several else (0, 1, 2),
        "reverse": (False, True),
        "correction": (0, 1, 2),
        "weight": (0.3, 1.5),
    }
    held = {n: v for n, v in choices.items() if op.parameter(n)}
    base = default(op, "f64", SHAPE)
    return [base.but(**dict(zip(held, v, strict=True))) for v in product(*held.values())]


@pytest.mark.parametrize("kind", TORCH)
def test_gradient_equals_torch(kind):
    rng = np.random.default_rng(7)
    for case in cases(kind):
        arrays = {n: rng.standard_normal(SHAPE) for n in case.reads}
        leaves = [torch.from_numpy(a).clone().requires_grad_() for a in arrays.values()]
        y = forward_in_torch(case)(*leaves)
        forward = case.call(arrays)
        close(forward, y.detach().numpy(), case.extent, str(case))
        dy = rng.standard_normal(y.shape)
        gradients = torch.autograd.grad(y, leaves, torch.from_numpy(dy))
        case = case.but(op=OPS[f"{kind}_backward"])
        known = {**arrays, "y": forward, "dy": dy}
        given = {n: known[n] for n in case.reads}
        for ours, theirs in zip(case.results(given).values(), gradients, strict=True):
            close(ours, theirs.numpy(), case.extent, str(case))
        cover(case, "C", "torch")


@pytest.mark.parametrize("ids_dtype", ["int32", "int64"])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_segment_sum_equals_torch(is_sorted, ids_dtype):
    rng = np.random.default_rng(8)
    x = rng.standard_normal((300, 17))
    ids = rng.integers(0, 40, 300)
    ids = (np.sort(ids) if is_sorted else ids).astype(ids_dtype)
    case = default(OPS["segment_sum"], "f64", x.shape).but(segments=40, is_sorted=is_sorted)
    leaf = torch.from_numpy(x).clone().requires_grad_()
    y = torch.zeros(40, 17, dtype=torch.float64).index_add(0, torch.from_numpy(ids).long(), leaf)
    close(case.call({"input": x, "segment_ids": ids}), y.detach().numpy(), 300, "forward")
    dy = rng.standard_normal(y.shape)
    y.backward(torch.from_numpy(dy))
    backward = case.but(op=OPS["segment_sum_backward"])
    result = backward.call({"d_output": dy, "segment_ids": ids})
    assert np.array_equal(result, leaf.grad.numpy())
    cover(backward, "C", "torch")


@pytest.mark.parametrize("kind", ["cummax", "cummin"])
def test_ties_last_are_torch_ties(kind):
    x = np.random.default_rng(9).integers(-2, 3, (8, 40)).astype(float)
    leaf = torch.from_numpy(x).clone().requires_grad_()
    y = forward_in_torch(default(OPS[kind], "f64", x.shape))(leaf)
    dy = np.random.default_rng(10).integers(-4, 5, x.shape).astype(float)
    y.backward(torch.from_numpy(dy))
    case = default(OPS[f"{kind}_backward"], "f64", x.shape).but(ties="last")
    assert np.array_equal(case.call({"dy": dy, "x": x}), leaf.grad.numpy())


@pytest.mark.parametrize("kind", ["max", "min"])
def test_ties_split_are_torch_ties(kind):
    x = np.random.default_rng(9).integers(-2, 3, (8, 40)).astype(float)
    leaf = torch.from_numpy(x).clone().requires_grad_()
    y = forward_in_torch(default(OPS[kind], "f64", x.shape))(leaf)
    y.sum().backward()
    case = default(OPS[f"{kind}_backward"], "f64", x.shape)
    given = {"dy": np.ones((8, 1)), "x": x, "y": y.detach().numpy()}
    close(case.call(given), leaf.grad.numpy(), 1, str(case))
