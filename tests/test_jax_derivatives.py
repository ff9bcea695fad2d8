"""Derivatives of pullback.jax: both modes, second order, edges, and the transforms on top."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import pullback as pb
import pullback.jax as pj
from jax_ops import FAMILY, IDS, NAMES, PEERS, SEGMENTS, bind, bytes_of, cases, in_turn, inputs
from jax_releases import enable_x64

NONLINEAR = [n for n in NAMES if next(o for o in pb.catalog() if o.name == f"{n}_backward").needs]


@pytest.fixture(autouse=True)
def wide():
    with enable_x64(True):
        yield


def one_case(name):
    """A case with the op along a middle axis, where it has one."""
    shape, keywords = cases(name)[0]
    return bind(name, keywords), bind(name, keywords, None), inputs(name, shape, np.float64)


@pytest.mark.parametrize("name", NAMES)
def test_numerical_derivatives(name):
    """Reverse mode in first and second order, and forward mode, against differences."""
    function, _, arrays = one_case(name)
    check_grads(jax.jit(function), tuple(arrays), order=2, modes=("rev",))
    check_grads(jax.jit(function), tuple(arrays), order=1, modes=("fwd",))


@pytest.mark.parametrize("name", NAMES)
def test_jacobians_agree(name):
    """Reverse mode runs the kernels, forward mode their formula transposed; JAX's own is third."""
    function, own, arrays = one_case(name)
    reverse = jax.jit(jax.jacrev(function))(*arrays)
    forward = jax.jit(jax.jacfwd(function))(*arrays)
    expected = jax.jit(jax.jacrev(own))(*arrays)
    np.testing.assert_allclose(reverse, forward, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(reverse, expected, rtol=1e-12, atol=1e-12)


TWICE = {
    "forward over reverse": jax.hessian,
    "reverse over reverse": lambda loss: jax.jacrev(jax.jacrev(loss)),
    "forward over forward": lambda loss: jax.jacfwd(jax.jacfwd(loss)),
}


@pytest.mark.parametrize(("name", "order"), in_turn(NONLINEAR, *TWICE))
def test_hessians_agree(name, order):
    """Both modes over each other by turns, and JAX's own."""
    keywords = {"axis": 0}
    x = np.random.default_rng(5).uniform(0.5, 1.5, 6)
    weights = np.linspace(1.0, 2.0, 6)

    def loss(function):
        return lambda a: jnp.sum(function(a, **keywords) * weights) ** 2

    expected = jax.jit(jax.hessian(loss(PEERS[name])))(x)
    found = jax.jit(TWICE[order](loss(getattr(pj, name))))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_second_derivatives_of_products_with_zeros():
    """d²(abc)/da db = c also where a, b or both are zero."""
    losses = (
        pj.prod,
        lambda v: pj.cumprod(v, axis=0)[-1],
        lambda v: pj.prod(v, where=np.array([True, True, True])),
        lambda v: pj.segment_prod(v[:, None], np.zeros(3, np.int64), 2)[0, 0],
    )
    for loss in losses:
        for twice in (jax.jit(jax.hessian(loss)), jax.jit(jax.jacrev(jax.jacrev(loss)))):
            for a, b, c in ((2.0, 0.0, 3.0), (0.0, 0.0, 3.0), (0.0, 0.0, 0.0)):
                expected = [[0.0, c, b], [c, 0.0, a], [b, a, 0.0]]
                np.testing.assert_array_equal(twice(np.array([a, b, c])), expected)


def test_gradients_where_formulas_have_edges():
    zeros = np.zeros(3)
    np.testing.assert_array_equal(jax.grad(pj.norm2)(zeros), zeros)
    np.testing.assert_array_equal(jax.grad(pj.std)(np.ones(3)), zeros)
    lows = np.array([-np.inf, -np.inf, 0.0])
    np.testing.assert_array_equal(jax.grad(pj.logsumexp)(lows), [0.0, 0.0, 1.0])
    scan = jax.grad(lambda x: pj.logcumsumexp(x, axis=0)[-1])
    np.testing.assert_array_equal(scan(lows), [0.0, 0.0, 1.0])
    product = jax.grad(lambda x: pj.cumprod(x, axis=0).sum())
    np.testing.assert_array_equal(product(np.array([2.0, 0.0, 4.0])), [1.0, 10.0, 0.0])


def test_forward_mode_and_second_order_where_formulas_have_edges():
    zeros, ones = np.zeros(3), np.ones(3)
    lows = np.array([-np.inf, -np.inf, 0.0])
    assert float(jax.jvp(pj.norm2, (zeros,), (ones,))[1]) == 0.0
    assert float(jax.jvp(pj.std, (ones,), (zeros + 2,))[1]) == 0.0
    assert float(jax.jvp(pj.logsumexp, (lows,), (ones,))[1]) == 1.0
    assert float(jax.jvp(pj.logsumexp, (lows[:2],), (ones[:2],))[1]) == 0.0
    scan = jax.jvp(lambda x: pj.logcumsumexp(x, axis=0), (lows,), (ones,))[1]
    np.testing.assert_array_equal(scan, [0.0, 0.0, 1.0])
    for loss, x in (
        (pj.norm2, zeros),
        (pj.std, ones),
        (pj.logsumexp, lows),
        (lambda v: pj.logcumsumexp(v, axis=0)[-1], lows),
    ):
        for twice in (jax.hessian(loss), jax.jacrev(jax.jacrev(loss))):
            np.testing.assert_array_equal(jax.jit(twice)(x), np.zeros((3, 3)))


@pytest.mark.parametrize(("name", "at"), in_turn(NAMES, 0, 1, -1))
def test_vmap(name, at):
    """Batches at the front, in the middle and at the end, by turns, give the bytes of a loop."""
    function, _, arrays = one_case(name)
    arrays = [a.astype(np.float32) for a in arrays]
    stacks = [np.stack([a, a[::-1], a * np.float32(0.5)]) for a in arrays]

    def both(*a):
        value, pull = jax.vjp(function, *a)
        return value, pull(value)

    compiled = jax.jit(both)
    looped = [compiled(*(s[k] for s in stacks)) for k in range(3)]
    moved = [np.ascontiguousarray(np.moveaxis(s, 0, at)) for s in stacks]
    value, gradients = jax.jit(jax.vmap(both, in_axes=at))(*moved)
    for k, (expected, pulled) in enumerate(looped):
        assert bytes_of(value[k]) == bytes_of(expected)
        for ours, theirs in zip(gradients, pulled, strict=True):
            assert bytes_of(ours[k]) == bytes_of(theirs)


@pytest.mark.parametrize("name", ["cumprod", "max", "softmax", "sum"])
def test_vmap_of_some_operands(name):
    """Only the cotangents are batched, then only a shift: the gradient of a shared x sums."""
    function, own, arrays = one_case(name)
    x = arrays[0]
    value, pull = jax.vjp(function, x)
    batch = np.stack([value, 2 * value, -value])
    results = jax.vmap(pull)(batch)[0]
    for k in range(3):
        assert bytes_of(results[k]) == bytes_of(pull(batch[k])[0])

    weights = np.linspace(1.0, 2.0, value.size).reshape(value.shape)

    def loss(f):
        shifts = np.array([0.0, 1.0, 2.0])
        return lambda a: jnp.sum(jax.vmap(lambda s: f(a + s) * s * weights)(shifts))

    ours, theirs = jax.grad(loss(function))(x), jax.grad(loss(own))(x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
    ours, theirs = (jax.jvp(loss(f), (x,), (x,))[1] for f in (function, own))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_vmap_of_lerp_with_one_shared_operand():
    a, b = inputs("lerp", (4, 3), np.float64)
    over_a = jax.vmap(lambda v: pj.lerp(v, b[0], 0.25))
    np.testing.assert_array_equal(over_a(a), pj.lerp(a, np.broadcast_to(b[0], a.shape), 0.25))
    shared = jax.grad(lambda s: jax.vmap(lambda v: pj.lerp(v, s, 0.25))(a).sum())(b[0])
    np.testing.assert_allclose(shared, np.full(3, 0.25 * 4))


@pytest.mark.parametrize("batched", ["data", "ids", "both"])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_vmap_of_segment_sum(batched, is_sorted):
    order = np.sort(IDS) if is_sorted else IDS
    ids = np.stack([order, np.full_like(order, 1), order])
    rows = np.random.default_rng(6).uniform(0.5, 1.5, (3, 9, 2, 2)).astype(np.float32)
    axes = (None if batched == "ids" else 0, None if batched == "data" else 0)
    given = (rows[0] if axes[0] is None else rows, ids[0] if axes[1] is None else ids)

    def both(data, segment_ids):
        value, pull = jax.vjp(lambda d: pj.segment_sum(d, segment_ids, SEGMENTS, is_sorted), data)
        return value, pull(value)[0]

    value, pulled = jax.jit(jax.vmap(both, in_axes=axes))(*given)
    for k in range(3):
        expected = both(*(g if a is None else g[k] for g, a in zip(given, axes, strict=True)))
        assert bytes_of(value[k]) == bytes_of(expected[0])
        assert bytes_of(pulled[k]) == bytes_of(expected[1])


def test_vmap_of_too_many_segments():
    with enable_x64(False), pytest.raises(pb.UnsupportedError, match="do not fit int32"):
        jax.eval_shape(
            jax.vmap(lambda i: pj.segment_sum(jnp.ones((2, 1)), i, 2**30)),
            jax.ShapeDtypeStruct((3, 2), jnp.int32),
        )


@pytest.mark.parametrize("name", ["cumprod", "logsumexp", "softmax", "segment_sum"])
def test_scan_and_checkpoint(name):
    """Inside lax.scan, with and without rematerialisation, values and gradients as unrolled."""
    function, _, arrays = one_case(name)
    x = arrays[0]

    def step(carry, scale):
        return carry * 0.5, jnp.sum(function(carry * scale) ** 2)

    scales = np.array([0.5, 1.0, 1.5])

    def rolled(a):
        return jax.lax.scan(step, a, scales)[1].sum()

    def saved(a):
        return jax.lax.scan(jax.checkpoint(step), a, scales)[1].sum()

    def unrolled(a):
        total = 0.0
        for scale in scales:
            a, loss = step(a, scale)
            total = total + loss
        return total

    expected = jax.value_and_grad(unrolled)(x)
    for loss in (rolled, saved):
        value, gradient = jax.jit(jax.value_and_grad(loss))(x)
        np.testing.assert_allclose(value, expected[0], rtol=1e-13)
        np.testing.assert_allclose(gradient, expected[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in NONLINEAR])
def test_linear_functions_transpose(name):
    function, _, arrays = one_case(name)
    value, pull = jax.vjp(function, *arrays)
    transposed = jax.linear_transpose(function, *arrays)(value)
    for ours, theirs in zip(transposed, pull(value), strict=True):
        assert bytes_of(ours) == bytes_of(theirs)


def test_a_nonlinear_function_does_not_transpose():
    x = np.ones(3)
    with pytest.raises(pb.UnsupportedError, match="softmax: not a linear function"):
        jax.linear_transpose(lambda a: pj.softmax(a), x)(x)


def test_only_what_is_asked_for_is_computed_and_saved():
    """lerp's other gradient is not written, prod does not keep the output it never reads."""
    a, b = inputs("lerp", (4, 3), np.float32)
    text = jax.jit(jax.grad(lambda u: pj.lerp(u, b, 0.25).sum())).lower(a).as_text()
    assert "tensor<4x3xf32>, tensor<4x3xf32>) -> (tensor<4x3xf32>, tensor<4x3xf32>)" not in text
    _, pull = jax.vjp(pj.prod, a)
    kept = [leaf for leaf in jax.tree.leaves(pull) if getattr(leaf, "shape", None) == (1, 1)]
    assert not kept


@pytest.mark.parametrize("name", [n for n in NAMES if FAMILY[n] != "segment"])
def test_half_precision_in_forward_mode(name):
    """Tangents of half precision numbers are computed wide and rounded once."""
    shape, keywords = cases(name)[0]
    function = bind(name, keywords)
    arrays = inputs(name, shape, jnp.bfloat16)
    value, tangent = jax.jit(lambda *a: jax.jvp(function, a, a))(*arrays)
    assert tangent.dtype == value.dtype == jnp.bfloat16
    doubles = tuple(a.astype(np.float64) for a in arrays)
    own = bind(name, keywords, None)
    expected = jax.jit(lambda *a: jax.jvp(own, a, a)[1])(*doubles)
    # The output that tangents start from was rounded to bfloat16: some units in the last place.
    scale = np.max(np.abs(expected))
    np.testing.assert_allclose(np.float64(tangent), expected, atol=8 * 2**-8 * scale)
