"""The GPU backend: what a plan asks of it."""

from __future__ import annotations

import math
from typing import Any

from ..core.declare import Role, Type
from ..core.problem import Problem
from ..core.vocabulary import ElementKind, MathPrecision, PrecisionGuarantee, Stream
from ..errors import (
    InvalidProblemError,
    UnsupportedError,
)
from ..formulas.record import RowFormula, ScanFormula, is_pointwise, parameters
from ..memory.overlap import same_memory
from ..memory.tensor_ref import TensorRef
from ..memory.view import View
from .device import Device, current_device, finish, import_torch, on_stream

_MOST_PROGRAMS = 2**31 - 1


def make_runner(problem: Problem) -> TritonRunner:
    """A runner on the device that is current now."""
    refuse_unknown(problem)
    device = current_device()
    if problem.is_segmented:
        return SegmentRunner(problem, device)
    return RowRunner(problem, device)


def refuse_unknown(problem: Problem) -> None:
    """Raise for what the CPU's loops know and these kernels do not yet."""
    formula, op = problem.formula, problem.op
    kinds = {o.type for o in (*problem.reads, *op.writes) if o.role in (Role.ELEMENT, Role.ROW)}
    unknown = ""
    if kinds - {Type.ELEMENT}:
        unknown = "operands of another type than the element type"
    elif isinstance(formula, ScanFormula):
        if formula.start or formula.prefix_start or formula.end:
            unknown = "states in front of a row or behind it"
        elif any(border for _, border in formula.before if abs(border) != math.inf):
            unknown = "borders"
    elif problem.is_segmented and not _is_known_of_segments(formula):
        unknown = "segments other than folds of one number and gathers"
    if unknown:
        raise UnsupportedError(f"{op.name}: the triton backend has no {unknown} yet; use the CPU")


def _is_known_of_segments(formula: RowFormula) -> bool:
    if formula.apply:
        return formula.copies
    folds = [step.monoid for step in formula.passes if step.monoid and not step.close]
    if len(formula.passes) != 1 or len(folds) != 1:
        return False
    return len(folds[0].state) == 1 and parameters(formula.finish) == folds[0].state


def guarantee(problem: Problem) -> PrecisionGuarantee:
    """What holds on a GPU: arithmetic in the compute type, an order that depends on the layout."""
    from .frame import COMPUTE

    wide = COMPUTE[problem.element] == "tl.float64"
    return PrecisionGuarantee(
        math_precision=MathPrecision.F64 if wide else MathPrecision.F32,
        accumulator=ElementKind.F64 if wide else ElementKind.F32,
        bit_stable_across_layouts=is_pointwise(problem.formula),
    )


def pointer(v: View) -> Any:
    """A tensor that begins where a view does; its shape and strides mean nothing."""
    torch = import_torch()
    base = v.owner.data if isinstance(v.owner, TensorRef) else v.owner
    if not isinstance(base, torch.Tensor):
        raise InvalidProblemError(
            f"expected torch tensors on {v.device}, got {type(base).__name__}; torch.from_dlpack "
            "makes one of it without a copy"
        )
    offset = v.address - base.data_ptr()
    if offset == 0 or 0 in v.shape:
        return base
    return base.as_strided((1,), (1,), base.storage_offset() + offset // v.itemsize)


class TritonRunner:
    """Runs one problem on one device."""

    workspace_size: int

    def __init__(self, problem: Any, device: Device):
        self.problem, self._device = problem, device
        self.device, self.arch = device.name, device.arch
        self.guarantee = guarantee(problem)

    def run(self, views: dict[str, View], workspace: Any, stream: Stream | None) -> None:
        """Launch on checked, non-empty operands; nothing waits for the device."""
        with on_stream(self._device, stream.cuda if stream else None):
            self._launch(views, self._words(workspace))

    def _launch(self, views: dict[str, View], workspace: Any) -> None:
        raise NotImplementedError

    def _words(self, workspace: Any) -> Any:
        """A caller's workspace, which the plan has checked, as int64 words."""
        if workspace is None:
            return None
        torch = import_torch()
        if not isinstance(workspace, torch.Tensor) or str(workspace.device) != self.device:
            where = getattr(workspace, "device", type(workspace).__name__)
            raise InvalidProblemError(
                f"workspace: expected a torch tensor on {self.device}, got {where}"
            )
        size = workspace.numel() * workspace.element_size()
        return workspace.view(-1).view(torch.uint8)[: size // 8 * 8].view(torch.int64)

    def _start(self, steps: list[Any], held: dict[str, Any]) -> None:
        # All of them first: what raises has written nothing.
        most = max((step.programs for step in steps), default=0)
        if most > _MOST_PROGRAMS:
            raise UnsupportedError(f"{most} programs are more than a GPU launches at once")
        for step in steps:
            given = [held[n] for n in step.pointers]
            options = step.options(self._device.backend, self._device.lanes)
            step.kernel[(step.programs,)](*given, *step.numbers, **step.meta, **options)


class RowRunner(TritonRunner):
    """Scans, reductions, softmax and lerp, with a launch kept for every set of strides."""

    def __init__(self, problem: Problem, device: Device):
        from .launch import workspace_bound

        super().__init__(problem, device)
        self.workspace_size = workspace_bound(problem)
        self._launches: dict[tuple, Any] = {}

    def _launch(self, views: dict[str, View], workspace: Any) -> None:
        from .launch import Launch

        torch = import_torch()
        op = self.problem.op
        outputs = [views[n] for n in op.outputs if n in views]
        in_place = any(same_memory(views[n], out) for n in op.inputs for out in outputs)
        key = (in_place, *((n, v.strides) for n, v in views.items()))
        launch = self._launches.get(key)
        if launch is None:
            strides = {n: v.strides for n, v in views.items()}
            launch = self._launches[key] = Launch(self.problem, strides, in_place)
        held = {n: pointer(v) for n, v in views.items()}
        if launch.workspace:
            if workspace is None:
                workspace = torch.empty(
                    launch.workspace // 8, dtype=torch.int64, device=self.device
                )
            held["workspace"] = workspace.view(torch.float64)
        self._start(launch.steps, held)


class SegmentRunner(TritonRunner):
    """Segment sums and their backward."""

    def __init__(self, problem: Problem, device: Device):
        from .segment import workspace_words

        super().__init__(problem, device)
        self._forward = problem.op.direction == "forward"
        self._words_of = workspace_words(problem) if self._forward else {}
        self.workspace_size = 8 * sum(self._words_of.values())
        # Rows with ids that the plan forbids, met by any run since the plan was asked for them.
        self._found: Any = None
        if self._checks():
            self._found = self._nothing_found()
            # Whatever stream a run goes to, it finds the rows filled in.
            finish(device)

    def _launch(self, views: dict[str, View], workspace: Any) -> None:
        from .segment import gather_steps, sum_steps

        torch = import_torch()
        problem, ids = self.problem, views["segment_ids"]
        if self._found is not None:
            self._note(ids, self._found)
        held = {n: pointer(v) for n, v in views.items()}
        strides = {n: tuple(s // v.itemsize for s in v.strides) for n, v in views.items()}
        if not self._forward:
            self._start(gather_steps(problem, strides), held)
            return
        if workspace is None:
            workspace = torch.empty(self.workspace_size // 8, dtype=torch.int64, device=self.device)
        start = 0
        for name, words in self._words_of.items():
            held[name] = workspace[start : start + words]
            start += words
        if "parts" in held:
            held["parts"] = held["parts"].view(torch.float64)
        if not problem.is_sorted:
            tensor = _as_tensor(ids)
            held["keys"] = held["keys"].view(tensor.dtype)[: problem.num_inputs]
            torch.sort(tensor, stable=True, out=(held["keys"], held["order"]))
        self._start(sum_steps(problem, strides), held)

    # Ids.

    def _checks(self) -> bool:
        problem = self.problem
        return problem.num_inputs > 0 and not (problem.drops and not self._wants_order())

    def _wants_order(self) -> bool:
        return self.problem.is_sorted and self._forward

    def _nothing_found(self) -> Any:
        """The first row out of range and the first out of order, neither of them met yet."""
        from .segment import FINE

        torch = import_torch()
        return torch.full((2,), FINE, dtype=torch.int64, device=self.device)

    def _note(self, ids: View, found: Any) -> None:
        """Look for ids the plan forbids; what is found stays on the device."""
        from .segment import check_step

        stride = ids.strides[0] // ids.itemsize
        step = check_step(self.problem, stride, self._wants_order())
        self._start([step], {"segment_ids": pointer(ids), "found": found})

    def check(self, views: dict[str, View], threads: int = 1) -> None:
        """Raise for ids the plan forbids. Waits for the current stream."""
        if not self._checks():
            return
        ids = views["segment_ids"]
        with on_stream(self._device, None):
            found = self._nothing_found()
            self._note(ids, found)
            self._raise(found.tolist(), _as_tensor(ids))

    def raise_noted(self) -> None:
        """Raise if a run since the last call met ids the plan forbids. Waits for the device."""
        from .segment import FINE

        if self._found is None:
            return
        # Runs may have gone to any stream, and the next one may.
        finish(self._device)
        rows = self._found.tolist()
        self._found.fill_(FINE)
        finish(self._device)
        self._raise(rows, None)

    def _raise(self, rows: list[int], ids: Any) -> None:
        """Raise for what was found; ids that are still there are named."""
        from .segment import FINE

        problem = self.problem
        outside, unordered = rows

        def at(row: int) -> str:
            return f"{int(ids[row])} at row {row}" if ids is not None else f"another at row {row}"

        if outside < FINE and not problem.drops:
            raise InvalidProblemError(
                f"segment_ids: expected ids in [0, {problem.num_segments}), got {at(outside)} "
                f"(out_of_range='drop' would skip it)"
            )
        if unordered < FINE and self._wants_order():
            raise InvalidProblemError(
                f"segment_ids: expected ids in ascending order for a sorted plan, got "
                f"{at(unordered)} after a greater one"
            )


def _as_tensor(ids: View) -> Any:
    """Ids as a torch tensor; torch has no negative strides, so those are turned round by a copy."""
    base, n, stride = pointer(ids), ids.shape[0], ids.strides[0] // ids.itemsize
    if stride >= 0:
        return base.as_strided((n,), (stride,), base.storage_offset())
    last = base.storage_offset() + (n - 1) * stride
    return base.as_strided((n,), (-stride,), last).flip(0)
