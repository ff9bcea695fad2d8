"""What the examples share: two ways of doing the same, timed in turns."""

from __future__ import annotations

import time
from collections.abc import Callable


def in_turns(*calls: Callable[[], object], repeats: int = 7) -> list[float]:
    """The best of several runs of each, after one to warm up."""
    for call in calls:
        call()
    best = [float("inf")] * len(calls)
    for _ in range(repeats):
        for k, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[k] = min(best[k], time.perf_counter() - start)
    return best


def compare(
    what: str, ours: Callable[[], object], own: Callable[[], object], framework: str = "torch"
) -> None:
    """Print both times."""
    mine, theirs = in_turns(ours, own)
    print(
        f"{what}: pullback {mine * 1e3:.2f} ms, {framework} {theirs * 1e3:.2f} ms "
        f"({theirs / mine:.1f} times)"
    )
