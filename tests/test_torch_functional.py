"""``pullback.torch.functional`` beside ``torch.nn.functional``."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional as own

import pullback.torch as pt
from pullback import PullbackError
from torch_ops import data

REDUCTIONS = ["mean", "sum", "none"]


def both(logits, target, *args, **kwargs):
    """Losses and gradients of both."""
    found = []
    for functional in (pt.functional, own):
        x = logits.clone().requires_grad_()
        loss = functional.cross_entropy(x, target, *args, **kwargs)
        (dx,) = torch.autograd.grad(loss.sum() * 2, x)
        found.append((loss, dx))
    return found


def the_same(logits, target, *args, **kwargs):
    """Our loss, which is torch's."""
    ours, torchs = both(logits, target, *args, **kwargs)
    for a, b in zip(ours, torchs, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)
    return ours[0]


def is_on_kernels(loss):
    nodes, names = [loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        names.add(type(node).__name__)
        nodes += [n for n, _ in node.next_functions if n is not None]
    return any("ullback" in name for name in names)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(4, 5), (5,), (2, 5, 3), (2, 5, 3, 2)], ids=str)
def test_losses_of_classes(shape, dtype, reduction):
    rows = (*shape[:1], *shape[2:]) if len(shape) > 1 else ()
    target = torch.randint(0, 5, rows, generator=torch.Generator().manual_seed(1))
    for how in ({}, {"label_smoothing": 0.1}, {"ignore_index": 2, "label_smoothing": 0.2}):
        loss = the_same(data(shape, dtype), target, reduction=reduction, **how)
        assert is_on_kernels(loss)
    if rows:
        ignored = target.clone()
        ignored.flatten()[0] = -100
        assert is_on_kernels(the_same(data(shape, dtype), ignored, reduction=reduction))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nothing_but_ignored_rows(reduction):
    loss = the_same(data((3, 5)), torch.full((3,), -100), reduction=reduction)
    assert loss.isnan() if reduction == "mean" else (loss == 0).all()


def test_the_average_is_the_default():
    logits, target = data((6, 5), torch.float32), torch.arange(6) % 5
    mean = pt.functional.cross_entropy(logits, target)
    assert mean.shape == ()
    assert mean.dtype is torch.float32
    assert torch.equal(mean, pt.functional.cross_entropy(logits, target, reduction="mean"))


def test_what_is_torchs_own():
    logits, target = data((4, 5)), torch.tensor([0, 4, 2, 1])
    weight = data((5,)).abs()
    calls = [
        ((target, weight), {}),
        ((target,), {"weight": weight, "reduction": "none"}),
        ((logits.softmax(1),), {}),
        ((target,), {"size_average": False}),
        ((target,), {"reduce": False}),
    ]
    for args, kwargs in calls:
        is_old = bool({"reduce", "size_average"} & {*kwargs})
        with pytest.warns(UserWarning, match="deprecated") if is_old else nullcontext():
            assert not is_on_kernels(the_same(logits, *args, **kwargs))
    for functional in (pt.functional, own):
        with pytest.raises(ValueError, match="not a valid value for reduction"):
            functional.cross_entropy(logits, target, reduction="average")
        with pytest.raises((ValueError, RuntimeError)):
            functional.cross_entropy(logits, target[:3])
        with pytest.raises(RuntimeError):
            functional.cross_entropy(logits, target.int())
        with pytest.raises(TypeError):
            functional.cross_entropy(None, target)


def test_a_class_out_of_range():
    logits = data((2, 5))
    for functional in (pt.functional, own):
        for smoothing in (0.0, 0.1, 1.5):
            with pytest.raises((IndexError, RuntimeError)) as raised:
                functional.cross_entropy(logits, torch.tensor([0, 5]), label_smoothing=smoothing)
            assert not isinstance(raised.value, PullbackError)


def test_derivatives_and_transforms():
    logits, target = data((3, 4)).requires_grad_(), torch.tensor([1, -100, 3])

    def loss(x):
        return pt.functional.cross_entropy(x, target, label_smoothing=0.1)

    assert torch.autograd.gradcheck(loss, logits)
    assert torch.autograd.gradgradcheck(loss, logits)
    x = logits.detach()
    torch.testing.assert_close(
        torch.func.grad(loss)(x),
        torch.func.grad(lambda x: own.cross_entropy(x, target, label_smoothing=0.1))(x),
    )
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(logits), loss(logits))


def test_under_autocast_it_is_torchs_own():
    logits, target = data((3, 4), torch.bfloat16), torch.tensor([1, 0, 3])
    with torch.autocast("cpu", torch.bfloat16):
        found, want = (f.cross_entropy(logits, target) for f in (pt.functional, own))
    assert found.dtype is want.dtype
    assert torch.equal(found, want)
