"""Routing torch's own functions to pullback, and back."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional
from torch.jit._builtins import _get_builtin_table as script_names

import pullback.torch as pt
from pullback.torch.counterparts import COUNTERPARTS
from torch_ops import SIMPLE, data, leaf

# torch's own, at the first use of forward mode.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*(CSR|nested tensors).*:UserWarning"),
]


def _scripted(x: torch.Tensor) -> torch.Tensor:
    return torch.sum(torch.softmax(x, 1), 1)


HOMES = [home for counterpart in COUNTERPARTS.values() for home in counterpart.homes]
HOMES.append("torch.nn.functional.cross_entropy")
CLASSES = torch.tensor([3, 0, 1])


def lookup(home: str):
    found = torch
    for name in home.split(".")[1:]:
        found = getattr(found, name)
    return found


def is_ours(y: torch.Tensor) -> bool:
    return "Pullback" in type(y.grad_fn).__name__


def test_everything_is_put_back():
    before = {home: lookup(home) for home in HOMES}
    own = set(vars(torch.Tensor))
    assert len(before) > 35
    with pt.patch():
        assert all(lookup(home) is not before[home] for home in HOMES)
    assert {home: lookup(home) for home in HOMES} == before
    assert set(vars(torch.Tensor)) == own


def test_functions_methods_and_modules_are_routed():
    x = leaf()
    calls = [
        lambda: torch.cumsum(x, 1),
        lambda: x.cumsum(dim=0),
        lambda: torch.cumprod(x, 1, dtype=torch.float64),
        lambda: torch.cummax(x, 1).values,
        lambda: x.logcumsumexp(-1),
        lambda: torch.sum(x),
        lambda: x.sum(0, True),
        lambda: x.mean((0, 1)),
        lambda: x.amax([0, 1], keepdim=True),
        lambda: torch.prod(x, 1),
        lambda: torch.linalg.vector_norm(x),
        lambda: torch.linalg.vector_norm(x, 2, 1),
        lambda: x.logsumexp(1),
        lambda: torch.special.logsumexp(x, (0, 1)),
        lambda: torch.var(x, 1),
        lambda: x.std(dim=0, correction=0, keepdim=True),
        lambda: torch.softmax(x, 1),
        lambda: functional.log_softmax(x, dim=-1),
        lambda: torch.nn.Softmax(dim=1)(x),
        lambda: torch.lerp(x, x.detach() * 2, 0.3),
        lambda: functional.cross_entropy(x, CLASSES, reduction="none"),
        lambda: torch.nn.CrossEntropyLoss(reduction="sum", ignore_index=1)(x, CLASSES),
    ]
    want = [call() for call in calls]
    with pt.patch():
        got = [call() for call in calls]
    for ours, own in zip(got, want, strict=True):
        assert is_ours(ours)
        assert not is_ours(own)
        torch.testing.assert_close(ours, own)
        grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (ours, own)]
        torch.testing.assert_close(*grads)


def test_what_pullback_does_not_serve_stays_torchs():
    x, whole = leaf(), torch.arange(6)
    out = torch.empty(3, 4, dtype=torch.float64)
    calls = [
        lambda: torch.sum(whole),
        lambda: whole.cumsum(0),
        lambda: torch.cumsum(x.detach(), 1, out=out),
        lambda: x.sum(axis=1),
        lambda: x.var(1, False),
        lambda: torch.var(x, False),
        lambda: torch.std(x, 1, unbiased=True, keepdim=True),
        lambda: torch.linalg.vector_norm(x, 1),
        lambda: torch.linalg.vector_norm(x, float("inf"), 1),
        lambda: torch.lerp(x, x, torch.full((), 0.5, dtype=torch.float64)),
        lambda: torch.softmax(whole, 0, dtype=torch.float32),
        lambda: torch.sum(input=x),
        lambda: torch.sum(x, 1, dtype=torch.complex128),
        lambda: torch.empty(2, 3, device="meta").sum(1),
        lambda: functional.cross_entropy(x, CLASSES, torch.ones(4, dtype=torch.float64)),
        lambda: functional.cross_entropy(x, x.detach().softmax(1)),
        lambda: functional.cross_entropy(input=x, target=CLASSES),
    ]
    want = [call() for call in calls]
    with pt.patch():
        got = [call() for call in calls]
    for ours, own in zip(got, want, strict=True):
        assert not is_ours(ours)
        if own.device.type != "meta":
            torch.testing.assert_close(ours, own)


def test_tensors_that_are_no_arrays_stay_torchs():
    x = data(dtype=torch.float32)
    calls = [
        lambda: x.to_sparse().sum(),
        lambda: torch.sum(x.to_sparse_csr()),
        lambda: torch.softmax(x.to_mkldnn(), 1).to_dense(),
        lambda: torch.softmax(torch.nested.nested_tensor([x[0], x[1]]), -1).to_padded_tensor(0.0),
    ]
    with pt.patch():
        got = [call() for call in calls]
        w = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(w.to_sparse().sum(), w)
    for ours, call in zip(got, calls, strict=True):
        torch.testing.assert_close(ours, call())
    assert torch.equal(grad, torch.ones_like(x))


def test_traced_functions_are_torchs():
    x = data()
    with pt.patch():
        traced = torch.jit.trace(lambda x: torch.softmax(x, 1) + x.sum(1, True), (x,))
    doubled = 2 * x
    want = torch.softmax(doubled, 1) + doubled.sum(1, True)
    torch.testing.assert_close(traced(doubled), want)


def test_scripts_know_the_routed_functions():
    """torch scripts functions of its own too, at the first use of forward mode."""
    before = dict(script_names())
    with pt.patch():
        scripted = torch.jit.script(_scripted)
    assert script_names() == before
    x = data()
    torch.testing.assert_close(scripted(x), _scripted(x))


def test_refusals_are_torchs():
    x = data()
    with pt.patch():
        with pytest.raises(TypeError):
            torch.cumsum(x)
        with pytest.raises(TypeError):
            torch.softmax(x, 1, nonsense=True)
        with pytest.raises(IndexError):
            torch.cumsum(x, 7)
        with pytest.raises(TypeError):
            torch.logsumexp(x)


def test_patches_nest_and_survive_errors():
    own = torch.cumsum

    def fail():
        with pt.patch():
            with pt.patch():
                pass
            assert torch.cumsum is not own
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.cumsum is own
    first, second = pt.patch(), pt.patch()
    first.undo()
    first.undo()
    assert torch.cumsum is not own
    second.undo()
    assert torch.cumsum is own


def test_what_others_patched_meanwhile_is_left_alone(monkeypatch):
    own = torch.cumsum
    patch = pt.patch()

    def theirs(*args, **kwargs):
        return own(*args, **kwargs)

    monkeypatch.setattr(torch, "cumsum", theirs)
    patch.undo()
    assert torch.cumsum is theirs
    monkeypatch.setattr(torch, "cumsum", own)


def test_pullback_itself_is_not_routed():
    """Derivatives that go through torch's own functions do not come back here, under a patch."""
    x = leaf()

    def derivatives():
        for simple in SIMPLE:
            (dx,) = torch.autograd.grad(simple.ours(x).pow(2).sum(), x, create_graph=True)
            yield dx
            yield from torch.autograd.grad(dx.pow(2).sum(), x)
            yield from torch.func.jvp(simple.ours, (data(),), (data(seed=1),))

    found = list(derivatives())
    with pt.patch():
        again = list(derivatives())
    for plain, under_a_patch in zip(found, again, strict=True):
        assert type(under_a_patch.grad_fn) is type(plain.grad_fn)
        assert torch.equal(under_a_patch, plain)


def test_a_model_trains_the_same():
    def losses():
        torch.manual_seed(0)
        model = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x = torch.randn(2, 5, 8)
        found = []
        for _ in range(3):
            loss = functional.cross_entropy(model(x).flatten(0, 1), torch.zeros(10).long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    want = losses()
    with pt.patch():
        got = losses()
    assert got == pytest.approx(want, rel=1e-5)
    assert got[-1] < got[0]


def test_under_transforms_and_compile():
    x = data()

    def loss(x):
        return torch.log_softmax(x, 1).square().sum() + x.cumsum(0).logsumexp(1).sum()

    want = torch.func.grad(loss)(x)
    with pt.patch():
        torch.testing.assert_close(torch.func.grad(loss)(x), want)
        torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(x[None])[0], want)
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        given = x.clone().requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(compiled(given), given)[0], want)
