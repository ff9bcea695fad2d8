"""A call of a function, by the long way: views of its operands, its problem, where results go.

What is found out is remembered by parsed parameters and the type and shape of the leading operand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..core import parse
from ..core.declare import Op, Operand, Role, Type
from ..core.problem import Problem, describe
from ..core.vocabulary import BackendKind, PlanPreference
from ..errors import InvalidProblemError, UnsupportedError
from ..memory.given_back import LEAST, new_array
from ..memory.overlap import overlaps, self_overlaps
from ..memory.results import empty, empty_like, is_writable_kind, mark_written, restore
from ..memory.view import DTYPES, View, output_view
from ..memory.view import view as view_of
from ..precision import forgets
from .arrange import borders, check_marks, cut_into_rows, kept, stretched, widened
from .packed import PackedCall
from .plan import Runnable

_MOST_CALLS = 512

Shape = tuple[int, ...]
Values = tuple[Any, ...]


_made: list[Function] = []


@forgets
def forget() -> None:
    """Remember no call of any function: the next one goes the long way."""
    for function in _made:
        function.calls.clear()


class Call:
    """What is known of calls of one op with one set of parameters, element type and shape.

    Attributes
    ----------
    runnable
        What runs them.
    writes
        The outputs they make.
    kept, squeezed
        Shape of operands with one element for every row: with the op's axes at length 1, or
        without them.
    part
        The outputs to be written, if not all.
    row
        Shape of results with one element for every row.
    new
        ``new(shape, dtype)``: memory for a result of a repeated call.
    again
        ``again(operands, out)``: the result for packed NumPy arrays; None, with nothing done, where
        they are not as expected, and then the long way says why.
    """

    __slots__ = (
        "again", "dtype", "kept", "names", "new", "outputs", "packed", "part", "row", "row_inputs",
        "runnable", "squeezed", "writes",
    )  # fmt: skip

    def __init__(self, runnable: Runnable, keepdims: bool, writes: Sequence[Operand]):
        problem = runnable.problem
        self.runnable, self.writes = runnable, writes
        self.dtype = DTYPES[problem.element]
        self.kept = self.squeezed = problem.row_shape
        if not problem.is_segmented:
            self.squeezed = tuple(n for k, n in enumerate(problem.shape) if k not in problem.axes)
        self.row = self.kept if keepdims else self.squeezed
        self.row_inputs = [o.name for o in problem.reads if o.role is Role.ROW]
        if self.kept == self.squeezed:
            self.row_inputs = []
        self.names = [o.name for o in writes]
        self.part = None if len(writes) == len(problem.writes) else tuple(self.names)
        self.outputs = [
            (o.name, self.row if o.role is Role.ROW else problem.shape, o.role is Role.ROW,
             DTYPES["f64"] if o.type is Type.STATE else self.dtype)
            for o in writes
        ]  # fmt: skip
        sizes = (math.prod(shape) * dtype.itemsize for _, shape, _, dtype in self.outputs)
        self.new: Callable[..., Any] = np.empty if max(sizes, default=0) < LEAST else new_array
        self.packed: PackedCall | None = None
        self.again: Callable[[dict[str, Any], Any], Any] = (
            self._again_simply if len(writes) == 1 else self._again
        )

    def _again_simply(self, arrays: dict[str, Any], out: Any) -> Any:
        """One result, and operands of rows in the shape that results of rows have."""
        packed = self.packed
        if packed is None or packed.threads != self.runnable.threads():
            rows = None if self.runnable.problem.is_segmented else self.row
            packed = self.packed = self.runnable.packed_rows(self.part, rows)
        ((name, shape, _, dtype),) = self.outputs
        result = self.new(shape, dtype) if out is None else out
        arrays[name] = result
        if packed.run(arrays):
            return result
        del arrays[name]
        return self._again(arrays, out) if self.kept != self.squeezed else None

    def _again(self, arrays: dict[str, Any], out: Any) -> Any:
        targets: Any = (out,)
        if len(self.outputs) > 1:
            targets = (None,) * len(self.outputs) if out is None else out
            if not isinstance(targets, (tuple, list)) or len(targets) != len(self.outputs):
                return None
        operands = arrays.copy()
        for name in self.row_inputs:
            operands[name] = self._with_axes(operands[name])
        results = []
        for (name, shape, is_row, dtype), target in zip(self.outputs, targets, strict=True):
            if target is None:
                target = self.new(shape, dtype)
            elif type(target) is not np.ndarray or target.shape != shape:
                return None
            results.append(target)
            operands[name] = self._with_axes(target) if is_row else target
        if not self.runnable.packed(self.part).run(operands):
            return None
        return returned(self.runnable.op, dict(zip(self.names, results, strict=True)))

    def _with_axes(self, array: Any) -> Any:
        """A packed NumPy array without the op's axes, seen with them; any other as it is."""
        if (
            type(array) is np.ndarray
            and array.shape == self.squeezed != self.kept
            and array.flags.c_contiguous
        ):
            return array.reshape(self.kept)
        return array


def returned(op: Op, results: dict[str, Any]) -> Any:
    """What a function returns: None in the place of a gradient by an operand that was left out."""
    if len(op.writes) == 1:
        return results[op.outputs[0]]
    found = []
    for operand in op.writes:
        by = operand.asked_by
        if operand.name in results or (by in op.optional and op.parameter(by) is None):
            found.append(results.get(operand.name))
    return found[0] if len(found) == 1 else tuple(found)


class Function:
    """One op as a function of arrays, by the long way."""

    def __init__(self, op: Op):
        self.op = op
        elements = [o.name for o in op.reads if o.role is Role.ELEMENT and not o.optional]
        # The operand whose shape is that of the problem; where none is, whose type is.
        self.lead = elements[0] if elements else op.inputs[0]
        self.tells_shape = bool(elements)
        # The operand whose type is the element type: where another differs, the other is wrong.
        self.typed = next(o.name for o in op.reads if o.type is Type.ELEMENT)
        self.row_inputs = op.names(Role.ROW)
        self.row_outputs = tuple(o.name for o in op.writes if o.role is Role.ROW)
        self.stretches = tuple(o for o in op.reads if o.broadcasts)
        # What cuts rows into segments. Offsets that formulas know as another operand mark borders.
        cuts = [o for o in op.reads if o.role in (Role.IDS, Role.OFFSETS)]
        self.cuts = {o.name: o.role for o in cuts if o.symbol == o.name}
        self.marks = next((o for o in cuts if o.symbol != o.name), None)
        self.is_segmented = bool(self.cuts)
        self.calls: dict[tuple[Any, ...], Call] = {}
        _made.append(self)

    def __call__(
        self, arrays: dict[str, Any], parameters: dict[str, Any], key: Values, out: Any
    ) -> Any:
        """The result.

        Parameters
        ----------
        arrays
            Operands by name; those that may be left out are there if they were given.
        parameters
            Parsed parameters by name; None where an array stands for one.
        key
            What calls like this one are looked up by.
        out
            The caller's buffer: one, or a tuple of as many as the op has outputs.
        """
        views = {name: self._view(array, name) for name, array in arrays.items()}
        like = arrays[self.lead]
        shape, segments = self._sizes(views, arrays, parameters)
        if self.marks is not None and self.marks.name in arrays:
            self._mark_borders(self.marks, arrays, views, shape, parameters)
        for operand in self.stretches:
            if operand.name in views:
                views[operand.name] = stretched(views[operand.name], shape, operand.name)
        if segments is not None:
            targets = self._run_segments(views, shape, segments, parameters, key, out, like)
        else:
            targets = self._run_rows(views, shape, parameters, key, out, like)
        return returned(self.op, {name: target.result() for name, target in targets.items()})

    def _run_rows(
        self,
        views: dict[str, View],
        shape: Shape,
        parameters: dict[str, Any],
        key: Values,
        out: Any,
        like: Any,
    ) -> dict[str, _Target]:
        lead = views[self.lead]
        call = self._call(views, shape, None, parameters, key)
        problem = call.runnable.problem
        check_marks(problem, views)
        shapes = {Role.ELEMENT: shape, Role.ROW: call.row}
        targets = self._targets(call.writes, out, like, lead, shapes)
        views |= {name: target.view for name, target in targets.items()}
        for name in (*self.row_inputs, *self.row_outputs):
            if name in views:
                views[name] = kept(views[name], problem.axes, len(problem.shape))
        _execute(call.runnable, [views])
        if type(like) is np.ndarray:
            self._remember(key, call)
        return targets

    def _run_segments(
        self,
        views: dict[str, View],
        shape: Shape,
        segments: int,
        parameters: dict[str, Any],
        key: Values,
        out: Any,
        like: Any,
    ) -> dict[str, _Target]:
        lead = views[self.lead]
        shapes = {Role.ELEMENT: shape, Role.ROW: (segments, *shape[1:])}
        targets = self._targets(self.op.writes, out, like, lead, shapes)
        views |= {name: target.view for name, target in targets.items()}
        cuts = cut_into_rows(self.op, views)
        if len(cuts) > 1:
            self._check_apart(views)
        if cuts:
            width = cuts[0][self.lead].shape[1]
            call = self._call(views, (shape[0], width), segments, parameters, key)
            _execute(call.runnable, cuts)
            if type(like) is np.ndarray and len(shape) == 2:
                self._remember(key, call)
        return targets

    def _mark_borders(
        self,
        offsets: Operand,
        arrays: dict[str, Any],
        views: dict[str, View],
        shape: Shape,
        parameters: dict[str, Any],
    ) -> None:
        """Put a mask of the positions where runs begin in the place of offsets."""
        if offsets.symbol in views:
            raise InvalidProblemError(f"{offsets.name}: expected it or {offsets.symbol}, got both")
        axis = parse.normalized_axis(parameters["axis"], len(shape), "axis")
        arrays[offsets.symbol] = borders(arrays.pop(offsets.name), shape, axis, offsets.name)
        del views[offsets.name]
        views[offsets.symbol] = self._view(arrays[offsets.symbol], offsets.symbol)

    def _check_apart(self, views: dict[str, View]) -> None:
        """Raise for an output whose cuts, each in order alone, overlap each other or an operand."""
        for output in self.op.outputs:
            out = views[output]
            if self_overlaps(out):
                raise InvalidProblemError(
                    f"out: expected an output without overlapping elements, got strides "
                    f"{out.strides} for shape {out.shape}"
                )
            for name, v in views.items():
                if name != output and overlaps(out, v):
                    raise InvalidProblemError(
                        f"out: expected an output apart from {name}, got memory that overlaps it"
                    )

    def _view(self, array: Any, name: str) -> View:
        kind = self.op.operand(name).type
        v = view_of(widened(array) if kind is Type.INDEX else array, name)
        if v.element is None and kind in (Type.ELEMENT, Type.STATE):
            raise UnsupportedError(f"{name}: expected a float array, got {v.dtype}")
        return v

    def _sizes(
        self, views: dict[str, View], arrays: dict[str, Any], parameters: dict[str, Any]
    ) -> tuple[Shape, int | None]:
        """Shape of the operands with an element for every position, and number of segments."""
        lead = views[self.lead]
        if not self.is_segmented:
            if self.tells_shape:
                return lead.shape, None
            return parse.shape(parameters["shape"], "shape", lead.itemsize), None
        if not lead.shape:
            raise InvalidProblemError(f"{self.lead}: expected at least one dimension, got shape ()")
        rows, segments = self._told(views)
        rest = lead.shape[1:]
        asked = parameters.get("num_segments")
        if asked is not None:
            if segments not in (None, asked):
                raise InvalidProblemError(
                    f"num_segments: expected {segments}, as the operands have, got {asked}"
                )
            segments = parse.shape((asked, *rest), "num_segments", lead.itemsize)[0]
        if parameters.get("num_inputs") is not None:
            rows = parse.shape((parameters["num_inputs"], *rest), "num_inputs", lead.itemsize)[0]
        if segments is None and not self.row_outputs:
            segments = self._most_segments(arrays)
        if rows is None or segments is None:
            missing = "num_segments" if segments is None else "num_inputs"
            raise InvalidProblemError(
                f"{missing}: required by {self.op.name}, where no operand tells it"
            )
        return (rows, *rest), segments

    def _most_segments(self, arrays: dict[str, Any]) -> int:
        """As many segments as the ids name, where no result has a row for each."""
        ((name, ids),) = ((n, arrays[n]) for n in self.cuts if n in arrays)
        most = int(widened(ids).max()) + 1 if len(ids) else 0
        return parse.shape((max(most, 0),), f"{name}: number of segments")[0]

    def _told(self, views: dict[str, View]) -> tuple[int | None, int | None]:
        """Rows and segments, as far as the operands of a segment op tell them."""
        given = [n for n in self.cuts if n in views]
        if len(given) != 1:
            names = " or ".join(self.cuts)
            got = "both" if given else "neither"
            raise InvalidProblemError(f"{next(iter(self.cuts))}: expected {names}, got {got}")
        (name,) = given
        by_ids, cut = self.cuts[name] is Role.IDS, views[name].shape
        if len(cut) != 1 or (cut[0] == 0 and not by_ids):
            what = "one dimension" if by_ids else "one dimension and at least one offset"
            raise InvalidProblemError(f"{name}: expected {what}, got shape {cut}")
        rows = views[self.lead].shape[0] if self.tells_shape else cut[0] if by_ids else None
        if not by_ids:
            return rows, cut[0] - 1
        tables = [views[n].shape for n in self.row_inputs if n in views]
        return rows, tables[0][0] if tables and tables[0] else None

    def _call(
        self,
        views: dict[str, View],
        shape: Shape,
        segments: int | None,
        parameters: dict[str, Any],
        key: Values,
    ) -> Call:
        """The call for these operands, made when it is first met."""
        lead, dtype = views[self.lead], views[self.typed].dtype
        known = (lead.device, dtype, shape, segments, key)
        call = self.calls.get(known)
        if call is None:
            problem = describe(self.op, dtype, shape, parameters, tuple(views), segments)
            spared = tuple(n for n in self.op.spared if n not in views)
            problem = replace(problem, spared=spared) if spared else problem
            keeps = self._keeps(parameters, views, len(problem.shape))
            writes = [o for o in problem.writes if parameters.get(o.asked_by) is not False]
            call = Call(_runnable_on(lead.device, problem), keeps, writes)
            self._remember(known, call)
        return call

    def _remember(self, known: tuple[Any, ...], call: Call) -> None:
        if len(self.calls) >= _MOST_CALLS:
            self.calls.clear()
        self.calls[known] = call

    def _keeps(self, parameters: dict[str, Any], views: dict[str, View], rank: int) -> bool:
        """Whether results with one element for every row keep the op's axes at length 1.

        As the caller says or, where there is nothing to say it by, as the operands do.
        """
        if "keepdims" in parameters:
            return bool(parameters["keepdims"])
        return any(len(views[n].shape) == rank for n in self.row_inputs if n in views)

    def _targets(
        self,
        writes: Sequence[Operand],
        out: Any,
        like: Any,
        lead: View,
        shapes: dict[Role, Shape],
    ) -> dict[str, _Target]:
        """Where results go, by name; ``shapes`` are those of outputs of a role."""
        given: Sequence[Any] = (out,) if len(writes) == 1 else _several(writes, out)
        targets = {}
        for k, (operand, buffer) in enumerate(zip(writes, given, strict=True)):
            word = "out" if len(writes) == 1 else f"out[{k}]"
            # A state keeps what a caller who goes on from it would lose.
            dtype = "f64" if operand.type is Type.STATE else lead.dtype
            shape = shapes[operand.role]
            targets[operand.name] = _Target(buffer, like, shape, dtype, lead, operand.name, word)
        return targets


def _several(writes: Sequence[Operand], out: Any) -> Sequence[Any]:
    if out is None:
        return (None,) * len(writes)
    if not isinstance(out, (tuple, list)) or len(out) != len(writes):
        what = "a pair" if len(writes) == 2 else f"{len(writes)} buffers"
        names = ", ".join(o.name for o in writes)
        raise InvalidProblemError(f"out: expected {what} ({names}), got {type(out).__name__}")
    return out


class _Target:
    """Where a result goes: the caller's ``out``, or a new array like an operand."""

    def __init__(
        self, out: Any, like: Any, shape: Shape, dtype: str, v: View, name: str, word: str
    ):
        self.given, self.like = out, like
        if out is not None:
            self.array = out
        elif (shape, dtype) == (v.shape, v.dtype) and is_writable_kind(like):
            self.array = empty_like(like, name=name)
        else:
            self.array = empty(like, shape, dtype, name=name)
        self.view = output_view(self.array, word if out is not None else name)
        if self.view.shape != shape:
            raise InvalidProblemError(f"{word}: expected shape {shape}, got {self.view.shape}")

    def result(self) -> Any:
        if self.given is not None:
            mark_written(self.given)
            return self.given
        return self.array if is_writable_kind(self.like) else restore(self.like, self.array)


def _runnable_on(device: str, problem: Problem) -> Runnable:
    if device == "cpu":
        return Runnable(problem, PlanPreference())
    from ..gpu.device import on_device

    with on_device(device):
        return Runnable(problem, PlanPreference(backend=BackendKind.TRITON))


def _execute(runnable: Runnable, calls: list[dict[str, View]]) -> None:
    """Run on several sets of operands; all are checked before the first is written."""
    for views in calls:
        runnable.check(views, in_function=True)
    if calls:
        runnable.check_values(calls[0])
    for views in calls:
        runnable.execute(views, 0, 0, runnable.threads())
