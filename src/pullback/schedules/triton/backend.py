"""The GPU backend: what a plan asks of it."""

from __future__ import annotations

from typing import Any

from ...errors import (
    InvalidProblemError,
    MisalignedOperandError,
    UnsupportedError,
    WorkspaceTooSmallError,
)
from ...formulas.record import RowFormula
from ...interop import View
from ...overlap import same_memory
from ...problem import Problem, SegmentProblem
from ...tensor_ref import TensorRef
from ...vocabulary import ElementKind, MathPrecision, PrecisionGuarantee, Stream
from .device import Device, current_device, import_torch, on_stream

_MOST_PROGRAMS = 2**31 - 1


def make_runner(problem: Problem | SegmentProblem) -> TritonRunner:
    """A runner on the device that is current now."""
    device = current_device()
    if isinstance(problem, SegmentProblem):
        return SegmentRunner(problem, device)
    return RowRunner(problem, device)


def guarantee(problem: Problem | SegmentProblem) -> PrecisionGuarantee:
    """What holds on a GPU: arithmetic in the compute type, an order that depends on the layout."""
    from .frame import COMPUTE
    from .rows import is_pointwise

    wide = COMPUTE[problem.element] == "tl.float64"
    formula = problem.formula
    if isinstance(problem, SegmentProblem):
        folds = problem.op.direction == "forward"
    else:
        folds = not (isinstance(formula, RowFormula) and is_pointwise(formula))
    return PrecisionGuarantee(
        math_precision=MathPrecision.F64 if wide else MathPrecision.F32,
        accumulator=ElementKind.F64 if wide else ElementKind.F32,
        bit_stable_across_layouts=not folds,
    )


def pointer(v: View) -> Any:
    """A tensor that begins where a view does; its shape and strides mean nothing."""
    torch = import_torch()
    base = v.owner.data if isinstance(v.owner, TensorRef) else v.owner
    if not isinstance(base, torch.Tensor):
        raise InvalidProblemError(
            f"expected torch tensors on {v.device}, got {type(base).__name__}"
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
        """A caller's workspace as int64 words."""
        if workspace is None:
            return None
        torch = import_torch()
        if not isinstance(workspace, torch.Tensor) or str(workspace.device) != self.device:
            where = getattr(workspace, "device", type(workspace).__name__)
            raise InvalidProblemError(
                f"workspace: expected a torch tensor on {self.device}, got {where}"
            )
        if not workspace.is_contiguous():
            raise InvalidProblemError("workspace: expected a contiguous tensor, got a strided one")
        size = workspace.numel() * workspace.element_size()
        if size < self.workspace_size:
            raise WorkspaceTooSmallError(self.workspace_size, size)
        if self.workspace_size and workspace.data_ptr() % 8:
            raise MisalignedOperandError(
                "workspace: expected an address that is a multiple of 8, got "
                f"{workspace.data_ptr():#x}"
            )
        return workspace.view(-1).view(torch.uint8)[: size // 8 * 8].view(torch.int64)

    def _start(self, kernel: Any, programs: int, given: list[Any], **named: Any) -> None:
        if programs > _MOST_PROGRAMS:
            raise UnsupportedError(f"{programs} programs are more than a GPU launches at once")
        kernel[(programs,)](*given, **named)


class RowRunner(TritonRunner):
    """Scans, reductions, softmax and lerp, with a launch kept for every set of strides."""

    def __init__(self, problem: Problem, device: Device):
        from .launch import workspace_bound

        super().__init__(problem, device)
        self.workspace_size = workspace_bound(problem)
        self._launches: dict[tuple, Any] = {}

    def _launch(self, views: dict[str, View], workspace: Any) -> None:
        from .launch import Launch, options

        torch = import_torch()
        op = self.problem.op
        outputs = [views[n] for n in op.outputs if n in views]
        in_place = any(same_memory(views[n], out) for n in op.inputs for out in outputs)
        key = (in_place, *((n, v.strides) for n, v in views.items()))
        launch = self._launches.get(key)
        if launch is None:
            strides = {n: v.strides for n, v in views.items()}
            launch = self._launches[key] = Launch(self.problem, strides, in_place)
        operands = [pointer(views[n]) for n in launch.operands]
        kept = []
        if launch.workspace:
            if workspace is None:
                workspace = torch.empty(
                    launch.workspace // 8, dtype=torch.int64, device=self.device
                )
            kept = [workspace.view(torch.float64)]
        for step in launch.steps:
            given = [*operands, *(kept if step.uses_workspace else []), *step.numbers]
            named = {**step.meta, **options(step, self._device.backend)}
            self._start(step.kernel, step.programs, given, **named)


class SegmentRunner(TritonRunner):
    """Segment sums and their backward."""

    def __init__(self, problem: SegmentProblem, device: Device):
        from ...interop import DTYPES
        from .tiles import choose_segment_tile

        super().__init__(problem, device)
        self._found: Any = None
        self._item = DTYPES[problem.element].itemsize
        self._tile = choose_segment_tile(
            self._item, problem.num_inputs, problem.embedding_dim, problem.num_segments
        )
        self._forward = problem.op.direction == "forward"
        self.workspace_size = 8 * sum(self._sizes().values())

    def _sizes(self) -> dict[str, int]:
        """Words of the workspace by what they hold."""
        problem, parts = self.problem, self._tile.parts
        if not self._forward:
            return {}
        sizes = {"starts": problem.num_segments + 1}
        if not problem.is_sorted:
            sizes |= {"order": problem.num_inputs, "keys": problem.num_inputs}
        if parts > 1:
            sizes["parts"] = parts * problem.num_segments * problem.embedding_dim
        return sizes

    def _launch(self, views: dict[str, View], workspace: Any) -> None:
        if self._checks():
            self._note(views["segment_ids"])
        if self._forward:
            self._sum(views, workspace)
        else:
            self._gather(views)

    def _gather(self, views: dict[str, View]) -> None:
        from .segment import gather
        from .tiles import choose_gather_tile

        problem = self.problem
        tile = choose_gather_tile(self._item, problem.embedding_dim)
        tiles = -(-problem.embedding_dim // tile.columns)
        values, ids, result = views["d_output"], views["segment_ids"], views["d_input"]
        given = [
            *(pointer(v) for v in (values, ids, result)),
            *(problem.num_inputs, problem.embedding_dim, problem.num_segments, tiles),
            *(s // v.itemsize for v in (ids, values, result) for s in v.strides),
        ]
        programs = -(-problem.num_inputs // tile.rows) * tiles
        self._start(gather, programs, given, R=tile.rows, C=tile.columns, num_warps=tile.warps)

    def _sum(self, views: dict[str, View], workspace: Any) -> None:
        from .segment import find_starts, make_sum_kernel

        torch = import_torch()
        problem, tile = self.problem, self._tile
        values, ids, result = views["input"], views["segment_ids"], views["output"]
        if workspace is None:
            workspace = torch.empty(self.workspace_size // 8, dtype=torch.int64, device=self.device)
        held = dict(zip(self._sizes(), workspace.split(list(self._sizes().values())), strict=False))
        keys, key_stride, order = pointer(ids), ids.strides[0] // ids.itemsize, []
        if not problem.is_sorted:
            tensor = _as_tensor(ids)
            keys = held["keys"].view(tensor.dtype)[: problem.num_inputs]
            torch.sort(tensor, stable=True, out=(keys, held["order"]))
            key_stride, order = 1, [held["order"]]
        rows, segments, columns = problem.num_inputs, problem.num_segments, problem.embedding_dim
        given = [keys, held["starts"], rows, segments, key_stride, rows.bit_length()]
        self._start(find_starts, -(-(segments + 1) // 128), given, B=128, num_warps=4)
        tiles = -(-columns // tile.columns)
        numbers = [columns, segments, tiles, tile.parts]
        value_strides = [s // values.itemsize for s in values.strides]
        result_strides = [s // result.itemsize for s in result.strides]
        meta = {"R": tile.rows, "C": tile.columns, "num_warps": tile.warps}
        programs = segments * tiles
        options = {**meta, "enable_fp_fusion": False}

        def kernel(phase: str) -> Any:
            return make_sum_kernel(problem.formula, problem.element, bool(order), phase)

        read = [pointer(values), held["starts"], *order]
        if tile.parts == 1:
            given = [*read, pointer(result), *numbers, *value_strides, *result_strides]
            self._start(kernel("all"), programs, given, **options)
            return
        parts = held["parts"].view(torch.float64)
        given = [*read, parts, *numbers, *value_strides]
        self._start(kernel("part"), programs * tile.parts, given, **options)
        given = [parts, pointer(result), *numbers, *result_strides]
        self._start(kernel("join"), programs, given, **options)

    # Ids.

    def _checks(self) -> bool:
        problem = self.problem
        return problem.num_inputs > 0 and not (problem.drops and not self._wants_order())

    def _wants_order(self) -> bool:
        return self.problem.is_sorted and self._forward

    def _note(self, ids: View) -> None:
        """Look for ids the plan forbids; what is found stays on the device."""
        from .segment import FINE, check_ids

        torch = import_torch()
        problem = self.problem
        if self._found is None:
            self._found = torch.full((2,), FINE, dtype=torch.int64, device=self.device)
        stride = ids.strides[0] // ids.itemsize
        given = [pointer(ids), self._found, problem.num_inputs, problem.num_segments, stride]
        named = {"SORTED": self._wants_order(), "B": 1024, "num_warps": 4}
        self._start(check_ids, -(-problem.num_inputs // 1024), given, **named)

    def check(self, views: dict[str, View]) -> None:
        """Raise for ids the plan forbids. Waits for the device."""
        if not self._checks():
            return
        ids = views["segment_ids"]
        earlier, self._found = self._found, None
        try:
            with on_stream(self._device, None):
                self._note(ids)
            self._raise(_as_tensor(ids))
        finally:
            self._found = earlier

    def raise_noted(self) -> None:
        """Raise if a run since the last call met ids the plan forbids. Waits for the device."""
        if self._found is not None:
            self._raise(None)

    def _raise(self, ids: Any) -> None:
        from .segment import FINE

        problem = self.problem
        outside, unordered = self._found.tolist()
        self._found = None

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
