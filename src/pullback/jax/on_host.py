"""An XLA FFI handler in Python: a call that NumPy code serves, also inside a partitioned op.

JAX's own callbacks are found by their place in a module, which the module of a partitioned op does
not have. A call here carries a text that says all there is to run.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..errors import UnsupportedError
from . import handler
from .lowering import ffi_problem, jax_ffi

TARGET = "pullback_on_host"
_U8 = 6
_DTYPES: dict[int, Any] = {
    1: np.bool_,
    4: np.int32,
    5: np.int64,
    8: np.uint32,
    10: np.float16,
    11: np.float32,
    12: np.float64,
    16: ml_dtypes.bfloat16,
}
_BUFFER_DTYPE, _BUFFER_RANK, _BUFFER_DIMS = 2, 4, 5

Array = np.ndarray[Any, Any]
_functions: dict[str, Callable[[dict[str, Any], list[Array], list[Array]], None]] = {}


def serves(function: Callable[..., None]) -> Callable[..., None]:
    """Let calls name a function of (what the call says, operands, results)."""
    _functions[function.__name__] = function
    return function


def call(name: str, says: dict[str, Any], results: list[Any], *operands: Any) -> list[Any]:
    """Results of a function on the host, which vary over devices as the operands do.

    Shapes and types of them are given.
    """
    _register()
    kind = jax.typeof(operands[0])
    varying = getattr(kind, "manual_axis_type", None)
    if varying is not None and not varying.empty:
        mesh = kind.sharding.mesh
        results = [
            jax.ShapeDtypeStruct(
                r.shape,
                r.dtype,
                sharding=NamedSharding(mesh, PartitionSpec(*[None] * len(r.shape))),
                manual_axis_type=varying,
            )
            for r in results
        ]
    text = json.dumps({"function": name, **says}).encode()
    made: list[Any] = jax_ffi().ffi_call(TARGET, results)(
        *operands, says=np.frombuffer(text, np.uint8)
    )
    return made


@cache
def _register() -> None:
    problem = ffi_problem()
    if problem is not None:
        raise UnsupportedError(f"an axis that is cut over devices needs XLA's FFI: {problem}")
    ffi = jax_ffi()
    address = ctypes.cast(_handler, ctypes.c_void_p).value
    ffi.register_ffi_target(TARGET, ffi.pycapsule(address), platform="cpu")


def _word(address: int, at: int) -> int:
    return ctypes.c_int64.from_address(address + 8 * at).value


def _int32(address: int) -> int:
    return ctypes.c_int32.from_address(address).value


def _array(buffer: int) -> Array:
    dtype = np.dtype(_DTYPES[_int32(buffer + 8 * _BUFFER_DTYPE)])
    rank, dims = _word(buffer, _BUFFER_RANK), _word(buffer, _BUFFER_DIMS)
    shape = [_word(dims, k) for k in range(rank)]
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    memory = (ctypes.c_char * size).from_address(_word(buffer, handler.BUFFER_DATA))
    return np.frombuffer(memory, dtype).reshape(shape)


def _answer(frame: int) -> bool:
    """Answer a query for metadata; False for any other call."""
    extension = _word(frame, handler.FRAME_EXTENSION)
    if not extension or _int32(extension + 8 * handler.EXTENSION_TYPE) != (
        handler.METADATA_EXTENSION
    ):
        return False
    metadata = _word(extension, handler.EXTENSION_METADATA)
    api = _word(frame, handler.FRAME_API)
    version = int(handler.registry[handler.SEEN_VERSION])
    if api:
        version = _word(api, handler.API_VERSION)
    for at, value in ((1, 24), (2, 0), (3, version)):
        ctypes.c_int64.from_address(metadata + 8 * at).value = value
    ctypes.c_int32.from_address(metadata + 8 * 4).value = 0
    if _word(metadata, 0) >= 8 * 6:
        ctypes.c_int64.from_address(metadata + 8 * 5).value = 0
    return True


def _error(api: int, message: str) -> int:
    text = ctypes.create_string_buffer(message.encode())
    words = (ctypes.c_int64 * 4)(28, 0, ctypes.addressof(text), handler.FAILED_PRECONDITION)
    create = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(_word(api, handler.ERROR_CREATE))
    return int(create(ctypes.addressof(words)))


def _run(frame: int) -> None:
    array = _word(_word(frame, handler.ATTRS), 0)
    size = _word(array, handler.ARRAY_LENGTH)
    says = json.loads(ctypes.string_at(_word(array, handler.ARRAY_DATA), size))
    sides = []
    for count, held in ((handler.ARGS_COUNT, handler.ARGS), (handler.RETS_COUNT, handler.RETS)):
        place = _word(frame, held)
        sides.append([_array(_word(place, k)) for k in range(_word(frame, count))])
    _functions[says["function"]](says, *sides)


@ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
def _handler(frame: int) -> int:
    """``XLA_FFI_Error* handler(XLA_FFI_CallFrame*)``."""
    try:
        if _answer(frame) or _int32(frame + 8 * handler.FRAME_STAGE) != handler.EXECUTE:
            return 0
        # XLA's threads flush subnormal numbers; kernels and NumPy are to keep them.
        mode = handler.swap_float_mode(handler.PLAIN_MODE)
        try:
            _run(frame)
        finally:
            handler.swap_float_mode(mode)
        return 0
    except BaseException as error:  # nothing may be raised into XLA
        return _error(_word(frame, handler.FRAME_API), f"pullback: {error}")
