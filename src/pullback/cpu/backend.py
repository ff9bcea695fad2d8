"""The CPU backend: what a plan asks of it."""

from __future__ import annotations

from array import array
from typing import Any

from ..core.declare import Type
from ..core.problem import Problem
from ..errors import InvalidProblemError
from ..memory.view import View
from . import pool
from . import segment_words as segment
from .builtin import builtin
from .launch import Launch
from .segment_launch import SegmentLaunch, plain_kernel, workspace_bytes
from .segment_ways import order_of, way_of
from .words import ITEMSIZE

# Launches that a runner keeps, of about 1.5 kB each. One that was dropped takes 0.1 ms to make.
MOST_LAUNCHES = 256


class RowRunner:
    """Runs one problem, keeping the launches for sets of strides that it has seen."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self._launches: dict[tuple, Launch] = {}
        operands = (*problem.reads, *problem.op.writes)
        self._flexible = [o.name for o in operands if o.type in (Type.INDEX, Type.STATE)]

    def run(self, views: dict[str, View], workspace: int, size: int, threads: int) -> None:
        """Run on checked, non-empty operands; too small a workspace is replaced by an own one."""
        strides = {n: v.strides for n, v in views.items()}
        launch = self.launch_for(strides, threads, self._dtypes(views))
        launch.run([v.address for v in views.values()], views, workspace, size)

    def _dtypes(self, views: dict[str, View]) -> tuple[tuple[str, str], ...]:
        """Types of operands that may have one of several."""
        return tuple((n, views[n].dtype) for n in self._flexible if n in views)

    def launch_for(
        self,
        strides: dict[str, tuple[int, ...]],
        threads: int,
        dtypes: tuple[tuple[str, str], ...] = (),
    ) -> Launch:
        """The launch for a set of strides, made when it is first met."""
        key = (threads, dtypes, *strides.items())
        launch = self._launches.get(key)
        if launch is None:
            launch = Launch(self.problem, strides, threads, dict(dtypes))
            if len(self._launches) >= MOST_LAUNCHES:
                self._launches.clear()
            self._launches[key] = launch
        return launch


class SegmentRunner:
    """Runs one problem of a segment op, keeping launches as above."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self._by = problem.cut_by.name
        self._by_offsets = by_offsets = order_of(problem) == "offsets"
        self._may_be_outside = problem.drops and not by_offsets
        self._wants_order = by_offsets or (problem.is_sorted and way_of(problem) == "runs")
        self._limit = problem.num_inputs + 1 if by_offsets else problem.num_segments
        self._launches: dict[tuple, SegmentLaunch] = {}
        operands = (*problem.reads, *problem.op.writes)
        self._typed = (self._by, *(o.name for o in operands if o.type is Type.STATE))

    def check(self, views: dict[str, View], threads: int) -> None:
        """Raise for an id out of range or, where rows must come in order, out of order."""
        ids = views[self._by]
        count = ids.shape[0]
        if count == 0 or (self._may_be_outside and not self._wants_order):
            return
        out, unordered = self._first_wrong(
            ids.address, ids.strides[0], count, ids.dtype, threads, views
        )
        if out < count and not self._may_be_outside:
            raise InvalidProblemError(self._outside(ids, out))
        if unordered < count:
            what = "offsets in ascending order" if self._by_offsets else _IN_ORDER
            raise InvalidProblemError(
                f"{self._by}: expected {what}, got {_id_at(ids, unordered)} after "
                f"{_id_at(ids, unordered - 1)} at row {unordered}"
            )

    @property
    def workspace_size(self) -> int:
        """Bytes that suffice whatever the strides."""
        return workspace_bytes(self.problem)

    def are_wrong(
        self, address: int, stride: int, count: int, kind: str, threads: int, owner: Any
    ) -> bool:
        """Whether :meth:`check` would raise for ids or offsets of that type."""
        if self._may_be_outside and not self._wants_order:
            return False
        if pool.threads_for(count, count * ITEMSIZE[kind], threads):
            out, unordered = self._first_wrong(address, stride, count, kind, threads, owner)
            return unordered < count or (out < count and not self._may_be_outside)
        # One native call, where a block made here takes 5 microseconds.
        kernel, wrong_ids = plain_kernel("check", kind).address, builtin("wrong_ids")
        wrong = wrong_ids(kernel, address, stride, count, self._limit, self._wants_order)
        return wrong > 1 or (wrong == 1 and not self._may_be_outside)

    def _first_wrong(
        self, address: int, stride: int, count: int, kind: str, threads: int, owner: Any
    ) -> tuple[int, int]:
        """The first rows that are out of range, and out of order; ``count`` where none is."""
        # The answer follows the block.
        block = array("q", [0] * segment.OPERANDS + [count, count])
        p = block.buffer_info()[0]
        block[segment.IDS], block[segment.ID_STRIDE] = address, stride
        block[segment.NUM_SEGMENTS], block[segment.ORDERED] = self._limit, self._wants_order
        block[segment.FLAGS] = p + 8 * segment.OPERANDS
        kernel = plain_kernel("check", kind)
        pool.run(kernel.address, p, count, count * ITEMSIZE[kind], threads, (owner, block))
        return block[segment.OPERANDS], block[segment.OPERANDS + 1]

    def _outside(self, ids: View, row: int) -> str:
        limit = self._limit
        if self._by_offsets:
            return (
                f"{self._by}: expected offsets in [0, {limit - 1}], got {_id_at(ids, row)} at row "
                f"{row}"
            )
        return (
            f"{self._by}: expected ids in [0, {limit}), got {_id_at(ids, row)} at row {row} "
            "(out_of_range='drop' would skip it)"
        )

    def run(self, views: dict[str, View], workspace: int, size: int, threads: int) -> None:
        """Run on checked operands; too small a workspace is replaced by an own one."""
        strides = {n: v.strides for n, v in views.items()}
        dtypes = {n: views[n].dtype for n in self._typed if n in views}
        program = self.launch_for(strides, dtypes, threads).program
        program.run([v.address for v in views.values()], views, workspace, size)

    def launch_for(
        self, strides: dict[str, tuple[int, ...]], dtypes: dict[str, str], threads: int
    ) -> SegmentLaunch:
        """The launch for a set of strides, made when it is first met."""
        key = (threads, *dtypes.items(), *strides.items())
        launch = self._launches.get(key)
        if launch is None:
            launch = SegmentLaunch(self.problem, strides, dtypes, threads)
            if len(self._launches) >= MOST_LAUNCHES:
                self._launches.clear()
            self._launches[key] = launch
        return launch


_IN_ORDER = "ids in ascending order for a sorted plan"


def _id_at(ids: View, row: int) -> int:
    """The id of a row, for a message."""
    import ctypes

    kind = ctypes.c_int32 if ids.dtype == "i32" else ctypes.c_int64
    return kind.from_address(ids.address + row * ids.strides[0]).value
