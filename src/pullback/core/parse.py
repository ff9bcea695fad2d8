"""Parameters in their one form: ``parse(value, what)`` raises an error that names ``what``.

Nothing here looks at an array, so a parameter is accepted or refused whatever else the call holds,
and whatever was called before.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..errors import InvalidProblemError
from .vocabulary import OutOfRange, Ties, Word, parse_enum

MAX_RANK = 64

# Byte offsets are computed in int64.
_MAX_BYTES = 2**63 - 1

# NaN differs from itself, so what is keyed by a parameter would never match unless every NaN is one
# and the same object.
_NAN = math.nan


# Of a plain tuple of plain ints nothing is left to parse; asked this way it takes 0.2 us.
_INTEGERS = frozenset({int})


def integer(value: object, what: str) -> int:
    """An int, or anything that stands for one but a bool."""
    if type(value) is int:
        return value
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidProblemError(
            f"{what}: expected an integer, got {value!r} of type {type(value).__name__}"
        ) from None


def count(value: object, what: str) -> int:
    """A non-negative integer."""
    number = integer(value, what)
    if number < 0:
        raise InvalidProblemError(f"{what}: expected a non-negative integer, got {number}")
    return number


def flag(value: object, what: str) -> bool:
    """True or False, of Python or NumPy."""
    if value is True or value is False:
        return value
    if type(value).__name__ in ("bool", "bool_") and type(value).__module__ == "numpy":
        return bool(value)
    raise InvalidProblemError(f"{what}: expected True or False, got {value!r}")


def real(value: object, what: str) -> float:
    """A number as a float; NaN is always the same object."""
    try:
        if isinstance(value, (str, bytes, bool)):
            raise TypeError
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:
        raise InvalidProblemError(
            f"{what}: expected a number that a float holds, got one beyond it"
        ) from None
    except (TypeError, ValueError):
        raise InvalidProblemError(f"{what}: expected a real number, got {value!r}") from None
    # Not by math.isnan, which torch.compile cannot trace where sizes and numbers are symbols.
    return number if number == number else _NAN


def correction(value: object, what: str) -> int | float:
    """A finite number; an int where it is integral."""
    number = real(value, what)
    if not math.isfinite(number):
        raise InvalidProblemError(f"{what}: expected a finite number, got {value!r}")
    return int(number) if number.is_integer() else number


def optional_integer(value: object, what: str) -> int | None:
    """An integer, or None."""
    return None if value is None else integer(value, what)


def optional_count(value: object, what: str) -> int | None:
    """A non-negative integer, or None."""
    return None if value is None else count(value, what)


def optional_real(value: object, what: str) -> float | None:
    """A number as a float, or None."""
    return None if value is None else real(value, what)


def fraction(value: object, what: str) -> float:
    """A number from 0 to 1."""
    number = real(value, what)
    if not 0.0 <= number <= 1.0:
        raise InvalidProblemError(f"{what}: expected a number from 0 to 1, got {value!r}")
    return number


def penalty(value: object, what: str) -> float:
    """A finite number that is not negative."""
    number = real(value, what)
    if not 0.0 <= number < math.inf:
        raise InvalidProblemError(f"{what}: expected a finite number of at least 0, got {value!r}")
    return number


def ties(value: object, what: str) -> str | None:
    """The name of a ties policy, None for the default; which an op has is for the op to say."""
    return None if value is None else parse_enum(Ties, value, what).value


def out_of_range(value: object, what: str) -> str:
    """What becomes of a row whose id is out of range."""
    return parse_enum(OutOfRange, value, what).value


def axis(value: object, what: str) -> int:
    """One axis, not yet counted from the front."""
    return integer(value, what)


def axes(value: object, what: str) -> int | tuple[int, ...] | None:
    """An axis, several or None for all, not yet counted from the front."""
    if value is None or (type(value) is tuple and _INTEGERS.issuperset(map(type, value))):
        return value
    if isinstance(value, (tuple, list)):
        return tuple([integer(item, what) for item in value])
    return integer(value, what)


def shape(value: Iterable[Any], what: str, itemsize: int = 8) -> tuple[int, ...]:
    """A tuple of non-negative ints whose product can be addressed."""
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        items = list(value)
    except TypeError:
        raise InvalidProblemError(
            f"{what}: expected a tuple of integers, got {value!r} of type {type(value).__name__}"
        ) from None
    dims = tuple([integer(dim, what) for dim in items])
    if len(dims) > MAX_RANK:
        raise InvalidProblemError(f"{what}: expected rank at most {MAX_RANK}, got {len(dims)}")
    span = itemsize
    for dim in dims:
        if dim < 0:
            raise InvalidProblemError(f"{what}: expected non-negative dims, got {dims}")
        span *= dim or 1
    if span > _MAX_BYTES:
        raise InvalidProblemError(f"{what}: expected fewer than 2**63 bytes, got {dims}")
    return dims


def normalized_axis(value: object, rank: int, what: str) -> int:
    """An axis as an int in ``[0, rank)``; a rank-0 tensor has the one axis 0 (or -1)."""
    index = integer(value, what)
    extent = rank or 1
    if not -extent <= index < extent:
        raise InvalidProblemError(
            f"{what}: expected an axis in [{-extent}, {extent - 1}] for rank {rank}, got {index}"
        )
    return index + extent if index < 0 else index


def normalized_axes(value: object, rank: int, what: str) -> tuple[int, ...]:
    """An int, tuple of ints or None (all axes) as a sorted tuple of axes.

    A rank-0 tensor gives ``()``, as does an empty tuple, which reduces nothing.
    """
    if value is None:
        return tuple(range(rank))
    if isinstance(value, (tuple, list)):
        found = sorted([normalized_axis(item, rank, what) for item in value])
        for left, right in itertools.pairwise(found):
            if left == right:
                raise InvalidProblemError(f"{what}: expected distinct axes, got {value!r}")
    else:
        found = [normalized_axis(value, rank, what)]
    return tuple(found) if rank else ()


class Kind(NamedTuple):
    """The values of a parameter, for those who write them down.

    ``usual`` is the type whose values need no parsing, if there is one; ``hint`` an annotation;
    ``schema`` the type in the signature of an op of torch's library; ``words`` the enum of values
    that are a few words.
    """

    usual: str
    hint: str
    schema: str
    words: type[Word] | None = None


KINDS: dict[Callable[..., Any], Kind] = {
    axis: Kind("int", "int", "int"),
    axes: Kind("int", "int | tuple[int, ...] | None", "int[]"),
    count: Kind("int", "int", "SymInt"),
    optional_count: Kind("int", "int | None", "SymInt?"),
    optional_integer: Kind("int", "int | None", "int?"),
    integer: Kind("int", "int", "int"),
    correction: Kind("int", "float", "float"),
    flag: Kind("bool", "bool", "bool"),
    real: Kind("float", "float", "float"),
    fraction: Kind("", "float", "float"),
    penalty: Kind("", "float", "float"),
    optional_real: Kind("float", "float | None", "float?"),
    shape: Kind("", "tuple[int, ...]", "SymInt[]"),
    ties: Kind("str", "str | None", "str", Ties),
    out_of_range: Kind("str", "str", "str", OutOfRange),
}
