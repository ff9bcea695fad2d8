"""What else the machine is doing, which a time would show."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

_STAT = Path("/proc/stat")
# From here on times are not to be trusted.
BUSY, NOISY = 0.1, 0.1


def busy_share(seconds: float = 0.2) -> float | None:
    """How much of the CPUs others use while this process sleeps; None where no one tells."""
    before = _ticks()
    if before is None:
        return None
    time.sleep(seconds)
    after = _ticks()
    if after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


def _ticks() -> tuple[int, int] | None:
    """Ticks of all CPUs that were not idle, and all ticks."""
    try:
        fields = [int(v) for v in _STAT.read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    return sum(fields) - fields[3] - fields[4], sum(fields)


def noise_of(cells: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """The noise of the plan's times, in the middle and at worst; None of nothing."""
    found = [n for c in cells if (n := c.get("runs", {}).get("plan", {}).get("noise")) is not None]
    return (median(found), max(found)) if found else None


def warnings(load: Sequence[float | None], noise: tuple[float, float] | None) -> list[str]:
    """What a reader of the times should know."""
    found = []
    busiest = max((v for v in load if v is not None), default=0.0)
    if busiest > BUSY:
        found.append(f"other processes used {100 * busiest:.0f}% of the CPUs: the machine is busy")
    if noise and noise[0] > NOISY:
        found.append(f"times of one case differ by {100 * noise[0]:.0f}%: do not rely on them")
    return found
