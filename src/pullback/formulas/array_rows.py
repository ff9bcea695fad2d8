"""A record run on rows that are whole arrays: every step of a fold is a sweep over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core.declare import Role
from .namespaces import Namespace
from .record import Formula, Monoid, Pass, RowFormula, ScanFormula, names_read, parameters

Values = dict[str, Any]


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
