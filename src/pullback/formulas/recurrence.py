"""Linear recurrences, discounted sums and advantages: s ← b + a·s, forwards or from the end.

What position t passes on is a[t]·(its own part + what it gets). For y[t] = a[t]·y[t−1] + b[t] the
gradient g[t] = dy[t] + a[t+1]·g[t+1] is such a recurrence the other way; db = g, da[t] =
g[t]·y[t−1], and what passes the first position is the gradient with respect to the initial state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from .folds import linear, times
from .primitives import where
from .record import Monoid, ScanFormula
from .scan import at_borders, dy_and_passed, passed_itself

STATE = ("factor", "passed")
# Steps that may be borders add 0.0, so that none is −0: then not even the sign of what a border
# stops shows in a sum.


def _scan(lift: Callable, finish: Callable, **how) -> ScanFormula:
    return ScanFormula(Monoid(lift, linear, (1.0, 0.0), STATE), finish, guarded=True, **how)


# linear_recurrence


def step(a, b):
    return a, b


def step_in_run(a, b, begins):
    return where(begins, 0.0, a), b + 0.0


def from_initial(initial):
    return 1.0, initial


@cache
def linear_recurrence(initial: bool, resets: bool, reverse: bool, **_: bool) -> ScanFormula:
    made = _scan(
        step_in_run if resets else step,
        passed_itself,
        inclusive=True,
        against=False,
        start=from_initial if initial else None,
        end=passed_itself,
    )
    return at_borders(made, reverse)


def step_backward(dy, a):
    return a, times(a, dy)


def step_backward_in_run(dy, a, begins):
    return where(begins, 0.0, a), where(begins, 0.0, times(a, dy)) + 0.0


def gradients(dy, y_before, passed):
    g = dy + passed
    return times(g, y_before), g


def gradients_in_run(dy, y_before, passed, begins):
    g = dy + passed
    return where(begins, 0.0, times(g, y_before)), g


def gradients_from_initial(dy, y_before, first, initial, passed):
    return gradients(dy, where(first, initial, y_before), passed)


def gradients_from_initial_in_run(dy, y_before, first, initial, passed, begins):
    return gradients_in_run(dy, where(first, initial, y_before), passed, begins)


def from_gradient(d_final):
    return 1.0, d_final


@cache
def linear_recurrence_backward(
    initial: bool, d_final: bool, resets: bool, reverse: bool, **_: bool
) -> ScanFormula:
    finish: Callable = gradients_in_run if resets else gradients
    if initial:
        finish = gradients_from_initial_in_run if resets else gradients_from_initial
    made = _scan(
        step_backward_in_run if resets else step_backward,
        finish,
        inclusive=False,
        against=True,
        start=from_gradient if d_final else None,
        end=passed_itself if initial else None,
    )
    return at_borders(made, reverse)


# discounted_sum: G[t] = x[t] + c[t]·G[t+1], c the discount, 0 where an episode is done.


def discounted_step(x, discount):
    return discount, x


def discounted_step_until_done(x, discount, done):
    return where(done, 0.0, discount), x + 0.0


def discounted_step_backward(dy, discount):
    return discount, times(discount, dy)


def discounted_step_backward_until_done(dy, discount, done):
    return where(done, 0.0, discount), where(done, 0.0, times(discount, dy)) + 0.0


@cache
def discounted_sum(done: bool, initial: bool, **_: bool) -> ScanFormula:
    return _scan(
        discounted_step_until_done if done else discounted_step,
        passed_itself,
        inclusive=True,
        against=True,
        start=from_initial if initial else None,
    )


@cache
def discounted_sum_backward(done: bool, **_: bool) -> ScanFormula:
    step = discounted_step_backward_until_done if done else discounted_step_backward
    return _scan(step, dy_and_passed, inclusive=False, against=False)


# gae: A[t] = δ[t] + γλ·A[t+1], δ = r + γ·v′ − v. A terminal state has no value to come; neither a
# terminated nor a truncated step has an advantage to come.


def advantage_step(rewards, values, next_values, gamma, lam):
    return gamma * lam, rewards + gamma * next_values - values


def advantage_until(rewards, values, next_values, gamma, lam, terminated):
    coming = where(terminated, 0.0, gamma * next_values)
    return where(terminated, 0.0, gamma * lam), rewards + coming - values + 0.0


def advantage_until_cut(rewards, values, next_values, gamma, lam, truncated):
    factor, delta = advantage_step(rewards, values, next_values, gamma, lam)
    return where(truncated, 0.0, factor), delta + 0.0


def advantage_until_either(rewards, values, next_values, gamma, lam, terminated, truncated):
    factor, delta = advantage_until(rewards, values, next_values, gamma, lam, terminated)
    return where(truncated, 0.0, factor), delta


def advantage_and_return(values, passed):
    return passed, passed + values


@cache
def gae(terminated: bool, truncated: bool) -> ScanFormula:
    steps: dict[tuple[bool, bool], Callable] = {
        (False, False): advantage_step,
        (True, False): advantage_until,
        (False, True): advantage_until_cut,
        (True, True): advantage_until_either,
    }
    step = steps[terminated, truncated]
    return _scan(step, advantage_and_return, inclusive=True, against=True)
