"""An op on files: what is asked for, and the checks before anything runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...core import parse
from ...core.declare import REQUIRED, Op, Operand, Role, Type
from ...core.elements import FLOATS
from ...errors import InvalidProblemError, UnsupportedError
from ...memory.view import DTYPES
from ..case import SIZES, Case, cuts
from . import files
from .running import Run, Summary
from .targets import check_apart, check_target, held

_ELEMENTS = {dtype: name for name, dtype in DTYPES.items()}
# What a raw file of an operand holds that is not of the op's element type.
_RAW = {Type.BOOL: "bool", Type.INDEX: "i64"}


@dataclass
class Job:
    """One op on files.

    Attributes
    ----------
    op
        The op.
    inputs, outputs
        Files by operand. Several outputs may share an ``.npz``, and those that may be left out.
    parameters
        Parameters of the op by name; without one, the axis is the last.
    shape, dtype
        Of the operands with an element for every position, where no file tells.
    memory
        The most memory this process may occupy, in bytes; None for no limit.
    threads
        Threads of the kernels.
    zarr_format
        Of outputs in zarr stores, 2 or 3; None for that of the inputs, or 3.
    cluster, workers
        Address of the scheduler of a dask cluster, or how many processes to start as one; None to
        run in this process.
    """

    op: Op
    inputs: Mapping[str, Path]
    outputs: Mapping[str, Path]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    memory: int | None = None
    threads: int | None = None
    zarr_format: int | None = None
    cluster: str | None = None
    workers: int | None = None

    def run(
        self,
        resume: bool = False,
        progress: Callable[[int, int], None] | None = None,
        force: bool = False,
    ) -> Summary:
        """Run to the end, or raise; the blocks that were finished by then stay in partial files.

        Parameters
        ----------
        resume
            Continue a run of the same job that was interrupted, if there is one.
        progress
            Called with the bytes done and in all.
        force
            Replace outputs that exist.
        """
        start = time.monotonic()
        if self.cluster is not None and self.workers is not None:
            raise InvalidProblemError("workers: a cluster that is given has its own")
        self._check_parameters()
        self._check_files()
        with ExitStack() as stack:
            self._check_targets(force)
            stack.enter_context(held(self.outputs.values()))
            self._check_targets(force)  # another run may have ended in between
            stored = self._open(stack)
            arrays = {n: s.array for n, s in stored.items()}
            case = self._case(arrays)
            unasked = [n for n in self.outputs if n not in case.outputs]
            if unasked:
                raise InvalidProblemError(f"{unasked[0]}: nothing asks {self.op.name} for it")
            shapes = {n: self._result_shape(case, n, arrays) for n in self.outputs}
            case.plan(self.threads)  # raises for a problem that cannot be run
            if self.cluster is not None or self.workers is not None:
                from .cluster import ClusterRun

                return ClusterRun(self, case, stored, progress).go(shapes, resume, force, start)
            arrays = {n: _fitted(case, n, s) for n, s in stored.items()}
            return Run(self, case, stored, arrays, progress).go(shapes, resume, force, start)

    def _check_targets(self, force: bool) -> None:
        inputs = {_option_name(n): path for n, path in self.inputs.items()}
        check_apart(self.outputs.values(), inputs)
        for target in self.outputs.values():
            check_target(target, force)

    def _check_parameters(self) -> None:
        for name in self.parameters:
            if self.op.parameter(name) is None:
                raise InvalidProblemError(f"{name}: {self.op.name} has no such parameter")

    def _check_files(self) -> None:
        """Whether the files given are those that the op reads and writes."""
        missing = [o.name for o in self.op.reads if not o.optional and o.name not in self.inputs]
        if missing:
            name = _option_name(missing[0])
            raise InvalidProblemError(f"{name}: required by {self.op.name}, no file given")
        extra = [n for n in self.inputs if n not in self.op.inputs]
        if extra:
            wanted = ", ".join(map(_option_name, self.op.inputs))
            name = _option_name(extra[0])
            raise InvalidProblemError(f"{name}: {self.op.name} reads {wanted} only")
        if not self.outputs:
            raise InvalidProblemError(f"{self.op.outputs[0]}: no file to write given")
        paths = list(self.outputs.values())
        # One archive may hold several results, if it is named alike.
        apart = [p for k, p in enumerate(paths) if p.suffix.lower() != ".npz" or p not in paths[:k]]
        if len({p.resolve() for p in apart}) < len(apart):
            raise InvalidProblemError(f"{' and '.join(self.outputs)}: expected different files")

    def _open(self, stack: ExitStack) -> dict[str, files.AnyStored]:
        stored = {}
        for name, path in self.inputs.items():
            stored[name] = files.open_input(path, _option_name(name), *self.layout(name), stack)
        return stored

    def layout(self, name: str) -> tuple[str | None, tuple[int, ...] | None]:
        """The type and shape of an operand, should its file not tell them."""
        operand = self.op.operand(name)
        return _RAW.get(operand.type, self.dtype), self._raw_shape(operand)

    def _raw_shape(self, operand: Operand) -> tuple[int, ...] | None:
        """The shape of an operand in a raw file, from that of the full operands."""
        if self.shape is None or operand.role in (Role.IDS, Role.OFFSETS):
            return None
        if operand.role is Role.ROW:
            axes = parse.normalized_axes(self.parameters.get("axis", -1), len(self.shape), "axis")
            return tuple(1 if k in axes else n for k, n in enumerate(self.shape))
        return self.shape

    def _case(self, arrays: Mapping[str, np.ndarray]) -> Case:
        op = self.op
        element = self._element(arrays)
        shape, segments = (self._table if cuts(op) else self._rows)(arrays)
        parameters = {"axis": -1, **self.parameters}
        for p in op.parameters:
            if p.default is REQUIRED and p.name not in (*SIZES, *parameters, *arrays):
                raise InvalidProblemError(f"{p.name}: required by {op.name}")
        is_sorted = bool(parameters.pop("sorted", False))
        return Case.of(op, element, shape, tuple(arrays), segments, is_sorted, **parameters)

    def _element(self, arrays: Mapping[str, np.ndarray]) -> str:
        """The element type, which operands have that are not of one of their own."""
        lead = next(o.name for o in self.op.reads if o.type is Type.ELEMENT and o.name in arrays)
        element = _ELEMENTS[arrays[lead].dtype]
        if element not in FLOATS:
            raise UnsupportedError(f"{lead}: expected one of {', '.join(FLOATS)}, got {element}")
        if self.dtype not in (None, element):
            said = f"expected {self.dtype} as --dtype says"
            raise InvalidProblemError(f"{lead}: {said}, got {element}")
        allowed = {
            Type.ELEMENT: ((element,), f"{element} like {lead}"),
            Type.STATE: ((element, "f64"), f"{element} or f64"),
            Type.BOOL: (("bool",), "bool"),
            Type.INDEX: (("i32", "i64"), "int32 or int64"),
        }
        for name, array in arrays.items():
            kinds, said = allowed[self.op.operand(name).type]
            found = _ELEMENTS[array.dtype]
            if found not in kinds:
                raise InvalidProblemError(f"{_option_name(name)}: expected {said}, got {found}")
        return element

    def _rows(self, arrays: Mapping[str, np.ndarray]) -> tuple[tuple[int, ...], None]:
        """The shape of the operands with an element for every position."""
        full = next((n for n in self.op.names(Role.ELEMENT) if n in arrays), None)
        if full is None:
            if self.shape is None:
                raise InvalidProblemError(
                    f"shape: required by {self.op.name}, the shape of the input"
                )
            return self.shape, None
        if self.shape not in (None, arrays[full].shape):
            got = arrays[full].shape
            raise InvalidProblemError(f"{full}: expected shape {self.shape} of --shape, got {got}")
        return arrays[full].shape, None

    def _table(self, arrays: Mapping[str, np.ndarray]) -> tuple[tuple[int, ...], int]:
        """Rows and columns of the table of a segment op, and the number of segments."""
        op = self.op
        cut = next((o for o in cuts(op) if o.name in arrays), None)
        if cut is None:
            raise InvalidProblemError(f"{_option_name(cuts(op)[0].name)}: required by {op.name}")
        places, word = arrays[cut.name], _option_name(cut.name)
        if places.ndim != 1:
            raise InvalidProblemError(f"{word}: expected one dimension, got shape {places.shape}")
        lead = next(n for n in arrays if op.operand(n).role in (Role.ELEMENT, Role.ROW))
        for name in arrays:
            if name != cut.name and arrays[name].ndim < 1:
                raise InvalidProblemError(f"{name}: expected at least one dimension")
        width = math.prod(arrays[lead].shape[1:])
        table = next((n for n in op.names(Role.ELEMENT) if n in arrays), None)
        sums = next((n for n in op.names(Role.ROW) if n in arrays), None)
        rows = arrays[table].shape[0] if table else self.parameters.get("num_inputs")
        if cut.role is Role.IDS:
            rows = len(places) if rows is None else rows
            if len(places) != rows:
                raise InvalidProblemError(f"{word}: expected {rows} of them, got {len(places)}")
            segments = self.parameters.get("num_segments", arrays[sums].shape[0] if sums else None)
        else:
            segments = max(0, len(places) - 1)
        if rows is None or segments is None:
            name = "num_inputs" if rows is None else "num_segments"
            raise InvalidProblemError(f"{name}: required by {op.name}")
        parse.shape((segments, width), "num_segments")
        return (rows, width), segments

    def _result_shape(
        self, case: Case, name: str, arrays: Mapping[str, np.ndarray]
    ) -> tuple[int, ...]:
        """Shape of an output file."""
        shape = case.shape_of(name)
        if case.is_segmented:
            lead = next(n for n in arrays if case.role(n) in (Role.ELEMENT, Role.ROW))
            return (shape[0], *arrays[lead].shape[1:])
        if case.role(name) is Role.ROW and not self._keeps(case, arrays):
            return tuple(n for k, n in enumerate(case.shape) if k not in case.axes)
        return shape

    def _keeps(self, case: Case, arrays: Mapping[str, np.ndarray]) -> bool:
        """Whether results with one element a row keep the axes, as functions decide it."""
        if self.op.parameter("keepdims"):
            return bool(self.parameters.get("keepdims"))
        rows = [a for n, a in arrays.items() if case.role(n) is Role.ROW]
        return any(a.ndim == len(case.shape) for a in rows)


def _fitted(case: Case, name: str, stored: files.AnyStored) -> np.ndarray:
    """An operand in the shape the plan wants, or an error that says which that is."""
    wanted, array = case.shape_of(name), stored.array
    if case.is_segmented and case.role(name) in (Role.ELEMENT, Role.ROW):
        if array.shape[0] != wanted[0] or array.size != math.prod(wanted):
            raise InvalidProblemError(f"{name}: expected shape {wanted}, got {array.shape}")
        # Columns in another order than memory's are put in order block by block.
        return array.reshape(wanted) if array.flags.c_contiguous or array.ndim <= 2 else array
    if array.shape == wanted:
        return array
    if case.role(name) is Role.ROW:
        squeezed = tuple(n for k, n in enumerate(case.shape) if k not in case.axes)
        if array.shape == squeezed:
            return array.reshape(wanted)
    elif case.op.operand(name).broadcasts:
        with suppress(ValueError):
            return np.broadcast_to(stored.whole(), wanted)
    raise InvalidProblemError(f"{name}: expected shape {wanted}, got {array.shape}")


def _option_name(operand: str) -> str:
    """What an operand is called where files are named."""
    return "ids" if operand == "segment_ids" else operand
