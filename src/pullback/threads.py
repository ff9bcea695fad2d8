"""How many threads a call may use. No result depends on it."""

from __future__ import annotations

import os

from .core.vocabulary import thread_count

_chosen: int | None = None


def _default() -> int:
    text = os.environ.get("PULLBACK_NUM_THREADS", "").strip()
    if text:
        return thread_count(int(text) if text.isdecimal() else text, "PULLBACK_NUM_THREADS")
    from .cpu.machine import allowed_cores

    return allowed_cores()


def get_num_threads() -> int:
    """The number of threads that calls use by default.

    ``PULLBACK_NUM_THREADS`` sets it at start-up; without it, it is the number of CPUs that this
    process may use.

    Examples
    --------
    >>> import pullback as pb
    >>> pb.get_num_threads() >= 1
    True
    """
    global _chosen
    if _chosen is None:
        _chosen = _default()
    return _chosen


def set_num_threads(n: int) -> None:
    """Set the number of threads that calls use by default.

    Parameters
    ----------
    n : int
        At least 1. The bytes of a result are the same for any value.

    Examples
    --------
    >>> import pullback as pb
    >>> before = pb.get_num_threads()
    >>> pb.set_num_threads(1)
    >>> pb.get_num_threads()
    1
    >>> pb.set_num_threads(before)
    """
    global _chosen
    _chosen = thread_count(n, "n")
