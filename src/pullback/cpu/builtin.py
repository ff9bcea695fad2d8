"""Native functions as builtins of Python: words in, a word out, the GIL released meanwhile."""

from __future__ import annotations

import ctypes
import sys
import time
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from ..memory.large_pages import madvise
from .codegen.memory import symbol
from .compile import Native, compile_words

# Words that a call may have at most.
MOST_WORDS = 64

_METH_FASTCALL = 0x0080


class _MethodDef(ctypes.Structure):
    """``PyMethodDef``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("method", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


# Functions of C that native code calls by these names, whether compiled now or loaded.
PYTHON = (
    *("PyLong_AsLongLong", "PyLong_FromLongLong", "PyErr_Occurred"),
    *("PyEval_SaveThread", "PyEval_RestoreThread"),
    *("PyMem_RawMalloc", "PyMem_RawFree"),
    *("PyThread_allocate_lock", "PyThread_acquire_lock", "PyThread_release_lock"),
)


# Those of Linux by which a worker is kept off the CPU of its caller; none where one is missing.
PLACES = ("gettid", "sched_getcpu", "sched_getaffinity", "sched_setaffinity")


@cache
def places() -> dict[str, Any]:
    """Functions of C that tell and set where threads run."""
    if sys.platform != "linux":
        return {}
    libc = ctypes.CDLL(None)
    return {n: getattr(libc, n) for n in PLACES} if all(hasattr(libc, n) for n in PLACES) else {}


@cache
def clock() -> int | None:
    """The number of a clock that ``clock_gettime`` reads and nobody sets; None without one."""
    return getattr(time, "CLOCK_MONOTONIC", None)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _add_symbols() -> None:
    for name in PYTHON:
        llvm.add_symbol(symbol(name), _address(getattr(ctypes.pythonapi, name)))
    if sys.platform == "win32":
        give_way = ctypes.WinDLL("kernel32").SwitchToThread
    else:
        give_way = ctypes.CDLL(None).sched_yield
    llvm.add_symbol(symbol("yield"), _address(give_way))
    if clock() is not None:
        read_clock = ctypes.CDLL(None).clock_gettime
        llvm.add_symbol(symbol("clock_gettime"), _address(read_clock))
    for name, function in places().items():
        llvm.add_symbol(symbol(name), _address(function))
    if madvise is not None:
        llvm.add_symbol(symbol("madvise"), _address(madvise))


_add_symbols()


_kept: list[Any] = []


@cache
def _entry() -> Native:
    """The C function behind all builtins; which native function to call is in their ``self``."""
    from .dispatch import python_call

    return compile_words(python_call)


def _defined(name: str, code: Native) -> _MethodDef:
    """The definition of a builtin, which whatever is made of it points to."""
    definition = _MethodDef(name.encode(), code.address, _METH_FASTCALL, None)
    _kept.append((code, definition))
    return definition


def _made(definition: _MethodDef, itself: int) -> Any:
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return new(ctypes.addressof(definition), itself, None)


@cache
def builtin(name: str) -> Any:
    """``f(*words) -> word``: the function of that name in :mod:`.dispatch`."""
    from .dispatch import BUILTINS

    native = compile_words(BUILTINS[name])
    _kept.append(native)
    return _made(_defined(name, _entry()), native.address)


@cache
def _array_call() -> _MethodDef:
    from .dispatch import array_call

    return _defined("array_call", compile_words(array_call))


def on_arrays(expected: int) -> Any:
    """``f(*arrays) -> word`` of arrays as the words at that address expect them."""
    return _made(_array_call(), expected)
