"""The CPU backend: what a plan asks of it."""

from __future__ import annotations

import numpy as np

from ..core.declare import Type
from ..core.problem import Problem
from ..errors import InvalidProblemError
from ..memory.view import View
from . import pool
from .compile import Kernel, compile_kernel
from .launch import Launch
from .loops import segment

# Launches that a runner keeps, of about 1.5 kB each. One that was dropped takes 0.1 ms to make.
MOST_LAUNCHES = 256


class NumbaRunner:
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
        own = None
        if launch.workspace > size:
            own = np.empty(launch.workspace // 8, np.int64)
            workspace = own.ctypes.data
        addresses = {n: v.address for n, v in views.items()}
        launch.run(addresses, workspace, threads, (views, own))

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
    """Runs a segment sum or its backward."""

    def __init__(self, problem: Problem):
        self.problem = problem

    def kernel(self, role: str, ids: str) -> Kernel:
        problem, element = self.problem, self.problem.element
        order = "sorted" if problem.is_sorted else "unsorted"
        by_ids = {
            "check": segment.make_check_kernel,
            "count": segment.make_count_kernel,
            "fill": segment.make_fill_kernel,
        }
        if role in by_ids:
            return _segment_kernel(f"segment-{role}-{ids}", problem, lambda: by_ids[role](ids))
        if role == "place":
            return _segment_kernel("segment-place", problem, segment.make_place_kernel)
        if role == "gather":
            name = f"segment-gather-{element}-{ids}-any"
            return _segment_kernel(name, problem, lambda: segment.make_gather_kernel(element, ids))

        def make():
            return segment.make_sum_kernel(problem.formula, element, ids, problem.is_sorted)

        return _segment_kernel(f"segment-sum-{element}-{ids}-{order}", problem, make)

    def _block(self, views: dict[str, View]) -> np.ndarray:
        problem = self.problem
        backward = problem.op.direction == "backward"
        values = views["d_output" if backward else "input"]
        result = views[problem.op.outputs[0]]
        ids = views["segment_ids"]
        block = np.zeros(segment.WORDS, np.int64)
        block[:6] = (
            values.address,
            ids.address,
            result.address,
            problem.num_inputs,
            problem.embedding_dim,
            problem.num_segments,
        )
        block[6:11] = (*values.strides, ids.strides[0], *result.strides)
        return block

    def check(self, views: dict[str, View], threads: int) -> None:
        """Raise for an id out of range or, in a sorted plan, out of order."""
        problem = self.problem
        if problem.num_inputs == 0:
            return
        wants_order = problem.is_sorted and problem.op.direction == "forward"
        if problem.drops and not wants_order:
            return
        ids = views["segment_ids"]
        block = np.zeros(segment.WORDS, np.int64)
        block[[segment.IDS, segment.ID_STRIDE]] = ids.address, ids.strides[0]
        block[[segment.NUM_INPUTS, segment.NUM_SEGMENTS]] = problem.num_inputs, problem.num_segments
        rows = problem.num_inputs
        answer = np.full(2, rows, np.int64)
        block[segment.FLAGS] = answer.ctypes.data
        kernel = self.kernel("check", ids.dtype)
        owners = (views, block, answer)
        pool.run(kernel.address, block.ctypes.data, rows, rows * ids.itemsize, threads, owners)
        out, unordered = (int(v) for v in answer)
        if out < rows and not problem.drops:
            raise InvalidProblemError(
                f"segment_ids: expected ids in [0, {problem.num_segments}), got "
                f"{_id_at(ids, out)} at row {out} (out_of_range='drop' would skip it)"
            )
        if unordered < rows and wants_order:
            raise InvalidProblemError(
                f"segment_ids: expected ids in ascending order for a sorted plan, got "
                f"{_id_at(ids, unordered)} after {_id_at(ids, unordered - 1)} at row {unordered}"
            )

    def run(self, views: dict[str, View], workspace: int, size: int, threads: int) -> None:
        """Run on checked operands."""
        problem = self.problem
        block = self._block(views)
        ids = views["segment_ids"].dtype
        item = views["segment_ids"].itemsize
        width = problem.embedding_dim * views[problem.op.outputs[0]].itemsize
        traffic = problem.num_inputs * (width + item) + problem.num_segments * width
        own = None
        if problem.op.direction == "backward":
            kernel, units = self.kernel("gather", ids), problem.num_inputs
        else:
            if not problem.is_sorted:
                needed = segment_workspace(problem)
                if needed > size:
                    own = np.empty(needed // 8, np.int64)
                    workspace = own.ctypes.data
                for word, offset in segment.sorting_offsets(problem.num_segments).items():
                    block[word] = workspace + offset
                block[segment.PARTS] = segment.sorting_parts(problem.num_inputs, threads)
                p, owners = block.ctypes.data, (views, block, own)
                for kernel, units in self.sorting(ids, threads):
                    pool.run(kernel.address, p, units, pool.SERIAL_BYTES, threads, owners)
            kernel, units = self.kernel("sum", ids), problem.num_segments
        owners = (views, block, own)
        pool.run(kernel.address, block.ctypes.data, units, traffic, threads, owners)

    def sorting(self, ids: str, threads: int) -> list[tuple[Kernel, int]]:
        """The kernels that put the numbers of rows in order of their ids, and their units."""
        parts = segment.sorting_parts(self.problem.num_inputs, threads)
        steps = (("count", parts), ("place", 1), ("fill", parts))
        return [(self.kernel(role, ids), units) for role, units in steps]


_segment_kernels: dict[str, Kernel] = {}


def _segment_kernel(name: str, problem: Problem, make) -> Kernel:
    kernel = _segment_kernels.get(name)
    if kernel is None:
        kernel = _segment_kernels[name] = compile_kernel(name, problem.formula, make)
    return kernel


def _id_at(ids: View, row: int) -> int:
    """The id of a row, for a message."""
    import ctypes

    kind = ctypes.c_int32 if ids.dtype == "i32" else ctypes.c_int64
    return kind.from_address(ids.address + row * ids.strides[0]).value


def segment_workspace(problem: Problem) -> int:
    """Bytes for the order of the rows: none where ids are sorted, or only gathered by."""
    if problem.is_sorted or problem.op.direction == "backward":
        return 0
    return segment.sorting_bytes(problem.num_inputs, problem.num_segments)
