"""NumPy's names of arguments, where they are not the catalog's."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb

X = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)


@pytest.mark.parametrize("name", ["var", "std"])
def test_ddof_is_the_correction(name):
    function = getattr(pb, name)
    for ddof in (0, 1, 2.5):
        got = function(X, axis=1, ddof=ddof)
        assert got.tobytes() == function(X, axis=1, correction=ddof).tobytes()
        np.testing.assert_allclose(got, getattr(np, name)(X, axis=1, ddof=ddof), rtol=1e-5)
    with pytest.raises(pb.InvalidProblemError, match="correction: expected it or ddof, got both"):
        function(X, axis=1, correction=0, ddof=0)
    with pytest.raises(pb.InvalidProblemError, match="correction"):
        function(X, axis=1, ddof="1")


def test_ddof_of_a_gradient():
    y, back = pb.vjp(pb.std, X, axis=1, ddof=0)
    dy = np.ones_like(y)
    wanted = pb.std_backward(dy, x=X, y=y, axis=1, correction=0)
    assert back(dy).tobytes() == wanted.tobytes()
    assert wanted.tobytes() != pb.std_backward(dy, x=X, y=y, axis=1).tobytes()


def test_ddof_of_dask_arrays():
    dask = pytest.importorskip("dask.array")
    import pullback.dask as pd

    lazy = dask.from_array(X, chunks=(2, 5))
    assert pd.var(lazy, axis=1, ddof=0).compute().tobytes() == pb.var(X, axis=1, ddof=0).tobytes()


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "max", "norm2", "softmax", "log_softmax"])
@pytest.mark.parametrize("where", [True, False])
def test_a_mask_may_be_one_bool(name, where):
    function = getattr(pb, name)
    full = np.full(X.shape, where)
    wanted, pull = pb.vjp(function, X, axis=1, where=full)
    for _ in range(2):
        assert function(X, axis=1, where=where).tobytes() == wanted.tobytes()
    y, back = pb.vjp(function, X, axis=1, where=where)
    assert y.tobytes() == wanted.tobytes()
    dy = np.ones_like(y)
    assert back(dy).tobytes() == pull(dy).tobytes()
    if name in ("sum", "prod"):
        np.testing.assert_allclose(wanted, getattr(np, name)(X, axis=1, where=where), rtol=1e-5)


def test_what_is_no_mask_is_refused():
    for wrong in (1, 0.0, "yes"):
        with pytest.raises(pb.UnsupportedError, match="where"):
            pb.sum(X, where=wrong)
