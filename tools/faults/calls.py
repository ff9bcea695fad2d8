"""Faults on the way from a call to a launch."""

from __future__ import annotations

from .record import Fault

FAULTS = (
    Fault(
        "results: memory is given away that is still read",
        "memory/given_back.py",
        "    return np.asarray(lease).view(dtype).reshape(shape)",
        "    return np.frombuffer(lease._block.memory, dtype)[: size // 4].reshape(shape)",
        "test_given_back.py::test_memory_is_used_again_when_the_last_array_on_it_is_gone",
    ),
    Fault(
        "segments: an unsigned id wraps around",
        "api/arrange.py",
        "array = np.minimum(array, np.uint64(_LARGEST))",
        "array = array.view(np.int64)",
        "test_segment.py::test_integers_of_any_width_are_widened[u8]",
    ),
    Fault(
        "plans: a target one too large",
        "api/plan.py",
        "(values >= extent)",
        "(values > extent)",
        "test_loss.py::test_a_target_that_is_no_class_is_refused",
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
        "native: overlap not looked for",
        "cpu/dispatch.py",
        "if j != k and before and",
        "if j < 0 and before and",
        "test_repeated.py::test_an_output_over_an_operand_is_refused_again",
    ),
    Fault(
        "native: misaligned let through",
        "cpu/dispatch.py",
        "return word(array, DATA) & word(entry, LOW_BITS) == 0",
        "return word(array, DATA) & 0 == 0",
        "test_repeated.py::test_a_misaligned_operand_is_refused_again",
    ),
    Fault(
        "native: read-only output written",
        "cpu/dispatch.py",
        "or low_half(word(array, FLAGS)) & flags != flags:",
        "or low_half(word(array, FLAGS)) < 0:",
        "test_repeated.py::test_a_bad_out_is_refused_again",
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
        "memory/results.py",
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
        "names: ddof is overlooked",
        "api/functions.py",
        "    return other",
        "    return value",
        "test_numpy_names.py::test_ddof_is_the_correction[var]",
    ),
)
