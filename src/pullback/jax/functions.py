"""The functions, made from the rows of the catalog with the conventions of JAX."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from ..api.arrange import borders
from ..api.plan import Runnable
from ..core import parse
from ..core.catalog import catalog
from ..core.declare import Op, Operand, Role, Type
from ..core.pair import Pair as Rows
from ..core.pair import pair_of
from ..core.problem import Problem, describe
from ..core.vocabulary import ElementKind, PlanPreference
from ..errors import InvalidProblemError, UnsupportedError
from ..formulas.record import ScanFormula
from ..memory.view import view
from ..precision import forgets
from .conventions import (
    ALIASES,
    BEGINS,
    NAMES,
    begun,
    check_mode,
    correction_of,
    is_whole,
    names_of,
    only_theirs,
    row_in_jax,
    serves,
    signature,
    theirs,
)
from .docstrings import docstring
from .pairs import Pair, reads, without
from .primitives import run, varying_alike

_ELEMENTS = {kind.numpy_dtype: kind.value for kind in ElementKind}
_MOST_PAIRS = 4096

Arrays = dict[str, Any]
Shape = tuple[int, ...]


class Function:
    """A kind as a function of JAX arrays.

    Parameters
    ----------
    kind
        Its rows.
    row
        The forward row as JAX has it.
    """

    def __init__(self, kind: Rows, row: Op):
        self.kind, self.op = kind, kind.forward
        self.names = names_of(self.op)
        self.operands = {o.name: o for o in self.op.reads}
        # Those that promote to one type and stretch to one shape.
        self.elements = [
            o.name for o in self.op.reads if o.role is Role.ELEMENT and o.type is Type.ELEMENT
        ]
        cuts = [o for o in self.op.reads if o.role in (Role.IDS, Role.OFFSETS)]
        self.cuts = [o for o in cuts if o.symbol == o.name]
        # Offsets that formulas know as another operand mark borders.
        self.marks = next((o for o in cuts if o.symbol != o.name), None)
        axis, own = (r.parameter("axis") for r in (row, self.op))
        parses = (axis.parse, own.parse) if axis and own else ()
        self.flattens = parse.optional_integer in parses
        self.several_axes = parses == (parse.axes, parse.axis)
        self.pairs: dict[Any, Pair] = {}
        forgets(self.pairs.clear)

    def __call__(
        self,
        given: Arrays,
        parameters: dict[str, Any],
        key: tuple[Any, ...],
        axis_name: Any = None,
    ) -> Any:
        """The results.

        Parameters
        ----------
        given
            Arrays by the catalog's names for them.
        parameters
            Parsed parameters by the catalog's names; None where an array stands for one.
        key
            What the parameters are looked up by.
        axis_name
            The mesh axes over which the op's axis is cut.
        """
        arrays = {name: _typed(array, self.operands[name]) for name, array in given.items()}
        shape = self._stretch(arrays)
        if self.flattens and parameters["axis"] is None:
            for name in [n for n in arrays if self.operands[n].role is Role.ELEMENT]:
                arrays[name] = jnp.broadcast_to(arrays[name], shape).reshape(-1)
            parameters, shape = {**parameters, "axis": 0}, (math.prod(shape),)
        if self.cuts:
            return self._run_segments(arrays, shape, parameters, key, axis_name)
        if axis_name is not None:
            return self._run_shard(arrays, shape, parameters, key, axis_name)
        if self.marks is not None and self.marks.name in arrays:
            self._mark_borders(self.marks, arrays, shape, parameters["axis"])
        pair = self._known(arrays, shape, parameters, key)
        if pair.positions:
            _check_known(pair.forward, {n: arrays[n] for n in pair.positions})
        results = self._run(pair, arrays)
        if pair.of_rows and not parameters.get("keepdims"):
            for name in pair.of_rows:
                if name in results:
                    results[name] = jnp.squeeze(results[name], pair.forward.axes)
        return _one_or_all(results)

    def _stretch(self, arrays: Arrays) -> Shape:
        """The shape that all elements stretch to; they come to have one type."""
        names = [n for n in self.elements if n in arrays]
        lead = arrays[names[0]]
        if len(names) == 1 and lead.dtype in _ELEMENTS:
            return lead.shape
        dtype = jnp.result_type(*(arrays[n] for n in names))
        if dtype not in _ELEMENTS:
            if not serves(self.op.kind, dtype):
                name = next(n for n in names if arrays[n].dtype not in _ELEMENTS)
                _refuse(self.names.get(name, name), arrays[name].dtype)
            dtype = float_of(dtype)
        arrays |= {n: arrays[n].astype(dtype) for n in names if arrays[n].dtype != dtype}
        shapes = [arrays[n].shape for n in names]
        if shapes.count(shapes[0]) == len(shapes):
            return shapes[0]
        try:
            return jnp.broadcast_shapes(*shapes)
        except ValueError:
            listed = ", ".join(map(str, shapes))
            raise InvalidProblemError(
                f"{', '.join(names)}: expected shapes that broadcast to one, got {listed}"
            ) from None

    def _mark_borders(self, offsets: Operand, arrays: Arrays, shape: Shape, axis: int) -> None:
        """Put a mask of the positions where runs begin in the place of offsets."""
        if offsets.symbol in arrays:
            raise InvalidProblemError(f"{offsets.name}: expected it or {offsets.symbol}, got both")
        axis = parse.normalized_axis(axis, len(shape), "axis")
        begun = arrays.pop(offsets.name)
        if isinstance(begun, jax.core.Tracer):
            extent = shape[axis] if shape else 1
            marks = jnp.zeros(extent, bool).at[jnp.clip(begun[:-1], 0)].set(True, mode="drop")
            marks = marks.reshape([extent if k == axis else 1 for k in range(len(shape))])
        else:
            marks = jnp.asarray(borders(np.asarray(begun), shape, axis, offsets.name))
        arrays[offsets.symbol] = marks

    # Problems, and what runs them.

    def _known(
        self,
        arrays: Arrays,
        shape: Shape,
        parameters: dict[str, Any],
        key: tuple[Any, ...],
        segments: int | None = None,
    ) -> Pair:
        """The pair of a call, made when it is first met."""
        dtype, given = arrays[self.elements[0]].dtype, tuple(arrays)
        known = (dtype, shape, segments, given, parameters.get("axis"), key)
        pair = self.pairs.get(known)
        if pair is None:
            if len(self.pairs) >= _MOST_PAIRS:
                self.pairs.clear()
            how = (_ELEMENTS[dtype], shape, parameters, segments)
            pair = self.pairs[known] = self._pair(given, *how)
        return pair

    def _pair(self, given: tuple[str, ...], *how: Any) -> Pair:
        parameters = how[2]
        forward = self._problem(self.op, given, *how)
        asked = [o.name for o in forward.writes if parameters.get(o.asked_by) is not False]
        backward = None
        if self.kind.backward is not None:
            by = [n for n, output in self.kind.cotangents.items() if output in asked]
            saves = [o.name for o in forward.writes]
            backward = self._problem(self.kind.backward, (*given, *saves, *by), *how)
            # What may be left out and is not read, is left out.
            read = reads(backward)
            backward = without(backward, [n for n in backward.op.optional if n not in read])
        return Pair(self.kind, forward, backward, asked)

    def _problem(
        self,
        op: Op,
        given: tuple[str, ...],
        element: str,
        shape: Shape,
        parameters: dict[str, Any],
        segments: int | None,
    ) -> Problem:
        optional = [n for n in given if n in op.optional]
        if not self.several_axes:
            problem = describe(op, element, shape, parameters, optional, segments, NAMES)
            # Ids that are out of range are dropped; who wants to raise has looked at them before.
            return problem if segments is None else replace(problem, drops=True)
        rest = {n: v for n, v in parameters.items() if n != "axis"}
        axes = parse.normalized_axes(parameters["axis"], len(shape), "axis")
        return replace(describe(op, element, shape, rest, optional, segments, NAMES), axes=axes)

    def _run(self, pair: Pair, arrays: Arrays) -> Arrays:
        """The outputs that are asked for, by name."""
        operands = {
            n: arrays[n] if arrays[n].shape == shape else self._fitted(n, arrays[n], pair, shape)
            for n, shape in pair.shapes.items()
        }
        if len(operands) > 1:
            operands = dict(zip(pair.reads, varying_alike(*operands.values()), strict=True))
        results = run(pair, "forward", operands, pair.outputs)
        made = dict(zip(pair.outputs, results, strict=True))
        return made if pair.asked == pair.outputs else {n: made[n] for n in pair.asked}

    def _run_shard(
        self,
        arrays: Arrays,
        shape: Shape,
        parameters: dict[str, Any],
        key: tuple[Any, ...],
        axis_name: Any,
    ) -> Any:
        """The results of this device's shard, of arrays whose axis is cut over devices."""
        if self.marks is not None and self.marks.name in arrays:
            raise UnsupportedError(
                f"{self.marks.name}: not taken with axis_name; give {self.marks.symbol} instead"
            )
        names, count = _mesh_axes(axis_name)
        axes = parse.normalized_axes(parameters["axis"], len(shape), "axis")
        if not axes:
            raise InvalidProblemError("axis_name: expected an array with an axis to cut, got none")
        at = axes[0]
        whole = tuple(n * count if d == at else n for d, n in enumerate(shape))
        pair = self._known(arrays, whole, parameters, key)
        operands = {}
        for name, wanted in pair.shapes.items():
            is_cut = self.operands[name].role is Role.ELEMENT
            local = shape if is_cut else wanted
            operands[name] = self._fitted(name, arrays[name], pair, local)
        from .shards import run_shard  # llvmlite comes with it

        results = run_shard(pair, operands, names, count, at, shape)
        if pair.of_rows and not parameters.get("keepdims"):
            for name in [n for n in pair.of_rows if n in results]:
                results[name] = jnp.squeeze(results[name], pair.forward.axes)
        return _one_or_all(results)

    def _fitted(self, name: str, array: Any, pair: Pair, wanted: Shape) -> Any:
        """An operand of as many dimensions as the problem has.

        Where gradients flow it is stretched to its full shape, so that JAX sums them.
        """
        operand, problem = self.operands[name], pair.forward
        axes = problem.axes
        rank = len(wanted)
        if operand.role is Role.ROW and array.ndim == rank - len(axes):
            array = jnp.expand_dims(array, axes)
        own = (1,) * (rank - array.ndim) + array.shape
        stretches = operand.role is Role.ELEMENT and len(own) == rank
        if own != wanted and not (
            stretches and all(n in (1, full) for n, full in zip(own, wanted, strict=True))
        ):
            what = "a shape that stretches to" if stretches else "shape"
            raise InvalidProblemError(
                f"{self.names.get(name, name)}: expected {what} {wanted}, got {array.shape}"
            )
        if operand.type is Type.BOOL and isinstance(problem.formula, ScanFormula):
            along = axes[0]
            if own[along] != wanted[along]:
                raise InvalidProblemError(
                    f"{name}: expected {wanted[along]} elements along the axis of the scan, got 1"
                )
        if name in pair.variables:
            return jnp.broadcast_to(array, wanted)
        return array.reshape(own)

    # Segments.

    def _run_segments(
        self,
        arrays: Arrays,
        shape: Shape,
        parameters: dict[str, Any],
        key: tuple[Any, ...],
        axis_name: Any,
    ) -> Any:
        lead = self.names.get(self.elements[0], self.elements[0])
        if not shape:
            raise InvalidProblemError(f"{lead}: expected at least one dimension, got shape ()")
        given = [o for o in self.cuts if o.name in arrays]
        if len(given) != 1:
            words, got = " or ".join(o.name for o in self.cuts), "both" if given else "neither"
            raise InvalidProblemError(f"{self.cuts[0].name}: expected {words}, got {got}")
        (by,) = given
        cut = arrays[by.name]
        segments = self._count(by, cut, shape[0], parameters)
        rest, width = shape[1:], math.prod(shape[1:])
        names, count = _mesh_axes(axis_name)
        pair = self._known(arrays, (count * shape[0], width), parameters, key, segments)
        is_traced = isinstance(cut, jax.core.Tracer)
        if by.role is Role.OFFSETS and is_traced:
            # Nobody looks at what is traced, and kernels go where offsets lead.
            arrays[by.name] = jnp.clip(jax.lax.cummax(cut), 0, count * shape[0])
        elif by.role is Role.OFFSETS or parameters.get("out_of_range") == "raise":
            _known(cut, by.name, 'out_of_range="raise"')
            _check_known(replace(pair.forward, drops=False), {by.name: cut})
        for name in [n for n in arrays if n != by.name]:
            length = shape[0] if self.operands[name].role is Role.ELEMENT else segments
            full = jnp.broadcast_to(arrays[name], (length, *rest))
            arrays[name] = full.reshape(length, width)
        if names:
            from .shards import run_shard  # llvmlite comes with it

            results = run_shard(pair, arrays, names, count, 0, (shape[0], width))
        else:
            results = self._run(pair, arrays)
        return _one_or_all({n: r.reshape(r.shape[0], *rest) for n, r in results.items()})

    def _count(self, by: Operand, cut: Any, length: int, parameters: dict[str, Any]) -> int:
        """How many segments there are."""
        asked = parameters.get("num_segments")
        if by.role is Role.OFFSETS:
            if cut.ndim != 1 or not cut.size:
                raise InvalidProblemError(
                    f"{by.name}: expected one dimension and at least one offset, got shape "
                    f"{cut.shape}"
                )
            if asked not in (None, cut.size - 1):
                raise InvalidProblemError(
                    f"num_segments: expected {cut.size - 1}, as offsets have, got {asked}"
                )
            return int(cut.size - 1)
        if cut.shape != (length,):
            raise InvalidProblemError(f"{by.name}: expected shape {(length,)}, got {cut.shape}")
        if asked is None:
            return int(np.asarray(_known(cut, by.name, "num_segments")).max(initial=-1)) + 1
        return int(asked)


def _check_known(problem: Problem, arrays: Arrays) -> None:
    """Raise for integers that operands must not hold, unless they are traced."""
    if not any(isinstance(a, jax.core.Tracer) for a in arrays.values()):
        views = {n: view(np.asarray(a), n) for n, a in arrays.items()}
        Runnable(problem, PlanPreference()).check_values(views)


def _mesh_axes(axis_name: Any) -> tuple[tuple[Any, ...], int]:
    """The mesh axes that cut an axis, and how many pieces they make; none make one."""
    if axis_name is None:
        return (), 1
    names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    # Older releases note in another way, or not at all, what varies over devices.
    if jax.__version_info__ < (0, 10):
        raise UnsupportedError(f"axis_name: needs jax 0.10 or later, this is {jax.__version__}")
    return names, math.prod(jax.lax.axis_size(n) for n in names)


def _one_or_all(results: Arrays) -> Any:
    found = tuple(results.values())
    return found[0] if len(found) == 1 else found


def _typed(array: Any, operand: Operand) -> Any:
    """A JAX array of a type that an operand may have, or the error that names it."""
    if not isinstance(array, jax.Array):
        array = jnp.asarray(array)
    dtype, kind = array.dtype, operand.type
    if kind is Type.ELEMENT and (operand.role is Role.ELEMENT or dtype in _ELEMENTS):
        return array
    name = NAMES.get(operand.name, operand.name)
    if kind is Type.ELEMENT or kind is Type.STATE:
        if dtype not in _ELEMENTS and not (kind is Type.STATE and is_whole(dtype)):
            _refuse(name, dtype)
        return array.astype(jax.dtypes.canonicalize_dtype(np.float64))
    if kind is Type.BOOL:
        if dtype != np.bool_:
            raise InvalidProblemError(f"{name}: expected dtype bool, got {dtype}")
    elif not jnp.issubdtype(dtype, jnp.integer):
        raise InvalidProblemError(f"{name}: expected integers, got {dtype}")
    elif dtype not in (jnp.int32, jnp.int64):
        wide = jax.dtypes.canonicalize_dtype(np.int64)
        if dtype.itemsize >= wide.itemsize:  # the largest is out of every range
            array = jnp.minimum(array, dtype.type(jnp.iinfo(wide).max))
        return array.astype(wide if dtype.itemsize > 2 else jnp.int32)
    return array


def _refuse(name: str, dtype: Any) -> NoReturn:
    names = ", ".join(known.name for known in _ELEMENTS)
    raise UnsupportedError(f"{name}: expected dtype {names}, got {dtype}")


def float_of(dtype: Any) -> Any:
    """The type of floats that JAX makes of integers."""
    return jax.eval_shape(jnp.mean, jax.ShapeDtypeStruct((), dtype)).dtype


def _known(cut: Any, name: str, what: str) -> Any:
    if isinstance(cut, jax.core.Tracer):
        raise UnsupportedError(
            f"{what}: needs the values of {name}, which are not known while the function is traced"
            + ("; give it as an int" if what == "num_segments" else '; use "drop"')
        )
    return cut


# The source of a function.


def _is_array(value: Any) -> bool:
    """Whether an argument that may be a number is an array: what is traced is one."""
    return isinstance(value, jax.core.Tracer) or getattr(value, "ndim", 0) > 0


def _parsed(value: Any, how: Callable[[Any, str], Any], name: str) -> Any:
    if isinstance(value, jax.core.Tracer):
        raise UnsupportedError(
            f"{name}: expected a value that is known when the function is traced, got a "
            f"{type(value).__name__}; no gradient flows to it"
        )
    return how(value, name)


def settled(x: Any, dtype: Any, kind: str) -> Any:
    """An input in the type that is asked for; None where JAX's own function has to do it."""
    x = jnp.asarray(x)
    is_real = x.dtype in _ELEMENTS or is_whole(x.dtype)
    if dtype is not None:
        asked = jax.dtypes.canonicalize_dtype(dtype)
        return x.astype(dtype) if is_real and asked in _ELEMENTS else None
    return x if x.dtype in _ELEMENTS or serves(kind, x.dtype) else None


def check_beyond(name: str, x: Any, given: dict[str, Any], usual: dict[str, Any]) -> None:
    """Refuse what JAX's function does not have in a call that is for it."""
    for argument, value in given.items():
        is_simple = isinstance(value, (bool, int, float, str))
        if value is not usual[argument] and not (is_simple and value == usual[argument]):
            raise UnsupportedError(
                f"{argument}: expected {usual[argument]!r} where {name} is JAX's own, as for "
                f"{jnp.result_type(x)} and arguments that only JAX has"
            )


def _hand_over(kind: Rows, row: Op) -> list[str]:
    """Give JAX's own function what kernels do not do."""
    own = theirs(kind.forward.kind)
    if own is None:
        return []
    name = row.inputs[0]
    ours = {*row.inputs, *(p.name for p in signature(row))}
    # An argument that a release has given up may still be there, to be refused.
    rest = [n for n in list(inspect.signature(own).parameters)[1:] if n in ours]
    only = [p for p in only_theirs(kind) if p.name != "dtype"]
    dtype = "dtype" if "dtype" in rest else "None"
    asked = "dtype is not None or " if "dtype" in rest else ""
    beyond = [p.name for p in signature(row) if p.name not in rest]
    given = ", ".join(f"{n!r}: {n}" for n in beyond)
    differs = "".join(f" or {p.name} is not {p.default!r}" for p in only)
    return [
        f"x_given = {name}",
        f"if {asked}getattr({name}, 'dtype', None) not in ELEMENTS:",
        f"    {name} = settled({name}, {dtype}, {kind.forward.kind!r})",
        f"if {name} is None{differs}:",
        f"    check_beyond({row.name!r}, x_given, {{{given}}}, usual)",
        f"    return theirs(asarray(x_given), {', '.join(f'{n}={n}' for n in rest)})",
    ]


def _body(kind: Rows, row: Op) -> list[str]:
    op = kind.forward
    named = {p.name: NAMES.get(p.name, p.name) for p in kind.parameters}
    required = [o.name for o in op.reads if not o.optional]
    called = names_of(op)
    held = ", ".join(f"{n!r}: {called.get(n, n)}" for n in required)
    lines = [*_hand_over(kind, row), f"arrays = {{{held}}}"]
    lines += [f"if {n} is not None: arrays[{n!r}] = {n}" for n in op.optional if n not in named]
    if "correction" in named:
        lines.append("correction = correction_of(ddof, correction)")
    for source, name in named.items():
        parameter = row.parameter(name)
        assert parameter is not None
        unless = f"if type({name}) is not {parameter.kind.usual}: " if parameter.kind.usual else ""
        if source in op.optional:
            lines.append(f"if is_array({name}): arrays[{source!r}], {name} = {name}, None")
            unless = "else: "
        lines.append(f"{unless}{name} = parsed({name}, parse_{name}, {name!r})")
    # By its text NaN finds itself, and -0.0 is not 0.0.
    data = {p.name for p in kind.parameters if p.is_data}
    keys = "".join(f"repr({n}), " if s in data else f"{n}, " for s, n in named.items())
    held = ", ".join(f"{source!r}: {name}" for source, name in named.items())
    more = ", axis_name" if row.parameter("axis_name") else ""
    call = f"run(arrays, {{{held}}}, ({keys}){more})"
    if row.parameter("mode"):
        lines.append("check_mode(mode, 'mode')")
    if op.kind in BEGINS:
        # Nothing has no extreme of its own, but what is masked may begin from anything.
        lines += [
            "if initial is not None:",
            f"    if not size({row.inputs[0]}): arrays['where'] = True",
            f"    return begun({op.kind!r}, {call}, initial)",
        ]
    return [*lines, f"return {call}"]


def make_function(op: Op) -> Callable[..., Any]:
    """The function of a forward op."""
    kind = pair_of(op.kind)
    row = row_in_jax(kind)
    required = [
        inspect.Parameter(o.name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for o in row.reads
        if not o.optional
    ]
    rest = signature(row)
    shown = inspect.Signature([*required, *rest])
    source = f"def {op.name}{shown}:\n    " + "\n    ".join(_body(kind, row))
    run = Function(kind, row)
    tools: dict[str, Any] = {f"parse_{p.name}": p.parse for p in row.parameters}
    tools |= {"run": run, "parsed": _parsed, "is_array": _is_array, "correction_of": correction_of}
    tools |= {"begun": begun, "check_mode": check_mode, "size": jnp.size}
    tools |= {"theirs": theirs(op.kind), "usual": {p.name: p.default for p in rest}}
    tools |= {"ELEMENTS": _ELEMENTS, "settled": settled, "check_beyond": check_beyond}
    tools |= {"asarray": jnp.asarray}
    tools |= {"inf": math.inf, "nan": math.nan}  # in signatures
    made: dict[str, Any] = {}
    exec(source, tools, made)
    function: Callable[..., Any] = made[op.name]
    function.__module__ = "pullback.jax"
    function.__doc__ = docstring(kind, row, inspect.signature(function).parameters)
    return function


FUNCTIONS: dict[str, Callable[..., Any]] = {
    op.name: make_function(op) for op in catalog() if op.direction == "forward"
}
FUNCTIONS |= {alias: FUNCTIONS[kind] for alias, kind in ALIASES.items()}
