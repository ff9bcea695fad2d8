"""Which peers a large case does without: those that were far behind on a smaller one.

A minute for a peer that takes seven seconds a call tells nobody who the fastest is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..case import Case

# A peer that took so many times as long as the fastest one is left out
FAR = 4.0
# where a call would take so many milliseconds.
LONG = 500.0


def far_behind(case: Case, cells: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Peers that a case need not be compared with, each with what it took on a smaller tensor.

    Parameters
    ----------
    case
        What is to be measured.
    cells
        What has been: of the same op, element type and axis the largest that is smaller counts.
    """
    name, element, _, axis = case.key
    alike = (name, element, axis)
    smaller = [
        c
        for c in cells
        if "runs" in c
        and (c["op"], c["dtype"], c["axis"]) == alike
        and c["bytes"] < case.useful_bytes
    ]
    if not smaller:
        return {}
    last = max(smaller, key=lambda c: c["bytes"])
    times = {n: r["ms"] for n, r in last["runs"].items() if n not in ("plan", "function")}
    fastest = min(times, key=times.__getitem__, default="")
    growth = case.useful_bytes / last["bytes"]
    return {
        n: f"took {t / times[fastest]:.0f} times as long as {fastest} on {last['shape']}"
        for n, t in times.items()
        if t > FAR * times[fastest] and t * growth > LONG
    }
