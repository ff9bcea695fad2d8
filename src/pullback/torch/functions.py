"""The public functions: torch's names and arguments over the catalog's kinds."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.overrides import handle_torch_function

from .counterparts import Counterpart
from .docstrings import docstring
from .families import Family, Lerp, Reduction, Scan, Segment, Softmax
from .operations import Operation, operation
from .positions import positions

_HALVES = frozenset({torch.float16, torch.bfloat16})


def cast(operation: Operation, x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """`x` in the type that torch would compute in: ``dtype``, or what autocast asks for."""
    if dtype is not None:
        return x.to(dtype)
    if torch.is_autocast_enabled(x.device.type):
        return x.to(autocast_dtype(operation.kind, x.device.type, x.dtype))
    return x


@torch.compiler.assume_constant_result
def autocast_dtype(kind: str, device: str, dtype: torch.dtype) -> torch.dtype:
    """The type of torch's own result under the autocast that is on."""
    key = (kind, device, dtype)
    known = _autocast_dtypes.get(key)
    if known is None:
        known = _autocast_dtypes[key] = _ask_torch(operation(kind), device, dtype)
    return known


_autocast_dtypes: dict[tuple[str, str, torch.dtype], torch.dtype] = {}


def _ask_torch(operation: Operation, device: str, dtype: torch.dtype) -> torch.dtype:
    family, counterpart = operation.family, operation.counterpart
    if counterpart is None:
        return dtype
    probe = torch.zeros(2, dtype=dtype, device=device)
    values = {"dim": 0, "reverse": False, "keepdim": False, "correction": 0.0}
    values["ties"] = counterpart.ties  # type: ignore[assignment]
    if isinstance(family, Reduction):
        values["dim"] = (0,)  # type: ignore[assignment]
    return counterpart.run(probe, *[values[n] for n in family.parameters]).dtype


def dims_of(dim: Any) -> Any:
    """What torch takes for dims as int, tuple or None; as in torch, () means all."""
    if dim is None or isinstance(dim, int):
        return dim
    return tuple(dim) or None


def with_positions(operation: Operation, params: tuple[Any, ...], x: Tensor) -> Any:
    """Values and indices, as torch returns them together."""
    y = operation.unary(params, x)
    where = operation.family.canonical(params, x)
    return operation.counterpart.result((y, positions(x, y, *where)))  # type: ignore


def run_lerp(operation: Operation, input: Tensor, end: Tensor, weight: Any) -> Any:
    """lerp with broadcasting; a weight that is a tensor is torch's own."""
    if isinstance(weight, Tensor) or input.dtype != end.dtype:
        return operation.reference(input, end, weight)
    if input.shape != end.shape:
        input, end = torch.broadcast_tensors(input, end)
    return operation((float(weight),), input, end)


def traced(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """A call that torch.fx writes down, as one of ``function`` with what its caller was given."""
    arguments = {name: given[name] for name in inspect.signature(function).parameters}
    tensors = [a for a in arguments.values() if isinstance(a, (Proxy, Tensor))]
    return handle_torch_function(function, tensors, **arguments)


def _signature(operation: Operation, torch_has: Counterpart) -> tuple[str, str]:
    """Parameters and body of a function."""
    family = operation.family
    if isinstance(family, Lerp):
        return "input, end, weight", "return run_lerp(operation, input, end, weight)"
    if isinstance(family, Segment):
        return (
            'input, segment_ids, num_segments, *, sorted=False, out_of_range="raise"',
            "return operation((num_segments, sorted, out_of_range), input, segment_ids)",
        )
    ties = f', ties="{torch_has.ties or family.ties[0]}"' if family.ties else ""
    ties_value = ", ties" if family.ties else ""
    dtype = ", dtype=None" if torch_has.takes_dtype else ""
    asked = "dtype is not None or " if torch_has.takes_dtype else ""
    given = "dtype" if torch_has.takes_dtype else "None"
    dim = "dim" if torch_has.needs_dim else "dim=None"
    run = "operation.unary("
    if isinstance(family, Scan):
        parameters = f"input, {dim}, *{dtype}, reverse=False{ties}"
        params = f"(dim, reverse{ties_value})"
        if torch_has.result is not None:
            run = "with_positions(operation, "
    elif isinstance(family, Softmax):
        parameters, params = f"input, {dim}{dtype}", "(dim,)"
    else:
        assert isinstance(family, Reduction)
        first, rest, correction = f"input, {dim}, keepdim=False", f"{dtype}{ties}", ""
        if family.corrected:
            first, rest = f"input, {dim}", f", correction=1, keepdim=False{rest}"
            correction = ", correction"
        parameters = first + (f", *{rest}" if rest else "")
        params = f"(dims_of(dim), keepdim{correction}{ties_value})"
    return parameters, (
        f"if {asked}input.dtype in _HALVES:\n"
        f"            input = cast(operation, input, {given})\n"
        f"        return {run}{params}, input)"
    )


def _operands(family: Family) -> tuple[str, ...]:
    """Names of a function's arguments that are tensors."""
    second = {Lerp: ("end",), Segment: ("segment_ids",)}
    return ("input", *second.get(type(family), ()))


def make_function(kind: str) -> Callable[..., Any]:
    """The function of a kind, with torch's name and arguments where torch has it."""
    which = operation(kind)
    torch_has = which.counterpart or Counterpart(run=which.reference)
    name = torch_has.name or kind
    parameters, body = _signature(which, torch_has)
    made: dict[str, Any] = {}
    # A closure, not a global of its own: torch.compile looks globals up in this module.
    proxies = " or ".join(f"isinstance({n}, Proxy)" for n in _operands(which.family))
    source = (
        f"def make(operation):\n"
        f"    def {name}({parameters}):\n"
        f"        if {proxies}:\n"
        f"            return traced({name}, locals())\n"
        f"        {body}\n"
        f"    return {name}"
    )
    exec(source, globals(), made)
    function: Callable[..., Any] = made["make"](which)
    function.__module__, function.__qualname__ = "pullback.torch", name
    function.__doc__ = docstring(function, which, torch_has)
    return function
