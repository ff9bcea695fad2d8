"""Plans: a problem validated once and run many times on memory that the caller owns."""

from __future__ import annotations

import contextlib
import inspect
import platform
import types
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np

from ..core.catalog import OPS
from ..core.declare import REQUIRED, Op, Operand, Role, Type
from ..core.families import category_of
from ..core.problem import Problem
from ..core.vocabulary import (
    BackendKind,
    ElementKind,
    KernelSku,
    MathPrecision,
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
from ..memory.buffer import byte_view
from ..memory.overlap import overlaps, same_memory, self_overlaps
from ..memory.results import mark_written
from ..memory.view import View, as_numpy, output_view, view
from ..threads import get_num_threads
from . import descriptors as d
from .arrange import check_marks, stretched
from .packed import PackedCall

# What the CPU schedules do for every element type: widen at the load, compute and accumulate in
# float64, round at the store, in an order fixed by the extent. With the precision "fast" some
# compute elements in float32.
CPU_GUARANTEE = PrecisionGuarantee(math_precision=MathPrecision.F64, accumulator=ElementKind.F64)

# What an operand of a type may hold beside the op's element type.
_ALSO = {Type.ELEMENT: (), Type.BOOL: ("bool",), Type.INDEX: ("i32", "i64"), Type.STATE: ("f64",)}


class Runnable:
    """A problem on one backend: what is checked of its operands, and what runs them.

    Plans, functions and integrations all come down to one of these.
    """

    def __init__(self, problem: Problem, preference: PlanPreference):
        if preference.precision:
            problem = replace(problem, precision=preference.precision)
        self.problem, self.preference = problem, preference
        self.op: Op = problem.op
        self.on_gpu = preference.backend is BackendKind.TRITON
        self.runner = _make_runner(problem, self.on_gpu)
        self.device: str = self.runner.device if self.on_gpu else "cpu"
        self.reads = tuple(o.name for o in problem.reads)
        self.count = len(self.reads) + len(problem.writes)
        self.shapes = {n: problem.shape_of(n) for n in (*self.reads, *self.op.outputs)}
        self.dtypes = {n: self._dtypes_of(n) for n in self.shapes}
        # Of several outputs any may be left out, and so may saves that the record does not read.
        self.skips = len(problem.writes) > 1
        self.ignores = self.op.needs.difference(o.name for r in Role for o in problem.used(r))
        # A row of a segment op is read again after another may have been written over it, and so is
        # a position that the next one asks for.
        self.in_place = not (problem.is_segmented or looks_back(problem.formula))
        self._packed: dict[tuple[str, ...] | None, PackedCall] = {}

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
        self.check_kinds(views, in_function)
        for name in self.op.outputs:
            if name in views:
                self._check_output(name, views, in_function)
        return views

    def check_kinds(self, views: dict[str, View], in_function: bool = False) -> None:
        """Raise for shapes, types and devices: all there is to check of outputs that are new."""
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

    def check_workspace(
        self, workspace: Any, views: dict[str, View], needed: int
    ) -> tuple[int, int]:
        """Address and size of a workspace that may be written; (0, 0) where there is none."""
        if workspace is None:
            return 0, 0
        v = byte_view(workspace, "workspace")
        if v.device != self.device:
            raise self._device_error(v, "workspace")
        size = v.shape[0]
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
        """Raise for values that an operand must not hold: segment ids, positions."""
        if self.problem.is_segmented:
            self.runner.check(views, self.threads())
        if self.on_gpu or 0 in self.problem.shape:
            return
        for operand in self.problem.positions:
            check_positions(self.problem, operand, as_numpy(views[operand.name]))

    def execute(self, views: dict[str, View], address: int, size: int, threads: int) -> None:
        """Run on checked views."""
        if all(0 in v.shape for n, v in views.items() if n in self.op.outputs):
            return
        if self.on_gpu:
            self.runner.run(views, None, None)
        else:
            self.runner.run(views, address, size, threads)

    def packed(self, outputs: tuple[str, ...] | None = None) -> PackedCall:
        """The short way for packed NumPy operands; one that never applies where there is none.

        ``outputs`` are those to be written, if not all.
        """
        known = self._packed.get(outputs)
        if known is None or known.threads != self.threads():
            known = self._packed[outputs] = self.packed_rows(outputs, None)
        return known

    def packed_rows(
        self, outputs: tuple[str, ...] | None, rows: tuple[int, ...] | None
    ) -> PackedCall:
        """The same of operands that have the shape ``rows`` where they have one element a row."""
        written = self.op.outputs if outputs is None else outputs
        return PackedCall(self.problem, self.runner, self.threads(), self.on_gpu, written, rows)

    def packed_part(self, operands: dict[str, Any]) -> bool:
        """Run the short way on some of the outputs, where it may be gone."""
        outputs = tuple(n for n in self.op.outputs if n in operands)
        known = len(operands) == len(self.reads) + len(outputs)
        return known and bool(outputs) and self.packed(outputs).run(operands)

    def threads(self, stream: Stream | None = None) -> int:
        """How many threads a run may use."""
        if stream is not None and stream.threads:
            return stream.threads
        return self.preference.threads or get_num_threads()


def check_positions(problem: Problem, operand: Operand, values: np.ndarray[Any, Any]) -> None:
    """Raise for an element of an operand that names no position along the axis."""
    extent = problem.extent
    wrong = (values < 0) | (values >= extent)
    allowed = problem.constants.get(operand.allows)
    if allowed is not None:
        wrong &= values != allowed
    if wrong.any():
        rest = f", or {operand.allows}" if operand.allows else ""
        raise InvalidProblemError(
            f"{operand.name}: expected positions in [0, {extent}){rest}, got "
            f"{values[wrong].flat[0]}"
        )


def _make_runner(problem: Problem, on_gpu: bool) -> Any:
    if on_gpu:
        from ..gpu.backend import make_runner

        return make_runner(problem)
    from ..cpu import backend

    return backend.SegmentRunner(problem) if problem.is_segmented else backend.RowRunner(problem)


def _workspace_size(problem: Problem) -> int:
    from ..cpu import launch, segment_launch

    if problem.is_segmented:
        return segment_launch.workspace_bytes(problem)
    return launch.workspace_bound(problem)


_PlanT = TypeVar("_PlanT", bound="Plan")


class Plan:
    """A problem validated once, to be run many times.

    A plan owns no tensor memory. ``run`` writes into the caller's outputs and nothing else; with a
    ``workspace`` of ``workspace_size`` bytes it allocates nothing either; without one it allocates
    its own for the call. ``needs`` are the tensors saved by the forward pass that a backward takes.

    Examples
    --------
    >>> import numpy as np, pullback as pb
    >>> plan = pb.Plan.select(pb.Descriptor("cumsum_backward", (4,), "f64"))
    >>> dy, dx = np.arange(4.0), np.empty(4)
    >>> plan.run(dy=dy, dx=dx)
    >>> dx
    array([6., 6., 5., 3.])
    """

    Descriptor: ClassVar[type[d.Descriptor]] = d.Descriptor

    def __init_subclass__(cls) -> None:
        """Let ``run`` and ``can_implement`` show the operands of the class's ops by name."""
        for method, more in ((Plan.can_implement, ()), (Plan.run, ("workspace", "stream"))):
            shown = types.FunctionType(
                method.__code__, globals(), method.__name__, method.__defaults__
            )
            shown.__kwdefaults__, shown.__doc__ = method.__kwdefaults__, method.__doc__
            shown.__signature__ = _signature(cls.Descriptor, more)  # type: ignore[attr-defined]
            setattr(cls, method.__name__, shown)

    def __init__(self, descriptor: d.Descriptor, preference: PlanPreference):
        self.descriptor, self.preference = descriptor, preference
        self._op = op = descriptor.op
        self.needs: frozenset[str] = op.needs
        self._optional = tuple(o.name for o in d.operands_of(op) if o.optional)
        # What may be left out by itself, but not here: an array for which the descriptor holds no
        # number, and all but one of those that cut rows.
        numbers = {n: op.parameter(n) for n in self._optional if n not in descriptor.parameters}
        self._demanded = [n for n, p in numbers.items() if p and p.default is REQUIRED]
        self._cuts = [o.name for o in d.cuts_of(op) if o.optional]
        # By the operands that may be left out and are given.
        self._runnables: dict[tuple[str, ...], Runnable] = {}
        self._bare = self.runnable(self._least()[0])

    def _least(self) -> list[tuple[str, ...]]:
        """The fewest of the operands that may be left out with which the plan runs."""
        ways = [{*self._demanded, cut} for cut in self._cuts] or [{*self._demanded}]
        return [tuple(n for n in self._optional if n in way) for way in ways]

    @cached_property
    def workspace_size(self) -> int:
        """Bytes that suffice whatever the strides, and whichever operands are left out."""
        rest = {*self._optional} - {*self._cuts, *self.descriptor.parameters}
        sizes = []
        for least in self._least():
            most = tuple(n for n in self._optional if n in rest or n in least)
            for given in (least, most):
                with contextlib.suppress(UnsupportedError):
                    sizes.append(self.runnable(given).workspace_size)
        return max(sizes)

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
            Backend, threads and precision.

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
    def reads(self) -> frozenset[str]:
        """The operands that ``run`` really looks at; those of ``needs`` beside may be left out."""
        return frozenset(self._bare.reads) - self._bare.ignores

    @property
    def precision_guarantee(self) -> PrecisionGuarantee:
        """What the kernel promises about its numbers."""
        if not self._bare.on_gpu:
            from ..cpu.precision import is_in_float32

            if not is_in_float32(self._bare.problem):
                return CPU_GUARANTEE
            return replace(CPU_GUARANTEE, math_precision=MathPrecision.F32)
        guarantee: PrecisionGuarantee = self._bare.runner.guarantee
        return guarantee

    @property
    def sku(self) -> KernelSku:
        """Identity of the kernel."""
        bare = self._bare
        indexed = any(o.type is Type.INDEX for o in d.operands_of(self._op))
        return KernelSku(
            category=category_of(self._op),
            op=self._op.name,
            element=self.descriptor.element,
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
            self._check_given(given)
            problem = self.descriptor.problem(given)
            found = self._runnables[given] = Runnable(problem, self.preference)
        return found

    def _check_given(self, given: tuple[str, ...]) -> None:
        name = self._op.name
        for demanded in self._demanded:
            if demanded not in given:
                raise InvalidProblemError(f"{demanded}: required by {name}, got None")
        for operand in given:
            if operand in self.descriptor.parameters:
                number = self.descriptor.parameters[operand]
                raise InvalidProblemError(
                    f"{operand}: expected None where the descriptor has {number}, got an array"
                )
        cuts = [n for n in self._cuts if n in given]
        if self._cuts and len(cuts) != 1:
            listed, got = " or ".join(self._cuts), " and ".join(cuts) or "None"
            raise InvalidProblemError(f"{listed}: required by {name}, got {got}")

    def _runnable_for(self, operands: dict[str, Any]) -> Runnable:
        if not self._optional:
            return self._bare
        return self.runnable(tuple([n for n in self._optional if operands.get(n) is not None]))

    def _views(self, runnable: Runnable, operands: dict[str, Any]) -> dict[str, View]:
        """Views of all operands, or the error that ``run`` raises."""
        views: dict[str, View] = {}
        for operand in runnable.problem.reads:
            name, given = operand.name, operands.get(operand.name)
            if given is not None:
                v = view(given, name)
                views[name] = stretched(v, runnable.shapes[name], name) if operand.broadcasts else v
            elif name not in runnable.ignores:
                raise InvalidProblemError(f"{name}: required by {self._op.name}, got None")
        made = {o.name for o in runnable.problem.writes}
        for operand in self._op.writes:
            name, given = operand.name, operands.get(operand.name)
            if given is not None:
                if name not in made:
                    raise InvalidProblemError(
                        f"{name}: expected None without {operand.asked_by}, got an output"
                    )
                views[name] = output_view(given, name)
            elif name in made and not runnable.skips:
                raise InvalidProblemError(f"{name}: required as the output, got None")
        check_marks(runnable.problem, views)
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
        bare = self._bare
        if (
            stream is None
            and workspace is None
            and len(operands) == bare.count
            and bare.packed().run(operands)
        ):
            return
        runnable = self._runnable_for(operands)
        if stream is None and runnable.problem.is_segmented:
            if len(operands) == runnable.count and runnable.packed().run(operands, workspace):
                return
        elif workspace is None and stream is None:
            if len(operands) == runnable.count:
                if runnable is not bare and runnable.packed().run(operands):
                    return
            elif runnable.skips and runnable.packed_part(operands):
                return
        key = None
        if runnable.on_gpu and workspace is None and stream is None:
            key = runnable.runner.key_of(operands)
            if key is not None and runnable.runner.run_again(key):
                for name in self._op.outputs:
                    mark_written(operands[name])
                return
        self._refuse_unknown(operands)
        if stream is not None and not isinstance(stream, Stream):
            raise InvalidProblemError(
                f"stream: expected a Stream or None, got {stream!r} of type {type(stream).__name__}"
            )
        views = self._views(runnable, operands)
        needed = 0 if workspace is None else self.workspace_size
        address, size = runnable.check_workspace(workspace, views, needed)
        if runnable.on_gpu:
            if any(0 not in views[n].shape for n in self._op.outputs if n in views):
                runnable.runner.run(views, workspace, stream, key)
        else:
            runnable.check_values(views)
            runnable.execute(views, address, size, runnable.threads(stream))
        for name in self._op.outputs:
            if operands.get(name) is not None:
                mark_written(operands[name])
        if workspace is not None:
            mark_written(workspace)

    def raise_for_ids(self) -> None:
        """Raise if a run since the last call met ids that the plan forbids, and wait to know it.

        On the CPU ``run`` raises by itself. On a GPU it waits for nothing: rows with such ids are
        left out or get zeros, and what was found stays on the device until it is asked for here.
        """
        if self._bare.on_gpu and self._bare.problem.is_segmented:
            self._bare.runner.raise_noted()

    def _refuse_unknown(self, operands: dict[str, Any]) -> None:
        for name in operands:
            if name not in self._known:
                raise TypeError(f"{self._op.name} has no operand {name!r}")

    @cached_property
    def _known(self) -> frozenset[str]:
        """The operands, and what a backward takes whether it needs it or not: the forward's."""
        op = self._op
        forward = OPS.get(op.kind) if op.direction == "backward" else None
        saves = (*forward.inputs, *forward.outputs) if forward else ()
        return frozenset((*(o.name for o in d.operands_of(op)), *op.outputs, *saves))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.descriptor!r})"


def _signature(described: type[d.Descriptor], more: tuple[str, ...]) -> inspect.Signature:
    """The operands of all ops that a descriptor may be of, and what else a method takes."""
    shown: dict[str, bool] = {}  # with whether it must be given
    for op in (ops := described.ops()):
        for o in (*d.operands_of(op), *op.writes):
            if not {o.name, o.asked_by} & described.always:
                may_skip = o.optional or (o in op.writes and len(op.writes) > 1)
                shown[o.name] = shown.get(o.name, op is ops[0]) and not may_skip
        absent = shown.keys() - {*op.inputs, *op.outputs}
        shown |= dict.fromkeys(absent, False)
    keyword = inspect.Parameter.KEYWORD_ONLY
    arguments = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    arguments += [inspect.Parameter(n, keyword) for n, must in shown.items() if must]
    rest = [*(n for n, must in shown.items() if not must), *more]
    arguments += [inspect.Parameter(n, keyword, default=None) for n in rest]
    return inspect.Signature(arguments)
