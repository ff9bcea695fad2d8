"""Plant faults in a copy of the package and see the suite go red.

    python tools/mutants.py [word ...]

Each fault is one edit, run against a test that should notice it; words pick the faults whose names
contain one of them. A control run of the same tests on an unchanged copy must pass. Exits with 1
if a fault survives, or no longer applies because the source has changed.

A trial is a fork of this process, which has imported whatever takes long and is not ours. Kernels
are filed under a digest of the sources they are made of, so all trials share the cache of kernels:
the control finds those of the suite, a fault elsewhere does too, and a fault in a formula or a loop
nest has its own.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "pullback"

# Exit codes of pytest: anything but these means that the tests did not run as they should.
PASSED, FAILED = 0, 1
# That of a trial which did not get as far as the tests; beyond those of pytest.
NOT_RUN = 70


@dataclass(frozen=True)
class Fault:
    """One edit, and the test that should fail for it."""

    name: str
    file: str
    before: str
    after: str
    test: str


FAULTS = (
    Fault(
        "wrong sign",
        "formulas/softmax.py",
        "y * (dy - total)",
        "y * (dy + total)",
        "test_extents.py::test_row_equals_the_oracle[softmax_backward-f64]",
    ),
    Fault(
        "dropped tail element",
        "cpu/loops/rows.py",
        "keep(first_lanes(stop - whole), combine(state, lifted), state)",
        "keep(first_lanes(stop - whole - 1), combine(state, lifted), state)",
        "test_extents.py::test_row_equals_the_oracle[sum-f32]",
    ),
    Fault(
        "write past the end",
        "cpu/loops/rows.py",
        "put_outputs(p, addresses, strides, start, count, values)",
        "put_outputs(p, addresses, strides, start, min(count + 1, LANES), values)",
        "test_extents.py::test_row_equals_the_oracle[softmax_backward-f64]",
    ),
    Fault(
        "a NaN that guards would have kept out",
        "cpu/codegen/vectors.py",
        'expected(builder, builder.icmp_unsigned("==", bits, bits.type(0)))',
        'expected(builder, builder.icmp_unsigned(">=", bits, bits.type(0)))',
        "test_recurrence.py::test_guards_are_where_they_are_needed[inf-1]",
    ),
    Fault(
        "recurrence: the second of two chunks goes on from where the first did",
        "cpu/loops/scan_rows.py",
        "value2 = finished(line, second, combine(block_carry, between), full2, states2)",
        "value2 = finished(line, second, combine(block_carry, carried), full2, states2)",
        "test_recurrence.py::test_linear_recurrence[False-False-False]",
    ),
    Fault(
        "recurrence: a zero state lets an infinite factor through",
        "formulas/folds.py",
        "isnan(product) & ((a == 0) | (b == 0))",
        "isnan(product) & (a == 0)",
        "test_recurrence.py::test_what_a_factor_stops",
    ),
    Fault(
        "recurrence: a border in front of all lets the initial state in",
        "formulas/recurrence.py",
        "return where(begins, 0.0, a), b + 0.0",
        "return where(begins, a, a), b + 0.0",
        "test_recurrence.py::test_a_border_in_front_of_all",
    ),
    Fault(
        "recurrence: an exclusive scan moves on the wrong way",
        "cpu/codegen/fold.py",
        "order = [k if 0 <= k < LANES else LANES + k % LANES for k in range(back, LANES + back)]",
        "order = [k % LANES for k in range(back, LANES + back)]",
        "test_returns.py::test_discounted_sum",
    ),
    Fault(
        "recurrence: a truncated episode runs into the next",
        "formulas/recurrence.py",
        "return where(truncated, 0.0, factor), delta + 0.0",
        "return where(truncated, factor, factor), delta + 0.0",
        "test_returns.py::test_gae[False-True]",
    ),
    Fault(
        "runs: of two weighed sums both are scaled down",
        "formulas/scan.py",
        "total = where(nearer, total1 * down + total2, total1 + total2 * down)",
        "total = where(nearer, total1 * down + total2 * down, total1 + total2 * down)",
        "test_runs.py::test_runs[logcumsumexp-True-False]",
    ),
    Fault(
        "runs: a border is overlooked where no extreme begins",
        "formulas/scan.py",
        "step, gradient, new = (_first_of_run(f) for f in (step, gradient, new))",
        "step, gradient = (_first_of_run(f) for f in (step, gradient))",
        "test_runs.py::test_runs[cummax-False-False]",
    ),
    Fault(
        "torch: a discount that learns nothing",
        "torch/operations.py",
        "any(_varies(tensors[k]) for k in self.untold)",
        "any(_varies(tensors[k]) for k in ())",
        "test_torch_new_shapes.py::test_derivatives[discounted sum by a discount that learns]",
    ),
    Fault(
        "ties last instead of first",
        "formulas/scan.py",
        '_extreme_backward(PEAK, {"first": greater,',
        '_extreme_backward(PEAK, {"first": greater_or_equal,',
        "test_values.py::test_equals_the_oracle[cummax_backward-bf16]",
    ),
    Fault(
        "runs: a border lets everything through",
        "formulas/runs.py",
        'f"where(cut2 > 0, {n}, {a})"',
        'f"where(cut2 > 2, {n}, {a})"',
        "test_values.py::test_equals_the_oracle[cummax-f32]",
    ),
    Fault(
        "masks: what is left out counts",
        "formulas/masked.py",
        "lift=_masked_values(monoid.lift, monoid.identity)",
        "lift=renamed(monoid.lift, extent=COUNT)",
        "test_values.py::test_equals_the_oracle[sum-f32]",
    ),
    Fault(
        "recurrence: a reset is overlooked",
        "formulas/recurrence.py",
        "    return where(begins, 0.0, a), b",
        "    return a, b",
        "test_values.py::test_equals_the_oracle[linear_recurrence-f32]",
    ),
    Fault(
        "cross entropy: smoothing adds to the target",
        "formulas/loss.py",
        "loss = (1.0 - label_smoothing) * (lse - picked) + smooth",
        "loss = (lse - picked) + smooth",
        "test_values.py::test_equals_the_oracle[cross_entropy-f32]",
    ),
    Fault(
        "cross entropy: a target that is no class has a loss",
        "formulas/loss.py",
        "where(target < extent, value, NAN)",
        "where(target < extent + 1, value, NAN)",
        "test_jax_names.py::test_a_traced_target_that_is_no_class_gives_nan",
    ),
    Fault(
        "segments: a tile counts a row twice",
        "cpu/loops/segment_rows.py",
        "set_word(count, s, word(count, s) + 1)",
        "set_word(count, s, word(count, s) + 2)",
        "test_segment.py::test_tiles_give_the_bytes_of_sorted_rows[segment_mean]",
    ),
    Fault(
        "segments: a product leaves every fourth factor out",
        "cpu/loops/segment_tile.py",
        "for j in range(k, k + briefly):",
        "for j in range(k + 1, k + briefly):",
        "test_segment.py::test_rows_in_order_give_the_bytes_of_sorted_rows[segment_prod-64]",
    ),
    Fault(
        "segments: the first columns of a block are those of all",
        "cpu/loops/segment_tile.py",
        "one(p, const, at, steps, column + 56, index, h7)",
        "one(p, const, at, steps, column + 56, index, h0)",
        "test_segment.py::test_gradients_of_packed_rows_are_those_of_others[segment_max_backward]",
    ),
    Fault(
        "results: memory is given away that is still read",
        "memory/given_back.py",
        "    return np.asarray(lease).view(dtype).reshape(shape)",
        "    return np.frombuffer(lease._block.memory, dtype)[: size // 4].reshape(shape)",
        "test_given_back.py::test_memory_is_used_again_when_the_last_array_on_it_is_gone",
    ),
    Fault(
        "few columns: a lane that is done goes on",
        "cpu/codegen/side_by_side.py",
        'inside = builder.icmp_signed("<", splat(builder, args[1]), counts)',
        'inside = builder.icmp_signed("<=", splat(builder, args[1]), counts)',
        "test_segment_narrow.py::test_few_columns_have_the_bytes_of_many[segment_prod-f32]",
    ),
    Fault(
        "few columns: a row of no segment keeps what was there",
        "cpu/loops/segment_narrow.py",
        "if there == 0:",
        "if there == 2:",
        "test_segment_narrow.py::test_rows_of_no_segment",
    ),
    Fault(
        "segments: an unsigned id wraps around",
        "api/arrange.py",
        "array = np.minimum(array, np.uint64(_LARGEST))",
        "array = array.view(np.int64)",
        "test_segment.py::test_integers_of_any_width_are_widened[u8]",
    ),
    Fault(
        "pyg: the extreme of nothing is infinite",
        "torch/pyg.py",
        '{"empty": 0.0} if',
        "{} if",
        "test_pyg.py::test_segment[max]",
    ),
    Fault(
        "projections: an element at the threshold is in the support",
        "formulas/projection.py",
        "    inside = (difference - tau) + (error - low) > 0",
        "    inside = difference - tau > 0",
        "test_projection.py::test_digits_far_below_the_others_decide",
    ),
    Fault(
        "repeats: a tile of columns rests with its first vector",
        "cpu/loops/columns.py",
        "            at_rest = at_rest and rests(known, after)",
        "            at_rest = rests(known, after)",
        "test_projection.py::test_columns_that_come_to_rest_at_different_times",
    ),
    Fault(
        "repeats: a row that is cut is closed once",
        "cpu/loops/stages.py",
        "        set_word(p, MOVING, moving)",
        "        set_word(p, MOVING, 0)",
        "test_projection.py::test_a_long_row_is_the_same_on_any_number_of_threads",
    ),
    Fault(
        "plans: a target one too large",
        "api/plan.py",
        "(values >= extent)",
        "(values > extent)",
        "test_loss.py::test_a_target_that_is_no_class_is_refused",
    ),
    Fault(
        "swapped reverse",
        "cpu/launch.py",
        "problem.reverse != alone_against",
        "problem.reverse == alone_against",
        "test_extents.py::test_row_equals_the_oracle[cumsum-f64]",
    ),
    Fault(
        "missing zero case",
        "formulas/reduce.py",
        "return where(y == 0, 0.0, dy / y)",
        "return dy / y",
        "test_values.py::test_equals_the_oracle[norm2_backward-bf16]",
    ),
    Fault(
        "dropped tail element of four rows",
        "cpu/loops/four_rows.py",
        "lanes = first_lanes(left)",
        "lanes = first_lanes(left - 1)",
        "test_extents.py::test_columns_equal_rows[sum-f64]",
    ),
    Fault(
        "missing -inf case",
        "formulas/scan.py",
        "where(x == -INF, 0.0, exp(x - y) * (dy + passed))",
        "exp(x - y) * (dy + passed)",
        "test_values.py::test_equals_the_oracle[logcumsumexp_backward-bf16]",
    ),
    Fault(
        "sums kept in 24 bits",
        "formulas/folds.py",
        "def add(a, b):\n    return a + b",
        "def add(a, b):\n    up = (a + b) * 536870913.0\n    return up - (up - (a + b))",
        "test_extents.py::test_row_equals_the_oracle[sum-f32]",
    ),
    Fault(
        "bfloat16 cut instead of rounded",
        "cpu/codegen/storage.py",
        "rounded = builder.add(u, builder.add(odd, _ints(v, 0x7FFF)))",
        "rounded = u",
        "test_values.py::test_equals_the_oracle[lerp-bf16]",
    ),
    Fault(
        "columns in another order than rows",
        "cpu/loops/columns.py",
        "b = read(at + (lane + half) * PITCH, apart)",
        "b = read(at + (2 * half - 1 - lane) * PITCH, apart)",
        "test_extents.py::test_columns_equal_rows[sum-f64]",
    ),
    Fault(
        "small products not watched",
        "cpu/codegen/watch.py",
        "_Range(2.0**-160, 2.0**160)",
        "_Range(0.0, 2.0**160)",
        "test_bytes.py::test_plain_products_have_the_bits_of_scaled_ones[prod_backward-f64]",
    ),
    Fault(
        "extremes overlooked",
        "cpu/loops/scan_rows.py",
        "if selects and keeps(before, lifted):",
        "if selects and not keeps(before, lifted):",
        "test_extents.py::test_row_equals_the_oracle[cummax_backward-f64]",
    ),
    Fault(
        "id out of range let through",
        "cpu/backend.py",
        "may_be_outside = problem.drops and not by_offsets",
        "may_be_outside = not by_offsets",
        "test_errors.py::test_id_out_of_range",
    ),
    Fault(
        "overlapping output let through",
        "api/plan.py",
        "if self_overlaps(out):",
        "if False:",
        "test_errors.py::test_self_overlapping_output[cumsum]",
    ),
    Fault(
        "packed: overlap not looked for",
        "api/packed.py",
        "if at_{other} < at_{out} + {sizes[out]} and",
        "if False and",
        "test_repeated.py::test_an_output_over_an_operand_is_refused_again",
    ),
    Fault(
        "packed: misaligned let through",
        "api/packed.py",
        "& {item - 1}: return False",
        "& 0: return False",
        "test_repeated.py::test_a_misaligned_operand_is_refused_again",
    ),
    Fault(
        "packed: read-only output written",
        "api/packed.py",
        "if not {out}.flags.writeable: return False",
        "if False: return False",
        "test_repeated.py::test_a_bad_out_is_refused_again",
    ),
    Fault(
        "packed: outputs over each other",
        "api/packed.py",
        "for other in (*inputs, *outputs[k + 1 :]):",
        "for other in inputs:",
        "test_repeated.py::test_an_output_over_an_operand_is_refused_again",
    ),
    Fault(
        "functions: shape of out not looked at",
        "api/calling.py",
        "elif type(target) is not np.ndarray or target.shape != shape:",
        "elif type(target) is not np.ndarray:",
        "test_repeated.py::test_a_bad_operand_is_refused_again",
    ),
    Fault(
        "functions: keepdims overlooked",
        "api/calling.py",
        "self.row = self.kept if keepdims else self.squeezed",
        "self.row = self.kept",
        "test_api.py::test_squeezed_or_kept[sum]",
    ),
    Fault(
        "segments: columns overlap each other",
        "api/calling.py",
        "if len(cuts) > 1:",
        "if len(cuts) > 99:",
        "test_segment.py::test_columns_that_do_not_merge_overlap_neither_each_other_nor_the_operand",
    ),
    Fault(
        "interop: pending negation forgotten",
        "memory/view.py",
        "address % itemsize or obj.is_neg():",
        "address % itemsize:",
        "test_interop.py::TestTorch::test_pending_negation_refused",
    ),
    Fault(
        "interop: write hidden from autograd",
        "memory/view.py",
        "autograd.graph.increment_version(obj)",
        "autograd.graph",
        "test_interop.py::TestTorch::test_mark_written_reaches_autograd",
    ),
    Fault(
        "interop: strides of a matrix swapped",
        "memory/view.py",
        "(steps[0] * itemsize, steps[1] * itemsize)",
        "(steps[1] * itemsize, steps[0] * itemsize)",
        "test_interop.py::TestTorch::test_layouts",
    ),
    Fault(
        "torch: out of another type is written as it is",
        "torch/calls.py",
        "out.shape == like.shape and out.dtype == like.dtype",
        "out.shape == like.shape",
        "test_torch_signatures.py::test_out[max]",
    ),
    Fault(
        "torch: keepdims is overlooked",
        "torch/signatures.py",
        'NUMPYS = {"dim": "axis", "keepdim": "keepdims"}',
        'NUMPYS = {"dim": "axis"}',
        "test_torch_signatures.py::test_numpys_names_of_arguments[sum]",
    ),
    Fault(
        "torch: integers that were asked for stay wide",
        "torch/functions.py",
        "return run_given(of, {given}).to(dtype)",
        "return run_given(of, {given})",
        "test_torch_signatures.py::test_integers_are_torchs",
    ),
    Fault(
        "jax: the type that is asked for is not cast to",
        "jax/functions.py",
        "return x.astype(dtype) if is_real",
        "return x if is_real",
        "test_jax_signatures.py::test_dtype[sum]",
    ),
    Fault(
        "jax: an export holds a kernel",
        "jax/lowering.py",
        'return bool(getattr(how, "for_export", False))',
        "return False",
        "test_jax_signatures.py::test_export[cpu-cuda-tpu]",
    ),
    Fault(
        "names: ddof is overlooked",
        "api/functions.py",
        "    return other",
        "    return value",
        "test_numpy_names.py::test_ddof_is_the_correction[var]",
    ),
    Fault(
        "files: the speed counts blocks of an earlier run",
        "tools/files/running.py",
        "return min(own, self.total)",
        "return min(moved, self.total)",
        "test_cli_run_resume.py::TestResume::test_continues_where_it_stopped",
    ),
    Fault(
        "torch: launch of another layout",
        "torch/launches.py",
        "for v in (t.dtype, t.shape, t.stride())",
        "for v in (t.dtype, t.shape, t.is_contiguous())",
        "test_torch_values.py::test_memory_of_any_kind[cumprod]",
    ),
    Fault(
        "torch: shape of reduction forgotten",
        "torch/launches.py",
        "if form.like is None or form.writes[0].role is Role.ROW:",
        "if False:",
        "test_torch_values.py::test_memory_of_any_kind[var]",
    ),
    Fault(
        "torch: saved tensors changed over",
        "torch/autograd.py",
        "ctx.save_for_backward(x, y)",
        "ctx.save_for_backward(y, x)",
        "test_torch_values.py::test_bytes_are_those_of_numpy[f32-logsumexp]",
    ),
    Fault(
        "jax: broadcast row walked",
        "jax/launches.py",
        "0 if size == 1 != full else step",
        "step",
        "test_jax_derivatives.py::test_vmap_of_some_operands[softmax]",
    ),
    Fault(
        "jax: second phase never run",
        "cpu/dispatch.py",
        "return condition == 0 or word(block, condition) != 0",
        "return condition == 0",
        "test_jax_ffi.py::test_products_beyond_the_range_take_the_second_phase",
    ),
    Fault(
        "triton: reading ahead where it changes the order",
        "gpu/launch.py",
        "if aside or self.shape.odd:",
        "if aside:",
        "test_triton_compile.py::test_addresses_do_not_change_the_order_of_a_sum"
        "[cumsum-f32-shape4-0-sm_90]",
    ),
    Fault(
        "torch: an op that waits is let into CUDA graphs",
        "torch/library.py",
        "*((_UNSAFE,) if waits and _UNSAFE else ())",
        "*((_UNSAFE,) if not waits and _UNSAFE else ())",
        "test_triton_cudagraph.py::test_ops_are_tagged_where_a_call_on_a_gpu_waits[segment_sum]",
    ),
    Fault(
        "check on a GPU: a lost device is blamed on the next",
        "tools/device/worker.py",
        "if not count or child.wait() != LOST:",
        "if not count or child.wait() == LOST:",
        "test_triton_benchmark.py::test_a_failure_does_not_lose_the_rest",
    ),
    Fault(
        "triton: last chunk left out",
        "gpu/tiles.py",
        "max(1, _ceil(length, chunk))",
        "max(1, length // chunk)",
        "test_triton_tiles.py::test_tiles_are_sound",
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
        "blocks[..., at : at + count, :]",
        "blocks[..., :count, :]",
        "test_dask.py::test_every_op_has_the_bytes_of_the_uncut_one[cumsum]",
    ),
    Fault(
        "cut: chunks in forward order",
        "dask/graph.py",
        "order = list(range(count)) if sweep.forward else list(reversed(range(count)))",
        "order = list(range(count))",
        "test_dask.py::test_every_op_has_the_bytes_of_the_uncut_one[cumsum_backward]",
    ),
    Fault(
        "shards: chunks rounded down",
        "torch/exchange.py",
        "chunk = -(-n // sizes[0])",
        "chunk = n // sizes[0]",
        "test_shards.py::test_shards_begin_where_torch_puts_them[10-sizes0]",
    ),
    Fault(
        "shards: parts that met on their way",
        "torch/exchange.py",
        "leaving = sorted((to[k], k) for k in held if steps[k] != mine)",
        "leaving = [(to[k], k) for k in held if steps[k] != mine]",
        "test_shards.py::test_axes_on_a_mesh_of_two_dimensions",
    ),
    Fault(
        "shards: border of a later shard",
        "torch/shards.py",
        "range(self.mine + 1, count) if self.problem.reverse else range(self.mine - 1, -1, -1)",
        "range(count)",
        "test_shards.py::test_a_scan_on_four_processes",
    ),
    Fault(
        "shards: halo from the wrong side",
        "jax/pieces.py",
        "pairs = [(k + by, k) for k in",
        "pairs = [(k, k + by) for k in",
        "test_shards.py::test_a_scan_on_two_devices",
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


def applies(fault: Fault) -> bool:
    return (PACKAGE / fault.file).read_text(encoding="utf-8").count(fault.before) == 1


def copy_package(folder: Path) -> Path:
    """The package under ``folder/src``; returns the package's directory."""
    target = folder / "src" / "pullback"
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def import_others() -> None:
    """Import what trials need beside the package."""
    import ml_dtypes  # noqa: F401
    import mpmath  # noqa: F401
    import pytest  # noqa: F401

    assert not [name for name in sys.modules if name.split(".")[0] == "pullback"]


def run_tests(folder: Path, tests: list[str]) -> int:
    """Exit code of pytest with the package in ``folder``; for a process that does nothing else."""
    import pytest

    sys.dont_write_bytecode = True
    os.environ["PYTHONPATH"] = str(folder / "src")
    sys.path.insert(0, str(folder / "src"))
    os.chdir(ROOT)
    import pullback

    assert pullback.__file__.startswith(str(folder)), f"the tests would import {pullback.__file__}"
    wanted = [f"tests/{test}" for test in tests]
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *wanted]))


@dataclass
class Trial:
    """A run with a fault, or without any."""

    fault: Fault | None
    tests: list[str]
    code: int = -1
    output: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return self.fault.name if self.fault else "none (control)"

    @property
    def result(self) -> str:
        words = {PASSED: "survived", FAILED: "killed"} if self.fault else {PASSED: "passed"}
        return words.get(self.code, f"exit {self.code}")

    @property
    def is_as_expected(self) -> bool:
        return self.code == (FAILED if self.fault else PASSED)

    def start(self, folder: Path) -> int:
        """Fork a process that runs the tests, and return its id."""
        package = copy_package(folder)
        if self.fault is not None:
            file = package / self.fault.file
            text = file.read_text(encoding="utf-8")
            file.write_text(text.replace(self.fault.before, self.fault.after), encoding="utf-8")
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            shown = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
            os.dup2(shown, 1)
            os.dup2(shown, 2)
            try:
                code = run_tests(folder, self.tests)
            except BaseException:
                traceback.print_exc()
                code = NOT_RUN
            sys.stdout.flush()
            os._exit(code)
        return pid


def run_all(trials: list[Trial], workers: int) -> Iterator[Trial]:
    """Run trials side by side; gives each as it ends."""
    waiting = list(trials)
    running: dict[int, tuple[Trial, Path, float]] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        while waiting or running:
            while waiting and len(running) < workers:
                trial = waiting.pop(0)
                folder = Path(name) / str(len(trials) - len(waiting))
                running[trial.start(folder)] = trial, folder, time.monotonic()
            pid, status = os.wait()
            trial, folder, started = running.pop(pid)
            trial.code = os.waitstatus_to_exitcode(status)
            trial.output = (folder / "output").read_text(encoding="utf-8")
            trial.seconds = time.monotonic() - started
            shutil.rmtree(folder)
            yield trial


def main(words: list[str]) -> int:
    chosen = [f for f in FAULTS if not words or any(w in f.name for w in words)]
    stale = [f for f in chosen if not applies(f)]
    for fault in stale:
        print(f"no longer applies: {fault.name}: {fault.file} has not exactly one {fault.before!r}")
    chosen = [f for f in chosen if f not in stale]
    trials = [Trial(None, sorted({f.test for f in chosen}))]
    trials += [Trial(f, [f.test]) for f in chosen]
    import_others()
    print(f"{'fault':36} {'result':10} {'s':>5}  test")
    for trial in run_all(trials, os.cpu_count() or 1):
        shown = trial.tests[0] if trial.fault else f"all {len(trial.tests)}"
        print(f"{trial.name:36} {trial.result:10} {trial.seconds:5.0f}  {shown}")
        if not trial.is_as_expected and trial.code != PASSED:
            print(trial.output[-2000:])
    killed = sum(t.code == FAILED for t in trials[1:])
    print(f"{killed} of {len(chosen)} faults killed")
    return 1 if stale or not all(t.is_as_expected for t in trials) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
