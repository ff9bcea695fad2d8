"""Calls on plain CPU tensors: a launch prepared once for each layout, then only given addresses.

Results are always new tensors, so nothing can overlap, and the checks of a plan are made once, when
the launch is prepared. What is left for a call is to look the launch up, make the result, write the
addresses into a copy of the launch's parameter block and run the kernel: about 3 µs, of which 1 is
torch's for the new tensor.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor

from ..api.plan import Runnable
from ..core.declare import Op
from ..core.vocabulary import PlanPreference
from ..cpu.codegen.block import SCRATCH
from ..cpu.launch import Launch, run_phases
from ..errors import UnsupportedError
from ..memory.large_pages import LARGE, use_large_pages
from ..threads import get_num_threads
from .families import ELEMENTS, Family, Parameters

PLAIN = frozenset({Tensor, torch.nn.Parameter})
_MOST_LAUNCHES = 4096


class Prepared:
    """What is known of calls with one set of shapes and strides.

    Attributes
    ----------
    params, backward_params
        Parameters with dims counted from the front, of this call and of its backward.
    shape
        Shape of the result of a reduction; None where the result is laid out like the operand.
    has_kernel
        False where there is nothing for a kernel to do.
    """

    __slots__ = (
        "_large",
        "_phases",
        "_places",
        "_template",
        "_traffic",
        "_workspace",
        "backward_params",
        "has_kernel",
        "misaligned",
        "params",
        "shape",
        "threads",
    )

    def __init__(self, params: Parameters, backward_params: Parameters, item: int) -> None:
        self.params = params
        self.backward_params = backward_params
        self.misaligned = item - 1
        self.threads = get_num_threads()
        self.has_kernel = False
        self.shape: torch.Size | None = None

    def set_launch(self, launch: Launch, names: tuple[str, ...], results: Sequence[Tensor]) -> None:
        """Take over a launch; addresses will come in the order of ``names``, results last."""
        self.has_kernel = True
        before = len(names) - len(results)
        sizes = [(before + k, t.numel() * t.element_size()) for k, t in enumerate(results)]
        self._large = [(which, nbytes) for which, nbytes in sizes if nbytes >= LARGE]
        self._template = array("q", launch.template.tolist())
        self._places = [
            (word, names.index(source), offset) for word, source, offset in launch.operand_words()
        ]
        self._phases, self._traffic = launch.phases, launch.traffic
        self._workspace = launch.workspace

    def run(self, tensors: tuple[Tensor, ...], *addresses: int) -> None:
        """Run on operands and results, and their addresses."""
        block = self._template[:]
        for which, nbytes in self._large:
            use_large_pages(addresses[which], nbytes)
        for word, which, offset in self._places:
            block[word] = addresses[which] + offset
        own = None
        if self._workspace:
            own = torch.empty(self._workspace, dtype=torch.uint8, device="cpu")
            block[SCRATCH] = own.data_ptr()
        run_phases(self._phases, block, self._traffic, self.threads, (tensors, own))


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
    """One op on plain CPU tensors.

    ``otherwise`` is called with the same arguments where there is nothing for a kernel to do: no
    elements, a dtype beyond the four, or parameters for which torch means something else.
    ``dispatched`` is called where a tensor turns out to have no memory: those that
    ``torch.autograd.grad(is_grads_batched=True)`` makes look plain in every other way.
    """

    def __init__(
        self,
        family: Family,
        op: Op,
        otherwise: Callable[..., Any],
        dispatched: Callable[..., Any],
    ) -> None:
        self._family, self._op = family, op
        self._otherwise, self._dispatched = otherwise, dispatched
        self._names = (*family.operands(op), *op.outputs)
        self._prepared: dict[tuple[Any, ...], Prepared] = {}
        self._empty = family.empty
        self._weighted = "weight" in family.parameters

    def __call__(self, params: Parameters, *tensors: Tensor) -> Any:
        """The result."""
        return self.run(params, *tensors)[0]

    def run_one(self, params: Parameters, x: Tensor) -> tuple[Any, Prepared]:
        """:meth:`run` for one operand and one result, which is most forwards."""
        try:
            prepared = self._prepared.get((params, x.dtype, x.shape, x.stride()))
        except RuntimeError:  # no strides
            return self.run(params, x)
        if prepared is not None and prepared.has_kernel and prepared.threads == get_num_threads():
            try:
                address = x.data_ptr()
            except RuntimeError:
                return self.run(params, x)
            if address and not address & prepared.misaligned and not x.is_neg():
                shape = prepared.shape
                y = torch.empty_like(x) if shape is None else x.new_empty(shape)
                prepared.run((x, y), address, y.data_ptr())
                return y, prepared
        return self.run(params, x)

    def run(self, params: Parameters, *tensors: Tensor) -> tuple[Any, Prepared]:
        """The result, and what was prepared for it."""
        try:
            layouts = [v for t in tensors for v in (t.dtype, t.shape, t.stride())]
        except RuntimeError:
            check_dense(tensors)
            raise
        key: tuple[Any, ...] = (params, *layouts)
        if self._weighted and params[0] == 0:
            key = (*key, str(params[0]))  # 0.0 equals -0.0, the results do not
        prepared = self._prepared.get(key)
        if prepared is None or prepared.threads != get_num_threads():
            if any(map(is_legacy_batchedtensor, tensors)):
                return self._run_dispatched(params, tensors)
            check_dense(tensors)
            if tensors[0].dtype in ELEMENTS:
                # What is prepared has the strides of its key: a copy has others, and its own key.
                usable = tuple(map(readable, tensors))
                if any(u is not t for u, t in zip(usable, tensors, strict=True)):
                    return self.run(params, *usable)
            prepared = self._prepare(key, params, tensors)
        if not prepared.has_kernel:
            check_dense(tensors)
            return self._otherwise(prepared.params, *tensors), prepared
        addresses = []
        for t in tensors:
            try:
                address = t.data_ptr()
            except RuntimeError:
                return self._run_dispatched(params, tensors)
            if not address or address & prepared.misaligned or t.is_neg():
                return self.run(params, *map(readable, tensors))
            addresses.append(address)
        results = self._empty(self._op, prepared.params, *tensors)
        if len(results) == 1:
            prepared.run((*tensors, *results), *addresses, results[0].data_ptr())
            return results[0], prepared
        prepared.run((*tensors, *results), *addresses, *[t.data_ptr() for t in results])
        return results, prepared

    def _run_dispatched(
        self, params: Parameters, tensors: tuple[Tensor, ...]
    ) -> tuple[Any, Prepared]:
        check_dense(tensors)
        prepared = self._describe(params, tensors)
        return self._dispatched(*tensors, *prepared.params), prepared

    def _describe(self, params: Parameters, tensors: tuple[Tensor, ...]) -> Prepared:
        backward_params = params
        if self._op.direction == "forward":
            params = self._family.canonical(params, tensors[0])
            backward_params = self._family.backward_parameters(params, tensors[0])
        return Prepared(params, backward_params, tensors[0].element_size())

    def _prepare(
        self, key: tuple[Any, ...], params: Parameters, tensors: tuple[Tensor, ...]
    ) -> Prepared:
        family, op = self._family, self._op
        prepared = self._describe(params, tensors)
        params = prepared.params
        if tensors[0].dtype in ELEMENTS and not family.is_degenerate(op, params, *tensors):
            results = family.empty(op, params, *tensors)
            views = family.views(op, params, *tensors, *results)
            if all(0 not in v.shape for v in views.values()):
                problem = family.problem(op, params, *tensors)
                Runnable(problem, PlanPreference()).check(views)
                strides = {n: v.strides for n, v in views.items()}
                launch = Launch(problem, strides, prepared.threads)
                prepared.set_launch(launch, self._names, results)
                if results[0].shape != tensors[0].shape:
                    prepared.shape = results[0].shape
        if len(self._prepared) >= _MOST_LAUNCHES:
            self._prepared.clear()
        self._prepared[key] = prepared
        return prepared
