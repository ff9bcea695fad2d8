"""pullback.jax on masks, runs, recurrences, segments and losses: bytes of the NumPy path, and
derivatives against differences."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.test_util import check_grads

import pullback as pb
import pullback.jax as pj
from jax_ops import bytes_of
from jax_releases import enable_x64

_RNG = np.random.default_rng(0)
A, B = (_RNG.permutation(np.linspace(0.3, 1.7, 12)).reshape(3, 4) for _ in range(2))
ROWS = _RNG.permutation(np.linspace(0.3, 1.7, 12)).reshape(6, 2)
MASK = np.array([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1]], bool)
SOME = MASK | np.array([[0], [1], [0]], bool)  # no row of none: those of mean and var are NaN
RESETS = np.array([0, 0, 1, 0], bool)
OFFSETS = np.array([0, 1, 1, 4])
IDS, CUTS = np.array([2, 0, 7, 2, -1, 0]), np.array([0, 2, 2, 5])
TARGET = np.array([2, 0, 3])
STATE = np.array([0.7, -0.4, 1.2])
SMOOTH = {"label_smoothing": 0.1, "z_loss": 0.01}


def same(name, arrays, *more, **keywords):
    """A call that both take alike."""
    return (
        lambda *a: getattr(pj, name)(*a, *more, **keywords),
        lambda *a: getattr(pb, name)(*a, *more, **keywords),
        arrays,
    )


SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
REDUCTIONS = ("sum", "mean", "max", "min", "prod", "norm2", "logsumexp", "var", "std")
HAS_NONE = ("sum", "prod", "logsumexp")
SEGMENTS = ("sum", "mean", "max", "min", "prod", "logsumexp", "softmax", "log_softmax")
CASES = {
    **{f"{n} exclusive": same(n, (A,), axis=1, exclusive=True) for n in SCANS},
    **{f"{n} with resets": same(n, (A,), axis=1, resets=RESETS, reverse=True) for n in SCANS},
    **{f"{n} with offsets": same(n, (A,), axis=1, offsets=OFFSETS) for n in SCANS},
    **{
        f"{n} where": same(
            n, (A,), axis=1, where=MASK if n in HAS_NONE else SOME,
            **({"correction": 1} if n in ("var", "std") else {}),
        )
        for n in REDUCTIONS
    },
    **{f"{n} where": same(n, (A,), where=MASK) for n in ("softmax", "log_softmax")},
    **{
        f"segment_{n} by ids": same(f"segment_{n}", (ROWS,), IDS, 3, out_of_range="drop")
        for n in SEGMENTS
    },
    **{f"segment_{n} by offsets": same(f"segment_{n}", (ROWS,), offsets=CUTS) for n in SEGMENTS},
    "recurrence": (
        lambda a, b, s: pj.linear_recurrence(a, b, initial=s, return_final=True),
        lambda a, b, s: pb.linear_recurrence(a, b, initial=s, return_final=True),
        (A, B, STATE),
    ),
    "recurrence with resets": same("linear_recurrence", (A, B), resets=RESETS),
    "discounted sum": (
        lambda x, s: pj.discounted_sum(x, 0.9, done=RESETS, initial=s),
        lambda x, s: pb.discounted_sum(x, 0.9, done=RESETS, initial=s),
        (A, STATE),
    ),
    "discounted sum by an array": same("discounted_sum", (A, B)),
    "cross entropy": same("cross_entropy", (A,), TARGET, **SMOOTH),
    "cross entropy, ignored": same("cross_entropy", (A,), TARGET, ignore_index=2),
    "lerp by an array": same("lerp", (A, B, A / 2)),
}  # fmt: skip
TWICE = [
    "cumprod with resets",
    "logcumsumexp exclusive",
    "softmax where",
    "segment_softmax by ids",
    "recurrence",
    "discounted sum by an array",
    "cross entropy",
    "lerp by an array",
]


@pytest.fixture(autouse=True)
def wide():
    with enable_x64(True):
        yield


@pytest.mark.parametrize("name", CASES)
def test_bytes_and_first_derivatives(name):
    ours, theirs, arrays = CASES[name]
    found, expected = ours(*arrays), theirs(*arrays)
    assert jax.tree.map(bytes_of, found) == jax.tree.map(bytes_of, expected)
    # Compiled as one program: eagerly, each of hundreds of small operations is one.
    check_grads(jax.jit(ours), arrays, order=1, modes=("fwd", "rev"))


@pytest.mark.parametrize("name", TWICE)
def test_second_derivatives(name):
    ours, _, arrays = CASES[name]
    check_grads(jax.jit(ours), arrays, order=2, modes=("rev",))


def test_advantages_are_constants():
    how = {"gamma": 0.9, "lam": 0.8, "terminated": RESETS}
    found = pj.gae(A, B, A, **how)
    for ours, theirs in zip(found, pb.gae(A, B, A, **how), strict=True):
        assert bytes_of(ours) == bytes_of(theirs)
    pulled = jax.grad(lambda a: pj.gae(a, B, A, **how)[0].sum())(A)
    np.testing.assert_array_equal(pulled, np.zeros_like(A))


def test_traced_offsets_of_runs():
    traced = jax.jit(lambda o: pj.cumsum(A, axis=1, offsets=o))(OFFSETS)
    assert bytes_of(traced) == bytes_of(pb.cumsum(A, offsets=OFFSETS))


def test_targets_that_are_known_are_checked():
    with pytest.raises(pb.InvalidProblemError, match=r"target: expected positions in \[0, 4\)"):
        pj.cross_entropy(A, TARGET + 2)
    loss, _ = jax.jit(lambda t: pj.cross_entropy(A, t))(TARGET)
    assert bytes_of(loss) == bytes_of(pb.cross_entropy(A, TARGET)[0])
