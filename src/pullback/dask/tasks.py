"""What tasks of a graph run: the functions of the engine on chunks, of a problem as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from ..core.declare import Role
from ..cut import Cut, Piece, SegmentCut
from ..cut.text import cut_of, problem_of

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


def _cut(problem: str) -> Cut:
    cut = cut_of(problem)
    assert isinstance(cut, Cut)
    return cut


def _segments(problem: str) -> SegmentCut:
    cut = cut_of(problem)
    assert isinstance(cut, SegmentCut)
    return cut


def _aligned(array: Array) -> Array:
    """An array that kernels can read: what came over a wire may begin at any byte."""
    return np.require(array, requirements="A")


def _all_aligned(arrays: Sequence[Array]) -> list[Array]:
    return [_aligned(a) for a in arrays]


def _piece(
    names: Sequence[str],
    chunks: Sequence[Array],
    start: int,
    length: int,
    before: Arrays | None = None,
) -> Piece:
    held = dict(zip(names, _all_aligned(chunks), strict=True))
    return Piece(held, start, before or {}, length)


def edge(problem: str, names: Sequence[str], *chunks: Array) -> Arrays:
    """What the next chunk in forward order must know of this one."""
    return _cut(problem).edge(_piece(names, chunks, 0, 0))


@dataclass(frozen=True)
class Place:
    """Where a chunk lies, and what of it a task is given.

    What a graph says of every task is walked through by dask, so all that is not computed is here.

    Attributes
    ----------
    problem
        The op, as text.
    names
        Its operands, whose chunks come first.
    start, length
        Where the chunk begins along the axis, and its positions.
    has_edge
        Whether what lies in front of the chunk follows.
    """

    problem: str
    names: tuple[str, ...]
    start: int
    length: int
    has_edge: bool

    def piece(self, given: Sequence[Any]) -> tuple[Cut, Piece, list[Array]]:
        """The op, the chunk, and the states that follow."""
        count = len(self.names)
        before = given[count] if self.has_edge else None
        piece = _piece(self.names, given[:count], self.start, self.length, before)
        return _cut(self.problem), piece, _all_aligned(given[count + self.has_edge :])


def summary(place: Place, sweep: int, *given: Any) -> Array:
    """The states of the blocks of a chunk; what earlier sweeps gave for it follows their states."""
    cut, piece, states = place.piece(given)
    return cut.summary(sweep, piece, states[:sweep], states[sweep:])


def gathered(parts: Sequence[Array]) -> Array:
    """The states of the blocks of several chunks, in order."""
    return np.concatenate(parts, -2)


def joined(
    problem: str,
    sweep: int,
    names: Sequence[str],
    rows: Sequence[Array],
    blocks: Array,
    counts: Sequence[int],
) -> list[Array]:
    """The states in front of every chunk in the sweep's order, and that behind them all.

    ``counts`` says how many blocks each chunk has. Of a sweep whose total alone is asked for there
    is nothing else.
    """
    cut, held = _cut(problem), dict(zip(names, _all_aligned(rows), strict=True))
    blocks = _aligned(blocks)
    cut.check_rows(held)
    state = cut.begin(sweep, blocks.shape[:-2], held)
    if cut.sweeps[sweep].whole:
        return [cut.combine(sweep, state, blocks)]
    # All blocks at once: every other task waits for this one.
    found = cut.combined(sweep, state, blocks)
    return [np.ascontiguousarray(found[..., at, :]) for at in accumulate(counts, initial=0)]


def applied(place: Place, only: str, *given: Any) -> Any:
    """The results of a chunk by name, or the only one."""
    cut, piece, states = place.piece(given)
    cut.check_rows(piece.operands)
    found = cut.apply(piece, states)
    return found[only] if only else found


def finished(
    problem: str, names: Sequence[str], rows: Sequence[Array], states: Sequence[Array]
) -> Arrays:
    """The results with one element for each row."""
    held = dict(zip(names, _all_aligned(rows), strict=True))
    return _cut(problem).finish(_all_aligned(states), held)


# Segments: tables of any rank are (rows, columns) here.


def _tables(problem: str, names: Sequence[str], chunks: Sequence[Array]) -> list[Array]:
    op = problem_of(problem).op
    flat = []
    for name, chunk in zip(names, _all_aligned(chunks), strict=True):
        is_table = op.operand(name).role in (Role.ELEMENT, Role.ROW)
        flat.append(chunk.reshape(len(chunk), -1) if is_table else chunk)
    return flat


def begun(problem: str, sweep: int, columns: int) -> Array:
    """The states of segments in front of all rows."""
    return _segments(problem).begin(sweep, columns)


def folded(
    problem: str,
    sweep: int,
    names: Sequence[str],
    chunks: Sequence[Array],
    start: int,
    length: int,
    last: Array | None,
    states: Sequence[Array],
    carry: Array,
    front: Array | None,
) -> Array:
    """The states of segments behind a chunk; ``last`` is the id in front of it."""
    cut = _segments(problem)
    before = {} if last is None else {cut.problem.cut_by.name: last}
    piece = _piece(names, _tables(problem, names, chunks), start, length, before)
    front = None if front is None else _aligned(front)
    return cut.fold(sweep, piece, _all_aligned(states), _aligned(carry), front)


def last_id(ids: Array) -> Array:
    """The id of a chunk's last row."""
    return ids[-1]


def applied_to_rows(
    problem: str,
    names: Sequence[str],
    chunks: Sequence[Array],
    start: int,
    length: int,
    rest: tuple[int, ...],
    states: Sequence[Array],
    front: Array | None,
) -> Arrays:
    """The results of a chunk of rows."""
    piece = _piece(names, _tables(problem, names, chunks), start, length)
    front = None if front is None else _aligned(front)
    found = _segments(problem).apply(piece, _all_aligned(states), front)
    return {n: a.reshape(length, *rest) for n, a in found.items()}


def finished_segments(
    problem: str,
    names: Sequence[str],
    rows: Sequence[Array],
    rest: tuple[int, ...],
    states: Sequence[Array],
) -> Arrays:
    """The results with a row for each segment."""
    held = dict(zip(names, _tables(problem, names, rows), strict=True))
    found = _segments(problem).finish(_all_aligned(states), held)
    return {n: a.reshape(len(a), *rest) for n, a in found.items()}


def called(op: str, names: Sequence[str], chunks: Sequence[Array], parameters: Any) -> Arrays:
    """An elementwise op on chunks of one shape."""
    from ..api.functions import function_named
    from ..core.catalog import OPS

    held = dict(zip(names, _all_aligned(chunks), strict=True))
    result = function_named(op)(**held, **dict(parameters))
    several = result if isinstance(result, tuple) else (result,)
    outputs = OPS[op].outputs
    return dict(zip(outputs, several, strict=False))
