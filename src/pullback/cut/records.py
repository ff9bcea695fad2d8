"""Records of the parts of a cut op: what folds a piece, and what applies it.

A part is the op's own record with states in the place of what is not in the piece. Those states are
operands with one element for each row. What a formula knows of places is of the uncut row: a part
is told where it begins, and what lies in front of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ..core import parse
from ..core.declare import Op, Operand, Parameter, Role, Text, Type
from ..core.problem import Problem
from ..formulas.compose import compose, renamed
from ..formulas.folds import add
from ..formulas.primitives import NOWHERE, exponent, where
from ..formulas.record import (
    Formula,
    Monoid,
    Pass,
    RowFormula,
    ScanFormula,
    names_read,
    parameters,
)
from .plain import multiplied, passed_on

ORIGIN = "piece_origin"  # index of the first position of a piece, in memory order
FRONT = "piece_front"  # index of the first position of the uncut row, in forward order
HALO = "_halo"  # behind the name of an operand: what lies in front of a piece


# Makes another formula function of one.
Change = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Sweep:
    """One fold along the axis.

    Attributes
    ----------
    monoid
        What is folded.
    forward
        Whether it goes over the positions in the order of memory.
    whole
        Whether what follows asks for the state of the whole row; else for that in front of a piece.
    step
        Of a row formula, which of its passes it is.
    start
        Makes the state in front of a row; without it it is the identity.
    """

    monoid: Monoid
    forward: bool
    whole: bool
    step: int = 0
    start: Callable[..., Any] | None = None

    @property
    def identity(self) -> tuple[float, ...]:
        """The state of nothing, as kernels hold it."""
        nowhere = float(exponent(0.0))  # type: ignore[no-untyped-call]
        return tuple(nowhere if v == NOWHERE else float(v) for v in self.monoid.identity)


def sweeps_of(formula: Formula, reverse: bool) -> tuple[Sweep, ...]:
    """The folds of a formula, in the order in which they run."""
    if isinstance(formula, RowFormula):
        steps = ((k, p) for k, p in enumerate(formula.passes) if p.monoid)
        return tuple(Sweep(p.monoid, True, True, k, p.start) for k, p in steps if p.monoid)
    found = []
    if formula.prefix:
        found.append(Sweep(formula.prefix, not reverse, False, start=formula.prefix_start))
    forward = formula.against == reverse
    return (*found, Sweep(formula.monoid, forward, False, start=formula.start))


def carried(sweep: int, monoid: Monoid) -> tuple[str, ...]:
    """What the components of a sweep's state are called as operands."""
    return tuple(f"{name}_of_{sweep}" for name in monoid.state)


def placed(function: Callable[..., Any], bools: Iterable[str]) -> Callable[..., Any]:
    """The same function, to which a place in a piece is one in the uncut row.

    ``bools`` are the operands that are conditions.
    """
    asks, values = [], []
    for name in parameters(function):
        operand = name.removesuffix("_before")
        if name == "index":
            asks += ["index", ORIGIN]
            values.append(f"index + {ORIGIN}")
        elif name == "first":
            asks += ["index", ORIGIN, FRONT]
            values.append(f"(index + {ORIGIN}) == {FRONT}")
        elif operand == name:
            asks.append(name)
            values.append(name)
        else:
            asks += ["first", name, operand + HALO]
            here = f"where({name}, 1.0, 0.0)" if operand in bools else name
            chosen = f"where(first, {operand}{HALO}, {here})"
            values.append(f"{chosen} > 0" if operand in bools else chosen)
    if values == list(parameters(function)):
        return function
    name = function.__name__
    lines = [f"return {name}({', '.join(values)})"]
    return compose(
        f"{name}_in_piece", list(dict.fromkeys(asks)), lines, **{name: function, "where": where}
    )


def _itself(names: Sequence[str]) -> Callable[..., Any]:
    return compose("states", names, [f"return {', '.join(names)}"])


def _given(step: Pass, sweep: int, place: Change) -> Pass:
    """A pass whose state is known: operands of the row."""
    if step.monoid is None:
        return step if step.close is None else replace(step, close=place(step.close))
    operands = carried(sweep, step.monoid)
    if step.close is None:
        return Pass(close=_itself(operands), gives=step.monoid.state)
    names = dict(zip(step.monoid.state, operands, strict=True))
    return Pass(close=place(renamed(step.close, **names)), gives=step.gives)


def _passes(formula: RowFormula, count: int, place: Change) -> tuple[Pass, ...]:
    """The first ``count`` passes, their states known."""
    found, sweep = [], 0
    for step in formula.passes[:count]:
        found.append(_given(step, sweep, place))
        sweep += step.monoid is not None
    return tuple(found)


@cache
def summary_record(formula: Formula, sweep: int, bools: frozenset[str]) -> Formula:
    """What folds one block into its state by a sweep, those before it being known."""

    def place(function: Callable[..., Any]) -> Callable[..., Any]:
        return placed(function, bools)

    if isinstance(formula, RowFormula):
        (k, step), *_ = [(k, p) for k, p in enumerate(formula.passes) if p.monoid][sweep:]
        assert step.monoid is not None
        # Positions are those of the block.
        monoid = replace(step.monoid, lift=place(step.monoid.lift), away=None)
        passes = (*_passes(formula, k, place), Pass(monoid))
        return RowFormula(
            passes, finish=_itself(monoid.state), lifts_singles=formula.apply is not None
        )
    if formula.prefix and sweep == 0:
        # By itself the prefix is a scan in forward direction.
        return _folding(replace(formula.prefix, lift=place(formula.prefix.lift)), against=False)
    monoid = replace(formula.monoid, lift=place(formula.monoid.lift))
    if not formula.prefix:
        return _folding(monoid, formula.against)
    prefix = replace(formula.prefix, lift=place(formula.prefix.lift))
    return replace(
        _folding(monoid, formula.against),
        prefix=prefix,
        prefix_start=_itself(carried(0, formula.prefix)),
    )


@cache
def whole_blocks_record(formula: Formula, sweep: int, bools: frozenset[str]) -> Formula:
    """The same for blocks that are not short, which may ask for less.

    A scan against its prefix comes to the chunks of a whole block in the order it would come to
    them by itself. Gradients of products do not ask for the prefix before their states are joined.
    """
    if isinstance(formula, ScanFormula) and formula.prefix and sweep == 1:
        monoid = replace(formula.monoid, lift=placed(formula.monoid.lift, bools))
        if not {*formula.prefix.state} & {*parameters(monoid.lift)}:
            return _folding(monoid, formula.against)
    return summary_record(formula, sweep, bools)


def _nothing() -> tuple[float, ...]:
    return (0.0,)


def _folding(monoid: Monoid, against: bool) -> ScanFormula:
    """A scan of which only the end is of interest."""
    return ScanFormula(monoid, _nothing, inclusive=True, against=against, end=_itself(monoid.state))


@cache
def apply_record(formula: Formula, bools: frozenset[str]) -> Formula:
    """What makes the elements of a piece, the states of all sweeps being known."""

    def place(function: Callable[..., Any]) -> Callable[..., Any]:
        return placed(function, bools)

    if isinstance(formula, RowFormula):
        assert formula.apply is not None
        passes = _passes(formula, len(formula.passes), place)
        return replace(
            formula,
            passes=passes,
            apply=place(formula.apply),
            narrow=None,
            in_doubles=None,
            online=None,
            usual=None,
            before=(),
        )
    monoid = replace(formula.monoid, lift=place(formula.monoid.lift))
    made = replace(
        formula,
        monoid=monoid,
        finish=place(formula.finish),
        start=_front(carried(1 if formula.prefix else 0, monoid), passed_on),
        end=None,
        before=(),
        quiet=None,
    )
    if formula.prefix:
        prefix = replace(formula.prefix, lift=place(formula.prefix.lift))
        made = replace(made, prefix=prefix, prefix_start=_front(carried(0, prefix), multiplied))
    return made


def _front(names: Sequence[str], number: Callable[..., Any]) -> Callable[..., Any]:
    """A state that is an operand, components ``NAME_m`` and ``NAME_e`` being one number."""
    lines, values = [], list(names)
    for k, name in enumerate(names):
        head, mark, sweep = name.rpartition("_m_of_")
        partner = f"{head}_e_of_{sweep}"
        if mark and partner in names:
            values[k : k + 2] = [f"m{k}", f"e{k}"]
            lines.append(f"m{k}, e{k} = number({name}, {partner})")
    if not lines:
        return _itself(names)
    return compose("front", names, [*lines, f"return {', '.join(values)}"], number=number)


def _of_nothing(nothing):  # type: ignore[no-untyped-def]
    return nothing


# What a kernel of rows folds where there is nothing to fold.
NOTHING = Pass(Monoid(_of_nothing, add, (0.0,), ("unused",)))


@cache
def finish_record(formula: RowFormula) -> RowFormula:
    """What makes the outputs with one element for each row, of rows of one ``nothing``."""
    passes = _passes(formula, len(formula.passes), lambda function: function)
    return RowFormula((NOTHING, *passes), finish=formula.finish)


@cache
def end_record(formula: ScanFormula) -> RowFormula:
    """What makes the outputs at the end of a scan, as a function of elements."""
    assert formula.end is not None
    names = carried(1 if formula.prefix else 0, formula.monoid)
    named = dict(zip(formula.monoid.state, names, strict=True))
    return RowFormula(apply=renamed(formula.end, **named))


def _finished(steps: Sequence[Pass], finish: Callable[..., Any]) -> RowFormula:
    """Closes and what follows them as one function of elements."""
    lines: list[str] = []
    known: set[str] = set()
    asks: list[str] = []
    tools: dict[str, Callable[..., Any]] = {}
    for k, step in enumerate(steps):
        assert step.close is not None
        wanted = parameters(step.close)
        asks += [n for n in wanted if n not in known]
        lines.append(f"{', '.join(step.gives)} = close{k}({', '.join(wanted)})")
        tools[f"close{k}"] = step.close
        known |= {*step.gives}
    wanted = parameters(finish)
    asks += [n for n in wanted if n not in known]
    lines.append(f"return finish({', '.join(wanted)})")
    tools["finish"] = finish
    return RowFormula(apply=compose("finished", list(dict.fromkeys(asks)), lines, **tools))


def _one() -> float:
    return 1.0


COUNT = Monoid(_one, add, (0.0,), ("count",))
COUNT_BEFORE = "counted"  # rows of a segment in the pieces before
IN_FRONT = "_front"  # behind the name of a component: its state in front of a piece


def segment_sweeps(formula: RowFormula) -> tuple[Sweep, ...]:
    """The folds over rows of segments: how many there are comes first, where it is asked for."""
    own = sweeps_of(formula, False)
    if {"extent", "index", "first"} & names_read(formula):
        return (Sweep(COUNT, True, True, -1), *own)
    return own


def _in_segment(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, to which the rows of a segment are those of all pieces."""
    (count,) = carried(0, COUNT)
    function = renamed(function, extent=count)
    places = {
        "index": f"index + {COUNT_BEFORE}",
        "first": f"(index + {COUNT_BEFORE}) == 0",
    }
    wanted = parameters(function)
    if not {*places} & {*wanted}:
        return function
    name = function.__name__
    asks = [n for n in wanted if n not in places] + ["index", COUNT_BEFORE]
    lines = [f"return {name}({', '.join(places.get(n, n) for n in wanted)})"]
    return compose(f"{name}_in_pieces", asks, lines, **{name: function})


def _segment_passes(formula: RowFormula, count: int, sweeps: tuple[Sweep, ...]) -> tuple[Pass, ...]:
    found = []
    numbers = {s.step: k for k, s in enumerate(sweeps)}
    for k, step in enumerate(formula.passes[:count]):
        found.append(_given(step, numbers.get(k, 0), _in_segment))
    return tuple(found)


@cache
def segment_fold_record(formula: RowFormula, sweep: int) -> RowFormula:
    """What goes on folding the rows of segments from the states in front of a piece."""
    sweeps = segment_sweeps(formula)
    step = sweeps[sweep]
    monoid = replace(step.monoid, lift=_in_segment(step.monoid.lift))
    front = _itself([n + IN_FRONT for n in monoid.state])
    before = _segment_passes(formula, max(0, step.step), sweeps)
    return RowFormula((*before, Pass(monoid, start=front)), finish=_itself(monoid.state))


@cache
def segment_apply_record(formula: RowFormula) -> RowFormula:
    """What makes the rows of a piece, the states of all segments being known."""
    assert formula.apply is not None
    passes = _segment_passes(formula, len(formula.passes), segment_sweeps(formula))
    return replace(
        formula,
        passes=passes,
        apply=_in_segment(formula.apply),
        narrow=None,
        in_doubles=None,
        usual=None,
    )


@cache
def segment_finish_record(formula: RowFormula) -> RowFormula | None:
    """What makes the rows of segments, as a function of elements."""
    if formula.finish is None:
        return None
    passes = _segment_passes(formula, len(formula.passes), segment_sweeps(formula))
    return _finished(passes, _in_segment(formula.finish))


@cache
def start_record(sweep: Sweep) -> RowFormula:
    """What makes the state in front of a row, as a function of elements."""
    assert sweep.start is not None
    return RowFormula(apply=sweep.start)


def part_of(
    problem: Problem,
    name: str,
    record: Formula,
    writes: tuple[Operand, ...],
    by_element: bool = False,
) -> Op:
    """An op that runs a part of a problem's op.

    Operands have the names that formulas know them by. ``by_element`` says that those with one
    element for each row have one for every position of the part.
    """
    asked = names_read(record)
    reads = []
    role = Role.ELEMENT if by_element else Role.ROW
    operands = {o.symbol: o for o in problem.reads}
    if "nothing" in asked:
        reads.append(Operand("nothing", Role.ELEMENT, Type.ELEMENT))
    for symbol, operand in operands.items():
        is_cut = operand.role in (Role.IDS, Role.OFFSETS) and not by_element
        if is_cut or symbol in asked or f"{symbol}_before" in asked:
            own = role if operand.role is Role.ROW else operand.role
            reads.append(Operand(symbol, own, operand.type))
    data = (*problem.op.data, *((FRONT,) if FRONT in asked else ()))
    produced = {"index", "first", "extent", "nothing", *data, *_given_names(record)}
    states = sorted(
        n
        for n in asked
        if n not in produced and n not in operands and n.removesuffix("_before") not in operands
    )
    reads += [Operand(n, role, Type.STATE) for n in states]
    named = tuple(Parameter(n, parse.real, 0.0, is_data=True) for n in data)
    return Op(name, "cut", name, "forward", Text(""), tuple(reads), writes, _always(record), named)


def _given_names(record: Formula) -> set[str]:
    """What steps of a record give each other."""
    if isinstance(record, RowFormula):
        found = {n for step in record.passes for n in step.names}
        monoids: list[Monoid] = [s.monoid for s in record.passes if s.monoid]
    else:
        found = set()
        monoids = [m for m in (record.prefix, record.monoid) if m]
    for monoid in monoids:
        found |= {*monoid.state, *parameters(monoid.combine)}
    return found


@cache
def _always(record: Formula) -> Callable[..., Formula]:
    return lambda **_: record
