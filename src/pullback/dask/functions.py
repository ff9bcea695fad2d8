"""The functions of the library on dask arrays, one for each row of the catalog."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np

from ..api.arrange import borders
from ..api.functions import arguments, function_named, without_aliases
from ..core import parse
from ..core.catalog import catalog
from ..core.declare import Op, Operand, Role, Type
from ..core.elements import ELEMENTS
from ..core.problem import Problem, describe
from ..cut import Cut, settled
from ..cut.text import text_of
from ..errors import InvalidProblemError, UnsupportedError
from ..formulas.record import is_pointwise
from . import tasks
from .graph import Chunks, Graph, Rows, Segments, dtype_of

_ELEMENTS = {e.dtype: n for n, e in ELEMENTS.items()}
_SIZES = ("shape", "num_inputs", "num_segments")


class Function:
    """One op as a function of dask arrays."""

    def __init__(self, op: Op):
        self.op = op
        elements = [o for o in op.reads if o.role is Role.ELEMENT and not o.optional]
        self._lead = elements[0].name if elements else op.inputs[0]
        self._tells_shape = bool(elements)
        self._typed = next(o.name for o in op.reads if o.type is Type.ELEMENT)
        cuts = [o for o in op.reads if o.role in (Role.IDS, Role.OFFSETS)]
        self._cuts = {o.name: o.role for o in cuts if o.symbol == o.name}
        self._marks = next((o for o in cuts if o.symbol != o.name), None)

    def __call__(self, values: dict[str, Any], split_every: int | None = None) -> Any:
        """The results of a call, given all its arguments by name."""
        op, values = self.op, without_aliases(self.op, values)
        arrays: dict[str, da.Array] = {}
        for o in op.reads:
            value = values.get(o.name)
            is_number = op.parameter(o.name) is not None and getattr(value, "ndim", 0) == 0
            if value is not None and not is_number:
                arrays[o.name] = _as_dask(value, o)
        given = tuple(n for n in op.optional if n in arrays)
        parameters = {
            p.name: p.parse(values[p.name], p.name)
            for p in op.parameters
            if p.name in values and p.name not in arrays
        }
        element = _ELEMENTS.get(arrays[self._typed].dtype)
        if element not in op.dtypes:
            raise UnsupportedError(
                f"{self._typed}: expected a float array, got {arrays[self._typed].dtype}"
            )
        for o in op.reads:
            if o.name in arrays and o.type is Type.ELEMENT:
                _check_dtype(o.name, arrays[o.name], element)
        if self._cuts:
            return self._by_segments(arrays, parameters, given, element)
        return self._by_rows(arrays, parameters, given, element, split_every)

    # Ops with an axis.

    def _by_rows(
        self,
        arrays: dict[str, da.Array],
        parameters: dict[str, Any],
        given: tuple[str, ...],
        element: str,
        split_every: int | None,
    ) -> Any:
        op, lead = self.op, arrays[self._lead]
        shape = lead.shape
        if not self._tells_shape:
            shape = parse.shape(parameters["shape"], "shape", lead.dtype.itemsize)
        if self._marks is not None and self._marks.name in arrays:
            arrays, given = self._with_borders(arrays, parameters, shape)
        problem = describe(op, element, shape, parameters, given)
        for o in problem.reads:
            if o.role is Role.ELEMENT and o.name in arrays:
                arrays[o.name] = _stretched(arrays[o.name], shape, o)
        if op.parameter("axis") is None and is_pointwise(problem.formula):
            return self._elementwise(problem, arrays, parameters)
        chunks = lead.chunks if self._tells_shape else self._chunks_for(lead, shape, problem.axes)
        axes, rank = problem.axes, len(shape)
        kept = [d for d in range(rank) if d not in axes]
        batch: Chunks = tuple(chunks[d] for d in kept)
        cut = Cut(problem)
        lengths = _lengths(cut, chunks)
        operands = {}
        for o in cut.reads:
            if o.role is Role.ELEMENT:
                operands[o.name] = _rows_last(arrays[o.name], axes, (*batch, lengths))
            else:
                operands[o.name] = _without(arrays[o.name], axes, shape, o).rechunk(batch)
        rows = Rows(problem, operands, batch, lengths, split_every)
        keeps = bool(parameters.get("keepdims")) or any(
            o.role is Role.ROW and arrays[o.name].ndim == rank != len(kept) for o in cut.reads
        )
        results = {}
        for o in problem.writes:
            if parameters.get(o.asked_by) is False:
                continue
            made = rows.output(o)
            if o.role is Role.ELEMENT:
                results[o.name] = _from_rows(made, axes, chunks)
            else:
                where = tuple(slice(None) if d in kept else None for d in range(rank))
                results[o.name] = made[where] if keeps else made
        return _returned(op, results)

    def _with_borders(
        self, arrays: dict[str, da.Array], parameters: dict[str, Any], shape: tuple[int, ...]
    ) -> tuple[dict[str, da.Array], tuple[str, ...]]:
        """Marks of where runs begin in the place of offsets."""
        assert self._marks is not None
        name, symbol = self._marks.name, self._marks.symbol
        if symbol in arrays:
            raise InvalidProblemError(f"{name}: expected it or {symbol}, got both")
        axis = parse.normalized_axis(parameters["axis"], len(shape), "axis")
        marks = borders(np.asarray(arrays[name]), shape, axis, name)
        held = {n: a for n, a in arrays.items() if n != name}
        held[symbol] = da.from_array(marks, chunks=-1)
        return held, tuple(n for n in self.op.optional if n in held)

    @staticmethod
    def _chunks_for(row: da.Array, shape: tuple[int, ...], axes: tuple[int, ...]) -> Chunks:
        """Chunks of an array that no operand tells: those of rows, and dask's own elsewhere."""
        whole = da.core.normalize_chunks("auto", shape, dtype=row.dtype)
        if row.ndim == len(shape):
            own = dict(enumerate(row.chunks))
        else:
            kept = [d for d in range(len(shape)) if d not in axes]
            own = dict(zip(kept, row.chunks, strict=False))
        return tuple(whole[d] if d in axes else own[d] for d in range(len(shape)))

    def _elementwise(
        self, problem: Problem, arrays: dict[str, da.Array], parameters: dict[str, Any]
    ) -> Any:
        names = [o.name for o in problem.reads if o.name in arrays]
        chunks = arrays[self._lead].chunks
        operands = [arrays[n].rechunk(chunks) for n in names]
        graph = Graph(problem.op.name, operands, text_of(problem))
        layer = graph.layer("apply")
        made = {}
        for key in np.ndindex(*(len(c) for c in chunks)):
            held = [(a.name, *key) for a in operands]
            frozen = list(map(list, _frozen(parameters)))
            made[key] = task = (layer, *key)
            graph.layers[layer][task] = (tasks.called, problem.op.name, names, held, frozen)
        results = {}
        for o in problem.writes:
            tasks_of = {k: (operator.getitem, task, o.name) for k, task in made.items()}
            results[o.name] = graph.array(o.name, chunks, dtype_of(problem, o), tasks_of)
        return _returned(self.op, results)

    # Segment ops.

    def _by_segments(
        self,
        arrays: dict[str, da.Array],
        parameters: dict[str, Any],
        given: tuple[str, ...],
        element: str,
    ) -> Any:
        op = self.op
        cuts = [n for n in self._cuts if n in arrays]
        if len(cuts) != 1:
            got = "both" if cuts else "neither"
            names = " or ".join(self._cuts)
            raise InvalidProblemError(f"{next(iter(self._cuts))}: expected {names}, got {got}")
        by, lead = arrays[cuts[0]], arrays[self._lead]
        by_ids = self._cuts[cuts[0]] is Role.IDS
        if by.ndim != 1:
            raise InvalidProblemError(f"{cuts[0]}: expected one dimension, got shape {by.shape}")
        tables = [o.name for o in op.reads if o.role is Role.ROW and o.name in arrays]
        segments = parameters.get("num_segments")
        if segments is None:
            segments = len(by) - 1 if not by_ids else len(arrays[tables[0]]) if tables else None
        if segments is None:
            raise InvalidProblemError(f"num_segments: required by {op.name} on dask arrays")
        if self._tells_shape:
            lengths = lead.chunks[0]
        elif by_ids:
            lengths = by.chunks[0]
        else:
            count = parameters.get("num_inputs")
            if count is None:
                raise InvalidProblemError(f"num_inputs: required by {op.name} with offsets")
            lengths = da.core.normalize_chunks("auto", (count, *lead.shape[1:]), dtype=lead.dtype)[
                0
            ]
        rest = lead.chunks[1:]
        rows, columns = sum(lengths), math.prod(lead.shape[1:])
        problem = describe(op, element, (rows, columns), parameters, given, segments)
        operands = {}
        for o in problem.reads:
            if o.name not in arrays:
                continue
            array = arrays[o.name]
            wanted = {
                Role.ELEMENT: (rows, *lead.shape[1:]),
                Role.ROW: (segments, *lead.shape[1:]),
                Role.IDS: (rows,),
                Role.OFFSETS: (segments + 1,),
            }[o.role]
            if array.shape != wanted:
                raise InvalidProblemError(f"{o.name}: expected shape {wanted}, got {array.shape}")
            chunks = {
                Role.ELEMENT: (lengths, *rest),
                Role.ROW: ((segments,), *rest),
                Role.IDS: (lengths,),
                Role.OFFSETS: ((segments + 1,),),
            }[o.role]
            operands[o.name] = array.rechunk(chunks)
        made = Segments(problem, operands, rest, lengths)
        return _returned(op, {o.name: made.output(o) for o in problem.writes})


def _as_dask(value: Any, operand: Operand) -> da.Array:
    array = value if isinstance(value, da.Array) else da.from_array(np.asarray(value), chunks=-1)
    if any(math.isnan(n) for c in array.chunks for n in c):
        raise InvalidProblemError(
            f"{operand.name}: expected chunks of known sizes, got {array.chunks}; "
            f"compute_chunk_sizes() finds them out"
        )
    if operand.type is Type.BOOL and array.dtype != np.bool_:
        raise InvalidProblemError(f"{operand.name}: expected element bool, got {array.dtype}")
    if operand.type is Type.INDEX:
        if array.dtype.kind not in "iu":
            raise InvalidProblemError(
                f"{operand.name}: expected int32 or int64 ids, got {array.dtype}"
            )
        if array.dtype not in (np.int32, np.int64):
            array = array.astype(np.int64)
    return array


def _check_dtype(name: str, array: da.Array, element: str) -> None:
    if array.dtype != ELEMENTS[element].dtype:
        raise InvalidProblemError(f"{name}: expected element {element}, got {array.dtype}")


def _frozen(parameters: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(parameters.items()))


def _stretched(array: da.Array, shape: tuple[int, ...], operand: Operand) -> da.Array:
    if array.shape == shape:
        return array
    try:
        if operand.broadcasts and np.broadcast_shapes(array.shape, shape) == shape:
            return da.broadcast_to(array, shape)
    except ValueError:
        pass
    what = f"a shape that stretches to {shape}" if operand.broadcasts else f"shape {shape}"
    raise InvalidProblemError(f"{operand.name}: expected {what}, got {array.shape}")


def _lengths(cut: Cut, chunks: Chunks) -> tuple[int, ...]:
    """Chunks of the axis on the grid, as near as can be to those of the first of the op's axes."""
    axes = cut.problem.axes
    if not axes:
        return (1,)
    inner = math.prod(sum(chunks[a]) for a in axes[1:])
    bounds = np.cumsum([0, *chunks[axes[0]]]) * inner
    grid = dict.fromkeys(settled(cut, bounds.tolist()))
    return tuple(np.diff(list(grid)).tolist()) or (0,)


def _rows_last(array: da.Array, axes: tuple[int, ...], chunks: Chunks) -> da.Array:
    """The op's axes last and as one, in these chunks."""
    kept = [d for d in range(array.ndim) if d not in axes]
    moved = array.transpose(*kept, *axes) if array.ndim else array
    if len(axes) != 1:
        # Several axes are one in their order: pieces hold all but the first whole.
        moved = moved.rechunk({len(kept) + k: -1 for k in range(1, len(axes))})
        moved = moved.reshape(*moved.shape[: len(kept)], math.prod(moved.shape[len(kept) :]))
    return moved.rechunk(chunks)


def _from_rows(array: da.Array, axes: tuple[int, ...], chunks: Chunks) -> da.Array:
    """A result in the shape and chunks of the operands."""
    rank = len(chunks)
    kept = [d for d in range(rank) if d not in axes]
    order = [*kept, *axes]
    shape = [sum(chunks[d]) for d in order]
    if len(axes) == 1:
        array = array.rechunk(tuple(chunks[d] for d in order))
    else:
        inner = math.prod(shape[len(kept) + 1 :])
        first = tuple(n * inner for n in chunks[axes[0]]) if axes else (1,)
        array = array.rechunk((*(chunks[d] for d in kept), first)).reshape(*shape)
    back = [order.index(d) for d in range(rank)]
    return (array.transpose(*back) if rank else array).rechunk(chunks)


def _without(
    array: da.Array, axes: tuple[int, ...], shape: tuple[int, ...], operand: Operand
) -> da.Array:
    """An operand with one element for each row, without the op's axes."""
    squeezed = tuple(n for d, n in enumerate(shape) if d not in axes)
    full = tuple(1 if d in axes else n for d, n in enumerate(shape))
    if array.shape == full and full != squeezed:
        return array[tuple(0 if d in axes else slice(None) for d in range(len(shape)))]
    if array.shape != squeezed:
        raise InvalidProblemError(f"{operand.name}: expected shape {full}, got {array.shape}")
    return array


def _returned(op: Op, results: dict[str, da.Array]) -> Any:
    from ..api.calling import returned

    return returned(op, results)


def make_function(op: Op) -> Callable[..., Any]:
    """The function of an op on dask arrays."""
    run = Function(op)
    first, later = arguments(op)
    has_axis = op.parameter("axis") is not None
    if has_axis:
        later = [*later, "split_every=None"]
    told = ", ".join([*first, "*", *later] if later else first)
    named = [text.split("=")[0] for text in (*first, *later) if text != "split_every=None"]
    held = ", ".join(f"{n!r}: {n}" for n in named)
    more = ", split_every" if has_axis else ""
    made: dict[str, Any] = {}
    exec(
        f"def {op.name}({told}):\n    return run({{{held}}}{more})",
        {"run": run, "inf": np.inf},
        made,
    )
    function: Callable[..., Any] = made[op.name]
    function.__module__ = "pullback.dask"
    function.__doc__ = _docstring(op, function, has_axis)
    return function


def _docstring(op: Op, function: Callable[..., Any], has_axis: bool) -> str:
    lines = inspect.cleandoc(function_named(op.name).__doc__ or "").splitlines()
    tree = "\n\n``split_every`` summaries of chunks are gathered at a time." if has_axis else ""
    return f"{lines[0]}\n\nOf dask arrays, lazy; as ``pullback.{op.name}`` otherwise.{tree}"


DASK_FUNCTIONS: dict[str, Callable[..., Any]] = {op.name: make_function(op) for op in catalog()}
