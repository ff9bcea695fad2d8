"""What scans in runs and recurrences refuse, and by which name."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda x: pb.cumsum(x, offsets=np.array([0, 5, 3, 6])), "offsets"),
        (lambda x: pb.cumsum(x, offsets=np.array([1, 6])), "offsets"),
        (lambda x: pb.cumsum(x, offsets=np.array([0, 5])), "offsets"),
        (lambda x: pb.cumsum(x, offsets=np.array([0, 7])), "offsets"),
        (lambda x: pb.cumsum(x, offsets=np.array([[0, 6]])), "offsets"),
        (lambda x: pb.cumsum(x, offsets=np.array([], np.int64)), "offsets"),
        (lambda x: pb.cumsum(x, resets=np.zeros(5, bool)), "resets"),
        (lambda x: pb.cumsum(x, resets=np.zeros((1, 2, 6), bool)), "resets"),
        (lambda x: pb.cumsum(x, resets=np.zeros(6, bool), offsets=np.array([0, 6])), "resets"),
        (lambda x: pb.linear_recurrence(x, x[:, :5]), "b"),
        (lambda x: pb.linear_recurrence(x, x, resets=np.zeros((3, 6), bool)), "resets"),
        (lambda x: pb.linear_recurrence(x, x, offsets=np.array([0, 7])), "offsets"),
        (lambda x: pb.linear_recurrence(x, x, initial=np.zeros(3)), "initial"),
        (lambda x: pb.linear_recurrence_backward(x, a=x, y=x, d_final=np.zeros(6)), "d_final"),
        (lambda x: pb.discounted_sum(x, np.ones(5)), "discount"),
        (lambda x: pb.discounted_sum(x, 0.5, done=np.zeros((3, 1), bool)), "done"),
        (lambda x: pb.gae(x, x, x, gamma=1.5, lam=0.5), "gamma"),
        (lambda x: pb.gae(x, x, x, gamma=0.5, lam=-0.1), "lam"),
        (lambda x: pb.gae(x, x[:1], x, gamma=0.5, lam=0.1), "values"),
    ],
)
def test_bad_problems(call, named):
    with pytest.raises(pb.InvalidProblemError, match=rf"\b{named}\b"):
        call(np.ones((2, 6)))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda x: pb.cumsum(x, resets=np.zeros(6, np.int64)), "resets"),
        (lambda x: pb.cumsum(x, offsets=np.array([0.0, 6.0])), "offsets"),
        (lambda x: pb.linear_recurrence(x, x.astype(np.float32)), "b"),
        (lambda x: pb.linear_recurrence(x, x, initial=np.zeros(2, np.float32)), "initial"),
        (lambda x: pb.linear_recurrence(x + 0j, x + 0j), "a"),
        (lambda x: pb.discounted_sum(x, 0.5, done=np.zeros((2, 6))), "done"),
        (lambda x: pb.gae(x, x, x, gamma=0.5, lam=0.5, truncated=np.zeros(6, "u1")), "truncated"),
    ],
)
def test_bad_types(call, named):
    with pytest.raises(pb.PullbackError, match=rf"\b{named}\b"):
        call(np.ones((2, 6)))


def test_a_refused_call_writes_nothing():
    x, out = np.ones((2, 6)), np.full((2, 6), 7.0)
    with pytest.raises(pb.InvalidProblemError):
        pb.cumsum(x, offsets=np.array([0, 5, 3, 6]), out=out)
    with pytest.raises(pb.InvalidProblemError):
        pb.linear_recurrence(x, x, initial=np.zeros(3), out=out)
    assert (out == 7.0).all()
