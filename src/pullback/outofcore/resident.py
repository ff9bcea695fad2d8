"""The memory this process occupies, and how pages of mapped files are handed back.

Pages of a shared file map are handed back with MADV_DONTNEED: they leave the process, not the file.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PAGE = mmap.PAGESIZE
_DONTNEED = getattr(mmap, "MADV_DONTNEED", None)
# Linux 5.14: fault a whole range in at once. An error such as a full disk is then reported rather
# than delivered as a signal.
_POPULATE_READ, _POPULATE_WRITE = 22, 23


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


def hand_back(maps: Iterable[mmap.mmap | None]) -> None:
    """Hand all pages of the maps back."""
    for held in maps:
        if held is not None and _DONTNEED is not None:
            with suppress(OSError, ValueError):
                held.madvise(_DONTNEED)


def populate(held: mmap.mmap, start: int, length: int, write: bool) -> None:
    """Fault a range of a map in; does nothing where the system cannot."""
    first = start // PAGE * PAGE
    last = min(len(held), start + length)
    try:
        held.madvise(_POPULATE_WRITE if write else _POPULATE_READ, first, last - first)
    except (AttributeError, ValueError):
        pass
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
