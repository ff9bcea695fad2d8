"""What the examples share: two ways of doing the same, timed one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable


def seconds(call: Callable[[], object], repeats: int = 7) -> float:
    """The best of several runs, after one to warm up."""
    call()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


def compare(
    what: str, ours: Callable[[], object], own: Callable[[], object], framework: str = "torch"
) -> None:
    """Print both times."""
    mine, theirs = seconds(ours), seconds(own)
    print(
        f"{what}: pullback {mine * 1e3:.2f} ms, {framework} {theirs * 1e3:.2f} ms "
        f"({theirs / mine:.1f} times)"
    )
