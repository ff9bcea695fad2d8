"""pullback.torch inside torch's machinery: torch.func, compile, export, fake tensors, modes."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.func import functionalize, grad, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import pullback.torch as pt
from pullback.torch.operations import operation
from torch_ops import (
    DTYPES,
    FAMILIES,
    FAMILY,
    IDS,
    KINDS,
    SEGMENTS,
    SIMPLE,
    Simple,
    data,
    function,
    leaf,
    peer,
    values,
)

# torch's own: the first use of forward mode, and cummax batched in forward mode.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
]

every_kind = pytest.mark.parametrize("simple", SIMPLE, ids=KINDS)
# One of each family, where the machinery and not the op is on trial: torch takes a second for each.
one_of_each = pytest.mark.parametrize("simple", [Simple(k) for k in FAMILIES], ids=FAMILIES)


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    yield
    torch._dynamo.reset()


def loss_of(of):
    return lambda x: of(x).square().sum()


def gradient(of, x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(loss_of(of)(x), x)[0]


@every_kind
def test_vmap_over_every_dim(simple: Simple):
    x = data((2, 3, 4))
    want = torch.stack([simple.ours(example) for example in x])
    for dim in range(3):
        got = vmap(simple.ours, in_dims=dim)(x.movedim(0, dim))
        assert torch.equal(got, want)
    out = vmap(simple.ours, out_dims=-1)(x)
    assert torch.equal(out, want.movedim(0, -1))


@one_of_each
def test_compositions(simple: Simple):
    x = data((2, 3, 4))
    each = torch.stack([gradient(simple.ours, example) for example in x])
    loss, own = loss_of(simple.ours), loss_of(simple.torchs)
    assert torch.equal(vmap(grad(loss))(x), each)
    assert torch.equal(grad(lambda x: vmap(loss)(x).sum())(x), each)
    y, pull = vjp(simple.ours, x[0])
    tangents = data((5, *y.shape), seed=1)
    rows = torch.stack([pull(t)[0] for t in tangents])
    assert torch.equal(vmap(pull)(tangents)[0], rows)
    t = data((2, 3, 4), seed=2)
    for transform in (
        lambda f: vmap(lambda x, t: jvp(f, (x,), (t,))[1])(x, t),
        lambda f: jvp(vmap(f), (x,), (t,))[1],
        lambda f: jvp(vmap(grad(f)), (x,), (t,))[1],
        lambda f: vmap(lambda x, t: grad(lambda x: jvp(f, (x,), (t,))[1])(x))(x, t),
    ):
        torch.testing.assert_close(transform(loss), transform(own))


@pytest.mark.parametrize("kind", [k for k in KINDS if FAMILY[k] not in ("lerp", "segment")])
def test_vmap_of_single_elements(kind):
    """Examples of rank 0 have one dimension too few to scan."""
    x = data((5,))
    keywords = {"correction": 0} if kind in ("var", "std") else {}

    def run(of):
        return lambda x: values(of(x, 0, **keywords)) * 3

    ours, own = run(function(kind)), run(peer(kind))
    assert torch.equal(vmap(ours)(x), torch.stack([ours(v) for v in x]))
    torch.testing.assert_close(vmap(grad(ours))(x), vmap(grad(own))(x))


def test_vmap_over_segment_ids():
    ids = torch.tensor([[2, 0, 3], [1, 1, 5]])
    x = data((2, 3, 4))

    def run(x, ids):
        return pt.segment_sum(x, ids, SEGMENTS, out_of_range="drop")

    want = torch.stack([run(a, b) for a, b in zip(x, ids, strict=True)])
    assert torch.equal(vmap(run)(x, ids), want)
    assert torch.equal(
        vmap(run, in_dims=(2, None), out_dims=2)(x.movedim(0, 2), ids[0])[..., 1], run(x[1], ids[0])
    )
    assert torch.equal(vmap(run, in_dims=(None, 0))(x[0], ids)[1], run(x[0], ids[1]))
    got = vmap(grad(lambda x, i: run(x, i).square().sum()))(x, ids)
    each = [gradient(lambda x, i=i: run(x, i), a) for a, i in zip(x, ids, strict=True)]
    assert torch.equal(got, torch.stack(each))


@one_of_each
def test_registered_ops_pass_opcheck(simple: Simple):
    op = operation(simple.kind)
    chosen = {
        "axis": (1,) if FAMILY[simple.kind] == "reduce" else 1,
        "reverse": True,
        "keepdims": False,
        "correction": 0.5,
        "ties": "last",
        "weight": 0.3,
        "num_segments": SEGMENTS,
        "sorted": False,
        "out_of_range": "raise",
    }
    params = tuple({**op.of.beyond, **chosen}[n] for n in op.forward.names)
    tensors = [IDS if o.name == "segment_ids" else leaf() for o in op.forward.reads]
    torch.library.opcheck(op.op, (*tensors, *params))
    y = op(params, *tensors).detach()
    saved = op.path.saved(tensors, (y,))
    saves = [t.detach().requires_grad_(t.is_floating_point()) for t in saved]
    backward = op.backward_parameters(params, tensors)
    dy = data(tuple(y.shape), seed=1).requires_grad_()
    torch.library.opcheck(op.op_backward, (dy, *saves, *backward))


@one_of_each
def test_compile_whole_graphs(simple: Simple):
    x = leaf()
    want = gradient(simple.ours, x)
    compiled = torch.compile(loss_of(simple.ours), fullgraph=True, backend="aot_eager")
    assert torch.equal(torch.autograd.grad(compiled(x), x)[0], want)


@one_of_each
def test_compile_other_ways(simple: Simple):
    x = leaf()
    want = gradient(simple.ours, x)
    dynamic = torch.compile(loss_of(simple.ours), fullgraph=True, backend="aot_eager", dynamic=True)
    assert torch.equal(torch.autograd.grad(dynamic(x), x)[0], want)
    transformed = torch.compile(grad(loss_of(simple.ours)), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(transformed(x.detach()), want)


def test_compile_by_inductor():
    x, other = leaf(8, 16, dtype=torch.float32), leaf(8, 16, dtype=torch.float32, seed=1)

    def loss(x, other):
        y = pt.log_softmax(pt.cumsum(x * 2, 0) + pt.lerp(x, other, 0.25), 1)
        return (y.exp() * pt.amax(other, 1, keepdim=True)).sum() + pt.cummax(x, 1).values.mean()

    want = torch.autograd.grad(loss(x, other), (x, other))
    compiled = torch.compile(loss, fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(x, other), (x, other)), want)


@one_of_each
def test_export_keeps_the_op(simple: Simple):
    class Module(torch.nn.Module):
        def forward(self, x):
            return simple.ours(x)

    x = data()
    exported = torch.export.export(Module(), (x,))
    assert f"pullback.{simple.kind}.default" in str(exported.graph)
    assert torch.equal(exported.module()(x), simple.ours(x))


def test_export_strict_with_dynamic_shape():
    class Module(torch.nn.Module):
        def forward(self, x):
            return pt.softmax(pt.cumsum(x, 1), 0)

    batch = torch.export.Dim("batch")
    exported = torch.export.export(Module(), (data(),), dynamic_shapes=({0: batch},), strict=True)
    x = data((7, 4))
    assert torch.equal(exported.module()(x), Module()(x))


@every_kind
def test_tensors_without_memory(simple: Simple):
    x = data((4, 3)).T.contiguous().T if simple.kind != "segment_sum" else data()
    real = simple.ours(x.requires_grad_())
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        if simple.kind == "segment_sum":
            y = pt.segment_sum(fake, mode.from_tensor(IDS), SEGMENTS)
        else:
            y = simple.ours(fake)
        (dx,) = torch.autograd.grad(y.square().sum(), fake, create_graph=True)
        (again,) = torch.autograd.grad(dx.square().sum(), fake)
    assert (y.shape, y.stride(), y.dtype) == (real.shape, real.stride(), real.dtype)
    assert dx.shape == again.shape == x.shape
    meta = torch.empty(x.shape, dtype=torch.float64, device="meta", requires_grad=True)
    if simple.kind == "segment_sum":
        y = pt.segment_sum(meta, IDS.to("meta"), SEGMENTS)
    else:
        y = simple.ours(meta)
    assert (y.device.type, y.shape) == ("meta", real.shape)
    assert torch.autograd.grad(y.sum(), meta)[0].shape == x.shape


@one_of_each
def test_make_fx_records_the_kernels(simple: Simple):
    if simple.kind == "segment_sum":
        traced = make_fx(lambda x, ids: pt.segment_sum(x, ids, SEGMENTS))(data(), IDS)
        assert "pullback.segment_sum" in traced.code
        return
    traced = make_fx(grad(loss_of(simple.ours)))(data())
    assert "pullback" in traced.code
    assert torch.equal(traced(data(seed=1)), gradient(simple.ours, data(seed=1)))


class Recorder(TorchDispatchMode):
    """Names of the ops that run."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@every_kind
def test_dispatch_modes_see_the_ops(simple: Simple):
    with Recorder() as recorder:
        dx = gradient(simple.ours, data())
    assert f"pullback.{simple.kind}.default" in recorder.seen
    if simple.kind != "sum":
        assert f"pullback.{simple.kind}_backward.default" in recorder.seen
    assert torch.equal(dx, gradient(simple.ours, data()))


@every_kind
def test_functionalize(simple: Simple):
    torch.testing.assert_close(functionalize(simple.ours)(data()), simple.torchs(data()))


class Tagged(torch.Tensor):
    """A subclass with Python behaviour of its own."""


class Wrapped(torch.Tensor):
    """A shell around another tensor: its own memory is not to be touched."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = torch.utils._pytree.tree_map_only(cls, lambda t: t.inner, (args, kwargs or {}))
        return cls(func(*plain[0], **plain[1]))


@pytest.mark.parametrize(
    "simple", [s for s in SIMPLE if not s.kind.startswith("cumm")], ids=lambda s: s.kind
)
def test_tensor_subclasses(simple: Simple):
    want = simple.torchs(data())
    tagged = simple.ours(data().as_subclass(Tagged))
    assert type(tagged) is Tagged
    torch.testing.assert_close(tagged.as_subclass(torch.Tensor), want)
    if simple.kind == "segment_sum":
        return
    wrapped = simple.ours(Wrapped(data()))
    assert type(wrapped) is Wrapped
    torch.testing.assert_close(wrapped.inner, want)


@every_kind
def test_symbolic_trace(simple: Simple):
    traced = torch.fx.symbolic_trace(lambda x: simple.ours(x))
    assert any(n.target is function(simple.kind) for n in traced.graph.nodes)
    assert torch.equal(traced(data()), simple.ours(data()))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_autocast_gives_torchs_dtypes(dtype):
    x = data(dtype=DTYPES[dtype]).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for simple in SIMPLE:
            y, own = simple.ours(x), simple.torchs(x)
            assert y.dtype == own.dtype, simple.kind
            (dx,) = torch.autograd.grad(y.float().sum(), x)
            assert dx.dtype == x.dtype
    compiled = torch.compile(lambda x: pt.prod(x, 1), fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(x.detach()).dtype == torch.prod(x.detach(), 1).dtype


def test_autocast_inside_a_model():
    layer = torch.nn.Linear(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = pt.softmax(layer(torch.ones(3, 4)), 1)
    assert y.dtype == torch.bfloat16
    y.float().square().sum().backward()
    assert layer.weight.grad.dtype == torch.float32


@one_of_each
def test_checkpoint_and_inference_mode(simple: Simple):
    want = gradient(simple.ours, data())
    for reentrant in (False, True):
        x = leaf()
        checkpoint(loss_of(simple.ours), x, use_reentrant=reentrant).backward()
        assert torch.equal(x.grad, want)
    with torch.inference_mode():
        y = simple.ours(data())
        assert y.is_inference()
        assert torch.equal(simple.ours(y.new_ones(3, 4)), simple.ours(torch.ones(3, 4).double()))
    assert torch.equal(y, simple.ours(data()))
    with torch.no_grad():
        assert not simple.ours(leaf()).requires_grad


def test_accumulation_hooks_and_retained_graphs():
    x = leaf()
    seen = []
    y = pt.softmax(x, 1)
    y.register_hook(lambda g: seen.append(g.shape))
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert seen == [y.shape] * 2
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_a_tensor_that_outlived_its_transform():
    kept = []

    def leak(x):
        kept.append(x)
        return x.sum()

    grad(leak)(data())
    (escaped,) = kept
    assert torch.equal(pt.softmax(escaped, 1), pt.softmax(data(), 1))
