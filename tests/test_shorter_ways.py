"""Shorter ways through packed rows give the bits of the long one, which strided rows take.

softmax keeps the exp of its sum for its result, an extreme is looked for in any order, factors are
multiplied as they are for a stretch, those of a running product sixteen at a time. Each has a case
that it must leave to the long way.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import pullback as pb

# With tails behind eight and sixteen, and several blocks.
EXTENTS = (5, 87, 1024, 4136, 9001)


def strided(x):
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


def assert_same_bits(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    numbers = ~np.isnan(a)
    assert (numbers == ~np.isnan(b)).all()
    assert a[numbers].tobytes() == b[numbers].tobytes()


def rows(extent: int) -> np.ndarray:
    """Ordinary numbers but for a few: the third row has its extreme at a zero of either sign."""
    rng = np.random.default_rng(extent)
    x = rng.standard_normal((8, extent)).astype("f4")
    for k, value in enumerate((-95.0, -150.0, -300.0, -np.inf)):
        x[0, k * extent // 4] = value
    x[1] -= 100.0
    x[1, extent // 2] = 0.0
    x[2] = -np.abs(x[2])
    x[2, extent // 3 :: 7] = -0.0
    x[2, extent // 2 :: 11] = 0.0
    x[3, extent - 1] = np.nan
    x[4, extent // 2] = np.inf
    x[5] = -np.inf
    x[6] *= np.float32(2.0**100)
    x[7] *= np.float32(2.0**-110)
    return x


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("name", ["softmax", "max", "min"])
def test_bits_of_strided_rows(name, extent):
    function = getattr(pb, name)
    x = rows(extent)
    for data in (x, -x):
        assert_same_bits(function(data, -1), function(strided(data), -1))


@pytest.mark.parametrize("extent", EXTENTS)
def test_softmax_in_place(extent):
    x = rows(extent)
    want = pb.softmax(x)
    assert_same_bits(pb.softmax(x, out=x), want)


@pytest.mark.parametrize("extent", EXTENTS)
def test_softmax_down_columns_has_the_bits_of_rows(extent):
    # Of more than 65536 elements nothing is kept. Three rows have neither a NaN nor an infinite
    # total, for which all is computed again.
    for x in (np.tile(rows(extent), (5, 1)), np.tile(rows(extent)[:3], (13, 1))):
        want, down = pb.softmax(x), np.ascontiguousarray(x.T)
        assert_same_bits(pb.softmax(down, 0), np.ascontiguousarray(want.T))
        assert_same_bits(pb.softmax(down, 0, out=down), np.ascontiguousarray(want.T))


@pytest.mark.parametrize("extent", EXTENTS)
def test_products_that_would_leave_the_range(extent):
    rng = np.random.default_rng(extent)
    x = 1 + 0.01 * rng.standard_normal((6, extent))
    half = extent // 2
    x[1, :half] *= 2.0**-120
    x[1, half : 2 * half] *= 2.0**120
    x[2, :half] *= 2.0**120
    x[2, half : 2 * half] *= 2.0**-120
    x[3, half] = 0.0
    x[4, half] = np.inf
    x[5, ::2] *= 2.0**-140
    x = x.astype("f4")
    found = pb.prod(x, -1)
    assert_same_bits(found, pb.prod(strided(x), -1))
    want = [np.prod(np.frexp(row)[0], dtype="g") for row in x[:3]]
    powers = [np.frexp(row)[1].sum() for row in x[:3]]
    with np.errstate(over="ignore", under="ignore"):
        exact = np.ldexp(np.array(want, "g"), powers).astype("f4")
    np.testing.assert_allclose(found[:3], exact, rtol=2e-7)


def scaled(m: np.ndarray, e: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    m, by = np.frexp(m)
    return m, e + np.where(np.isfinite(m) & (m != 0), by, 0)


def product_of_rows(x: np.ndarray) -> np.ndarray:
    """By definition: eight lanes, joined by a tree, every product a mantissa and an exponent.

    Of rows of no more than a block.
    """
    rows, extent = x.shape
    wide = np.ones((rows, -(-extent // 8) * 8))
    wide[:, :extent] = x
    m, e = np.ones((rows, 8)), np.zeros((rows, 8))
    for i in range(0, extent, 8):
        factors, by = scaled(wide[:, i : i + 8], 0.0)
        m, e = scaled(m * factors, e + by)
    for half in (4, 2, 1):
        m, e = scaled(m[:, :half] * m[:, half:], e[:, :half] + e[:, half:])
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(m[:, 0], e[:, 0].astype("i8")).astype(x.dtype)


# Factors that lead below the normal range of a float64 and back, from 2**512 or 2**300.
DIPS = {
    "f8": [-900, -640, 640, 900],
    "f4": [*[-125] * 10, -112, 112, *[125] * 10],
    "bfloat16": [*[-125] * 10, -112, 112, *[125] * 10],
}


@pytest.mark.parametrize("dtype", sorted(DIPS))
@pytest.mark.parametrize("turned", [1, -1])
def test_products_that_leave_the_range_anywhere_and_come_back(dtype, turned):
    dips = turned * np.array(DIPS[dtype])
    rng = np.random.default_rng(11)
    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    places, count = 140, 140 + len(dips)
    x = rng.uniform(0.8, 1.25, (places, count * 8)) * rng.choice([-1, 1], (places, count * 8))
    for k in range(places):  # a lane's factors lie eight apart
        x[k, 8 * k + k % 8 : 8 * (k + len(dips)) : 8][: len(dips)] *= 2.0**dips
    x = x.astype(dtype)
    want = product_of_rows(x)
    assert np.isfinite(want.astype("f8")).all()
    assert_same_bits(pb.prod(x, -1), want)
    assert_same_bits(pb.prod(strided(x), -1), want)
    assert_same_bits(pb.prod(np.ascontiguousarray(x.T), 0), want)


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2"])
@pytest.mark.parametrize("extent", [600, 595, 37])
def test_products_with_a_factor_of_any_kind_anywhere(dtype, extent):
    info = np.finfo(dtype)
    rng = np.random.default_rng(12)
    ordinary = rng.uniform(0.8, 1.25, (extent, extent)) * rng.choice([-1, 1], (extent, extent))
    kinds = [0.0, -0.0, np.inf, -np.inf, np.nan, info.max, info.smallest_subnormal, info.tiny]
    at = np.arange(extent)
    for kind, other in zip(kinds, kinds[3:] + kinds[:3], strict=True):
        x = ordinary.copy()
        x[at, at] = kind
        x[at[::3], (at[::3] * 7 + 300) % extent] = other
        x = x.astype(dtype)
        with np.errstate(invalid="ignore"):
            want = product_of_rows(x)
        assert_same_bits(pb.prod(x, -1), want)
        assert_same_bits(pb.prod(np.ascontiguousarray(x.T), 0), want)


@pytest.mark.parametrize("dtype", ["f8", "f4", "bfloat16"])
@pytest.mark.parametrize("bits", [-14, -7, -3, 3, 7, 14])
def test_products_that_grow_or_vanish(dtype, bits):
    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    rng = np.random.default_rng(13)
    x = 2.0**bits * rng.uniform(0.8, 1.25, (33, 1100))
    x[::2, 550:] *= 4.0**-bits
    x = x.astype(dtype)
    want = product_of_rows(x)
    assert_same_bits(pb.prod(x, -1), want)
    assert_same_bits(pb.prod(np.ascontiguousarray(x.T), 0), want)


def test_gradients_of_products_that_vanish_have_the_signs_of_rows_down_columns():
    rng = np.random.default_rng(14)
    x = (rng.standard_normal((1100, 15)) * np.geomspace(0.5, 0.02, 15)).astype("f4")
    dy = rng.standard_normal(15).astype("f4")
    down = pb.prod_backward(dy, x=x, axis=0)
    along = pb.prod_backward(dy, x=np.ascontiguousarray(x.T), axis=1)
    assert_same_bits(down, np.ascontiguousarray(along.T))
    signs = np.signbit(x).sum(0) + np.signbit(dy)
    assert (np.signbit(down) == (signs + np.signbit(x)) % 2).all()


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_of_columns(name):
    function = getattr(pb, name)
    # Rows behind whole eights, columns behind whole sixteens.
    x = np.random.default_rng(3).standard_normal((75, 40)).astype("f4")
    zeros = -np.abs(x)
    zeros[3:20:5], zeros[41::7] = 0.0, -0.0
    turned = zeros[::-1].copy()
    nan = x.copy()
    nan[30, 7], nan[74, 20] = np.nan, np.nan
    for data in (x, zeros, turned, nan):
        for signed in (data, -data):
            assert_same_bits(function(signed, 0), function(strided(signed), 0))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_of_rows_have_the_bits_of_strided_ones(name, dtype):
    function = getattr(pb, name)
    x = np.random.default_rng(5).standard_normal((8, 4096 + 77)).astype(dtype)
    for row, places in ((1, [0, 100]), (2, [4095, 4096]), (3, [4172]), (4, [31, 32])):
        x[row] = -np.abs(x[row])
        x[row, places] = np.resize([0.0, -0.0], len(places))
    x[5, 4000], x[6, 4171] = np.nan, np.nan
    for signed in (x, -x, x[:, ::-1].copy()):
        assert_same_bits(function(signed, -1), function(strided(signed), -1))
        assert_same_bits(np.isnan(function(signed, -1)), np.isnan(signed).any(1))


@pytest.mark.parametrize("ties", ["split", "all"])
@pytest.mark.parametrize("dtype", ["f4", "f2", "bfloat16", "f8"])
@pytest.mark.parametrize("shape", [(75, 40), (4111, 24), (3, 16)])
def test_gradients_of_extremes_of_columns(shape, dtype, ties):
    rng = np.random.default_rng(4)
    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    # Ties, zeros of both signs, a NaN, infinities.
    x = rng.integers(-2, 3, shape).astype("f8")
    x[:, 1] = -np.abs(x[:, 1]) * 0.0
    x[2, 3], x[:2, 18 % shape[1]] = np.nan, np.inf
    # Shares that float32, or float16, does not hold, and some that it does.
    dy = rng.standard_normal(shape[1])
    dy[4:14] = 0.0, -0.0, np.inf, np.nan, 2.0**-110, -(2.0**-149), 2.0**125, 3e38, 65504.0, 6e-8
    with np.errstate(over="ignore", under="ignore"):
        x, dy = x.astype(dtype), dy.astype(dtype)
    y = x.astype("f8").max(0).astype(dtype)
    found = pb.max_backward(dy, x=x, y=y, axis=0, ties=ties)
    apart = pb.max_backward(dy, x=strided(x), y=y, axis=0, ties=ties)
    rows = pb.max_backward(dy, x=np.ascontiguousarray(x.T), y=y, axis=1, ties=ties)
    assert_same_bits(found, apart)
    assert_same_bits(found, np.ascontiguousarray(rows.T))
    holds = (x == y) | (np.isnan(x) & np.isnan(y))
    assert (found.view(f"u{dtype.itemsize}")[~holds] == 0).all()
    if ties == "all":
        assert_same_bits(found, np.where(holds, dy, dtype.type(0)))


@pytest.mark.parametrize("shape", [(256, 600), (700, 40), (1024, 200)])
@pytest.mark.parametrize("dtype", ["f4", "bfloat16"])
def test_softmax_of_columns_that_are_kept_and_not(shape, dtype):
    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x = np.random.default_rng(5).standard_normal(shape)
    x[3, 7], x[:, 20], x[5, 33] = 200.0, -np.inf, np.nan
    x[::2, 38] = -300.0
    x = x.astype(dtype)
    found = pb.softmax(x, 0)
    assert_same_bits(found, pb.softmax(strided(x), 0))
    assert_same_bits(found, np.ascontiguousarray(pb.softmax(np.ascontiguousarray(x.T), 1).T))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("exclusive", [False, True])
def test_running_products_of_factors_moderate_or_not(dtype, exclusive):
    rng = np.random.default_rng(8)
    x = rng.standard_normal((12, 1100))
    x[1] = 1 + 0.01 * x[1]
    x[2] = np.copysign(2.0 ** rng.choice([-40, 40], 1100), x[2])
    x[3] *= np.where(np.arange(1100) // 200 % 2, 2.0**9, 2.0**-9)
    x[4, ::37] *= 2.0**60
    x[4, 5::41] *= 2.0**-90
    x[5, 600], x[5, 900] = -0.0, np.inf
    x[6, 500], x[6, 900] = np.inf, np.nan
    x[7] = np.where(np.arange(1100) // 16 % 2, 2.0**-100, 2.0**100)
    x[8] *= np.where(np.arange(1100) // 550 % 2, 9.0, 0.2)
    x[9] *= np.where(np.arange(1100) // 550 % 2, 0.2, 9.0)
    # Of eight or sixteen of these a product leaves the range of a float64, of all it does not.
    x[10] *= np.where(np.arange(1100) // 4 % 2, 2.0**-75, 2.0**75)
    x[11] *= np.where(np.arange(1100) // 8 % 2, 2.0**-38, 2.0**38)
    if dtype == "f8":
        x[10] *= np.where(np.arange(1100) // 4 % 2, 2.0**-300, 2.0**300)
    x = x.astype(dtype)
    found = pb.cumprod(x, -1, exclusive=exclusive)
    down = pb.cumprod(np.ascontiguousarray(x.T), 0, exclusive=exclusive)
    assert_same_bits(found, np.ascontiguousarray(down.T))
    # Scans that may begin anew have no shorter way.
    borders = np.zeros(x.shape, bool)
    assert_same_bits(found, pb.cumprod(x, -1, exclusive=exclusive, resets=borders))


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("shape", [(40, 1003), (9, 70), (700, 3)])
@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_of_products_with_something_to_count_and_without(dtype, shape, axis):
    rng = np.random.default_rng(9)
    x = (rng.uniform(0.9, 1.1, shape) * rng.choice([-1, 1], shape)).astype(dtype)
    dy = rng.standard_normal(pb.prod(x, axis, keepdims=True).shape).astype(dtype)
    everything = np.ones(shape, bool)

    def gradient(data, **given):
        return pb.prod_backward(dy, x=data, axis=axis, **given)

    ordinary = gradient(x)
    assert_same_bits(ordinary, gradient(x, where=everything))  # which counts in every row
    for value in (0.0, -0.0, np.inf, -np.inf, np.nan):
        special = x.copy()
        special[1, 2] = value
        found = gradient(special)
        assert_same_bits(found, gradient(special, where=everything))
        # Rows, or columns beside the one that has it, are what they were.
        others = np.arange(shape[1 - axis]) != (2, 1)[axis]
        assert_same_bits(*(np.compress(others, v, 1 - axis) for v in (found, ordinary)))


def test_products_down_columns_with_a_mask():
    rng = np.random.default_rng(10)
    x = rng.standard_normal((75, 40)).astype("f4")
    mask = rng.random(x.shape) < 0.7
    down = pb.prod(x, 0, where=mask)
    along = pb.prod(np.ascontiguousarray(x.T), 1, where=np.ascontiguousarray(mask.T))
    assert_same_bits(down, along)


def test_a_call_made_again_takes_rows_in_either_shape():
    x = np.random.default_rng(1).random((4, 87), "f4")
    dy = np.arange(4, dtype="f4")
    for _ in range(3):
        total = pb.sum(x, -1)
        assert total.shape == (4,)
        assert pb.sum(x, -1, keepdims=True).tobytes() == total.tobytes()
        out = np.empty(4, "f4")
        assert pb.sum(x, -1, out=out) is out
        assert out.tobytes() == total.tobytes()
        squeezed = pb.sum_backward(dy, shape=x.shape, axis=-1)
        kept = pb.sum_backward(dy[:, None], shape=x.shape, axis=-1)
        assert squeezed.tobytes() == kept.tobytes() == np.repeat(dy, 87).tobytes()
        for wrong in (np.empty((4, 1), "f4"), np.empty(5, "f4"), np.empty(4, "f8")):
            before = wrong.copy()
            with pytest.raises(pb.InvalidProblemError, match="out"):
                pb.sum(x, -1, out=wrong)
            assert wrong.tobytes() == before.tobytes()
        out.flags.writeable = False
        with pytest.raises(pb.InvalidProblemError, match="out"):
            pb.sum(x, -1, out=out)
