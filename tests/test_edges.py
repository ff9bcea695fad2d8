"""What the docs say of zeros, ties, NaN and infinities, each with its numbers written out."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import pullback as pb

INF, NAN = np.inf, np.nan


def f64(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def shown(array: np.ndarray) -> list:
    """As a list in which nan equals nan."""
    return [None if v != v else v for v in np.asarray(array, np.float64).ravel().tolist()]


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ((2.0, 3.0, 4.0), [16.0, 10.0, 6.0]),
        ((0.0, 3.0, 4.0), [16.0, 0.0, 0.0]),
        ((2.0, 0.0, 4.0), [1.0, 10.0, 0.0]),
        ((2.0, 0.0, 0.0), [1.0, 2.0, 0.0]),
        ((0.0, 0.0, 0.0), [1.0, 0.0, 0.0]),
    ],
)
def test_cumprod_with_any_number_of_zeros(x, expected):
    x = f64(*x)
    assert shown(pb.cumprod_backward(np.ones(3), x=x, y=pb.cumprod(x))) == expected
    mirrored = pb.cumprod_backward(
        np.ones(3), x=x[::-1], y=pb.cumprod(x[::-1], reverse=True), reverse=True
    )
    assert shown(mirrored) == expected[::-1]


def test_cumprod_does_not_overflow_where_the_result_does_not():
    """R[0] is 1e600 here, P[3] is 1e-600, and dx is neither."""
    x = f64(1e-300, 1e-300, 1e300, 1e300, 1.0)
    dx = pb.cumprod_backward(f64(0, 0, 0, 0, 1), x=x, y=pb.cumprod(x))
    assert np.allclose(dx, [1e300, 1e300, 1e-300, 1e-300, 1.0], rtol=1e-14, atol=0)
    assert shown(pb.cumprod(f64(1e200, 1e200, 1e-200, 1e-200)))[1] == INF
    assert np.allclose(pb.cumprod(f64(1e200, 1e200, 1e-200, 1e-200))[2:], [1e200, 1.0])


@pytest.mark.parametrize(
    ("ties", "expected"), [("first", [1, 14, 0, 0, 48, 0]), ("last", [1, 2, 4, 8, 16, 32])]
)
def test_cummax_ties(ties, expected):
    x = f64(1, 3, 3, 3, 5, 5)
    dy = f64(1, 2, 4, 8, 16, 32)
    assert shown(pb.cummax_backward(dy, x=x, ties=ties)) == expected
    assert shown(pb.cummin_backward(dy, x=-x, ties=ties)) == expected


@pytest.mark.parametrize("ties", ["first", "last"])
def test_the_first_nan_holds_the_running_extreme(ties):
    x = f64(1, NAN, 5, NAN)
    assert shown(pb.cummax(x)) == [1.0, None, None, None]
    assert shown(pb.cummin(x)) == [1.0, None, None, None]
    for backward in (pb.cummax_backward, pb.cummin_backward):
        assert shown(backward(f64(1, 2, 4, 8), x=x, ties=ties)) == [1.0, 14.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_minus_inf_in_logcumsumexp(dtype):
    x = np.array([-INF, -INF, 0.0, -INF, 0.0]).astype(dtype)
    y = pb.logcumsumexp(x)
    assert shown(y[:4]) == [-INF, -INF, 0.0, 0.0]
    dx = pb.logcumsumexp_backward(np.ones(5).astype(dtype), x=x, y=y)
    assert shown(dx[:2]) == [0.0, 0.0]
    assert float(dx[3]) == 0.0
    assert np.allclose(dx[[2, 4]].astype(float), [2.5, 0.5], rtol=0.02)
    nothing = np.full(3, -INF).astype(dtype)
    assert shown(pb.logcumsumexp(nothing)) == [-INF] * 3
    assert (
        shown(pb.logcumsumexp_backward(np.ones(3).astype(dtype), x=nothing, y=nothing)) == [0.0] * 3
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_minus_inf_in_logsumexp(dtype):
    nothing = np.full((2, 9), -INF).astype(dtype)
    y = pb.logsumexp(nothing, 1)
    assert shown(y) == [-INF, -INF]
    dx = pb.logsumexp_backward(np.ones(2).astype(dtype), x=nothing, y=y, axis=1)
    assert shown(dx) == [0.0] * 18
    assert shown(pb.logsumexp(np.array([-INF, 0.0]).astype(dtype))) == [0.0]
    assert shown(pb.logsumexp(np.array([1.0, INF]).astype(dtype))) == [INF]


@pytest.mark.parametrize(
    ("ties", "expected"),
    [
        ("split", [0, 4, 0, 4, 4]),
        ("all", [0, 12, 0, 12, 12]),
        ("first", [0, 12, 0, 0, 0]),
        ("last", [0, 0, 0, 0, 12]),
    ],
)
def test_max_and_min_ties(ties, expected):
    x = f64(1, 7, 3, 7, 7)
    dy = np.array(12.0)
    assert shown(pb.max_backward(dy, x=x, y=pb.max(x), ties=ties)) == expected
    assert shown(pb.min_backward(dy, x=-x, y=pb.min(-x), ties=ties)) == expected
    nans = np.where(x == 7, NAN, x)
    assert shown(pb.max_backward(dy, x=nans, y=pb.max(nans), ties=ties)) == expected
    assert shown(pb.min_backward(dy, x=nans, y=pb.min(nans), ties=ties)) == expected


def test_ties_are_counted_beyond_what_float32_counts():
    n = 2**24 + 3
    x = np.zeros(n, np.float32)
    dx = pb.max_backward(np.float32(1), x=x, y=np.float32(0))
    assert dx[0] == np.float32(1 / n) != np.float32(2.0**-24)
    assert (dx == dx[0]).all()


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ((2, 3, 4), [12, 8, 6]),
        ((2, 0, 4), [0, 8, 0]),
        ((0, 0, 4), [0, 0, 0]),
        ((0, 3, 4), [12, 0, 0]),
    ],
)
def test_prod_with_zeros(x, expected):
    x = f64(*x)
    assert shown(pb.prod_backward(np.array(1.0), x=x, y=pb.prod(x))) == expected


def test_prod_does_not_divide():
    x = f64(1e-200, 1e-200, 1e300)
    dx = pb.prod_backward(np.array(1.0), x=x, y=pb.prod(x))
    assert np.allclose(dx, [1e100, 1e100, 0.0], rtol=1e-14, atol=1e-300)


@pytest.mark.parametrize("scale", [1e200, 1e-200, 1e-310])
def test_norm2_neither_overflows_nor_underflows(scale):
    x = f64(3 * scale, 4 * scale)
    y = pb.norm2(x)
    assert np.allclose(y / scale, 5.0, rtol=1e-12)
    assert np.allclose(pb.norm2_backward(np.array(1.0), x=x, y=y), [0.6, 0.8], rtol=1e-12)


@pytest.mark.parametrize("scale", [1e200, 1e-200, 2.0**-1070, 2.0**1021])
@pytest.mark.parametrize("axis", [0, 1])
def test_deviations_neither_overflow_nor_underflow(scale, axis):
    """Squares leave the range of a float64; at 2**1021 the sum and a difference do too."""
    x = np.outer(f64(6, -6, -6, -6, 6, -6, -6, -6), np.ones(3)) * scale
    x = x if axis == 0 else x.T
    exact = 6 * np.sqrt(0.75) * scale
    y = pb.std(x, axis, correction=0)
    assert np.allclose(y, exact, rtol=1e-15, atol=5e-324)
    dx = pb.std_backward(np.ones(3), x=x, y=y, axis=axis, correction=0)
    assert np.allclose(dx, np.where(x > 0, 9 / 8, -3 / 8) * (scale / y[0]), rtol=1e-14, atol=0)
    dy = np.full(3, 1e-300 if scale > 1 else 1e300)
    dx = pb.var_backward(dy, x=x, axis=axis, correction=0)
    assert np.allclose(dx, np.where(x > 0, 9 / 4, -3 / 4) * (dy[0] * scale), rtol=1e-14, atol=0)
    assert (pb.var(x, axis) == (INF if scale > 1 else 0.0)).all()


def test_variance_is_rounded_once_where_it_is_subnormal():
    """2 * (2**-531)**2 is 2**-1061, which float64 holds."""
    assert shown(pb.var(f64(2.0**-531, 3 * 2.0**-531))) == [2.0**-1061]
    assert shown(pb.std(f64(1e200, -1e200))) == [float(np.sqrt(2.0) * 1e200)]
    assert np.allclose(pb.std(f64(1e-200, 3e-200)), np.sqrt(2.0) * 1e-200, rtol=1e-15, atol=0)
    assert shown(pb.var(f64(1e200, -1e200))) == [INF]
    assert shown(pb.var(f64(1e-200, 3e-200))) == [0.0]


def test_mean_of_a_long_row_whose_sum_overflows():
    """Long enough to be cut over threads, and all of one sign."""
    n = 300_000
    x = np.full(n, 1.5e308)
    x[::2] = 1.25e308
    y = pb.std(x, correction=0)
    assert np.allclose(y, 0.125e308, rtol=1e-12)
    dx = pb.var_backward(np.array(1e-300), x=x, correction=0)
    assert np.allclose(np.abs(dx), 2e-300 * 0.125e308 / n, rtol=1e-12, atol=0)
    dx = pb.std_backward(np.array(1.0), x=x, y=y, correction=0)
    assert np.allclose(np.abs(dx), 1 / n, rtol=1e-12, atol=0)


def test_a_variance_of_infinities_is_not_a_number():
    for row in ((INF, 1.0), (-INF, INF), (NAN, 1.0)):
        assert shown(pb.var(f64(*row))) == shown(pb.std(f64(*row))) == [None]


def test_zero_norm_and_zero_deviation_have_zero_gradient():
    zero, one = np.zeros(5), np.array(1.0)
    assert shown(pb.norm2_backward(one, x=zero, y=pb.norm2(zero))) == [0.0] * 5
    same = np.full(5, 0.1)
    assert shown(pb.std_backward(one, x=same, y=np.array(0.0))) == [0.0] * 5


@pytest.mark.parametrize("correction", [3, 4, 100])
def test_correction_of_at_least_the_extent(correction):
    """m = max(n - correction, 1)."""
    x = f64(1, 2, 6)
    assert shown(pb.var(x, correction=correction)) == [14.0]
    dx = pb.var_backward(np.array(1.0), x=x, correction=correction)
    assert shown(dx) == [-4.0, -2.0, 6.0]


def test_mean_divides_before_the_cast():
    """The sum is far beyond float16, the mean is not."""
    x = np.full((2, 5000), 60000, np.float16)
    assert shown(pb.mean(x, 1)) == [60000.0, 60000.0]
    dx = pb.mean_backward(np.ones((1, 1), np.float16), shape=(1, 70_000))
    assert (dx == np.float16(1 / 70_000)).all()


def test_empty_reductions():
    x = np.empty((2, 0))
    expected = {"sum": 0.0, "prod": 1.0, "norm2": 0.0, "logsumexp": -INF,
                "mean": None, "var": None, "std": None}  # fmt: skip
    for kind, value in expected.items():
        assert shown(getattr(pb, kind)(x, 1)) == [value, value], kind
        assert getattr(pb, kind)(x, 0).shape == (0,)
    for kind in ("max", "min"):
        assert getattr(pb, kind)(x, 0).shape == (0,)
        with pytest.raises(pb.InvalidProblemError):
            getattr(pb, kind)(x, 1)


def test_log_softmax_of_minus_inf():
    dx = pb.log_softmax_backward(f64(1.0, 2.0), y=f64(0.0, -INF))
    assert shown(dx) == [-2.0, 2.0]
    assert shown(pb.log_softmax(f64(0.0, -INF))) == [0.0, -INF]
    assert shown(pb.softmax(f64(0.0, -INF))) == [1.0, 0.0]


def test_lerp_weights():
    a, b = f64(1, 2, INF), f64(5, INF, INF)
    assert shown(pb.lerp(a, b, 0.5)) == [3.0, INF, None]
    assert shown(pb.lerp(a, b, NAN)) == [None, None, None]
    da, db = pb.lerp_backward(f64(4.0, 0.0, INF), weight=INF)
    assert shown(da) == [-INF, None, -INF]
    assert shown(db) == [INF, None, INF]
    da, db = pb.lerp_backward(f64(4.0), weight=1.0)
    assert (shown(da), shown(db)) == ([0.0], [4.0])


def test_rounding_to_even_at_the_store():
    """Halfway cases go to the even neighbour."""
    ulp = 2.0**-7
    x = np.array([[1.0, ulp / 2], [1.0 + ulp, ulp / 2]])
    result = pb.sum(x.astype(ml_dtypes.bfloat16), 1).astype(float)
    assert shown(result) == [1.0, 1.0 + 2 * ulp]
    half = np.array([[2048.0, 1.0], [2050.0, 1.0], [65504.0, 15.0], [65504.0, 16.0]])
    result = pb.sum(half.astype(np.float16), 1).astype(float)
    assert shown(result) == [2048.0, 2052.0, 65504.0, INF]
