"""A strided tensor inside a flat buffer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..core import parse
from ..errors import BufferTooSmallError, InvalidProblemError

__all__ = ["TensorRef"]


class TensorRef:
    """A tensor of any strides that lives in a one-dimensional buffer.

    You can pass one wherever an array is expected. Nothing is copied; the buffer is only looked at
    when the reference is used.

    Parameters
    ----------
    data : array
        A one-dimensional, contiguous NumPy array, torch tensor or (read-only) JAX array.
    shape : tuple of int
        Shape of the tensor.
    stride : tuple of int, optional
        Steps between neighbours along each axis, in elements; may be zero or negative. C order if
        not given.
    offset : int, default 0
        Position in `data` of the element with index zero on every axis, in elements.

    Raises
    ------
    InvalidProblemError
        If shape, stride or offset are not integers or do not fit each other.
    BufferTooSmallError
        When used, if an element lies outside `data`.

    Examples
    --------
    >>> import numpy as np
    >>> columns = TensorRef(np.arange(6.0), shape=(3, 2), stride=(1, 3))
    >>> columns.bounds()
    (0, 6)
    """

    __slots__ = ("data", "offset", "shape", "stride")

    data: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def __init__(
        self,
        data: Any,
        shape: Iterable[int],
        stride: Iterable[int] | None = None,
        offset: int = 0,
    ) -> None:
        self.data = data
        self.shape = parse.shape(shape, "TensorRef shape", itemsize=1)
        self.offset = parse.integer(offset, "TensorRef offset")
        if stride is None:
            self.stride = _c_order(self.shape)
            return
        if not hasattr(stride, "__iter__"):
            raise InvalidProblemError(
                f"TensorRef stride: expected a tuple of integers, got {stride!r}"
            )
        self.stride = tuple([parse.integer(step, "TensorRef stride") for step in stride])
        if len(self.stride) != len(self.shape):
            raise InvalidProblemError(
                f"TensorRef stride: expected {len(self.shape)} steps for shape {self.shape}, "
                f"got {self.stride}"
            )

    def __repr__(self) -> str:
        return (
            f"TensorRef({type(self.data).__name__}, shape={self.shape}, stride={self.stride}, "
            f"offset={self.offset})"
        )

    def bounds(self) -> tuple[int, int]:
        """Return the first element reached and one past the last; equal if there are none."""
        low = high = self.offset
        for dim, step in zip(self.shape, self.stride, strict=True):
            if dim == 0:
                return self.offset, self.offset
            reach = (dim - 1) * step
            if reach < 0:
                low += reach
            else:
                high += reach
        return low, high + 1

    def check_bounds(self, length: int, name: str) -> None:
        """Raise BufferTooSmallError unless every element lies in a buffer of `length`."""
        low, stop = self.bounds()
        if low == stop or (low >= 0 and stop <= length):
            return
        # The length that would do, counting room in front of the buffer if that is what lacks.
        needed = max(stop, length) - min(low, 0)
        where = f"elements {low} to {stop - 1}"
        front = f"; it starts {-low} before the buffer" if low < 0 else ""
        raise BufferTooSmallError(
            f"{name}: {self!r} reaches {where} of a buffer of {length} elements{front}; "
            f"needs {needed}, got {length}",
            needed=needed,
            got=length,
            operand=name,
        )


def _c_order(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        steps[i] = steps[i + 1] * max(shape[i + 1], 1)
    return tuple(steps)
