"""Parts of an array between a file and memory, with calls that report what goes wrong.

A part of an array is a box: runs of bytes at distances. Memory holds the runs one after another, so
that a buffer has the order of dimensions that the file has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

# A call takes about as long as copying this many bytes: a smaller gap between two runs is read too.
SMALL_GAP = 1 << 13
# Bytes that runs with small gaps are read by.
SCRATCH = 1 << 22
# No call moves more on Linux than 2 GiB; an interrupt waits for no more than this.
LARGEST_CALL = 1 << 26


def packed_like(part: np.ndarray, take: Callable[[int], np.ndarray]) -> np.ndarray:
    """An array of the shape and dtype of a part of a file, in the order of its dimensions.

    ``take`` gives so many bytes of memory.
    """
    order = sorted(range(part.ndim), key=lambda k: -part.strides[k])
    flat = take(part.nbytes).view(part.dtype)
    ordered = flat.reshape([part.shape[k] for k in order])
    return ordered.transpose(np.argsort(order)) if order else ordered


@dataclass(frozen=True)
class _Runs:
    """Equally spaced runs: where the first begins in the file, their number and their distance."""

    offset: int
    count: int
    step: int


def _layout(part: np.ndarray) -> tuple[int, list[tuple[int, int]]]:
    """The length of a run in bytes, and lengths and strides of the dimensions outside of it."""
    dimensions = sorted((s, n) for s, n in zip(part.strides, part.shape, strict=True) if n > 1)
    run = part.itemsize
    inside = 0
    for stride, length in dimensions:
        if stride != run:
            break
        run *= length
        inside += 1
    return run, [(n, s) for s, n in reversed(dimensions[inside:])]


def _groups(offset: int, run: int, outer: list[tuple[int, int]], gap: int) -> Iterator[_Runs]:
    """Runs that one call moves, in the order in which memory holds them.

    It moves what lies between them too, where that is ``gap`` bytes or less.
    """
    if not outer:
        yield _Runs(offset, 1, run)
        return
    count, step = outer[-1]
    together = max(1, SCRATCH // step) if step - run <= gap else 1
    starts = np.array([offset])
    for length, stride in outer[:-1]:
        starts = (starts[:, None] + np.arange(length) * stride).ravel()
    for start in starts.tolist():
        for first in range(0, count, together):
            yield _Runs(start + first * step, min(together, count - first), step)


def flat_bytes(buffer: np.ndarray) -> np.ndarray:
    """The bytes of a packed buffer in the order in which it holds them."""
    order = sorted(range(buffer.ndim), key=lambda k: -buffer.strides[k])
    ordered = buffer.transpose(order)
    assert ordered.flags.c_contiguous, "a copy would take what was meant for the buffer"
    flat: np.ndarray = ordered.reshape(-1).view(np.uint8)
    return flat


def _strided(scratch: np.ndarray, runs: _Runs, run: int, item: np.dtype) -> np.ndarray:
    """The runs inside the bytes that cover them."""
    shape = (runs.count, run // item.itemsize)
    found: np.ndarray = np.ndarray(shape, item, scratch, strides=(runs.step, item.itemsize))
    return found


def read_box(handle: int, offset: int, part: np.ndarray, buffer: np.ndarray) -> None:
    """Fill a packed buffer with a part of a file; EOFError where the file ends before it."""
    run, outer = _layout(part)
    into = flat_bytes(buffer)
    scratch = np.empty(0, np.uint8)
    at = 0
    for runs in _groups(offset, run, outer, SMALL_GAP):
        size = runs.count * run
        if runs.count == 1:
            _fill(handle, runs.offset, into[at : at + size])
        else:
            covered = (runs.count - 1) * runs.step + run
            if scratch.size < covered:
                scratch = np.empty(covered, np.uint8)
            _fill(handle, runs.offset, scratch[:covered])
            found = _strided(scratch, runs, run, part.dtype)
            into[at : at + size].view(part.dtype).reshape(found.shape)[...] = found
        at += size


def write_box(
    handle: int, offset: int, part: np.ndarray, buffer: np.ndarray, shared: bool = False
) -> None:
    """Write a packed buffer to a part of a file, which has been given its size before.

    Where it is ``shared``, others may be writing what lies between the runs.
    """
    run, outer = _layout(part)
    source = flat_bytes(buffer)
    at = 0
    for runs in _groups(offset, run, outer, 0 if shared else SMALL_GAP):
        size = runs.count * run
        if runs.count == 1:
            _put(handle, runs.offset, source[at : at + size])
        else:
            # What lies in the gaps is written back as it was: nobody else writes to this file.
            covered = np.empty((runs.count - 1) * runs.step + run, np.uint8)
            _fill(handle, runs.offset, covered)
            found = _strided(covered, runs, run, part.dtype)
            found[...] = source[at : at + size].view(part.dtype).reshape(found.shape)
            _put(handle, runs.offset, covered)
        at += size


def read_exactly(handle: int, offset: int, length: int) -> bytes:
    """Bytes of a file; EOFError where it ends before them."""
    found = np.empty(length, np.uint8)
    _fill(handle, offset, found)
    return found.tobytes()


def _fill(handle: int, offset: int, into: np.ndarray) -> None:
    rest = into.data
    while rest:
        moved = os.preadv(handle, [rest[:LARGEST_CALL]], offset)
        if not moved:
            raise EOFError
        rest, offset = rest[moved:], offset + moved


def _put(handle: int, offset: int, source: np.ndarray) -> None:
    rest = source.data
    while rest:
        moved = os.pwrite(handle, rest[:LARGEST_CALL], offset)
        rest, offset = rest[moved:], offset + moved
