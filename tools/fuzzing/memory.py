"""Tensors of any layout that end, or begin, where the next byte may not be touched.

An arena is memory between two pages without any access: a kernel that reads or writes outside of an
operand that lies against one of them ends the process. Inside the arena all bytes around a tensor,
and between its elements, are 0xFF, so that a write there shows afterwards.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

PAGE = mmap.PAGESIZE
POISON = 0xFF
BAND = 512
PROT_NONE = 0


def _forbid(address: int, size: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), PROT_NONE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@dataclass(frozen=True)
class Layout:
    """How the elements of a tensor lie.

    Attributes
    ----------
    order
        Axes from the outermost in memory to the innermost.
    steps, signs
        Of each axis: 1 for packed, more for a slice; 1, or -1 for one walked backwards. A step of 0
        repeats one element along the axis.
    edge
        "start" or "end": the first or last byte lies against a forbidden page; "middle": neither.
    offset
        Elements left free in front of a tensor in the middle.
    """

    order: tuple[int, ...]
    steps: tuple[int, ...]
    signs: tuple[int, ...]
    edge: str = "end"
    offset: int = 0

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """In elements, with their signs."""
        strides = [0] * len(shape)
        span = 1
        for a in reversed(self.order):
            if self.steps[a]:
                strides[a] = span * self.steps[a] * self.signs[a]
                span = abs(strides[a]) * max(shape[a], 1)
        return tuple(strides)


def packed(shape: tuple[int, ...], edge: str = "end") -> Layout:
    """C order."""
    rank = len(shape)
    return Layout(tuple(range(rank)), (1,) * rank, (1,) * rank, edge)


class Placed:
    """A tensor in an arena, and the bytes around it."""

    def __init__(self, near: Any, start: int, first: int, shape: Any, dtype: Any, strides: Any):
        self.bytes = near
        self._place = {"offset": first - start, "strides": strides}
        self.array = np.ndarray(shape, dtype, near, **self._place)
        self._before: Any = None

    def remember(self) -> None:
        """Keep the bytes as they are now, for :meth:`is_unchanged`."""
        self._before = self.bytes.copy()

    def is_unchanged(self) -> bool:
        return bool(np.array_equal(self.bytes, self._before))

    def written_wrongly(self) -> str | None:
        """What is wrong around a tensor that was to be written where :meth:`remember` saw it."""
        now, before = self.bytes.copy(), self._before.copy()
        for image in (now, before):
            inside = np.ndarray(self.array.shape, self.array.dtype, image, **self._place)
            inside[...] = 0
        changed = np.flatnonzero(now != before)
        if not len(changed):
            return None
        first = int(changed[0]) - int(self._place["offset"])
        return f"{len(changed)} bytes around it were written, the first {first} from its address"


class Arena:
    """Memory for one operand at a time."""

    def __init__(self) -> None:
        self._size = 0
        self._bytes: Any = None

    def _grow(self, size: int) -> None:
        self._size = 1 << max(size - 1, 1 << 18).bit_length()
        # Both are kept by the array: the memory is given back when the arena has none of it left.
        raw = np.frombuffer(mmap.mmap(-1, self._size + 2 * PAGE), np.uint8)
        _forbid(raw.ctypes.data, PAGE)
        _forbid(raw.ctypes.data + PAGE + self._size, PAGE)
        self._bytes = raw[PAGE : PAGE + self._size]

    def place(self, shape: tuple[int, ...], dtype: Any, layout: Layout) -> Placed:
        """A tensor of all ones bits, in the middle of more of them."""
        item = dtype.itemsize
        steps = layout.strides(shape)
        reach = [max(n - 1, 0) * s for n, s in zip(shape, steps, strict=True)]
        size = (sum(map(abs, reach)) + 1) * item
        ahead = BAND + layout.offset * item
        if size + ahead + BAND > self._size:
            self._grow(size + ahead + BAND)
        start = {"start": 0, "end": self._size - size, "middle": ahead}[layout.edge]
        low, high = max(0, start - BAND), min(self._size, start + size + BAND)
        near = self._bytes[low:high]
        near[:] = POISON
        first = start - sum(r for r in reach if r < 0) * item
        return Placed(near, low, first, shape, dtype, tuple(s * item for s in steps))

    def flat(self, size: int) -> Any:
        """``size`` bytes that end at the forbidden page."""
        return self.place((size,), np.dtype(np.uint8), packed((size,))).array
