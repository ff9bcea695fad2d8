"""What a call is made of when it is traced: an op and its backward on one shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ..core.problem import Problem

IDS = "segment_ids"


def _reads(problem: Problem) -> tuple[str, ...]:
    from .launches import reads  # brings Numba in, which importing pullback.jax should not

    return reads(problem)


class Pair:
    """A forward problem and its backward. Compared by identity: equal calls share one pair.

    Attributes
    ----------
    forward, backward
        The two problems.
    variables
        Operands of the forward that gradients flow to, in the order of the backward's outputs.
    cotangent
        The operand of the backward that holds the gradient by the forward's output.
    saves
        What the backward reads besides it: operands and outputs of the forward.
    linear
        Whether the forward is linear in its variables: then its backward needs none of them.
    """

    def __init__(self, forward: Problem, backward: Problem):
        self.forward: Any = forward
        self.backward: Any = backward
        self.variables = tuple(n for n in forward.op.inputs if n != IDS)
        kept = (*backward.op.needs, IDS)
        (self.cotangent,) = (n for n in backward.op.inputs if n not in kept)
        self._reads = {"forward": _reads(forward), "backward": _reads(backward)}
        self.saves = tuple(n for n in self._reads["backward"] if n != self.cotangent)
        self.linear = not backward.op.needs
        self.compiled: dict[Any, Callable] = {}

    def problem(self, direction: str) -> Problem:
        """The problem of a direction."""
        return self.forward if direction == "forward" else self.backward

    def reads(self, direction: str) -> tuple[str, ...]:
        """The operands of a direction, in order."""
        return self._reads[direction]

    def __repr__(self) -> str:
        problem = self.forward
        if problem.is_segmented:
            return f"{problem.op.name}[{problem.num_inputs} into {problem.num_segments}]"
        shape = ",".join(map(str, problem.shape))
        return f"{problem.op.name}[{shape} along {','.join(map(str, problem.axes))}]"


@lru_cache(maxsize=4096)
def batched(pair: Pair, at: int, size: int) -> Pair:
    """The pair with one more dimension, which the op does not work along."""

    def grown(problem: Any) -> Problem:
        shape = (*problem.shape[:at], size, *problem.shape[at:])
        return replace(problem, shape=shape, axes=tuple(a + (a >= at) for a in problem.axes))

    return Pair(grown(pair.forward), grown(pair.backward))


@lru_cache(maxsize=4096)
def repeated(pair: Pair, rows: int, columns: int) -> Pair:
    """A segment pair of so many times the rows and segments, in any order, and of the columns."""

    def grown(problem: Any) -> Problem:
        return replace(
            problem,
            shape=(problem.num_inputs * rows, problem.embedding_dim * columns),
            segments=problem.num_segments * rows,
            is_sorted=problem.is_sorted and rows == 1,
        )

    return Pair(grown(pair.forward), grown(pair.backward))
