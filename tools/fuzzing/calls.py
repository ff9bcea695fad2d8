"""One case, made and judged."""

from __future__ import annotations

from typing import Any

import numpy as np

import pullback as pb
from cells import as_tuple
from fuzzing.cases import Case
from fuzzing.compare import find_wrong, same_results
from fuzzing.definitions import expected
from fuzzing.memory import Arena, Placed


class Wrong(Exception):
    """What a case found."""


class Memory:
    """An arena for every operand, reused from case to case."""

    def __init__(self) -> None:
        self._arenas: dict[str, Arena] = {}

    def arena(self, name: str) -> Arena:
        return self._arenas.setdefault(name, Arena())

    def place(self, case: Case) -> tuple[dict[str, Placed], dict[str, Placed]]:
        """Operands with their values, and outputs of poison; one that is in place is in both."""
        cell = case.cell
        inputs = {}
        for name, values in case.operands.items():
            inputs[name] = self.arena(name).place(values.shape, values.dtype, case.layouts[name])
            writable = inputs[name].array
            writable[...] = values
        outputs = {}
        for k, name in enumerate(cell.outputs):
            if case.in_place and not k:
                outputs[name] = inputs[case.in_place]
            else:
                layout = case.layouts[name]
                outputs[name] = self.arena(name).place(
                    cell.shape_of(name), cell.dtype_of(name), layout
                )
        for placed in (*inputs.values(), *outputs.values()):
            placed.remember()
        return inputs, outputs


def as_torch(array: Any) -> Any:
    """A tensor on the same memory; None where torch has no such strides."""
    import torch

    if any(s < 0 for s in array.strides) or not array.flags.writeable:
        return None
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def from_torch(tensor: Any, dtype: Any) -> Any:
    import torch

    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(dtype)
    return tensor.numpy()


def call_function(case: Case, arrays: dict[str, Any], outs: list[Any] | None) -> tuple[Any, ...]:
    out = None if outs is None else outs[0] if len(outs) == 1 else outs
    result: tuple[Any, ...] = as_tuple(case.cell.call(arrays, out, getattr(pb, case.cell.op.name)))
    if outs is not None and any(a is not b for a, b in zip(result, outs, strict=True)):
        raise Wrong("out= was not returned")
    return result


def call(case: Case, memory: Memory, arrays: dict[str, Any], outs: list[Any]) -> tuple[Any, ...]:
    """The results of the call that the case describes."""
    cell = case.cell
    names = cell.outputs
    if case.form == "plan":
        plan = cell.plan(case.threads)
        workspace = memory.arena("workspace").flat(plan.workspace_size) if case.workspace else None
        plan.run(**arrays, **dict(zip(names, outs, strict=True)), workspace=workspace)
        return tuple(outs)
    pb.set_num_threads(case.threads)
    if case.form == "torch memory":
        tensors = {n: as_torch(a) for n, a in arrays.items()}
        targets = [as_torch(a) for a in outs]
        if all(t is not None for t in (*tensors.values(), *targets)):
            results = call_function(case, tensors, targets if case.out else None)
            return tuple(from_torch(t, cell.dtype) for t in results)
    return call_function(case, arrays, outs if case.out else None)


def again(case: Case) -> tuple[Any, ...]:
    """The results from packed operands by a function, with another number of threads, twice.

    The second call finds what the first has left behind, and takes the shortest way there is.
    """
    pb.set_num_threads(case.other_threads)
    arrays = {n: np.array(a, order="C") for n, a in case.operands.items()}
    first = call_function(case, arrays, None)
    second = call_function(case, arrays, None)
    for a, b in zip(first, second, strict=True):
        if not same_results(np.asarray(a), np.asarray(b)):
            raise Wrong("the same call gave other bytes the second time")
    return second


def run(case: Case, memory: Memory) -> None:
    """Raise :class:`Wrong` for whatever is not as promised."""
    inputs, outputs = memory.place(case)
    arrays = {n: p.array for n, p in inputs.items()}
    names = case.cell.outputs
    outs = [outputs[n].array for n in names]
    if case.in_place:
        outs[0] = arrays[case.in_place]
    results = call(case, memory, arrays, outs)
    for name, placed in inputs.items():
        if name != case.in_place and not placed.is_unchanged():
            raise Wrong(f"the input {name} was written")
    for name, placed in outputs.items():
        if not case.out and not placed.is_unchanged():
            raise Wrong(f"{name} was written by a call without out=")
        wrong = placed.written_wrongly()
        if wrong:
            raise Wrong(f"{name}: {wrong}")
    exact = expected(case.cell, case.operands)
    plain = [np.array(r, order="C") for r in results]
    for name, result in zip(names, plain, strict=True):
        if result.shape != case.cell.shape_of(name) or result.dtype != case.cell.dtype:
            raise Wrong(f"{name} has shape {result.shape} and dtype {result.dtype}")
        wrong = find_wrong(case.cell, result, exact[name], case.operands)
        if wrong:
            raise Wrong(f"{name}: {wrong}")
    for name, a, b in zip(names, plain, again(case), strict=True):
        if not same_results(a, np.asarray(b)):
            raise Wrong(
                f"{name} has other bytes from packed operands and {case.other_threads} threads"
            )
