"""Arguments of the torch functions: torch's forms are taken, what torch refuses is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pullback as pb
import pullback.torch as pt
from torch_ops import CORRECTED, data, function, leaf, peer

FORMS = [
    ((False,), {}),
    ((True,), {}),
    ((), {"unbiased": False}),
    ((1, False), {}),
    ((1, True, True), {}),
    (((0, 1), False), {}),
    ((None, False), {}),
    ((1,), {"unbiased": False, "keepdim": True}),
    ((1,), {"correction": None}),
    ((), {"correction": None}),
    ((1,), {"correction": np.float32(0.5)}),
    ((1,), {"correction": torch.tensor(2)}),
    ((1,), {"correction": False}),
]


@pytest.mark.parametrize("kind", CORRECTED)
def test_var_and_std_take_torchs_forms(kind):
    x = leaf(3, 4)
    for arguments, keywords in FORMS:
        got, want = (of(x, *arguments, **keywords) for of in (function(kind), peer(kind)))
        torch.testing.assert_close(got, want)
        ours, own = (torch.autograd.grad(y.sum(), x)[0] for y in (got, want))
        torch.testing.assert_close(ours, own)


@pytest.mark.parametrize("kind", CORRECTED)
@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ((1, 0), {}),
        ((True, False), {}),
        ((1, False), {"correction": 1}),
        ((False,), {"correction": 1}),
        ((1,), {"unbiased": 0}),
        ((1, True, 1), {}),
        ((1,), {"correction": "1"}),
        ((1,), {"correction": [1]}),
    ],
)
def test_var_and_std_refuse_what_torch_refuses(kind, arguments, keywords):
    for of in (function(kind), peer(kind)):
        with pytest.raises(TypeError):
            of(data(), *arguments, **keywords)


@pytest.mark.parametrize("x", [data(), leaf()], ids=["plain", "grad"])
def test_ties_are_checked_with_and_without_a_gradient(x):
    for kind in ("max", "min", "cummax", "cummin"):
        for ties in ("frist", None, [], 1):
            with pytest.raises(pb.UnsupportedError, match="ties"):
                function(kind)(x, 1, ties=ties)
    for kind in ("cummax", "cummin"):
        with pytest.raises(pb.UnsupportedError, match="first, last"):
            function(kind)(x, 1, ties="split")


def test_ties_in_another_spelling_are_the_same():
    x = torch.ones(1, 4)
    assert pt.cummax(x, 1, ties="Last").indices.tolist() == [[0, 1, 2, 3]]
    assert pt.cummax(x, 1, ties=pb.Ties.LAST).indices.tolist() == [[0, 1, 2, 3]]


ONE_DIM = [True, 1.0, None, (1,), [1], "1", torch.tensor(True), torch.tensor(1.0)]
SOME_DIMS = [True, 1.0, (True,), (1.0,), "1", {1}, torch.tensor([0, 1])]


def test_dims_are_as_torch_takes_them():
    """After a call with dim=1 as well, which 1.0 and True are equal to."""
    x = data()
    for kind in ("cumsum", "softmax"):
        function(kind)(x, 1)
        for dim in ONE_DIM:
            for of in (function(kind), peer(kind)):
                with pytest.raises(TypeError, match="dim"):
                    of(x, dim)
    for kind in ("sum", "logsumexp"):
        function(kind)(x, 1)
        function(kind)(x, (1,))
        for dim in SOME_DIMS:
            with pytest.raises(TypeError, match="dim"):
                function(kind)(x, dim)
            with pytest.raises((TypeError, RuntimeError)):
                getattr(torch, kind)(x, dim)
    for dim in (np.int64(1), torch.tensor(1)):
        assert torch.equal(pt.cumsum(x, dim), pt.cumsum(x, 1))
        assert torch.equal(pt.sum(x, dim), pt.sum(x, 1))
        assert torch.equal(pt.sum(x, [dim]), pt.sum(x, 1))


def test_a_dim_that_is_a_tensor_is_read_at_the_call():
    x, dim = data(), torch.tensor(1)
    assert torch.equal(pt.cumsum(x, dim), pt.cumsum(x, 1))
    dim.fill_(0)
    assert torch.equal(pt.cumsum(x, dim), pt.cumsum(x, 0))


def test_flags_are_bools():
    x, ids = data(), torch.tensor([0, 1, 1])
    pt.sum(x, 1, True)
    pt.cumsum(x, 1, reverse=True)
    for flag in (1, 0, "no", None, []):
        with pytest.raises(TypeError, match="keepdim"):
            pt.sum(x, 1, flag)
        with pytest.raises(pb.InvalidProblemError, match="reverse"):
            pt.cumsum(x, 1, reverse=flag)
        with pytest.raises(pb.InvalidProblemError, match="sorted"):
            pt.segment_sum(x, ids, 2, sorted=flag)


def test_other_parameters_are_named_when_refused():
    x, ids = data(), torch.tensor([0, 1, 1])
    for weight in ("0.5", None, [0.5], 1j):
        with pytest.raises(TypeError, match="weight"):
            pt.lerp(x, x, weight)
    for dtype in ("cpu", "float32", torch.ones(1)):
        with pytest.raises(TypeError, match="dtype"):
            pt.sum(x, 1, dtype=dtype)
    assert pt.sum(x.float(), 1, dtype=float).dtype == torch.float64
    for count in (2.0, True, "2"):
        with pytest.raises(TypeError, match="num_segments"):
            pt.segment_sum(x, ids, count)
    with pytest.raises(pb.UnsupportedError, match="out_of_range"):
        pt.segment_sum(x, ids, 2, out_of_range="drp")
    meta = torch.empty(3, 4, device="meta")
    with pytest.raises(pb.UnsupportedError, match="out_of_range"):
        pt.segment_sum(meta, ids.to("meta"), 2, out_of_range="drp")


@pytest.mark.parametrize("given", [[1.0], None, 1.0, np.ones(2)], ids=lambda v: type(v).__name__)
def test_what_is_no_tensor_is_refused(given):
    x = data()
    for call, argument in (
        (lambda: pt.cumsum(given, 0), "input"),
        (lambda: pt.sum(given), "input"),
        (lambda: pt.softmax(given, 0), "input"),
        (lambda: pt.lerp(given, x, 0.5), "input"),
        (lambda: pt.lerp(x, given, 0.5), "end"),
        (lambda: pt.segment_sum(x, given, 2), "segment_ids"),
    ):
        if given is None and argument == "segment_ids":
            continue  # left out, for offsets
        with pytest.raises(TypeError, match=f"'{argument}' must be Tensor"):
            call()


def test_zeros_of_either_sign_are_different_weights():
    a, b = torch.tensor([-0.0]), torch.tensor([1.0])
    for weight in (0.0, -0.0, 0.0):
        got, want = pt.lerp(a, b, weight), torch.lerp(a, b, weight)
        assert torch.equal(torch.signbit(got), torch.signbit(want)), weight
