"""The public face: names and signatures, and a catalog that agrees with all of them."""

from __future__ import annotations

import dataclasses
import inspect
import re

import numpy as np
import pytest

import pullback as pb
from cells import OPS
from grid import default
from pullback import oracle
from pullback.api import calling
from pullback.cpu import machine

RUNS = "reverse=False, exclusive=False, resets=None, offsets=None, out=None"
SCAN = f"(x, axis=-1, *, {RUNS})"
REDUCE = "(x, axis=None, *, keepdims=False, where=None, out=None)"
CUT = "offsets=None, sorted=False, out_of_range='raise'"
SEGMENT = f"(input, segment_ids=None, num_segments=None, *, {CUT}, out=None)"
SEGMENT_BACKWARD = f"(d_output, segment_ids=None, *, {{}}{CUT}, out=None)"
LOSS = "axis=-1, ignore_index=None, label_smoothing=0.0, z_loss=0.0, out=None"
SIGNATURES = {
    **dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"], SCAN),
    "cumsum_backward": f"(dy, *, axis=-1, {RUNS})",
    "cumprod_backward": f"(dy, *, x, y=None, axis=-1, {RUNS})",
    "logcumsumexp_backward": f"(dy, *, x, y, axis=-1, {RUNS})",
    **dict.fromkeys(
        ["cummax_backward", "cummin_backward"], f"(dy, *, x, ties='first', axis=-1, {RUNS})"
    ),
    **dict.fromkeys(["sum", "mean", "max", "min", "prod", "norm2", "logsumexp"], REDUCE),
    **dict.fromkeys(
        ["var", "std"],
        "(x, axis=None, *, keepdims=False, where=None, correction=1, ddof=None, out=None)",
    ),
    **dict.fromkeys(
        ["sum_backward", "mean_backward"], "(dy, *, shape, axis=None, where=None, out=None)"
    ),
    **dict.fromkeys(
        ["max_backward", "min_backward"],
        "(dy, *, x, y, axis=None, ties='split', where=None, out=None)",
    ),
    **dict.fromkeys(
        ["norm2_backward", "logsumexp_backward"],
        "(dy, *, x, y, axis=None, where=None, out=None)",
    ),
    "prod_backward": "(dy, *, x, y=None, axis=None, where=None, out=None)",
    "var_backward": "(dy, *, x, axis=None, correction=1, ddof=None, where=None, out=None)",
    "std_backward": "(dy, *, x, y, axis=None, correction=1, ddof=None, where=None, out=None)",
    **dict.fromkeys(["softmax", "log_softmax"], "(x, axis=-1, *, where=None, out=None)"),
    **dict.fromkeys(
        ["softmax_backward", "log_softmax_backward"], "(dy, *, y, axis=-1, where=None, out=None)"
    ),
    **dict.fromkeys(["sparsemax", "entmax15"], "(x, axis=-1, *, out=None)"),
    **dict.fromkeys(["sparsemax_backward", "entmax15_backward"], "(dy, *, y, axis=-1, out=None)"),
    "lerp": "(a, b, weight, *, out=None)",
    "lerp_backward": "(dy, *, weight, a=None, b=None, out=None)",
    **dict.fromkeys(
        [f"segment_{k}" for k in ("sum", "mean", "prod", "logsumexp", "softmax", "log_softmax")],
        SEGMENT,
    ),
    "segment_max": SEGMENT.replace("out=", "empty=-inf, out="),
    "segment_min": SEGMENT.replace("out=", "empty=inf, out="),
    **dict.fromkeys(
        ["segment_sum_backward", "segment_mean_backward"],
        SEGMENT_BACKWARD.format("num_inputs=None, "),
    ),
    **dict.fromkeys(
        ["segment_max_backward", "segment_min_backward"],
        SEGMENT_BACKWARD.format("input, output, ties='split', "),
    ),
    "segment_prod_backward": SEGMENT_BACKWARD.format("input, output=None, "),
    "segment_logsumexp_backward": SEGMENT_BACKWARD.format("input, output, "),
    **dict.fromkeys(
        ["segment_softmax_backward", "segment_log_softmax_backward"],
        f"(dy, segment_ids=None, *, y, num_segments=None, {CUT}, out=None)",
    ),
    "linear_recurrence": (
        "(a, b, axis=-1, *, initial=None, reverse=False, resets=None, offsets=None, "
        "return_final=False, out=None)"
    ),
    "linear_recurrence_backward": (
        "(dy, *, a, y, initial=None, d_final=None, axis=-1, reverse=False, resets=None, "
        "offsets=None, out=None)"
    ),
    "discounted_sum": "(x, discount, *, done=None, initial=None, axis=-1, out=None)",
    "discounted_sum_backward": "(dy, *, discount, done=None, axis=-1, out=None)",
    "gae": (
        "(rewards, values, next_values, *, gamma, lam, terminated=None, truncated=None, axis=-1, "
        "out=None)"
    ),
    "cross_entropy": f"(logits, target, {LOSS})".replace("-1, ", "-1, *, "),
    "cross_entropy_backward": f"(d_loss, *, logits, target, lse, {LOSS})",
}


def parameters(function) -> set:
    """Names, kinds and defaults; what is keyword-only has no order."""
    found = inspect.signature(function).parameters.values()
    positional = [p.name for p in found if p.kind is not p.KEYWORD_ONLY]
    return {(p.name, p.kind, p.default) for p in found} | {tuple(positional)}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    made: dict = {"inf": np.inf}
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
    if op.direction == "backward":
        assert OPS[op.kind].family == op.family
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
        assert all(member.name == member.value.upper() for member in enum)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_plans_have_the_common_face(op):
    made = default(op, "f32").plan()
    assert isinstance(made.needs, frozenset)
    assert isinstance(made.workspace_size, int)
    assert isinstance(made.sku, pb.KernelSku)
    assert isinstance(made.precision_guarantee, pb.PrecisionGuarantee)


@pytest.mark.parametrize(
    "plan", [getattr(pb, n) for n in pb.__all__ if re.fullmatch(r"\w+Plan", n)]
)
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
    found = inspect.signature(plan.run).parameters
    assert operands | {"self", "workspace", "stream"} <= set(found)
    further = {n: p.default for n, p in found.items() if n not in operands | {"self"}}
    assert set(further.values()) == {None}, "whatever else a plan takes may be left out"


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
    calling.forget()


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
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(1).standard_normal((7, 33)).astype("f4")
    plain = getattr(pb, name)(x, 1)
    result = getattr(pb, name)(torch.from_numpy(x), 1)
    assert isinstance(result, torch.Tensor)
    assert result.numpy().tobytes() == plain.tobytes()


def test_threshold_for_threads_is_where_the_suite_expects_it():
    """Large arrays of the suite must be above it, or its thread tests would run on one."""
    assert 0 < machine.here().waking_bytes <= 4 << 20
