"""Names, defaults and conventions of jax.ops and jax.numpy, beside JAX itself."""

from __future__ import annotations

import doctest
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb
import pullback.jax as pj

X = jnp.array([[1.0, 5.0], [3.0, 3.0], [-2.0, 0.5], [3.0, 4.0]], jnp.float32)
SEGMENT_OPS = ("segment_sum", "segment_prod", "segment_max", "segment_min")


@pytest.mark.parametrize("name", SEGMENT_OPS)
def test_segment_ops(name):
    """Ids in any order, negative and out of range, with and without a number of segments."""
    ours, theirs = getattr(pj, name), getattr(jax.ops, name)
    known = inspect.signature(ours).parameters
    wanted = inspect.signature(theirs).parameters
    assert [n for n in known if n in wanted] == list(wanted)
    for p in wanted.values():
        assert p.default in (known[p.name].default, inspect.Parameter.empty)
    for ids in ([2, 0, 2, 0], [3, -1, 0, 7], [0, 0, 1, 3]):
        ids = jnp.array(ids)
        for how in ((3,), (), (4, False, False, None, "drop")):
            got, wanted = ours(X, ids, *how), theirs(X, ids, *how)
            assert np.array_equal(got, wanted), (ids, how)
        if name != "segment_prod":  # of which JAX has no gradient
            both = (
                jax.grad(lambda x, f=f, ids=ids: f(x, ids, 3)[0].sum())(X) for f in (ours, theirs)
            )
            assert np.array_equal(*both)
    with pytest.raises(pb.UnsupportedError, match=r"mode: expected None, 'drop' or 'fill'"):
        ours(X, ids, 3, mode="clip")
    narrow = jnp.array([0, 200, 1, 0], jnp.uint8), jnp.array([0, 2**32 - 1, 1, 0], jnp.uint32)
    for ids in narrow:
        assert np.array_equal(ours(X, ids, 2), theirs(X, ids, 2))


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_initial_and_where(name):
    ours, theirs = getattr(pj, name), getattr(jnp, name)
    mask = jnp.array([[True, False], [False, False], [True, True], [False, True]])
    for how in ({}, {"where": mask}, {"axis": 1, "where": mask[:, :1], "keepdims": True}):
        results = [f(X, initial=3.0, **how) for f in (ours, theirs)]
        assert np.array_equal(*results)
        gradients = [
            jax.grad(lambda x, i, f=f, how=how: f(x, initial=i, **how).sum(), (0, 1))(X, 3.0)
            for f in (ours, theirs)
        ]
        for got, wanted in zip(*gradients, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-6)
    assert np.array_equal(ours(X[:0], axis=0, initial=3.0), theirs(X[:0], axis=0, initial=3.0))
    with pytest.raises(pb.InvalidProblemError, match="initial: expected a scalar"):
        ours(X, initial=jnp.ones(2))


def test_a_traced_target_that_is_no_class_gives_nan():
    logits, target = X[:3], jnp.array([1, 2, -100])
    run = jax.jit(lambda x, t: pj.cross_entropy(x, t, ignore_index=-100)[0])
    assert np.isnan(run(logits, target)).tolist() == [False, True, False]
    gradient = jax.grad(lambda x: run(x, target).sum())(logits)
    assert np.isnan(gradient).all(1).tolist() == [False, True, False]
    with pytest.raises(pb.InvalidProblemError, match=r"^target: expected positions"):
        pj.cross_entropy(logits, target, ignore_index=-100)


@pytest.mark.parametrize("name", ["mean", "var", "std", "logsumexp", "softmax", "log_softmax"])
def test_where(name):
    """Rows with one element, several and none; what is masked holds NaN."""
    x = X.at[0, 1].set(jnp.nan)
    mask = jnp.array([[True, False], [False, False], [True, True], [True, True]])
    theirs = getattr(jnp, name, None) or getattr(jax.nn, name)
    got, wanted = getattr(pj, name)(x, axis=1, where=mask), theirs(x, axis=1, where=mask)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize("name", pj.__all__)
def test_docstrings_are_true(name):
    made = getattr(pj, name)
    for parameter in inspect.signature(made).parameters:
        assert f"\n{parameter} : " in made.__doc__, parameter
    shown: list[str] = []
    for test in doctest.DocTestFinder(recurse=False).find(made, name, module=False, globs={}):
        doctest.DocTestRunner().run(test, out=shown.append)
    assert not shown, "".join(shown)
