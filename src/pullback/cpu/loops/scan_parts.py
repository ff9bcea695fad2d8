"""What both scan schedules are put together from."""

from __future__ import annotations

from dataclasses import replace

from ...formulas.record import Quiet, ScanFormula
from ..codegen.bind import any_element, element_emitter, per_element, per_row
from ..codegen.elementary import primitives_for, unguarded
from ..codegen.fold import Fold, with_constants
from ..codegen.neighbours import neighbours_of
from ..codegen.operands import Operands
from ..codegen.passes import state_in_front
from ..codegen.watch import Watch
from ..words import SCAN_BLOCK as SCAN_BLOCK


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


class Arithmetic:
    """The fold of a scan and its ``finish``, bound to primitives."""

    def __init__(self, formula: ScanFormula, primitives, operands: Operands, known, held):
        full, row = operands.full, operands.row
        self.fold = fold = Fold(formula.monoid, primitives, full, row, known, start=formula.start)
        constants, after = {**held, **fold.constants}, (*known, *fold.state)
        outputs = len(operands.outputs) - len(operands.ends)
        self.finish = per_element(
            formula.finish, primitives, full, row, after, outputs, constants=constants
        )
        self.emit_finish = element_emitter(formula.finish, primitives, full, row, after, constants)


class ScanParts:
    """A scan formula bound to an element type.

    ``plain`` binds it without scaling; the kernel then watches whether that was right. The
    arithmetic is ``guarded``, if it has guards; only then is there another, ``unguarded``.
    """

    def __init__(self, formula: ScanFormula, element: str, operands: Operands, plain: bool):
        if formula.prefix and not formula.against:
            raise TypeError("a scan with a prefix must run against it")
        full, row = operands.full, operands.row
        primitives = primitives_for(element, plain)
        self.prefix = None
        if formula.prefix:
            begin = formula.prefix_start
            self.prefix = Fold(formula.prefix, primitives, full, row, start=begin)
            self.prefix_start = state_in_front(begin, formula.prefix, self.prefix, row, plain)
        self.selects = formula.prefix is not None and formula.prefix.selects
        known = ("", *(self.prefix.state if self.prefix else ()))
        held = self.prefix.constants if self.prefix else {}
        self.guarded = Arithmetic(formula, primitives, operands, known, held)
        self.fold, self.finish = self.guarded.fold, self.guarded.finish
        self.unguarded = None
        if formula.guarded:
            self.unguarded = Arithmetic(formula, unguarded(primitives), operands, known, held)
            if self.unguarded.fold.state != self.fold.state:
                raise TypeError("a guarded fold carries what an unguarded one does")
        # The product without scaling, where it is tried so.
        self.moderate, self.element = None, element
        if formula.running_product and formula.start is None:
            self.moderate = Fold(formula.monoid, primitives_for(element, plain=True), full, row)
        self.start = state_in_front(formula.start, formula.monoid, self.fold, row, plain)
        self.inclusive = formula.inclusive
        self.watch = Watch(element, full, row, formula.scaled if plain else None)
        self.neighbours = neighbours_of(formula, operands)
        self.quiet = QuietParts(formula, primitives, self.fold, full, row, known)
        self.end = None
        if formula.end:
            # A state may be written as float64, whatever the elements are.
            of_states = primitives_for("f64", plain)
            state, held = self.fold.state, self.fold.constants
            self.end = per_row(formula.end, of_states, row, (), state, len(operands.ends), held)
