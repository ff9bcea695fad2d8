"""A record run on segments of whole arrays, which are runs of positions in a longer row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core.declare import Role
from .array_rows import Rows, Values
from .namespaces import Namespace
from .record import Formula, Monoid, RowFormula, ScanFormula


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
