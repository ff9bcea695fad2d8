"""How functions inside kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from numba import njit

# The kernel being built. Machine code from the disk cache is linked by symbol name into a process
# that may have given the same names to other functions, so every function made for a kernel carries
# the kernel's key in its name.
kernel_key: ContextVar[str] = ContextVar("kernel_key", default="")

# Only kernels call these, so the entry points that Python and C would use are left out: they took
# half of the compile time.
_njit = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


_inlined = njit(
    error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True
)


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call."""
    return _njit(_named(function))


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a function that LLVM must not call, however large: its vectors stay in registers."""
    return _inlined(_named(function))


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    key = kernel_key.get()
    if key:
        function.__qualname__ = f"{function.__qualname__}_{key}"
    return function
