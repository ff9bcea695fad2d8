"""The public face: names and signatures, and a catalog that agrees with all of them."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest

import pullback as pb
from cells import OPS, PLANS, SEGMENT_PLANS
from grid import default
from pullback import oracle
from pullback.api import functions
from pullback.cpu import pool

SCAN = "(x, axis=-1, *, reverse=False, out=None)"
REDUCE = "(x, axis=None, *, keepdims=False, out=None)"
SIGNATURES = {
    **dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"], SCAN),
    "cumsum_backward": "(dy, *, axis=-1, reverse=False, out=None)",
    "cumprod_backward": "(dy, *, x, y, axis=-1, reverse=False, out=None)",
    "cummax_backward": "(dy, *, x, ties='first', axis=-1, reverse=False, out=None)",
    "cummin_backward": "(dy, *, x, ties='first', axis=-1, reverse=False, out=None)",
    "logcumsumexp_backward": "(dy, *, x, y, axis=-1, reverse=False, out=None)",
    **dict.fromkeys(["sum", "mean", "max", "min", "prod", "norm2", "logsumexp"], REDUCE),
    **dict.fromkeys(["var", "std"], "(x, axis=None, *, keepdims=False, correction=1, out=None)"),
    **dict.fromkeys(["sum_backward", "mean_backward"], "(dy, *, shape, axis=None, out=None)"),
    **dict.fromkeys(
        ["max_backward", "min_backward"], "(dy, *, x, y, axis=None, ties='split', out=None)"
    ),
    **dict.fromkeys(
        ["prod_backward", "norm2_backward", "logsumexp_backward"],
        "(dy, *, x, y, axis=None, out=None)",
    ),
    "var_backward": "(dy, *, x, axis=None, correction=1, out=None)",
    "std_backward": "(dy, *, x, y, axis=None, correction=1, out=None)",
    **dict.fromkeys(["softmax", "log_softmax"], "(x, axis=-1, *, out=None)"),
    **dict.fromkeys(["softmax_backward", "log_softmax_backward"], "(dy, *, y, axis=-1, out=None)"),
    "lerp": "(a, b, weight, *, out=None)",
    "lerp_backward": "(dy, *, weight, out=None)",
    "segment_sum": (
        "(input, segment_ids, num_segments, *, sorted=False, out_of_range='raise', out=None)"
    ),
    "segment_sum_backward": "(d_output, segment_ids, *, out_of_range='raise', out=None)",
}


def parameters(function) -> set:
    """Names, kinds and defaults; what is keyword-only has no order."""
    found = inspect.signature(function).parameters.values()
    positional = [p.name for p in found if p.kind is not p.KEYWORD_ONLY]
    return {(p.name, p.kind, p.default) for p in found} | {tuple(positional)}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    made: dict = {}
    exec(f"def expected{SIGNATURES[name]}: ...", made)
    assert parameters(getattr(pb, name)) == parameters(made["expected"])


def test_catalog_lists_exactly_the_functions():
    assert set(OPS) == set(SIGNATURES)
    assert set(OPS) <= set(pb.__all__)
    assert set(OPS) == set(oracle.names())


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_catalog_row(op):
    assert op.dtypes == ("f32", "f64", "f16", "bf16")
    assert "numba" in op.backends
    assert op.formula
    assert op.direction == ("backward" if op.name.endswith("_backward") else "forward")
    other = f"{op.kind}_backward" if op.direction == "forward" else op.kind
    assert OPS[other].family == op.family
    parameters = inspect.signature(getattr(pb, op.name)).parameters
    assert op.needs <= set(parameters)
    assert op.needs <= set(op.inputs)
    assert ("ties" in parameters) == bool(op.ties)
    if op.ties:
        assert parameters["ties"].default == op.ties[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        op.name = "other"


def test_every_kind_has_a_member():
    kinds = {"scan": pb.ScanKind, "reduce": pb.ReduceKind, "softmax": pb.SoftmaxKind,
             "lerp": pb.BinaryKind}  # fmt: skip
    for family, enum in kinds.items():
        assert {op.kind for op in OPS.values() if op.family == family} == {str(k) for k in enum}


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_plans_have_the_common_face(op):
    made = default(op, "f32").plan()
    assert isinstance(made.needs, frozenset)
    assert isinstance(made.workspace_size, int)
    assert isinstance(made.sku, pb.KernelSku)
    assert isinstance(made.precision_guarantee, pb.PrecisionGuarantee)


@pytest.mark.parametrize("plan", [p for _, p in [*PLANS.values(), *SEGMENT_PLANS.values()]])
def test_run_and_can_implement_take_the_same_operands(plan):
    run = inspect.signature(plan.run).parameters
    assert all(p.kind is p.KEYWORD_ONLY for n, p in run.items() if n != "self")
    assert list(run)[-2:] == ["workspace", "stream"]
    check = inspect.signature(plan.can_implement).parameters
    assert set(run) - set(check) == {"workspace", "stream"}


@pytest.mark.parametrize(
    ("plan", "operands"),
    [
        (pb.ScanBackwardPlan, {"dy", "dx", "x", "y"}),
        (pb.ScanPlan, {"x", "y"}),
        (pb.ReduceBackwardPlan, {"dy", "dx", "x", "y"}),
        (pb.ReducePlan, {"x", "y"}),
        (pb.SoftmaxPlan, {"x", "y"}),
        (pb.BinaryParamBackwardPlan, {"dy", "da", "db"}),
        (pb.BinaryParamPlan, {"a", "b", "y"}),
        (pb.SegmentSumBackwardPlan, {"d_output", "segment_ids", "d_input"}),
        (pb.UnsortedSegmentSumPlan, {"input", "segment_ids", "output"}),
    ],
)
def test_operands_of_run(plan, operands):
    named = set(inspect.signature(plan.run).parameters) - {"self", "workspace", "stream"}
    assert named == operands


def test_softmax_backward_takes_y():
    named = set(inspect.signature(pb.SoftmaxBackwardPlan.run).parameters)
    assert {"dy", "y", "dx"} <= named


@pytest.mark.parametrize("kind", ["sum", "max", "std"])
def test_squeezed_or_kept(kind):
    """The rank of dy and y tells whether the reduced axes were kept."""
    x = np.random.default_rng(0).standard_normal((3, 4, 5))
    for axis in (1, (0, 2), None, -1, ()):
        forward, backward = getattr(pb, kind), getattr(pb, f"{kind}_backward")
        kept, squeezed = forward(x, axis, keepdims=True), forward(x, axis)
        assert kept.ndim == 3
        assert squeezed.shape == getattr(np, kind)(x, axis).shape
        assert kept.tobytes() == squeezed.tobytes()
        results = set()
        for y in (kept, squeezed):
            saves = {"shape": x.shape} if kind == "sum" else {"x": x, "y": y}
            results.add(backward(y, axis=axis, **saves).tobytes())
        assert len(results) == 1


@pytest.mark.parametrize("warmed", [False, True])
@pytest.mark.parametrize("kind", ["sum", "mean", "max", "std"])
def test_squeezed_over_axes_of_length_one(kind, warmed):
    """Elements are as many with the axes as without: the rank alone tells which it is."""
    backward = getattr(pb, f"{kind}_backward")
    for shape, axis in (((1, 3), 0), ((3, 1), 1), ((1, 3, 1), (0, 2)), ((1, 1), None)):
        x = np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape)
        kept, squeezed = getattr(pb, kind)(x, axis, keepdims=True), getattr(pb, kind)(x, axis)
        saves = {"shape": shape} if kind in ("sum", "mean") else {"x": x}
        forget()
        expected = backward(kept, axis=axis, **_with_y(saves, kept))
        if not warmed:
            forget()
        dx = backward(squeezed, axis=axis, **_with_y(saves, squeezed))
        assert dx.shape == shape
        assert dx.tobytes() == expected.tobytes()


def _with_y(saves: dict, y: np.ndarray) -> dict:
    return {**saves, "y": y} if "x" in saves else saves


def forget() -> None:
    """Clear what functions remember of earlier calls."""
    functions.forget()


def test_lists_and_enums_are_welcome():
    x = np.arange(12.0).reshape(3, 4)
    assert pb.sum(x, [0, 1]) == 66.0
    dx = pb.sum_backward(np.ones(()), shape=[3, 4])
    assert dx.shape == (3, 4)
    first = pb.cummax_backward(x, x=x, ties=pb.Ties.FIRST)
    assert np.array_equal(first, pb.cummax_backward(x, x=x, ties="first"))


def test_results_do_not_share_memory():
    """Two calls give two arrays, also where a result could be a view."""
    dy = np.ones((3, 1))
    a = pb.sum_backward(dy, shape=(3, 4), axis=1)
    b = pb.sum_backward(dy, shape=(3, 4), axis=1)
    assert a.flags.writeable
    assert not np.shares_memory(a, b)
    assert not np.shares_memory(a, dy)


def test_lerp_backward_may_skip_an_output():
    dy = np.arange(5.0)
    descriptor = pb.BinaryParamBackwardDescriptor("lerp", (5,), "f64", 0.25)
    plan = pb.BinaryParamBackwardPlan.select(descriptor)
    both = [np.full(5, np.nan) for _ in range(2)]
    plan.run(dy=dy, da=both[0], db=both[1])
    assert both[0].tolist() == (0.75 * dy).tolist()
    assert both[1].tolist() == (0.25 * dy).tolist()
    for name, expected in zip(("da", "db"), both, strict=True):
        alone = np.full(5, np.nan)
        plan.run(dy=dy, **{name: alone})
        assert np.array_equal(alone, expected)
    plan.run(dy=dy)


def test_a_pair_may_name_one_output():
    dy, da = np.arange(3.0), np.empty(3)
    result = pb.lerp_backward(dy, weight=0.5, out=(da, None))
    assert result[0] is da
    assert result[1].tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("name", ["sum", "softmax", "cumsum"])
def test_torch_and_numpy_give_the_same_bytes(name):
    import torch

    x = np.random.default_rng(1).standard_normal((7, 33)).astype("f4")
    plain = getattr(pb, name)(x, 1)
    result = getattr(pb, name)(torch.from_numpy(x), 1)
    assert isinstance(result, torch.Tensor)
    assert result.numpy().tobytes() == plain.tobytes()


def test_threshold_for_threads_is_where_the_suite_expects_it():
    """Large arrays of the suite must be above it, or its thread tests would run on one."""
    assert 0 < pool.SERIAL_BYTES <= 4 << 20
