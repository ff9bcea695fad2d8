"""The one table of ops. Plans, functions, tests, benchmarks, docs and integrations walk it.

Adding an op touches three places: its formula, a row in :mod:`.rows`, its definition in the oracle.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .declare import Op
from .rows import lerp, loss, recurrence, reduce, scan, segment, softmax

_OPS: dict[str, Op] = {
    op.name: op
    for family in (scan, reduce, softmax, lerp, segment, recurrence, loss)
    for op in family.ROWS
}
OPS: Mapping[str, Op] = MappingProxyType(_OPS)


def catalog() -> tuple[Op, ...]:
    """Every op, each forward followed by its backward.

    Examples
    --------
    >>> import pullback as pb
    >>> [op.name for op in pb.catalog() if op.family == "lerp"]
    ['lerp', 'lerp_backward']
    """
    return tuple(_OPS.values())


def kinds(family: str) -> tuple[str, ...]:
    """The kinds of a family."""
    return tuple(dict.fromkeys(op.kind for op in _OPS.values() if op.family == family))


def find(kind: str, direction: str) -> Op:
    """The op of a kind and direction."""
    return _OPS[kind if direction == "forward" else f"{kind}_backward"]


def register(op: Op) -> None:
    """Add a row at run time; functions and plans find it like any other."""
    if op.name in _OPS:
        raise ValueError(f"an op named {op.name!r} is already in the catalog")
    _OPS[op.name] = op


def unregister(name: str) -> None:
    """Take a row that was added at run time out again."""
    del _OPS[name]
