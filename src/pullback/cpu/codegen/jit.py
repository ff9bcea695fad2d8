"""How functions inside kernels are compiled.

Only kernels call them. They are optimised and linked into the kernel, and nothing else is made of
them: neither the entry points that Python and C would use, which took half of the compile time, nor
machine code of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from numba import njit
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering

# The kernel being built. Machine code from the disk cache is linked by symbol name into a process
# that may have given the same names to other functions, so every function made for a kernel carries
# the kernel's key in its name.
kernel_key: ContextVar[str] = ContextVar("kernel_key", default="")


class _Ingredient(JITCodeLibrary):
    """LLVM code to be linked into a kernel."""

    @property
    def codegen(self):
        """Numba asks this to ``set_env``: nothing here runs by itself, so nothing is set."""
        return self

    def set_env(self, name, environment):
        pass

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _IngredientLowering(NativeLowering):
    _name = "pullback_ingredient_lowering"

    def run_pass(self, state):
        state.library = _Ingredient(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().run_pass(state)


class _IngredientCompiler(Compiler):
    def define_pipelines(self):
        (pipeline,) = super().define_pipelines()
        pipeline.add_pass_after(_IngredientLowering, NativeLowering)
        pipeline.passes = [step for step in pipeline.passes if step[0] is not NativeLowering]
        pipeline.finalize()
        return [pipeline]


_OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "pipeline_class": _IngredientCompiler,
}
_inner, _inlined = njit(**_OPTIONS), njit(**_OPTIONS, forceinline=True)


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call.

    LLVM may take it into its caller or not. Taken in one and all, the constants of an exp would not
    all fit in registers, and a load of one from the stack waits for stores past the caches
    (log_softmax down columns took 38 ms instead of 15).
    """
    return _inner(_named(function))


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a function that kernels must not call, however large: its vectors would be stored."""
    return _inlined(_named(function))


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    key = kernel_key.get()
    if key:
        function.__qualname__ = f"{function.__qualname__}_{key}"
    return function
