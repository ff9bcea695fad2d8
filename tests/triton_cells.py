"""What the compile tests compile, and a count of it for the summary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cells import DTYPES, OPS
from pullback.core.problem import Problem

# (op, element, target) of everything that was compiled and passed; see conftest.
COMPILED: set[tuple[str, str, str]] = set()

ROWS = (4096, 1024)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a C-ordered tensor, in elements."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def launch_of(name: str, element: str, shape=ROWS, axis: int = 1, ties: str | None = None) -> Any:
    """The launch of an op on contiguous operands, as a plan makes it."""
    from pullback.gpu.launch import Launch

    op = OPS[name]
    axes = tuple(range(len(shape))) if op.family == "lerp" else (axis,)
    selection = (ties,) if ties else ()
    problem = Problem(op, element, shape, axes, selection, data=(("weight", 0.3),))
    item = DTYPES[element].itemsize
    strides = {
        n: tuple(s * item for s in _contiguous(problem.shape_of(n)))
        for n in (*op.inputs, *op.outputs)
    }
    return Launch(problem, strides, in_place=False)


def segment_steps(name: str, element: str, is_sorted: bool = False, segments: int = 1000) -> list:
    """The launches of a segment op on contiguous operands."""
    from pullback.gpu.segment import check_step, gather_steps, sum_steps

    op = OPS[name]
    problem = Problem(op, element, (65536, 256), (0,), segments=segments, is_sorted=is_sorted)
    strides = {n: _contiguous(problem.shape_of(n)) for n in (*op.inputs, *op.outputs)}
    make = sum_steps if op.direction == "forward" else gather_steps
    return [check_step(problem, 1, wants_order=is_sorted), *make(problem, strides)]


def steps_of(name: str, element: str) -> list:
    """The launches of an op on the contiguous path."""
    if OPS[name].family == "segment":
        return segment_steps(name, element)
    return launch_of(name, element).steps


def built(steps: list, element: str, target: str) -> Iterator[tuple[Any, Any]]:
    """Every kernel of a launch, compiled."""
    from pullback.gpu.offline import TARGETS, compile_step

    for step in steps:
        yield step, compile_step(step, element, TARGETS[target])
