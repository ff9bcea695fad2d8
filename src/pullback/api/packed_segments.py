"""The shortest way from plain NumPy arrays to the kernels of a segment op.

As in :mod:`.packed`: where rows and ids are packed arrays apart from each other, only the ids are
looked at. What is different, an id that must not be among them too, goes the long way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.declare import Type
from ..core.problem import Problem
from ..memory.view import DTYPES, address_of

_IDS = {np.dtype(np.int32): "i32", np.dtype(np.int64): "i64"}


def are_tables(problem: Problem) -> bool:
    """Whether the operands are rows beside the ids, and there are some of each."""
    operands = (*problem.reads, *problem.writes)
    if any(0 in problem.shape_of(o.name) for o in operands):
        return False
    return all(o is problem.cut_by or o.type is Type.ELEMENT for o in operands)


class PackedSegments:
    """The launches of a segment op for packed operands, by the type of the ids."""

    def __init__(self, problem: Problem, runner: Any, threads: int):
        self._runner, self._threads = runner, threads
        self._names = [o.name for o in (*problem.reads, *problem.writes)]
        self._inputs = len(problem.reads)
        self._shapes = [problem.shape_of(n) for n in self._names]
        self._dtype = DTYPES[problem.element]
        item = self._dtype.itemsize
        self._strides: list[tuple[int, ...]] = [(s[-1] * item, item) for s in self._shapes]
        self._cut = self._names.index(problem.cut_by.name)
        self._programs: dict[str, Any] = {}
        self._needed: int = runner.workspace_size

    def run(self, operands: dict[str, Any], workspace: Any = None) -> bool:
        """Run if the operands are as expected; if not, it is False and nothing has been done."""
        arrays = [operands.get(n) for n in self._names]
        places = self._places(arrays)
        if places is None:
            return False
        at = size = 0
        if workspace is not None:
            if not self._is_workspace(workspace, arrays, places):
                return False
            at, size = address_of(workspace), workspace.nbytes
        ids: Any = arrays[self._cut]
        kind = _IDS[ids.dtype]
        if self._runner.are_wrong(places[self._cut], ids, kind, self._threads):
            return False
        program = self._programs.get(kind)
        if program is None:
            program = self._programs[kind] = self._program(kind, ids.strides)
        program.run(places, (operands, workspace), at, size)
        return True

    def _program(self, kind: str, strides: tuple[int, ...]) -> Any:
        held = dict(zip(self._names, self._strides, strict=True))
        by = self._names[self._cut]
        held[by] = strides
        return self._runner.launch_for(held, {by: kind}, self._threads).program

    def _places(self, arrays: list[Any]) -> list[int] | None:
        """Addresses of the operands; None where they are not packed arrays apart."""
        places = []
        for k, array in enumerate(arrays):
            if type(array) is not np.ndarray or array.shape != self._shapes[k]:
                return None
            if k == self._cut:
                is_packed = array.dtype in _IDS and array.strides == (array.itemsize,)
            else:
                is_packed = array.dtype is self._dtype and array.strides == self._strides[k]
            at = address_of(array)
            if not is_packed or at % array.itemsize:
                return None
            places.append(at)
        for k in range(self._inputs, len(places)):
            out, at = arrays[k], places[k]
            if not out.flags.writeable:
                return None
            others = (*range(self._inputs), *range(k + 1, len(places)))
            if any(_touch(at, out, places[j], arrays[j]) for j in others):
                return None
        return places

    def _is_workspace(self, workspace: Any, arrays: list[Any], places: list[int]) -> bool:
        if type(workspace) is not np.ndarray or workspace.nbytes < self._needed:
            return False
        at, flags = address_of(workspace), workspace.flags
        if at % 8 or not flags.c_contiguous or not flags.writeable:
            return False
        pairs = zip(places, arrays, strict=True)
        return not any(_touch(at, workspace, place, array) for place, array in pairs)


def _touch(at: int, array: Any, other_at: int, other: Any) -> bool:
    return bool(at < other_at + other.nbytes and other_at < at + array.nbytes)
