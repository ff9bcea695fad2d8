"""First, second and third derivatives of pullback.torch, in reverse and forward mode."""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.autograd import gradcheck, gradgradcheck

import pullback.torch as pt
from torch_ops import (
    EXTREMES,
    FAMILIES,
    FAMILY,
    IDS,
    KINDS,
    SIMPLE,
    Simple,
    data,
    function,
    leaf,
    values,
)

# torch's own: the first use of forward mode, and cummax batched in forward mode.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
]

every_kind = pytest.mark.parametrize("simple", SIMPLE, ids=KINDS)


@every_kind
def test_first_and_second_derivatives(simple: Simple):
    x = leaf(2, 3) if simple.kind != "segment_sum" else leaf()
    assert gradcheck(simple.ours, x, check_batched_grad=True)
    assert gradgradcheck(simple.ours, x, check_batched_grad=True)


@every_kind
def test_forward_mode(simple: Simple):
    x = leaf(2, 3) if simple.kind != "segment_sum" else leaf()
    assert gradcheck(simple.ours, x, check_forward_ad=True, check_batched_forward_grad=True)
    assert gradgradcheck(
        simple.ours,
        x,
        check_fwd_over_rev=True,
        check_rev_over_rev=False,
        check_undefined_grad=False,
    )


@pytest.mark.parametrize("kind", [k for k in KINDS if FAMILY[k] == "reduce"])
def test_reductions_over_several_dims_and_whole_tensors(kind):
    of = function(kind)
    for keywords in ({"dim": (0, 2), "keepdim": True}, {"dim": (1, 2)}, {"dim": None}):
        x = leaf(2, 2, 2)
        assert gradcheck(lambda x, k=keywords: of(x, **k), x)
        assert gradgradcheck(lambda x, k=keywords: of(x, **k), x)


@pytest.mark.parametrize("kind", [k for k in KINDS if FAMILY[k] == "scan"])
def test_reverse_scans(kind):
    def ours(x):
        return values(function(kind)(x, 0, reverse=True))

    x = leaf(4, 2)
    assert gradcheck(ours, x, check_forward_ad=True)
    assert gradgradcheck(ours, x)


@pytest.mark.parametrize("zeros", [1, 2, 3])
def test_products_at_zeros(zeros):
    """Not only the product of the others: its derivative by another factor that is zero, too."""
    x = torch.tensor([2.0, -3.0, 0.5, 4.0, 1.5], dtype=torch.float64)
    x[1 : 1 + zeros] = 0
    ids, mask = torch.tensor([0, 0, 1, 0, 0]), torch.tensor([True, True, False, True, True])
    forms = (
        lambda x: pt.prod(x, 0),
        lambda x: pt.prod(x, 0, where=mask),
        lambda x: pt.segment_prod(x[:, None], ids, 2),
        lambda x: pt.segment_prod(x[:, None], offsets=torch.tensor([0, 0, 4, 5])),
    )
    for form in forms:
        x = x.detach().requires_grad_()
        assert gradcheck(form, x, check_forward_ad=True)
        assert gradgradcheck(form, x)
    thrice = torch.func.jacrev(torch.func.jacrev(torch.func.jacrev(forms[2])))
    found = thrice(x.detach())[0, 0]
    assert found[0, 1, 3] == x[4]
    assert not found[0, 1, 2]


@pytest.mark.parametrize("kind", EXTREMES)
def test_second_derivatives_for_every_ties_policy(kind):
    """The backward is linear in its gradient; its transpose must send back what it sent out."""
    policies = ("first", "last") if kind.startswith("cum") else ("split", "all", "first", "last")
    x = torch.tensor([[2.0, 1.0, 2.0, 1.0], [1.0, 1.0, 3.0, 3.0]], dtype=torch.float64)
    for ties in policies:

        def pull(dy, ties=ties):
            given = x.clone().requires_grad_()
            y = values(function(kind)(given, 1, ties=ties))
            return torch.autograd.grad(y, given, dy, create_graph=True)[0]

        shape = values(function(kind)(x, 1)).shape
        dy = data(tuple(shape), seed=4).requires_grad_()
        assert gradcheck(pull, dy)
        assert gradgradcheck(pull, dy)


@pytest.mark.parametrize("kind", EXTREMES)
def test_forward_mode_follows_the_winner(kind):
    x = torch.tensor([2.0, 1.0, 2.0, 1.0], dtype=torch.float64)
    tangent = data((4,), seed=5)
    for ties in ("first", "last"):

        def run(x, ties=ties):
            return values(function(kind)(x, 0, ties=ties))

        _, pushed = torch.func.jvp(run, (x,), (tangent,))
        jacobian = torch.func.jacrev(run)(x)
        torch.testing.assert_close(pushed, jacobian @ tangent)


def third(of, x):
    """All third derivatives of a number, reverse over reverse over reverse."""
    return torch.func.jacrev(torch.func.jacrev(torch.func.jacrev(of)))(x)


def by_definition(x):
    return x.exp().cumsum(1).log()


@every_kind
def test_third_derivatives(simple: Simple):
    x = data((2, 2)) if simple.kind != "segment_sum" else data((3, 1))
    weights = data(tuple(simple.ours(x).shape), seed=6)

    def number(of):
        return lambda x: (of(x).pow(3) * weights).sum()

    # torch's own third derivative of logcumsumexp is NaN.
    peer = by_definition if simple.kind == "logcumsumexp" else simple.torchs
    torch.testing.assert_close(third(number(simple.ours), x), third(number(peer), x))


# Every order on one kind of each family, and one order, in turns, on every kind.
ORDERS = ("rr", "fr", "rf", "ff")
HESSIANS = [
    (kind, order)
    for k, kind in enumerate(KINDS)
    for order in (ORDERS if kind in FAMILIES else (ORDERS[k % len(ORDERS)],))
]


@pytest.mark.parametrize(("kind", "order"), HESSIANS)
def test_hessians_in_every_order(kind, order):
    simple = Simple(kind)
    jacobian = {"r": torch.func.jacrev, "f": torch.func.jacfwd}
    x = data()
    weights = data(tuple(simple.ours(x).shape), seed=6)

    def hessian(of):
        inner = jacobian[order[1]](lambda x: (of(x).square() * weights).sum())
        return jacobian[order[0]](inner)(x)

    torch.testing.assert_close(hessian(simple.ours), hessian(simple.torchs))


def test_logcumsumexp_differentiates_again_where_the_gradient_is_zero():
    """torch's own gives NaN there: its backward takes logarithms of the gradient."""
    x = leaf(6)
    dy = torch.tensor([0.0, 0.0, 1.0, 0.0, -2.0, 0.0], dtype=torch.float64, requires_grad=True)
    (dx,) = torch.autograd.grad(pt.logcumsumexp(x, 0), x, dy, create_graph=True)
    outer = data((6,), seed=7)
    by_x, by_dy = torch.autograd.grad(dx, (x, dy), outer)

    def pair(x, dy):
        two = torch.stack([torch.logsumexp(x[:3], 0), torch.logsumexp(x[:5], 0)])
        return (two * dy[[2, 4]]).sum()

    hessian = torch.func.hessian(lambda x: pair(x, dy.detach()))(x.detach())
    torch.testing.assert_close(by_x, hessian @ outer)
    rows = [
        torch.func.grad(lambda x, n=n: torch.logsumexp(x[:n], 0))(x.detach()) for n in range(1, 7)
    ]
    jacobian = torch.stack(rows)
    torch.testing.assert_close(by_dy, jacobian @ outer)


def test_derivative_of_a_pullback_by_its_cotangent():
    """vjp of vjp, with the inner transform finished: a Jacobian-vector product."""
    for simple in SIMPLE:
        x, tangent = data(), data(seed=8)
        y, pull = torch.func.vjp(simple.ours, x)
        by_cotangent = torch.func.grad(lambda v, p=pull, t=tangent: (p(v)[0] * t).sum())
        pushed = torch.func.jvp(simple.torchs, (x,), (tangent,))[1]
        torch.testing.assert_close(by_cotangent(torch.ones_like(y)), pushed)


def test_jacobians_by_batched_gradients():
    for simple in SIMPLE:
        for vectorize in (False, True):
            got = torch.autograd.functional.jacobian(simple.ours, data(), vectorize=vectorize)
            want = torch.autograd.functional.jacobian(simple.torchs, data())
            torch.testing.assert_close(got, want)


def test_dual_tensors_with_a_gradient():
    """Forward over reverse in a dual level that the caller has opened."""
    for simple in SIMPLE:
        tangent = data(seed=2)

        def directional(of, tangent=tangent):
            with forward_ad.dual_level():
                x = forward_ad.make_dual(leaf(), tangent)
                (grad,) = torch.autograd.grad(of(x).square().sum(), x, create_graph=True)
                return forward_ad.unpack_dual(grad)

        got, want = directional(simple.ours), directional(simple.torchs)
        torch.testing.assert_close(got.primal, want.primal)
        torch.testing.assert_close(got.tangent, want.tangent)


def test_ids_take_no_gradient():
    x = leaf()
    y = pt.segment_sum(x, IDS, 4)
    assert y.requires_grad
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (again,) = torch.autograd.grad(dx.square().sum(), x)
    torch.testing.assert_close(again, 8 * x.detach())
