"""The functions: each parses its arguments, finds or makes what runs them, and runs it once.

Signature and docstring of a function come from the row of its op. A call is remembered by its
parsed parameters and the type and shape of its leading operand, so that the next one like it goes
straight to its kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core import parse
from ..core.catalog import catalog
from ..core.declare import REQUIRED, Op, Parameter, Role, Type
from ..core.problem import Problem, describe
from ..core.vocabulary import BackendKind, PlanPreference
from ..errors import InvalidProblemError, UnsupportedError
from ..memory.dimensions import merge
from ..memory.overlap import overlaps, self_overlaps
from ..memory.view import (
    DTYPES,
    View,
    empty,
    empty_like,
    is_writable_kind,
    mark_written,
    output_view,
    restore,
)
from ..memory.view import view as view_of
from .docstrings import docstring
from .plan import Runnable

_MOST_CALLS = 512

Shape = tuple[int, ...]
Values = tuple[Any, ...]


_made: list[Function] = []


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
    kept, squeezed
        Shape of operands with one element for every row: with the op's axes at length 1, or
        without them.
    row
        Shape of results with one element for every row.
    again
        ``again(operands, out)``: the result for packed NumPy arrays; None, with nothing done, where
        they are not as expected, and then the long way says why.
    """

    __slots__ = ("again", "dtype", "kept", "outputs", "row", "row_inputs", "runnable", "squeezed")

    def __init__(self, runnable: Runnable, keepdims: bool):
        problem, op = runnable.problem, runnable.op
        self.runnable = runnable
        self.dtype = DTYPES[problem.element]
        self.kept = self.squeezed = problem.row_shape
        if not problem.is_segmented:
            self.squeezed = tuple(n for k, n in enumerate(problem.shape) if k not in problem.axes)
        self.row = self.kept if keepdims else self.squeezed
        self.row_inputs = [o.name for o in problem.reads if o.role is Role.ROW]
        if self.kept == self.squeezed:
            self.row_inputs = []
        self.outputs = [
            (o.name, problem.shape, False) if o.role is Role.ELEMENT else (o.name, self.row, True)
            for o in op.writes
        ]
        is_simple = len(op.writes) == 1 and not self.row_inputs and not self.outputs[0][2]
        self.again: Callable[[dict[str, Any], Any], Any] = (
            self._again_simply if is_simple else self._again
        )

    def _again_simply(self, arrays: dict[str, Any], out: Any) -> Any:
        """One result, and no axes to put back."""
        ((name, shape, _),) = self.outputs
        result = np.empty(shape, self.dtype) if out is None else out
        arrays[name] = result
        if self.runnable.packed().run(arrays):
            return result
        del arrays[name]
        return None

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
        for (name, shape, is_row), target in zip(self.outputs, targets, strict=True):
            if target is None:
                target = np.empty(shape, self.dtype)
            elif type(target) is not np.ndarray or target.shape != shape:
                return None
            results.append(target)
            operands[name] = self._with_axes(target) if is_row else target
        if not self.runnable.packed().run(operands):
            return None
        return results[0] if len(results) == 1 else tuple(results)

    def _with_axes(self, array: Any) -> Any:
        """A packed NumPy array without the op's axes, seen with them; any other as it is."""
        if (
            type(array) is np.ndarray
            and array.shape == self.squeezed != self.kept
            and array.flags.c_contiguous
        ):
            return array.reshape(self.kept)
        return array


class Function:
    """One op as a function of arrays, by the long way."""

    def __init__(self, op: Op):
        self.op = op
        elements = op.names(Role.ELEMENT)
        # The operand whose shape is that of the problem; where none is, whose type is.
        self.lead = elements[0] if elements else op.inputs[0]
        self.tells_shape = bool(elements)
        # The operand whose type is the element type: where another differs, the other is wrong.
        self.typed = next(o.name for o in op.reads if o.type is Type.ELEMENT)
        self.row_inputs = op.names(Role.ROW)
        self.row_outputs = tuple(o.name for o in op.writes if o.role is Role.ROW)
        # What cuts rows into segments, of a segment op.
        self.cut_by = next((o for o in op.reads if o.role in (Role.IDS, Role.OFFSETS)), None)
        self.is_segmented = self.cut_by is not None
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
            Parsed parameters by name.
        key
            What calls like this one are looked up by.
        out
            The caller's buffer: one, or a tuple of as many as the op has outputs.
        """
        views = {name: self._view(array, name) for name, array in arrays.items()}
        lead, like = views[self.lead], arrays[self.lead]
        shape, segments = self._sizes(views, parameters)
        if segments is not None:
            wanted = {Role.ELEMENT: shape, Role.ROW: (segments, *shape[1:])}
            targets = self._targets(out, like, lead, wanted)
            views |= {name: target.view for name, target in targets.items()}
            cuts = _cut_into_rows(self.op, views)
            if len(cuts) > 1:
                self._check_apart(views)
            if cuts:
                width = cuts[0][self.lead].shape[1]
                call = self._call(views, (shape[0], width), segments, parameters, key)
                _execute(call.runnable, cuts)
        else:
            call = self._call(views, shape, None, parameters, key)
            targets = self._targets(out, like, lead, {Role.ELEMENT: shape, Role.ROW: call.row})
            views |= {name: target.view for name, target in targets.items()}
            problem = call.runnable.problem
            for name in (*self.row_inputs, *self.row_outputs):
                if name in views:
                    views[name] = kept(views[name], problem.axes, len(problem.shape))
            _execute(call.runnable, [views])
            if type(like) is np.ndarray:
                self._remember(key, call)
        results = [target.result() for target in targets.values()]
        return results[0] if len(results) == 1 else tuple(results)

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
        v = view_of(array, name)
        if v.element is None and self.op.operand(name).type in (Type.ELEMENT, Type.STATE):
            raise UnsupportedError(f"{name}: expected a float array, got {v.dtype}")
        return v

    def _sizes(
        self, views: dict[str, View], parameters: dict[str, Any]
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
        if "num_segments" in parameters:
            wanted = (parameters["num_segments"], *rest)
            segments = parse.shape(wanted, "num_segments", lead.itemsize)[0]
        if "num_inputs" in parameters:
            rows = parse.shape((parameters["num_inputs"], *rest), "num_inputs", lead.itemsize)[0]
        if rows is None or segments is None:
            missing = "num_segments" if segments is None else "num_inputs"
            raise TypeError(f"{self.op.name}: neither an operand nor a parameter tells {missing}")
        return (rows, *rest), segments

    def _told(self, views: dict[str, View]) -> tuple[int | None, int | None]:
        """Rows and segments, as far as the operands of a segment op tell them."""
        assert self.cut_by is not None
        name, by_ids = self.cut_by.name, self.cut_by.role is Role.IDS
        cut = views[name].shape
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
            keeps = self._keeps(parameters, views, len(problem.shape))
            call = Call(_runnable_on(lead.device, problem), keeps)
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
        self, out: Any, like: Any, lead: View, shapes: dict[Role, Shape]
    ) -> dict[str, _Target]:
        """Where results go, by name; ``shapes`` are those of outputs of a role."""
        writes = self.op.writes
        given: Sequence[Any] = (out,) if len(writes) == 1 else self._several(out)
        targets = {}
        for k, (operand, buffer) in enumerate(zip(writes, given, strict=True)):
            word = "out" if len(writes) == 1 else f"out[{k}]"
            # A state keeps what a caller who goes on from it would lose.
            dtype = "f64" if operand.type is Type.STATE else lead.dtype
            shape = shapes[operand.role]
            targets[operand.name] = _Target(buffer, like, shape, dtype, lead, operand.name, word)
        return targets

    def _several(self, out: Any) -> Sequence[Any]:
        outputs = self.op.outputs
        if out is None:
            return (None,) * len(outputs)
        if not isinstance(out, (tuple, list)) or len(out) != len(outputs):
            what = "a pair" if len(outputs) == 2 else f"{len(outputs)} buffers"
            raise InvalidProblemError(
                f"out: expected {what} ({', '.join(outputs)}), got {type(out).__name__}"
            )
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


def _cut_into_rows(op: Op, views: dict[str, View]) -> list[dict[str, View]]:
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


# The source of a function: its signature, parameters in their one form, and the call.


def _is_positional(op: Op, name: str) -> bool:
    if op.direction == "forward":
        return True
    return name == op.inputs[0] or op.operand(name).role in (Role.IDS, Role.OFFSETS)


def signature(op: Op) -> str:
    """The parameters of an op's function, as source."""
    required = [o.name for o in op.reads if not o.optional]
    first = [n for n in required if _is_positional(op, n)]
    if op.direction == "forward":
        first += [_argument(p) for p in op.parameters if p.is_positional]
    later = [n for n in required if n not in first]
    later += [
        _argument(p)
        for p in op.parameters
        if not (p.is_positional and op.direction == "forward") and p.default is REQUIRED
    ]
    later += [f"{o.name}=None" for o in op.reads if o.optional]
    later += [
        _argument(p)
        for p in op.parameters
        if not (p.is_positional and op.direction == "forward") and p.default is not REQUIRED
    ]
    return ", ".join([*first, "*", *later, "out=None"])


def _argument(parameter: Parameter) -> str:
    if parameter.default is REQUIRED:
        return parameter.name
    return f"{parameter.name}={parameter.default!r}"


# The types that need no parsing: a call to parse takes 0.1 us.
_USUAL = {
    parse.axis: "int",
    parse.axes: "int",
    parse.count: "int",
    parse.correction: "int",
    parse.flag: "bool",
    parse.real: "float",
}


def _body(op: Op, function: Function) -> list[str]:
    lines = []
    for p in op.parameters:
        usual = _USUAL.get(p.parse, "str")
        lines.append(
            f"if type({p.name}) is not {usual}: {p.name} = parse_{p.name}({p.name}, {p.name!r})"
        )
    given = ", ".join(f"{o.name!r}: {o.name}" for o in op.reads if not o.optional)
    lines.append(f"arrays = {{{given}}}")
    optional = [o.name for o in op.reads if o.optional]
    lines += [f"if {n} is not None: arrays[{n!r}] = {n}" for n in optional]
    # A NaN finds itself by its text, and -0.0 is not 0.0.
    texts = [f"{p.name}.hex()" if p.parse is parse.real else p.name for p in op.parameters]
    texts += [f"{n} is not None" for n in optional]
    told = "".join(f"{text}, " for text in texts)
    if not function.is_segmented:
        lead = function.lead
        shape = f"{lead}.shape" if function.tells_shape else "None"
        lines += [
            f"if type({lead}) is ndarray:",
            f"    key = ({lead}.dtype, {', '.join([shape, *texts])})",
            "    known = calls.get(key)",
            "    if known is not None:",
            "        result = known.again(arrays, out)",
            "        if result is not None: return result",
            f"else: key = ({told})",
        ]
    else:
        lines.append(f"key = ({told})")
    named = ", ".join(f"{p.name!r}: {p.name}" for p in op.parameters)
    lines.append(f"return run(arrays, {{{named}}}, key, out)")
    return lines


def make_function(op: Op) -> Callable[..., Any]:
    """The function of an op."""
    run = Function(op)
    source = f"def {op.name}({signature(op)}):\n    " + "\n    ".join(_body(op, run))
    tools: dict[str, Any] = {f"parse_{p.name}": p.parse for p in op.parameters}
    tools |= {"run": run, "calls": run.calls, "ndarray": np.ndarray}
    made: dict[str, Any] = {}
    exec(source, tools, made)
    function: Callable[..., Any] = made[op.name]
    function.__module__ = "pullback"
    function.__doc__ = docstring(op)
    return function


FUNCTIONS: dict[str, Callable[..., Any]] = {op.name: make_function(op) for op in catalog()}
