"""Segment ops on tables larger than memory.

Ids in no order would touch a page of the table for nearly every row. A sum therefore takes a block
of segments at a time and picks their rows in row order, which reads the table from its beginning to
its end. A gather takes a block of rows at a time in the order of their ids. Neither changes a byte:
a sum adds the rows of a segment in row order, whichever segments are near it, and a gather copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import InvalidProblemError

# Gives the part of a file in memory.
Load = Callable[[np.ndarray], np.ndarray]

# Ids looked at together.
CHUNK = 1 << 20
# Beside a row: its place, its id, and its place in the order of the kernel's workspace.
WORDS_PER_ROW = 3
# Beside a segment: where it starts in that order.
WORDS_PER_SEGMENT = 1


@dataclass(frozen=True)
class SegmentCut:
    """Blocks of segments: where each begins, and how many rows it has."""

    bounds: tuple[int, ...]
    rows: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of blocks."""
        return len(self.rows)

    def parts(self) -> Iterator[tuple[slice, int]]:
        """The segments of each block, and the number of their rows."""
        for k, rows in enumerate(self.rows):
            yield slice(self.bounds[k], self.bounds[k + 1]), rows


def check_ids(ids: np.ndarray, segments: int, load: Load) -> None:
    """Raise for an id out of range."""
    for start in range(0, ids.shape[0], CHUNK):
        part = load(ids[start : start + CHUNK])
        outside = (part < 0) | (part >= segments)
        if outside.any():
            row = int(outside.argmax())
            raise InvalidProblemError(
                f"ids: expected ids in [0, {segments}), got {part[row]} at row {start + row} "
                "(--out-of-range drop would skip it)"
            )


def cut_segments(
    ids: np.ndarray, segments: int, row_bytes: int, budget: int, load: Load
) -> SegmentCut:
    """Blocks of at most ``budget`` bytes; a segment that alone has more is a block of its own."""
    counts = np.zeros(segments, np.int64)
    for start in range(0, ids.shape[0], CHUNK):
        part = load(ids[start : start + CHUNK])
        np.add.at(counts, part[(part >= 0) & (part < segments)], 1)
    ends = np.cumsum(counts)
    cost = np.cumsum(counts * (row_bytes + 8 * WORDS_PER_ROW) + row_bytes + 8 * WORDS_PER_SEGMENT)
    bounds = [0]
    while bounds[-1] < segments:
        spent = int(cost[bounds[-1] - 1]) if bounds[-1] else 0
        stop = int(np.searchsorted(cost, spent + budget, side="right"))
        bounds.append(max(stop, bounds[-1] + 1))
    rows = np.diff([0, *(int(ends[b - 1]) for b in bounds[1:])])
    return SegmentCut(tuple(bounds), tuple(map(int, rows)))


def restored_segments(state: Mapping[str, Any], segments: int) -> SegmentCut | None:
    """A cut from a note, or None where that is no cut of so many segments."""
    bounds, rows = state.get("bounds"), state.get("rows")
    if (
        set(state) != {"bounds", "rows"}
        or not isinstance(bounds, list)
        or not isinstance(rows, list)
    ):
        return None
    if not all(type(n) is int and n >= 0 for n in (*bounds, *rows)):
        return None
    ascend = all(a < b for a, b in itertools.pairwise(bounds))
    if len(bounds) != len(rows) + 1 or not ascend or bounds[0] != 0 or bounds[-1] != segments:
        return None
    return SegmentCut(tuple(bounds), tuple(rows))


def pick_rows(
    values: np.ndarray,
    ids: np.ndarray,
    segments: slice,
    rows: int,
    budget: int,
    load: Load,
    load_ids: Load,
) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a block of segments in row order, and their ids counted from its first segment.

    At most ``budget`` bytes of the table are in memory beside them.
    """
    row_bytes = values.shape[1] * values.dtype.itemsize
    step = min(CHUNK, max(1, budget // max(1, row_bytes)))
    picked = np.empty((rows, values.shape[1]), values.dtype)
    near = np.empty(rows, np.int64)
    at = 0
    for start in range(0, ids.shape[0], step):
        part = load_ids(ids[start : start + step])
        places = np.flatnonzero((part >= segments.start) & (part < segments.stop))
        if not places.size:
            continue
        end = at + places.size
        if end > rows:
            break
        table = load(values[start : start + step])
        # With "raise" NumPy would fill a copy first; the places are right by how they were found.
        np.take(table, places, axis=0, out=picked[at:end], mode="clip")
        np.subtract(part[places], segments.start, out=near[at:end])
        at = end
    else:
        if at == rows:
            return picked, near
    raise InvalidProblemError("ids: were changed during the run")
