"""The public functions: torch's names and arguments over the catalog's kinds."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.overrides import handle_torch_function

from . import arguments
from .counterparts import Counterpart
from .docstrings import docstring
from .families import Family, Lerp, Reduction, Scan, Segment, Softmax
from .launches import PLAIN  # noqa: F401 - named by the functions that are made here
from .operations import Operation, operation
from .positions import positions

_HALVES = frozenset({torch.float16, torch.bfloat16})


def cast(operation: Operation, x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """`x` in the type that torch would compute in: ``dtype``, or what autocast asks for."""
    if dtype is not None:
        arguments.check_dtype(operation.name, dtype)
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
    if type(weight) is not float:
        weight = float(arguments.number_of("lerp", "weight", weight))
    return operation((weight,), input, end)


def traced(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """A call that torch.fx writes down, as one of ``function`` with what its caller was given."""
    called = {name: given[name] for name in inspect.signature(function).parameters}
    tensors = [a for a in called.values() if isinstance(a, (Proxy, Tensor))]
    return handle_torch_function(function, tensors, **called)


def _signature(operation: Operation, torch_has: Counterpart) -> tuple[str, list[str], str]:
    """Parameters of a function, statements that check them, and the call."""
    family = operation.family
    if isinstance(family, Lerp):
        return "input, end, weight", [], "run_lerp(operation, input, end, weight)"
    if isinstance(family, Segment):
        return (
            'input, segment_ids, num_segments, *, sorted=False, out_of_range="raise"',
            [
                _int("num_segments"),
                _flag("sorted"),
                'if out_of_range not in ("raise", "drop"): '
                "out_of_range = arguments.policy_of(out_of_range)",
            ],
            "operation((num_segments, sorted, out_of_range), input, segment_ids)",
        )
    checks = []
    ties = f', ties="{torch_has.ties or family.ties[0]}"' if family.ties else ""
    ties_value = ", ties" if family.ties else ""
    if family.ties:
        checks.append(
            f"if ties not in {family.ties}: ties = arguments.ties_of(ties, {family.ties})"
        )
    dtype = ", dtype=None" if torch_has.takes_dtype else ""
    asked = "dtype is not None or " if torch_has.takes_dtype else ""
    given = "dtype" if torch_has.takes_dtype else "None"
    dim = "dim" if torch_has.needs_dim else "dim=None"
    run = "operation.unary("
    if isinstance(family, Scan):
        parameters = f"input, {dim}, *{dtype}, reverse=False{ties}"
        params = f"(dim, reverse{ties_value})"
        checks += [_int("dim"), _flag("reverse")]
        if torch_has.result is not None:
            run = "with_positions(operation, "
    elif isinstance(family, Softmax):
        parameters, params = f"input, {dim}{dtype}", "(dim,)"
        checks.append(_int("dim"))
    else:
        assert isinstance(family, Reduction)
        unbiased, rest, correction = "", f"{dtype}{ties}", ""
        if family.corrected:
            unbiased, correction = ", unbiased=None", ", correction"
            rest = f", correction=None{rest}"
            checks.append("dim, correction = arguments.corrected(name, dim, unbiased, correction)")
        parameters = f"input, {dim}{unbiased}, keepdim=False" + (f", *{rest}" if rest else "")
        params = f"(dim, keepdim{correction}{ties_value})"
        checks += [
            "if type(dim) is not int: dim = arguments.dims_of(name, dim)",
            "if type(keepdim) is not bool: arguments.check_bool(name, 'keepdim', keepdim)",
        ]
    checks.append(f"if {asked}input.dtype in _HALVES: input = cast(operation, input, {given})")
    return parameters, checks, f"{run}{params}, input)"


def _int(argument: str) -> str:
    parsed = f"arguments.int_of(name, {argument!r}, {argument})"
    return f"if type({argument}) is not int: {argument} = {parsed}"


def _flag(argument: str) -> str:
    parsed = f"arguments.flag_of({argument!r}, {argument})"
    return f"if type({argument}) is not bool: {argument} = {parsed}"


def _operands(family: Family) -> tuple[str, ...]:
    """Names of a function's arguments that are tensors."""
    second = {Lerp: ("end",), Segment: ("segment_ids",)}
    return ("input", *second.get(type(family), ()))


def _operand_checks(family: Family, function: str) -> list[str]:
    """Statements that hand torch.fx what it is to write down, and refuse what is no tensor."""
    lines = []
    for operand in _operands(family):
        lines += [
            f"if type({operand}) not in PLAIN:",
            f"    if isinstance({operand}, Proxy): return traced({function}, locals())",
            f"    arguments.check_tensor(name, {operand!r}, {operand})",
        ]
    return lines


def make_function(kind: str) -> Callable[..., Any]:
    """The function of a kind, with torch's name and arguments where torch has it."""
    which = operation(kind)
    torch_has = which.counterpart or Counterpart(run=which.reference)
    name = which.name
    parameters, checks, call = _signature(which, torch_has)
    statements = [*_operand_checks(which.family, name), *checks, f"return {call}"]
    body = "\n        ".join(statements)
    made: dict[str, Any] = {}
    # A closure, not a global of its own: torch.compile looks globals up in this module.
    source = (
        f"def make(operation, name):\n"
        f"    def {name}({parameters}):\n"
        f"        {body}\n"
        f"    return {name}"
    )
    exec(source, globals(), made)
    function: Callable[..., Any] = made["make"](which, name)
    function.__module__, function.__qualname__ = "pullback.torch", name
    function.__doc__ = docstring(function, which, torch_has)
    return function
