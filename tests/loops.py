"""A linear recurrence and its gradients by plain loops, in float64."""

from __future__ import annotations

import numpy as np


def in_time(arrays, axis, reverse):
    """Time last and running forwards, in float64."""
    moved = [np.moveaxis(a.astype(np.float64), axis, -1) for a in arrays]
    return [a[..., ::-1] if reverse else a for a in moved]


def back(array, axis, reverse):
    return np.moveaxis(array[..., ::-1] if reverse else array, -1, axis)


def by_loop(a, b, initial, axis, reverse):
    a, b = in_time((a, b), axis, reverse)
    y, now = np.empty_like(a), initial
    for t in range(a.shape[-1]):
        now = y[..., t] = a[..., t] * now + b[..., t]
    return back(y, axis, reverse), now


def backward_by_loop(dy, a, y, initial, d_final, axis, reverse):
    dy, a, y = in_time((dy, a, y), axis, reverse)
    da, db, passed = np.empty_like(a), np.empty_like(a), d_final
    for t in reversed(range(a.shape[-1])):
        g = db[..., t] = dy[..., t] + passed
        da[..., t] = g * (y[..., t - 1] if t else initial)
        passed = a[..., t] * g
    return back(da, axis, reverse), back(db, axis, reverse), passed
