"""What a call is made of when it is traced: an op and its backward on one shape."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ..core import pair as rows
from ..core.declare import Role, Type
from ..core.problem import Problem


def reads(problem: Problem) -> tuple[str, ...]:
    """The operands a problem's kernel looks at, in the order of the catalog."""
    used = {*problem.used(Role.ELEMENT), *problem.used(Role.ROW)}
    cuts = (Role.IDS, Role.OFFSETS)
    return tuple(o.name for o in problem.reads if o in used or o.role in cuts)


def without(problem: Problem, names: Collection[str]) -> Problem:
    """The problem with some operands that may be left out left out."""
    chosen = (False if n in names else value for n, value in problem.chosen.items())
    return replace(problem, selection=tuple(chosen))


class Pair:
    """A forward problem and its backward. Compared by identity: equal calls share one pair.

    Parameters
    ----------
    kind
        The rows of both.
    forward, backward
        The two problems; the backward is None where there is no gradient, and given the gradients
        by all outputs.
    asked
        The outputs of the forward that are asked for.

    Attributes
    ----------
    reads, shapes
        The operands of the forward, and the shapes they stretch to.
    positions
        Operands whose elements name positions along the axis.
    of_rows
        Outputs of the forward with one element for every row.
    outputs
        What a run of the forward makes: what is asked for, and what the backward reads of it.
    gradients
        Operands of the forward that gradients flow to, each with its output of the backward.
    cotangents
        Operands of the backward that are gradients by an output of the forward, each with it.
    saves
        What the backward reads besides them: operands and outputs of the forward.
    linear
        Whether the forward is linear in its variables: then its backward needs none of them.
    moves
        The outputs that change with the variables: those with a cotangent, then ``hidden`` ones.
    residuals
        What the tangent of the forward is made of beside those of the variables.
    """

    def __init__(
        self, kind: rows.Pair, forward: Problem, backward: Problem | None, asked: Collection[str]
    ):
        self.kind, self.forward, self.backward = kind, forward, backward
        self.asked = tuple(asked)
        self.reads = reads(forward)
        self.shapes = {n: forward.shape_of(n) for n in self.reads}
        self.positions = [o.name for o in forward.positions]
        self.of_rows = tuple(o.name for o in forward.writes if o.role is Role.ROW)
        held = reads(backward) if backward else ()
        made = {o.name for o in backward.writes} if backward else ()
        self.cotangents = {n: o for n, o in kind.cotangents.items() if n in held and o in asked}
        self.gradients = {n: g for n, g in kind.gradients.items() if n in self.reads and g in made}
        self.variables = tuple(self.gradients)
        self.saves = tuple(n for n in held if n not in self.cotangents)
        self.outputs = tuple(n for n in forward.op.outputs if n in asked or n in self.saves)
        numbers = {o.name for o in forward.reads if o.type in (Type.ELEMENT, Type.STATE)}
        # With a number that no gradient flows to, an initial state say, it may be affine.
        self.linear = numbers <= {*self.variables} and not (
            {*self.saves} & {*self.variables, *self.outputs}
        )
        known = tuple(self.cotangents.values())
        # Outputs that the backward reads, but takes no gradient by.
        self.hidden = tuple(n for n in self.saves if n in self.outputs and n not in known)
        self.moves = (*known, *self.hidden)
        rest = self.reads if self.linear or self.hidden else ()
        varying = self.variables if self.linear else ()
        self.residuals = tuple(dict.fromkeys((*self.saves, *(n for n in rest if n not in varying))))
        self._backwards: dict[frozenset[str], Problem] = {}
        self.compiled: dict[Any, Callable] = {}

    def problem(self, direction: str, inputs: Collection[str]) -> Problem:
        """The problem of a direction on these operands."""
        if direction == "forward":
            return self.forward
        missing = frozenset(n for n in self.cotangents if n not in inputs)
        found = self._backwards.get(missing)
        if found is None:
            assert self.backward is not None
            found = self._backwards[missing] = without(self.backward, missing)
        return found

    def inputs(self, direction: str, operands: Collection[str]) -> tuple[str, ...]:
        """Those of some operands that a direction reads, in order."""
        if direction == "forward":
            return self.reads
        return reads(self.problem(direction, operands))

    def grown(self, grow: Callable[[Problem], Problem]) -> Pair:
        """The pair with both problems changed."""
        backward = self.backward and grow(self.backward)
        return Pair(self.kind, grow(self.forward), backward, self.asked)

    def __repr__(self) -> str:
        problem = self.forward
        if problem.is_segmented:
            return f"{problem.op.name}[{problem.num_inputs} into {problem.num_segments}]"
        shape = ",".join(map(str, problem.shape))
        return f"{problem.op.name}[{shape} along {','.join(map(str, problem.axes))}]"


@lru_cache(maxsize=4096)
def batched(pair: Pair, at: int, size: int) -> Pair:
    """The pair with one more dimension, which the op does not work along."""

    def grow(problem: Problem) -> Problem:
        shape = (*problem.shape[:at], size, *problem.shape[at:])
        return replace(problem, shape=shape, axes=tuple(a + (a >= at) for a in problem.axes))

    return pair.grown(grow)


@lru_cache(maxsize=4096)
def repeated(pair: Pair, rows: int, columns: int) -> Pair:
    """A segment pair of so many times the rows and segments, in any order, and of the columns."""

    def grow(problem: Problem) -> Problem:
        return replace(
            problem,
            shape=(problem.num_inputs * rows, problem.embedding_dim * columns),
            segments=problem.num_segments * rows,
            is_sorted=problem.is_sorted and rows == 1,
        )

    return pair.grown(grow)
