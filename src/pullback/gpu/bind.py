"""Formula functions for Triton: the same code objects, with their names bound to Triton's.

A bound function keeps the code of the formula it was made from (``bound.fn.__code__``); only the
globals it looks names up in are new.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from functools import cache

import triton
import triton.language as tl

from ..formulas.primitives import PRIMITIVES as NAMES
from .primitives import PRIMITIVES


class _Nan(tl.constexpr):
    """A constant NaN that equals itself, as Triton's check for changed globals wants it."""

    def __eq__(self, other):
        return isinstance(other, _Nan)

    def __ne__(self, other):
        return not isinstance(other, _Nan)

    __hash__ = object.__hash__


def _constant(value: float):
    return _Nan(value) if math.isnan(value) else tl.constexpr(value)


@cache
def bind(function: Callable):
    """The jitted function of a formula function."""
    names = {"__name__": function.__module__, "__builtins__": __builtins__, "tl": tl}
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if name in NAMES:
            names[name] = PRIMITIVES[name]
        elif isinstance(value, types.FunctionType):
            names[name] = bind(value)
        elif isinstance(value, (int, float)):
            names[name] = _constant(value)
    # The name of the source is kept for those who look for it there; the qualified name tells
    # specialised functions apart.
    bound = types.FunctionType(function.__code__, names, function.__code__.co_name)
    bound.__qualname__ = function.__qualname__
    bound.__module__ = function.__module__
    return triton.jit(bound)


@cache
def primitives_of(function: Callable) -> frozenset[str]:
    """The primitives that a formula function calls, itself or through others."""
    found = set()
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if name in NAMES:
            found.add(name)
        elif isinstance(value, types.FunctionType):
            found |= primitives_of(value)
    return frozenset(found)
