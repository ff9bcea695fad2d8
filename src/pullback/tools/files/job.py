"""An op on files: what is asked for, and the checks before anything runs."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...core import parse
from ...core.declare import Op, Role
from ...core.elements import FLOATS
from ...errors import InvalidProblemError, UnsupportedError
from ...memory.view import DTYPES
from ..bench.case import Case
from . import files
from .running import Run, Summary
from .targets import check_apart, check_target, held

_ELEMENTS = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Options:
    """Parameters of the op; those it does not have must keep their defaults."""

    axis: int | tuple[int, ...] | None = -1
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    reverse: bool = False
    ties: str | None = None
    correction: float = 1
    weight: float | None = None
    keepdims: bool = False
    num_segments: int | None = None
    is_sorted: bool = False
    out_of_range: str = "raise"


@dataclass
class Job:
    """One op on files.

    Attributes
    ----------
    op
        The op.
    inputs, outputs
        Files by operand. Both outputs of lerp's backward may share an ``.npz``; either may be left
        out.
    options
        Parameters.
    memory
        The most memory this process may occupy, in bytes; None for no limit.
    threads
        Threads of the kernels.
    """

    op: Op
    inputs: Mapping[str, Path]
    outputs: Mapping[str, Path]
    options: Options = field(default_factory=Options)
    memory: int | None = None
    threads: int | None = None

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
        self._check_options()
        self._check_files()
        with ExitStack() as stack:
            self._check_targets(force)
            stack.enter_context(held(self.outputs.values()))
            self._check_targets(force)  # another run may have ended in between
            stored = self._open(stack)
            arrays = {n: s.array for n, s in stored.items()}
            case = self._case(arrays)
            shapes = {n: self._result_shape(case, n, arrays) for n in self.outputs}
            arrays = {n: _fitted(case, n, s) for n, s in stored.items()}
            case.plan(self.threads)  # raises for a problem that cannot be run
            return Run(self, case, stored, arrays, progress).go(shapes, resume, force, start)

    def _check_targets(self, force: bool) -> None:
        inputs = {_option_name(n): path for n, path in self.inputs.items()}
        check_apart(self.outputs.values(), inputs)
        for target in self.outputs.values():
            check_target(target, force)

    def _check_options(self) -> None:
        held = dataclasses.asdict(self.options)
        usual = dataclasses.asdict(Options())
        for name, taken in _taken_by(self.op).items():
            if not taken and held[name] != usual[name]:
                raise InvalidProblemError(
                    f"{name.removeprefix('is_')}: {self.op.name} has no such parameter"
                )
        ties = self.options.ties
        if ties is not None and ties not in self.op.ties:
            raise InvalidProblemError(
                f"ties: expected one of {', '.join(self.op.ties)} for {self.op.name}, got {ties!r}"
            )

    def _check_files(self) -> None:
        """Whether the files given are those that the op reads and writes."""
        missing = [n for n in self.op.inputs if n not in self.inputs]
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

    def _open(self, stack: ExitStack) -> dict[str, files.Stored]:
        stored = {}
        for name, path in self.inputs.items():
            dtype, shape = self.options.dtype, self._raw_shape(name)
            if name == "segment_ids":
                dtype, shape = "i64", None
            stored[name] = files.open_input(path, _option_name(name), dtype, shape, stack)
        return stored

    def _raw_shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of an operand in a raw file, from that of the full operands."""
        shape = self.options.shape
        if shape is None:
            return None
        if self.op.operand(name).role is Role.ROW:
            axes = parse.normalized_axes(self.options.axis, len(shape), "axis")
            return tuple(1 if k in axes else n for k, n in enumerate(shape))
        return shape

    def _case(self, arrays: Mapping[str, np.ndarray]) -> Case:
        op, o = self.op, self.options
        lead = next(n for n in op.inputs if n != "segment_ids")
        element = _ELEMENTS[arrays[lead].dtype]
        if element not in FLOATS:
            raise UnsupportedError(f"{lead}: expected one of {', '.join(FLOATS)}, got {element}")
        if o.dtype not in (None, element):
            raise InvalidProblemError(f"{lead}: expected {o.dtype} as --dtype says, got {element}")
        for name, array in arrays.items():
            found = _ELEMENTS[array.dtype]
            if name == "segment_ids":
                if found not in ("i32", "i64"):
                    raise InvalidProblemError(f"ids: expected int32 or int64, got {found}")
            elif found != element:
                raise InvalidProblemError(f"{name}: expected {element} like {lead}, got {found}")
        if op.family == "segment":
            return self._segment_case(arrays, element)
        full = next((n for n in op.names(Role.ELEMENT) if n in arrays), None)
        if full is not None and o.shape not in (None, arrays[full].shape):
            got = arrays[full].shape
            raise InvalidProblemError(f"{full}: expected shape {o.shape} of --shape, got {got}")
        if op.family == "lerp":
            if o.weight is None:
                raise InvalidProblemError(f"weight: required by {op.name}")
            return Case(op, element, arrays[lead].shape, None, weight=o.weight)
        if op.family != "reduce" and not isinstance(o.axis, int):
            raise InvalidProblemError(f"axis: expected one axis for {op.name}, got {_axes(o.axis)}")
        if full is not None:
            shape = arrays[full].shape
        elif o.shape is not None:
            shape = o.shape
        else:
            raise InvalidProblemError(f"shape: required by {op.name}, the shape of the input")
        return Case(
            op, element, shape, o.axis, reverse=o.reverse, ties=o.ties, correction=o.correction
        )

    def _segment_case(self, arrays: Mapping[str, np.ndarray], element: str) -> Case:
        op, o = self.op, self.options
        order = "sorted" if o.is_sorted else "random"
        ids = arrays["segment_ids"]
        values = arrays[op.inputs[0]]
        if ids.ndim != 1:
            raise InvalidProblemError(f"ids: expected one dimension, got shape {ids.shape}")
        if values.ndim < 1:
            raise InvalidProblemError(f"{op.inputs[0]}: expected at least one dimension")
        width = math.prod(values.shape[1:])
        if op.direction == "forward":
            if o.num_segments is None:
                raise InvalidProblemError(f"num_segments: required by {op.name}")
            rows, segments = values.shape[0], o.num_segments
            if ids.shape[0] != rows:
                raise InvalidProblemError(f"ids: expected {rows} of them, got {ids.shape[0]}")
        else:
            rows, segments = ids.shape[0], values.shape[0]
        return Case(
            op, element, (rows, width), None,
            segments=segments, order=order, out_of_range=o.out_of_range,
        )  # fmt: skip

    def _result_shape(
        self, case: Case, name: str, arrays: Mapping[str, np.ndarray]
    ) -> tuple[int, ...]:
        """Shape of an output file."""
        shape = case.shape_of(name)
        if case.family == "reduce" and case.op.direction == "forward" and not self.options.keepdims:
            axes = case.axes
            return tuple(n for k, n in enumerate(case.shape) if k not in axes)
        if case.family == "segment":
            return (shape[0], *arrays[case.op.inputs[0]].shape[1:])
        return shape


def _fitted(case: Case, name: str, stored: files.Stored) -> np.ndarray:
    """An operand in the shape the plan wants, or an error that says which that is."""
    wanted = case.shape_of(name)
    array = stored.array
    if case.family == "segment" and name != "segment_ids":
        if (
            array.ndim > 2 and not array.flags.c_contiguous
        ):  # its rows can only be put in order in memory
            array = stored.whole()
        return array.reshape(wanted)
    if array.shape == wanted:
        return array
    if case.op.operand(name).role is Role.ROW:
        axes = case.axes
        squeezed = tuple(n for k, n in enumerate(case.shape) if k not in axes)
        if array.shape == squeezed:
            return array.reshape(wanted)
    raise InvalidProblemError(f"{name}: expected shape {wanted}, got {array.shape}")


def _option_name(operand: str) -> str:
    """What an operand is called where files are named."""
    return "ids" if operand == "segment_ids" else operand


def _taken_by(op: Op) -> dict[str, bool]:
    """By parameter, whether an op has it."""
    forward = op.direction == "forward"
    return {
        "axis": op.family in ("scan", "reduce", "softmax"),
        "reverse": op.family == "scan",
        "ties": bool(op.ties),
        "correction": op.kind in ("var", "std"),
        "weight": op.family == "lerp",
        "keepdims": op.family == "reduce" and forward,
        "num_segments": op.family == "segment" and forward,
        "is_sorted": op.family == "segment",
        "out_of_range": op.family == "segment",
    }


def _axes(axis: object) -> str:
    return "all" if axis is None else str(axis)


def run_files(
    op: Op,
    inputs: Mapping[str, Path],
    outputs: Mapping[str, Path],
    options: Options | None = None,
    **how: Any,
) -> Summary:
    """Run an op on files; see :class:`Job`."""
    how_run = {k: how.pop(k) for k in ("resume", "progress", "force") if k in how}
    return Job(op, inputs, outputs, options or Options(), **how).run(**how_run)
