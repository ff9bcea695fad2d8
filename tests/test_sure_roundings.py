"""Elements of sixteen bits that float32 lanes compute first, where the rounding is sure.

Their bits are those of float64 lanes, which the precision "tight" has alone, or of the longer way
on float32 lanes, which strided rows take. Of a million elements some dozens lie so near to halfway
between two that a float32 would be rounded to the other.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import pullback as pb

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
NARROW = pytest.mark.parametrize("element", DTYPES)
AXIS = pytest.mark.parametrize("axis", [0, 1])


@pytest.fixture(autouse=True)
def as_before():
    precision, threads = pb.get_precision(), pb.get_num_threads()
    yield
    pb.set_precision(precision)
    pb.set_num_threads(threads)


def assert_same_bits(a, b):
    numbers = ~np.isnan(a)
    assert (numbers == ~np.isnan(b)).all()
    assert (a.view(np.uint16) == b.view(np.uint16))[numbers].all()


def assert_precisions_agree(call):
    found = {}
    for precision in ("fast", "tight"):
        pb.set_precision(precision)
        found[precision] = call()
    assert_same_bits(found["fast"], found["tight"])
    return found["tight"]


def numbers(shape, element, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * scale).astype(DTYPES[element])


def log_softmax(x, axis):
    wide = x.astype(np.float64)
    return (wide - np.log(np.exp(wide).sum(axis, keepdims=True))).astype(x.dtype)


def cross_entropy_backward(logits, axis, **how):
    """A row in eight is ignored; the gain of another is 0."""
    rows = logits.shape[1 - axis]
    rng = np.random.default_rng(rows)
    target = rng.integers(0, logits.shape[axis], rows)
    target[::8] = -100
    gain = rng.standard_normal(rows).astype(logits.dtype)
    gain[3::8] = 0.0
    with np.errstate(all="ignore"):
        wide = logits.astype(np.float64)
        lse = np.log(np.exp(wide - wide.max(axis, keepdims=True)).sum(axis)) + wide.max(axis)
    given = {"logits": logits, "target": target, "lse": lse, "ignore_index": -100}
    return assert_precisions_agree(
        lambda: pb.cross_entropy_backward(gain, axis=axis, **given, **how)
    )


@AXIS
@NARROW
def test_log_softmax_backward(element, axis):
    dy, y = numbers((1024, 1024), element), log_softmax(numbers((1024, 1024), element), axis)
    assert_precisions_agree(lambda: pb.log_softmax_backward(dy, y=y, axis=axis))


@AXIS
@NARROW
@pytest.mark.parametrize(
    "how", [{}, {"label_smoothing": 0.1}, {"z_loss": 0.01}], ids=["plain", "smoothed", "z-loss"]
)
def test_cross_entropy_backward(element, axis, how):
    cross_entropy_backward(numbers((1024, 1024), element, 2.0), axis, **how)


@NARROW
def test_log_softmax(element):
    """The longer way on float32 lanes, which is taken through strided rows."""
    x = numbers((1024, 1024), element, 3.0)
    pb.set_precision("fast")
    expected = pb.log_softmax(np.repeat(x, 2, 1)[:, ::2], 1)
    assert_same_bits(pb.log_softmax(x, 1), expected)
    assert_same_bits(pb.log_softmax(np.ascontiguousarray(x.T), 0).T, expected)


def test_log_softmax_where_the_sum_is_less_than_the_difference():
    """Of rows with NaN and infinities, and of one element, whose logarithm is 0."""
    pb.set_precision("fast")
    for element in DTYPES:
        x = numbers((6, 100), element, 3.0)
        x[0, 7], x[1, 9], x[2, 11], x[3] = np.nan, np.inf, -np.inf, -np.inf
        x[4] = 0.0
        assert_same_bits(pb.log_softmax(x, 1), pb.log_softmax(np.repeat(x, 2, 1)[:, ::2], 1))
        one = numbers((64, 1), element)
        assert not pb.log_softmax(one, 1).any()


@AXIS
@NARROW
def test_the_element_of_the_target_where_it_is_nearly_all(element, axis):
    """There the gradient is a difference of numbers that are nearly the same."""
    rows, classes = np.arange(256), 48
    logits, target = numbers((len(rows), classes), element), rows % classes
    lse = logits[rows, target].astype(np.float64) + np.linspace(-1e-5, 1e-5, len(rows))
    given = {"logits": logits, "target": target, "lse": lse}
    if axis == 0:
        given["logits"] = logits.T.copy()
    ones = np.ones(len(rows), logits.dtype)
    assert_precisions_agree(lambda: pb.cross_entropy_backward(ones, axis=axis, **given))


@AXIS
@NARROW
def test_gradients_that_cancel(element, axis):
    """The gradient of a row is the softmax, rounded: what is left are the roundings."""
    y = log_softmax(numbers((512, 512), element), axis)
    dy = np.exp(y.astype(np.float64)).astype(y.dtype)
    assert_precisions_agree(lambda: pb.log_softmax_backward(dy, y=y, axis=axis))


def test_products_below_the_range_of_float32():
    """Next to half of the least bfloat16, where float32 has few bits left."""
    rows = np.arange(64)
    total = 2.0**-134 / np.exp(-60.0) * (1.0 + (rows - 32) * 2.0**-22)
    dy, left = np.zeros((64, 40), ml_dtypes.bfloat16), total.copy()
    for k in range(4):  # numbers whose sum is the total
        dy[:, k] = left.astype(dy.dtype)
        left -= dy[:, k].astype(np.float64)
    y = np.full(dy.shape, -60.0, dy.dtype)
    found = assert_precisions_agree(lambda: pb.log_softmax_backward(dy, y=y))
    assert {0.0, -(2.0**-133)} == {*found[:, 20].astype(np.float64).tolist()}


@AXIS
@NARROW
@pytest.mark.parametrize("scale", [1e-4, 60.0, 3000.0])
def test_gradients_of_any_size(element, axis, scale):
    """Probabilities beyond the range of float32, and of float16."""
    x = numbers((200, 200), element, min(scale, 60.0))
    cross_entropy_backward(x, axis)
    dy, y = numbers((200, 200), element, scale), numbers((200, 200), element, min(scale, 60.0))
    with np.errstate(all="ignore"):
        assert_precisions_agree(lambda: pb.log_softmax_backward(dy, y=y, axis=axis))


@NARROW
def test_zeros_keep_their_sign(element):
    y = log_softmax(numbers((40, 200), element), 1)
    y[:, 5::9] = -300.0
    dy = numbers((40, 200), element)
    dy[::4] = 0.0
    dy[1::4, ::3] = -0.0
    dy[2::4] = -0.0
    dy[3::4, 100:] = -dy[3::4, :100]  # whose sum is 0
    assert_precisions_agree(lambda: pb.log_softmax_backward(dy, y=y, axis=1))
    assert_precisions_agree(lambda: pb.log_softmax_backward(dy.T.copy(), y=y.T.copy(), axis=0))


@NARROW
def test_what_is_not_finite(element):
    x = numbers((64, 64), element)
    x[3, 4], x[7, 8], x[9, :], x[11, 20] = np.nan, np.inf, -np.inf, -np.inf
    for axis in (0, 1):
        cross_entropy_backward(x, axis)
        with np.errstate(all="ignore"):
            assert_precisions_agree(lambda: pb.log_softmax_backward(x, y=x, axis=axis))  # noqa: B023


@NARROW
def test_rows_that_threads_share(element):
    """Cut over threads, whose record is not the usual one."""
    x, target = numbers((1, 300_001), element), np.array([299_998])
    lse = np.log(np.exp(x.astype(np.float64)).sum(1))
    found = []
    for precision, threads in (("fast", 1), ("fast", 2), ("tight", 2)):
        pb.set_precision(precision)
        pb.set_num_threads(threads)
        ones = np.ones(1, x.dtype)
        found.append(pb.cross_entropy_backward(ones, logits=x, target=target, lse=lse))
        found.append(pb.log_softmax_backward(x, y=log_softmax(x, 1)))
    for k in (0, 1):
        assert found[k].tobytes() == found[k + 2].tobytes() == found[k + 4].tobytes()


def test_a_target_that_float32_does_not_hold():
    """Beyond 2**24, where two positions are the same float32."""
    n = 2**24 + 64
    x = np.zeros((1, n), ml_dtypes.bfloat16)
    for place in (2**24 + 1, 2**24 + 18):
        given = {"logits": x, "target": np.array([place]), "lse": np.array([np.log(n)])}
        found = pb.cross_entropy_backward(np.ones(1, x.dtype), **given)
        assert np.flatnonzero(found < 0).tolist() == [place]
