"""What native code knows of NumPy's arrays: their fields, and what a call expects of them.

The first fields of an array are part of NumPy's C ABI. Where they do not lie as they should, which
is looked at before it is relied on, arrays are looked at in Python.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

# Words of an array: its type, data, rank, addresses of shape and strides, dtype and flags.
TYPE, DATA, RANK, SHAPE, STRIDES, DTYPE, FLAGS = 1, 2, 3, 4, 5, 7, 8
WRITEABLE = 0x0400
# Words of what is expected: how many arrays, the program, the type of arrays, and of every array an
# entry: its dtype, its rank, flags that must be set, low bits that its address must not have, its
# bytes, whether it is written, of positions what they must be below and the one value that they may
# be besides, its shape and its strides.
COUNT, PROGRAM, ARRAY_TYPE, ENTRIES = 0, 1, 2, 3
IS_DTYPE, OF_RANK, WITH_FLAGS, LOW_BITS, BYTES, WRITTEN = 0, 1, 2, 3, 4, 5
BELOW, ALLOWED, SIZES = 6, 7, 8
MOST_AXES = 8
ENTRY_WORDS = SIZES + 2 * MOST_AXES


@dataclass(frozen=True)
class Expected:
    """A packed array; of positions, int64, ``below`` is their bound and ``allowed`` the exception.

    Of other arrays ``below`` is 0.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    written: bool
    below: int = 0
    allowed: int = 0

    def words(self) -> list[int]:
        item, rest = self.dtype.itemsize, [0] * (MOST_AXES - len(self.shape))
        size = item * int(np.prod(self.shape))
        head = [id(self.dtype), len(self.shape), WRITEABLE * self.written, item - 1, size]
        tail = [*self.shape, *rest, *self.strides, *rest]
        return [*head, int(self.written), self.below, self.allowed, *tail]


def expected_words(program: int, arrays: Sequence[Expected]) -> list[int]:
    """What a call of a program expects, in words."""
    head = [len(arrays), program, id(np.ndarray)]
    return head + [word for array in arrays for word in array.words()]


def _words_at(address: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address))


@cache
def fields_are_known() -> bool:
    """Whether arrays have their fields where this module says."""
    if sys.implementation.name != "cpython" or object.__basicsize__ != 16:
        return False
    base = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    fixed = base.copy()
    fixed.flags.writeable = False
    return all(_is_read_right(a) for a in (base, base[1, ::-1, 1:], np.array(1.0), base.T, fixed))


def _is_read_right(array: np.ndarray[Any, Any]) -> bool:
    held = _words_at(id(array), FLAGS + 1)
    rank = held[RANK] & 0xFFFFFFFF
    if rank != array.ndim or held[TYPE] != id(np.ndarray) or held[DTYPE] != id(array.dtype):
        return False
    if rank and _words_at(held[SHAPE], rank) != list(array.shape):
        return False
    if rank and _words_at(held[STRIDES], rank) != list(array.strides):
        return False
    data = array.__array_interface__["data"][0]
    return bool(held[DATA] == data and held[FLAGS] & 0xFFFFFFFF == array.flags.num)
