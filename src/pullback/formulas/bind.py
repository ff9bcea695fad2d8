"""Formula functions bound to other names than their module gives: the same code objects throughout.

An evaluator has its own version of every primitive. A formula is bound to them with everything it
calls, and none of it is written twice.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from .primitives import PRIMITIVES


def names_used(function: Callable) -> dict[str, Any]:
    """What a function finds outside itself, by name: globals, and the cells of its closure."""
    held = dict(zip(function.__code__.co_freevars, _cells(function), strict=True))
    scope = function.__globals__
    return {n: scope[n] for n in _names(function.__code__) if n in scope} | held


def rebound(
    function: Callable, replace: Callable[[str, Any], Any], scope: Mapping[str, Any] | None = None
) -> types.FunctionType:
    """The same code, with ``replace(name, value)`` in the place of every value it finds outside.

    ``scope`` are globals beside those, for compilers that look for them.
    """
    values = {name: replace(name, value) for name, value in names_used(function).items()}
    code = function.__code__
    made = types.FunctionType(
        code,
        {
            "__name__": function.__module__,
            "__builtins__": function.__globals__.get("__builtins__", builtins),
            **(scope or {}),
            **values,
        },
        code.co_name,
        function.__defaults__,
        tuple(types.CellType(values[name]) for name in code.co_freevars),
    )
    # The name of the source is kept for those who look for it there; the qualified name tells
    # specialised functions apart.
    made.__qualname__, made.__module__ = function.__qualname__, function.__module__
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def specialise(function: Callable, **names: Callable) -> Callable:
    """The same function with some of the names it calls bound to other functions."""
    made = rebound(function, lambda name, value: names.get(name, value))
    suffix = "_".join(f.__name__ for f in names.values())
    made.__qualname__ = made.__name__ = f"{function.__name__}_{suffix}"
    return made


class Binder:
    """Binds formula functions, and all they call, to one evaluator; each is made once.

    Parameters
    ----------
    primitives
        The evaluator's version of each primitive.
    wrap
        What becomes of a bound function.
    constant
        What becomes of a number that a formula names.
    scope
        Globals that a compiler looks for in every function.
    """

    def __init__(
        self,
        primitives: Mapping[str, Any],
        wrap: Callable[[Callable], Any] | None = None,
        constant: Callable[[float], Any] | None = None,
        scope: Mapping[str, Any] | None = None,
    ):
        missing = set(PRIMITIVES) - set(primitives)
        if missing:
            raise TypeError(f"an evaluator needs a version of {', '.join(sorted(missing))}")
        self._primitives, self._wrap, self._constant = primitives, wrap, constant
        self._scope = scope
        self._made: dict[Callable, Any] = {}

    def __call__(self, function: Callable) -> Any:
        made = self._made.get(function)
        if made is None:
            made = rebound(function, self._replaced, self._scope)
            made = self._made[function] = self._wrap(made) if self._wrap else made
        return made

    def _replaced(self, name: str, value: Any) -> Any:
        if name in self._primitives:
            return self._primitives[name]
        if isinstance(value, types.FunctionType):
            return self(value)
        if self._constant and isinstance(value, (int, float)):
            return self._constant(value)
        return value


@cache
def primitives_of(function: Callable) -> frozenset[str]:
    """The primitives that a formula function calls, itself or through others."""
    found: set[str] = set()
    for name, value in names_used(function).items():
        if name in PRIMITIVES:
            found.add(name)
        elif isinstance(value, types.FunctionType):
            found |= primitives_of(value)
    return frozenset(found)


def _names(code: types.CodeType) -> Iterator[str]:
    """Names that code looks up, with the code inside it: lambdas and comprehensions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _cells(function: Callable) -> Iterator[Any]:
    return (cell.cell_contents for cell in function.__closure__ or ())
