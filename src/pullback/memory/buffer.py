"""Plain memory that a kernel may use as it likes: a workspace."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from ..errors import InvalidProblemError, UnsupportedError
from .dimensions import merge
from .tensor_ref import TensorRef
from .view import View, address_of, is_jax, is_torch, output_view, refuse_shell, type_name


def byte_view(obj: Any, name: str) -> View:
    """Return where a buffer that will be written lies, as bytes; its dtype does not matter.

    Parameters
    ----------
    obj : buffer
        Packed memory: a NumPy array, a torch tensor, a TensorRef, an object with the buffer
        protocol or with ``__dlpack__``.
    name : str
        Name of the buffer, for messages.

    Raises
    ------
    UnsupportedError
        For a kind of object that has no plain memory.
    InvalidProblemError
        For memory that is read-only or has gaps or repeats.
    """
    if is_torch(obj):
        return _torch_bytes(obj, name)
    if isinstance(obj, TensorRef) or is_jax(obj):
        v = output_view(obj, name)
        sizes, (steps,) = merge(v.shape, [v.strides])
        if 0 not in v.shape and sizes and steps != [v.itemsize]:
            raise _gaps_error(name, v.strides, v.shape)
        return _bytes_at(v.address, v.itemsize * math.prod(v.shape), v.device, obj)
    array = _plain_array(obj, name)
    if not array.flags.writeable:
        raise InvalidProblemError(
            f"{name}: expected writable memory, got a read-only {type_name(obj)}"
        )
    if not array.flags.forc:
        raise _gaps_error(name, array.strides, array.shape)
    return _bytes_at(address_of(array), array.nbytes, "cpu", (obj, array))


def _bytes_at(address: int, size: int, device: str, owner: object) -> View:
    return View(address, (size,), (1,), None, "u8", 1, device, True, owner)


def _gaps_error(name: str, strides: tuple[int, ...], shape: tuple[int, ...]) -> Exception:
    return InvalidProblemError(
        f"{name}: expected contiguous memory, got strides {strides} for shape {shape}"
    )


def _plain_array(obj: Any, name: str) -> np.ndarray[Any, Any]:
    """An ndarray on the memory of an array, buffer or DLPack object."""
    try:
        if isinstance(obj, np.ndarray):
            array = obj.view(np.ndarray)
        elif not hasattr(type(obj), "__dlpack__"):
            array = np.asarray(memoryview(obj))
        else:
            array = np.from_dlpack(obj)
    except Exception as error:
        raise UnsupportedError(
            f"{name}: expected a NumPy array, a torch tensor or a writable buffer, got "
            f"{type_name(obj)}: {error}"
        ) from error
    if array.dtype.hasobject:
        raise UnsupportedError(f"{name}: expected plain memory, got an array of Python objects")
    return array


def _torch_bytes(tensor: Any, name: str) -> View:
    torch = sys.modules["torch"]
    if type(tensor) is not torch.Tensor:
        refuse_shell(torch, tensor, name)
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else tensor.layout
        raise UnsupportedError(f"{name}: expected a strided torch tensor, got {kind} layout")
    size = tensor.numel() * tensor.element_size()
    device = "cpu" if tensor.is_cpu else str(tensor.device)
    if device == "meta":
        return _bytes_at(0, size, device, tensor)
    if tensor.requires_grad:
        raise InvalidProblemError(
            f"{name}: expected writable memory, got a tensor that requires grad, and writing into "
            f"it would bypass autograd; pass it detached"
        )
    if not tensor.is_contiguous():
        raise _gaps_error(name, tuple(tensor.stride()), tuple(tensor.shape))
    try:
        address = tensor.data_ptr()
    except (RuntimeError, NotImplementedError):
        address = 0
    if size and not address:
        raise UnsupportedError(
            f"{name}: expected a torch tensor with memory of its own, got one without (wrapped by "
            f"vmap, grad or functionalize, fake, zero, or its storage was freed)"
        )
    return _bytes_at(address, size, device, tensor)
