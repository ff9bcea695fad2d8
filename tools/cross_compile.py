"""Compile for another machine the kernels that a command of pullback uses, and keep them.

LLVM compiles for machines other than its own, in a hundredth of the time that it takes when it is
emulated itself. The command runs here with every kernel compiled for there and none run, so its
output means nothing; a Python of that machine, emulated, then finds its kernels on disk.

Usage: PULLBACK_CACHE_DIR=... python tools/cross_compile.py TRIPLE CPU FEATURES check --digest ...
"""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Callable

import llvmlite.binding as llvm
from llvmlite.binding import targets


class _Features(str):
    """Features of a CPU, as LLVM writes them."""

    def flatten(self) -> str:
        return str(self)


def pretend(triple: str, cpu: str, features: str) -> None:
    """Be, for what asks LLVM or Python, a machine of that kind."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    answers: dict[str, Callable[[], str]] = {
        "get_process_triple": lambda: triple,
        "get_default_triple": lambda: triple,
        "get_host_cpu_name": lambda: cpu,
        "get_host_cpu_features": lambda: _Features(features),
    }
    for module in (llvm, targets):
        for name, answer in answers.items():
            setattr(module, name, answer)
    platform.machine = lambda: triple.partition("-")[0]


class _NeverRun:
    """Code of another machine."""

    address = 1

    def __init__(self, data: bytes):
        pass


def run_nothing() -> None:
    """Compile and keep what would be run, and run nothing."""
    from pullback.cpu import builtin, compile

    make, make_on_arrays = builtin.builtin, builtin.on_arrays

    def answer(name: str) -> Callable[..., int]:
        make(name)
        return lambda *words: int(name == "run_program")  # the number of a kernel that is missing

    def answer_on_arrays(expected: int) -> Callable[..., int]:
        make_on_arrays(expected)
        return lambda *arrays: 1  # likewise

    def compile_all(program: Program, *_: object) -> list[compile.Kernel]:
        return [phase.kernel for phase in program.phases]

    vars(compile).update(Code=_NeverRun)
    vars(builtin).update(builtin=answer, on_arrays=answer_on_arrays)  # before others import them
    from pullback.cpu.program import Program

    Program.run_again = Program._share = compile_all  # type: ignore[method-assign, assignment]


def main() -> None:
    triple, cpu, features, *told = sys.argv[1:]
    pretend(triple, cpu, features)
    run_nothing()
    from pullback.tools.cli import main as command

    sys.argv = ["pullback", *told]
    with contextlib.suppress(SystemExit):  # which tells what its output means
        command()


if __name__ == "__main__":
    main()
