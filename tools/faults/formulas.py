"""Faults in formulas: what an op computes."""

from __future__ import annotations

from .record import Fault

FAULTS = (
    Fault(
        "wrong sign",
        "formulas/softmax.py",
        "y * (dy - total)",
        "y * (dy + total)",
        "test_extents.py::test_row_equals_the_oracle[softmax_backward-f64]",
    ),
    Fault(
        "recurrence: a zero state lets an infinite factor through",
        "formulas/folds.py",
        "isnan(product) & ((a == 0) | (b == 0))",
        "isnan(product) & (a == 0)",
        "test_recurrence.py::test_what_a_factor_stops",
    ),
    Fault(
        "recurrence: a border in front of all lets the initial state in",
        "formulas/recurrence.py",
        "return where(begins, 0.0, a), b + 0.0",
        "return where(begins, a, a), b + 0.0",
        "test_recurrence.py::test_a_border_in_front_of_all",
    ),
    Fault(
        "recurrence: a truncated episode runs into the next",
        "formulas/recurrence.py",
        "return where(truncated, 0.0, factor), delta + 0.0",
        "return where(truncated, factor, factor), delta + 0.0",
        "test_returns.py::test_gae[False-True]",
    ),
    Fault(
        "runs: of two weighed sums both are scaled down",
        "formulas/scan.py",
        "total = where(nearer, total1 * down + total2, total1 + total2 * down)",
        "total = where(nearer, total1 * down + total2 * down, total1 + total2 * down)",
        "test_runs.py::test_runs[logcumsumexp-True-False]",
    ),
    Fault(
        "runs: a border is overlooked where no extreme begins",
        "formulas/scan.py",
        "step, gradient, new = (_first_of_run(f) for f in (step, gradient, new))",
        "step, gradient = (_first_of_run(f) for f in (step, gradient))",
        "test_runs.py::test_runs[cummax-False-False]",
    ),
    Fault(
        "ties last instead of first",
        "formulas/scan.py",
        '_extreme_backward(PEAK, {"first": greater,',
        '_extreme_backward(PEAK, {"first": greater_or_equal,',
        "test_values.py::test_equals_the_oracle[cummax_backward-bf16]",
    ),
    Fault(
        "runs: a border lets everything through",
        "formulas/runs.py",
        'f"where(cut2 > 0, {n}, {a})"',
        'f"where(cut2 > 2, {n}, {a})"',
        "test_values.py::test_equals_the_oracle[cummax-f32]",
    ),
    Fault(
        "masks: what is left out counts",
        "formulas/masked.py",
        "lift=_masked_values(monoid.lift, monoid.identity)",
        "lift=renamed(monoid.lift, extent=COUNT)",
        "test_values.py::test_equals_the_oracle[sum-f32]",
    ),
    Fault(
        "recurrence: a reset is overlooked",
        "formulas/recurrence.py",
        "    return where(begins, 0.0, a), b",
        "    return a, b",
        "test_values.py::test_equals_the_oracle[linear_recurrence-f32]",
    ),
    Fault(
        "cross entropy: smoothing adds to the target",
        "formulas/loss.py",
        "loss = (1.0 - label_smoothing) * (lse - picked) + smooth",
        "loss = (lse - picked) + smooth",
        "test_values.py::test_equals_the_oracle[cross_entropy-f32]",
    ),
    Fault(
        "cross entropy: a target that is no class has a loss",
        "formulas/loss.py",
        "where(target < extent, value, NAN)",
        "where(target < extent + 1, value, NAN)",
        "test_jax_names.py::test_a_traced_target_that_is_no_class_gives_nan",
    ),
    Fault(
        "projections: an element at the threshold is in the support",
        "formulas/projection.py",
        "    inside = (difference - tau) + (error - low) > 0",
        "    inside = difference - tau > 0",
        "test_projection.py::test_digits_far_below_the_others_decide",
    ),
    Fault(
        "missing zero case",
        "formulas/reduce.py",
        "return where(y == 0, 0.0, dy / y)",
        "return dy / y",
        "test_values.py::test_equals_the_oracle[norm2_backward-bf16]",
    ),
    Fault(
        "missing -inf case",
        "formulas/scan.py",
        "where(x == -INF, 0.0, exp(x - y) * (dy + passed))",
        "exp(x - y) * (dy + passed)",
        "test_values.py::test_equals_the_oracle[logcumsumexp_backward-bf16]",
    ),
    Fault(
        "sums kept in 24 bits",
        "formulas/folds.py",
        "def add(a, b):\n    return a + b",
        "def add(a, b):\n    up = (a + b) * 536870913.0\n    return up - (up - (a + b))",
        "test_extents.py::test_row_equals_the_oracle[sum-f32]",
    ),
)
