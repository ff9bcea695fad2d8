"""torch's own arguments: other names, out=, other functions, and the samples torch is tested by."""

from __future__ import annotations

import warnings

import pytest
import torch

import pullback as pb
import pullback.torch as pt
from pullback.torch.counterparts import COUNTERPARTS
from torch_ops import data, function, leaf, peer

F32 = torch.float32
WITH_DIM = [k for k, has in COUNTERPARTS.items() if has.homes and k != "lerp"]


def the_same(got, want):
    torch.testing.assert_close(got, want, equal_nan=True)
    assert isinstance(want, torch.Tensor) or type(got) is type(want)


@pytest.mark.parametrize("kind", WITH_DIM)
def test_numpys_names_of_arguments(kind):
    x, of = data(dtype=F32), function(kind)
    the_same(of(x, axis=1), of(x, 1))
    with pytest.raises(TypeError, match="either 'dim' or 'axis'"):
        of(x, 1, axis=1)
    if kind in ("sum", "std"):
        the_same(of(x, axis=1, keepdims=True), of(x, dim=1, keepdim=True))
        with pytest.raises(TypeError, match="either 'keepdim' or 'keepdims'"):
            of(x, dim=1, keepdim=True, keepdims=True)
        with pytest.raises(TypeError, match="keepdim"):
            of(x, dim=1, keepdims=1)
    with pytest.raises(TypeError, match="dim"):
        of(x, axis=1.0)


def test_a_scan_wants_a_dim():
    for kind in ("cumsum", "cummax", "softmax"):
        with pytest.raises(TypeError, match="missing required argument 'dim'"):
            function(kind)(data())


@pytest.mark.parametrize("kind", WITH_DIM)
def test_out(kind):
    """Of the right shape, strided, empty and of another shape; and the errors of torch."""
    x, of = data(dtype=F32), function(kind)
    want = of(x, 1)
    if not isinstance(want, torch.Tensor):
        out = torch.empty_like(want[0]), torch.empty_like(want[1])
        assert of(x, 1, out=out) is out
        the_same(out, tuple(want))
        with pytest.raises(TypeError, match="expected 2 tensors in 'out'"):
            of(x, 1, out=out[0])
        return
    strided = torch.full((*want.shape, 2), torch.nan)[..., 0]
    for out in (torch.full_like(want, torch.nan), strided, torch.empty(0)):
        assert of(x, 1, out=out) is out
        assert torch.equal(out, want)
    out = torch.empty(5)
    with pytest.warns(UserWarning, match="was resized"):
        of(x, 1, out=out)
    assert torch.equal(out, want)
    wide = torch.empty_like(want, dtype=torch.float64)
    torch.testing.assert_close(of(x, 1, out=wide), want.double(), rtol=1e-6, atol=1e-6)
    own = getattr(torch, COUNTERPARTS[kind].name or kind, None)
    whole = torch.empty_like(want, dtype=torch.int64)
    if kind in ("sum", "prod", "cumsum", "cumprod"):  # the type of out is what torch computes in
        the_same(of(x * 9, 1, out=whole).clone(), own(x * 9, 1, out=whole))
    else:
        with pytest.raises(RuntimeError):
            of(x, 1, out=whole)
    # torch's own softmax leaves it at that, and has no gradient.
    for run in (of, *([own] if own and "softmax" not in kind else [])):
        with pytest.raises(RuntimeError, match="automatic differentiation"):
            run(leaf(dtype=F32), 1, out=torch.empty_like(want))
    with torch.no_grad():
        assert torch.equal(of(leaf(dtype=F32), 1, out=torch.empty_like(want)), want)
    with pytest.raises(TypeError, match="'out' must be Tensor"):
        of(x, 1, out=x.numpy())


def test_out_is_written_by_the_kernel(monkeypatch):
    """No result of its own is made first."""
    x, out = data(dtype=F32), torch.empty(3, 4)
    version = out._version
    pt.cumsum(x, 1, out=out)
    assert out._version > version
    monkeypatch.setattr(torch.Tensor, "copy_", None)
    pt.cumsum(x, 1, out=out)
    assert pt.cumsum(out, 1, out=out) is out
    assert torch.equal(out, pt.cumsum(pt.cumsum(x, 1), 1))
    with pytest.raises(pb.InvalidProblemError, match="overlap"):
        pt.cumsum(out[:, :-1], 1, out=out[:, 1:])


def test_out_of_lerp():
    a, b = data(dtype=F32), data(dtype=F32, seed=1)
    out = torch.empty(3, 4)
    assert torch.equal(pt.lerp(a, b, 0.25, out=out), pt.lerp(a, b, 0.25))
    assert torch.equal(pt.lerp(a, b, a, out=out), pt.lerp(a, b, a))


@pytest.mark.parametrize(("name", "spread"), [("var_mean", "var"), ("std_mean", "std")])
def test_spread_and_mean(name, spread):
    x = leaf(dtype=F32)
    calls = [
        ((), {}),
        ((False,), {}),
        ((1, False, True), {}),
        ((), {"axis": 1, "keepdims": True}),
        ((1,), {"correction": 0}),
    ]
    for arguments, keywords in calls:
        got = getattr(pt, name)(x, *arguments, **keywords)
        want = getattr(torch, name)(x, *arguments, **keywords)
        the_same(got, want)
        ours, own = (torch.autograd.grad(sum(map(torch.sum, y)), x)[0] for y in (got, want))
        torch.testing.assert_close(ours, own)
    assert torch.equal(got[0], getattr(pt, spread)(x, 1, correction=0))


def test_norms():
    x = leaf(dtype=F32)
    calls = [(), ("fro",), (2,), (2.0, 1), (None, 1), ("fro", (0, 1), True), (1, 1), ("inf",)]
    for arguments in calls:
        arguments = [float(a) if a == "inf" else a for a in arguments]
        the_same(pt.norm(x, *arguments), torch.norm(x, *arguments))
        if "fro" not in arguments and None not in arguments:
            the_same(pt.linalg.vector_norm(x, *arguments), torch.linalg.vector_norm(x, *arguments))
    assert torch.equal(pt.norm(x), pt.norm2(x))
    assert pt.norm(x, dtype=torch.float64).dtype == torch.float64
    assert "Pullback" in type(pt.linalg.vector_norm(x, dim=1).grad_fn).__name__
    assert "Pullback" not in type(pt.linalg.vector_norm(x, 1).grad_fn).__name__


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_as_torch_has_them(name):
    x, other = leaf(dtype=F32), data(dtype=F32, seed=1)
    ours, own = getattr(pt, name), getattr(torch, name)
    for arguments in ((), (1,), (0, True), (other,)):
        got, want = ours(x, *arguments), own(x, *arguments)
        the_same(got, want)
        values = [y if isinstance(y, torch.Tensor) else y.values for y in (got, want)]
        the_same(*(torch.autograd.grad(y.sum(), x)[0] for y in values))
    assert ours(torch.arange(3)) == own(torch.arange(3))
    assert "Pullback" in type(ours(x).grad_fn).__name__


def test_integers_are_torchs():
    """Sums of integers are int64, or what is asked for; means are refused."""
    whole = torch.tensor([[200, 100], [7, 1]], dtype=torch.uint8)
    for kind in ("sum", "prod", "cumsum", "cumprod", "cummax", "max", "logsumexp"):
        the_same(function(kind)(whole, 1), peer(kind)(whole, 1))
    for dtype in (torch.int8, torch.int32, torch.float32):
        for kind in ("sum", "cumprod"):
            the_same(function(kind)(whole, 1, dtype=dtype), peer(kind)(whole, 1, dtype=dtype))
    for kind in ("mean", "var", "softmax"):
        for of in (function(kind), peer(kind)):
            with pytest.raises(RuntimeError):
                of(whole, 1)
    a, b = torch.tensor([1 + 2j, 3j]), torch.tensor([2.0 + 0j, 1j])
    the_same(pt.lerp(a, b, b), torch.lerp(a, b, b))


def test_a_profiler_sees_the_kernels():
    x = leaf(dtype=F32)
    ids = torch.tensor([0, 1, 1])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        pt.softmax(x, 1).square().sum().backward()
        pt.cumsum(x.detach(), 1)
        pt.segment_sum(x.detach(), ids, 2)
    seen = {event.key: event.count for event in profile.key_averages()}
    for name in ("softmax", "softmax_backward", "cumsum", "segment_sum"):
        assert seen.get(f"pullback::{name}") == 1, seen
    assert not any("var" in name for name in seen)


def test_compiled_and_traced():
    x = data(dtype=F32)

    def run(x):
        spread, mean = pt.var_mean(x, axis=1, keepdims=True)
        return pt.cumsum(x, axis=0) + spread * mean + pt.norm(x) + pt.max(x)

    want = run(x)
    torch.testing.assert_close(torch.compile(run, fullgraph=True, backend="aot_eager")(x), want)
    torch.testing.assert_close(torch.fx.symbolic_trace(run)(x), want)


# PyTorch's own samples.

OTHER_NAMES = {
    "special.logsumexp": "logsumexp",
    "nn.functional.cross_entropy": "functional.cross_entropy",
}


def samples():
    pytest.importorskip("expecttest")  # which torch's samples are beside
    from torch.testing._internal.common_methods_invocations import op_db

    served = {COUNTERPARTS[k].name or k for k in COUNTERPARTS if COUNTERPARTS[k].homes}
    served |= {"max", "min", "norm", "var_mean", "std_mean", "linalg.vector_norm"}
    served.add("functional.cross_entropy")
    return [op for op in op_db if OTHER_NAMES.get(op.name, op.name) in served]


def test_samples_of_torch():
    """Values and types are torch's for all that torch tries its own functions with."""
    found = samples()
    assert len(found) > 30
    for op in found:
        ours = pt
        for part in OTHER_NAMES.get(op.name, op.name).split("."):
            ours = getattr(ours, part)
        for dtype in (torch.float32, torch.int32, torch.bool, torch.complex64):
            if dtype not in op.supported_dtypes("cpu"):
                continue
            for sample in op.sample_inputs("cpu", dtype):
                if any(isinstance(a, complex) for a in sample.args):
                    continue  # a complex weight that is no tensor is refused
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    want = op.op(sample.input, *sample.args, **sample.kwargs)
                    got = ours(sample.input, *sample.args, **sample.kwargs)
                the_same(got, want)
