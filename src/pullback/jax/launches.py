"""A CPU launch in words. No other file here knows how schedules describe themselves."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from ..core.declare import Role
from ..core.elements import ELEMENTS
from ..core.problem import Problem
from ..cpu import backend
from ..cpu.compile import Kernel, code_digest, source_digest
from ..cpu.launch import Launch
from ..cpu.program import WORKSPACE, Program
from ..cpu.segment_launch import SegmentLaunch
from ..formulas.record import ScanFormula, functions_of
from ..memory.large_pages import LARGE
from ..threads import get_num_threads
from . import handler

Shape = tuple[int, ...]


def strides_of(shape: Shape, wanted: Shape, item: int) -> Shape:
    """Byte strides of a row-major array; dimensions of length 1 stand for any length."""
    strides = []
    step = item
    for size, full in zip(reversed(shape), reversed(wanted), strict=True):
        strides.append(0 if size == 1 != full else step)
        step *= size
    return tuple(reversed(strides))


def describe(
    problem: Problem, operands: Mapping[str, tuple[Shape, np.dtype]], outputs: tuple[str, ...]
) -> tuple[np.ndarray, int]:
    """The attribute that makes the handler run a problem, and the bytes of workspace it needs.

    Parameters
    ----------
    problem
        What to run.
    operands
        Shape and dtype of each operand that is read and of each output, in the order of the call.
    outputs
        The outputs that are wanted; a workspace follows them in the results.
    """
    strides = {
        n: strides_of(shape, problem.shape_of(n), dtype.itemsize)
        for n, (shape, dtype) in operands.items()
    }
    program = _program(problem, strides, operands)
    kernels = [_register(phase.kernel, problem) for phase in program.phases]
    sizes = {n: math.prod(operands[n][0]) * operands[n][1].itemsize for n in outputs}
    sizes[WORKSPACE] = program.workspace
    new = {n: size for n, size in sizes.items() if size >= LARGE}
    words = [handler.LAUNCH_VERSION, *program.in_words(kernels, new)]
    return np.array(words, np.int64), program.workspace


def also_written(problem: Problem, outputs: tuple[str, ...]) -> str | None:
    """An output that a launch must have too, or None: a scan writes something at each position."""
    if not isinstance(problem.formula, ScanFormula):
        return None
    elements = [o.name for o in problem.writes if o.role is Role.ELEMENT]
    return elements[0] if elements and not {*elements} & {*outputs} else None


_NAMES = {element.dtype: name for name, element in ELEMENTS.items()}


def _program(
    problem: Problem, strides: Mapping[str, Shape], operands: Mapping[str, tuple[Shape, np.dtype]]
) -> Program:
    threads = get_num_threads()
    dtypes = {n: _NAMES[dtype] for n, (_, dtype) in operands.items()}
    if not problem.is_segmented:
        return Launch(problem, strides, threads, dtypes).program
    return SegmentLaunch(problem, strides, dtypes, threads).program


_registered: dict[int, Kernel] = {}


def _register(kernel: Kernel, problem: Problem) -> int:
    """The id of a kernel: the same in every process that would compile the same code for it."""
    identity = _identity(kernel.name, code_digest(functions_of(problem.formula)))
    if identity not in _registered:
        # Remembered last: an interrupt in between leaves a kernel that is registered again.
        handler.register_kernel(identity, kernel.address)
        _registered[identity] = kernel
    return identity


@cache
def _identity(name: str, code: str) -> int:
    digest = hashlib.sha256(f"{name}-{code}-{source_digest()}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1 or 1


def run_on_host(
    problem: Problem, operands: Mapping[str, np.ndarray], outputs: Mapping[str, np.dtype]
) -> list[np.ndarray]:
    """The same through the NumPy path; ``outputs`` are the types of those that are wanted."""
    from ..memory.view import view

    arrays = {n: np.broadcast_to(a, problem.shape_of(n)) for n, a in operands.items()}
    results = {n: np.empty(problem.shape_of(n), dtype) for n, dtype in outputs.items()}
    views = {n: view(a, n) for n, a in {**arrays, **results}.items()}
    runner: Any = backend.RowRunner
    if problem.is_segmented:
        runner = backend.SegmentRunner
    runner(problem).run(views, 0, 0, get_num_threads())
    return list(results.values())
