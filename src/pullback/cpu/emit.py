"""From Python to machine code: an object file of a function and all that it calls."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import llvmlite.binding as llvm

from .codegen.module import Module


@contextlib.contextmanager
def _garbage_left_for_later() -> Iterator[None]:
    """Without looking for cycles: so many objects are made that looking takes a tenth of the time.

    More, where other libraries have made theirs.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_garbage_left_for_later()
def object_code(function: Callable[..., Any], machine: Any, level: int = 3) -> bytes:
    """The object file of a C function of words, for a CPU, optimised up to a level."""
    made = Module(function.__name__)
    made.module.data_layout = str(machine.target_data)
    made.entry(function)
    module = llvm.parse_assembly(str(made.module))
    optimise(module, machine, level)
    code: bytes = machine.emit_object(module)
    return code


def optimise(module: Any, machine: Any, level: int) -> None:
    """Send LLVM code through LLVM's passes, but for those that would make vectors of loops.

    What is worth it is in vectors already.
    """
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
