"""A look at the values of ids, offsets and targets, in one native call before a kernel runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core.declare import Operand
from ..core.problem import Problem
from ..cpu.backend import SegmentRunner
from ..cpu.builtin import builtin
from ..memory.dimensions import merge
from ..memory.view import View

# ``fine(addresses, owners)`` of operands in the order of the problem.
Fine = Callable[[Sequence[int], Any], bool]


def make_look(problem: Problem, views: Mapping[str, View], threads: int) -> Fine | None:
    """Whether integers are as they must be, told by where they are; None where no call tells it."""
    if problem.is_segmented:
        return _look_at_ids(problem, views, threads)
    looks = [_look_at_positions(problem, o, views[o.name]) for o in problem.positions]
    return looks[0] if len(looks) == 1 else None


def _look_at_ids(problem: Problem, views: Mapping[str, View], threads: int) -> Fine:
    are_wrong, by = SegmentRunner(problem).are_wrong, problem.cut_by
    v, place = views[by.name], problem.reads.index(by)
    stride, count, kind = v.strides[0], v.shape[0], v.dtype

    def fine(addresses: Sequence[int], owners: Any) -> bool:
        return not are_wrong(addresses[place], stride, count, kind, threads, owners)

    return fine


def _look_at_positions(problem: Problem, operand: Operand, v: View) -> Fine | None:
    sizes, (steps,) = merge(v.shape, [v.strides])
    if len(sizes) > 1:
        return None
    place, size = problem.reads.index(operand), v.itemsize
    count, step = (sizes[0], steps[0]) if sizes else (1, size)
    extent, allowed = problem.extent, problem.constants.get(operand.allows, math.nan)
    # Where nothing else is allowed, what is allowed twice is a position.
    other = int(allowed) if math.isfinite(allowed) else 0
    wrong = builtin("wrong_positions")

    def fine(addresses: Sequence[int], owners: Any) -> bool:
        return not wrong(addresses[place], step, size, count, extent, other)

    return fine
