"""Ops on segments of rows. A formula sees the members of one segment, a column at a time.

Members come in row order. Rows are cut by ids or by offsets: segment s has the rows from
``offsets[s]`` up to ``offsets[s + 1]``. An id outside [0, num_segments) raises; with "drop" its
row, like one that no offset covers, belongs to no segment, and a result with an element for every
row is 0 there. A formula may ask for ``extent``, the number of members. IEEE throughout.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import reduce, softmax
from .special import ZERO, Term, extreme, number, product, total
from .table import EXACT, LOGS, Definition, check_option, define

Row = list[Term]


def segments(
    definition: Definition,
    operands: Mapping[str, Any],
    *,
    num_segments: int | None = None,
    num_inputs: int | None = None,
    out_of_range: str | None = None,
    **options: Any,
) -> tuple[np.ndarray, ...]:
    """Feed the members of every segment, column by column, to the formula."""
    arrays = definition.gather(operands)
    tables = {n: a for n, a in arrays.items() if n in definition.per_row}
    listed = {n: a for n, a in arrays.items() if n not in definition.per_row}
    rest = next(iter(arrays.values())).shape[1:]
    rows = next((len(a) for a in listed.values()), num_inputs)
    if num_segments is None:
        num_segments = next((len(a) for a in tables.values()), None)
    drops = _drops(out_of_range)
    members = _members(operands, num_segments, drops)
    if rows is None:
        rows = len(operands["segment_ids"])
    if any(len(a) != rows for a in listed.values()) or any(
        len(a) != len(members) for a in tables.values()
    ):
        raise ValueError(f"{ {n: a.shape for n, a in arrays.items()} } do not fit the segments")
    lengths = [len(members) if n in definition.per_row else rows for n in definition.outputs]
    results = [np.full((n, *rest), ZERO, dtype=object) for n in lengths]
    flat = {n: a.reshape(len(a), math.prod(rest)) for n, a in arrays.items()}
    columns = [r.reshape(len(r), math.prod(rest)) for r in results]
    for k in range(math.prod(rest)):
        for s, places in enumerate(members):
            given = {n: [flat[n][i, k] for i in places] for n in listed}
            given |= {n: [flat[n][s, k]] for n in tables}
            found = definition.call(given, options, len(places))
            for name, column, items in zip(definition.outputs, columns, found, strict=True):
                at = [s] if name in definition.per_row else places
                for i, item in zip(at, items, strict=True):
                    column[i, k] = item
    return tuple(results)


def _drops(out_of_range: str | None) -> bool:
    check_option("out_of_range", out_of_range or "raise", ("raise", "drop"))
    return out_of_range == "drop"


def _members(operands: Mapping[str, Any], count: int | None, drops: bool) -> list[list[int]]:
    """The rows of every segment."""
    ids, offsets = (operands.get(n) for n in ("segment_ids", "offsets"))
    if ids is None:
        if offsets is None:
            raise TypeError("rows are cut by segment_ids or by offsets")
        ends = [int(i) for i in offsets]
        return [list(range(a, b)) for a, b in itertools.pairwise(ends)]
    ids = np.asarray(ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(f"segment_ids must be 1-d integers, not {ids.ndim}-d {ids.dtype}")
    if count is None:
        raise ValueError("nothing tells num_segments")
    found: list[list[int]] = [[] for _ in range(count)]
    for row, i in enumerate(int(i) for i in ids):
        if 0 <= i < count:
            found[i].append(row)
        elif not drops:
            raise ValueError(f"an id lies outside [0, {count})")
    return found


@define("segment_sum", segments, "output", EXACT, per_row="output")
def segment_sum(input: Row) -> Term:
    return total(input)


@define("segment_sum_backward", segments, "d_input", per_row="d_output")
def segment_sum_backward(d_output: Term, *, extent: int) -> Row:
    return [d_output for _ in range(extent)]


@define("segment_mean", segments, "output", EXACT, per_row="output")
def segment_mean(input: Row) -> Term:
    return total(input) / number(len(input)) if input else ZERO


@define("segment_mean_backward", segments, "d_input", per_row="d_output")
def segment_mean_backward(d_output: Term, *, extent: int) -> Row:
    return [d_output / number(extent) for _ in range(extent)]


@define("segment_max", segments, "output", per_row="output")
def segment_max(input: Row, *, empty: float = -math.inf) -> Term:
    return extreme(input, 1) if input else number(empty)


@define("segment_min", segments, "output", per_row="output")
def segment_min(input: Row, *, empty: float = math.inf) -> Term:
    return extreme(input, -1) if input else number(empty)


@define("segment_max_backward", segments, "d_input", per_row="d_output output")
@define("segment_min_backward", segments, "d_input", per_row="d_output output")
def segment_extreme_backward(
    d_output: Term, input: Row, output: Term, *, ties: str = "split"
) -> Row:
    return reduce.extreme_backward(d_output, input, output, ties=ties)


@define("segment_prod", segments, "output", per_row="output")
def segment_prod(input: Row) -> Term:
    return product(input)


@define("segment_prod_backward", segments, "d_input", per_row="d_output output")
def segment_prod_backward(d_output: Term, input: Row) -> Row:
    return [d_output * product(input[:j] + input[j + 1 :]) for j in range(len(input))]


@define("segment_logsumexp", segments, "output", LOGS, per_row="output")
def segment_logsumexp(input: Row) -> Term:
    return reduce.logsumexp(input)


@define("segment_logsumexp_backward", segments, "d_input", per_row="d_output output")
def segment_logsumexp_backward(d_output: Term, input: Row, output: Term) -> Row:
    return reduce.logsumexp_backward(d_output, input, output)


def _of_input(formula: Callable[[Row], Row]) -> Callable[[Row], Row]:
    def of(input: Row) -> Row:
        return formula(input)

    return of


define("segment_softmax", segments, "y")(_of_input(softmax.softmax))
define("segment_log_softmax", segments, "y", LOGS)(_of_input(softmax.log_softmax))
define("segment_softmax_backward", segments, "d_input", EXACT)(softmax.softmax_backward)
define("segment_log_softmax_backward", segments, "d_input")(softmax.log_softmax_backward)
