"""Machine code in memory, without the compiler that made it.

Every object file has an engine of its own, so that functions of the same name do not meet.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

# What an object file calls its function.
ENTRY = "pullback_entry"


@cache
def _target() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()


@cache
def keeps_together() -> bool:
    """Whether code and constants of an object file are loaded side by side.

    A memory manager of llvmlite does that; older ones have none.
    """
    known = inspect.signature(llvm.create_mcjit_compiler).parameters
    return "use_lmm" in known and _target().name.startswith("x86")


@cache
def object_machine() -> Any:
    """What makes an object file of LLVM code that calls functions of C, at any distance.

    Calls of a shorter reach go through tables for which the memory manager keeps no room.
    """
    reloc = "static" if _target().name.startswith("x86") else "default"
    return _target().create_target_machine(reloc=reloc, codemodel="jitdefault", jit=True)


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
def version_of_numba() -> str:
    """The version of Numba, without importing it."""
    found = importlib.util.find_spec("numba")
    if found is None or found.origin is None:
        return "none"
    text = (Path(found.origin).parent / "_version.py").read_text(encoding="utf-8")
    told = re.search(r'"version": "([^"]+)"', text)
    return told[1] if told else hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def platform_tag() -> tuple[Any, ...]:
    """Everything but sources that machine code depends on.

    Python, Numba and llvmlite, the CPU with its features, and what the environment tells Numba.
    """
    return (
        (sys.implementation.cache_tag, getattr(sys, "abiflags", "")),
        (version_of_numba(), llvmlite.__version__),
        tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith("NUMBA_"))),
        (llvm.get_default_triple(), llvm.get_host_cpu_name()),
        llvm.get_host_cpu_features().flatten(),
    )
