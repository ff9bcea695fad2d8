"""pullback.jax beside JAX's own functions and beside the NumPy path."""

from __future__ import annotations

import inspect
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb
import pullback.jax as pj
from jax_ops import (
    DTYPES,
    FAMILY,
    IDS,
    NAMES,
    SEGMENTS,
    WEIGHT,
    arity,
    bind,
    bytes_of,
    cases,
    data,
    in_turn,
    inputs,
)
from jax_releases import enable_x64

# The NumPy path has every op in every dtype; here each op meets one of them.
TURNS = in_turn(NAMES, *DTYPES)


@pytest.fixture(autouse=True)
def wide():
    with enable_x64(True):
        yield


def differentiated(function):
    """Value and gradients; the gradient by the output is data of its shape."""

    def both(*arrays):
        value, pull = jax.vjp(function, *arrays)
        return value, pull(jnp.asarray(data(value.shape, value.dtype, seed=9)))

    return both


@cache
def jitted(name, element):
    """What is given in every case, and what comes out of all cases compiled at once."""
    given = [inputs(name, shape, DTYPES[element]) for shape, _ in cases(name)]
    functions = [differentiated(bind(name, keywords)) for _, keywords in cases(name)]
    return given, jax.jit(lambda all_: [f(*a) for f, a in zip(functions, all_, strict=True)])(given)


@cache
def jax_in_doubles(name):
    """What JAX's own function gives in float64. The data are the same numbers in every dtype."""
    given = [inputs(name, shape, np.float64) for shape, _ in cases(name)]
    functions = [differentiated(bind(name, keywords, None)) for _, keywords in cases(name)]
    return jax.jit(lambda all_: [f(*a) for f, a in zip(functions, all_, strict=True)])(given)


@pytest.mark.parametrize(("name", "element"), TURNS)
def test_against_jax(name, element):
    """JAX's own function in float64 on the same numbers.

    A value is rounded once. A gradient is rounded once too, but starts from an output that was
    rounded to the dtype: a few units of the largest gradient, in eps, times one more than the size
    of that output, which logcumsumexp and its like have in an exponent.
    """
    dtype = DTYPES[element]
    eps = float(jnp.finfo(dtype).eps)
    _, ours = jitted(name, element)
    theirs = jax_in_doubles(name)
    for (value, gradients), (expected, expected_gradients) in zip(ours, theirs, strict=True):
        assert value.dtype == dtype
        assert value.shape == expected.shape
        slack = 2 * eps if element != "f64" else 64 * eps
        np.testing.assert_allclose(np.float64(value), expected, rtol=slack, atol=slack / 8)
        size = 1 + np.max(np.abs(expected), initial=0.0)
        for gradient, wanted in zip(gradients, expected_gradients, strict=True):
            assert gradient.dtype == dtype
            assert gradient.shape == wanted.shape
            scale = np.max(np.abs(wanted), initial=1e-3)
            np.testing.assert_allclose(
                np.float64(gradient), wanted, rtol=0, atol=8 * eps * size * scale
            )


def numpy_keywords(name, keywords):
    """The same call of the NumPy path."""
    keywords = dict(keywords)
    if name in ("var", "std"):
        keywords["correction"] = keywords.pop("ddof", keywords.get("correction", 0))
    if name == "segment_sum":
        return {"sorted": keywords.get("indices_are_sorted", False), "out_of_range": "drop"}
    return keywords


def numpy_pair(name, shape, keywords, arrays, gradient):
    """Value and gradients through the functions of the NumPy path."""
    keywords = numpy_keywords(name, keywords)
    forward, backward = getattr(pb, name), getattr(pb, f"{name}_backward")
    op = next(op for op in pb.catalog() if op.name == f"{name}_backward")
    if name == "lerp":
        return forward(*arrays, WEIGHT), backward(gradient, weight=WEIGHT)
    if name == "segment_sum":
        ids = np.sort(IDS) if keywords["sorted"] else IDS
        value = forward(arrays[0], ids, SEGMENTS, **keywords)
        return value, [backward(gradient, ids, out_of_range="drop")]
    value = forward(arrays[0], **keywords)
    saves = {n: {"x": arrays[0], "y": value}[n] for n in op.needs}
    keywords.pop("keepdims", None)
    if FAMILY[name] == "reduce" and "x" not in saves:
        saves["shape"] = shape
    return value, [backward(gradient, **saves, **keywords)]


@pytest.mark.parametrize(("name", "element"), TURNS)
def test_bytes_of_the_numpy_path(name, element):
    """Under jit, eagerly and from NumPy: the same bytes, forward and backward."""
    dtype = DTYPES[element]
    given, found = jitted(name, element)
    for (shape, keywords), arrays, (value, gradients) in zip(
        cases(name), given, found, strict=True
    ):
        if FAMILY[name] == "softmax" and not isinstance(keywords.get("axis", -1), int):
            continue  # of several axes, which NumPy's has not
        value = np.asarray(value)
        gradient = data(value.shape, dtype, seed=9)
        expected, pulled = numpy_pair(name, shape, keywords, arrays, gradient)
        assert bytes_of(value) == bytes_of(expected)
        for ours, theirs in zip(gradients, pulled, strict=True):
            assert bytes_of(ours) == bytes_of(theirs)
    _, keywords = cases(name)[0]
    eager_value, eager_gradients = differentiated(bind(name, keywords))(*given[0])
    assert bytes_of(eager_value) == bytes_of(found[0][0])
    for eager, compiled in zip(eager_gradients, found[0][1], strict=True):
        assert bytes_of(eager) == bytes_of(compiled)


@pytest.mark.parametrize("name", [n for n in NAMES if FAMILY[n] == "reduce"])
def test_axes_that_do_not_lie_together(name):
    shape, axis = (4, 3, 9), (0, 2)
    x = np.random.default_rng(1).uniform(0.5, 1.5, shape).astype(np.float32)
    keywords = {"correction": 0} if name in ("var", "std") else {}
    expected = getattr(pb, name)(x, axis, **keywords)
    assert bytes_of(getattr(pj, name)(x, axis)) == bytes_of(expected)


@pytest.mark.parametrize("name", ["cumprod", "logsumexp", "softmax"])
def test_first_axis_and_threads(name):
    """Lanes across columns, enough bytes to be shared by XLA's threads, forward and backward."""
    x = np.random.default_rng(2).uniform(0.5, 1.5, (301, 2048)).astype(np.float32)
    value, pull = jax.vjp(lambda a: getattr(pj, name)(a, axis=0), x)
    dy = np.asarray(value)[..., ::-1].copy()
    expected, (wanted,) = numpy_pair(name, x.shape, {"axis": 0}, [x], dy)
    assert bytes_of(value) == bytes_of(expected)
    assert bytes_of(pull(dy)[0]) == bytes_of(wanted)


def test_many_rows_on_several_threads():
    x = np.random.default_rng(3).uniform(0.5, 1.5, (4096, 300)).astype(np.float32)
    ids = np.random.default_rng(4).integers(-1, 40, 4096).astype(np.int32)
    assert bytes_of(pj.cumsum(x, axis=1)) == bytes_of(pb.cumsum(x))
    total = pb.segment_sum(x, ids, 40, out_of_range="drop")
    assert bytes_of(pj.segment_sum(x, ids, 40)) == bytes_of(total)
    pulled = jax.grad(lambda a: pj.segment_sum(a, ids, 40).sum())(x)
    ones = np.ones_like(total)
    assert bytes_of(pulled) == bytes_of(pb.segment_sum_backward(ones, ids, out_of_range="drop"))


@pytest.mark.parametrize("name", [n for n in NAMES if FAMILY[n] == "scan"])
def test_scan_defaults_are_those_of_jax(name):
    x = data((3, 5, 4), np.float32)
    theirs = getattr(jnp, name, None)
    if theirs is None:
        assert inspect.signature(getattr(pj, name)).parameters["axis"].default == 0
        expected = getattr(pb, name)(x, axis=0)
    else:
        assert theirs(x).shape == (60,)
        expected = getattr(pb, name)(x.reshape(-1))
    assert bytes_of(getattr(pj, name)(x)) == bytes_of(expected)
    assert getattr(pj, name)(x, axis=None).shape == (60,)


EMPTY = {"sum": 0.0, "prod": 1.0, "norm2": 0.0, "logsumexp": -np.inf}


@pytest.mark.parametrize("name", NAMES)
def test_without_elements(name):
    x = np.zeros((3, 0, 2), np.float32)
    function = getattr(pj, name)
    if FAMILY[name] == "reduce":
        assert function(x, axis=0).shape == (0, 2)
        if name in ("max", "min"):
            with pytest.raises(pb.InvalidProblemError, match="at least one element"):
                function(x, axis=1)
            return
        value, pull = jax.vjp(lambda a: function(a, axis=1), x)
        assert value.shape == (3, 2)
        np.testing.assert_array_equal(value, np.full((3, 2), EMPTY.get(name, np.nan)))
        assert pull(value)[0].shape == x.shape
    elif name == "segment_sum":
        assert function(x, np.zeros(3, np.int32), 5).shape == (5, 0, 2)
        value, pull = jax.vjp(lambda a: function(a, np.zeros(0, np.int32), 2), x[0])
        np.testing.assert_array_equal(value, np.zeros((2, 2)))
        assert pull(value)[0].shape == (0, 2)
    else:
        arrays = [x] * arity(name)
        extra = () if name != "lerp" else (WEIGHT,)
        value, pull = jax.vjp(lambda *a: function(*a, *extra), *arrays)
        assert value.size == 0
        assert pull(value)[0].shape == x.shape


@pytest.mark.parametrize("name", NAMES)
def test_narrow_mode(name):
    """Without x64: doubles become floats on the way in, as everywhere in JAX."""
    shape, keywords = cases(name)[0]
    arrays = inputs(name, shape, np.float64)
    with enable_x64(False):
        value = bind(name, keywords)(*arrays)
        assert value.dtype == jnp.float32
        narrow = [a.astype(np.float32) for a in arrays]
        gradient = jax.grad(lambda *a: bind(name, keywords)(*a).sum())(*arrays)
        assert gradient.dtype == jnp.float32
    expected, _ = numpy_pair(name, shape, keywords, narrow, np.asarray(value))
    assert bytes_of(value) == bytes_of(expected)


@pytest.mark.parametrize("name", ["max", "min", "cummax", "cummin"])
def test_ties(name):
    x = np.array([[1.0, 3.0, 1.0, 3.0, np.nan, np.nan]], np.float32)[:, :5]
    dy = {"reduce": np.float32([[2.0]]), "scan": np.arange(1, 6, dtype=np.float32)[None]}
    backward = getattr(pb, f"{name}_backward")
    op = next(op for op in pb.catalog() if op.name == f"{name}_backward")
    given = dy[FAMILY[name]]
    keywords = {"keepdims": True} if FAMILY[name] == "reduce" else {}
    for array in (x, x[:, :4]):
        for ties in op.ties:
            function = lambda a, t=ties: getattr(pj, name)(a, axis=1, ties=t, **keywords)  # noqa: E731
            value, pull = jax.vjp(function, array)
            dy_here = given if FAMILY[name] == "reduce" else given[:, : array.shape[1]]
            saves = {"x": array, "y": np.asarray(value)}
            expected = backward(dy_here, axis=1, ties=ties, **{n: saves[n] for n in op.needs})
            assert bytes_of(pull(dy_here)[0]) == bytes_of(expected)


def test_subnormal_numbers_are_kept():
    """XLA flushes them on its threads; the kernels must not."""
    tiny = np.float32([1e-40, 2e-40, 3e-40, 1e-45])
    assert bytes_of(pj.cumsum(tiny, axis=0)) == bytes_of(pb.cumsum(tiny))
    assert float(pj.max(tiny)) == float(np.float32(3e-40))
    many = np.full((4096, 300), 1e-40, np.float32)
    assert bytes_of(pj.sum(many, axis=1)) == bytes_of(pb.sum(many, axis=1))
    # ... and XLA's own arithmetic must find its mode as it left it.
    before = jax.jit(lambda a: a * 1.0 + 0.0)(tiny)
    after = jax.jit(lambda a: (a * 1.0 + 0.0, pj.cumsum(a, axis=0)))(tiny)[0]
    assert bytes_of(before) == bytes_of(after)


def test_segment_ids():
    x = data((4, 3), np.float32)
    expected = pj.segment_sum(x, np.array([0, 1, 1, 0]), 2)
    for dtype in (np.int8, np.uint8, np.int16, np.uint32, np.int32, np.int64):
        assert bytes_of(pj.segment_sum(x, np.array([0, 1, 1, 0], dtype), 2)) == bytes_of(expected)
    assert pj.segment_sum(x, jnp.array([0, 4, 1, 0])).shape == (5, 3)
    assert pj.segment_sum(x, jnp.array([0, 1, 2, 3]), 4, unique_indices=True).shape == (4, 3)
    odd = np.array([0, -1, 5, 1])
    theirs = jax.ops.segment_sum(x, odd, 2)
    assert bytes_of(pj.segment_sum(x, odd, 2)) == bytes_of(theirs)
    with pytest.raises(pb.InvalidProblemError, match=r"got -1 at row 1"):
        pj.segment_sum(x, odd, 2, out_of_range="raise")
    with pytest.raises(pb.InvalidProblemError, match="ascending order"):
        pj.segment_sum(x, np.array([1, 0, 1, 1]), 2, indices_are_sorted=True, out_of_range="raise")


def test_lerp_weights():
    a, b = np.float32([0.0, 1.0]), np.float32([0.0, 3.0])
    for weight in (0.0, -0.0, 0.25, 1.0, np.inf, np.nan, np.float32(0.5)):
        assert bytes_of(pj.lerp(a, b, weight)) == bytes_of(pb.lerp(a, b, float(weight)))
    both = pj.lerp(np.float32([[1.0], [2.0]]), jnp.float64(3.0), 0.5)
    np.testing.assert_array_equal(both, [[2.0], [2.5]])
    assert both.dtype == jnp.float64
