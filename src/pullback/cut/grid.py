"""The grid that pieces lie on, and what moves between neighbours to put a cut there.

The order in which a row is folded is fixed by its blocks, so a piece must begin and end where
blocks do. A cut elsewhere is moved to the nearest such place: less than a block of every row moves
from one neighbour to the other, and the results of it move back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..errors import InvalidProblemError
from .engine import Cut


class Move(NamedTuple):
    """Positions ``[start, stop)`` that go from one piece to another."""

    source: int
    target: int
    start: int
    stop: int


def check_bounds(bounds: Sequence[int], extent: int) -> None:
    """Raise unless bounds ascend from 0 to the extent."""
    pairs = itertools.pairwise(bounds)
    if not bounds or bounds[0] != 0 or bounds[-1] != extent or any(a > b for a, b in pairs):
        raise InvalidProblemError(f"bounds: expected them to ascend from 0 to {extent}")


def settled(cut: Cut, bounds: Sequence[int]) -> tuple[int, ...]:
    """Bounds of as many pieces on the grid, each as near as can be; pieces may be empty.

    Parameters
    ----------
    cut
        The op.
    bounds
        Where pieces begin along the axis, and where the last one ends.

    Examples
    --------
    >>> from pullback.core.catalog import OPS
    >>> from pullback.core.problem import describe
    >>> settled(Cut(describe(OPS["cumsum"], "f32", (2000,), {})), (0, 700, 900, 2000))
    (0, 512, 1024, 2000)
    """
    extent, block = cut.extent, cut.block
    check_bounds(bounds, extent)
    if not cut.needs_grid:
        return tuple(bounds)
    found = []
    for at in bounds:
        place = extent - at if cut.from_end else at
        near = min((place + block // 2) // block * block, extent)
        found.append(extent - near if cut.from_end else near)
    return (0, *found[1:-1], extent)


def moves(bounds: Sequence[int], grid: Sequence[int]) -> list[Move]:
    """What goes where, between pieces with bounds and those on the grid.

    Examples
    --------
    >>> moves((0, 700, 2000), (0, 512, 2000))
    [Move(source=0, target=1, start=512, stop=700)]
    """
    found = []
    source = target = start = 0
    while start < bounds[-1]:
        source += sum(1 for _ in _passed(bounds, source, start))
        target += sum(1 for _ in _passed(grid, target, start))
        stop = min(bounds[source + 1], grid[target + 1])
        if source != target:
            found.append(Move(source, target, start, stop))
        start = stop
    return found


def _passed(bounds: Sequence[int], piece: int, position: int) -> Iterator[int]:
    """The pieces from one on that end at or before a position."""
    while bounds[piece + 1] <= position:
        yield piece
        piece += 1
