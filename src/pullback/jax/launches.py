"""A CPU launch in words. No other file here knows how schedules describe themselves."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from ..core.declare import Role
from ..core.problem import Problem
from ..cpu import backend, pool
from ..cpu.codegen.block import SCRATCH, STRAINED
from ..cpu.compile import Kernel, code_digest, source_digest
from ..cpu.launch import Launch
from ..cpu.segment_launch import WORKSPACE, SegmentLaunch, cut_by
from ..formulas.record import functions_of
from ..memory.large_pages import LARGE
from ..threads import get_num_threads
from . import handler

Shape = tuple[int, ...]


def reads(problem: Problem) -> tuple[str, ...]:
    """The operands a problem's kernel looks at, in the order of the catalog."""
    if problem.is_segmented:
        return problem.op.inputs
    used = {*problem.used(Role.ELEMENT), *problem.used(Role.ROW)}
    return tuple(o.name for o in problem.op.reads if o in used)


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
    threads = get_num_threads()
    inputs = tuple(n for n in operands if n not in outputs)
    places = {n: k for k, n in enumerate(inputs)}
    places |= {n: -1 - k for k, n in enumerate((*outputs, WORKSPACE))}
    strides = {
        n: strides_of(shape, problem.shape_of(n), dtype.itemsize)
        for n, (shape, dtype) in operands.items()
    }
    if problem.is_segmented:
        ids = "i32" if operands[cut_by(problem.op).name][1].itemsize == 4 else "i64"
        phases, patches, block, workspace = _segment(problem, strides, ids, threads)
    else:
        phases, patches, block, workspace = _rows(problem, strides, threads)
    words = [0] * handler.HEAD
    words[handler.VERSION] = handler.LAUNCH_VERSION
    words[handler.PHASES], words[handler.PATCHES] = len(phases), len(patches)
    words[handler.LENGTH], words[handler.THREADS] = len(block), threads
    for kernel, units, traffic, only_if_strained in phases:
        shared = int(traffic >= pool.SERIAL_BYTES)
        words += [_register(kernel, problem), units, shared, STRAINED * only_if_strained]
    sizes = {n: math.prod(operands[n][0]) * operands[n][1].itemsize for n in outputs}
    sizes[WORKSPACE] = workspace
    for word, name, offset in patches:
        size = sizes.get(name, 0)
        words += [word, places[name], offset, size if size >= LARGE else 0]
    return np.array([*words, *block], np.int64), workspace


def _rows(problem: Problem, strides: dict[str, Shape], threads: int):
    launch = Launch(problem, strides, threads)
    patches = launch.operand_words()
    if launch.workspace:
        patches.append((SCRATCH, WORKSPACE, 0))
    phases = [
        (phase.kernel, phase.units, launch.traffic, phase.only_if_strained)
        for phase in launch.phases
    ]
    return phases, patches, launch.template.tolist(), launch.workspace


def _segment(problem: Problem, strides: dict[str, Shape], ids: str, threads: int):
    launch = SegmentLaunch(problem, strides, ids, threads)
    phases = [(step.kernel, step.units, step.traffic, False) for step in launch.steps]
    return phases, launch.addresses, launch.template, launch.workspace


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
    problem: Problem, operands: Mapping[str, np.ndarray], outputs: tuple[str, ...]
) -> list[np.ndarray]:
    """The same through the NumPy path."""
    from ..memory.view import view

    arrays = {n: np.broadcast_to(a, problem.shape_of(n)) for n, a in operands.items()}
    dtype = operands[reads(problem)[0]].dtype
    results = {n: np.empty(problem.shape_of(n), dtype) for n in outputs}
    views = {n: view(a, n) for n, a in {**arrays, **results}.items()}
    runner: Any = backend.NumbaRunner
    if problem.is_segmented:
        runner = backend.SegmentRunner
    runner(problem).run(views, 0, 0, get_num_threads())
    return list(results.values())
