"""A problem's formula run on whole arrays, in the library that holds them.

Not fast: every step of a fold is a sweep over arrays. It serves where a library is to differentiate
a formula or to transform it, and as a second opinion on what the kernels compute. What differs from
one library to another is a :class:`Namespace`; how records are walked is written here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..core.declare import Operand, Role, Type
from ..core.problem import Problem
from ..errors import UnsupportedError
from .bind import Binder
from .primitives import NOWHERE
from .record import Formula, Monoid, RowFormula, ScanFormula, names_read, parameters

Values = dict[str, Any]


class Namespace:
    """The arrays of one library, and how formulas see the numbers in them.

    Parameters
    ----------
    module
        The library's functions on arrays.
    primitives
        Its version of each primitive.
    """

    def __init__(self, module: Any, primitives: Mapping[str, Callable]):
        self.module = module
        self.boolean = module.bool_ if hasattr(module, "bool_") else module.bool
        self._bind = Binder(primitives)

    def call(self, function: Callable, arguments: Sequence[Any]) -> list[Any]:
        """What a formula function returns on arrays and numbers, one value or several."""
        result = self._bind(function)(*map(self.number, arguments))
        return [self.array(v) for v in (result if isinstance(result, tuple) else (result,))]

    def number(self, value: Any) -> Any:
        """An array as formulas compute with it."""
        return value

    def array(self, number: Any) -> Any:
        """The array of what a formula computed."""
        return number

    def wide(self, array: Any) -> Any:
        """An operand in the type that formulas compute in; a condition stays one."""
        return array if self.is_condition(array) else self.cast(array, self.module.float64)

    def is_condition(self, array: Any) -> bool:
        """Whether an array holds truth values."""
        return bool(array.dtype == self.boolean)

    def cast(self, array: Any, dtype: Any) -> Any:
        """An array in another type."""
        return array.astype(dtype)

    def full(self, like: Any, value: Any, shape: tuple[int, ...]) -> Any:
        """An array of one number, of the type and on the device of another."""
        return self.module.full_like(like, value, shape=shape)

    def counting(self, like: Any, length: int) -> Any:
        """0, 1, 2 and so on, as numbers."""
        return self.module.arange(length, dtype=like.dtype)

    def transposed(self, array: Any, order: Sequence[int]) -> Any:
        """An array with its dimensions in another order."""
        return array.transpose(tuple(order))


def evaluate(
    problem: Problem, operands: Mapping[str, Any], namespace: Namespace | None = None
) -> tuple[Any, ...]:
    """The outputs of a problem, in the order of its op.

    Parameters
    ----------
    problem
        What to compute.
    operands
        Arrays by the names of the op's operands, which broadcast to the shapes of the problem.
    namespace
        The library of the arrays; NumPy's if it is not said.
    """
    if namespace is None or namespace is NUMPY:
        with np.errstate(all="ignore"):
            if problem.is_segmented:
                return _by_segments(problem, operands)
            return _by_rows(problem, operands, NUMPY)
    if problem.is_segmented:
        raise UnsupportedError(f"{problem.op.name}: rows that ids cut are evaluated in NumPy alone")
    return _by_rows(problem, operands, namespace)


def _by_rows(
    problem: Problem, operands: Mapping[str, Any], namespace: Namespace
) -> tuple[Any, ...]:
    order = _rows_last(problem)
    count = math.prod(problem.shape[d] for d in order[: len(order) - len(problem.axes)])
    values = {}
    for operand in (*problem.used(Role.ELEMENT), *problem.used(Role.ROW)):
        array = namespace.transposed(namespace.wide(operands[operand.name]), order)
        shape = problem.shape_of(operand.name)
        array = namespace.module.broadcast_to(array, tuple(shape[d] for d in order))
        length = problem.extent if operand.role is Role.ELEMENT else 1
        values[operand.symbol] = array.reshape((count, length))
    like = namespace.wide(_lead(problem, operands))
    rows = Rows(namespace, problem.formula, like, (count, problem.extent), problem.reverse)
    results = rows.run(values, problem.constants)
    back = [order.index(d) for d in range(len(order))]
    finished = []
    for operand, result in zip(problem.op.writes, _by_role(problem, results), strict=True):
        shape = problem.shape_of(operand.name)
        array = namespace.transposed(result.reshape(tuple(shape[d] for d in order)), back)
        finished.append(namespace.cast(array, _dtype(problem, operand, operands, namespace)))
    return tuple(finished)


def _rows_last(problem: Problem) -> list[int]:
    """The dimensions with the op's axes at the end."""
    rest = [d for d in range(len(problem.shape)) if d not in problem.axes]
    return [*rest, *problem.axes]


def _by_role(problem: Problem, results: Mapping[Role, list[Any]]) -> list[Any]:
    """What a formula gave by position and by row, in the order of the op's outputs."""
    left = {role: iter(values) for role, values in results.items()}
    return [next(left[o.role]) for o in problem.op.writes]


def _dtype(
    problem: Problem, output: Operand, operands: Mapping[str, Any], namespace: Namespace
) -> Any:
    """The type that an output is declared with."""
    if output.type is Type.BOOL:
        return namespace.boolean
    if output.type is Type.INDEX:
        return namespace.module.int64
    return _lead(problem, operands).dtype


def _lead(problem: Problem, operands: Mapping[str, Any]) -> Any:
    """An operand of the op's element type."""
    names = (o.name for o in problem.reads if o.type is Type.ELEMENT)
    return next(operands[n] for n in names if n in operands)


class Rows:
    """A formula and the rows it is run on, which lie along the last dimension in forward order.

    Parameters
    ----------
    namespace
        The library of the arrays.
    formula
        The record.
    like
        An array of the type that formulas compute in, on their device.
    shape
        Shape of the operands with an element for every position.
    reverse
        Whether forward order runs against the order of memory.
    """

    def __init__(
        self,
        namespace: Namespace,
        formula: Formula,
        like: Any,
        shape: tuple[int, ...],
        reverse: bool,
    ):
        self.namespace, self.formula = namespace, formula
        self.like, self.shape, self.reverse = like, shape, reverse
        self.values: Values = {}

    def run(self, operands: Values, constants: Mapping[str, float]) -> dict[Role, list[Any]]:
        """The outputs by role, in the order of memory.

        Operands are called as formulas call them. Those with one element for every row have length
        1 in the last dimension, and so do these outputs.
        """
        forward = {n: self.turned(v) for n, v in operands.items()}
        self.values = {**forward, **self._places(), **self._befores(forward), **constants}
        if isinstance(self.formula, RowFormula):
            results = self._passes(self.formula)
        else:
            results = self._scans(self.formula)
        row = (*self.shape[:-1], 1)
        return {
            Role.ELEMENT: [self.turned(v) for v in self.spread(results[Role.ELEMENT], self.shape)],
            Role.ROW: self.spread(results[Role.ROW], row),
        }

    def turned(self, array: Any) -> Any:
        """From the order of memory to forward order, or back."""
        return self.namespace.module.flip(array, (-1,)) if self.reverse else array

    def spread(self, values: Sequence[Any], shape: tuple[int, ...]) -> list[Any]:
        """Numbers and arrays as arrays of one shape."""
        module = self.namespace.module
        arrays = [v if hasattr(v, "dtype") else self.full(v, ()) for v in values]
        return [module.broadcast_to(v, shape) for v in arrays]

    def full(self, value: float, shape: tuple[int, ...]) -> Any:
        return self.namespace.full(self.like, value, shape)

    def joined(self, arrays: Sequence[Any]) -> Any:
        """Arrays one behind the other along the rows."""
        return self.namespace.module.concatenate(arrays, -1)

    def call(self, function: Callable, **more: Any) -> list[Any]:
        """A formula function on what it asks for by name."""
        known = {**self.values, **more}
        missing = [n for n in parameters(function) if n not in known]
        if missing:
            raise TypeError(f"{function.__qualname__} asks for {missing}, which no operand gives")
        return self.namespace.call(function, [known[n] for n in parameters(function)])

    # What formulas know of places.

    def _places(self) -> Values:
        forward = self.namespace.counting(self.like, self.shape[-1])
        return {"index": self.turned(forward), "first": forward == 0}

    def _befores(self, operands: Values) -> Values:
        """The operands one position before, with the record's number in front of the first."""
        borders = dict(self.formula.before) if isinstance(self.formula, ScanFormula) else {}
        asked = names_read(self.formula)
        found = {}
        for name, value in operands.items():
            if f"{name}_before" in asked:
                border = self.namespace.full(value, borders.get(name, 0.0), (*self.shape[:-1], 1))
                found[f"{name}_before"] = self.joined([border, value])[..., :-1]
        return found

    # Folds and scans of states, which are lists of arrays.

    def state(self, function: Callable, shape: tuple[int, ...]) -> list[Any]:
        """The state that a lift or a start makes, in the type that formulas compute in."""
        values = self.spread(self.call(function), shape)
        return [self.namespace.cast(v, self.like.dtype) for v in values]

    def identity(self, monoid: Monoid) -> list[Any]:
        return [self.full(v, (*self.shape[:-1], 1)) for v in monoid.identity]

    def combine(self, monoid: Monoid, earlier: Sequence[Any], later: Sequence[Any]) -> list[Any]:
        return self.namespace.call(monoid.combine, [*earlier, *later])

    def folded(self, monoid: Monoid) -> list[Any]:
        """The state of each row, by halving."""
        state = self.state(monoid.lift, self.shape)
        if not self.shape[-1]:
            return self.identity(monoid)
        while state[0].shape[-1] > 1:
            even = state[0].shape[-1] // 2 * 2
            pairs = self.combine(
                monoid, [s[..., :even:2] for s in state], [s[..., 1:even:2] for s in state]
            )
            state = [self.joined([p, s[..., even:]]) for p, s in zip(pairs, state, strict=True)]
        return state

    def scanned(self, monoid: Monoid, state: list[Any]) -> list[Any]:
        """The state up to and with each position: every second by pairs, then those between."""
        length = state[0].shape[-1]
        if length < 2:
            return state
        even = length // 2 * 2
        firsts, seconds = [s[..., :even:2] for s in state], [s[..., 1::2] for s in state]
        after_pairs = self.scanned(monoid, self.combine(monoid, firsts, seconds))
        before = [s[..., : (length - 1) // 2] for s in after_pairs]
        between = self.combine(monoid, before, [s[..., 2::2] for s in state])
        return [
            self.joined([s[..., :1], self._alternating(pairs, others)])
            for s, pairs, others in zip(state, after_pairs, between, strict=True)
        ]

    def _alternating(self, a: Any, b: Any) -> Any:
        """a[0], b[0], a[1], b[1] and so on; ``a`` may have one more."""
        shared = b.shape[-1]
        both = self.namespace.module.stack([a[..., :shared], b], -1)
        return self.joined([both.reshape((*self.shape[:-1], 2 * shared)), a[..., shared:]])

    def scan(self, monoid: Monoid, start: Callable | None, against: bool) -> list[Any]:
        """The state in front of each row, then those up to and with each position.

        ``against`` goes over the positions from the last; the states come in that order.
        """
        lifted = self.state(monoid.lift, self.shape)
        if against:
            lifted = [self._flipped(s) for s in lifted]
        found = self.scanned(monoid, lifted)
        front = self.identity(monoid)
        if start is not None:
            front = self.state(start, (*self.shape[:-1], 1))
            found = self.combine(monoid, front, found)
        return [self.joined(pair) for pair in zip(front, found, strict=True)]

    def _flipped(self, array: Any) -> Any:
        return self.namespace.module.flip(array, (-1,))

    # Records.

    def _passes(self, formula: RowFormula) -> dict[Role, list[Any]]:
        for step in formula.passes:
            state: Values = {}
            if step.monoid is not None:
                state = dict(zip(step.monoid.state, self.folded(step.monoid), strict=True))
            if step.close is None:
                self.values |= state
            else:
                self.values |= zip(step.gives, self.call(step.close, **state), strict=True)
        return {
            Role.ELEMENT: self.call(formula.apply) if formula.apply else [],
            Role.ROW: self.call(formula.finish) if formula.finish else [],
        }

    def _scans(self, formula: ScanFormula) -> dict[Role, list[Any]]:
        if formula.prefix is not None:
            states = self.scan(formula.prefix, formula.prefix_start, against=False)
            exclusive = [s[..., :-1] for s in states]
            self.values |= zip(formula.prefix.state, exclusive, strict=True)
        states = self.scan(formula.monoid, formula.start, formula.against)
        behind = dict(zip(formula.monoid.state, [s[..., -1:] for s in states], strict=True))
        here = [s[..., 1:] if formula.inclusive else s[..., :-1] for s in states]
        if formula.against:
            here = [self._flipped(s) for s in here]
        at_each = dict(zip(formula.monoid.state, here, strict=True))
        return {
            Role.ELEMENT: self.call(formula.finish, **at_each),
            Role.ROW: self.call(formula.end, **behind) if formula.end else [],
        }


# Rows that ids cut: each segment is a problem of its own.


def _by_segments(problem: Problem, operands: Mapping[str, Any]) -> tuple[Any, ...]:
    places = _segment_places(problem, operands)
    like = NUMPY.wide(_lead(problem, operands))
    outputs = [
        np.zeros(problem.shape_of(o.name), _dtype(problem, o, operands, NUMPY))
        for o in problem.op.writes
    ]
    for segment, at in enumerate(places):
        values = {}
        for operand in (*problem.used(Role.ELEMENT), *problem.used(Role.ROW)):
            taken = at if operand.role is Role.ELEMENT else [segment]
            array = np.take(NUMPY.wide(operands[operand.name]), taken, axis=0)
            values[operand.symbol] = np.moveaxis(array, 0, -1)
        rows = Rows(NUMPY, problem.formula, like, (*problem.shape[1:], len(at)), problem.reverse)
        results = rows.run(values, {**problem.constants, "extent": float(len(at))})
        found = _by_role(problem, results)
        for operand, output, result in zip(problem.op.writes, outputs, found, strict=True):
            output[at if operand.role is Role.ELEMENT else [segment]] = np.moveaxis(result, -1, 0)
    return tuple(outputs)


def _segment_places(problem: Problem, operands: Mapping[str, Any]) -> list[np.ndarray]:
    """The positions of each segment, in the order of memory."""
    for operand in problem.reads:
        if operand.role is Role.IDS:
            ids = operands[operand.name]
            return [np.flatnonzero(ids == s) for s in range(problem.num_segments)]
        if operand.role is Role.OFFSETS:
            ends = operands[operand.name]
            return [np.arange(a, b) for a, b in pairwise(ends)]
    raise TypeError(f"{problem.op.name} has neither ids nor offsets")


# NumPy's own namespace.


def _exponent(v: Any) -> Any:
    e = np.where(np.isfinite(v), np.frexp(v)[1], 0.0)
    return np.where(v == 0, NOWHERE, e)


def _ldexp(v: Any, e: Any) -> Any:
    return np.ldexp(v, np.clip(e, -4000.0, 4000.0).astype(np.int32))


def _power_of_two(e: Any) -> Any:
    return np.exp2(np.clip(e, -1022.0, 1023.0))


NUMPY = Namespace(
    np,
    {
        "where": np.where,
        "isnan": np.isnan,
        "exp": np.exp,
        "log": np.log,
        "sqrt": np.sqrt,
        "absolute": np.abs,
        "maximum": np.maximum,
        "mantissa": lambda v: np.frexp(v)[0],
        "exponent": _exponent,
        "power_of_two": _power_of_two,
        "ldexp": _ldexp,
    },
)
