"""JAX's own arguments: their order, dtype=, what goes to JAX itself, integers, and jax.export."""

from __future__ import annotations

import inspect

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb
import pullback.jax as pj
from pullback.jax.conventions import HOMES, theirs
from scripts import run_script

X = jnp.array([[1.0, 5.0], [3.0, 3.0], [-2.0, 0.5], [3.0, 4.0]], jnp.float32)
WHOLE = jnp.array([[200, 100], [7, 1], [3, 3], [0, 5]], jnp.uint8)
KINDS = [kind for kind in HOMES if theirs(kind) is not None]


def arguments(kind):
    """What follows the input: ids of segments, or an axis."""
    return (jnp.array([2, 0, 2, 0]), 3) if kind.startswith("segment") else (1,)


def is_given_up(parameter):
    """Whether an argument is there to be refused, as ``initial`` of softmax in jax 0.4.38."""
    return type(parameter.default).__name__ == "Unspecified"


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_are_jaxs(kind):
    """Names, order and defaults, the input's included; what is ours comes by keyword."""
    ours = list(inspect.signature(getattr(pj, kind)).parameters.values())
    own = [p for p in inspect.signature(theirs(kind)).parameters.values() if not is_given_up(p)]
    positional = [p.name for p in own if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in ours if p.kind is p.POSITIONAL_OR_KEYWORD] == positional
    named = {p.name: p for p in ours}
    for p in own[1:]:
        assert p.default in (named[p.name].default, p.empty), p


def test_the_input_by_the_name_jax_has_for_it():
    assert np.array_equal(pj.max(a=X, axis=1, initial=4.0), jnp.max(a=X, axis=1, initial=4.0))
    assert np.array_equal(pj.cummax(operand=X, axis=1), jax.lax.cummax(operand=X, axis=1))
    with pytest.raises(TypeError, match="'x'"):
        pj.max(x=X)
    with pytest.raises(pb.InvalidProblemError, match="data: expected at least one dimension"):
        pj.segment_sum(X[0, 0], jnp.array(0), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_integers_are_as_jax_has_them(kind):
    given = [WHOLE, WHOLE.astype(jnp.int32)]
    if kind in ("sum", "mean", "max", "cumsum"):
        given.append(WHOLE > 3)
    for x in given:
        got = getattr(pj, kind)(x, *arguments(kind))
        # JAX's own begin from an infinity of integers: NaN, or an error.
        fails = "softmax" in kind or kind == "logcumsumexp"
        theirs_given = x.astype(jnp.float32) if fails else x
        want = theirs(kind)(theirs_given, *arguments(kind))
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


def test_integers_become_floats_where_jax_has_no_function():
    got = pj.lerp(WHOLE, X.astype(jnp.float16), 0.5)
    assert got.dtype == jnp.float16
    assert pj.lerp(WHOLE, WHOLE, 0.5).dtype == jnp.float32
    assert pj.norm2(jnp.array([3, 4])) == 5.0
    b = jnp.ones((2, 4), jnp.float32)
    start = jnp.ones((2, 1), jnp.int32)
    assert np.array_equal(pj.linear_recurrence(b, b, initial=start)[:, -1], [5.0, 5.0])
    with pytest.raises(pb.UnsupportedError, match=r"a: expected dtype .*, got complex64"):
        pj.lerp(X.astype(jnp.complex64), X, 0.5)


def test_other_types_are_jaxs_own():
    z = X + 1j
    for name in ("sum", "cumprod", "var", "softmax"):
        got, want = (f(z, 1) for f in (getattr(pj, name), theirs(name)))
        np.testing.assert_allclose(got, want, rtol=1e-6)
    with pytest.raises(pb.UnsupportedError, match="reverse: expected False where cumsum is JAX's"):
        pj.cumsum(z, 1, reverse=True)
    with pytest.raises(pb.UnsupportedError, match="offsets: expected None where segment_sum is"):
        pj.segment_sum(WHOLE, offsets=jnp.array([0, 4]))


def test_axis_name_is_refused_by_older_releases(monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", (0, 9, 1))
    with pytest.raises(pb.UnsupportedError, match=r"axis_name: needs jax 0\.10 or later"):
        pj.softmax(X, axis_name="i")


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "var", "std", "cumsum", "cumprod"])
def test_dtype(name):
    ours, own = getattr(pj, name), theirs(name)
    half = X[jnp.array([0, 2, 3])].astype(jnp.bfloat16)  # no row of equal numbers
    got = ours(half, 1, jnp.float32)
    assert got.dtype == jnp.float32
    assert np.array_equal(got, ours(half.astype(jnp.float32), 1))
    np.testing.assert_allclose(got, own(half, 1, jnp.float32), rtol=1e-6)
    grads = [jax.grad(lambda x, f=f: f(x, 1, dtype="float32").sum())(half) for f in (ours, own)]
    assert grads[0].dtype == jnp.bfloat16
    np.testing.assert_allclose(*(g.astype(np.float32) for g in grads), rtol=2e-2)
    assert ours(WHOLE, 1, jnp.float32).dtype == jnp.float32
    if name in ("sum", "cumsum"):
        assert np.array_equal(ours(X, 1, jnp.int32), own(X, 1, jnp.int32))


def test_arguments_that_only_jax_has():
    b = jnp.array([1.0, -2.0], jnp.float32)
    for how in ({"b": jnp.abs(b)}, {"b": b, "return_sign": True}, {"return_sign": True}):
        got, want = (f(X, axis=1, **how) for f in (pj.logsumexp, jax.nn.logsumexp))
        assert jax.tree.all(jax.tree.map(np.array_equal, got, want))
    by = [
        jax.grad(lambda b, f=f: f(X, 1, b).sum())(jnp.abs(b))
        for f in (pj.logsumexp, jax.nn.logsumexp)
    ]
    assert np.array_equal(*by)
    assert np.array_equal(
        pj.sum(WHOLE, promote_integers=False), jnp.sum(WHOLE, promote_integers=False)
    )
    for f in (pj.sum, jnp.sum):
        with pytest.raises(NotImplementedError, match="out"):
            f(X, out=X)
    assert np.array_equal(pj.amax(X, 1), jnp.amax(X, 1))
    np.testing.assert_allclose(pj.cumlogsumexp(X, 1), jax.lax.cumlogsumexp(X, 1), rtol=1e-6)


def loss(x):
    y = pj.log_softmax(x, axis=1).sum() + pj.logsumexp(pj.cumsum(x, axis=0))
    return y + pj.segment_max(x, jnp.array([1, 0, 1, 1]), 2).sum()


@pytest.mark.parametrize("platforms", [("cpu",), ("cpu", "cuda", "tpu")], ids="-".join)
def test_export(platforms, tmp_path):
    """What is exported runs anywhere: in a process without pullback too."""
    run = jax.jit(jax.value_and_grad(loss))
    exported = jax.export.export(run, platforms=platforms)(jax.ShapeDtypeStruct(X.shape, X.dtype))
    assert "pullback_launch" not in str(exported.mlir_module())
    value, gradient = run(X)
    got = exported.call(X)
    np.testing.assert_allclose(got[0], value, rtol=1e-5)
    np.testing.assert_allclose(got[1], gradient, rtol=1e-5, atol=1e-6)
    if platforms == ("cpu",):
        pytest.importorskip("flatbuffers")  # without which JAX writes no export
        (tmp_path / "f").write_bytes(exported.serialize())
        run_script(
            "import sys, jax.export, numpy as np\n"
            f"f = jax.export.deserialize(bytearray(open({str(tmp_path / 'f')!r}, 'rb').read()))\n"
            f"y = f.call(np.array({X.tolist()}, np.float32))[0]\n"
            f"assert abs(y - {float(value)}) < 1e-4 and 'pullback' not in sys.modules, y\n"
        )
