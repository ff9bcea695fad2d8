"""The oracle against torch's float64 autograd, against hand-computed edges, and its own ulps."""

import ast
import doctest
import math
import sys
from itertools import pairwise
from pathlib import Path

import ml_dtypes
import mpmath
import numpy as np
import pytest
import torch
from mpmath import mp, mpf

import pullback as pb
from pullback import oracle
from pullback.oracle import Reference, reference, round_to, ulp, ulp_error

INF, NAN = math.inf, math.nan
EPS = 2.0**-52


def rng():
    return np.random.default_rng(20)


def run(name, operands, **params):
    """Evaluate with Python lists for operands; return the single output, rounded to float64."""
    ids = {"segment_ids"}
    arrays = {k: np.asarray(v, int if k in ids else float) for k, v in operands.items()}
    (ref,) = reference(name, arrays, **params).values()
    return round_to(ref.value, "f64")


def assert_close(actual, ref):
    """torch adds up to 24 terms; each operation costs at most an eps of the condition scale."""
    actual = np.asarray(actual)
    assert actual.shape == ref.value.shape
    with mp.workprec(640):
        for a, v, m in zip(actual.flat, ref.value.flat, ref.magnitude.flat, strict=True):
            assert abs(v) <= m * (1 + mpf(2) ** -500)
            assert abs(mpf(float(a)) - v) <= 48 * EPS * m, (a, v, m)


# Import hygiene


def test_oracle_imports_nothing_of_the_library():
    allowed = {"numpy", "ml_dtypes", "mpmath"} | set(sys.stdlib_module_names)
    files = sorted(Path(oracle.__file__).parent.glob("**/*.py"))
    siblings = {f.stem for f in files}
    assert len(files) >= 8
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert {a.name.split(".")[0] for a in node.names} <= allowed, file
            elif isinstance(node, ast.ImportFrom):
                assert node.level <= 1, file
                if node.level == 0:
                    assert node.module.split(".")[0] in allowed, file
                elif node.module is None:
                    assert {a.name for a in node.names} <= siblings, file
                else:
                    assert node.module in siblings, file
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                called = getattr(node.func, "id", getattr(node.func, "attr", None))
                assert called not in {"__import__", "import_module", "eval", "exec"}, file


def test_every_op_is_defined():
    assert set(oracle.names()) == {op.name for op in pb.catalog()}


# Against torch, forward and backward, on data with zeros and ties

SCANS = {
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "cummax": lambda x, axis: torch.cummax(x, axis).values,
    "cummin": lambda x, axis: torch.cummin(x, axis).values,
    "logcumsumexp": torch.logcumsumexp,
}
REDUCTIONS = {
    "sum": lambda x, axis: torch.sum(x, axis, keepdim=True),
    "mean": lambda x, axis: torch.mean(x, axis, keepdim=True),
    "max": lambda x, axis: torch.amax(x, axis, keepdim=True),
    "min": lambda x, axis: torch.amin(x, axis, keepdim=True),
    "norm2": lambda x, axis: torch.linalg.vector_norm(x, 2, axis, keepdim=True),
    "logsumexp": lambda x, axis: torch.logsumexp(x, axis, keepdim=True),
    "var": lambda x, axis: torch.var(x, axis, keepdim=True),
    "std": lambda x, axis: torch.std(x, axis, keepdim=True),
}


def check_against_torch(name, fn, x, params, extra=None):
    leaf = torch.from_numpy(x.copy()).requires_grad_()
    out = fn(leaf)
    forward = reference(name, {"x": x}, **params)["y"]
    assert_close(out.detach().numpy(), forward)
    dy = rng().standard_normal(forward.value.shape)
    out.backward(torch.from_numpy(dy))
    operands = {"dy": dy, "x": x, "y": round_to(forward.value, "f64")}
    backward = reference(f"{name}_backward", operands, **params, **(extra or {}))["dx"]
    assert_close(leaf.grad.numpy(), backward)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", SCANS)
def test_scan_matches_torch(name, axis, reverse):
    x = rng().standard_normal((3, 4, 6)).round(1)
    x[0, 1, 2] = x[1, 2, 3] = x[1, 2, 5] = x[1, 0, 3] = 0.0

    def fn(t):
        flip = (lambda v: v.flip(axis)) if reverse else (lambda v: v)
        return flip(SCANS[name](flip(t), axis))

    extra = {"ties": "last"} if name in ("cummax", "cummin") else {}
    check_against_torch(name, fn, x, {"axis": axis, "reverse": reverse}, extra)


@pytest.mark.parametrize("axis", [0, -1, (0, 2), (2, 0), None])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction_matches_torch(name, axis):
    x = rng().standard_normal((3, 2, 4)).round(1)
    dims = (0, 1, 2) if axis is None else axis
    check_against_torch(name, lambda t: REDUCTIONS[name](t, dims), x, {"axis": axis})


@pytest.mark.parametrize("correction", [0, 1, 2])
@pytest.mark.parametrize("name", ["var", "std"])
def test_correction_matches_torch(name, correction):
    fn = getattr(torch, name)
    x = rng().standard_normal((3, 5))
    params = {"axis": 1, "correction": correction}
    check_against_torch(name, lambda t: fn(t, 1, correction=correction, keepdim=True), x, params)


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_prod_matches_torch(zeros):
    x = rng().standard_normal((3, 6))
    x[:, 1 : 1 + zeros] = 0.0
    check_against_torch("prod", lambda t: torch.prod(t, 1, keepdim=True), x, {"axis": 1})


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_matches_torch(name, axis):
    fn = getattr(torch, name)
    check_against_torch(name, lambda t: fn(t, axis), rng().standard_normal((4, 5)), {"axis": axis})


def test_lerp_matches_torch():
    a, b, dy = rng().standard_normal((3, 2, 4))
    ta, tb = (torch.from_numpy(v).requires_grad_() for v in (a, b))
    out = torch.lerp(ta, tb, 0.3)
    out.backward(torch.from_numpy(dy))
    assert_close(out.detach().numpy(), reference("lerp", {"a": a, "b": b}, weight=0.3)["y"])
    ref = reference("lerp_backward", {"dy": dy}, weight=0.3)
    assert_close(ta.grad.numpy(), ref["da"])
    assert_close(tb.grad.numpy(), ref["db"])


def test_segment_sum_matches_torch():
    x, ids = rng().standard_normal((7, 3)), np.array([2, 0, 2, 3, 0, 2, 5], np.int32)
    leaf = torch.from_numpy(x).requires_grad_()
    out = torch.zeros(6, 3, dtype=torch.float64).index_add(0, torch.from_numpy(ids), leaf)
    dy = rng().standard_normal((6, 3))
    out.backward(torch.from_numpy(dy))
    ref = reference("segment_sum", {"input": x, "segment_ids": ids}, num_segments=6)
    assert_close(out.detach().numpy(), ref["output"])
    ref = reference("segment_sum_backward", {"d_output": dy, "segment_ids": ids})
    assert_close(leaf.grad.numpy(), ref["d_input"])


# Edges, by hand


def same(actual, expected):
    np.testing.assert_array_equal(actual, np.asarray(expected, float), strict=True)


def test_cumprod_backward_with_zeros():
    x = [2.0, 0.0, 3.0, 0.0, 5.0]
    dx = run("cumprod_backward", {"dy": [1.0, 10.0, 100.0, 1000.0, 1e4], "x": x})
    same(dx, [1, 20 + 600, 0, 0, 0])
    # two routes in the oracle: with nan about, the definition is evaluated word by word
    dx = run("cumprod_backward", {"dy": [1.0, 10.0, 100.0], "x": [2.0, 3.0, NAN]})
    same(dx, [NAN, NAN, 6 * 100])


def test_cumprod_backward_shortcuts_equal_the_definition():
    from pullback.oracle.scan import _cumprod_partial, cumprod_backward
    from pullback.oracle.special import number

    g = rng()
    for zeros in ([], [0], [3], [7], [2, 5]):
        x, dy = g.standard_normal((2, 8))
        x[zeros] = 0.0
        with mp.workprec(640):
            tx, td = [number(v) for v in x], [number(v) for v in dy]
            for j, term in enumerate(cumprod_backward(td, tx)):
                plain = _cumprod_partial(td, tx, j)
                assert abs(term.value - plain.value) <= mpf(2) ** -600 * plain.size
                assert abs(term.size - plain.size) <= mpf(2) ** -600 * plain.size


def test_cumprod_does_not_overflow_inside():
    x = np.array([1e300, 1e300, 1e-300, 1e-300])
    y = reference("cumprod", {"x": x})["y"]
    assert round_to(y.value, "f64")[1] == INF
    assert abs(round_to(y.value, "f64")[3] - 1) < 1e-15
    dx = run("cumprod_backward", {"dy": [0.0, 0.0, 0.0, 1.0], "x": x})
    np.testing.assert_allclose(dx, [1e-300, 1e-300, 1e300, 1e300], rtol=1e-14)


@pytest.mark.parametrize(
    ("x", "ties", "expected"),
    [
        ([1, 3, 3, 2, 3], "first", [1, 2 + 4 + 8 + 16, 0, 0, 0]),
        ([1, 3, 3, 2, 3], "last", [1, 2, 4 + 8, 0, 16]),
        ([1, NAN, 5, NAN, 7], "first", [1, 30, 0, 0, 0]),
        ([1, NAN, 5, NAN, 7], "last", [1, 30, 0, 0, 0]),
        ([NAN, 1, 2, 3, 4], "last", [31, 0, 0, 0, 0]),
        ([-INF, -INF, 0.0, INF, INF], "first", [3, 0, 4, 24, 0]),
        ([-0.0, 0.0, -0.0, -1, 0.0], "last", [1, 2, 12, 0, 16]),
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("sign", [1, -1])
def test_cummax_and_cummin_ties_and_nan(x, ties, expected, reverse, sign):
    step = -1 if reverse else 1
    operands = {"dy": [1, 2, 4, 8, 16][::step], "x": [sign * v for v in x][::step]}
    name = "cummax_backward" if sign > 0 else "cummin_backward"
    same(run(name, operands, reverse=reverse, ties=ties), expected[::step])


def test_cummax_forward_keeps_nan():
    same(run("cummax", {"x": [1, NAN, 5]}), [1, NAN, NAN])
    same(run("cummin", {"x": [[3, 1], [2, 5]]}, axis=0, reverse=True), [[2, 1], [2, 5]])


def test_logcumsumexp_edges():
    same(run("logcumsumexp", {"x": [-INF, 0.0, -INF]}), [-INF, 0, 0])
    same(run("logcumsumexp", {"x": [0.0, INF, 1.0, NAN]}), [0, INF, INF, NAN])
    # log(1 + exp(-700)), a float64 no 640-bit sum would see
    same(run("logcumsumexp", {"x": [0.0, -700.0]}), [0, math.exp(-700)])
    x, y = [-INF, 0.0, -INF], [-INF, 0.0, 0.0]
    dx = run("logcumsumexp_backward", {"dy": [NAN, 2.0, 3.0], "x": x, "y": y})
    same(dx, [0, 5, 0])
    # "x = -inf gives 0" holds whatever flows back, as for norm2 and logsumexp
    dx = run("logcumsumexp_backward", {"dy": [1.0, NAN], "x": [-INF, 0.0], "y": [-INF, 0.0]})
    same(dx, [0, NAN])
    x, y = [0.0, INF, 1.0], [0.0, INF, INF]
    dx = run("logcumsumexp_backward", {"dy": [2.0, 3.0, 4.0], "x": x, "y": y})
    same(dx, [2, NAN, 0])
    dx = run(
        "logcumsumexp_backward", {"dy": [1.0, 1.0], "x": [-1e308, 1e308], "y": [-1e308, 1e308]}
    )
    same(dx, [1, 1])


def test_logcumsumexp_backward_uses_the_given_y():
    y = [0.0, 1.0]
    dx = run("logcumsumexp_backward", {"dy": [1.0, 1.0], "x": [0.0, 0.0], "y": y})
    np.testing.assert_allclose(dx, [1 + math.exp(-1), math.exp(-1)], rtol=1e-15)


@pytest.mark.parametrize(
    ("ties", "expected"),
    [
        ("split", [0, 3, 0, 3]),
        ("all", [0, 6, 0, 6]),
        ("first", [0, 6, 0, 0]),
        ("last", [0, 0, 0, 6]),
    ],
)
@pytest.mark.parametrize("top", [2.0, INF, NAN])
def test_max_and_min_ties(ties, expected, top):
    x = [1.0, top, 0.0, top]
    same(run("max_backward", {"dy": [6.0], "x": x, "y": [top]}, ties=ties), expected)
    x = [-v for v in x]
    same(run("min_backward", {"dy": [6.0], "x": x, "y": [-top]}, ties=ties), expected)


def test_max_forward_and_infinite_gradient():
    same(run("max", {"x": [1.0, NAN, 3.0]}), [NAN])
    same(run("min", {"x": [1.0, -INF, 3.0]}), [-INF])
    same(run("max_backward", {"dy": [INF], "x": [1.0, 2.0], "y": [2.0]}), [0, INF])
    same(run("max_backward", {"dy": [1.0], "x": [1.0, 2.0], "y": [5.0]}), [0, 0])


def test_ties_follow_c_order_whatever_the_axes():
    x, y = np.ones((2, 3)), np.ones((1, 1))
    dx = run("max_backward", {"dy": [[4.0]], "x": x, "y": y}, axis=(1, 0), ties="last")
    same(dx, [[0, 0, 0], [0, 0, 4]])


def test_zero_gradients_where_the_formula_divides_by_zero():
    for dy in (1.0, NAN, INF):
        operands = {"dy": [dy], "x": [3.0, 3.0], "y": [0.0]}
        same(run("norm2_backward", operands), [0, 0])
        same(run("std_backward", operands), [0, 0])
        same(run("logsumexp_backward", {"dy": [dy], "x": [-INF] * 2, "y": [-INF]}), [0, 0])


def test_variance_freedom_is_at_least_one():
    same(run("var", {"x": [1.0, 3.0]}, correction=5), [2])
    same(run("std", {"x": [4.0]}), [0])
    same(run("var_backward", {"dy": [3.0], "x": [1.0, 3.0]}, correction=2), [-6, 6])
    same(run("std_backward", {"dy": [3.0], "x": [1.0, 3.0], "y": [2.0]}, correction=2), [-1.5, 1.5])
    same(run("var", {"x": [1.0, INF]}), [NAN])


def test_infinite_rows():
    same(run("logsumexp", {"x": [0.0, INF]}), [INF])
    same(run("logsumexp", {"x": [-INF, -INF]}), [-INF])
    same(run("logsumexp_backward", {"dy": [1.0], "x": [0.0, INF], "y": [INF]}), [0, NAN])
    for x in ([0.0, INF], [-INF, -INF], [NAN, 0.0]):
        same(run("softmax", {"x": x}), [NAN, NAN])
        same(run("log_softmax", {"x": x}), [NAN, NAN])
    same(run("softmax", {"x": [0.0, -INF]}), [1, 0])
    same(run("log_softmax", {"x": [0.0, -INF]}), [0, -INF])
    same(run("log_softmax_backward", {"dy": [1.0, 2.0], "y": [0.0, -INF]}), [-2, 2])
    same(run("norm2", {"x": [1e300, 0.0]}), [1e300])
    same(run("prod_backward", {"dy": [2.0], "x": [0.0, INF, 3.0]}), [INF, 0, NAN])


def test_empty():
    empty = {"x": np.zeros((2, 0))}
    expected = {
        "sum": 0,
        "prod": 1,
        "norm2": 0,
        "logsumexp": -INF,
        "mean": NAN,
        "var": NAN,
        "std": NAN,
    }
    for name, value in expected.items():
        same(run(name, empty, axis=1), [[value], [value]])
        assert run(name, empty, axis=0).shape == (1, 0)
    for name in ("max", "min"):
        with pytest.raises(ValueError, match="no elements"):
            run(name, empty, axis=1)
    for name in (*expected, "max", "min"):
        operands = {"dy": np.ones((2, 1)), "y": np.ones((2, 1)), **empty}
        assert run(f"{name}_backward", operands, axis=1).shape == (2, 0)
    for name in SCANS:
        assert run(name, empty).shape == (2, 0)
        operands = {"dy": empty["x"], "y": empty["x"], **empty}
        assert run(f"{name}_backward", operands).shape == (2, 0)
    for name in ("softmax", "log_softmax"):
        assert run(name, empty).shape == (2, 0)
    ref = reference("lerp_backward", {"dy": np.zeros((0, 3))}, weight=0.5)
    assert ref["da"].value.shape == ref["db"].magnitude.shape == (0, 3)
    same(
        run("segment_sum", {"input": np.zeros((0, 2)), "segment_ids": []}, num_segments=1), [[0, 0]]
    )


def test_rank_zero():
    x = np.array(3.0)
    for name in ("cumsum", "cumprod", "cummax", "logcumsumexp", "sum", "prod", "norm2"):
        same(run(name, {"x": x}), 3.0)
    same(run("softmax", {"x": x}), 1.0)
    same(run("lerp", {"a": x, "b": x}, weight=0.5), 3.0)
    same(run("sum_backward", {"dy": x}, shape=()), 3.0)


def test_shape_parameter_and_mean():
    dy = [[1.0], [2.0]]
    same(run("sum_backward", {"dy": dy}, shape=(2, 3), axis=1), [[1] * 3, [2] * 3])
    same(run("mean_backward", {"dy": dy}, shape=(2, 4), axis=-1), [[0.25] * 4, [0.5] * 4])
    with pytest.raises(ValueError, match="dy must have shape"):
        run("sum_backward", {"dy": [1.0, 2.0]}, shape=(2, 3), axis=1)


def test_lerp_weights():
    operands = {"a": [1.0, 2.0], "b": [1.0, 3.0]}
    same(run("lerp", operands, weight=INF), [NAN, INF])
    same(run("lerp", operands, weight=NAN), [NAN, NAN])
    ref = reference("lerp_backward", {"dy": np.array([0.0, 2.0])}, weight=INF)
    same(round_to(ref["da"].value, "f64"), [NAN, -INF])
    same(round_to(ref["db"].value, "f64"), [NAN, INF])
    assert [
        float(m)
        for m in reference("lerp", {k: np.array(v) for k, v in operands.items()}, weight=-2.0)[
            "y"
        ].magnitude
    ] == [5, 12]


def test_segment_ids_out_of_range():
    forward = {"input": [[1.0], [2.0], [4.0], [8.0]], "segment_ids": [1, -1, 3, 1]}
    backward = {"d_output": [[5.0], [6.0], [7.0]], "segment_ids": [1, -1, 3, 2]}
    same(run("segment_sum", forward, num_segments=3, out_of_range="drop"), [[0], [9], [0]])
    same(run("segment_sum_backward", backward, out_of_range="drop"), [[6], [0], [0], [7]])
    with pytest.raises(ValueError, match="outside"):
        run("segment_sum", forward, num_segments=3)
    with pytest.raises(ValueError, match="outside"):
        run("segment_sum_backward", backward)


# The interface


def test_magnitude_of_a_cancelling_sum():
    x = np.array([1e300, 1.0, -1e300])
    ref = reference("sum", {"x": x})["y"]
    assert ref.value[0] == 1
    assert ref.magnitude[0] >= mpf(2e300)
    ref = reference("softmax_backward", {"dy": np.array([1.0, -3.0]), "y": np.array([0.5, 0.5])})
    assert [float(m) for m in ref["dx"].magnitude] == [1.5, 2.5]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_layouts_and_dtypes(dtype):
    base = rng().integers(-8, 8, (4, 6)).astype(dtype)
    for view in (
        base.T,
        base[::-1, ::2],
        np.broadcast_to(base[:1], (4, 6)),
        np.asfortranarray(base),
    ):
        ref = reference("cumsum", {"x": view}, axis=0)["y"]
        same(round_to(ref.value, "f64"), np.cumsum(view.astype(float), axis=0))


def test_docstring_example():
    assert doctest.testmod(oracle) == (0, 6)


def test_wrong_calls_raise():
    x = np.ones(3)
    with pytest.raises(ValueError, match="unknown op"):
        reference("cumsun", {"x": x})
    with pytest.raises(TypeError, match="needs the operands"):
        reference("cumprod_backward", {"dy": x})
    with pytest.raises(TypeError, match="reads floats"):
        reference("cumsum", {"x": np.ones(3, complex)})
    with pytest.raises(ValueError, match="out of range"):
        reference("cumsum", {"x": x}, axis=1)
    with pytest.raises(ValueError, match="twice"):
        reference("sum", {"x": np.ones((2, 2))}, axis=(1, -1))
    with pytest.raises(ValueError, match="ties"):
        reference("cummax_backward", {"dy": x, "x": x}, ties="split")
    with pytest.raises(ValueError, match="must have shape"):
        reference("cumprod_backward", {"dy": x, "x": np.ones(4)})
    with pytest.raises(TypeError, match="unexpected keyword"):
        reference("cumsum", {"x": x}, rewerse=True)
    assert mp.prec == 53


# Units in the last place

FORMATS = {
    "f64": (np.float64, 53, -1022, 1023),
    "f32": (np.float32, 24, -126, 127),
    "f16": (np.float16, 11, -14, 15),
    "bf16": (ml_dtypes.bfloat16, 8, -126, 127),
}


def exact(*values):
    array = np.empty(len(values), object)
    array[:] = [v if isinstance(v, mpf) else mpf(v) for v in values]
    return Reference(array, array)


def power(exponent):
    return mpf(2) ** exponent


def ulps(actual, value, element):
    (error,) = ulp_error(np.array([actual], dtype=np.float64), exact(value), element)
    return error


@pytest.mark.parametrize("element", FORMATS)
def test_ulp_at_binade_edges(element):
    _, p, _, _ = FORMATS[element]
    unit = 2.0 ** (1 - p)
    assert ulps(1 + unit, 1, element) == 1
    assert ulps(1 - unit / 2, 1, element) == 0.5
    with mp.workprec(200):
        below = 1 - power(-150)
        assert ulps(1.0, below, element) == pytest.approx(2.0 ** (p - 150), rel=1e-12)
        assert ulps(1 - unit / 2, below, element) == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("element", FORMATS)
def test_ulp_in_the_subnormal_range(element):
    dtype, p, emin, _ = FORMATS[element]
    tiny = power(emin - p + 1)
    assert ulps(0.0, tiny, element) == 1
    assert ulps(0.0, tiny / 4, element) == 0.25
    assert ulps(float(tiny), 0, element) == 1
    assert ulps(-float(tiny), tiny, element) == 2
    assert ulps(float(power(emin) - tiny), power(emin), element) == 1
    assert ulps(0.0, power(-(10**30)), element) == 0
    values = [tiny / 2, tiny * 3 / 2, tiny * 5 / 2, tiny * 0.75, -tiny, power(emin) - tiny / 4]
    rounded = round_to(exact(*values).value, element)
    assert rounded.dtype == np.dtype(dtype)
    expected = [0, 2 * tiny, 2 * tiny, tiny, -tiny, power(emin)]
    assert rounded.astype(float).tolist() == [float(v) for v in expected]


@pytest.mark.parametrize("element", FORMATS)
def test_ulp_at_overflow(element):
    dtype, p, _, emax = FORMATS[element]
    with mp.workprec(200):
        largest = (2 - power(1 - p)) * power(emax)
        edge = largest + power(emax - p)
        under = edge - power(emax - 150)
        values = exact(largest, under, edge, -edge, power(10**30), INF, NAN).value
    rounded = round_to(values, element)
    assert rounded.dtype == np.dtype(dtype)
    top = float(largest)
    same(rounded.astype(float), [top, top, INF, -INF, INF, INF, NAN])
    assert ulps(INF, edge, element) == 0
    assert ulps(-INF, edge, element) == INF
    assert ulps(INF, under, element) == INF
    assert ulps(top, edge, element) == 0.5
    assert ulps(top, INF, element) == INF
    assert ulps(INF, INF, element) == 0
    assert ulps(NAN, NAN, element) == 0
    assert ulps(NAN, 1, element) == ulps(1.0, NAN, element) == ulps(NAN, INF, element) == INF


def test_round_to_rounds_once():
    with mp.workprec(400):
        # just above a tie for f32: through float64 it would become the tie, and round down
        value = 1 + power(-24) + power(-300)
        assert round_to(exact(value).value, "f32")[0] == np.float32(1 + 2.0**-23)
    assert round_to(exact(mpf(1) + power(-24)).value, "f32")[0] == 1
    assert round_to(object_scalar(mpf(3)), "bf16").shape == ()


def object_scalar(value):
    array = np.empty((), object)
    array[()] = value
    return array


@pytest.mark.parametrize("element", ["f16", "bf16", "f32"])
def test_round_to_agrees_with_numpy(element):
    values = rng().standard_normal(200) * 2.0 ** rng().integers(-150, 130, 200)
    dtype = FORMATS[element][0]
    with np.errstate(over="ignore", under="ignore"):
        expected = (
            values.astype(np.float32).astype(dtype) if element == "bf16" else values.astype(dtype)
        )
    same(round_to(exact(*values).value, element).astype(float), expected.astype(float))


def test_round_to_visits_every_f16():
    numbers = np.arange(0x7C00, dtype=np.uint16).view(np.float16)
    as_mpf = exact(*numbers.astype(float)).value
    same(round_to(as_mpf, "f16").astype(float), numbers.astype(float))
    middles = [(a + b) / 2 for a, b in pairwise(as_mpf[:4096])]
    even = numbers[:4096].reshape(-1, 2)[:, 0]
    expected = np.repeat(even.astype(float), 2)[1:].tolist()
    assert round_to(exact(*middles).value, "f16").astype(float).tolist() == expected


@pytest.mark.parametrize("element", FORMATS)
def test_ulp_of_integers_is_that_of_numbers(element):
    """The quick way and the general one, next to the exact value and far from it."""
    form, random = ulp.FORMATS[element], rng()
    for exponent in (form.emin - 30, form.emin, 0, form.emax, form.emax + 1, -9000):
        with mp.workprec(640):
            exact = mpf(random.uniform(-1, 1)) * mpf(2) ** exponent * (1 + mpf(2) ** -90)
            near = float(exact)
            for actual in (near, near * (1 + 2.0**-20), -near, 0.0, 1.0, 1e308):
                found = ulp._error(actual, exact, form)
                assert found == pytest.approx(ulp._error_of_any(actual, exact, form), rel=2**-50)


def test_ulp_error_does_not_broadcast():
    with pytest.raises(ValueError, match="shapes differ"):
        ulp_error(np.zeros(1), exact(1, 2), "f64")
    with pytest.raises(KeyError):
        ulp_error(np.zeros(1), exact(1), "f8")


def test_reference_values_are_mpf():
    ref = reference("mean", {"x": np.array([1.0, 1.0, 2.0])})["y"]
    assert isinstance(ref.value[0], mpmath.mpf)
    assert ulp_error(np.array([4 / 3]), ref, "f64")[0] <= 0.5
