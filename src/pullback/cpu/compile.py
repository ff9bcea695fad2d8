"""Kernels as machine code: compiled on demand, kept in memory and on disk.

A kernel is filed under a digest of the package's sources, one of its formula's code, the versions
of Python and llvmlite, and the CPU with its features. What compiles is imported when there is
something to compile. Where nothing can be kept, kernels are compiled in memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import threading
import types
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from llvmlite.binding import ffi

from ..formulas.bind import names_used
from ..formulas.record import Formula, functions_of
from . import disk
from .codegen.functions import Inner
from .loader import Code, caller_machine, platform_tag, target_machine

_lock = threading.RLock()
_held: list[Any] = []


def _before_fork() -> None:
    """Take the locks that compiling takes, in its order.

    A child that got them from another thread in the middle of a kernel would wait for ever at its
    own first one.
    """
    for lock in filter(None, [_lock, getattr(ffi.lib, "_lock", None)]):
        lock.__enter__()
        _held.append(lock)


def _after_fork() -> None:
    while _held:
        with contextlib.suppress(RuntimeError):  # not taken, if an interrupt came before
            _held.pop().__exit__(None, None, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )


@cache
def source_digest() -> str:
    """Digest of every source file a kernel's code could come from."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for folder in ("formulas", "cpu"):
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def code_digest(functions: tuple[Callable, ...]) -> str:
    """Digest of what functions compute, following everything they name but modules."""
    digest = hashlib.sha256()
    seen: set[int] = set()

    def add(function: types.FunctionType) -> None:
        if id(function) in seen:
            return
        seen.add(id(function))
        code = function.__code__
        asked = code.co_varnames[: code.co_argcount]
        digest.update(code.co_code + repr((code.co_consts, code.co_names, asked)).encode())
        for name, value in names_used(function).items():
            if isinstance(value, types.FunctionType):
                add(value)
            elif not isinstance(value, types.ModuleType):
                digest.update(repr((name, value)).encode())

    for function in functions:
        if isinstance(function, types.FunctionType):
            add(function)
    return digest.hexdigest()[:16]


def formula_digest(formula: Formula) -> str:
    """Digest of a formula record: its functions and the plain fields beside them."""

    def plain(record: object) -> list:
        fields: list = [type(record).__name__]
        for field in dataclasses.fields(record):  # type: ignore[arg-type]
            value = getattr(record, field.name)
            if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
                fields.append([plain(v) for v in value])
            elif dataclasses.is_dataclass(value):
                fields.append(plain(value))
            elif not callable(value):
                fields.append(value)
        return fields

    text = code_digest(functions_of(formula)) + repr(plain(formula))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Native:
    """A compiled function: its ``address``, for C, and whether it came from disk."""

    def __init__(self, code: Any, from_cache: bool):
        self._code = code
        self.address: int = code.address
        self.from_cache = from_cache


class Kernel:
    """A compiled kernel: ``address`` of a C function (parameter block, begin, end)."""

    def __init__(self, name: str, native: Native):
        self.name, self._native = name, native
        self.address: int = native.address
        self.from_cache: bool = native.from_cache


def _kept_or(
    key: str, function: Callable[[], Callable], machine: Callable[[], Any], level: int
) -> Native:
    """What is on disk under a key, or what is made of a function for a machine."""
    identity = repr((key, source_digest(), *platform_tag()))
    folder = disk.folder_for(source_digest())
    with _lock:
        kept = disk.read(folder, identity) if folder else None
        if kept is not None:
            # A file that cannot be used is as good as none.
            with contextlib.suppress(Exception):
                return Native(Code(kept), True)
        from .emit import object_code

        code = object_code(function(), machine(), level)
        if folder:
            disk.write(folder, identity, code)
        return Native(Code(code), False)


def compile_words(function: Inner, digest: str = "") -> Native:
    """The C function that a function of words is; ``digest`` of sources other than these."""
    key = f"{function.name}-{digest}-of-words"
    return _kept_or(key, lambda: function.function, caller_machine, level=1)


def compile_kernel(name: str, formula: Formula, make: Callable[[], Callable]) -> Kernel:
    """The kernel that ``make`` builds for a formula."""
    key = f"{name}-{formula_digest(formula)}"
    return Kernel(name, _kept_or(key, make, target_machine, level=3))
