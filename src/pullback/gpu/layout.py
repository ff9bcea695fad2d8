"""From strides to a walk: which dimensions are the axis, which one tiles span, how the lanes lie.

A walk has one dimension of units that a tile spans, further outer dimensions of which a program has
one index each, and the axis, which may be several dimensions that do not lie as one in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..memory.dimensions import merge

# Positions up to here fit 32 bits with room for the last chunk, or tile, to reach past the end.
_NARROW = 2**30


@dataclass(frozen=True)
class Walk:
    """Sizes, and for every operand its strides in elements.

    Attributes
    ----------
    across
        Whether neighbouring lanes lie on neighbouring units rather than along the axis.
    units, unit_strides
        The dimension that a tile spans.
    outer, outer_strides
        The other dimensions that are not the axis, the fastest first.
    axis, axis_strides
        The axis, outermost first. Operands with one element a row stay put on it.
    """

    across: bool
    units: int
    unit_strides: tuple[int, ...]
    outer: tuple[int, ...]
    outer_strides: tuple[tuple[int, ...], ...]
    axis: tuple[int, ...]
    axis_strides: tuple[tuple[int, ...], ...]

    @property
    def length(self) -> int:
        """Elements along the axis."""
        return _product(self.axis)

    @property
    def rows(self) -> int:
        """Units over all outer dimensions."""
        return self.units * _product(self.outer)

    @property
    def wide(self) -> bool:
        """Whether offsets need 64 bits."""
        reach = max(self.units, self.length, self.rows)
        for unit, outer, axis in zip(
            self.unit_strides, self.outer_strides, self.axis_strides, strict=True
        ):
            steps = (unit, *outer, *axis)
            sizes = (self.units, *self.outer, *self.axis)
            span = sum(abs(s) * (n - 1) for s, n in zip(steps, sizes, strict=True))
            reach = max(reach, span)
        # Offsets past the end, in the last tile, may wrap: nothing is read or written there.
        return reach >= _NARROW


def _product(sizes: Sequence[int]) -> int:
    result = 1
    for n in sizes:
        result *= n
    return result


def choose_walk(
    shape: Sequence[int],
    axes: Sequence[int],
    strides: Sequence[Sequence[int]],
    full: Sequence[int],
    pointwise: bool,
) -> Walk:
    """Pick a walk.

    Parameters
    ----------
    shape, axes
        Of the problem.
    strides
        In elements, per operand and dimension; zero along the axes for operands with one element
        a row.
    full
        Positions of the operands with an element for every position of the axis.
    pointwise
        Whether the order along the axis means nothing.
    """
    guide = strides[full[-1]] if full else strides[-1]
    rest = sorted((d for d in range(len(shape)) if d not in axes), key=lambda d: -abs(guide[d]))
    along = list(axes)
    if pointwise:
        along.sort(key=lambda d: -abs(guide[d]))
    outer, outer_strides = merge([shape[d] for d in rest], [[s[d] for d in rest] for s in strides])
    axis, axis_strides = merge([shape[d] for d in along], [[s[d] for d in along] for s in strides])
    if pointwise and len(axis) > 1:
        outer = outer + axis[:-1]
        outer_strides = [o + a[:-1] for o, a in zip(outer_strides, axis_strides, strict=True)]
        axis, axis_strides = axis[-1:], [a[-1:] for a in axis_strides]
    if not axis:
        axis, axis_strides = [1], [[1] for _ in strides]
    if not outer:
        outer, outer_strides = [1], [[1] for _ in strides]

    def packed(steps: list[list[int]], d: int) -> int:
        return sum(steps[o][d] == 1 for o in full)

    inner = len(axis) - 1
    dims = range(len(outer))
    best = max(dims, key=lambda d: (packed(outer_strides, d), outer[d]))
    across = (
        packed(outer_strides, best) > packed(axis_strides, inner) or axis[inner] == 1
    ) and outer[best] > 1
    spanned = best if across else max(dims, key=lambda d: outer[d])
    others = sorted((d for d in dims if d != spanned), key=lambda d: abs(outer_strides[-1][d]))
    return Walk(
        across,
        outer[spanned],
        tuple(s[spanned] for s in outer_strides),
        tuple(outer[d] for d in others),
        tuple(tuple(s[d] for d in others) for s in outer_strides),
        tuple(axis),
        tuple(tuple(s) for s in axis_strides),
    )
