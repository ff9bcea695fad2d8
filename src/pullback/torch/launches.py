"""Calls on plain CPU tensors: a launch prepared once for each layout, then only given addresses.

Results are always new tensors, so nothing can overlap, and the checks of a plan are made once, when
the launch is prepared. What is left for a call is to look the launch up, make the result, write the
addresses into a copy of the launch's parameter block and run the kernel: about 3 µs, of which 1 is
torch's for the new tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import copysign
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C._autograd import _profiler_enabled as profiling
from torch._C._functorch import is_legacy_batchedtensor
from torch._C._profiler import _RecordFunctionFast as Record

from ..api.arrange import cut_into_rows, widened
from ..api.plan import Runnable
from ..core.declare import Type
from ..core.vocabulary import PlanPreference
from ..cpu.builtin import builtin
from ..cpu.launch import Launch
from ..cpu.program import Program
from ..cpu.segment_launch import SegmentLaunch
from ..errors import UnsupportedError
from ..memory.large_pages import LARGE
from ..precision import forgets
from ..threads import get_num_threads
from .arrays import ELEMENTS
from .forms import DTYPES, Form, Parameters, unpacked
from .looks import Fine, make_look
from .written import make_run

if TYPE_CHECKING:
    from .operations import Operation

PLAIN = frozenset({Tensor, torch.nn.Parameter})
_MOST_LAUNCHES = 4096


class Prepared:
    """What is known of calls with one set of shapes and strides.

    Attributes
    ----------
    params, backward_params
        Parameters with dims counted from the front, of this call and of its backward.
    made
        Sizes and strides of every result.
    has_kernel
        False where there is nothing for a kernel to do.
    by_function
        Whether the functions of ``pullback`` are to run it: without elements, or where rows of
        segments are no table.
    fine
        ``fine(addresses, tensors)`` of operands: whether their values are as they must be; None
        where there is nothing to look at.
    run
        ``run(addresses, tensors)`` of operands and results.
    label
        What a profiler calls it.
    misaligned, low_bits
        For each operand, the bits of an address that would make it one, and all of these.
    native, address, again
        ``native(address, *addresses)``, and ``again(*addresses)`` if that is not 0, do what ``run``
        does; the address is 0 where they do not.
    """

    __slots__ = (
        "address",
        "again",
        "backward_params",
        "by_function",
        "fine",
        "has_kernel",
        "label",
        "low_bits",
        "made",
        "misaligned",
        "native",
        "params",
        "run",
        "threads",
    )

    def __init__(
        self, params: Parameters, backward_params: Parameters, tensors: Sequence[Tensor]
    ) -> None:
        self.params = params
        self.backward_params = backward_params
        self.misaligned = [t.element_size() - 1 for t in tensors]
        self.threads = get_num_threads()
        self.has_kernel = False
        self.low_bits = max(self.misaligned)
        self.address = 0
        self.fine: Fine | None = None
        self.by_function = False

    def set_program(
        self, program: Program, names: tuple[str, ...], results: Sequence[Tensor], label: str
    ):
        """Take over a program, the last operands of which are new results."""
        self.made = tuple(v for t in results for v in (tuple(t.shape), t.stride()))
        sizes = [t.numel() * t.element_size() for t in results]
        new = dict(zip(names[-len(sizes) :], sizes, strict=True))
        program.mark_new({n: size for n, size in new.items() if size >= LARGE})
        self.has_kernel = True
        self.run, self.label = program.run, label
        if program.is_prompt and not program.workspace:
            self.address, self.again = program.address, program.run_again
            self.native = builtin("run_program")

    def recorded(self, addresses: tuple[int, ...], tensors: tuple[Tensor, ...]) -> None:
        """:meth:`run` under its name in a profile."""
        with Record(self.label):
            self.run(addresses, tensors)


def is_dense(t: Tensor) -> bool:
    """Whether a tensor is an array: not sparse, nested nor in a layout of a library's own."""
    return t.layout is torch.strided and not t.is_nested


def check_dense(tensors: Sequence[Tensor]) -> None:
    """Refuse tensors of torch's own type that are not arrays; subclasses are torch's to serve."""
    for t in tensors:
        if type(t) in PLAIN and not is_dense(t):
            what = "a nested tensor" if t.is_nested else f"one of layout {t.layout}"
            raise TypeError(
                f"expected a strided tensor, got {what}; make it dense, or call torch's function"
            )


def readable(t: Tensor) -> Tensor:
    """The same values in memory that a kernel can read: ``t`` itself if it is."""
    if t._is_zerotensor():
        return torch.zeros(t.shape, dtype=t.dtype, device=t.device)
    t = t.resolve_neg()
    address = t.data_ptr()
    if not address and t.numel():
        raise UnsupportedError("expected a tensor with memory of its own; its storage was freed")
    return t.clone() if address % t.element_size() else t


class Launcher:
    """One direction of an operation on plain CPU tensors.

    ``otherwise`` is called with the same arguments where there is nothing for a kernel to do: no
    elements, a dtype beyond the four, or parameters for which torch means something else.
    ``dispatched`` is called where a tensor turns out to have no memory: those that
    ``torch.autograd.grad(is_grads_batched=True)`` makes look plain in every other way.
    """

    def __init__(
        self,
        operation: Operation,
        form: Form,
        otherwise: Callable[..., Any],
        dispatched: Callable[..., Any],
    ) -> None:
        self._operation, self._form = operation, form
        self._otherwise, self._dispatched = otherwise, dispatched
        self._names = tuple(o.name for o in (*form.reads, *form.writes))
        self._label = f"pullback::{form.op.name}"
        self._prepared: dict[tuple[Any, ...], Prepared] = {}
        forgets(self._prepared.clear)
        self._reals = [k for k, p in enumerate(form.parameters) if p.kind.usual == "float"]
        self._flexible = [
            o.name for o in (*form.reads, *form.writes) if o.type in (Type.INDEX, Type.STATE)
        ]
        self._indices = [k for k, o in enumerate(form.reads) if o.type is Type.INDEX]
        # Where the ids tell how many segments there are, which no key does.
        self._counted = form.names.index("num_segments") if form.counts_segments else None
        # ``run(params, *tensors)``: the result, and what was prepared for it.
        self.run = make_run(form, self._prepared.get, self._run_long, self._counted)

    def __call__(self, params: Parameters, *tensors: Tensor) -> Any:
        """The result."""
        return self.run(params, *tensors)[0]

    def _run_long(self, params: Parameters, *tensors: Tensor) -> tuple[Any, Prepared]:
        """The same whatever is known of the call."""
        if self._counted is not None and params[self._counted] is None:
            params = self._form.canonical(params, tensors)
        try:
            layouts = [v for t in tensors for v in (t.dtype, t.shape, t.stride())]
        except RuntimeError:
            check_dense(tensors)
            raise
        key: tuple[Any, ...] = (params, *layouts)
        for k in self._reals:
            if params[k] == 0 and copysign(1, params[k]) < 0:
                key = (*key, k)  # 0.0 equals -0.0, the results do not
        prepared = self._prepared.get(key)
        if prepared is None or prepared.threads != get_num_threads():
            if any(map(is_legacy_batchedtensor, tensors)):
                return self._run_dispatched(params, tensors)
            check_dense(tensors)
            if tensors[self._form.lead].dtype in ELEMENTS:
                # What is prepared has the strides of its key: a copy has others, and its own key.
                usable = tuple(map(readable, tensors))
                if self._indices:
                    usable = tuple(
                        widened(t) if k in self._indices else t for k, t in enumerate(usable)
                    )
                if any(u is not t for u, t in zip(usable, tensors, strict=True)):
                    return self.run(params, *usable)
            prepared = self._prepare(key, params, tensors)
        if not prepared.has_kernel:
            check_dense(tensors)
            if prepared.by_function:
                return self._by_function(prepared, tensors)
            return self._otherwise(prepared.params, *tensors), prepared
        addresses = []
        for t, misaligned in zip(tensors, prepared.misaligned, strict=True):
            try:
                address = t.data_ptr()
            except RuntimeError:
                return self._run_dispatched(params, tensors)
            if not address or address & misaligned or t.is_neg():
                return self.run(params, *map(readable, tensors))
            addresses.append(address)
        if prepared.fine is not None and not prepared.fine(addresses, tensors):
            return self._by_function(prepared, tensors)
        run = prepared.recorded if profiling() else prepared.run
        lead, made = tensors[self._form.lead], iter(prepared.made)
        results = [
            lead.new_empty_strided(size, strides, dtype=DTYPES.get(o.type, lead.dtype))
            for o, size, strides in zip(self._form.writes, made, made, strict=True)
        ]
        run((*addresses, *[t.data_ptr() for t in results]), (*tensors, *results))
        return unpacked(results), prepared

    def _run_dispatched(
        self, params: Parameters, tensors: tuple[Tensor, ...]
    ) -> tuple[Any, Prepared]:
        check_dense(tensors)
        prepared = self._describe(params, tensors)
        return self._dispatched(*tensors, *prepared.params), prepared

    def _describe(self, params: Parameters, tensors: tuple[Tensor, ...]) -> Prepared:
        backward_params = params
        if self._form.op.direction == "forward":
            params = self._form.canonical(params, tensors)
            backward_params = self._operation.backward_parameters(params, tensors)
        return Prepared(params, backward_params, tensors)

    def _by_function(self, prepared: Prepared, tensors: tuple[Tensor, ...]) -> tuple[Any, Prepared]:
        """The long way, which says what is wrong with values and knows every shape."""
        if any(map(is_legacy_batchedtensor, tensors)):
            return self._run_dispatched(prepared.params, tensors)
        with Record(self._label) if profiling() else nullcontext():
            found = self._form.by_function(prepared.params, *map(readable, tensors))
        return found, prepared

    def _prepare(
        self, key: tuple[Any, ...], params: Parameters, tensors: tuple[Tensor, ...]
    ) -> Prepared:
        form = self._form
        prepared = self._describe(params, tensors)
        params = prepared.params
        if not self._operation.is_for_torch(form, params, tensors):
            results = form.empty(params, *tensors)
            if all(t.numel() for t in (*tensors, *results)):
                self._give_kernel(prepared, tensors, results)
            prepared.by_function = form.has_checks and not prepared.has_kernel
        if len(self._prepared) >= _MOST_LAUNCHES:
            self._prepared.clear()
        self._prepared[key] = prepared
        return prepared

    def _give_kernel(
        self, prepared: Prepared, tensors: Sequence[Tensor], results: Sequence[Tensor]
    ) -> None:
        form, threads = self._form, prepared.threads
        problem = form.problem(prepared.params, *tensors)
        views = form.views(problem, *tensors, *results)
        if problem.is_segmented:
            tables = cut_into_rows(form.op, views)
            if len(tables) != 1:
                return
            (views,) = tables
            width = views[form.reads[form.lead].name].shape[1]
            problem = replace(problem, shape=(problem.shape[0], width))
        fine: Fine | None = None
        if form.has_checks:
            fine = make_look(problem, views, threads)
            if fine is None:
                return
        Runnable(problem, PlanPreference()).check(views)
        strides = {n: v.strides for n, v in views.items()}
        dtypes = {n: views[n].dtype for n in self._flexible}
        launch: Launch | SegmentLaunch
        if problem.is_segmented:
            launch = SegmentLaunch(problem, strides, dtypes, threads)
        else:
            launch = Launch(problem, strides, threads, dtypes)
        prepared.set_program(launch.program, self._names, results, self._label)
        prepared.fine = fine
