"""The memory this process occupies."""

from __future__ import annotations

import mmap
from pathlib import Path

PAGE = mmap.PAGESIZE


def resident_bytes() -> int:
    """Memory this process occupies now; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * PAGE
    except (OSError, IndexError, ValueError):
        return 0


def peak_bytes() -> int:
    """The most memory this process has occupied; 0 where the system does not tell."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def available_bytes() -> int:
    """Memory that could be taken without swapping; 0 where the system does not tell."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
