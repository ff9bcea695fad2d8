"""Parameters as a caller writes them, each made the one value that stands for it in keys.

Equal values of other types (``1.0`` and ``True`` for ``1``) would find each other's entries in a
cache, so a parameter is parsed before any cache is asked. Errors name the caller's word for it.
"""

from __future__ import annotations

from typing import Any

from ..core.vocabulary import OutOfRange, Ties, parse_enum
from .descriptors import _correction, _flag, _integer, _real, normalize_shape

__all__ = [
    "parse_axes",
    "parse_axis",
    "parse_correction",
    "parse_flag",
    "parse_out_of_range",
    "parse_shape",
    "parse_ties",
    "parse_weight",
]


# Of a plain tuple of plain ints nothing is left to parse; asked this way it takes 0.2 us.
_INTEGERS = frozenset({int})


def parse_axis(axis: Any) -> int:
    """The axis of a scan or a softmax."""
    return _integer(axis, "axis")


def parse_axes(axis: Any) -> int | tuple[int, ...] | None:
    """The axes of a reduction."""
    if axis is None or (type(axis) is tuple and _INTEGERS.issuperset(map(type, axis))):
        return axis
    if isinstance(axis, (tuple, list)):
        return tuple([_integer(item, "axis") for item in axis])
    return _integer(axis, "axis")


def parse_shape(shape: Any) -> tuple[int, ...]:
    """The shape of a forward's input."""
    if type(shape) is tuple and _INTEGERS.issuperset(map(type, shape)):
        return shape
    return normalize_shape(shape, "shape")


def parse_flag(value: Any, name: str) -> bool:
    """``reverse``, ``keepdims`` or ``sorted``."""
    return _flag(value, name)


def parse_correction(correction: Any) -> int | float:
    """What var and std subtract from the count."""
    return _correction(correction, "correction")


def parse_weight(weight: Any) -> float:
    """The weight of lerp."""
    return _real(weight, "weight")


def parse_ties(ties: Any) -> str | None:
    """A ties policy by name, None for the default; its descriptor knows which an op has."""
    return None if ties is None else parse_enum(Ties, ties, "ties").value


def parse_out_of_range(policy: Any) -> str:
    """What becomes of ids out of range."""
    return parse_enum(OutOfRange, policy, "out_of_range").value
