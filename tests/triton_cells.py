"""What the compile tests compile, and a count of it for the summary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cells import OPS
from pullback.core.declare import Type
from pullback.core.elements import ELEMENTS as TYPES
from pullback.core.problem import Problem
from pullback.tools.case import Case, cuts

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


def strides_of(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Strides of contiguous operands in bytes, or of a segment op in elements."""
    from pullback.gpu.frame import default_dtype

    found = {}
    for operand in (*problem.reads, *problem.writes):
        item = TYPES[default_dtype(operand, problem.element)].itemsize
        steps = _contiguous(problem.shape_of(operand.name))
        found[operand.name] = steps if problem.is_segmented else tuple(item * s for s in steps)
    return found


def launch(problem: Problem, **how: Any) -> Any:
    """The launch of a problem on contiguous operands, as a plan makes it."""
    from pullback.gpu.launch import Launch
    from pullback.gpu.segment import SegmentLaunch

    if problem.is_segmented:
        return SegmentLaunch(problem, strides_of(problem), **how)
    return Launch(problem, strides_of(problem), in_place=False, **how)


def launch_of(
    name: str, element: str, shape=ROWS, axis: int = 1, target: str = "", **parameters: Any
) -> Any:
    """The launch of an op on contiguous operands, for a target or for any."""
    from pullback.gpu.tiles import room_of

    problem = Case.of(OPS[name], element, shape, axis=axis, **parameters).problem
    return launch(problem) if problem.is_segmented else launch(problem, room=room_of(target))


def segment_steps(name: str, element: str, is_sorted: bool = False, segments: int = 1000) -> list:
    """The launches of a segment op on contiguous operands."""
    from pullback.gpu.segment import check_step

    case = Case.of(OPS[name], element, (65536, 256), (), segments, is_sorted)
    check = check_step(case.problem, 1, wants_order=is_sorted)
    return [check, *launch(case.problem).steps]


def declared_steps(op: Any, element: str, shape: tuple[int, ...]) -> list:
    """The launches of any op along its last axis, or over a thousand segments, with its masks."""
    masks = tuple(o.name for o in op.reads if o.optional and o.type is Type.BOOL)
    return launch(Case.of(op, element, shape, masks, 1000).problem).steps


def steps_of(name: str, element: str) -> list:
    """The launches of an op on the contiguous path."""
    if cuts(OPS[name]):
        return segment_steps(name, element)
    return launch_of(name, element).steps


def built(steps: list, target: str) -> Iterator[tuple[Any, Any]]:
    """Every kernel of a launch, compiled."""
    from pullback.gpu.offline import TARGETS, compile_step

    for step in steps:
        yield step, compile_step(step, TARGETS[target])
