"""Plans: a problem validated once and run many times on memory that the caller owns."""

from __future__ import annotations

import inspect
import platform
import types
from typing import Any, ClassVar, TypeVar

from ..core.catalog import catalog
from ..core.declare import Op, Type
from ..core.problem import Problem
from ..core.vocabulary import (
    BackendKind,
    ElementKind,
    KernelSku,
    MathPrecision,
    OpCategory,
    PlanPreference,
    PrecisionGuarantee,
    Stream,
)
from ..errors import (
    InvalidProblemError,
    MisalignedOperandError,
    UnsupportedError,
    WorkspaceTooSmallError,
)
from ..formulas.record import looks_back
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

# What an operand of a type may hold beside the op's element type.
_ALSO = {Type.ELEMENT: (), Type.BOOL: ("bool",), Type.INDEX: ("i32", "i64"), Type.STATE: ("f64",)}


class Runnable:
    """A problem on one backend: what is checked of its operands, and what runs them.

    Plans, functions and integrations all come down to one of these.
    """

    def __init__(self, problem: Problem, preference: PlanPreference):
        self.problem, self.preference = problem, preference
        self.op: Op = problem.op
        self.on_gpu = preference.backend is BackendKind.TRITON
        self.runner = _make_runner(problem, self.on_gpu)
        self.device: str = self.runner.device if self.on_gpu else "cpu"
        self.reads = tuple(o.name for o in problem.reads)
        self.shapes = {n: problem.shape_of(n) for n in (*self.reads, *self.op.outputs)}
        self.dtypes = {n: self._dtypes_of(n) for n in self.shapes}
        # Of several outputs any may be left out.
        self.skips = len(self.op.outputs) > 1
        # A row of a segment op is read again after another may have been written over it, and so is
        # a position that the next one asks for.
        self.in_place = not (problem.is_segmented or looks_back(problem.formula))
        self._packed: PackedCall | None = None

    def _dtypes_of(self, name: str) -> tuple[str, ...]:
        kind = self.op.operand(name).type
        own = (self.problem.element,) if kind in (Type.ELEMENT, Type.STATE) else ()
        return (*own, *_ALSO[kind])

    @property
    def workspace_size(self) -> int:
        """Bytes that suffice whatever the strides."""
        if self.on_gpu:
            size: int = self.runner.workspace_size
            return size
        return _workspace_size(self.problem)

    def called(self, operand: str, in_function: bool) -> str:
        """What the caller calls an operand: of a function, outputs are ``out``."""
        outputs = self.op.outputs
        if not in_function or operand not in outputs:
            return operand
        return "out" if len(outputs) == 1 else f"out[{outputs.index(operand)}]"

    def check(self, views: dict[str, View], in_function: bool = False) -> dict[str, View]:
        """Raise what is wrong with operands, or give them back."""
        for name, v in views.items():
            if v.shape != self.shapes[name]:
                raise InvalidProblemError(
                    f"{self.called(name, in_function)}: expected shape {self.shapes[name]}, got "
                    f"{v.shape}"
                )
            if v.dtype not in self.dtypes[name]:
                raise self._dtype_error(name, v, in_function)
            if v.device != self.device:
                raise self._device_error(v, self.called(name, in_function))
        for name in self.op.outputs:
            if name in views:
                self._check_output(name, views, in_function)
        return views

    def _check_output(self, name: str, views: dict[str, View], in_function: bool) -> None:
        out, word = views[name], self.called(name, in_function)
        if self_overlaps(out):
            raise InvalidProblemError(
                f"{word}: expected an output without overlapping elements, got strides "
                f"{out.strides} for shape {out.shape}"
            )
        for other, v in views.items():
            if other == name or (self.in_place and other in self.reads and same_memory(out, v)):
                continue
            if overlaps(out, v):
                allowed = " (or exactly in place)" if self.in_place else ""
                raise InvalidProblemError(
                    f"{word}: expected an output apart from {self.called(other, in_function)}"
                    f"{allowed}, got memory that overlaps it"
                )

    def _dtype_error(self, name: str, v: View, in_function: bool) -> Exception:
        expected = " or ".join(self.dtypes[name])
        if self.op.operand(name).type is Type.INDEX:
            return InvalidProblemError(f"{name}: expected int32 or int64 ids, got {v.dtype}")
        error = InvalidProblemError if v.element else UnsupportedError
        return error(
            f"{self.called(name, in_function)}: expected element {expected}, got {v.dtype}"
        )

    def _device_error(self, v: View, name: str) -> InvalidProblemError:
        hint = (
            f"pass it on {self.device}"
            if self.on_gpu or not v.device.startswith("cuda")
            else "a plan for it takes PlanPreference(backend='triton')"
        )
        return InvalidProblemError(
            f"{name}: expected memory on {self.device}, where this plan runs, got {v.device}; "
            f"{hint}"
        )

    def check_workspace(self, workspace: Any, views: dict[str, View]) -> tuple[int, int]:
        """Address and size of a workspace that may be written; (0, 0) where there is none."""
        if workspace is None:
            return 0, 0
        v = byte_view(workspace, "workspace")
        if v.device != self.device:
            raise self._device_error(v, "workspace")
        needed, size = self.workspace_size, v.shape[0]
        if size < needed:
            raise WorkspaceTooSmallError(needed, size)
        if needed and v.address % 8:
            raise MisalignedOperandError(
                f"workspace: expected an address that is a multiple of 8, got {v.address:#x}"
            )
        for name, operand in views.items():
            if overlaps(v, operand):
                raise InvalidProblemError(
                    f"workspace: expected memory apart from {name}, got memory that overlaps it"
                )
        return v.address, size

    def check_values(self, views: dict[str, View]) -> None:
        """Raise for values that an operand must not hold (segment ids)."""
        if self.problem.is_segmented:
            self.runner.check(views, self.threads())

    def execute(self, views: dict[str, View], address: int, size: int, threads: int) -> None:
        """Run on checked views."""
        if all(0 in v.shape for n, v in views.items() if n in self.op.outputs):
            return
        if self.on_gpu:
            self.runner.run(views, None, None)
        else:
            self.runner.run(views, address, size, threads)

    def packed(self) -> PackedCall:
        """The short way for packed NumPy operands; one that never applies where there is none."""
        threads = self.threads()
        if self._packed is None or self._packed.threads != threads:
            self._packed = PackedCall(self.problem, self.runner, threads, self.on_gpu)
        return self._packed

    def threads(self, stream: Stream | None = None) -> int:
        """How many threads a run may use."""
        if stream is not None and stream.threads:
            return stream.threads
        return self.preference.threads or get_num_threads()


def _make_runner(problem: Problem, on_gpu: bool) -> Any:
    if on_gpu:
        from ..gpu.backend import make_runner

        return make_runner(problem)
    from ..cpu import backend

    return backend.SegmentRunner(problem) if problem.is_segmented else backend.NumbaRunner(problem)


def _workspace_size(problem: Problem) -> int:
    from ..cpu import launch, segment_launch

    if problem.is_segmented:
        return segment_launch.workspace_bytes(problem)
    return launch.workspace_bound(problem)


_PlanT = TypeVar("_PlanT", bound="Plan")


class Plan:
    """What all plans share. Use the ``select`` of a subclass.

    A plan owns no tensor memory. ``run`` writes into the caller's outputs and nothing else; with a
    ``workspace`` of ``workspace_size`` bytes it allocates nothing either, without one it makes its
    own for the call.
    """

    Descriptor: ClassVar[type[d.Descriptor]]

    def __init_subclass__(cls) -> None:
        """Let ``run`` and ``can_implement`` show the operands of the class's ops by name."""
        described = getattr(cls, "Descriptor", None)
        if described is None:
            return
        for method, more in ((Plan.can_implement, ()), (Plan.run, ("workspace", "stream"))):
            shown = types.FunctionType(
                method.__code__, globals(), method.__name__, method.__defaults__
            )
            shown.__kwdefaults__, shown.__doc__ = method.__kwdefaults__, method.__doc__
            shown.__signature__ = _signature(described, more)  # type: ignore[attr-defined]
            setattr(cls, method.__name__, shown)

    def __init__(self, descriptor: d.Descriptor, preference: PlanPreference):
        self.descriptor, self.preference = descriptor, preference
        self._bare = Runnable(descriptor.problem(), preference)
        # By the operands that may be left out and are given.
        self._runnables: dict[tuple[str, ...], Runnable] = {(): self._bare}
        self._op = self._bare.op
        self._optional = tuple(o.name for o in self._op.reads if o.optional)
        self.needs: frozenset[str] = self._op.needs
        self.workspace_size: int = max(
            r.workspace_size for r in (self._bare, *self._with_everything())
        )

    def _with_everything(self) -> tuple[Runnable, ...]:
        return (self.runnable(self._optional),) if self._optional else ()

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
        return cls(descriptor, preference)

    @property
    def precision_guarantee(self) -> PrecisionGuarantee:
        """What the kernel promises about its numbers."""
        if not self._bare.on_gpu:
            return CPU_GUARANTEE
        guarantee: PrecisionGuarantee = self._bare.runner.guarantee
        return guarantee

    @property
    def sku(self) -> KernelSku:
        """Identity of the kernel."""
        bare = self._bare
        indexed = any(o.type is Type.INDEX for o in self._op.reads)
        return KernelSku(
            category=_CATEGORY[self._op.family],
            op=self._op.name,
            element=ElementKind(bare.problem.element),
            aux_element="i32|i64" if indexed else None,
            layout="strided",
            epilogue=None,
            arch=bare.runner.arch if bare.on_gpu else platform.machine(),
            backend=BackendKind.TRITON if bare.on_gpu else BackendKind.NUMBA,
            precision_guarantee=self.precision_guarantee,
        )

    def runnable(self, given: tuple[str, ...] = ()) -> Runnable:
        """What runs the plan with those operands that may be left out."""
        found = self._runnables.get(given)
        if found is None:
            problem = self.descriptor.problem(given)
            found = self._runnables[given] = Runnable(problem, self.preference)
        return found

    def _runnable_for(self, operands: dict[str, Any]) -> Runnable:
        if not self._optional:
            return self._bare
        return self.runnable(tuple(n for n in self._optional if operands.get(n) is not None))

    def _views(self, runnable: Runnable, operands: dict[str, Any]) -> dict[str, View]:
        """Views of all operands, or the error that ``run`` raises."""
        views: dict[str, View] = {}
        for name in runnable.reads:
            given = operands.get(name)
            if given is None:
                raise InvalidProblemError(f"{name}: required by {self._op.name}, got None")
            views[name] = view(given, name)
        for name in self._op.outputs:
            given = operands.get(name)
            if given is not None:
                views[name] = output_view(given, name)
            elif not runnable.skips:
                raise InvalidProblemError(f"{name}: required as the output, got None")
        return runnable.check(views)

    def can_implement(self, **operands: Any) -> None:
        """Raise what ``run`` would raise for these operands."""
        self._refuse_unknown(operands)
        runnable = self._runnable_for(operands)
        runnable.check_values(self._views(runnable, operands))

    def run(self, *, workspace: Any = None, stream: Stream | None = None, **operands: Any) -> None:
        """Compute the outputs from the operands, all of them memory of the caller.

        Parameters
        ----------
        workspace : array, optional
            At least ``workspace_size`` bytes to work in; without it the call makes its own.
        stream : Stream, optional
            Threads, or a CUDA stream.
        **operands
            The operands and outputs of the op by name. Saves that the op does not need are ignored;
            of several outputs, those that are None are not computed.
        """
        runnable = self._runnable_for(operands)
        if workspace is None and stream is None and runnable.packed().run(operands):
            return
        self._refuse_unknown(operands)
        if stream is not None and not isinstance(stream, Stream):
            raise InvalidProblemError(
                f"stream: expected a Stream or None, got {stream!r} of type {type(stream).__name__}"
            )
        views = self._views(runnable, operands)
        address, size = runnable.check_workspace(workspace, views)
        if runnable.on_gpu:
            if any(0 not in views[n].shape for n in self._op.outputs if n in views):
                runnable.runner.run(views, workspace, stream)
        else:
            runnable.check_values(views)
            runnable.execute(views, address, size, runnable.threads(stream))
        for name in self._op.outputs:
            if operands.get(name) is not None:
                mark_written(operands[name])
        if workspace is not None:
            mark_written(workspace)

    def _refuse_unknown(self, operands: dict[str, Any]) -> None:
        known = {*self._op.inputs, *self._op.outputs, *_SAVES.get(self.descriptor.direction, ())}
        for name in operands:
            if name not in known:
                raise TypeError(f"{self._op.name} has no operand {name!r}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.descriptor!r})"


# What a backward takes whether it needs it or not.
_SAVES = {"backward": ("x", "y")}


def _signature(described: type[d.Descriptor], more: tuple[str, ...]) -> inspect.Signature:
    """The operands of all ops that a descriptor may name, and what else a method takes."""
    ops = [
        op
        for op in catalog()
        if (op.family, op.direction) == (described.family, described.direction)
    ]
    names = dict.fromkeys(n for op in ops for n in (*op.inputs, *op.outputs))
    always = {
        n
        for n in names
        if all(n in (*op.inputs, *op.outputs) and not _may_skip(op, n) for op in ops)
    }
    keyword = inspect.Parameter.KEYWORD_ONLY
    shown = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    shown += [inspect.Parameter(n, keyword) for n in names if n in always]
    rest = [*(n for n in names if n not in always), *more]
    shown += [inspect.Parameter(n, keyword, default=None) for n in rest]
    return inspect.Signature(shown)


def _may_skip(op: Op, name: str) -> bool:
    return op.operand(name).optional or (name in op.outputs and len(op.outputs) > 1)


class _SegmentPlan(Plan):
    def raise_for_ids(self) -> None:
        """Raise if a run since the last call met ids that the plan forbids, and wait to know it.

        On the CPU ``run`` raises by itself. On a GPU it waits for nothing: rows with such ids are
        left out or get zeros, and what was found stays on the device until it is asked for here.
        """
        if self._bare.on_gpu:
            self._bare.runner.raise_noted()


class ScanPlan(Plan):
    """A scan along one axis; see :class:`ScanDescriptor`."""

    Descriptor = d.ScanDescriptor


class ScanBackwardPlan(Plan):
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


class ReducePlan(Plan):
    """A reduction over one or more axes; y has the keepdims shape."""

    Descriptor = d.ReduceDescriptor


class ReduceBackwardPlan(Plan):
    """The backward of a reduction; dy and y have the keepdims shape."""

    Descriptor = d.ReduceBackwardDescriptor


class SoftmaxPlan(Plan):
    """softmax or log_softmax along one axis."""

    Descriptor = d.SoftmaxDescriptor


class SoftmaxBackwardPlan(Plan):
    """The backward of softmax or log_softmax."""

    Descriptor = d.SoftmaxBackwardDescriptor


class BinaryParamPlan(Plan):
    """lerp with a constant weight."""

    Descriptor = d.BinaryParamDescriptor


class BinaryParamBackwardPlan(Plan):
    """The backward of lerp; da or db may be None to skip it."""

    Descriptor = d.BinaryParamBackwardDescriptor


class SegmentSumPlan(_SegmentPlan):
    """A segment sum over ids in ascending order."""

    Descriptor = d.SegmentSumDescriptor


class SegmentSumBackwardPlan(_SegmentPlan):
    """The backward of a segment sum."""

    Descriptor = d.SegmentSumBackwardDescriptor


class UnsortedSegmentSumPlan(_SegmentPlan):
    """A segment sum over ids in any order; the workspace holds the order of the rows."""

    Descriptor = d.UnsortedSegmentSumDescriptor


class UnsortedSegmentSumBackwardPlan(_SegmentPlan):
    """The backward of an unsorted segment sum."""

    Descriptor = d.UnsortedSegmentSumBackwardDescriptor
