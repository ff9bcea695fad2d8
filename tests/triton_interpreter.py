"""Triton's interpreter, faster and with a GPU's bfloat16.

The interpreter folds with a formula's ``combine`` element by element, a millisecond each. Here the
same ``combine`` is called on arrays, in the log-step order of a GPU's scan. It also cuts off the
bits that bfloat16 lacks, and loses its subnormal numbers; GPUs round to nearest and keep them.

Half of its time went into types and shapes that it makes anew for every operation: those are kept,
and tiles of one shape are not spread to that shape.

``TRITON_INTERPRET=1`` must be set before Triton is imported.
"""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter


def _call(ops, first, later, kinds):
    """combine(first, later) on lists of arrays."""
    given = [ops.to_tensor(a, k) for a, k in zip((*first, *later), (*kinds, *kinds), strict=True)]
    result = ops.combine_fn(*given)
    result = result if isinstance(result, (tuple, tl.tuple)) else (result,)
    shape = np.broadcast_shapes(*(a.shape for a in first))
    return [
        np.broadcast_to(np.asarray(r.handle.data if isinstance(r, tl.tensor) else r), shape).astype(
            a.dtype
        )
        for r, a in zip(result, first, strict=True)
    ]


def _cut(arrays, axis, *bounds):
    where = [slice(None)] * arrays[0].ndim
    where[axis] = slice(*bounds)
    return [a[tuple(where)] for a in arrays]


def scan(self, given):
    kinds = [g.dtype for g in given]
    held = [g.handle.data for g in given]
    distance = 1
    while distance < held[0].shape[self.axis]:
        # Whole tiles, since Triton's shapes are powers of two: what wraps round is not kept.
        earlier = [np.roll(h, distance, self.axis) for h in held]
        joined = _call(self, earlier, held, kinds)
        kept = _cut(held, self.axis, None, distance)
        joined = _cut(joined, self.axis, distance, None)
        held = [np.concatenate(pair, self.axis) for pair in zip(kept, joined, strict=True)]
        distance *= 2
    return [self.to_tensor(h, k) for h, k in zip(held, kinds, strict=True)]


def reduce(self, given):
    assert self.axis is not None
    kinds = [g.dtype for g in given]
    held = [g.handle.data for g in given]
    while held[0].shape[self.axis] > 1:
        half = held[0].shape[self.axis] // 2
        held = _call(
            self,
            _cut(held, self.axis, None, half),
            _cut(held, self.axis, half, None),
            kinds,
        )
    if not self.keep_dims:
        held = [h.squeeze(self.axis) for h in held]
    return [self.to_tensor(h, k) for h, k in zip(held, kinds, strict=True)]


_cast_plainly = interpreter.InterpreterBuilder.cast_impl


def _cast(self, source, kind):
    given, wanted = source.dtype.scalar, kind.scalar
    if given == tl.bfloat16 and wanted == tl.float32:
        data = source.data.view(ml_dtypes.bfloat16).astype(np.float32)
    elif given == tl.float32 and wanted == tl.bfloat16:
        data = source.data.astype(ml_dtypes.bfloat16).view(np.uint16)
    else:
        return _cast_plainly(self, source, kind)
    return interpreter.TensorHandle(data, wanted)


_call_patching = interpreter.InterpretedFunction.__call__


def _call_function(self, *args, **kwargs):
    # The interpreter patches triton.language anew for every call; for functions that see no other
    # module of Triton the kernel's own patch holds.
    if self.fn.__module__.startswith("pullback"):
        return self.rewrite()(*args, **kwargs)
    return _call_patching(self, *args, **kwargs)


_dtype_of = functools.cache(interpreter._get_np_dtype)


def _np_dtype(kind):
    return _dtype_of(kind.scalar)


_broadcast_plainly = TritonSemantic.broadcast_impl_value


def _broadcast(self, lhs, rhs):
    if lhs.type.is_block() and rhs.type.is_block() and lhs.type.shape == rhs.type.shape:
        return lhs, rhs
    return _broadcast_plainly(self, lhs, rhs)


_make_type = tl.block_type.__init__
_types: dict = {}


def _init_type(self, element_ty, shape):
    key = (element_ty, tuple(getattr(n, "value", n) for n in shape))
    known = _types.get(key)
    if known is None:
        _make_type(self, element_ty, shape)
        known = _types[key] = dict(self.__dict__)
        numbers = tl.tuple([tl.constexpr(n) for n in self.shape])
        known["of_tensors"] = (numbers, tl.constexpr(self.numel))
    self.__dict__.update(known)


_NO_SHAPE = (tl.tuple([]), tl.constexpr(1))


def _init_tensor(self, handle, type):
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = type.of_tensors if type.is_block() else _NO_SHAPE


def install() -> None:
    """Use the versions above from here on."""
    interpreter.InterpreterBuilder.cast_impl = _cast
    interpreter.InterpretedFunction.__call__ = _call_function
    interpreter.ScanOps.generic_scan = scan
    interpreter.ReduceOps.generic_reduce = reduce
    interpreter._get_np_dtype = _np_dtype
    tl.pointer_type.__hash__ = lambda self: hash(self.name)
    TritonSemantic.broadcast_impl_value = _broadcast
    tl.block_type.__init__ = _init_type
    tl.tensor.__init__ = _init_tensor
