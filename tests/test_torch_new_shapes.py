"""Ops of every shape that torch's own do not have, each with all that torch has for an op."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.func import jacrev, jvp, vmap

import pullback as pb
import pullback.torch as pt
from pullback.core.catalog import register, unregister
from pullback.formulas.primitives import INF
from torch_ops import data
from torch_shapes import (
    ALLOWED,
    AS_IDS,
    BY_IDS,
    BY_OFFSETS,
    MORE,
    RESETS,
    SHAPES,
    TABLE,
    TARGETS,
    TWO_RESULTS,
    Shape,
    recurrence_by_loop,
)

# torch's own, at the first use of forward mode.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")


@pytest.fixture(scope="module", autouse=True)
def _registered():
    for op in TWO_RESULTS:
        register(op)
    yield
    for op in TWO_RESULTS:
        unregister(op.name)


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    yield
    torch._dynamo.reset()


every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_call = pytest.mark.parametrize("shape", [*SHAPES, *MORE], ids=str)


def tensors_of(result):
    return result if isinstance(result, tuple) else (result,)


def weights(t, k):
    return 1 + k + torch.arange(t.numel(), dtype=torch.float64).reshape(t.shape) % 3


def number(of):
    """A number that every result has a different part in."""

    def loss(*tensors):
        results = enumerate(tensors_of(of(*tensors)))
        return sum((weights(t, k) * t.square()).sum() for k, t in results)

    return loss


@every_call
def test_results_and_gradients(shape: Shape):
    leaves = shape.leaves()
    for with_gradient in (True, False):
        given = leaves if with_gradient else [t.detach() for t in leaves]
        for got, want in zip(
            *map(tensors_of, (shape.ours(*given), shape.torchs(*given))), strict=True
        ):
            assert got.shape == want.shape
            assert got.requires_grad == with_gradient
            torch.testing.assert_close(got, want)
    got, want = (
        torch.autograd.grad(number(f)(*leaves), leaves) for f in (shape.ours, shape.torchs)
    )
    torch.testing.assert_close(got, want)
    assert all("Pullback" in type(t.grad_fn).__name__ for t in tensors_of(shape.ours(*leaves)))


def test_log_softmax_with_a_mask():
    """What is masked is -inf, and no number can be made of it."""
    x = data(TABLE).requires_grad_()
    y, want = pt.log_softmax(x, 1, where=ALLOWED), x[:, ALLOWED].log_softmax(1)
    assert (y[:, ~ALLOWED] == -INF).all()
    torch.testing.assert_close(y[:, ALLOWED], want)
    got, own = (torch.autograd.grad(number(lambda t: t)(t), x) for t in (y[:, ALLOWED], want))
    torch.testing.assert_close(got, own)


@every_shape
def test_results_of_which_one_is_used(shape: Shape):
    leaves = shape.leaves()
    for k in range(len(tensors_of(shape.torchs(*leaves)))):
        got, want = (
            torch.autograd.grad(tensors_of(f(*leaves))[k].square().sum(), leaves)
            for f in (shape.ours, shape.torchs)
        )
        torch.testing.assert_close(got, want)


@every_shape
def test_derivatives(shape: Shape):
    leaves = shape.leaves()
    assert gradcheck(shape.ours, leaves, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(shape.ours, leaves, check_batched_grad=True)


@pytest.mark.parametrize(
    "how", [{"exclusive": True}, {"resets": RESETS}], ids=["exclusive", "resets"]
)
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"])
def test_derivatives_of_scans(name, how):
    def scan(x):
        # The first of an exclusive scan may be infinite, whatever x is.
        return getattr(pt, name)(x, 1, **how)[:, 1:]

    x = data(TABLE).requires_grad_()
    assert gradcheck(scan, [x], check_forward_ad=True)
    assert gradgradcheck(scan, [x])


@every_shape
def test_transforms(shape: Shape):
    inputs = shape.inputs()
    every = tuple(range(len(inputs)))
    for order in (1, 2):
        got, want = number(shape.ours), number(shape.torchs)
        for _ in range(order):
            got, want = jacrev(got, argnums=every), jacrev(want, argnums=every)
        torch.testing.assert_close(got(*inputs), want(*inputs))
    tangents = tuple(data(s, seed=20 + k) for k, s in enumerate(shape.shapes))
    got, want = (jvp(f, tuple(inputs), tangents) for f in (shape.ours, shape.torchs))
    torch.testing.assert_close(got, want)
    batch = [torch.stack([t, t.flip(0) + 0.125]) for t in inputs]
    examples = [tensors_of(shape.ours(*[t[k] for t in batch])) for k in range(2)]
    for dim in (0, -1):
        moved = [t.movedim(0, dim) for t in batch]
        for k, got in enumerate(tensors_of(vmap(shape.ours, in_dims=dim)(*moved))):
            assert torch.equal(got, torch.stack([e[k] for e in examples]))
    pull = torch.func.grad(number(shape.ours), argnums=every)
    both = [pull(*[t[k] for t in batch]) for k in range(2)]
    for k, got in enumerate(vmap(pull)(*batch)):
        assert torch.equal(got, torch.stack([g[k] for g in both]))
    # Only one of the operands differs from example to example.
    alone = vmap(pull, in_dims=(0, *[None] * (len(inputs) - 1)))(batch[0], *inputs[1:])
    torch.testing.assert_close(alone[0][1], pull(batch[0][1], *inputs[1:])[0])


@every_shape
def test_compiled_exported_and_without_memory(shape: Shape):
    leaves = shape.leaves()
    want = torch.autograd.grad(number(shape.ours)(*leaves), leaves)
    for dynamic in (False, True):
        compiled = torch.compile(
            number(shape.ours), fullgraph=True, backend="aot_eager", dynamic=dynamic
        )
        got = torch.autograd.grad(compiled(*leaves), leaves)
        assert all(map(torch.equal, got, want))
    inputs = shape.inputs()
    transformed = torch.compile(
        torch.func.grad(number(shape.ours)), fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(transformed(*inputs), want[0])

    class Module(torch.nn.Module):
        def forward(self, *tensors):
            return shape.ours(*tensors)

    exported = torch.export.export(Module(), tuple(inputs))
    assert f"pullback.{shape.kind}." in str(exported.graph)
    real = tensors_of(shape.ours(*leaves))
    for got, own in zip(tensors_of(exported.module()(*inputs)), real, strict=True):
        assert torch.equal(got, own)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(t) for t in leaves]
        results = tensors_of(shape.ours(*fakes))
        grads = torch.autograd.grad(number(shape.ours)(*fakes), fakes)
    for got, own in zip(results, real, strict=True):
        assert (got.shape, got.stride(), got.dtype) == (own.shape, own.stride(), own.dtype)
    assert [g.shape for g in grads] == [t.shape for t in leaves]


@every_call
def test_memory_of_any_kind(shape: Shape):
    """Strides, odd addresses and pending negation change nothing."""
    inputs = shape.inputs()
    want = tensors_of(shape.ours(*inputs))

    def strided(t):
        return torch.stack([t, t], -1)[..., 0]

    def odd(t):
        flat = torch.empty(8 * t.numel() + 1, dtype=torch.uint8)[1:].numpy()
        return torch.frombuffer(flat, dtype=torch.float64).view(t.shape).copy_(t)

    def negated(t):
        return torch.view_as_complex(torch.stack([t, -t], -1)).conj().imag

    for layout in (strided, odd, negated):
        got = tensors_of(shape.ours(*map(layout, inputs)))
        assert all(map(torch.equal, got, want))


@every_shape
def test_other_element_types(shape: Shape):
    for dtype in (torch.float32, torch.bfloat16):
        leaves = [t.to(dtype).requires_grad_() for t in shape.inputs()]
        for got, want in zip(
            *map(tensors_of, (shape.ours(*leaves), shape.torchs(*[t.double() for t in leaves]))),
            strict=True,
        ):
            assert got.dtype in (dtype, torch.float64)
            near = torch.finfo(dtype).eps
            torch.testing.assert_close(got.double(), want, rtol=near, atol=near)
        grads = torch.autograd.grad(number(shape.ours)(*leaves), leaves)
        assert [g.dtype for g in grads] == [dtype] * len(leaves)


def test_registered_ops_pass_opcheck():
    from pullback.torch.operations import kind_of

    a, b, s = (data(n, seed=k).requires_grad_() for k, n in enumerate((TABLE, TABLE, (3,))))
    operation = kind_of("linear_recurrence").operation(("initial",), ("return_final",))
    torch.library.opcheck(operation.op, (a, b, s, 1, False))
    assert operation.op.name() == "pullback::linear_recurrence.initial_return_final"
    y, final = (t.detach().requires_grad_() for t in operation((1, False), a, b, s))
    dy, d_final = (torch.ones_like(t).requires_grad_() for t in (y, final))
    given = [t.detach().requires_grad_() for t in (dy, a, y, s, d_final)]
    torch.library.opcheck(operation.op_backward, (*given, 1, False))


def test_a_state_is_float64_and_goes_on():
    a, b = (data((2, 8), torch.float32, seed=k) for k in range(2))
    whole, final = pt.linear_recurrence(a, b, return_final=True)
    assert final.dtype == torch.float64
    first, between = pt.linear_recurrence(a[:, :3], b[:, :3], return_final=True)
    second = pt.linear_recurrence(a[:, 3:], b[:, 3:], initial=between)
    assert torch.equal(torch.cat([first, second], 1), whole)
    start = torch.zeros(2, 1, requires_grad=True)  # in the shape that keeps the dimension
    y, end = pt.linear_recurrence(a, b, initial=start, return_final=True)
    assert end.shape == (2, 1)
    (grad,) = torch.autograd.grad(y.sum() + end.sum(), start)
    assert (grad.shape, grad.dtype) == (start.shape, start.dtype)


def test_what_only_the_backward_reads_is_not_differentiable():
    x = data(TABLE).requires_grad_()
    loss, lse = pt.cross_entropy(x, TARGETS)
    assert loss.requires_grad
    assert not lse.requires_grad
    torch.testing.assert_close(lse, x.logsumexp(1))


def test_a_kind_without_a_backward_gives_constants():
    x, later = data(TABLE).requires_grad_(), data(TABLE, seed=1)

    def advantages(x, dim=1):
        return pt.gae(x, later, later, gamma=0.5, lam=0.5, dim=dim)[0]

    factor = torch.tensor(0.25, dtype=torch.float64)
    want = recurrence_by_loop(factor, x.detach() - 0.5 * later, None, 1, True)[0]
    assert not advantages(x).requires_grad
    torch.testing.assert_close(advantages(x), want)
    want = advantages(x)
    rows = vmap(lambda x, v: pt.gae(x, v, v, gamma=0.5, lam=0.5, dim=0)[0])(x.detach(), later)
    assert torch.equal(rows, want)
    grad = torch.func.grad(lambda x: (advantages(x) * x).sum())(x.detach())
    assert torch.equal(grad, want)
    _, pushed = jvp(lambda x: advantages(x) + x, (x.detach(),), (torch.ones_like(x),))
    assert torch.equal(pushed, torch.ones_like(x))
    compiled = torch.compile(lambda x: advantages(x) * x, fullgraph=True, backend="aot_eager")
    assert torch.equal(torch.autograd.grad(compiled(x).sum(), x)[0], want)


def test_ties_are_the_backwards_to_say():
    x = torch.tensor([[1.0], [3.0], [3.0]], dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([0, 0, 0])
    for ties, want in (("split", [0.0, 0.5, 0.5]), ("first", [0.0, 1.0, 0.0])):

        def run(x, ties=ties):
            return pt.segment_max(x, ids, 2, ties=ties)[:1]

        (grad,) = torch.autograd.grad(run(x).sum(), x)
        assert grad.flatten().tolist() == want
        tangent = data((3, 1))
        _, pushed = jvp(run, (x.detach(),), (tangent,))
        torch.testing.assert_close(pushed.sum(), (tangent.flatten() * grad.flatten()).sum())
    assert pt.segment_max(x, ids, 2)[1].item() == -INF


def test_batches_of_ids_and_of_offsets():
    x = data((2, 5, 3))
    ids = torch.stack([BY_IDS, AS_IDS])
    offsets = torch.stack([BY_OFFSETS, torch.tensor([1, 1, 2, 4])])

    def by_ids(x, ids):
        return pt.segment_max(x, ids, 4)

    def by_offsets(x, offsets):
        return pt.segment_max(x, offsets=offsets)

    for run, cuts in ((by_ids, ids), (by_offsets, offsets)):
        want = torch.stack([run(*one) for one in zip(x, cuts, strict=True)])
        assert torch.equal(vmap(run)(x, cuts), want)
        pull = torch.func.grad(lambda x, cut, run=run: run(x, cut).nan_to_num().square().sum())
        each = torch.stack([pull(*one) for one in zip(x, cuts, strict=True)])
        assert torch.equal(vmap(pull)(x, cuts), each)


def test_signatures_and_docstrings_follow_from_the_rows():
    shown = str(inspect.signature(pt.linear_recurrence))
    assert shown == (
        "(a, b, dim=-1, *, initial=None, resets=None, offsets=None, reverse=False, "
        "return_final=False)"
    )
    shown = str(inspect.signature(pt.segment_max))
    assert shown == (
        "(input, segment_ids=None, num_segments=None, *, offsets=None, sorted=False, "
        "out_of_range='raise', empty=-inf, ties='split')"
    )
    assert str(inspect.signature(pt.mean_and_power)) == "(input, dim=None, keepdim=False)"
    assert str(inspect.signature(pt.lerp)) == "(input, end, weight, *, out=None)"
    assert "\ndim : " in pt.mean_and_power.__doc__
    assert "constants" in pt.gae.__doc__


def test_refusals_name_the_operand():
    x = data(TABLE)
    with pytest.raises(pb.InvalidProblemError, match="where: expected a shape that broadcasts"):
        pt.softmax(x, 1, where=torch.ones(3, dtype=torch.bool))
    with pytest.raises(pb.InvalidProblemError, match="resets: expected 4 elements along"):
        pt.cumsum(x, 1, resets=torch.ones(3, 1, dtype=torch.bool))
    with pytest.raises(pb.InvalidProblemError, match="offsets: expected offsets that ascend"):
        pt.cumsum(x, 1, offsets=BY_OFFSETS)
    with pytest.raises(pb.InvalidProblemError, match="offsets: expected it or resets, got both"):
        pt.cumsum(x, 1, resets=ALLOWED, offsets=BY_OFFSETS)
    with pytest.raises(pb.InvalidProblemError, match="segment_ids or offsets, got neither"):
        pt.segment_max(x)
    with pytest.raises(pb.InvalidProblemError, match="segment_ids or offsets, got both"):
        pt.segment_max(x, TARGETS, offsets=BY_OFFSETS)
    with pytest.raises(pb.InvalidProblemError, match="b: expected element f64, got f32"):
        pt.linear_recurrence(x, x.float())
    with pytest.raises(pb.InvalidProblemError, match="initial: expected shape"):
        pt.linear_recurrence(x, x, initial=x[0])
    with pytest.raises(pb.UnsupportedError, match="where: expected element bool"):
        pt.softmax(x, 1, where=ALLOWED.int())
    with pytest.raises(TypeError, match="'initial' must be Tensor"):
        pt.linear_recurrence(x, x, initial=0.0)
    with pytest.raises(pb.UnsupportedError, match="expected a float tensor"):
        pt.linear_recurrence(x.int(), x.int())
    with pytest.raises(IndexError):
        pt.linear_recurrence(x, x, 2)
    with pytest.raises(pb.InvalidProblemError, match="return_final"):
        pt.linear_recurrence(x, x, return_final=1)
