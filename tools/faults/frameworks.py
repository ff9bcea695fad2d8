"""Faults in what is there for PyTorch, JAX and Triton."""

from __future__ import annotations

from .record import Fault

FAULTS = (
    Fault(
        "torch: a discount that learns nothing",
        "torch/operations.py",
        "any(_varies(tensors[k]) for k in self.untold)",
        "any(_varies(tensors[k]) for k in ())",
        "test_torch_new_shapes.py::test_derivatives[discounted sum by a discount that learns]",
    ),
    Fault(
        "pyg: the extreme of nothing is infinite",
        "torch/pyg.py",
        '{"empty": 0.0} if',
        "{} if",
        "test_pyg.py::test_segment[max]",
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
        "triton: reading ahead where it changes the order",
        "gpu/launch.py",
        "if self.shape.odd:",
        "if not self.shape.inputs:",
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
        "triton: a row held in part begins its tail too early",
        "gpu/rows.py",
        "cut = (length - TAIL + B - 1) // B * B",
        "cut = (length - TAIL) // B * B",
        "test_triton_lowering.py::test_compiled_scans_and_folds"
        "[softmax_backward-f32-shape18--1-tile18]",
    ),
    Fault(
        "triton: a lane keeps its own state where it wants the one before",
        "gpu/primitives.py",
        "tl.where(alone2 != 0, own1, before2)",
        "tl.where(alone2 != 0, own2, before2)",
        "test_triton_lowering.py::test_compiled_scans_and_folds[cummax_backward-f32-shape8--1-None]",
    ),
    Fault(
        "triton: last chunk left out",
        "gpu/tiles.py",
        "max(1, _ceil(length, chunk))",
        "max(1, length // chunk)",
        "test_triton_tiles.py::test_tiles_are_sound",
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
)
