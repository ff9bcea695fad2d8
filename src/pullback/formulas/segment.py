"""Segment sums: output[s] = Σ input[n] over the rows n with id s, in row order.

The transpose of that 0/1 matrix is a gather: d_input[n] = d_output[ids[n]].
"""

from __future__ import annotations

from .folds import TOTAL
from .record import SegmentFormula

SEGMENT_SUM = SegmentFormula(TOTAL)
SEGMENT_SUM_BACKWARD = SegmentFormula()
