"""The GPU backend: what a plan asks of it."""

from __future__ import annotations

from typing import Any

from ..core.declare import Type
from ..core.problem import Problem
from ..core.vocabulary import ElementKind, MathPrecision, PrecisionGuarantee, Stream
from ..errors import (
    InvalidProblemError,
    MisalignedOperandError,
    UnsupportedError,
    WorkspaceTooSmallError,
)
from ..formulas.record import RowFormula, is_pointwise, repeats
from ..memory.overlap import same_memory
from ..memory.tensor_ref import TensorRef
from ..memory.view import DTYPES, View
from .again import Again, lie_of
from .device import (
    Device,
    current_device,
    finish,
    import_torch,
    is_current,
    on_stream,
    outlives_stream,
)
from .starts import TWIN, Start

# Launches that a runner keeps.
MOST_LAUNCHES = 256
# Farther than any offset.
FAR = 2**62


def make_runner(problem: Problem) -> TritonRunner:
    """A runner on the device that is current now."""
    device = current_device()
    formula = problem.formula
    if isinstance(formula, RowFormula) and any(step.start for step in formula.passes):
        raise UnsupportedError(f"{problem.op.name}: a fold that begins from a state, on a GPU")
    if problem.is_segmented:
        return SegmentRunner(problem, device)
    return RowRunner(problem, device)


def guarantee(problem: Problem) -> PrecisionGuarantee:
    """What holds on a GPU: arithmetic in the compute type, an order that depends on the layout."""
    from .frame import COMPUTE, monoids_of
    from .launch import is_fast

    formula = problem.formula
    wide = COMPUTE[problem.element] == "tl.float64" or repeats(formula)
    sums = isinstance(formula, RowFormula) and any(m.sums for m in monoids_of(formula))
    return PrecisionGuarantee(
        math_precision=MathPrecision.F64 if wide else MathPrecision.F32,
        accumulator=ElementKind.F64 if wide else ElementKind.F32,
        bit_stable_across_layouts=is_pointwise(formula),
        compensated=sums and is_fast(problem) and not (wide or problem.is_segmented),
    )


class Pointer:
    """What Triton asks of an operand: an address, a type, and how far offsets from it reach.

    AMD's buffer instructions take offsets without a sign, in 32 bits. Triton uses them where it is
    told that a pointer's range is as short, and so it is told another where a stride is negative.
    """

    __slots__ = ("_address", "_reach", "dtype")

    def __init__(self, v: View, address: int):
        self._address = address
        self.dtype = getattr(import_torch(), DTYPES[v.dtype].name)
        steps = [(n - 1) * s for n, s in zip(v.shape, v.strides, strict=True)]
        self._reach = FAR if min(steps, default=0) < 0 else sum(steps) + v.itemsize

    def data_ptr(self) -> int:
        """The address."""
        return self._address

    def ptr_range(self) -> int:
        """Bytes from there on."""
        return self._reach


def pointer(v: View, skipped: int = 0) -> Any:
    """What a kernel is given for a view, from so many bytes after its first element on.

    In the interpreter that is a tensor.
    """
    base = owner_of(v)
    if v.device != "cpu":
        return Pointer(v, v.address + skipped)
    return base_tensor(base, v, skipped)


def pointers_to(views: dict[str, View]) -> dict[str, Any]:
    """What kernels are given for operands, and for the twins of those at odd addresses."""
    held = {n: pointer(v) for n, v in views.items()}
    for n, v in views.items():
        if v.address % 16:
            # A twin is never read; the interpreter's addresses are those of its tensors.
            held[TWIN + n] = held[n] if v.device == "cpu" else pointer(v, -(v.address % 16))
    return held


def owner_of(v: View) -> Any:
    """The tensor whose memory a view is."""
    base = v.owner.data if isinstance(v.owner, TensorRef) else v.owner
    if not isinstance(base, import_torch().Tensor):
        raise InvalidProblemError(
            f"expected torch tensors on {v.device}, got {type(base).__name__}; torch.from_dlpack "
            "makes one of it without a copy"
        )
    return base


def base_tensor(base: Any, v: View, skipped: int = 0) -> Any:
    """A tensor that begins where a view of it does; its shape and strides mean nothing."""
    offset = v.address + skipped - base.data_ptr()
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
        self._launches: dict[tuple, Any] = {}
        operands = (*problem.reads, *problem.writes)
        self._flexible = [o.name for o in operands if o.type in (Type.INDEX, Type.STATE)]

    def _launch_for(self, views: dict[str, View], in_place: bool = False) -> Any:
        """The launch for a set of strides and types, made when it is first met."""
        dtypes = {n: views[n].dtype for n in self._flexible if n in views}
        odd = tuple(n for n, v in views.items() if v.address % 16)
        key = (in_place, odd, *dtypes.values(), *((n, v.strides) for n, v in views.items()))
        launch = self._launches.get(key)
        if launch is None:
            if len(self._launches) >= MOST_LAUNCHES:
                self._launches.clear()
            launch = self._make_launch(views, in_place, dtypes, odd)
            # All of them first: what raises has written nothing.
            twins = (TWIN + n for n in odd)
            named = {*views, *twins}
            launch.starts = [Start(step, self._device, named) for step in launch.steps]
            self._launches[key] = launch
        return launch

    def _make_launch(
        self,
        views: dict[str, View],
        in_place: bool,
        dtypes: dict[str, str],
        odd: tuple[str, ...],
    ) -> Any:
        raise NotImplementedError

    def run(
        self, views: dict[str, View], workspace: Any, stream: Stream | None, key: Any = None
    ) -> None:
        """Launch on checked, non-empty operands; nothing waits for the device.

        ``key`` is what ``key_of`` says of them.
        """
        with on_stream(self._device, stream.cuda if stream else None):
            self._launch(views, self._words(workspace), key)

    def _launch(self, views: dict[str, View], workspace: Any, key: Any) -> None:
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
        if workspace.data_ptr() % 16:
            # Triton would lay out the states of chunks otherwise, and join them in another order.
            raise MisalignedOperandError(
                "workspace: expected an address that is a multiple of 16, got one "
                f"{workspace.data_ptr() % 16} bytes beyond"
            )
        size = workspace.numel() * workspace.element_size()
        return workspace.view(-1).view(torch.uint8)[: size // 8 * 8].view(torch.int64)

    def key_of(self, operands: dict[str, Any]) -> Any:
        """How operands lie, where a run may be repeated; None where it is not."""
        return None

    def run_again(self, key: Any) -> bool:
        """Repeat a run on other addresses, if there was one on operands that lie the same way."""
        return False


class RowRunner(TritonRunner):
    """Scans, reductions, softmax and lerp."""

    def __init__(self, problem: Problem, device: Device):
        from .launch import workspace_bound

        super().__init__(problem, device)
        self.workspace_size = workspace_bound(problem, device.room)
        self._names = [o.name for o in (*problem.reads, *problem.writes)]
        self._again: dict[tuple[Any, ...], Again] = {}
        self._tensor = import_torch().Tensor

    def key_of(self, operands: dict[str, Any]) -> Any:
        if len(operands) != len(self._names):
            return None
        return lie_of([operands.get(n) for n in self._names], self._tensor)

    def run_again(self, key: Any) -> bool:
        lie, addresses = key
        again = self._again.get(lie)
        if again is None or not again.fits(addresses):
            return False
        held = again.held(addresses)
        if is_current(self._device):
            self._begin(again.launch, held, None)
        else:
            with on_stream(self._device, None):
                self._begin(again.launch, held, None)
        return True

    def _make_launch(
        self,
        views: dict[str, View],
        in_place: bool,
        dtypes: dict[str, str],
        odd: tuple[str, ...],
    ) -> Any:
        from .launch import Launch

        strides = {n: v.strides for n, v in views.items()}
        return Launch(self.problem, strides, in_place, dtypes, odd, self._device.room)

    def _launch(self, views: dict[str, View], workspace: Any, key: Any) -> None:
        op = self.problem.op
        outputs = [views[n] for n in op.outputs if n in views]
        inputs = [views[n] for n in op.inputs if n in views]
        in_place = any(same_memory(v, out) for v in inputs for out in outputs)
        launch = self._launch_for(views, in_place)
        self._begin(launch, pointers_to(views), workspace)
        if key is None or in_place or views.keys() != set(self._names):
            return
        if all(start.is_ready for start in launch.starts):
            if len(self._again) >= MOST_LAUNCHES:
                self._again.clear()
            ordered = {n: views[n] for n in self._names}
            self._again[key[0]] = Again(launch, ordered, op.outputs)

    def _begin(self, launch: Any, held: dict[str, Any], workspace: Any) -> None:
        """Start the kernels of a launch."""
        if launch.workspace:
            torch = import_torch()
            words = launch.workspace // 8
            if workspace is None:
                workspace = torch.empty(words, dtype=torch.int64, device=self.device)
            elif workspace.numel() < words:
                raise WorkspaceTooSmallError(launch.workspace, 8 * workspace.numel())
            held["workspace"] = workspace.view(torch.float64)
        for start in launch.starts:
            start(held)


class SegmentRunner(TritonRunner):
    """Ops on rows that ids or offsets cut into segments."""

    def __init__(self, problem: Problem, device: Device):
        from .segment import by_offsets, has_runs, order_of, workspace_words

        super().__init__(problem, device)
        self._by, self._by_offsets = problem.cut_by.name, by_offsets(problem)
        self._sorts = has_runs(problem) and order_of(problem) == "unsorted"
        self._wants_order = has_runs(problem) and not self._sorts
        self._words_of = workspace_words(problem)
        self._looks: dict[tuple[Any, ...], Start] = {}
        self.workspace_size = 8 * sum(self._words_of.values())
        # Rows with ids that the plan forbids, met by any run since the plan was asked for them.
        self._found: Any = None
        if self._checks():
            self._found = self._nothing_found()
            # Whatever stream a run goes to, it finds the rows filled in.
            finish(device)

    def _make_launch(
        self,
        views: dict[str, View],
        in_place: bool,
        dtypes: dict[str, str],
        odd: tuple[str, ...],
    ) -> Any:
        from .segment import SegmentLaunch

        strides = {n: tuple(s // v.itemsize for s in v.strides) for n, v in views.items()}
        return SegmentLaunch(self.problem, strides, dtypes, odd)

    def _launch(self, views: dict[str, View], workspace: Any, key: Any) -> None:
        torch = import_torch()
        ids = views[self._by]
        launch = self._launch_for(views)
        if self._found is not None:
            self._note(ids, self._found)
            outlives_stream(self._found)
        held = pointers_to(views)
        if self._words_of and workspace is None:
            workspace = torch.empty(self.workspace_size // 8, dtype=torch.int64, device=self.device)
        start = 0
        for name, words in self._words_of.items():
            held[name] = workspace[start : start + words]
            start += words
        if self._by_offsets:
            held["ends"] = pointer(ids, ids.strides[0])
        elif self._words_of:
            # What no row tells of is a segment without rows.
            workspace[: self._words_of["starts"] + self._words_of["ends"]].zero_()
        if "workspace" in held:
            held["workspace"] = held["workspace"].view(torch.float64)
        if self._sorts:
            tensor, count = _as_tensor(ids), self.problem.num_inputs
            held["keys"] = held["keys"].view(tensor.dtype)[:count]
            held["order"] = held["order"][:count]
            torch.sort(tensor, stable=True, out=(held["keys"], held["order"]))
        for start in launch.starts:
            start(held)

    # Ids.

    def _checks(self) -> bool:
        may_be_outside = self.problem.drops and not self._by_offsets
        any_given = self.problem.num_inputs > 0 or self._by_offsets
        return any_given and not (may_be_outside and not self._wants_order)

    def _nothing_found(self) -> Any:
        """The first row out of range and the first out of order, neither of them met yet."""
        from .segment import FINE

        torch = import_torch()
        return torch.full((2,), FINE, dtype=torch.int64, device=self.device)

    def _note(self, ids: View, found: Any) -> None:
        """Look for ids the plan forbids; what is found stays on the device."""
        from .segment import check_step

        kind = (ids.strides[0] // ids.itemsize, ids.dtype, ids.address % 16)
        start = self._looks.get(kind)
        if start is None:
            step = check_step(self.problem, kind[0], self._wants_order, ids.dtype)
            start = self._looks[kind] = Start(step, self._device, (self._by,))
        start({self._by: pointer(ids), "found": found})

    def check(self, views: dict[str, View], threads: int = 1) -> None:
        """Raise for ids the plan forbids. Waits for the current stream."""
        if self._found is None:
            return
        ids = views[self._by]
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

        if outside < FINE and self._by_offsets:
            raise InvalidProblemError(
                f"{self._by}: expected offsets in [0, {problem.num_inputs}], got {at(outside)}"
            )
        if outside < FINE and not problem.drops:
            raise InvalidProblemError(
                f"{self._by}: expected ids in [0, {problem.num_segments}), got {at(outside)} "
                f"(out_of_range='drop' would skip it)"
            )
        if unordered < FINE and self._wants_order:
            what = "offsets" if self._by_offsets else "ids"
            plan = "" if self._by_offsets else " for a sorted plan"
            raise InvalidProblemError(
                f"{self._by}: expected {what} in ascending order{plan}, got {at(unordered)} after "
                f"a greater one"
            )


def _as_tensor(ids: View) -> Any:
    """Ids as a torch tensor; torch has no negative strides, so those are turned round by a copy."""
    base, n, stride = base_tensor(owner_of(ids), ids), ids.shape[0], ids.strides[0] // ids.itemsize
    if stride >= 0:
        return base.as_strided((n,), (stride,), base.storage_offset())
    last = base.storage_offset() + (n - 1) * stride
    return base.as_strided((n,), (-stride,), last).flip(0)
