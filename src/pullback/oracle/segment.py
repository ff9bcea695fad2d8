"""Segment sums over the first axis. Ids may come in any order; sorted ids are a special case.

An id outside [0, num_segments) raises, or with "drop" the forward skips its row and the
backward writes 0 there. IEEE throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .special import ZERO, Term, total
from .table import EXACT, check_option, define, map_rows, needed, to_terms

Row = list[Term]


def segments(
    formula: Callable[..., Row],
    operands: Mapping[str, Any],
    *,
    num_segments: int | None = None,
    out_of_range: str | None = None,
) -> tuple[np.ndarray, ...]:
    """Feed the columns of the first operand, with the ids, to the formula."""
    values, raw_ids = needed(formula, operands).values()
    values, ids = to_terms(values), np.asarray(raw_ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or values.ndim < 1:
        raise ValueError(f"segment_ids must be 1-d integers, not {ids.ndim}-d {ids.dtype}")
    out_of_range = out_of_range or "raise"
    check_option("out_of_range", out_of_range, ("raise", "drop"))
    if formula is segment_sum:
        if num_segments is None or values.shape[0] != len(ids):
            raise ValueError("segment_sum needs num_segments, and one id per row of input")
        length = count = int(num_segments)
    else:
        length, count = len(ids), values.shape[0]
    listed = [int(i) for i in ids]
    if out_of_range == "raise" and not all(0 <= i < count for i in listed):
        raise ValueError(f"an id lies outside [0, {count})")
    return (
        map_rows(lambda column: formula(column, listed, count=count), [values], (0,), [length]),
    )


@define("segment_sum", segments, "output", EXACT)
def segment_sum(input: Row, segment_ids: list[int], *, count: int) -> Row:
    members: list[Row] = [[] for _ in range(count)]
    for term, i in zip(input, segment_ids, strict=True):
        if 0 <= i < count:
            members[i].append(term)
    return [total(terms) for terms in members]


@define("segment_sum_backward", segments, "d_input")
def segment_sum_backward(d_output: Row, segment_ids: list[int], *, count: int) -> Row:
    return [d_output[i] if 0 <= i < count else ZERO for i in segment_ids]
