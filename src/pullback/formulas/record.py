"""What a formula is: the records that schedules consume.

Parameters of the functions in a record are found by name. A name is an operand (``x``, ``y``,
``dy``, ``a``, ``b``), an operand at the position before in forward order (``y_before``), a
parameter of the problem (``extent``, ``correction``, ``weight``), the position along the axis
(``index``), or something an earlier step of the same record gives.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Monoid:
    """An associative fold: ``lift`` makes a state of an element, ``combine`` joins two states.

    ``combine`` takes the state that comes first and then the one that comes later, flattened. A
    monoid that ``selects`` gives back one of the two, so that a state none of many elements
    changes is their state too.
    """

    lift: Callable
    combine: Callable
    identity: tuple[float, ...]
    state: tuple[str, ...]
    selects: bool = False


@dataclass(frozen=True)
class Pass:
    """One sweep over the axis: fold it, then close the state into named values for what follows.

    Without a monoid nothing is read and ``close`` only prepares values that are constant along
    the axis. Without ``close`` the state itself is what the pass gives.
    """

    monoid: Monoid | None = None
    close: Callable | None = None
    gives: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return self.gives if self.close else self.monoid.state if self.monoid else ()


@dataclass(frozen=True)
class RowFormula:
    """Passes over the axis, then either one value per row or one value per element.

    ``finish`` (per row) or ``apply`` (per element) returns one value per output. ``narrow`` gives
    the same bits for elements narrower than float64, if it is computed in float64: it leaves out
    what keeps squares and sums in range.
    """

    passes: tuple[Pass, ...] = ()
    finish: Callable | None = None
    apply: Callable | None = None
    narrow: RowFormula | None = None


@dataclass(frozen=True)
class Quiet:
    """What a scan comes down to over elements for none of which ``unless`` holds.

    Their output is 0 and ``lift`` is their part of the scan: a shorter way to the same numbers.
    """

    unless: Callable
    lift: Callable


@dataclass(frozen=True)
class ScanFormula:
    """A scan along the axis, with an optional scan the other way that runs before it.

    Attributes
    ----------
    monoid
        What is scanned.
    finish
        Makes the output of the element's operands and the scanned state.
    inclusive
        Whether ``finish`` sees the state with the element's own part or without it.
    against
        Whether the scan runs against the op's forward direction.
    prefix
        A scan in forward direction; its exclusive state is known to ``monoid.lift`` and
        ``finish``.
    quiet
        A shorter way over elements where nothing happens, which a schedule may take.
    """

    monoid: Monoid
    finish: Callable
    inclusive: bool
    against: bool
    prefix: Monoid | None = None
    quiet: Quiet | None = None


@dataclass(frozen=True)
class SegmentFormula:
    """Rows summed by id (forward), or gathered by id (backward): no arithmetic but the sum."""

    monoid: Monoid | None = None


Formula = RowFormula | ScanFormula | SegmentFormula


def in_float64(formula: Formula, element: str) -> Formula:
    """What a schedule that computes in float64 takes for operands of an element type."""
    if isinstance(formula, RowFormula) and formula.narrow and element != "f64":
        return formula.narrow
    return formula


def functions_of(formula: Formula) -> tuple[Callable, ...]:
    """Every function a formula is made of, in a fixed order."""
    found: list[Callable | None] = []
    if isinstance(formula, RowFormula):
        for step in formula.passes:
            found += [*_monoid_functions(step.monoid), step.close]
        found += [formula.finish, formula.apply]
        found += functions_of(formula.narrow) if formula.narrow else ()
    elif isinstance(formula, ScanFormula):
        found += _monoid_functions(formula.prefix) + _monoid_functions(formula.monoid)
        found += [formula.finish]
        found += [formula.quiet.unless, formula.quiet.lift] if formula.quiet else []
    else:
        found += _monoid_functions(formula.monoid)
    return tuple(f for f in found if f is not None)


def _monoid_functions(monoid: Monoid | None) -> list[Callable | None]:
    return [monoid.lift, monoid.combine] if monoid else []


def names_called(function: Callable) -> set[str]:
    """Names a formula function refers to, itself or through functions it calls."""
    found: set[str] = set()
    waiting = [function]
    while waiting:
        called = waiting.pop()
        for name in set(called.__code__.co_names) - found:
            found.add(name)
            value = called.__globals__.get(name)
            if isinstance(value, types.FunctionType):
                waiting.append(value)
    return found


def specialise(function: Callable, **names: Callable) -> Callable:
    """The same function with some of the names it calls bound to other functions."""
    bound = types.FunctionType(
        function.__code__, {**function.__globals__, **names}, function.__name__
    )
    suffix = "_".join(f.__name__ for f in names.values())
    bound.__qualname__ = bound.__name__ = f"{function.__name__}_{suffix}"
    return bound
