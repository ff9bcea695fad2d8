"""What a cut op is, in a form that travels: any process makes the same :class:`.Cut` of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ..core.catalog import OPS
from ..core.problem import Problem, describe
from ..precision import get_precision
from .engine import Cut
from .segments import SegmentCut


@dataclass(frozen=True)
class Recipe:
    """An op on a tensor of a shape, by names and plain values.

    Attributes
    ----------
    op, element
        Names of the op and of its element type.
    shape
        Shape of the operands with an element for every position; of a segment op (rows, columns).
    parameters
        Names and values.
    given
        Names of the operands that may be left out and are not.
    segments
        Of a segment op, their number.
    precision
        As in :class:`.Problem`.
    """

    op: str
    element: str
    shape: tuple[int, ...]
    parameters: tuple[tuple[str, Any], ...] = ()
    given: tuple[str, ...] = ()
    segments: int | None = None
    precision: str = ""

    @classmethod
    def here(cls, *args: Any) -> Recipe:
        """A recipe with the precision that is set in this process."""
        return replace(cls(*args), precision=get_precision())

    def problem(self) -> Problem:
        """The problem it stands for."""
        return _problem(self)

    def cut(self) -> Cut | SegmentCut:
        """The op, cut; the same object for the same recipe."""
        return _cut(self)


@lru_cache(256)
def _problem(recipe: Recipe) -> Problem:
    made = describe(
        OPS[recipe.op],
        recipe.element,
        recipe.shape,
        dict(recipe.parameters),
        recipe.given,
        recipe.segments,
    )
    return replace(made, precision=recipe.precision or made.precision)


@lru_cache(256)
def _cut(recipe: Recipe) -> Cut | SegmentCut:
    problem = recipe.problem()
    return SegmentCut(problem) if problem.is_segmented else Cut(problem)
