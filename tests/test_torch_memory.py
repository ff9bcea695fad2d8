"""Tensors whose memory is not what it seems: read right, or refused; never read by address."""

from __future__ import annotations

import pytest
import torch

import pullback as pb
import pullback.torch as pt
from torch_ops import Simple, data

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:.*(CSR|nested tensors).*:UserWarning"),
]

# One of every family, and the one with indices.
ONES = [Simple(kind) for kind in ("cumsum", "cummax", "sum", "softmax", "lerp", "segment_sum")]
each = pytest.mark.parametrize("simple", ONES, ids=lambda s: s.kind)


@each
def test_tensors_that_are_no_arrays_are_refused(simple):
    x = data(dtype=torch.float32)
    simple.ours(x)  # what is prepared for an array of this shape must not serve them
    unlike = [
        x.to_sparse(),
        x.to_sparse_csr(),
        x.to_mkldnn(),
        x.clone().requires_grad_().to_sparse(),
        data((3, 5), torch.float32).to_sparse(),
    ]
    if simple.kind != "lerp":  # the other operand is made from the first
        unlike.append(torch.nested.nested_tensor([x[0], x[1]]))
    else:
        simple = _Halved("lerp")
    for given in unlike:
        with pytest.raises(TypeError, match="expected a strided tensor"):
            simple.ours(given)


class _Halved(Simple):
    """lerp of a tensor with itself: torch cannot flip those that are no arrays."""

    def ours(self, x):
        return pt.lerp(x, x, 0.5)


def test_a_sparse_gradient_is_refused():
    w = data(dtype=torch.float32).requires_grad_()
    rows = torch.nn.functional.embedding(torch.tensor([1, 2]), pt.softmax(w, 1), sparse=True)
    with pytest.raises(TypeError, match="expected a strided tensor"):
        torch.autograd.grad(rows.square().sum(), w)


@each
@pytest.mark.parametrize("shape", [(3, 4), ()])
def test_tracing_is_refused(simple, shape):
    """torch.jit.trace would record the empty result, and not the kernel that fills it."""
    if shape == () and simple.kind in ("segment_sum", "lerp"):
        shape = (3,)
    dim = len(shape) - 1
    scalar = {"cumsum": pt.cumsum, "cummax": pt.cummax, "sum": pt.sum, "softmax": pt.softmax}

    def ours(x):
        if x.dim() == 0:
            result = scalar[simple.kind](x, dim)
            return result if isinstance(result, torch.Tensor) else result.values
        return simple.ours(x)

    for x in (data(shape), data(shape).requires_grad_()):
        ours(x)
        with pytest.raises(pb.UnsupportedError, match=r"torch\.jit\.trace"):
            torch.jit.trace(ours, (x,), check_trace=False)


def test_tracing_a_transform_is_refused():
    def batched(x):
        return torch.func.vmap(lambda row: pt.softmax(row, 0))(x)

    with pytest.raises(pb.UnsupportedError, match=r"torch\.jit\.trace"):
        torch.jit.trace(batched, (data(),), check_trace=False)


@each
def test_freed_storage_is_refused(simple):
    x = data()
    simple.ours(x)
    x = x.clone()
    if simple.kind == "lerp":
        simple = _Halved("lerp")
    x.untyped_storage().resize_(0)
    with pytest.raises(pb.UnsupportedError, match="storage was freed"):
        simple.ours(x)


def test_a_copied_layout_does_not_serve_the_original():
    """Negated and misaligned tensors are copied; others of their strides are read in place."""
    z = torch.view_as_complex(data((3, 4, 2)))
    plain, negated = z.imag, z.conj().imag
    assert negated.is_neg()
    assert negated.stride() == plain.stride() == (8, 2)
    for x in (negated, plain):
        torch.testing.assert_close(pt.cumsum(x, 1), torch.cumsum(x, 1))

    buffer = torch.empty(8 * 24 + 1, dtype=torch.uint8)
    odd = torch.frombuffer(buffer[1:].numpy(), dtype=torch.float64).view(3, 8)[:, ::2]
    odd.copy_(plain)
    for x in (odd, plain):
        torch.testing.assert_close(pt.cumprod(x, 1), torch.cumprod(x, 1))

    # Gradients take the same way.
    w = data().requires_grad_()
    y = pt.logsumexp(torch.stack([w, w], -1), 2)
    for dy in (negated, plain):
        (got,) = torch.autograd.grad(y, w, dy, retain_graph=True)
        torch.testing.assert_close(got, dy)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_places_of_extremes_in_negated_and_misaligned_memory(name):
    negated = torch._neg_view(data())
    assert negated.is_neg()
    assert negated.is_contiguous()
    buffer = torch.empty(8 * negated.numel() + 1, dtype=torch.uint8)
    odd = torch.frombuffer(buffer[1:].numpy(), dtype=torch.float64).view(negated.shape)
    odd.copy_(negated)
    for x in (negated, odd, negated.t()):
        found, own = (getattr(of, name)(x, 1) for of in (pt, torch))
        assert torch.equal(found.values, own.values)
        assert torch.equal(found.indices, own.indices)


def test_another_default_device_changes_nothing():
    """What a call allocates for itself lies where its operands lie."""
    x = data((2**14,))  # long enough for the threads to share, in a workspace
    w = data().requires_grad_()
    want, indices = pt.logcumsumexp(x, 0), pt.cummax(x, 0).indices
    with torch.device("meta"):
        assert torch.equal(pt.logcumsumexp(x, 0), want)
        assert torch.equal(pt.cummax(x, 0).indices, indices)
        y = pt.cummax(w, 1).values
        (dw,) = torch.autograd.grad(y.sum(), w)
    assert dw.device.type == "cpu"
