"""discounted_sum and gae, beside plain loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import pullback as pb

INF, NAN = np.inf, np.nan
WAYS = list(itertools.product((False, True), repeat=2))


def test_discounted_sum():
    """Beside a loop: done belongs to step t, and nothing crosses it, either way."""
    rng = np.random.default_rng(10)
    x, dy = rng.standard_normal((2, 3, 700))
    discount, done = rng.random((3, 700)), rng.random((3, 700)) < 0.05
    behind = rng.standard_normal(3)
    done[0, -1], done[1, 0] = True, True
    expected, expected_dx = np.empty(x.shape), np.empty(x.shape)
    for r in range(3):
        now, passed = behind[r], 0.0
        for t in reversed(range(700)):
            now = expected[r, t] = x[r, t] + discount[r, t] * (1 - done[r, t]) * now
        for t in range(700):
            now = expected_dx[r, t] = dy[r, t] + passed
            passed = discount[r, t] * (1 - done[r, t]) * now
    y = pb.discounted_sum(x, discount, done=done, initial=behind)
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)
    dx = pb.discounted_sum_backward(dy, discount=discount, done=done)
    np.testing.assert_allclose(dx, expected_dx, rtol=1e-12, atol=1e-12)

    ends = np.flatnonzero(done[2])
    hurt, hurt_dy = x.copy(), dy.copy()
    hurt[2, ends[0] + 1], hurt_dy[2, ends[0]] = NAN, INF
    found = pb.discounted_sum(hurt, discount, done=done, initial=behind)
    assert found[2, : ends[0] + 1].tobytes() == y[2, : ends[0] + 1].tobytes()
    found = pb.discounted_sum_backward(hurt_dy, discount=discount, done=done)
    assert found[2, ends[0] + 1 :].tobytes() == dx[2, ends[0] + 1 :].tobytes()


def test_a_number_and_an_array_of_discounts():
    x = np.random.default_rng(11).standard_normal((2, 600)).astype(np.float32)
    for each in (np.full(x.shape, 0.5, np.float32), np.full(600, 0.5, np.float32)):
        assert pb.discounted_sum(x, each).tobytes() == pb.discounted_sum(x, 0.5).tobytes()
        dx = pb.discounted_sum_backward(x, discount=each)
        assert dx.tobytes() == pb.discounted_sum_backward(x, discount=0.5).tobytes()


@pytest.mark.parametrize(("with_terminated", "with_truncated"), WAYS)
def test_gae(with_terminated, with_truncated):
    """Beside a loop. A value behind a terminated step is not read; behind a truncated one it is."""
    rng = np.random.default_rng(12)
    rewards, values, following = rng.standard_normal((3, 2, 600))
    terminated, truncated = rng.random((2, 2, 600)) < 0.05
    how = {}
    if with_terminated:
        how["terminated"] = terminated
        following[terminated] = NAN
    if with_truncated:
        how["truncated"] = truncated
    gamma, lam = 0.97, 0.9
    expected = np.empty(rewards.shape)
    for r in range(2):
        ahead = 0.0
        for t in reversed(range(600)):
            ends = with_terminated and terminated[r, t]
            cut = ends or (with_truncated and truncated[r, t])
            delta = rewards[r, t] + (0.0 if ends else gamma * following[r, t]) - values[r, t]
            ahead = expected[r, t] = delta + (0.0 if cut else gamma * lam * ahead)
    advantages, returns = pb.gae(rewards, values, following, gamma=gamma, lam=lam, **how)
    np.testing.assert_allclose(advantages, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(returns, expected + values, rtol=1e-12, atol=1e-12)
