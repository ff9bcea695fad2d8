"""The CPU backend: what a plan asks of it."""

from __future__ import annotations

import numpy as np

from ...errors import InvalidProblemError
from ...interop import View
from ...problem import Problem, SegmentProblem
from . import pool, segment
from .compile import compile_kernel
from .launch import Launch


class NumbaRunner:
    """Runs one problem, keeping a launch for every set of strides it has seen."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self._launches: dict[tuple, Launch] = {}

    def run(self, views: dict[str, View], workspace: int, size: int, threads: int) -> None:
        """Run on checked, non-empty operands; too small a workspace is replaced by an own one."""
        launch = self.launch_for({n: v.strides for n, v in views.items()}, threads)
        own = None
        if launch.workspace > size:
            own = np.empty(launch.workspace // 8, np.int64)
            workspace = own.ctypes.data
        launch.run({n: v.address for n, v in views.items()}, workspace, threads)

    def launch_for(self, strides: dict[str, tuple[int, ...]], threads: int) -> Launch:
        """The launch for a set of strides, made when it is first met."""
        key = (threads, *strides.items())
        launch = self._launches.get(key)
        if launch is None:
            launch = self._launches[key] = Launch(self.problem, strides, threads)
        return launch


class SegmentRunner:
    """Runs a segment sum or its backward."""

    def __init__(self, problem: SegmentProblem):
        self.problem = problem

    def _kernel(self, role: str, ids: str):
        problem, element = self.problem, self.problem.element
        order = "sorted" if problem.is_sorted else "unsorted"
        makers = {
            "check": lambda: segment.make_check_kernel(ids),
            "sort": lambda: segment.make_sort_kernel(ids),
            "gather": lambda: segment.make_gather_kernel(element, ids),
            "sum": lambda: segment.make_sum_kernel(
                problem.formula, element, ids, problem.is_sorted
            ),
        }
        name = {"check": f"segment-check-{ids}", "sort": f"segment-sort-{ids}"}.get(
            role, f"segment-{role}-{element}-{ids}-{order if role == 'sum' else 'any'}"
        )
        return _segment_kernel(name, problem, makers[role])

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

    def check(self, views: dict[str, View]) -> None:
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
        answer = np.zeros(3, np.int64)
        block[segment.FLAGS] = answer.ctypes.data
        kernel = self._kernel("check", ids.dtype)
        pool.run_serial(kernel.address, block.ctypes.data, problem.num_inputs)
        flags, out, unordered = (int(v) for v in answer)
        if flags & segment.OUT_OF_RANGE and not problem.drops:
            raise InvalidProblemError(
                f"segment_ids: expected ids in [0, {problem.num_segments}), got "
                f"{_id_at(ids, out)} at row {out} (out_of_range='drop' would skip it)"
            )
        if flags & segment.NOT_SORTED and wants_order:
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
        if problem.op.direction == "backward":
            kernel, units = self._kernel("gather", ids), problem.num_inputs
        else:
            own = None
            if not problem.is_sorted:
                needed = segment_workspace(problem)
                if needed > size:
                    own = np.empty(needed // 8, np.int64)
                    workspace = own.ctypes.data
                block[segment.STARTS] = workspace
                block[segment.ORDER] = workspace + 8 * (problem.num_segments + 1)
                pool.run_serial(self._kernel("sort", ids).address, block.ctypes.data, 1)
            kernel, units = self._kernel("sum", ids), problem.num_segments
        pool.run(kernel.address, block.ctypes.data, units, traffic, threads)


_segment_kernels: dict[str, object] = {}


def _segment_kernel(name: str, problem: SegmentProblem, make):
    kernel = _segment_kernels.get(name)
    if kernel is None:
        kernel = _segment_kernels[name] = compile_kernel(name, problem.formula, make)
    return kernel


def _id_at(ids: View, row: int) -> int:
    """The id of a row, for a message."""
    import ctypes

    kind = ctypes.c_int32 if ids.dtype == "i32" else ctypes.c_int64
    return kind.from_address(ids.address + row * ids.strides[0]).value


def segment_workspace(problem: SegmentProblem) -> int:
    """Bytes for the order of the rows: none where ids are sorted, or only gathered by."""
    if problem.is_sorted or problem.op.direction == "backward":
        return 0
    return 8 * (problem.num_segments + 1 + problem.num_inputs)
