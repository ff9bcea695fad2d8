"""The functions of the library, one for each row of the catalog.

Signature, docstring and source of a function come from the row of its op: it brings its parameters
into their one form, asks whether a call like this one is known, and goes straight to its kernel, or
the long way (:mod:`.calling`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..core import parse
from ..core.catalog import catalog
from ..core.declare import REQUIRED, Op, Parameter, Role, Type
from ..errors import InvalidProblemError
from ..memory.tensor_ref import TensorRef
from .calling import Function
from .docstrings import docstring


def _is_positional(op: Op, name: str) -> bool:
    if op.direction == "forward":
        return True
    return name == op.inputs[0] or op.operand(name).role in (Role.IDS, Role.OFFSETS)


def arguments(op: Op) -> tuple[list[str], list[str]]:
    """What an op's function takes by position, and by keyword alone, as source."""
    required = [o.name for o in op.reads if not o.optional and o.name not in op.spared]
    first = [n for n in required if _is_positional(op, n)]
    first += [f"{o.name}=None" for o in op.reads if o.optional and o.role is Role.IDS]
    if op.direction == "forward":
        first += [_argument(p) for p in op.parameters if p.is_positional]
    later = [n for n in required if n not in first]
    later += [
        _argument(p)
        for p in op.parameters
        if not (p.is_positional and op.direction == "forward") and p.default is REQUIRED
    ]
    later += [f"{name}=None" for name in op.spared]
    # An array that a number may stand for is an argument already.
    later += [
        f"{o.name}=None"
        for o in op.reads
        if o.optional and o.role is not Role.IDS and op.parameter(o.name) is None
    ]
    later += [
        _argument(p)
        for p in op.parameters
        if not (p.is_positional and op.direction == "forward") and p.default is not REQUIRED
    ]
    later += [f"{p.alias}=None" for p in op.parameters if p.alias]
    return first, later


def signature(op: Op) -> str:
    """The parameters of an op's function, as source."""
    first, later = arguments(op)
    return ", ".join([*first, "*", *later, "out=None"])


def _argument(parameter: Parameter) -> str:
    if parameter.default is REQUIRED:
        return parameter.name
    return f"{parameter.name}={parameter.default!r}"


def _body(op: Op, function: Function) -> list[str]:
    required = [o.name for o in op.reads if not o.optional and o.name not in op.spared]
    lines = ["arrays = {" + ", ".join(f"{n!r}: {n}" for n in required) + "}"]
    lines += [
        f"if {p.alias} is not None: "
        f"{p.name} = one_of({p.name!r}, {p.name}, {p.default!r}, {p.alias!r}, {p.alias})"
        for p in op.parameters
        if p.alias
    ]
    for p in op.parameters:
        if p.name in op.optional:
            lines += [
                f"if is_array({p.name}): arrays[{p.name!r}], {p.name} = {p.name}, None",
                f"else: {p.name} = parse_{p.name}({p.name}, {p.name!r})",
            ]
            continue
        # A call to parse takes 0.1 us, the question whether it is needed much less.
        unless = f"if type({p.name}) is not {p.kind.usual}: " if p.kind.usual else ""
        lines.append(f"{unless}{p.name} = parse_{p.name}({p.name}, {p.name!r})")
    optional = [*op.spared, *(n for n in op.optional if op.parameter(n) is None)]
    masks = [n for n in optional if op.operand(n).type is Type.BOOL]
    for n in optional:
        # Python's own bool is a mask without dimensions.
        taken = f"{n} if type({n}) is not bool else bool_({n})" if n in masks else n
        lines.append(f"if {n} is not None: arrays[{n!r}] = {taken}")
    # A NaN finds itself by its text, and -0.0 is not 0.0.
    texts = [_key_of(op, p) for p in op.parameters]
    texts += [f"{n} is not None" for n in optional]
    told = "".join(f"{text}, " for text in texts)
    lead = function.lead
    has_shape = function.tells_shape or function.is_segmented
    shape = f"{lead}.shape" if has_shape else "None"
    lines += [
        f"if type({lead}) is ndarray:",
        f"    key = ({lead}.dtype, {', '.join([shape, *texts])})",
        "    known = calls.get(key)",
        "    if known is not None:",
        "        result = known.again(arrays, out)",
        "        if result is not None: return result",
        f"else: key = ({told})",
    ]
    named = ", ".join(f"{p.name!r}: {p.name}" for p in op.parameters)
    lines.append(f"return run(arrays, {{{named}}}, key, out)")
    return lines


def _key_of(op: Op, parameter: Parameter) -> str:
    """What a parameter is looked up by, as source."""
    name = parameter.name
    if parameter.parse is parse.real and name in op.optional:
        return f"{name} if {name} is None else {name}.hex()"
    return f"{name}.hex()" if parameter.parse is parse.real else name


def _is_array(value: Any) -> bool:
    """Whether an argument that may be a number is an array; one without axes is a number."""
    return getattr(value, "ndim", 0) > 0 or isinstance(value, TensorRef)


def one_of(name: str, value: Any, usual: Any, alias: str, other: Any) -> Any:
    """The value of a parameter that was given by its other name."""
    if value != usual:
        raise InvalidProblemError(f"{name}: expected it or {alias}, got both")
    return other


def without_aliases(op: Op, values: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a call by name, with parameters under their own names alone."""
    found = dict(values)
    for p in op.parameters:
        other = found.pop(p.alias, None) if p.alias else None
        if other is not None:
            found[p.name] = one_of(p.name, found[p.name], p.default, p.alias, other)
    return found


def make_function(op: Op) -> Callable[..., Any]:
    """The function of an op."""
    run = Function(op)
    source = f"def {op.name}({signature(op)}):\n    " + "\n    ".join(_body(op, run))
    tools: dict[str, Any] = {f"parse_{p.name}": p.parse for p in op.parameters}
    tools |= {
        "run": run,
        "calls": run.calls,
        "ndarray": np.ndarray,
        "bool_": np.bool_,
        "is_array": _is_array,
        "one_of": one_of,
        "inf": np.inf,
    }
    made: dict[str, Any] = {}
    exec(source, tools, made)
    function: Callable[..., Any] = made[op.name]
    function.__module__ = "pullback"
    function.__doc__ = docstring(op, iter(inspect.signature(function).parameters))
    return function


# The ops whose functions are the library's own.
NAMED = {op.name: op for op in catalog()}


@cache
def function_named(name: str) -> Callable[..., Any]:
    """The function of that name, made when it is first asked for: all of them take 70 ms."""
    return make_function(NAMED[name])
