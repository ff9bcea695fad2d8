"""New arrays for results, of the kind of array that a caller gave."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from .tensor_ref import TensorRef
from .view import DTYPES, address_of, find_viewer, is_jax, is_torch, torch_dtype, type_name, view

# XLA on the CPU adopts a buffer without copying if it starts on this boundary.
_JAX_ALIGNMENT = 64


def is_writable_kind(like: Any) -> bool:
    """Return True if kernels write straight into arrays of this kind.

    False for JAX arrays and foreign DLPack objects: their results are computed in a NumPy array
    and handed over by :func:`restore`.
    """
    if isinstance(like, TensorRef):
        return is_writable_kind(like.data)
    return isinstance(like, (np.ndarray, np.generic)) or is_torch(like)


def _aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """A NumPy array XLA can adopt without a copy."""
    size = dtype.itemsize
    for dim in shape:
        size *= dim
    raw = np.empty(size + _JAX_ALIGNMENT, dtype=np.uint8)
    start = -address_of(raw) % _JAX_ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def empty(like: Any, shape: tuple[int, ...], dtype: str, *, name: str) -> Any:
    """Return an uninitialised C-ordered array of the same framework and device as `like`.

    Parameters
    ----------
    like : array
        Any operand :func:`view` accepts.
    shape : tuple of int
        Shape of the new array.
    dtype : str
        A key of :data:`DTYPES`.
    name : str
        Name of `like`, for messages.

    Returns
    -------
    array
        For kinds that are not written directly (see :func:`is_writable_kind`) a NumPy array to
        be passed to :func:`restore`.
    """
    if isinstance(like, TensorRef):
        return empty(like.data, shape, dtype, name=name)
    if isinstance(like, (np.ndarray, np.generic)):
        return np.empty(shape, DTYPES[dtype])
    if is_torch(like):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=torch_dtype(torch, dtype), device=like.device)
    if is_jax(like) or hasattr(type(like), "__dlpack__"):
        return _aligned_empty(tuple(shape), DTYPES[dtype])
    find_viewer(like, name)
    raise AssertionError("unreachable: find_viewer raises for unknown kinds")


def empty_like(like: Any, *, name: str = "like") -> Any:
    """Return an uninitialised array of the shape, dtype and framework of `like`.

    The order of the axes in memory is kept where it can be: NumPy's "K" order, torch's
    ``preserve_format``. The result never overlaps itself, even if `like` is broadcast.
    """
    if isinstance(like, (np.ndarray, np.generic)):
        return np.empty_like(like, subok=False)
    if is_torch(like):
        torch = sys.modules["torch"]
        return torch.empty_like(like, requires_grad=False)
    where = view(like, name)
    return empty(like, where.shape, where.dtype, name=name)


def restore(like: Any, array: Any) -> Any:
    """Return the result `array` as the kind of array `like` is.

    Does nothing for kinds that are written directly. For JAX the buffer is handed over without a
    copy where XLA can adopt it, so `array` must not be written afterwards.
    """
    if is_writable_kind(like) or not isinstance(array, np.ndarray):
        return array
    if isinstance(like, TensorRef):
        return restore(like.data, array)
    if is_jax(like):
        result = sys.modules["jax"].device_put(array, like.sharding, may_alias=True)
        if result.dtype != array.dtype:
            raise UnsupportedError(
                f"JAX turned a {array.dtype} result into {result.dtype}; set jax_enable_x64"
            )
        return result
    namespace = getattr(like, "__array_namespace__", None)
    if namespace is None:
        return array
    try:
        return namespace().from_dlpack(array)
    except (AttributeError, TypeError, ValueError, RuntimeError, BufferError) as error:
        raise UnsupportedError(
            f"cannot hand a {array.dtype} result to {type_name(like)}: {error}"
        ) from error


def mark_written(obj: Any) -> None:
    """Tell torch's autograd that `obj` was written, so that a stale saved tensor is noticed.

    A kernel writes behind torch's back; without this, a tensor saved for a backward and then used
    as an output would silently give a wrong gradient. Nothing to do for other kinds.
    """
    if isinstance(obj, TensorRef):
        obj = obj.data
    if is_torch(obj):
        sys.modules["torch"].autograd.graph.increment_version(obj)
