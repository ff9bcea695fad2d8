"""Machine code in memory, without the compiler that made it.

Every object file has an engine of its own, so that functions of the same name do not meet.
"""

from __future__ import annotations

import inspect
import os
import sys
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

# What an object file calls its function.
ENTRY = "pullback_entry"
# The environment's words for another CPU and its features, as LLVM names them.
VARIABLES = ("PULLBACK_CPU", "PULLBACK_CPU_FEATURES")


@cache
def _target() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()


def _far() -> dict[str, Any]:
    """Options for code that may lie at any distance from what it names."""
    reloc = "static" if _target().name.startswith("x86") else "default"
    return {"reloc": reloc, "codemodel": "jitdefault", "jit": True}


@cache
def keeps_together() -> bool:
    """Whether code and constants of an object file are loaded side by side.

    A memory manager of llvmlite does that; older ones have none.
    """
    known = inspect.signature(llvm.create_mcjit_compiler).parameters
    return "use_lmm" in known and _target().name.startswith("x86")


def target_cpu() -> dict[str, str]:
    """The CPU to compile for: this one, or what the environment names."""
    name, features = (os.environ.get(v) for v in VARIABLES)
    if name is None and features is None:
        features = llvm.get_host_cpu_features().flatten()
    return {"cpu": name or llvm.get_host_cpu_name(), "features": features or ""}


def is_amd() -> bool:
    """Whether it is one of AMD's CPUs, of Zen or later."""
    return target_cpu()["cpu"].startswith("znver")


@cache
def target_machine() -> Any:
    """What makes an object file of a kernel.

    Where the loader keeps code and constants together, constants are found relative to the code.
    Else a loop with an exp would load an address of ten bytes for each of them, time and again (52
    instructions for sixteen elements of a softmax's sum instead of 44).
    """
    if not keeps_together():
        return _target().create_target_machine(opt=3, **target_cpu(), **_far())
    near = {"reloc": "pic", "codemodel": "small", "jit": False}
    return _target().create_target_machine(opt=3, **target_cpu(), **near)


@cache
def caller_machine() -> Any:
    """What makes an object file of code that calls functions of C, at any distance.

    Calls of a shorter reach go through tables for which the memory manager keeps no room.
    """
    return _target().create_target_machine(opt=2, **_far())


_loaded: list[Any] = []


def keep(code: Any) -> None:
    """Never unload code: a thread may run it, or a program hold its address."""
    _loaded.append(code)


class Code:
    """The function of an object file."""

    def __init__(self, data: bytes):
        machine = _target().create_target_machine()
        module, together = llvm.parse_assembly(""), {"use_lmm": True} if keeps_together() else {}
        self._engine = llvm.create_mcjit_compiler(module, machine, **together)
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        self._engine.finalize_object()
        self.address: int = self._engine.get_function_address(ENTRY)
        if not self.address:
            raise ValueError(f"no {ENTRY} in the object file")
        keep(self)


@cache
def platform_tag() -> tuple[Any, ...]:
    """Everything but sources that machine code depends on: Python, LLVM, and the CPU."""
    return (
        (sys.implementation.cache_tag, getattr(sys, "abiflags", "")),
        llvmlite.__version__,
        (llvm.get_default_triple(), *target_cpu().values()),
    )
