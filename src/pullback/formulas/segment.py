"""What segments add to reductions: values for a segment without rows."""

from __future__ import annotations

from dataclasses import replace

from .primitives import where
from .record import RowFormula
from .reduce import MAX, MEAN, MIN


def mean_or_zero(total, extent):
    return where(extent > 0, total / extent, 0.0)


def peak_or_empty(peak, extent, empty):
    return where(extent > 0, peak, empty)


SEGMENT_MEAN: RowFormula = replace(MEAN, finish=mean_or_zero)
SEGMENT_MAX: RowFormula = replace(MAX, finish=peak_or_empty, of_none=("empty", MAX))
SEGMENT_MIN: RowFormula = replace(MIN, finish=peak_or_empty, of_none=("empty", MIN))
