"""pullback.torch.pyg beside what PyTorch Geometric says of its functions, written in torch ops."""

from __future__ import annotations

import inspect

import pytest
import torch

import pullback as pb
import pullback.torch as pt
from pullback.torch import pyg

INDEX = torch.tensor([4, 0, 4, 1, 0, 4, 6])  # nothing has index 2, 3 or 5
PTR = torch.tensor([0, 2, 2, 6, 7])
SIZE = 8
REDUCTIONS = ("sum", "add", "mean", "mul", "min", "max", "amin", "amax")


def values(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    # Ties in most groups.
    found = torch.randint(-3, 4, shape, generator=generator).to(torch.float32) / 2
    return found.requires_grad_()


def scattered(src, index, dim, size, reduce):
    """As documented: the values of an index reduced; of none 0, or 1 for a product."""
    full = index.reshape([-1 if d == dim % src.dim() else 1 for d in range(src.dim())])
    shape = list(src.shape)
    shape[dim] = size
    names = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}
    # A start of 0 would count as one more holder of an extreme of 0 in torch's gradient.
    start = torch.full(shape, 9 if "m" in reduce else 0, dtype=src.dtype)
    name, full = names.get(reduce, reduce), full.expand_as(src)
    found = start.scatter_reduce(dim, full, src, name, include_self=False)
    count = torch.zeros(shape).scatter_add(dim, full, torch.ones(src.shape))
    return found.where(count > 0, int(reduce == "mul"))


def softmaxed(src, index, dim):
    """As documented, but for the epsilon: exp over the sum of the group's."""
    shifted = src - scattered(src.detach(), index, dim, SIZE, "max").index_select(dim, index)
    e = shifted.exp()
    return e / scattered(e, index, dim, SIZE, "sum").index_select(dim, index)


def same(got, wanted, src):
    torch.testing.assert_close(got, wanted)
    weights = torch.linspace(-1, 1, got.numel(), dtype=got.dtype).reshape(got.shape)
    ours, theirs = (torch.autograd.grad((y * weights).sum(), src)[0] for y in (got, wanted))
    torch.testing.assert_close(ours, theirs)


def test_signatures():
    """Those of torch_geometric.utils."""
    shown = {
        f: [(p.name, p.default) for p in inspect.signature(getattr(pyg, f)).parameters.values()]
        for f in pyg.__all__
    }
    must, none = inspect.Parameter.empty, None
    assert shown == {
        "scatter": [
            ("src", must), ("index", must), ("dim", 0), ("dim_size", none), ("reduce", "sum")
        ],
        "segment": [("src", must), ("ptr", must), ("reduce", "sum")],
        "softmax": [
            ("src", must), ("index", none), ("ptr", none), ("num_nodes", none), ("dim", 0)
        ],
    }  # fmt: skip
    assert pt.pyg is pyg


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_scatter(reduce):
    for dim, shape in ((0, (7, 3)), (-1, (2, 3, 7))):
        src = values(shape)
        got = pyg.scatter(src, INDEX, dim, SIZE, reduce)
        same(got, scattered(src, INDEX, dim, SIZE, reduce), src)
    assert pyg.scatter(src, INDEX, -1, reduce=reduce).shape == (2, 3, 7)
    whole = torch.arange(7)
    assert torch.equal(
        pyg.scatter(whole, INDEX, 0, SIZE, reduce), scattered(whole, INDEX, 0, SIZE, reduce)
    )


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_segment(reduce):
    src, index = values((7, 3)), torch.tensor([0, 0, 2, 2, 2, 2, 3])
    same(pyg.segment(src, PTR, reduce), scattered(src, index, 0, 4, reduce), src)
    assert torch.equal(
        pyg.segment(torch.arange(7), PTR, reduce), scattered(torch.arange(7), index, 0, 4, reduce)
    )


def test_softmax():
    for dim, shape in ((0, (7, 3)), (1, (3, 7))):
        src = values(shape)
        same(pyg.softmax(src, INDEX, dim=dim), softmaxed(src, INDEX, dim), src)
        same(pyg.softmax(src, INDEX, num_nodes=9, dim=dim), softmaxed(src, INDEX, dim), src)
    index = torch.tensor([0, 0, 2, 2, 2, 2, 3])
    src = values((7, 3))
    same(pyg.softmax(src, None, PTR), softmaxed(src, index, 0), src)
    same(pyg.softmax(src, INDEX, PTR), softmaxed(src, index, 0), src)
    assert pyg.softmax(torch.zeros(1), torch.tensor([5])).item() == 1.0  # no epsilon
    assert pyg.softmax(values((0, 3)), INDEX[:0]).shape == (0, 3)


def test_refusals():
    src = values((7, 3))
    for call, error, text in (
        (lambda: pyg.scatter(src, INDEX, reduce="any"), ValueError, "reduce: expected one of"),
        (lambda: pyg.scatter(src, INDEX[:, None]), ValueError, "index: expected one dimension"),
        (lambda: pyg.scatter(src, INDEX, 2), ValueError, "dim: expected"),
        (lambda: pyg.scatter(src, INDEX, 0, 5), pb.InvalidProblemError, "segment_ids: .* got 6"),
        (lambda: pyg.segment(src, PTR[None]), ValueError, "ptr: expected one dimension"),
        (lambda: pyg.softmax(src), NotImplementedError, "expected index or ptr"),
    ):
        with pytest.raises(error, match=text):
            call()
