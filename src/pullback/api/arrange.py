"""Views of operands as a problem wants them: axes put back, masks stretched, tables cut."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..core.declare import Op, Role, Type
from ..core.problem import Problem
from ..errors import InvalidProblemError
from ..formulas.record import ScanFormula
from ..memory.dimensions import merge
from ..memory.view import View

Shape = tuple[int, ...]


def kept(v: View, axes: Shape, rank: int) -> View:
    """A view with the op's axes at length 1, where they had been squeezed out."""
    if len(v.shape) == rank or len(v.shape) != rank - len(axes):
        return v
    shape, strides = list(v.shape), list(v.strides)
    for a in axes:
        shape.insert(a, 1)
        strides.insert(a, 0)
    return _moved(v, 0, tuple(shape), tuple(strides))


def _moved(v: View, offset: int, shape: Shape, strides: Shape) -> View:
    """A view of the same memory at another place with other dimensions."""
    return View(
        v.address + offset, shape, strides, v.element, v.dtype, v.itemsize, v.device, v.writable,
        v.owner,
    )  # fmt: skip


def cut_into_rows(op: Op, views: dict[str, View]) -> list[dict[str, View]]:
    """Operands of a segment op, (rows, anything), as sets of (rows, columns).

    The dimensions after the first are the same in all. Those that merge into one in all become the
    columns; any further ones are walked here.
    """
    names = [n for n in views if op.operand(n).role in (Role.ELEMENT, Role.ROW)]
    tables = [views[n] for n in names]
    for name, v in zip(names, tables, strict=True):
        if v.shape[1:] != tables[0].shape[1:]:
            raise InvalidProblemError(
                f"{name}: expected shape {(v.shape[:1] + tables[0].shape[1:])}, got {v.shape}"
            )
    sizes, steps = merge(tables[0].shape[1:], [v.strides[1:] for v in tables])
    if not sizes:
        sizes, steps = [1], [[v.itemsize] for v in tables]
    offsets = [(0,) * len(tables)]
    for d, n in enumerate(sizes[:-1]):
        offsets = [
            tuple(at + k * s[d] for at, s in zip(start, steps, strict=True))
            for start in offsets
            for k in range(n)
        ]
    found = []
    for start in offsets:
        cut = dict(views)
        for name, v, at, step in zip(names, tables, start, steps, strict=True):
            shape, strides = (v.shape[0], sizes[-1]), (v.strides[0], step[-1])
            cut[name] = _moved(v, at, shape, strides)
        found.append(cut)
    return found


def stretched(v: View, shape: Shape, name: str) -> View:
    """A view of an operand as if it had a shape, by NumPy's rules; nothing is copied."""
    missing = len(shape) - len(v.shape)
    own = (1,) * missing + v.shape
    if missing < 0 or any(n not in (1, wanted) for n, wanted in zip(own, shape, strict=False)):
        raise InvalidProblemError(
            f"{name}: expected a shape that stretches to {shape}, got {v.shape}"
        )
    steps = (0,) * missing + v.strides
    strides = tuple(
        0 if n == 1 != wanted else step for n, wanted, step in zip(own, shape, steps, strict=True)
    )
    return _moved(v, 0, shape, strides)


def check_marks(problem: Problem, views: dict[str, View]) -> None:
    """Raise for a mask that is stretched along the axis of a scan."""
    if not isinstance(problem.formula, ScanFormula) or problem.extent <= 1:
        return
    for operand in problem.reads:
        v = views[operand.name] if operand.broadcasts and operand.type is Type.BOOL else None
        if v is not None and not v.strides[problem.axes[0]]:
            raise InvalidProblemError(
                f"{operand.name}: expected {problem.extent} elements along the axis of the scan, "
                f"got 1"
            )


_LARGEST = np.iinfo(np.int64).max


def widened(array: Any) -> Any:
    """Integers of any width as those that kernels read; anything else as it is.

    What int64 does not hold becomes its largest number, which is out of every range.
    """
    if isinstance(array, (np.ndarray, np.generic)):
        narrow = array.dtype.kind in "iu" and array.dtype not in (np.int32, np.int64)
        if narrow and array.dtype.kind == "u" and array.dtype.itemsize == 8:
            array = np.minimum(array, np.uint64(_LARGEST))
        return array.astype(np.int64) if narrow else array
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        wide = array.dtype.is_floating_point or array.dtype.is_complex
        if wide or array.dtype in (torch.int32, torch.int64, torch.bool):
            return array
        found = array.long()
        return torch.where(found < 0, _LARGEST, found) if array.dtype is torch.uint64 else found
    dtype: Any = getattr(array, "dtype", None)
    if getattr(dtype, "kind", "") not in ("i", "u") or dtype in (np.int32, np.int64):
        return array
    # A JAX array; JAX itself has no int64 unless asked for it.
    return array.astype(np.int32) if dtype.itemsize < 4 else widened(np.asarray(array))


def borders(offsets: Any, shape: Shape, axis: int, name: str) -> Any:
    """Where runs begin along an axis, as a mask that stretches to a shape.

    ``offsets`` ascend from 0 to the extent, one more than there are runs, the same for every row.
    """
    extent = shape[axis] if shape else 1
    device = getattr(offsets, "device", None)
    on_gpu = getattr(device, "type", "cpu") == "cuda"
    values = np.asarray(offsets.cpu() if on_gpu else offsets)
    if values.ndim != 1 or values.size == 0 or values.dtype.kind not in "iu":
        raise InvalidProblemError(
            f"{name}: expected one dimension of integers and at least one, got shape "
            f"{values.shape} of {values.dtype}"
        )
    if values[0] != 0 or values[-1] != extent or (values[1:] < values[:-1]).any():
        raise InvalidProblemError(
            f"{name}: expected offsets that ascend from 0 to {extent}, the length of the axis"
        )
    marks = np.zeros(extent, np.bool_)
    begun = values[:-1]
    marks[begun[begun < extent]] = True
    along = marks.reshape([extent if k == axis else 1 for k in range(len(shape))])
    return sys.modules["torch"].from_numpy(along).to(device) if on_gpu else along
