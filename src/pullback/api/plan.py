"""Plans: a problem validated once and run many times on memory that the caller owns."""

from __future__ import annotations

import platform
from typing import Any, ClassVar, TypeVar

from ..core.catalog import find
from ..core.declare import Op
from ..core.problem import Problem
from ..core.vocabulary import (
    BackendKind,
    ElementKind,
    KernelSku,
    MathPrecision,
    OpCategory,
    OutOfRange,
    PlanPreference,
    PrecisionGuarantee,
    SegmentKind,
    Stream,
)
from ..errors import (
    InvalidProblemError,
    MisalignedOperandError,
    UnsupportedError,
    WorkspaceTooSmallError,
)
from ..memory.overlap import overlaps, same_memory, self_overlaps
from ..memory.view import View, byte_view, mark_written, output_view, view
from ..threads import get_num_threads
from . import descriptors as d
from .packed import PackedCall

_CATEGORY = {
    "scan": OpCategory.SCAN,
    "reduce": OpCategory.REDUCTION,
    "softmax": OpCategory.SOFTMAX,
    "lerp": OpCategory.BINARY_ELEMENTWISE,
    "segment": OpCategory.SEGMENT,
}

# What the CPU schedules do for every element type: widen at the load, compute and accumulate in
# float64, round at the store, in an order fixed by the extent.
CPU_GUARANTEE = PrecisionGuarantee(math_precision=MathPrecision.F64, accumulator=ElementKind.F64)


_PlanT = TypeVar("_PlanT", bound="Plan")


class Plan:
    """What all plans share. Use the ``select`` of a subclass.

    A plan owns no tensor memory. ``run`` writes into the caller's outputs and nothing else; with a
    ``workspace`` of ``workspace_size`` bytes it allocates nothing either, without one it makes its
    own for the call.
    """

    Descriptor: ClassVar[type[Any]]
    direction: ClassVar[str]

    def __init__(self, descriptor: Any, preference: PlanPreference, problem: Any, op: Op):
        self.descriptor = descriptor
        self.preference = preference
        self._problem = problem
        self._op = op
        self.needs: frozenset[str] = op.needs
        self._on_gpu = preference.backend is BackendKind.TRITON
        self._runner = _make_runner(problem, self._on_gpu)
        self._device: str = self._runner.device if self._on_gpu else "cpu"
        self._shapes = {n: problem.shape_of(n) for n in (*op.inputs, *op.outputs)}
        self._element = problem.element
        self.workspace_size: int = (
            self._runner.workspace_size if self._on_gpu else _workspace_size(problem)
        )
        self._skips = "db" in op.outputs
        self._packed: PackedCall | None = None

    @classmethod
    def select(
        cls: type[_PlanT], descriptor: Any, preference: PlanPreference | None = None
    ) -> _PlanT:
        """Validate a descriptor and pick a kernel for it.

        Parameters
        ----------
        descriptor
            A descriptor of the class the plan is for.
        preference : PlanPreference, optional
            Backend and threads.

        Raises
        ------
        UnsupportedError
            For a backend that is not available.
        InvalidProblemError
            For a reduction without elements that has no value (max, min).
        """
        if not isinstance(descriptor, cls.Descriptor):
            raise InvalidProblemError(
                f"descriptor: expected a {cls.Descriptor.__name__}, got {type(descriptor).__name__}"
            )
        if preference is None:
            preference = PlanPreference()
        elif not isinstance(preference, PlanPreference):
            raise InvalidProblemError(
                f"preference: expected a PlanPreference or None, got {preference!r}"
            )
        kind = str(getattr(descriptor.kind, "value", descriptor.kind))
        op = find(kind.removeprefix("unsorted_"), cls.direction)
        return cls(descriptor, preference, cls._problem_of(descriptor, op), op)

    @staticmethod
    def _problem_of(descriptor: Any, op: Op) -> Any:
        raise NotImplementedError

    @property
    def precision_guarantee(self) -> PrecisionGuarantee:
        """What the kernel promises about its numbers."""
        return self._runner.guarantee if self._on_gpu else CPU_GUARANTEE

    @property
    def sku(self) -> KernelSku:
        """Identity of the kernel."""
        return KernelSku(
            category=_CATEGORY[self._op.family],
            op=self._op.name,
            element=ElementKind(self._element),
            aux_element="i32|i64" if self._op.family == "segment" else None,
            layout="strided",
            epilogue=None,
            arch=self._runner.arch if self._on_gpu else platform.machine(),
            backend=BackendKind.TRITON if self._on_gpu else BackendKind.NUMBA,
            precision_guarantee=self.precision_guarantee,
        )

    def _check(self, operands: dict[str, Any]) -> dict[str, View]:
        """Views of all operands, or the error that ``run`` raises."""
        views: dict[str, View] = {}
        for name in self._op.inputs:
            given = operands.get(name)
            if given is None:
                raise InvalidProblemError(f"{name}: required by {self._op.name}, got None")
            views[name] = view(given, name)
        for name in self._op.outputs:
            given = operands.get(name)
            if given is not None:
                views[name] = output_view(given, name)
            elif not self._skips:
                raise InvalidProblemError(f"{name}: required as the output, got None")
        return self.check_views(views)

    def check_views(self, views: dict[str, View], in_function: bool = False) -> dict[str, View]:
        """Raise what ``run`` would raise for operands already viewed.

        ``in_function`` says that the caller knows the outputs as ``out``.
        """
        shapes = self._shapes
        for name, v in views.items():
            if v.shape != shapes[name]:
                raise InvalidProblemError(
                    f"{self._called(name, in_function)}: expected shape {shapes[name]}, "
                    f"got {v.shape}"
                )
            if name == "segment_ids":
                if v.dtype not in ("i32", "i64"):
                    raise InvalidProblemError(f"{name}: expected int32 or int64 ids, got {v.dtype}")
            elif v.dtype != self._element:
                error = InvalidProblemError if v.element else UnsupportedError
                raise error(
                    f"{self._called(name, in_function)}: expected element {self._element}, "
                    f"got {v.dtype}"
                )
            if v.device != self._device:
                raise self._device_error(v, self._called(name, in_function))
        written = [(n, views[n]) for n in self._op.outputs if n in views]
        # A row of a segment op is read again after another may have been written over it.
        in_place = self._op.family != "segment"
        for name, out in written:
            if self_overlaps(out):
                raise InvalidProblemError(
                    f"{self._called(name, in_function)}: expected an output without overlapping "
                    f"elements, got strides {out.strides} for shape {out.shape}"
                )
            for other, v in views.items():
                if other == name or (in_place and other in self._op.inputs and same_memory(out, v)):
                    continue
                if overlaps(out, v):
                    allowed = " (or exactly in place)" if in_place else ""
                    raise InvalidProblemError(
                        f"{self._called(name, in_function)}: expected an output apart from "
                        f"{self._called(other, in_function)}{allowed}, got memory that overlaps it"
                    )
        return views

    def _called(self, operand: str, in_function: bool) -> str:
        """What the caller calls an operand."""
        outputs = self._op.outputs
        if not in_function or operand not in outputs:
            return operand
        return "out" if len(outputs) == 1 else f"out[{outputs.index(operand)}]"

    def _device_error(self, v: View, name: str) -> InvalidProblemError:
        hint = (
            f"pass it on {self._device}"
            if self._on_gpu or not v.device.startswith("cuda")
            else "a plan for it takes PlanPreference(backend='triton')"
        )
        return InvalidProblemError(
            f"{name}: expected memory on {self._device}, where this plan runs, got {v.device}; "
            f"{hint}"
        )

    def _check_workspace(self, workspace: Any, views: dict[str, View]) -> tuple[int, int]:
        """Address and size of a workspace that may be written; (0, 0) where there is none."""
        if workspace is None:
            return 0, 0
        v = byte_view(workspace, "workspace")
        if v.device != self._device:
            raise self._device_error(v, "workspace")
        size = v.shape[0]
        if size < self.workspace_size:
            raise WorkspaceTooSmallError(self.workspace_size, size)
        if self.workspace_size and v.address % 8:
            raise MisalignedOperandError(
                f"workspace: expected an address that is a multiple of 8, got {v.address:#x}"
            )
        for name, operand in views.items():
            if overlaps(v, operand):
                raise InvalidProblemError(
                    f"workspace: expected memory apart from {name}, got memory that overlaps it"
                )
        return v.address, size

    def execute(self, views: dict[str, View], workspace: int, size: int, threads: int) -> None:
        """Run on checked views."""
        if all(0 in v.shape for n, v in views.items() if n in self._op.outputs):
            return
        if self._on_gpu:
            self._runner.run(views, None, None)
        else:
            self._runner.run(views, workspace, size, threads)

    def _run(self, operands: dict[str, Any], workspace: Any, stream: Stream | None) -> None:
        if workspace is None and stream is None and self._packed_call().run(operands):
            return
        if stream is not None and not isinstance(stream, Stream):
            raise InvalidProblemError(
                f"stream: expected a Stream or None, got {stream!r} of type {type(stream).__name__}"
            )
        views = self._check(operands)
        address, size = self._check_workspace(workspace, views)
        if self._on_gpu:
            if any(0 not in views[n].shape for n in self._op.outputs if n in views):
                self._runner.run(views, workspace, stream)
        else:
            self.check_values(views)
            self.execute(views, address, size, self._threads(stream))
        for name in self._op.outputs:
            if operands.get(name) is not None:
                mark_written(operands[name])
        if workspace is not None:
            mark_written(workspace)

    def run_packed(self, operands: dict[str, Any]) -> bool:
        """Run on packed NumPy operands; False, with nothing done, where they are not that."""
        return self._packed_call().run(operands)

    def _packed_call(self) -> PackedCall:
        """The short way for packed NumPy operands; one that never applies where there is none."""
        threads = self.preference.threads or get_num_threads()
        if self._packed is None or self._packed.threads != threads:
            self._packed = PackedCall(self._problem, self._runner, threads, self._on_gpu)
        return self._packed

    def check_values(self, views: dict[str, View]) -> None:
        """Raise for values that an operand must not hold (segment ids)."""
        if self._problem.is_segmented:
            self._runner.check(views, self._threads(None))

    def _threads(self, stream: Stream | None) -> int:
        if stream is not None and stream.threads:
            return stream.threads
        return self.preference.threads or get_num_threads()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.descriptor!r})"


def _make_runner(problem: Any, on_gpu: bool) -> Any:
    if on_gpu:
        from ..gpu.backend import make_runner

        return make_runner(problem)
    from ..cpu import backend

    if problem.is_segmented:
        return backend.SegmentRunner(problem)
    return backend.NumbaRunner(problem)


def _workspace_size(problem: Any) -> int:
    from ..cpu import backend, launch

    if problem.is_segmented:
        return backend.segment_workspace(problem)
    return launch.workspace_bound(problem)


class _Scans(Plan):
    @staticmethod
    def _problem_of(descriptor: Any, op: Op) -> Problem:
        return Problem(
            op,
            descriptor.element.value,
            descriptor.input_shape,
            (descriptor.scan_axis,) if descriptor.input_shape else (),
            _selection(descriptor, op),
            reverse=descriptor.reverse,
        )


class _Reductions(Plan):
    @staticmethod
    def _problem_of(descriptor: Any, op: Op) -> Problem:
        problem = Problem(
            op,
            descriptor.element.value,
            descriptor.input_shape,
            descriptor.axes,
            _selection(descriptor, op),
            data=(("correction", float(descriptor.correction)),),
        )
        if op.name in ("max", "min") and problem.extent == 0 and 0 not in problem.row_shape:
            raise InvalidProblemError(
                f"x: expected at least one element along axes {problem.axes} for {op.name}, "
                f"got shape {problem.shape}"
            )
        return problem


class _Softmaxes(Plan):
    @staticmethod
    def _problem_of(descriptor: Any, op: Op) -> Problem:
        axes = (descriptor.softmax_axis,) if descriptor.input_shape else ()
        return Problem(op, descriptor.element.value, descriptor.input_shape, axes)


class _Binaries(Plan):
    @staticmethod
    def _problem_of(descriptor: Any, op: Op) -> Problem:
        axes = tuple(range(len(descriptor.shape)))
        element = descriptor.element.value
        return Problem(op, element, descriptor.shape, axes, data=(("weight", descriptor.param),))


class _Segments(Plan):
    def raise_for_ids(self) -> None:
        """Raise if a run since the last call met ids that the plan forbids, and wait to know it.

        On the CPU ``run`` raises by itself. On a GPU it waits for nothing: rows with such ids are
        left out or get zeros, and what was found stays on the device until it is asked for here.
        """
        if self._on_gpu:
            self._runner.raise_noted()

    @staticmethod
    def _problem_of(descriptor: Any, op: Op) -> Problem:
        return Problem(
            op,
            descriptor.element.value,
            (descriptor.num_inputs, descriptor.embedding_dim),
            (0,),
            segments=descriptor.num_segments,
            is_sorted=descriptor.kind is SegmentKind.SEGMENT_SUM,
            drops=descriptor.out_of_range is OutOfRange.DROP,
        )


def _selection(descriptor: Any, op: Op) -> tuple[Any, ...]:
    return (descriptor.ties.value,) if op.ties else ()


class _Forward(Plan):
    """Operands of a forward: x is read, y is written."""

    direction = "forward"

    def can_implement(self, *, x: Any, y: Any) -> None:
        """Raise what ``run`` would raise for these operands."""
        self._check({"x": x, "y": y})

    def run(self, *, x: Any, y: Any, workspace: Any = None, stream: Stream | None = None) -> None:
        """Write the result for ``x`` into ``y``."""
        self._run({"x": x, "y": y}, workspace, stream)


class _Backward(Plan):
    """Operands of a backward: dy and the saves in ``needs`` are read, dx is written."""

    direction = "backward"

    def can_implement(self, *, dy: Any, dx: Any, x: Any = None, y: Any = None) -> None:
        """Raise what ``run`` would raise for these operands."""
        self._check({"dy": dy, "x": x, "y": y, "dx": dx})

    def run(
        self,
        *,
        dy: Any,
        dx: Any,
        x: Any = None,
        y: Any = None,
        workspace: Any = None,
        stream: Stream | None = None,
    ) -> None:
        """Write the gradient by the forward's input into ``dx``; saves not needed are ignored."""
        self._run({"dy": dy, "x": x, "y": y, "dx": dx}, workspace, stream)


class ScanPlan(_Scans, _Forward):
    """A scan along one axis; see :class:`ScanDescriptor`."""

    Descriptor = d.ScanDescriptor


class ScanBackwardPlan(_Scans, _Backward):
    """The backward of a scan; see :class:`ScanBackwardDescriptor`.

    Examples
    --------
    >>> import numpy as np, pullback as pb
    >>> desc = pb.ScanBackwardDescriptor("cumsum", (4,), 0, element="f64")
    >>> plan = pb.ScanBackwardPlan.select(desc)
    >>> dy, dx = np.arange(4.0), np.empty(4)
    >>> plan.run(dy=dy, dx=dx)
    >>> dx
    array([6., 6., 5., 3.])
    """

    Descriptor = d.ScanBackwardDescriptor


class ReducePlan(_Reductions, _Forward):
    """A reduction over one or more axes; y has the keepdims shape."""

    Descriptor = d.ReduceDescriptor


class ReduceBackwardPlan(_Reductions, _Backward):
    """The backward of a reduction; dy and y have the keepdims shape."""

    Descriptor = d.ReduceBackwardDescriptor


class SoftmaxPlan(_Softmaxes, _Forward):
    """softmax or log_softmax along one axis."""

    Descriptor = d.SoftmaxDescriptor


class SoftmaxBackwardPlan(_Softmaxes, _Backward):
    """The backward of softmax or log_softmax."""

    Descriptor = d.SoftmaxBackwardDescriptor


class BinaryParamPlan(_Binaries):
    """lerp with a constant weight."""

    Descriptor, direction = d.BinaryParamDescriptor, "forward"

    def can_implement(self, *, a: Any, b: Any, y: Any) -> None:
        """Raise what ``run`` would raise for these operands."""
        self._check({"a": a, "b": b, "y": y})

    def run(
        self, *, a: Any, b: Any, y: Any, workspace: Any = None, stream: Stream | None = None
    ) -> None:
        """Write a + w·(b − a) into ``y``."""
        self._run({"a": a, "b": b, "y": y}, workspace, stream)


class BinaryParamBackwardPlan(_Binaries):
    """The backward of lerp; da or db may be None to skip it."""

    Descriptor, direction = d.BinaryParamBackwardDescriptor, "backward"

    def can_implement(self, *, dy: Any, da: Any = None, db: Any = None) -> None:
        """Raise what ``run`` would raise for these operands."""
        self._check({"dy": dy, "da": da, "db": db})

    def run(
        self,
        *,
        dy: Any,
        da: Any = None,
        db: Any = None,
        workspace: Any = None,
        stream: Stream | None = None,
    ) -> None:
        """Write (1 − w)·dy into ``da`` and w·dy into ``db`` in one pass."""
        self._run({"dy": dy, "da": da, "db": db}, workspace, stream)


class _SegmentForward(_Segments):
    direction = "forward"

    def can_implement(self, *, input: Any, segment_ids: Any, output: Any) -> None:
        """Raise what ``run`` would raise for these operands, ids included."""
        self.check_values(
            self._check({"input": input, "segment_ids": segment_ids, "output": output})
        )

    def run(
        self,
        *,
        input: Any,
        segment_ids: Any,
        output: Any,
        workspace: Any = None,
        stream: Stream | None = None,
    ) -> None:
        """Write the sums of the rows of ``input`` into ``output``."""
        operands = {"input": input, "segment_ids": segment_ids, "output": output}
        self._run(operands, workspace, stream)


class _SegmentBackward(_Segments):
    direction = "backward"

    def can_implement(self, *, d_output: Any, segment_ids: Any, d_input: Any) -> None:
        """Raise what ``run`` would raise for these operands, ids included."""
        self.check_values(
            self._check({"d_output": d_output, "segment_ids": segment_ids, "d_input": d_input})
        )

    def run(
        self,
        *,
        d_output: Any,
        segment_ids: Any,
        d_input: Any,
        workspace: Any = None,
        stream: Stream | None = None,
    ) -> None:
        """Write row ``segment_ids[n]`` of ``d_output`` into row n of ``d_input``."""
        operands = {"d_output": d_output, "segment_ids": segment_ids, "d_input": d_input}
        self._run(operands, workspace, stream)


class SegmentSumPlan(_SegmentForward):
    """A segment sum over ids in ascending order."""

    Descriptor = d.SegmentSumDescriptor


class SegmentSumBackwardPlan(_SegmentBackward):
    """The backward of a segment sum."""

    Descriptor = d.SegmentSumBackwardDescriptor


class UnsortedSegmentSumPlan(_SegmentForward):
    """A segment sum over ids in any order; the workspace holds the order of the rows."""

    Descriptor = d.UnsortedSegmentSumDescriptor


class UnsortedSegmentSumBackwardPlan(_SegmentBackward):
    """The backward of an unsorted segment sum."""

    Descriptor = d.UnsortedSegmentSumBackwardDescriptor
