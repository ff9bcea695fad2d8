"""How precisely a call computes what is not carried along a row."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .errors import InvalidProblemError

PRECISIONS = ("fast", "tight")
DEFAULT = "fast"
_chosen: str | None = None
_forgetting: list[Callable[[], None]] = []


def forgets(clear: Callable[[], None]) -> Callable[[], None]:
    """Have ``clear`` called when the precision changes: it empties what was made for another."""
    _forgetting.append(clear)
    return clear


def checked(value: object, what: str) -> str:
    """A precision by name, or an error that names ``what``."""
    if value not in PRECISIONS:
        names = " or ".join(map(repr, PRECISIONS))
        raise InvalidProblemError(f"{what}: expected {names}, got {value!r}")
    return str(value)


def get_precision() -> str:
    """The precision that calls use by default.

    ``"fast"``, the default: float32, float16 and bfloat16 are computed in float32 where an element
    does not depend on the one before it. ``"tight"``: in float64. Totals, products and
    recurrences are carried in float64 in both. ``PULLBACK_PRECISION`` sets it at start.

    Examples
    --------
    >>> import pullback as pb
    >>> pb.get_precision() in ("fast", "tight")
    True
    """
    global _chosen
    if _chosen is None:
        text = os.environ.get("PULLBACK_PRECISION", "").strip()
        _chosen = checked(text or DEFAULT, "PULLBACK_PRECISION")
    return _chosen


def set_precision(precision: str) -> None:
    """Set the precision that calls use by default.

    Parameters
    ----------
    precision : {"fast", "tight"}
        See :func:`get_precision`. Plans keep the precision they were selected with, and so does
        code that JAX or torch.compile has already compiled.

    Examples
    --------
    >>> import pullback as pb
    >>> before = pb.get_precision()
    >>> pb.set_precision("fast")
    >>> pb.get_precision()
    'fast'
    >>> pb.set_precision(before)
    """
    global _chosen
    _chosen = checked(precision, "precision")
    for clear in _forgetting:
        clear()


@contextmanager
def under(precision: str) -> Iterator[None]:
    """Calls within are of this precision."""
    before = get_precision()
    set_precision(precision)
    try:
        yield
    finally:
        set_precision(before)
