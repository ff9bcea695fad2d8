"""Kernels as machine code: compiled on demand, kept in memory and on disk.

The stock cache of Numba misses on closures, goes stale when a callee in another file changes, and
mixes up kernels of the same qualified name. Here a kernel is filed under a digest of the package's
sources, one of its formula's code, the versions of Python, Numba and llvmlite, and the CPU with its
features. Where nothing can be kept, kernels are compiled in memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import pickle
import sys
import threading
import types
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from llvmlite.binding import ffi
from numba.core import caching, serialize, sigutils
from numba.core.ccallback import CFunc
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock

from ..formulas.bind import names_used
from ..formulas.record import Formula, functions_of
from . import disk
from .codegen.jit import OPTIONS, KernelCompiler, kernel_key

SIGNATURE = "void(int64, int64, int64)"
_lock = threading.RLock()
# Held across a fork, in the order in which compiling takes them: a child that got them from another
# thread in the middle of a kernel would wait for ever at its own first one.
_locks = (_lock, global_compiler_lock, getattr(ffi.lib, "_lock", contextlib.nullcontext()))


def _before_fork() -> None:
    for lock in _locks:
        lock.__enter__()


def _after_fork() -> None:
    for lock in reversed(_locks):
        with contextlib.suppress(RuntimeError):  # not taken, if an interrupt came before
            lock.__exit__(None, None, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )


@cache
def source_digest() -> str:
    """Digest of every source file a kernel's code could come from."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256(numba.__version__.encode())
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
        digest.update(code.co_code + repr((code.co_consts, code.co_names)).encode())
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


class _KernelCache(caching.NullCache):
    """What Numba asks before it compiles a function, and tells after.

    Numba's own classes behind this one may change: whatever goes wrong there, the kernel is
    compiled and not kept.
    """

    def __init__(self, key: str):
        self._key = key

    def load_overload(self, sig, target_context):
        """What was kept, or None: a file that cannot be used is as good as none."""
        identity = None
        with contextlib.suppress(Exception):
            target_context.refresh()
            identity = self._identity(sig, target_context.codegen())
        folder = disk.folder_for(source_digest())
        if identity is None or folder is None:
            return None
        payload = disk.read(folder, identity)
        if payload is not None:
            with contextlib.suppress(Exception):
                return CompileResult._rebuild(target_context, *pickle.loads(payload))
        return None

    def save_overload(self, sig, data):
        """Keep a kernel; one that cannot be kept is no error."""
        folder = disk.folder_for(source_digest())
        if folder is None:
            return
        with contextlib.suppress(Exception):
            # Machine code that holds addresses of this process is of no use to another.
            if not data.lifted and not data.library.has_dynamic_globals:
                payload = serialize.dumps(data._reduce())
                disk.write(folder, self._identity(sig, data.codegen), payload)

    def _identity(self, sig, codegen) -> str:
        """Everything the machine code depends on, as text; CPU and features come last."""
        python = sys.implementation.cache_tag, getattr(sys, "abiflags", "")
        libraries = numba.__version__, llvmlite.__version__
        return repr(
            (self._key, str(sig), source_digest(), python, libraries, codegen.magic_tuple())
        )


def compile_for_c(function: Callable, signature: str, key: str) -> CFunc:
    """Compile a function that C calls, or load it if it was compiled before under the same key."""
    made = CFunc(
        function,
        sigutils.normalize_signature(signature),
        locals={},
        options=OPTIONS,
        pipeline_class=KernelCompiler,
    )
    made._cache = _KernelCache(key)
    made.compile()
    return made


def native(signature: str) -> Callable[[Callable], Any]:
    """Compile a function that Python calls with the GIL released, or load it."""

    def compile_function(function: Callable) -> Any:
        dispatcher = numba.njit(nogil=True)(function)
        dispatcher._cache = _KernelCache(function.__name__)
        dispatcher.compile(signature)
        dispatcher.disable_compile()
        return dispatcher

    return compile_function


class Kernel:
    """A compiled kernel: ``address`` of a C function (parameter block, begin, end)."""

    def __init__(self, name: str, function: CFunc):
        self.name = name
        self._function = function
        self.address: int = function.address
        self.from_cache: bool = function.cache_hits > 0


def compile_kernel(name: str, formula: Formula, make: Callable[[], Callable]) -> Kernel:
    """Compile what ``make`` builds, or load it if it was compiled before under the same key."""
    key = f"{name}-{formula_digest(formula)}"
    symbol = key.replace("-", "_")
    with _lock:
        token = kernel_key.set(symbol)
        try:
            python_function = make()
        finally:
            kernel_key.reset(token)
        python_function.__name__ = python_function.__qualname__ = f"kernel_{symbol}"
        return Kernel(name, compile_for_c(python_function, SIGNATURE, key))
