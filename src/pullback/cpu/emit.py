"""From Python to machine code: what Numba compiles, as an object file.

Numba would put the code into its own engine, behind a wrapper that reports exceptions to Python.
Kernels raise none, and :mod:`.loader` loads them whether they were compiled just now or long ago.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import cfunc
from numba.core import config, sigutils
from numba.core.compiler import Flags, compile_extra
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from .codegen.jit import OPTIONS, KernelCompiler, KernelLibrary
from .loader import ENTRY, keep, keeps_together


def _import_without_blas() -> None:
    """Import what Numba asks for a BLAS, without scipy.linalg, which takes 0.14 s.

    It asks at once to know whether there is one, and again where one is called.
    """
    if importlib.util.find_spec("scipy") is None:
        return
    with contextlib.suppress(ImportError, AttributeError):
        from numba.np import linalg

        ask = linalg.ensure_blas
        linalg.ensure_blas = lambda: None
        try:
            from numba.np import arraymath

            arraymath.ensure_blas = ask
        finally:
            linalg.ensure_blas = ask


_import_without_blas()


@cache
def _machine() -> Any:
    """What makes an object file of LLVM code.

    Numba's expects constants at any distance from the code: a loop with an exp loads an address of
    ten bytes for each of them, time and again. Where a loader keeps both together, they are found
    relative to the code (44 instructions for sixteen elements of a softmax's sum instead of 52).
    """
    codegen = cpu_target.target_context.codegen()
    if not keeps_together():
        return codegen._tm
    options = {"opt": config.OPT}
    codegen._customize_tm_options(options)
    options |= {"reloc": "pic", "codemodel": "small", "jit": False}
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(**options)


def _entry_module(context, fndesc) -> ir.Module:
    """A C function of the same arguments that calls the one of Numba's convention."""
    module = context.create_module("entry")
    kind = context.call_conv.get_function_type(fndesc.restype, fndesc.argtypes)
    callee = ir.Function(module, kind, fndesc.llvm_func_name)
    arguments = [context.get_value_type(t) for t in fndesc.argtypes]
    result = context.get_value_type(fndesc.restype)
    entry = ir.Function(module, ir.FunctionType(result, arguments), ENTRY)
    builder = ir.IRBuilder(entry.append_basic_block())
    _, value = context.call_conv.call_function(
        builder, callee, fndesc.restype, fndesc.argtypes, entry.args
    )
    builder.ret(value)
    return module


@contextlib.contextmanager
def _garbage_left_for_later() -> Iterator[None]:
    """Without looking for cycles while a kernel is built.

    Numba makes and keeps so many objects that looking takes a tenth of the time, more where other
    libraries have made theirs.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@global_compiler_lock
@_garbage_left_for_later()
def emit(function: Callable, signature: str) -> bytes:
    """The object file of a C function."""
    arguments, result = sigutils.normalize_signature(signature)
    flags = Flags()
    cpu_target.options.parse_as_flags(flags, OPTIONS)
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = flags.no_compile = True
    context = cpu_target.target_context
    library = KernelLibrary(context.codegen(), function.__qualname__)
    compiled = compile_extra(
        cpu_target.typing_context,
        context,
        function,
        arguments,
        result,
        flags,
        {},
        library=library,
        pipeline_class=KernelCompiler,
    )
    library.add_ir_module(_entry_module(context, compiled.fndesc))
    # Nobody else calls it: once it is part of the entry, nothing else is made of it.
    library.get_function(compiled.fndesc.llvm_func_name).linkage = "internal"
    library.finalize()
    return _machine().emit_object(library._final_module)


class Unkept:
    """A function compiled by Numba's own means, for this process alone."""

    def __init__(self, function: Callable, signature: str):
        self._function = cfunc(signature, error_model="numpy")(function)
        self.address: int = self._function.address
        keep(self)
