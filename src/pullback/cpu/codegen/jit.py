"""How kernels and the functions inside them are compiled.

Only kernels call the functions. They are linked into the kernel, and nothing else is made of them:
neither the entry points that Python and C would use, which took half of the compile time, nor
machine code of their own. Passes of Numba that find nothing to do in a kernel are left out.
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

# Passes of Numba for what kernels are not made of: closures, with blocks, raised exceptions,
# literal_unroll, overloads to inline, expressions of arrays. The machine code is the same without
# them, and there a tenth sooner.
_NEEDLESS = {
    "with_lifting",
    "inline_closure_likes",
    "Rewrite dynamic raises",
    "make_function_op_code_to_jit_function",
    "inline_inlinables",
    "find_literally",
    "literal_unroll",
    "LiteralPropagation",
    "inline_overloads",
    "nopython_rewrites",
    "nopython_supported_feature_validation",
    "dump_parfor_diagnostics",
}


class KernelCompiler(Compiler):
    """Numba's compiler without the passes that kernels have no use for."""

    def define_pipelines(self):
        (pipeline,) = super().define_pipelines()
        pipeline.passes = [step for step in pipeline.passes if step[0]._name not in _NEEDLESS]
        pipeline.finalize()
        return [pipeline]


class _Ingredient(JITCodeLibrary):
    """LLVM code to be linked into a kernel.

    Numba sends code through LLVM twice, cheaply at first, to bring calls that count references
    together before it removes them. Here are none: what is linked into a kernel takes the cheap way
    alone and the kernel the full one alone. It runs as fast, and compiles in two thirds of the
    time.
    """

    @property
    def codegen(self):
        """Numba asks this to ``set_env``: nothing here runs by itself, so nothing is set."""
        return self

    def set_env(self, name, environment):
        pass

    def _optimize_final_module(self):
        self._run_passes(
            loop_vectorize=self._codegen._loopvect,
            slp_vectorize=False,
            opt=self._codegen._opt_level,
            cost="cheap",
        )

    def _run_passes(self, **options):
        made = self._codegen._module_pass_manager(**options)
        # Before Numba 0.62 passes came without a builder.
        passes, *builder = made if isinstance(made, tuple) else (made,)
        passes.run(self._final_module, *builder)

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._finalized = True


class KernelLibrary(_Ingredient):
    """A kernel with everything it calls."""

    def _optimize_final_module(self):
        self._run_passes()


class _Inlined(_Ingredient):
    """Code that becomes part of its callers before they are optimised, so that it need not be.

    What may stay a function is optimised by itself. Where it is not, columns are folded in loops
    that are unrolled less (softmax_backward in 95 microseconds instead of 74).
    """

    def _optimize_final_module(self):
        pass


@register_pass(mutates_CFG=True, analysis_only=False)
class _IngredientLowering(NativeLowering):
    _name = "pullback_ingredient_lowering"

    def run_pass(self, state):
        library = _Inlined if state.flags.forceinline else _Ingredient
        state.library = library(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().run_pass(state)


class _IngredientCompiler(KernelCompiler):
    def define_pipelines(self):
        (pipeline,) = super().define_pipelines()
        pipeline.add_pass_after(_IngredientLowering, NativeLowering)
        pipeline.passes = [step for step in pipeline.passes if step[0] is not NativeLowering]
        pipeline.finalize()
        return [pipeline]


# Kernels own no Python objects: without the run time that counts references to them, Numba emits
# no calls of it.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
_INGREDIENT: dict[str, Any] = {
    **OPTIONS,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "pipeline_class": _IngredientCompiler,
}
_inner, _inlined = njit(**_INGREDIENT), njit(**_INGREDIENT, forceinline=True)


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
