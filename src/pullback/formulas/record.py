"""What a formula is: the records that schedules consume.

Parameters of the functions in a record are found by name. A name is

- an operand (``x``, ``dy``): its element at this position or, where the op declares one for each
  row, the row's; a bool operand is a condition, as a comparison gives it;
- an operand one position before in forward scan order (``y_before``); in front of the first
  position it is the number that the record's ``before`` gives for it, 0 if it gives none;
- a parameter of the problem (``correction``, ``weight``), or ``extent``, the elements of a row;
- ``index``, the position in memory order, from 0;
- ``first``, the condition that no position comes before this one in forward scan order;
- or something an earlier step of the same record gives.

A row of a segment op is a segment: ``extent`` counts what it has, ``index`` is a place within it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Away:
    """What a lift comes to away from the position that an operand of the row names.

    ``lift`` gives the components of the state in ``state``, the same numbers as that of the monoid;
    the others are the identity there, and joining that changes none of their bits.
    """

    position: str
    lift: Callable
    state: tuple[str, ...]


@dataclass(frozen=True)
class Stretch:
    """A shorter way over some elements one after the other, tested once behind them.

    ``begin`` makes what is ``carried`` along of the state in front, and ``join`` takes in what
    ``lift`` makes of an element; ``nothing`` is what changes nothing. ``look`` notes what the tests
    ask for: after at most ``every`` elements, and after the last of at most ``most``.

    Then ``end`` makes a state of the one in front and of what is carried, where ``holds`` of that,
    as it usually does; else ``end_far``, where ``far_holds`` of it or ``settled`` of the state in
    front. Else the elements are combined, and ``brought_near`` makes a state of theirs that is like
    those of ``end``. Up to eight of these, or identities, ``meet`` joins, and ``brought_near`` is
    made of the last. The states need not be those that ``combine`` gives, but stand for the same
    numbers.
    """

    carried: tuple[str, ...]
    lift: Callable
    nothing: tuple[float, ...]
    begin: Callable
    join: Callable
    look: Callable
    every: int
    most: int
    holds: Callable
    end: Callable
    far_holds: Callable
    settled: Callable
    end_far: Callable
    meet: Callable
    brought_near: Callable

    @property
    def functions(self) -> list[Callable]:
        """All of them."""
        return [
            self.lift, self.begin, self.join, self.look, self.holds, self.end, self.far_holds,
            self.settled, self.end_far, self.meet, self.brought_near,
        ]  # fmt: skip


@dataclass(frozen=True)
class Monoid:
    """An associative fold: ``lift`` makes a state of an element, ``combine`` joins two states.

    ``combine`` takes the state that comes first and then the one that comes later, flattened. A
    monoid that ``selects`` gives back one of the two, so that a state none of many elements
    changes is their state too. Where ``counts`` holds for none of some elements, their states are
    the identity, and a schedule may pass them over. ``brief`` may stand for ``combine`` with the
    states of up to ``briefly`` elements, one after the other, before the next is combined: in the
    end the same bits for less. Where ``brief_holds`` of the state that ``brief`` gives with the
    next, ``combine`` gives the same bits. A ``stretch`` is a shorter way over many. The first
    ``sums`` components of a state ``combine`` adds up, each by itself, so that a schedule may carry
    them in more digits. ``away`` says what is left of the lift of most elements.
    """

    lift: Callable
    combine: Callable
    identity: tuple[float, ...]
    state: tuple[str, ...]
    selects: bool = False
    counts: Callable | None = None
    brief: Callable | None = None
    briefly: int = 0
    brief_holds: Callable | None = None
    stretch: Stretch | None = None
    sums: int = 0
    away: Away | None = None


@dataclass(frozen=True)
class Again:
    """That a pass is taken again and again, until what it gives comes to rest.

    Its functions know what it gave the time before, by the names in ``gives``. A time that gives
    ``moving`` as they were before is a row's last. What such a row is given should it be taken
    once more, because others beside it move, must be the same.

    Attributes
    ----------
    start
        What the pass is said to have given before the first time.
    most
        Times in which every row comes to rest; beside the formula stands why.
    moving
        Those of the values by which rest is told.
    """

    start: Callable
    most: int
    moving: tuple[str, ...]


@dataclass(frozen=True)
class Pass:
    """One sweep over the axis: fold it, then close the state into named values for what follows.

    Elements are joined in an order that the extent fixes but that is not theirs: the monoid of a
    pass must be commutative.

    Without a monoid nothing is read and ``close`` only prepares values that are constant along
    the axis. Without ``close`` the state itself is what the pass gives. ``start`` makes the state
    in front of a row, of operands with one element for each row; without it it is the identity.
    One that is taken ``again`` has a monoid and ``close``.
    """

    monoid: Monoid | None = None
    close: Callable | None = None
    gives: tuple[str, ...] = ()
    start: Callable | None = None
    again: Again | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return self.gives if self.close else self.monoid.state if self.monoid else ()


@dataclass(frozen=True)
class Usual:
    """A shorter record for rows of which ``unless`` does not hold, with the same bits.

    ``unless`` asks for what the passes of that record give.
    """

    formula: RowFormula
    unless: Callable


@dataclass(frozen=True)
class RowFormula:
    """Passes over the axis, then either one value per row or one value per element.

    ``finish`` (per row) or ``apply`` (per element) returns one value per output.

    Attributes
    ----------
    narrow
        Stands in for elements narrower than float64: it leaves out what keeps float64 in range, and
        computed in float64 gives the same bits.
    in_doubles
        Stands in for elements narrower than float64 where arithmetic is float64, as on the CPU:
        whose range leaves room for what would leave that of a narrower type.
    in_singles
        Stand in where arithmetic is float32, as on GPUs, by the name of the element type: what they
        compute stays within its range.
    differentiable
        Stands in where a library differentiates the record on its arrays: arithmetic alone, with
        the derivatives of the op, where this one chooses among cases by what elements are.
    online
        Stands in where a row is too long to be kept for the next pass: the same values by fewer
        looks at the elements, rounded otherwise.
    copies
        ``apply`` gives back a single operand as it is, so that bits may be moved instead.
    heavy
        ``apply`` calls exp or log, which take the registers that unrolling would want.
    before
        What ``NAME_before`` is in front of the first position, by ``NAME``.
    lifts_singles
        Of a record that gives states alone: a lift may be computed in float32 as one before an
        ``apply`` is.
    counts
        Where it holds for none of some elements, ``apply`` gives each of them 0, and a schedule may
        write that at once. A NaN must count.
    from_lifted
        ``apply`` by what the last pass lifted of the element, a single number called ``lifted``:
        the same arithmetic, of which a schedule that kept that number need not do all.
    usual
        A shorter way for most rows, which a schedule may try first.
    seldom
        Where it does not hold of an element, that changes no state, and ``apply`` gives it 0; of
        most rows it holds for few elements, which a schedule may look for first.
    of_none
        A parameter and a record, which has the same bits where that is the state of the only pass
        without elements: a schedule need not find out which rows have none.
    """

    passes: tuple[Pass, ...] = ()
    finish: Callable | None = None
    apply: Callable | None = None
    narrow: RowFormula | None = None
    in_doubles: RowFormula | None = None
    in_singles: tuple[tuple[str, RowFormula], ...] = ()
    differentiable: RowFormula | ScanFormula | None = None
    online: RowFormula | None = None
    copies: bool = False
    heavy: bool = False
    before: tuple[tuple[str, float], ...] = ()
    lifts_singles: bool = False
    counts: Callable | None = None
    from_lifted: Callable | None = None
    usual: Usual | None = None
    seldom: Callable | None = None
    of_none: tuple[str, RowFormula] | None = None


@dataclass(frozen=True)
class Quiet:
    """What a scan comes down to over elements for none of which ``unless`` holds.

    Their output is 0 and ``lift`` is their part of the scan: a shorter way to the same numbers.
    """

    unless: Callable
    lift: Callable


@dataclass(frozen=True)
class Scaled:
    """Names of the operands a scaled scan multiplies.

    While they stay moderate, plain arithmetic has the bits of the scaled one, and a schedule may
    try it first.
    """

    factor: str
    gradient: str


@dataclass(frozen=True)
class ScanFormula:
    """A scan along the axis, with an optional scan the other way that runs before it.

    Attributes
    ----------
    monoid
        What is scanned.
    finish
        Makes the outputs with an element for every position, of the element's operands and the
        scanned state.
    inclusive
        Whether ``finish`` sees the state with the element's own part or without it.
    against
        Whether the scan runs against the op's forward direction.
    prefix
        A scan in forward direction; its exclusive state is known to ``monoid.lift`` and
        ``finish``.
    start, prefix_start
        Make the state in front of a row, of operands with one element for each row; without them
        it is the identity.
    end
        Makes the outputs with one element for each row, of the state behind the whole row.
    before
        What ``NAME_before`` is in front of the first position, by ``NAME``.
    quiet
        A shorter way over elements where nothing happens, which a schedule may take.
    scaled
        Whose products are scaled, if any are.
    guarded
        Products are guarded (:data:`.folds.GUARDED`). Without the guards all bits are the same,
        unless a NaN shows in an output or in the state behind the elements scanned: a schedule
        may try that first.
    in_doubles
        Stands in for elements narrower than float64 where arithmetic is float64, as on the CPU.
    running_product
        The state is the mantissa and the exponent of a product of elements, and ``finish`` their
        ``ldexp``: a schedule may multiply some elements as they are, while nothing leaves the range
        of a float64.
    """

    monoid: Monoid
    finish: Callable
    inclusive: bool
    against: bool
    prefix: Monoid | None = None
    start: Callable | None = None
    prefix_start: Callable | None = None
    end: Callable | None = None
    before: tuple[tuple[str, float], ...] = ()
    quiet: Quiet | None = None
    scaled: Scaled | None = None
    guarded: bool = False
    in_doubles: RowFormula | None = None
    running_product: bool = False


Formula = RowFormula | ScanFormula
# What ``from_lifted`` calls the number that the last pass lifted.
LIFTED = "lifted"


def in_doubles(formula: Formula, element: str) -> Formula:
    """The record for elements of a type that are computed in float64."""
    return formula if element == "f64" else formula.in_doubles or formula


def in_singles(formula: Formula, element: str) -> Formula | None:
    """The record that stays within float32 for elements of a type, if a formula has one."""
    return dict(formula.in_singles).get(element) if isinstance(formula, RowFormula) else None


def functions_of(formula: Formula, stretches: bool = True) -> tuple[Callable, ...]:
    """Every function a formula is made of, in a fixed order; not of stretches, if not asked for."""
    found: list[Callable | None] = []
    if isinstance(formula, RowFormula):
        for step in formula.passes:
            found += [*_monoid_functions(step.monoid, stretches), step.close, step.start]
            found += [step.again.start] if step.again else []
        found += [formula.finish, formula.apply, formula.counts, formula.from_lifted]
        found += [formula.seldom]
        if formula.usual:
            found += [*functions_of(formula.usual.formula, stretches), formula.usual.unless]
    else:
        found += _monoid_functions(formula.prefix, stretches)
        found += _monoid_functions(formula.monoid, stretches)
        found += [formula.finish, formula.prefix_start, formula.start, formula.end]
        found += [formula.quiet.unless, formula.quiet.lift] if formula.quiet else []
    return tuple(f for f in found if f is not None)


def names_read(formula: Formula) -> frozenset[str]:
    """Every name that a formula's functions ask for; a stretch asks for no others."""
    asked = (n for f in functions_of(formula, stretches=False) for n in parameters(f))
    return frozenset(asked) - {LIFTED}


def parameters(function: Callable) -> tuple[str, ...]:
    """The names of a formula function's parameters."""
    code = function.__code__
    return code.co_varnames[: code.co_argcount]


def looks_back(formula: Formula) -> bool:
    """Whether a position asks for what lies before it where a loop has been already.

    The loops of a scan against the forward direction come to ``NAME_before`` later.
    """
    if isinstance(formula, ScanFormula) and formula.against and formula.prefix is None:
        return False
    return reads_neighbours(formula)


def reads_neighbours(formula: Formula) -> bool:
    """Whether a position asks for what lies before it."""
    return any(name.endswith("_before") for name in names_read(formula))


def is_pointwise(formula: Formula) -> bool:
    """Whether the elements of a row depend neither on each other nor on their place in it."""
    return (
        isinstance(formula, RowFormula)
        and formula.finish is None
        and all(step.monoid is None for step in formula.passes)
        and not {"index", "first"} & names_read(formula)
        and not reads_neighbours(formula)
    )


def asks_of_rows(formula: Formula) -> bool:
    """Whether something must be known of a row that only all its elements tell."""
    return not is_pointwise(formula) or "extent" in names_read(formula)


def repeats(formula: Formula) -> bool:
    """Whether a pass of the formula is taken again until it comes to rest."""
    return isinstance(formula, RowFormula) and any(step.again for step in formula.passes)


def reads_once(formula: Formula) -> bool:
    """Whether what is folded of the elements is all that is wanted of them."""
    if not isinstance(formula, RowFormula) or formula.finish is None:
        return False
    return sum(step.monoid is not None for step in formula.passes) == 1


def _monoid_functions(monoid: Monoid | None, stretches: bool) -> list[Callable | None]:
    if monoid is None:
        return []
    found = [monoid.lift, monoid.combine, monoid.counts, monoid.brief, monoid.brief_holds]
    found += monoid.stretch.functions if monoid.stretch and stretches else []
    found += [monoid.away.lift] if monoid.away else []
    return found
