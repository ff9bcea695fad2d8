"""Faults where an axis is cut: pieces, chunks, files."""

from __future__ import annotations

from .record import Fault

FAULTS = (
    Fault(
        "files: the speed counts blocks of an earlier run",
        "tools/files/running.py",
        "return min(own, self.total)",
        "return min(moved, self.total)",
        "test_cli_run_resume.py::TestResume::test_continues_where_it_stopped",
    ),
    Fault(
        "check on a GPU: a lost device is blamed on the next",
        "tools/device/worker.py",
        "if not count or child.wait() != LOST:",
        "if not count or child.wait() == LOST:",
        "test_triton_benchmark.py::test_a_failure_does_not_lose_the_rest",
    ),
    Fault(
        "cut: grid from the wrong end",
        "cut/engine.py",
        "problem.reverse != (self.formula.against",
        "problem.reverse == (self.formula.against",
        "test_cut.py::test_the_grid_is_near",
    ),
    Fault(
        "cut: element of the wrong side",
        "cut/engine.py",
        "(start + length, count - 1) if self.problem.reverse else (start - 1, 0)",
        "(start + length - 1, count - 1) if self.problem.reverse else (start, 0)",
        "test_cut.py::test_a_cut_op_has_the_bytes_of_the_uncut_one[linear_recurrence_backward]",
    ),
    Fault(
        "cut: states of the wrong chunk",
        "dask/tasks.py",
        "np.ascontiguousarray(found[..., at, :])",
        "np.ascontiguousarray(found[..., 0, :])",
        "test_dask.py::test_every_op_has_the_bytes_of_the_uncut_one[cumsum]",
    ),
    Fault(
        "cut: chunks in forward order",
        "dask/graph.py",
        "order = list(range(count)) if sweep.forward else list(reversed(range(count)))",
        "order = list(range(count))",
        "test_dask.py::test_every_op_has_the_bytes_of_the_uncut_one[logcumsumexp_backward]",
    ),
    Fault(
        "files: states in front of a piece",
        "tools/files/tables.py",
        "front = cut.fold(0, piece, [], front, front)",
        "front = front + 0",
        "test_cli_run_tables.py::test_columns_by_blocks[segment_max_backward-how2]",
    ),
    Fault(
        "files: place across dimensions",
        "tools/files/zarrs.py",
        "at += start[first] * math.prod(shape[first + 1 : last + 1])",
        "at += start[first]",
        "test_cli_run_zarr.py::test_places_of_parts",
    ),
    Fault(
        "files: columns of others written",
        "tools/files/transfer.py",
        "0 if shared else SMALL_GAP",
        "SMALL_GAP",
        "test_files_transfer.py::test_what_others_write_between_is_left_alone",
    ),
    Fault(
        "files: last block left out",
        "tools/files/blocks.py",
        "for k in range(0, n, b)]",
        "for k in range(0, n - b, b)]",
        "test_cli_run.py::test_blocks_cover_the_shape_once",
    ),
    Fault(
        "files: header overwritten",
        "tools/files/files.py",
        "np.ndarray(shape, kind, held, offset, order=order)",
        "np.ndarray(shape, kind, held, 0, order=order)",
        "test_cli_run.py::test_npy_in_blocks_along_independent_axes[-1]",
    ),
    Fault(
        "files: first segment of a block",
        "tools/files/segments.py",
        "(part >= segments.start) &",
        "(part > segments.start) &",
        "test_cli_run.py::TestSegmentBlocks::test_sum[False-float32]",
    ),
)
