"""Results and gradients of pullback.torch beside torch's own, and by bytes beside NumPy's."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import ml_dtypes  # noqa: F401 - NumPy's name for bfloat16
import numpy as np
import pytest
import torch

import pullback as pb
import pullback.torch as pt
from torch_ops import (
    CORRECTED,
    DTYPES,
    EVERY_KIND,
    FAMILY,
    KINDS,
    SIMPLE,
    WEIGHT,
    Simple,
    cases,
    data,
    few_cases,
    function,
    leaf,
    operands,
    peer,
    values,
)

NUMPY = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": "bfloat16"}


def run(of, kind, tensors, arguments, keywords):
    """Result and gradients, from a gradient that is not all ones."""
    result = of(*tensors, *arguments, **keywords)
    y = values(result)
    dy = data(tuple(y.shape), y.dtype, seed=9)
    return result, torch.autograd.grad(y, tensors, dy)


def exact(kind, tensors, arguments, keywords):
    """torch's own in float64: the yardstick for the narrower types."""
    wide = [t.detach().double().requires_grad_() for t in tensors]
    result = values(peer(kind)(*wide, *arguments, **keywords))
    dy = data(tuple(result.shape), tensors[0].dtype, seed=9).double()
    return [result, *torch.autograd.grad(result, wide, dy)]


def close(got, want, terms):
    """Within the rounding of the stored type, and of as many terms in float64."""
    eps = torch.finfo(got.dtype).eps
    slack = 64 * terms * torch.finfo(torch.float64).eps
    assert got.shape == want.shape
    torch.testing.assert_close(
        got.double(), want, rtol=eps + slack, atol=eps * 1e-3 + slack, equal_nan=True
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_and_gradients_are_torchs(kind, dtype):
    # Every form of arguments is walked in one type.
    for shape, arguments, keywords in cases(kind) if dtype == "f64" else few_cases(kind):
        tensors = operands(kind, shape, DTYPES[dtype])
        result, grads = run(function(kind), kind, tensors, arguments, keywords)
        own = values(peer(kind)(*tensors, *arguments, **keywords))
        y = values(result)
        assert (y.dtype, y.shape) == (own.dtype, own.shape), (shape, arguments, keywords)
        want_y, *want_grads = exact(kind, tensors, arguments, keywords)
        close(y, want_y, y.numel() + 1)
        for grad, want in zip(grads, want_grads, strict=True):
            assert grad.dtype == tensors[0].dtype
            # A backward reads the rounded output: exp(y) is then off by |y| roundings, and is
            # multiplied by a sum of up to seven gradients of at most 1.5.
            peak = float(want_y.detach().nan_to_num().abs().max()) if y.numel() else 0.0
            slack = torch.finfo(grad.dtype).eps * (1 + peak) * 7 * 1.5
            torch.testing.assert_close(grad.double(), want, rtol=slack, atol=slack)


@pytest.mark.parametrize("kind", ["cummax", "cummin"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_indices_are_torchs(kind, dtype):
    generator = torch.Generator().manual_seed(1)
    for shape in [(5, 7), (2, 3, 600), (3, 40, 2), (6,), (1,), (4, 1), ()]:
        x = torch.randint(-2, 3, shape, generator=generator).to(DTYPES[dtype])
        x = torch.where(x == 0, -x, x)  # zeros of either sign are equal
        if x.numel() > 8:
            x.view(-1)[torch.randperm(x.numel(), generator=generator)[::9]] = float("nan")
        for dim in range(max(1, x.dim())):
            got, want = function(kind)(x, dim), peer(kind)(x, dim)
            assert type(got) is type(want)
            assert torch.equal(got.indices, want.indices)
            torch.testing.assert_close(got.values, want.values, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", ["cummax", "cummin"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("ties", ["first", "last"])
def test_indices_say_where_the_gradient_goes(kind, reverse, ties):
    x = torch.tensor([[1.0, 2.0, 2.0, 1.0, 2.0, 1.0]], dtype=torch.float64, requires_grad=True)
    y, indices = function(kind)(x, 1, reverse=reverse, ties=ties)
    dy = data((1, 6))
    assert torch.equal(torch.gather(x, 1, indices), y)
    (dx,) = torch.autograd.grad(y, x, dy)
    assert torch.allclose(dx, torch.zeros_like(x).scatter_add(1, indices, dy))
    columns = function(kind)(x.T, 0, reverse=reverse, ties=ties)
    assert torch.equal(columns.indices.T, indices)


@pytest.mark.parametrize("kind", ["max", "min"])
def test_ties_of_extremes(kind):
    x = torch.tensor([3.0, 1.0, 3.0, 1.0], dtype=torch.float64, requires_grad=True)
    dy = torch.tensor(2.0, dtype=torch.float64)

    def grad(**ties):
        return torch.autograd.grad(function(kind)(x, 0, **ties), x, dy)[0].tolist()

    own = torch.autograd.grad(peer(kind)(x, 0), x, dy)[0].tolist()
    assert grad() == grad(ties="split") == own
    held = [k for k, g in enumerate(own) if g]
    assert [k for k, g in enumerate(grad(ties="first")) if g] == held[:1]
    assert [k for k, g in enumerate(grad(ties="last")) if g] == held[1:]
    assert grad(ties="all") == [2 * g for g in own]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_are_those_of_numpy(kind, dtype):
    """Forward and backward run the same kernels as pullback's functions: the same bytes."""
    x = leaf(6, 21, dtype=DTYPES[dtype])

    def array(t):
        flat = t.detach().view({4: torch.int32, 8: torch.int64, 2: torch.int16}[t.element_size()])
        return flat.numpy().view(NUMPY[dtype])

    if kind == "lerp":
        other = leaf(6, 21, dtype=DTYPES[dtype], seed=1)
        y = pt.lerp(x, other, WEIGHT)
        dy = data((6, 21), DTYPES[dtype], 5)
        ours = [y, *torch.autograd.grad(y, (x, other), dy)]
        theirs = [
            pb.lerp(array(x), array(other), WEIGHT),
            *pb.lerp_backward(array(dy), weight=WEIGHT),
        ]
    elif kind == "segment_sum":
        ids = torch.tensor([1, 0, 1, 2, 2, 1])
        y = pt.segment_sum(x, ids, 3)
        dy = data((3, 21), DTYPES[dtype], 5)
        ours = [y, *torch.autograd.grad(y, x, dy)]
        theirs = [
            pb.segment_sum(array(x), ids.numpy(), 3),
            pb.segment_sum_backward(array(dy), ids.numpy()),
        ]
    else:
        y = values(function(kind)(x, 1))
        dy = data(tuple(y.shape), DTYPES[dtype], 5)
        ours = [y, *torch.autograd.grad(y, x, dy)]
        given, backward = array(x), getattr(pb, f"{kind}_backward")
        result = getattr(pb, kind)(given, 1)
        needs = pb.catalog()[[op.name for op in pb.catalog()].index(f"{kind}_backward")].needs
        saved = {n: v for n, v in (("x", given), ("y", result)) if n in needs}
        if FAMILY[kind] == "reduce" and "x" not in needs:
            saved["shape"] = given.shape
        if kind in ("cummax", "cummin"):
            saved["ties"] = "last"
        theirs = [result, backward(array(dy), axis=1, **saved)]
    for mine, numpys in zip(ours, theirs, strict=True):
        assert array(mine.contiguous()).tobytes() == np.ascontiguousarray(numpys).tobytes()


@pytest.mark.parametrize("kind", [k for k in KINDS if FAMILY[k] == "scan"])
def test_reverse_is_the_mirror(kind):
    x = leaf(3, 9)
    dy = data((3, 9), seed=2)
    y = values(function(kind)(x, 1, reverse=True))
    mirrored = values(function(kind)(x.flip(1), 1)).flip(1)
    assert torch.equal(y, mirrored)
    (got,), (want,) = torch.autograd.grad(y, x, dy), torch.autograd.grad(mirrored, x, dy)
    assert torch.equal(got, want)


@pytest.mark.parametrize("kind", ["cumsum", "cumprod", "sum", "mean", "prod", "softmax"])
def test_dtype_is_cast_to_first(kind):
    x = leaf(3, 4, dtype=torch.float32)
    got, want = function(kind)(x, 1, dtype=torch.float64), peer(kind)(x, 1, dtype=torch.float64)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, want)
    (grad,) = torch.autograd.grad(got.sum(), x)
    assert grad.dtype == torch.float32


@pytest.mark.parametrize("kind", ["cumsum", "cummax", "sum", "max", "prod"])
def test_other_dtypes_are_torchs(kind):
    x = torch.tensor([[3, 1, 3], [2, 2, 1]])
    got, want = function(kind)(x, 1), peer(kind)(x, 1)
    assert torch.equal(values(got), values(want))
    assert values(got).dtype == values(want).dtype
    if kind == "cummax":
        assert torch.equal(got.indices, want.indices)
    z = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    if kind in ("cumsum", "sum", "prod"):
        (ours,) = torch.autograd.grad(function(kind)(z, 0).abs().sum(), z)
        (own,) = torch.autograd.grad(peer(kind)(z, 0).abs().sum(), z)
        torch.testing.assert_close(ours, own)


@pytest.mark.parametrize("kind", CORRECTED)
def test_no_degrees_of_freedom_is_as_in_torch(kind):
    for shape, correction in [((1,), 1), ((3,), 3), ((3,), 5), ((3,), 2.5), ((0,), 0)]:
        x = leaf(*shape)
        warns = correction >= shape[0]
        with pytest.warns(UserWarning, match="degrees of freedom") if warns else nullcontext():
            got = function(kind)(x, 0, correction=correction)
            want = peer(kind)(x, 0, correction=correction)
            torch.testing.assert_close(got, want, equal_nan=True)
            ours, own = torch.autograd.grad(got, x), torch.autograd.grad(want, x)
        torch.testing.assert_close(ours, own, equal_nan=True)


def test_refusals_are_torchs():
    x = torch.zeros(2, 3)
    for call in (
        lambda: pt.cumsum(x, 2),
        lambda: pt.softmax(x, -3),
        lambda: pt.sum(x, (0, 5)),
        lambda: pt.amax(torch.zeros(0, 3), 0),
    ):
        with pytest.raises(IndexError):
            call()
    with pytest.raises(RuntimeError, match="multiple times"):
        pt.sum(x, (1, -1))
    for extreme in (torch.max, torch.amin, pt.max, pt.min, pt.amax, pt.amin):
        for dtype in (torch.float32, torch.int64):
            with pytest.raises(RuntimeError):
                extreme(torch.zeros(0, 3, dtype=dtype))
    with pytest.raises(pb.InvalidProblemError, match="at least one element"):
        pt.max(torch.zeros(0))
    with pytest.raises(TypeError):
        pt.cumsum(np.zeros(3), 0)
    with pytest.raises(TypeError):
        pt.cumsum(x)


def test_lerp_broadcasts_and_sums_back():
    a, b = leaf(3, 1), leaf(4, seed=1)
    for weight in (0.25, torch.tensor(0.25, dtype=torch.float64, requires_grad=True)):
        inputs = (a, b, weight) if isinstance(weight, torch.Tensor) else (a, b)
        got, want = pt.lerp(a, b, weight), torch.lerp(a, b, weight)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(
            torch.autograd.grad(got.square().sum(), inputs),
            torch.autograd.grad(want.square().sum(), inputs),
        )


def test_segments():
    x = leaf(5, 2, 3)
    ids = torch.tensor([4, -1, 0, 2, 0])
    with pytest.raises(pb.InvalidProblemError):
        pt.segment_sum(x, ids, 3)
    got = pt.segment_sum(x, ids, 3, out_of_range="drop")
    want = torch.stack([x[2] + x[4], torch.zeros(2, 3), x[3]])
    torch.testing.assert_close(got, want.double())
    (dx,) = torch.autograd.grad(got, x, data((3, 2, 3)))
    assert not dx[:2].any()
    assert torch.equal(dx[3], data((3, 2, 3))[2])
    ascending = torch.tensor([0, 0, 1, 3, 3], dtype=torch.int32)
    strided = leaf(3, 2, 5).permute(2, 0, 1)
    same = pt.segment_sum(strided, ascending.long(), 4)
    assert torch.equal(pt.segment_sum(strided, ascending, 4, sorted=True), same)
    assert not same[2].any()


@pytest.mark.parametrize("kind", ["cumprod", "var", "log_softmax", "lerp", "segment_sum"])
def test_memory_of_any_kind(kind):
    """Strides, expansion, odd addresses and pending negation change nothing."""
    simple = Simple(kind)
    x = data((3, 4))
    dy = data(tuple(simple.ours(x).shape), seed=3)

    def both(given, grad):
        given = given.detach().requires_grad_()
        y = simple.ours(given)
        return y, torch.autograd.grad(y, given, grad)[0]

    want_y, want_dx = both(x, dy)
    flat = torch.empty(8 * 12 + 1, dtype=torch.uint8)[1:].numpy()
    odd = torch.frombuffer(flat, dtype=torch.float64).view(3, 4)
    odd.copy_(x)
    negated = torch.view_as_complex(torch.stack([x, -x], -1)).conj().imag
    assert negated.is_neg()
    layouts = [
        x.T.contiguous().T,
        torch.stack([x, x], -1)[..., 0],
        torch.stack([x, x], 1)[:, 1],
        odd,
        negated,
    ]
    for given in layouts:
        y, dx = both(given, dy)
        assert torch.equal(y, want_y)
        assert torch.equal(dx, want_dx)
    many = torch.stack([dy, dy], -1)[..., 1]
    assert torch.equal(both(x, many)[1], want_dx)
    one = dy.flatten()[0].expand(dy.shape)
    assert torch.equal(both(x, one)[1], both(x, one.contiguous())[1])
    zero = torch._efficientzerotensor(dy.shape, dtype=dy.dtype)
    assert not both(x, zero)[1].any()


def test_results_do_not_share_memory_with_operands():
    x = data((3, 4))
    for simple in SIMPLE:
        y = simple.ours(x)
        assert y.data_ptr() != x.data_ptr()
        assert y.is_contiguous()


def test_parameters_and_plain_tensors_agree():
    x = data((3, 4))
    parameter = torch.nn.Parameter(x.clone())
    y = pt.softmax(parameter, 1)
    assert type(y) is torch.Tensor
    assert y.requires_grad
    assert torch.equal(y, pt.softmax(x, 1))
    y.square().sum().backward()
    assert parameter.grad is not None


def test_saved_tensors_are_watched():
    """Writing into a tensor that a backward needs is refused, as by torch."""
    x = leaf(3, 4)
    y = pt.softmax(x, 1)
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y.sum(), x)


NOTHING = torch.empty(0, dtype=torch.int64)
MORE_OPERANDS = {
    "lerp": lambda x: (x, x, WEIGHT),
    "linear_recurrence": lambda x: (x, x),
    "discounted_sum": lambda x: (x, 0.5),
    "gae": lambda x: (x, x, x),
    "cross_entropy": lambda x: (x, NOTHING),
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")  # torch's own
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_rows_of_which_there_are_none(kind):
    """Results and gradients have their shapes, and no way leads back to itself."""
    x = torch.zeros(0, 3, requires_grad=True)
    more: dict[str, Any] = {"gamma": 0.9, "lam": 0.9} if kind == "gae" else {}
    if FAMILY[kind] == "segment":
        arguments: tuple = (x, NOTHING, 2)
    else:
        arguments = MORE_OPERANDS.get(kind, lambda x: (x,))(x)
        if FAMILY[kind] in ("reduce", "scan", "softmax"):
            arguments = (*arguments, 1)
    found = function(kind)(*arguments, **more)
    first = found[0] if isinstance(found, tuple) else found
    assert first.shape[0] in (0, 2)
    if first.requires_grad:
        first.sum().backward()
        assert x.grad.shape == (0, 3)
