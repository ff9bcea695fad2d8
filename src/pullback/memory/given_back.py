"""Memory of large results, used again once nobody holds them any more.

malloc gives blocks of 32 MB and more back to the system whatever its settings, and the system
clears what it hands out: a gradient of 64 MB took 22 ms as a new array and 15 in memory that was
there. What a result gives back is marked as free (MADV_FREE): a system that runs short takes it,
and until then its pages stay where they are.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

from .large_pages import ADVICE

# From this size on malloc does not keep memory itself.
LEAST = 32 << 20


def _sixteenth_of_memory() -> int:
    """Of the memory that the machine has; nothing where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 16
    except (AttributeError, OSError, ValueError):
        return 0


# What is kept at most, the youngest of it.
MOST = min(1 << 30, _sixteenth_of_memory())
PAGE = 2 << 20

FREE = getattr(mmap, "MADV_FREE", None)
FLAGS = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)


class _Block:
    """Memory of the system's, in whole large pages."""

    __slots__ = ("address", "memory", "size")

    def __init__(self, size: int):
        self.size = size
        self.memory = mmap.mmap(-1, size, flags=FLAGS)
        if ADVICE is not None:
            self.memory.madvise(ADVICE)
        # The array is gone at once: while it lives the memory cannot be given to the system.
        self.address = np.frombuffer(self.memory, np.uint8).ctypes.data


_kept: list[_Block] = []


def _keep(block: _Block, kept: list[_Block] = _kept, free: Any = FREE) -> None:
    block.memory.madvise(free)
    kept.append(block)
    while sum(b.size for b in tuple(kept)) > MOST:
        kept.pop(0)


def _take(size: int) -> _Block:
    """A block of this size, the youngest that is kept or a new one."""
    for block in reversed(_kept):
        if block.size == size:
            try:
                _kept.remove(block)
            except ValueError:  # another thread was faster
                continue
            return block
    return _Block(size)


class _Lease:
    """What an array on a block refers to; the block is kept when the last such array is gone."""

    __slots__ = ("__array_interface__", "_block", "_keep")

    def __init__(self, block: _Block, size: int):
        self._block, self._keep = block, _keep
        self.__array_interface__ = {
            "version": 3,
            "data": (block.address, False),
            "shape": (size,),
            "typestr": "|u1",
        }

    def __del__(self) -> None:
        self._keep(self._block)


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """As ``numpy.empty``; large arrays on memory that others gave back, if there is some."""
    size = dtype.itemsize
    for n in shape:
        size *= n
    if size < LEAST or FREE is None:
        return np.empty(shape, dtype)
    lease = _Lease(_take(-(-size // PAGE) * PAGE), size)
    return np.asarray(lease).view(dtype).reshape(shape)
