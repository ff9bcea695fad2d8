"""The public functions: torch's names and arguments over the catalog's kinds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from math import inf  # noqa: F401 - a default in signatures
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.overrides import handle_torch_function

from ..core import parse
from ..core.declare import Role, Type
from ..core.vocabulary import OutOfRange
from . import arguments
from .calls import into, run_given, with_more  # noqa: F401 - named by what is written here
from .docstrings import docstring
from .graphs import constant
from .launches import PLAIN  # noqa: F401 - the same
from .operations import Kind, Operation, kind_of
from .signatures import NUMPYS, Argument, arguments_of

_HALVES = frozenset({torch.float16, torch.bfloat16})

# What a parameter may be in a call that only asks for the type of the result.
_PROBES: dict[Callable[..., Any], Any] = {
    parse.axis: 0,
    parse.axes: (0,),
    parse.count: 2,
    parse.optional_count: 2,
    parse.real: 0.5,
}


def cast(operation: Operation, x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """`x` in the type that torch would compute in: ``dtype``, or what autocast asks for."""
    if dtype is not None:
        arguments.check_dtype(operation.name, dtype)
        return x.to(dtype)
    if torch.is_autocast_enabled(x.device.type):
        return x.to(autocast_dtype(operation.kind, x.device.type, x.dtype))
    return x


@constant
def autocast_dtype(kind: str, device: str, dtype: torch.dtype) -> torch.dtype:
    """The type of torch's own result under the autocast that is on."""
    key = (kind, device, dtype)
    known = _autocast_dtypes.get(key)
    if known is None:
        known = _autocast_dtypes[key] = _ask_torch(kind_of(kind), device, dtype)
    return known


_autocast_dtypes: dict[tuple[str, str, torch.dtype], torch.dtype] = {}


def _ask_torch(of: Kind, device: str, dtype: torch.dtype) -> torch.dtype:
    assert of.counterpart is not None
    forward = of.plain.forward
    types = [torch.int64 if o.type is Type.INDEX else dtype for o in forward.reads]
    tensors = [torch.zeros(2, dtype=t, device=device) for t in types]
    probes = {p.name: _PROBES.get(p.parse, p.default) for p in forward.parameters}
    result: Tensor = of.counterpart.run(*tensors, **{n: probes[n] for n in of.counterpart.takes})
    return result.dtype


def traced(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """A call that torch.fx writes down, as one of ``function`` with what its caller was given."""
    known = inspect.signature(function).parameters.values()
    called = {p.name: given[p.name] for p in known if given[p.name] is not p.default}
    tensors = [a for a in called.values() if isinstance(a, (Proxy, Tensor))]
    return handle_torch_function(function, tensors, **called)


class _Source:
    """The statements of a function: arguments in their one form, and the call."""

    def __init__(self, of: Kind, made: Sequence[Argument]) -> None:
        self.of, self.made = of, made
        self.forward, self.torch_has = of.pair.forward, of.counterpart
        # torch's names of operands and parameters.
        self.called = {a.operand.name: a.name for a in made if a.operand}
        self.called |= {a.parameter.name: a.name for a in made if a.parameter}
        self.plain = [o for o in self.forward.reads if not o.optional or o.name in of.usual]
        self.numbers = [a for a in made if a.operand and a.parameter]

    def lines(self) -> list[str]:
        found = []
        for argument in self.made:
            if argument.operand and not argument.parameter:
                found += self._tensor(argument)
        if self.torch_has is not None:
            found += self._torchs(self.torch_has)
        found += [self._value(a) for a in self.made if a.parameter]
        if self.torch_has is not None:
            found.append(self._cast(bool(self.torch_has.dtype)))
        return found + self._calls()

    def _tensor(self, argument: Argument) -> list[str]:
        """Hand torch.fx what it is to write down, and refuse what is no tensor."""
        name = argument.name
        there = f"{name} is not None and " if argument.default is None else ""
        return [
            f"if {there}type({name}) not in PLAIN:",
            f"    if isinstance({name}, Proxy): return traced({self.of.name}, locals())",
            f"    arguments.check_tensor(name, {name!r}, {name})",
        ]

    def _torchs(self, torch_has: Any) -> list[str]:
        """Forms of arguments that torch has beside those of the row."""
        found = []
        for own, numpys in NUMPYS.items():
            if numpys in [a.name for a in self.made]:
                chosen = f"arguments.one_of(name, {own!r}, {own}, {numpys!r}, {numpys})"
                found.append(f"if {numpys} is not None: {own} = {chosen}")
        if torch_has.dtype == "keyword" and torch_has.homes:
            # As in torch, the type of out says what to compute in, if nothing else does.
            unsaid = "out is not None and dtype is None and isinstance(out, Tensor)"
            found.append(f"if {unsaid}: dtype = out.dtype")
        if torch_has.needs_dim and self._takes_one_dim():
            found.append("if dim is None: arguments.missing(name, 'dim')")
        if torch_has.takes_unbiased:
            found.append("dim, correction = arguments.corrected(name, dim, unbiased, correction)")
        return found

    def _takes_one_dim(self) -> bool:
        axis = self.forward.parameter("axis")
        return axis is not None and axis.parse is parse.axis

    def _value(self, argument: Argument) -> str:
        """Bring a parameter into its one form, if it is not."""
        name, p = argument.name, argument.parameter
        assert p is not None
        known: Sequence[Any] = p.choices
        if p.parse is parse.out_of_range:
            known = tuple(m.value for m in OutOfRange)
        unless = f"if type({name}) is not {p.kind.usual}" if p.kind.usual else "if True"
        if p.kind.usual == "str" and known:
            unless = f"if {name} not in {tuple(known)}"
        if argument.operand:
            unless += f" and not isinstance({name}, Tensor)"
        return f"{unless}: {name} = value_of(name, {name!r}, parameters[{p.name!r}], {name})"

    def _cast(self, takes_dtype: bool) -> str:
        typed = [o for o in self.plain if o.type is Type.ELEMENT]
        names = self._names(typed)
        asked, dtype = ("dtype is not None or ", "dtype") if takes_dtype else ("", "None")
        casts = "; ".join(f"{n} = cast(operation, {n}, {dtype})" for n in names)
        return f"if {asked}{names[0]}.dtype in _HALVES: {casts}"

    def _calls(self) -> list[str]:
        of, called = self.of, self.called
        operation = of.plain
        tensors = ", ".join(self._names(self.plain))
        params = "".join(f"{called[n]}, " for n in operation.forward.names)
        run = "operation.unary(" if operation.is_unary else "operation("
        if self.torch_has is not None and self.torch_has.result is not None:
            run = "with_more(operation, "
        call = f"return {run}({params}), {tensors})"
        unless = self._is_plain()
        given = self._given()
        found = []
        if "out" in [a.name for a in self.made]:
            found.append(f"if out is not None: return into(of, {given}, out)")
        if self.torch_has is not None and self.torch_has.dtype:
            # Integers that torch was asked for are what comes of wider ones.
            found.append(f"if dtype is not None: return run_given(of, {given}).to(dtype)")
        if not unless:
            return [*found, call]
        return [
            *found,
            f"if {' and '.join(unless)}: {call}",
            f"return run_given(of, {given})",
        ]

    def _given(self) -> str:
        """Operands and parameters by the catalog's names, as source."""
        of, called = self.of, self.called
        numbers = [a.name for a in self.numbers]
        operands = [
            f"{n!r}: {called[n]} if isinstance({called[n]}, Tensor) else None"
            if called[n] in numbers
            else f"{n!r}: {called[n]}"
            for n in self.forward.inputs
        ]
        values = [f"{p.name!r}: {called[p.name]}" for p in of.pair.parameters]
        return f"{{{', '.join(operands)}}}, {{{', '.join(values)}}}"

    def _is_plain(self) -> list[str]:
        """What has to hold for the plain call."""
        of, called = self.of, self.called
        found = [
            f"not isinstance({called[o.name]}, Tensor)"
            if called[o.name] in [a.name for a in self.numbers]
            else f"{called[o.name]} is None"
            for o in self.forward.reads
            if o.optional and o.name not in of.usual
        ]
        found += [f"{called[n]} is not None" for n in of.usual]
        found += [f"not {called[n]}" for n in of.flags]
        full = self._names([o for o in self.plain if o.role is Role.ELEMENT])
        if len(full) > 1:
            found.append(" == ".join(f"{n}.shape" for n in full))
        return found

    def _names(self, operands: Sequence[Any]) -> list[str]:
        return [self.called[o.name] for o in operands]


def make_function(kind: str) -> Callable[..., Any]:
    """The one function of a kind, with torch's name and arguments where torch has it."""
    of = kind_of(kind)
    if of.function is None:
        of.function = _make(of)
    return of.function


def _make(of: Kind) -> Callable[..., Any]:
    first, later = arguments_of(of)
    shown = [a.source for a in first] + (["*"] if later else []) + [a.source for a in later]
    body = "\n        ".join(_Source(of, [*first, *later]).lines())
    # A closure, not a global of its own: torch.compile looks globals up in this module.
    source = (
        f"def make(operation, name, of, parameters, value_of, inf=float('inf')):\n"
        f"    def {of.name}({', '.join(shown)}):\n"
        f"        {body}\n"
        f"    return {of.name}"
    )
    made: dict[str, Any] = {}
    exec(source, globals(), made)
    parameters = {p.name: p for p in of.pair.parameters}
    function: Callable[..., Any] = made["make"](
        of.plain, of.name, of, parameters, arguments.value_of
    )
    function.__module__, function.__qualname__ = "pullback.torch", of.name
    function.__doc__ = docstring(of, [*first, *later])
    return function
