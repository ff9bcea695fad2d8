"""The two precisions: what each computes in, what it promises, and that bytes hold in both."""

from __future__ import annotations

import itertools
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from pullback.cpu.launch import Launch
from pullback.errors import InvalidProblemError
from pullback.precision import DEFAULT
from pullback.tools.bench import find_op
from pullback.tools.case import Case
from pullback.tools.operands import make_operands, make_outputs
from scripts import run_script

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


@pytest.fixture(autouse=True)
def as_before():
    threads, precision = pb.get_num_threads(), pb.get_precision()
    yield
    pb.set_num_threads(threads)
    pb.set_precision(precision)


def softmax_backward(dy, x, axis):
    return pb.softmax_backward(dy, y=x, axis=axis)


def logsumexp_backward(dy, x, axis):
    y, first = pb.logsumexp(x, axis, keepdims=True), dy.take([0], axis)
    return pb.logsumexp_backward(first, x=x, y=y, axis=axis)


def var_backward(dy, x, axis):
    return pb.var_backward(dy.take([0], axis), x=x, axis=axis)


def std_backward(dy, x, axis):
    y = pb.std(x, axis, keepdims=True)
    return pb.std_backward(dy.take([0], axis), x=x, y=y, axis=axis)


def norm2_backward(dy, x, axis):
    y = pb.norm2(x, axis, keepdims=True)
    return pb.norm2_backward(dy.take([0], axis), x=x, y=y, axis=axis)


def max_backward(dy, x, axis):
    y = pb.max(x, axis, keepdims=True)
    return pb.max_backward(dy.take([0], axis), x=x, y=y, axis=axis)


CALLS = {
    "softmax": lambda dy, x, axis: pb.softmax(x, axis),
    "log_softmax": lambda dy, x, axis: pb.log_softmax(x, axis),
    "lerp_backward": lambda dy, x, axis: pb.lerp_backward(dy, weight=0.3)[0],
    "softmax_backward": softmax_backward,
    "logsumexp_backward": logsumexp_backward,
    "var_backward": var_backward,
    "std_backward": std_backward,
    "norm2_backward": norm2_backward,
    "max_backward": max_backward,
}


def data(shape, dtype, scale=1.0):
    rng = np.random.default_rng(3)
    return [(rng.standard_normal(shape) * s).astype(dtype) for s in (1.0, scale)]


def ulps(result, exact, element):
    """The largest error of a result in units in the last place of its type."""
    form = ml_dtypes.finfo(DTYPES[element])
    size = np.maximum(np.abs(exact), float(form.smallest_normal))
    unit = 2.0 ** np.floor(np.log2(size)) * float(form.eps)
    return float(np.max(np.abs(result.astype(np.float64) - exact) / unit))


# float32 within 2 ULP; the others rounded once from that: half of their unit and 2 of its more.
FAST = {"f32": 2.0, "f16": 0.5 + 2.0**-12, "bf16": 0.5 + 2.0**-15}
TIGHT = 0.51


@pytest.mark.parametrize(
    ("name", "element", "precision"),
    [
        *((name, "f32", "fast") for name in CALLS),
        *(("softmax_backward", element, "fast") for element in ("f16", "bf16")),
        *(("softmax", element, "fast") for element in ("f16", "bf16")),
        ("softmax_backward", "f32", "tight"),
        ("softmax", "f32", "tight"),
    ],
)
def test_how_far_a_result_may_lie(name, element, precision):
    """From the same call on float64."""
    dy, x = data((40, 300), DTYPES[element], 4.0)
    pb.set_precision(precision)
    result = CALLS[name](dy, x, 1)
    bound = FAST[element] if precision == "fast" else TIGHT
    assert ulps(result, in_float64(name, dy, x, 1), element) <= bound


def in_float64(name, dy, x, axis):
    """The same call on float64, but for saved outputs, which are those of the narrow type."""
    wide = dy.astype(np.float64), x.astype(np.float64)
    if name in ("logsumexp_backward", "std_backward", "norm2_backward", "max_backward"):
        kind = name.removesuffix("_backward")
        y = getattr(pb, kind)(x, axis, keepdims=True).astype(np.float64)
        backward = getattr(pb, name)
        return backward(wide[0].take([0], axis), x=wide[1], y=y, axis=axis)
    return CALLS[name](*wide, axis)


@pytest.mark.parametrize(
    ("name", "element", "precision"),
    [
        *((name, "f32", "fast") for name in CALLS),
        ("softmax_backward", "bf16", "fast"),
        ("softmax", "bf16", "fast"),
        ("softmax_backward", "f32", "tight"),
    ],
)
def test_bytes_do_not_depend_on_threads_or_layout(name, element, precision):
    """Sixteen lanes, eight, the end of a row, columns, strides: one lane has one value."""
    pb.set_precision(precision)
    dy, x = data((37, 301), DTYPES[element], 30.0)
    x[3, 40:50], dy[5, 100] = 3.0, np.inf
    results = set()
    for count, order in itertools.product((1, 3), ("C", "F", "turned", "spread")):
        pb.set_num_threads(count)
        given = [dy, x]
        if order == "F":
            given = [np.asfortranarray(a) for a in given]
        elif order == "turned":
            given = [np.ascontiguousarray(a[:, ::-1])[:, ::-1] for a in given]
        elif order == "spread":
            given = [np.repeat(a, 2, 1)[:, ::2] for a in given]
        results.add(np.ascontiguousarray(CALLS[name](*given, 1)).tobytes())
    turned = [np.ascontiguousarray(a.T) for a in (dy, x)]
    results.add(np.ascontiguousarray(CALLS[name](*turned, 0).T).tobytes())
    assert len(results) == 1


def test_long_rows_have_the_bytes_of_one_thread():
    pb.set_precision("fast")
    dy, x = data((1, 400_000), np.float32)
    found = []
    for count in (1, 3):
        pb.set_num_threads(count)
        found.append(pb.softmax(x).tobytes() + pb.softmax_backward(dy, y=x).tobytes())
    assert found[0] == found[1]


# Where float32 has not the range, float64 is used for the element: the results of both precisions
# differ by no more than their errors.
HARD = {
    "a large gradient of a small probability": (1e38, [0.0, -95.0, -110.0, -150.0, -190.0]),
    "a small gradient of a large ratio": (1e-38, [0.0, 80.0, 89.0, 120.0, 170.0]),
    "nothing": (1.0, [0.0, -300.0, -1e9, -np.inf, -87.0]),
}


@pytest.mark.parametrize("what", HARD)
def test_out_of_the_range_of_float32(what):
    gradient, xs = HARD[what]
    x = np.tile(np.array(xs, np.float32), (3, 8))
    dy, y = np.full((3, 1), gradient, np.float32), np.zeros((3, 1), np.float32)
    found = []
    for precision in ("fast", "tight"):
        pb.set_precision(precision)
        found.append(pb.logsumexp_backward(dy, x=x, y=y, axis=1).astype(np.float64))
    fast, tight = found
    unit = np.spacing(np.abs(tight).astype(np.float32)).astype(np.float64)
    assert (tight != 0).any()
    with np.errstate(invalid="ignore"):
        assert ((fast == tight) | (np.abs(fast - tight) <= 2 * unit)).all()


def test_differences_that_overflow_float32():
    dy = np.array([[3e38, -3e38, 0.0, 1.0] * 8], np.float32)
    y = np.zeros((1, 32), np.float32)
    y[0, :2] = 0.25, 0.75
    pb.set_precision("tight")
    tight = pb.softmax_backward(dy, y=y)
    pb.set_precision("fast")
    np.testing.assert_array_max_ulp(pb.softmax_backward(dy, y=y), tight, 2)
    assert np.isfinite(tight).all()


# How it is chosen.


def test_the_precisions_differ():
    dy, y = data((50, 100), np.float32)
    found = {}
    for precision in ("fast", "tight", "fast"):
        pb.set_precision(precision)
        bits = pb.softmax_backward(dy, y=y).tobytes()
        assert found.setdefault(precision, bits) == bits
    assert found["fast"] != found["tight"]


def test_a_plan_keeps_its_precision():
    dy, y = data((50, 100), np.float32)
    descriptor = pb.SoftmaxBackwardDescriptor("softmax", (50, 100), 1, "f32")
    dx = {p: np.empty_like(dy) for p in ("fast", "tight")}
    plans = {
        p: pb.SoftmaxBackwardPlan.select(descriptor, pb.PlanPreference(precision=p)) for p in dx
    }
    for precision, plan in plans.items():
        pb.set_precision("tight" if precision == "fast" else "fast")
        plan.run(dy=dy, y=y, dx=dx[precision])
        pb.set_precision(precision)
        assert pb.softmax_backward(dy, y=y).tobytes() == dx[precision].tobytes()
    of = {p: plan.precision_guarantee.math_precision for p, plan in plans.items()}
    assert of == {"fast": pb.MathPrecision.F32, "tight": pb.MathPrecision.F64}


@pytest.mark.parametrize(
    ("descriptor", "computed"),
    [
        (pb.SoftmaxDescriptor("softmax", (4, 5), 1, "bf16"), "f32"),
        (pb.SoftmaxDescriptor("softmax", (4, 5), 1, "f64"), "f64"),
        (pb.ScanDescriptor("cumsum", (4, 5), 1, False, "f32"), "f64"),
        (pb.ReduceDescriptor("logsumexp", (4, 5), 1, "f32"), "f64"),
        (pb.SoftmaxBackwardDescriptor("log_softmax", (4, 5), 1, "f32"), "f64"),
    ],
)
def test_what_a_plan_says_it_computes_in(descriptor, computed):
    plan_class = getattr(pb, type(descriptor).__name__.replace("Descriptor", "Plan"))
    plan = plan_class.select(descriptor, pb.PlanPreference(precision="fast"))
    assert plan.precision_guarantee.math_precision == computed
    assert plan.precision_guarantee.accumulator == "f64"


@pytest.mark.parametrize(
    ("name", "element", "differ"),
    [
        ("softmax", "f32", True),
        ("norm2_backward", "bf16", True),
        ("softmax", "f64", False),
        ("sum", "f32", False),
        ("mean_backward", "f32", False),
        ("prod_backward", "f32", True),
        ("prod_backward", "f64", False),
    ],
)
def test_kernels_that_are_the_same_are_compiled_once(name, element, differ):
    case = Case.of(find_op(name), element, (4, 6), axis=-1)
    arrays = make_operands(case) | make_outputs(case)
    strides = {n: a.strides for n, a in arrays.items()}
    keys = set()
    for precision in ("fast", "tight"):
        keys.add(Launch(replace(case.problem, precision=precision), strides, 1)._key)
    assert len(keys) == 1 + differ


def test_the_environment_chooses():
    code = "import pullback as pb; print(pb.get_precision())"
    for precision in ("fast", "tight"):
        assert run_script(code, PULLBACK_PRECISION=precision).strip() == precision
    assert run_script(code, PULLBACK_PRECISION="").strip() == DEFAULT == "fast"


def test_what_is_no_precision():
    with pytest.raises(InvalidProblemError, match="precision: expected 'fast' or 'tight'"):
        pb.set_precision("double")
    with pytest.raises(InvalidProblemError, match="precision: expected 'fast' or 'tight'"):
        pb.PlanPreference(precision="loose")
