"""Functions that native code is made of, marked with how it takes them in.

A loop nest is a Python function of integers, vectors and tuples of both. It is never called from
Python: :mod:`.translate` reads it and writes LLVM code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class _Marked:
    """What native code calls, and Python does not."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.name = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, *values: Any) -> Any:
        raise TypeError(f"{self.name} is compiled, not called")


class Emitter(_Marked):
    """What writes its own LLVM code: called with a builder and values, gives a value or None."""


class Inner(_Marked):
    """A function of its own, which LLVM may take into its caller or not.

    Taken in one and all, the constants of an exp would not all fit in registers, and a load of one
    from the stack waits for stores past the caches (log_softmax down columns took 38 ms instead of
    15).
    """


class Inlined(_Marked):
    """What becomes part of its caller, however large: else its vectors would be stored.

    What is known while compiling stays so inside.
    """


emitter, inner, inlined = Emitter, Inner, Inlined
