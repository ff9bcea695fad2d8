"""What a call of a function comes to, its arguments being in their one form."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as transforms_active
from torch._C import _is_tracing as is_tracing
from torch._C import _len_torch_dispatch_stack as dispatch_modes
from torch.compiler import is_compiling

from ..api.arrange import borders
from ..errors import InvalidProblemError
from . import arguments
from .forms import as_tuple, one_dim
from .launches import PLAIN
from .operations import Kind, Operation
from .shards import gathered_whole, is_sharded, replicated


def with_more(operation: Operation, params: tuple[Any, ...], x: Tensor) -> Any:
    """Values and what else torch returns with them; values alone of what torch does not have."""
    y = operation.unary(params, x)
    values = operation.asked_more(params, x)
    if values is None:
        return y
    return operation.counterpart.result(x, y, **values)  # type: ignore[union-attr,misc]


def run_given(of: Kind, operands: dict[str, Any], values: dict[str, Any]) -> Any:
    """A call with operands that may be left out, that broadcast, or with outputs to ask for."""
    operation, params, tensors = chosen(of, operands, values)
    return run_operation(operation, params, *tensors)


def run_operation(operation: Operation, params: tuple[Any, ...], *tensors: Tensor) -> Any:
    """The results of an operation, and no more."""
    return operation(params, *tensors)


def chosen(
    of: Kind, operands: dict[str, Any], values: dict[str, Any]
) -> tuple[Operation, tuple[Any, ...], list[Tensor]]:
    """What a call comes to: the operation with the operands that are there, and these."""
    marks = of.marks
    if marks is not None and operands[marks.name] is not None:
        if operands[marks.symbol] is not None:
            raise InvalidProblemError(f"{marks.name}: expected it or {marks.symbol}, got both")
        lead = operands[of.pair.forward.inputs[0]]
        operands[marks.symbol] = _borders(operands[marks.name], lead, values["axis"], marks.name)
        operands[marks.name] = None
    given = of.ordered([n for n, t in operands.items() if t is not None])
    if of.cuts and len([n for n in of.cuts if n in given]) != 1:
        got = "both" if of.cuts[0] in given else "neither"
        raise InvalidProblemError(f"{of.cuts[0]}: expected {' or '.join(of.cuts)}, got {got}")
    operation = of.operation(given, tuple(n for n in of.flags if values[n]))
    form = operation.forward
    params = tuple([values[n] for n in form.names])
    tensors = [operands[o.name] for o in form.reads]
    return operation, params, form.stretched(params, tensors)


def _borders(offsets: Tensor, x: Tensor, dim: int, name: str) -> Tensor:
    """Where runs begin along a dimension, as a mask that broadcasts."""
    dim = one_dim(dim, x.dim())
    shape = tuple(x.shape)
    in_memory = type(offsets) in PLAIN and type(x) in PLAIN
    if in_memory and not is_compiling() and not transforms_active():
        marks = borders(offsets, shape, dim, name)
        return torch.as_tensor(marks, device=x.device)
    if is_sharded(x):
        # The same for every process; each takes its part where the dimension is sharded.
        whole = gathered_whole(offsets)
        return replicated(torch.as_tensor(borders(whole, shape, dim, name)), x)
    extent = shape[dim] if shape else 1
    none = torch.zeros(extent + 1, dtype=torch.bool, device=x.device)
    along = none.index_fill(0, offsets[:-1].long(), True)[:extent]
    return along.reshape([extent if k == dim else 1 for k in range(x.dim())])


# Results in tensors of the caller's.


def into(of: Kind, operands: dict[str, Any], values: dict[str, Any], out: Any) -> Any:
    """A call whose results are written to ``out``, as torch does it: without a gradient."""
    operation, params, tensors = chosen(of, operands, values)
    targets = as_tuple(out)
    for target in targets:
        if not isinstance(target, Tensor):
            arguments.refuse(of.name, "out", "Tensor", target)
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, *targets)):
        raise RuntimeError(
            f"{of.name}(): functions with out=... arguments don't support automatic "
            f"differentiation, but one of the arguments requires grad."
        )
    form, first = operation.forward, targets[0]
    params = form.canonical(params, tensors)
    has_more = operation is of.plain and bool(of.counterpart and of.counterpart.result)
    with torch.no_grad():
        is_one = len(targets) == 1 and not has_more
        if is_one and _takes_results(operation, params, tensors, first):
            form.by_function(params, *tensors, out=first)
            return out
        run = with_more if has_more else run_operation
        results = as_tuple(run(operation, params, *tensors))
        if len(results) != len(targets):
            raise TypeError(f"{of.name}(): expected {len(results)} tensors in 'out'")
        for target, result in zip(targets, results, strict=True):
            _fill(of.name, target, result)
    return out


def _takes_results(
    operation: Operation, params: tuple[Any, ...], tensors: Sequence[Tensor], out: Tensor
) -> bool:
    """Whether a kernel may write to a tensor what it would write to a new one."""
    form = operation.forward
    if is_compiling() or transforms_active() or dispatch_modes() or is_tracing():
        return False
    if not all(type(t) in PLAIN and t.is_cpu for t in (*tensors, out)):
        return False
    if len(form.writes) != 1 or operation.is_for_torch(form, params, tensors):
        return False
    like = form.empty(params, *(t.to("meta") for t in tensors))[0]
    return out.shape == like.shape and out.dtype == like.dtype


def _fill(function: str, out: Tensor, result: Tensor) -> None:
    """Put a result into a tensor of the caller's, which is resized if need be."""
    if not torch.can_cast(result.dtype, out.dtype):
        raise RuntimeError(
            f"{function}(): result type {result.dtype} can't be cast to the desired output type "
            f"{out.dtype}"
        )
    if out.shape != result.shape:
        if out.numel():
            warnings.warn(
                f"{function}(): an output with one or more elements was resized, from "
                f"{tuple(out.shape)} to {tuple(result.shape)}; torch deprecates that",
                UserWarning,
                stacklevel=4,
            )
        out.resize_(result.shape)
    out.copy_(result)
