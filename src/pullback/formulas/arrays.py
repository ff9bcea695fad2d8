"""A problem's formula run on whole arrays, in the library that holds them.

Not fast: every step of a fold is a sweep over arrays. It serves where a library is to differentiate
a formula or to transform it, and as a second opinion on what the kernels compute. What differs from
one library to another is a :class:`Namespace`; how records are walked is written here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..core.declare import Operand, Role, Type
from ..core.problem import Problem
from ..errors import UnsupportedError
from .bind import Binder
from .primitives import NOWHERE
from .record import Formula, Monoid, Pass, RowFormula, ScanFormula, names_read, parameters

Values = dict[str, Any]
# From what a pass gave to what it gives next.
Turn = Callable[[list[Any]], list[Any]]


class Namespace:
    """The arrays of one library, and how formulas see the numbers in them.

    Parameters
    ----------
    module
        The library's functions on arrays.
    primitives
        Its version of each primitive.
    """

    # Whether what is computed may be differentiated.
    differentiates = False

    def __init__(self, module: Any, primitives: Mapping[str, Callable]):
        self.module = module
        self.boolean = module.bool_ if hasattr(module, "bool_") else module.bool
        self._bind = Binder(primitives)

    def call(self, function: Callable, arguments: Sequence[Any]) -> list[Any]:
        """What a formula function returns on arrays and numbers, one value or several."""
        result = self._bind(function)(*map(self.number, arguments))
        return [self.array(v) for v in (result if isinstance(result, tuple) else (result,))]

    def formula_of(self, problem: Problem) -> Formula:
        """The record that arrays of this library are run through."""
        formula = problem.formula
        other = formula.differentiable if isinstance(formula, RowFormula) else None
        return other if other is not None and self.differentiates else formula

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

    def ascending(self, numbers: Any) -> Any:
        """The places of numbers from the smallest on; equal ones stay in order."""
        return self.module.argsort(numbers, stable=True)

    def until_rest(
        self, step: Turn, values: list[Any], moving: Sequence[int], most: int
    ) -> list[Any]:
        """``values`` after as many steps as it takes until those at ``moving`` stay."""
        for _ in range(most):
            before, values = values, step(values)
            if not any(bool(self.moved(before[k], values[k])) for k in moving):
                break
        return values

    def moved(self, before: Any, after: Any) -> Any:
        """Whether any number differs; NaN is NaN."""
        return ((before != after) & ((before == before) | (after == after))).any()


def evaluate(
    problem: Problem, operands: Mapping[str, Any], namespace: Namespace | None = None
) -> tuple[Any, ...]:
    """The outputs that a problem has, in the order of its op.

    Parameters
    ----------
    problem
        What to compute.
    operands
        Arrays by the names of the op's operands, which broadcast to the shapes of the problem.
    namespace
        The library of the arrays; NumPy's if it is not said.
    """
    run = _by_segments if problem.is_segmented else _by_rows
    if namespace is None or namespace is NUMPY:
        with np.errstate(all="ignore"):
            return run(problem, operands, NUMPY)
    return run(problem, operands, namespace)


def _by_rows(
    problem: Problem, operands: Mapping[str, Any], namespace: Namespace
) -> tuple[Any, ...]:
    order = _rows_last(problem)
    count = math.prod(problem.shape[d] for d in order[: len(order) - len(problem.axes)])
    values: dict[Role, Values] = {Role.ELEMENT: {}, Role.ROW: {}}
    for operand, array in _used(problem, operands, namespace):
        length = problem.extent if operand.role is Role.ELEMENT else 1
        turned = namespace.transposed(array, order)
        values[operand.role][operand.symbol] = turned.reshape((count, length))
    like = namespace.wide(_lead(problem, operands))
    formula = namespace.formula_of(problem)
    rows = Rows(namespace, formula, like, (count, problem.extent), problem.reverse)
    results = rows.run(values[Role.ELEMENT], values[Role.ROW], problem.constants)
    back = [order.index(d) for d in range(len(order))]
    finished = []
    for operand, result in _outputs(problem, results):
        shape = problem.shape_of(operand.name)
        array = namespace.transposed(result.reshape(tuple(shape[d] for d in order)), back)
        finished.append(namespace.cast(array, _dtype(problem, operand, operands, namespace)))
    return tuple(finished)


def _used(
    problem: Problem, operands: Mapping[str, Any], namespace: Namespace
) -> Iterator[tuple[Operand, Any]]:
    """The operands that the formula reads, in their full shapes and wide."""
    for operand in (*problem.used(Role.ELEMENT), *problem.used(Role.ROW)):
        array = namespace.wide(operands[operand.name])
        yield operand, namespace.module.broadcast_to(array, problem.shape_of(operand.name))


def _rows_last(problem: Problem) -> list[int]:
    """The dimensions with the op's axes at the end."""
    rest = [d for d in range(len(problem.shape)) if d not in problem.axes]
    return [*rest, *problem.axes]


def _outputs(problem: Problem, results: Mapping[Role, list[Any]]) -> Iterator[tuple[Operand, Any]]:
    """The outputs there are, each with what the formula gave for it by position or by row.

    A record gives those, or all that the op may have.
    """
    made = problem.writes
    if sum(map(len, results.values())) != len(made):
        made = problem.op.writes
    left = {role: iter(values) for role, values in results.items()}
    for operand in made:
        result = next(left[operand.role])
        if operand in problem.writes:
            yield operand, result


def _dtype(
    problem: Problem, output: Operand, operands: Mapping[str, Any], namespace: Namespace
) -> Any:
    """The type that an output is declared with."""
    if output.type is Type.BOOL:
        return namespace.boolean
    if output.type is Type.INDEX:
        return namespace.module.int64
    if output.type is Type.STATE:
        return namespace.module.float64
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
        self.rows: Values = {}  # where what is known of rows has another shape

    def run(
        self, elements: Values, rows: Values, constants: Mapping[str, float]
    ) -> dict[Role, list[Any]]:
        """The outputs by role, in the order of memory.

        Operands, by position and by row, are called as formulas call them. Those with one element
        for every row have length 1 in the last dimension, and so do these outputs.
        """
        forward = {n: self.turned(v) for n, v in elements.items()}
        self.values = {**forward, **self._places(), **self._befores(forward), **rows, **constants}
        if isinstance(self.formula, RowFormula):
            results = self._passes(self.formula)
        else:
            results = self._scans(self.formula)
        return {
            Role.ELEMENT: [self.turned(v) for v in self.spread(results[Role.ELEMENT], self.shape)],
            Role.ROW: self.spread(results[Role.ROW], self.of_rows),
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
        return self.call_with({**self.values, **more}, function)

    def call_on_rows(self, function: Callable, **more: Any) -> list[Any]:
        """A formula function on what it asks for, all of which is the same along a row."""
        return self.call(function, **more)

    def give(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Let what follows know values of each row by name."""
        self.values |= zip(names, values, strict=True)

    def call_with(self, known: Values, function: Callable) -> list[Any]:
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
        borders = dict(self.formula.before)
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
        return self.joined([both.reshape((*a.shape[:-1], 2 * shared)), a[..., shared:]])

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
            found = self._repeated(step) if step.again else self._passed(step)
            self.give(step.names, found)
        return {
            Role.ELEMENT: self.call(formula.apply) if formula.apply else [],
            Role.ROW: self.call_on_rows(formula.finish) if formula.finish else [],
        }

    def _passed(self, step: Pass) -> list[Any]:
        """What a pass gives."""
        state: list[Any] = []
        if step.monoid is not None:
            state = self.folded(step.monoid)
            if step.start is not None:
                front = self.call_on_rows(step.start)
                state = self.namespace.call(step.monoid.combine, [*front, *state])
        if step.close is None:
            return state
        names = step.monoid.state if step.monoid is not None else ()
        return self.call_on_rows(step.close, **dict(zip(names, state, strict=True)))

    def _repeated(self, step: Pass) -> list[Any]:
        """What a pass gives that is taken again until it comes to rest."""
        again = step.again
        assert again is not None

        def once(values: list[Any]) -> list[Any]:
            self.give(step.gives, values)
            return self._alike(self._passed(step))

        started = self._alike(self.call_on_rows(again.start))
        places = [step.gives.index(n) for n in again.moving]
        return self.namespace.until_rest(once, started, places, again.most)

    def _alike(self, values: Sequence[Any]) -> list[Any]:
        """Values of rows as arrays of one shape and type."""
        return [self.namespace.cast(v, self.like.dtype) for v in self.spread(values, self.of_rows)]

    @property
    def of_rows(self) -> tuple[int, ...]:
        """The shape of what there is one of for every row."""
        return (*self.shape[:-1], 1)

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


# Rows that ids or offsets cut into segments.


def _by_segments(
    problem: Problem, operands: Mapping[str, Any], namespace: Namespace
) -> tuple[Any, ...]:
    if isinstance(problem.formula, ScanFormula):
        raise UnsupportedError(f"{problem.op.name}: a segment op folds rows, it does not scan them")
    count = problem.num_segments
    segment = _segment_of_each(problem, operands, namespace)
    order = namespace.ascending(segment)
    columns = list(range(1, len(problem.shape)))
    inside = segment[order] < count
    values: dict[Role, Values] = {Role.ELEMENT: {}, Role.ROW: {}}
    for operand, array in _used(problem, operands, namespace):
        last = namespace.transposed(array, [*columns, 0])
        if operand.role is Role.ELEMENT:
            # What belongs to no segment is a segment of ones: no derivative is NaN because of it.
            last = namespace.module.where(inside, last[..., order], namespace.full(last, 1, ()))
        values[operand.role][operand.symbol] = last
    like = namespace.wide(_lead(problem, operands))
    shape = (*problem.shape[1:], problem.num_inputs)
    formula = namespace.formula_of(problem)
    segments = Segments(namespace, formula, like, shape, segment[order], count)
    results = segments.run(values[Role.ELEMENT], values[Role.ROW], problem.constants)
    back = namespace.ascending(order)
    finished = []
    for operand, result in _outputs(problem, results):
        if operand.role is Role.ELEMENT:
            result = namespace.module.where(inside, result, namespace.full(result, 0, ()))
            result = result[..., back]
        array = namespace.transposed(result, [len(columns), *range(len(columns))])
        finished.append(namespace.cast(array, _dtype(problem, operand, operands, namespace)))
    return tuple(finished)


def _segment_of_each(problem: Problem, operands: Mapping[str, Any], namespace: Namespace) -> Any:
    """The segment of each row; their number stands for none."""
    count, module = problem.num_segments, namespace.module
    cut = operands[problem.cut_by.name]
    if problem.cut_by.role is Role.OFFSETS:
        places = namespace.counting(cut, problem.num_inputs)
        cut = module.searchsorted(cut, places, side="right") - 1
    inside = (cut >= 0) & (cut < count)
    return module.where(inside, cut, namespace.full(cut, count, ()))


class Segments(Rows):
    """A formula and the segments it is run on, one behind the other along the last dimension.

    Segments with nothing in them have the state that is the identity. Behind those there are is one
    of the positions that belong to none.

    Parameters
    ----------
    namespace, formula, like, shape
        As in :class:`Rows`.
    segment
        The segment of each position, ascending.
    count
        How many segments there are.
    """

    def __init__(
        self,
        namespace: Namespace,
        formula: Formula,
        like: Any,
        shape: tuple[int, ...],
        segment: Any,
        count: int,
    ):
        super().__init__(namespace, formula, like, shape, reverse=False)
        self.segment, self.count = segment, count
        numbers = namespace.counting(segment, count + 2)
        borders = namespace.module.searchsorted(segment, numbers)
        self.begins, self.ends = borders[:-1], borders[1:]
        self.place = namespace.counting(borders, shape[-1]) - self.at_each(self.begins)
        self.first = self.place == 0
        self.last = self.place == self.at_each(self.ends - self.begins) - 1

    def run(
        self, elements: Values, rows: Values, constants: Mapping[str, float]
    ) -> dict[Role, list[Any]]:
        """The outputs by role; of operands and outputs by row there is one for each segment."""
        none = {n: self.full(1.0, (*v.shape[:-1], 1)) for n, v in rows.items()}
        self.rows = {**constants, "extent": self._numbers(self.ends - self.begins)}
        self.rows |= {n: self.joined([v, none[n]]) for n, v in rows.items()}
        self.values = {**elements, **self._places(), **self._befores(elements), **constants}
        self.values |= {n: self.at_each(self.rows[n]) for n in ("extent", *rows)}
        if isinstance(self.formula, RowFormula):
            results = self._passes(self.formula)
        else:
            results = self._scans(self.formula)
        return {
            Role.ELEMENT: self.spread(results[Role.ELEMENT], self.shape),
            Role.ROW: [v[..., : self.count] for v in self.spread(results[Role.ROW], self.of_rows)],
        }

    @property
    def of_rows(self) -> tuple[int, ...]:
        return (*self.shape[:-1], self.count + 1)

    def at_each(self, value: Any) -> Any:
        """What is known of segments, at each of their positions."""
        return value[..., self.segment] if hasattr(value, "dtype") else value

    def call_on_rows(self, function: Callable, **more: Any) -> list[Any]:
        return self.call_with({**self.rows, **more}, function)

    def give(self, names: Sequence[str], values: Sequence[Any]) -> None:
        self.rows |= zip(names, values, strict=True)
        self.values |= zip(names, map(self.at_each, values), strict=True)

    def _numbers(self, integers: Any) -> Any:
        return self.namespace.cast(integers, self.like.dtype)

    def _places(self) -> Values:
        return {"index": self._numbers(self.place), "first": self.first}

    def _befores(self, operands: Values) -> Values:
        borders = {f"{n}_before": v for n, v in self.formula.before}
        found = super()._befores(operands)
        for name, value in found.items():
            border = self.namespace.full(value, borders.get(name, 0.0), ())
            found[name] = self.namespace.module.where(self.first, border, value)
        return found

    def combine(self, monoid: Monoid, earlier: Sequence[Any], later: Sequence[Any]) -> list[Any]:
        """States with a condition behind them, that a segment begins in what they are of."""
        (*before, begun), (*here, begins) = earlier, later
        where = self.namespace.module.where
        kept = [
            where(begins, self.full(v, ()), s) for v, s in zip(monoid.identity, before, strict=True)
        ]
        return [*super().combine(monoid, kept, here), begun | begins]

    def folded(self, monoid: Monoid) -> list[Any]:
        """The state of each segment: what a scan has at its end."""
        nothing = [self.full(v, (*self.shape[:-1], 1)) for v in monoid.identity]
        lifted = self.state(monoid.lift, self.shape)
        *states, _ = self.scanned(monoid, [*lifted, self.first])
        # In front of all positions is the identity, which is at the end of segments without any.
        at = self.namespace.module.where(self.ends > self.begins, self.ends, 0)
        return [self.joined([n, s])[..., at] for n, s in zip(nothing, states, strict=True)]

    def _scans(self, formula: ScanFormula) -> dict[Role, list[Any]]:
        """A record with nothing in front of a segment or behind it."""
        for monoid, against in ((formula.prefix, False), (formula.monoid, formula.against)):
            if monoid is not None:
                inclusive = formula.inclusive and monoid is formula.monoid
                states = self._up_to_each(monoid, against, inclusive)
                self.values |= zip(monoid.state, states, strict=True)
        return {Role.ELEMENT: self.call(formula.finish), Role.ROW: []}

    def _up_to_each(self, monoid: Monoid, against: bool, inclusive: bool) -> list[Any]:
        """The state of what a segment has before each position; with the position, if asked."""
        turned = self._flipped if against else lambda array: array
        begins = turned(self.last if against else self.first)
        lifted = [turned(s) for s in self.state(monoid.lift, self.shape)]
        *found, _ = self.scanned(monoid, [*lifted, begins])
        if not inclusive:
            front, where = self.identity(monoid), self.namespace.module.where
            before = [self.joined([f, s])[..., :-1] for f, s in zip(front, found, strict=True)]
            pairs = zip(monoid.identity, before, strict=True)
            found = [where(begins, self.full(v, ()), s) for v, s in pairs]
        return [turned(s) for s in found]


# NumPy's own namespace.


def _exponent(v: Any) -> Any:
    e = np.where(np.isfinite(v), np.frexp(v)[1], 0.0)
    return np.where(v == 0, NOWHERE, e)


def _ldexp(v: Any, e: Any) -> Any:
    return np.ldexp(v, np.clip(e, -4000.0, 4000.0).astype(np.int32))


def _power_of_two(e: Any) -> Any:
    return np.exp2(np.clip(e, -1022.0, 1023.0))


class _NumPy(Namespace):
    def ascending(self, numbers: Any) -> Any:
        return np.argsort(numbers, kind="stable")


NUMPY = _NumPy(
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
