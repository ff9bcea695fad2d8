"""How functions inside kernels are compiled.

Only kernels call them, and a kernel takes all of them in: LLVM optimises the whole once, and its
vectors stay in registers. Nothing else is made of them, neither the entry points that Python and C
would use, nor machine code of their own (left to Numba, that took two thirds of the compile time).
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
    """LLVM code to be linked into a kernel, as it was lowered."""

    @property
    def codegen(self):
        """Numba asks this to ``set_env``: nothing here runs by itself, so nothing is set."""
        return self

    def set_env(self, name, environment):
        pass

    def _optimize_final_module(self):
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


_njit = njit(
    error_model="numpy",
    no_cpython_wrapper=True,
    no_cfunc_wrapper=True,
    forceinline=True,
    pipeline_class=_IngredientCompiler,
)


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call."""
    key = kernel_key.get()
    if key:
        function.__qualname__ = f"{function.__qualname__}_{key}"
    return _njit(function)
