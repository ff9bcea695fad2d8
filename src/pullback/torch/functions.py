"""The public functions: torch's names and arguments over the catalog's kinds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from math import inf  # noqa: F401 - a default in signatures
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as transforms_active
from torch.compiler import is_compiling
from torch.fx import Proxy
from torch.overrides import handle_torch_function

from ..api.arrange import borders
from ..core import parse
from ..core.declare import Role, Type
from ..core.vocabulary import OutOfRange
from ..errors import InvalidProblemError
from . import arguments
from .docstrings import docstring
from .forms import one_dim
from .launches import PLAIN
from .operations import Kind, Operation, kind_of
from .shards import gathered_whole, is_sharded, replicated
from .signatures import Argument, arguments_of

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


@torch.compiler.assume_constant_result
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


def with_more(operation: Operation, params: tuple[Any, ...], x: Tensor) -> Any:
    """Values and what else torch returns with them; values alone of what torch does not have."""
    y = operation.unary(params, x)
    values = operation.forward.values(operation.forward.canonical(params, (x,)))
    for name, usual in operation.of.beyond.items():
        if values.pop(name) != usual:
            return y
    return operation.counterpart.result(x, y, **values)  # type: ignore[union-attr,misc]


def run_given(of: Kind, operands: dict[str, Any], values: dict[str, Any]) -> Any:
    """A call with operands that may be left out, that broadcast, or with outputs to ask for."""
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
    return operation(params, *form.stretched(params, [operands[o.name] for o in form.reads]))


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


def traced(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """A call that torch.fx writes down, as one of ``function`` with what its caller was given."""
    called = {name: given[name] for name in inspect.signature(function).parameters}
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
        if torch_has.takes_unbiased:
            found.append("dim, correction = arguments.corrected(name, dim, unbiased, correction)")
        own = torch_has.takes_tensor
        if own and own not in [a.name for a in self.numbers]:
            call = f"torchs({', '.join(self._names(self.plain))}, {self.called[own]})"
            found.append(f"if isinstance({self.called[own]}, Tensor): return {call}")
        return found

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
        if not unless:
            return [call]
        numbers = [a.name for a in self.numbers]
        operands = [
            f"{n!r}: {called[n]} if isinstance({called[n]}, Tensor) else None"
            if called[n] in numbers
            else f"{n!r}: {called[n]}"
            for n in self.forward.inputs
        ]
        values = [f"{p.name!r}: {called[p.name]}" for p in of.pair.parameters]
        return [
            f"if {' and '.join(unless)}: {call}",
            f"return run_given(of, {{{', '.join(operands)}}}, {{{', '.join(values)}}})",
        ]

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
        f"def make(operation, name, of, parameters, torchs, value_of, inf=float('inf')):\n"
        f"    def {of.name}({', '.join(shown)}):\n"
        f"        {body}\n"
        f"    return {of.name}"
    )
    made: dict[str, Any] = {}
    exec(source, globals(), made)
    parameters = {p.name: p for p in of.pair.parameters}
    torchs = of.counterpart.run if of.counterpart else None
    function: Callable[..., Any] = made["make"](
        of.plain, of.name, of, parameters, torchs, arguments.value_of
    )
    function.__module__, function.__qualname__ = "pullback.torch", of.name
    function.__doc__ = docstring(of, [*first, *later])
    return function
