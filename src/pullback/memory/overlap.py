"""Do strided views share memory? Exact answers from addresses alone; nothing is read.

The common cases (disjoint ranges, ordered strides) are decided by a few integer operations. The
rest is handed to NumPy's exact solver with bounded work; a question too hard for it counts as an
overlap, so the answer errs only towards refusing.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.exceptions import TooHardError

__all__ = ["StridedMemory", "byte_bounds", "overlaps", "same_memory", "self_overlaps"]

# About 20 ms of search on the build machine; real layouts need a handful of steps.
_MAX_WORK = 1_000_000


class StridedMemory(Protocol):
    """What is asked of a view: an address, and a shape with strides in bytes."""

    @property
    def address(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def itemsize(self) -> int: ...


def byte_bounds(view: StridedMemory) -> tuple[int, int]:
    """Return the first byte of `view` and one past its last; equal if it has no elements."""
    low = high = view.address
    for dim, stride in zip(view.shape, view.strides):  # noqa: B905 - strict= costs 60 ns
        if stride > 0:
            high += (dim - 1) * stride
        else:
            low += (dim - 1) * stride
        if dim == 0:
            return view.address, view.address
    return low, high + view.itemsize


def same_memory(a: StridedMemory, b: StridedMemory) -> bool:
    """Return True if `a` and `b` are the same elements in the same order (exact in-place)."""
    if a.address != b.address or a.shape != b.shape or a.itemsize != b.itemsize:
        return False
    if a.strides == b.strides:
        return True
    return all(
        dim <= 1 or left == right
        for dim, left, right in zip(a.shape, a.strides, b.strides, strict=True)
    )


def self_overlaps(view: StridedMemory) -> bool:
    """Return True if two elements of `view` share a byte."""
    itemsize = view.itemsize
    span = itemsize
    # C order holds for nearly every view; then each stride clears what lies inside it.
    for dim, stride in zip(reversed(view.shape), reversed(view.strides)):  # noqa: B905
        if dim == 1:
            continue
        if dim == 0:
            return False
        if stride < span:
            break
        span = dim * stride
    else:
        return False
    return _self_overlaps_any_order(view)


def _self_overlaps_any_order(view: StridedMemory) -> bool:
    if 0 in view.shape:
        return False
    # The sign of a stride does not change which pairs of elements meet.
    axes = sorted(
        (abs(stride), dim) for dim, stride in zip(view.shape, view.strides, strict=True) if dim > 1
    )
    reach = view.itemsize
    tangled = False
    for stride, dim in axes:
        if stride < view.itemsize:
            return True
        tangled |= stride < reach
        reach += (dim - 1) * stride
    if not tangled:
        return False
    # Elements meet exactly if, for some axis k, an element with index 0 on axes up to k meets one
    # with index 0 before k and a positive index on k. Widest stride first: it splits best.
    axes.reverse()
    for k, (stride, dim) in enumerate(axes):
        inner = axes[k + 1 :]
        inner_shape = tuple([d for _, d in inner])
        inner_strides = tuple([s for s, _ in inner])
        here = _phantom(0, inner_shape, inner_strides, view.itemsize)
        there = _phantom(stride, (dim - 1, *inner_shape), (stride, *inner_strides), view.itemsize)
        if _shares(here, there):
            return True
    return False


def overlaps(a: StridedMemory, b: StridedMemory) -> bool:
    """Return True if `a` and `b` share a byte."""
    a_low, a_high = byte_bounds(a)
    b_low, b_high = byte_bounds(b)
    if a_high <= b_low or b_high <= a_low or a_low == a_high or b_low == b_high:
        return False
    origin = min(a_low, b_low)
    return _shares(
        _phantom(a.address - origin, a.shape, a.strides, a.itemsize),
        _phantom(b.address - origin, b.shape, b.strides, b.itemsize),
    )


class _Interface:
    __slots__ = ("__array_interface__",)

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _phantom(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> np.ndarray[Any, Any]:
    """An array that is never read, for the solver to take bounds and strides from."""
    # Far from zero so that negative strides stay addressable, and never null.
    interface = {
        "version": 3,
        "typestr": f"|V{itemsize}",
        "shape": tuple(shape),
        "strides": tuple(strides),
        "data": (address + 2**62, True),
    }
    return np.asarray(_Interface(interface))


def _shares(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    try:
        # The stubs know only the two named levels of effort; any count of candidates is allowed.
        return bool(np.shares_memory(a, b, max_work=_MAX_WORK))  # type: ignore[arg-type]
    except TooHardError:
        return True
