"""What both scan schedules are put together from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...formulas.record import Quiet, ScanFormula
from ..codegen.bind import (
    Fold,
    any_element,
    element_emitter,
    per_element,
    per_row,
    with_constants,
)
from ..codegen.elementary import primitives_for
from ..codegen.jit import inner
from ..codegen.operands import Operands
from ..codegen.vectors import concatenate, no_vectors
from ..codegen.watch import Watch

# Elements scanned from the identity before the carry of what came before is put in front.
SCAN_BLOCK = 512


@dataclass(frozen=True)
class Neighbour:
    """An operand one position before in forward order.

    ``shift`` is where the loops find it: at the position before or, where they run against the
    forward direction, at the next one. ``border`` is what it is where there is none.
    """

    shift: int
    border: float


def neighbours_of(formula: ScanFormula, operands: Operands) -> dict[int, Neighbour]:
    """The full operands that are read beside a position, by their place."""
    shift = 1 if formula.against and formula.prefix is None else -1
    borders = dict(formula.before)
    return {
        o: Neighbour(shift, borders.get(name.removesuffix("_before"), 0.0))
        for o, name in enumerate(operands.full)
        if name.endswith("_before")
    }


class QuietParts:
    """The shorter way over chunks where nothing happens, bound like the scan itself.

    Without one, ``possible`` is false and the long way stands in for the pieces.
    """

    def __init__(self, formula: ScanFormula, primitives, fold: Fold, full, row, known):
        quiet = formula.quiet
        self.possible = quiet is not None
        if quiet is None:
            quiet = Quiet(unless=_always, lift=formula.monoid.lift)
        monoid = replace(formula.monoid, lift=quiet.lift)
        self.fold = Fold(monoid, primitives, full, row, known)
        self.wakes = any_element(quiet.unless, primitives, full, row, known)
        self.emit_wakes = element_emitter(quiet.unless, primitives, full, row, known)
        self.widened = with_constants(self.fold, fold)


def _always(index):
    return index == index


class ScanParts:
    """A scan formula bound to an element type.

    ``plain`` binds it without scaling; the kernel then watches whether that was right.
    """

    def __init__(self, formula: ScanFormula, element: str, operands: Operands, plain: bool):
        full, row = operands.full, operands.row
        primitives = primitives_for(element, plain)
        self.prefix = Fold(formula.prefix, primitives, full, row) if formula.prefix else None
        self.selects = formula.prefix is not None and formula.prefix.selects
        known = ("", *(self.prefix.state if self.prefix else ()))
        self.fold = Fold(formula.monoid, primitives, full, row, known)
        constants = {**(self.prefix.constants if self.prefix else {}), **self.fold.constants}
        after = (*known, *self.fold.state)
        outputs = len(operands.outputs) - len(operands.ends)
        self.finish = per_element(
            formula.finish, primitives, full, row, after, outputs, constants=constants
        )
        self.emit_finish = element_emitter(formula.finish, primitives, full, row, after, constants)
        self.extended = concatenate(len(known), self.fold.size)
        self.inclusive = formula.inclusive
        self.watch = Watch(element, full, row, formula.scaled if plain else None)
        self.neighbours = neighbours_of(formula, operands)
        self.quiet = QuietParts(formula, primitives, self.fold, full, row, known)
        if formula.prefix and (formula.start or formula.end):
            raise TypeError("a scan with a prefix has neither a start nor an end")
        self.start = self._start(formula, element, row)
        self.end = None
        if formula.end:
            state, held = self.fold.state, self.fold.constants
            self.end = per_row(formula.end, element, row, (), state, len(operands.ends), held)

    def _start(self, formula: ScanFormula, element: str, row):
        """``start(const, row)``: the state in front of a row."""
        fold, identity = self.fold, self.fold.identity
        if formula.start is None:

            @inner
            def nothing(const, row):
                return identity()

            return nothing
        size = len(formula.monoid.state)
        places = [formula.monoid.state.index(name) for name in fold.state]
        begin = per_row(formula.start, element, row, (), (), size, picked=places)

        @inner
        def begun(const, row):
            return begin(const, row, no_vectors(), no_vectors())

        return begun
