"""Rows of numbers and their runs, for tests of scans."""

from __future__ import annotations

import numpy as np


def f64(*values):
    return np.array(values, np.float64)


def shown(array):
    """As a list in which NaN equals NaN."""
    return [None if v != v else v for v in np.asarray(array, np.float64).ravel().tolist()]


def borders(marks):
    """Where runs begin and end along one row."""
    starts = [0, *(np.flatnonzero(marks[1:]) + 1)]
    return list(zip(starts, [*starts[1:], len(marks)], strict=True))
