"""How an op is declared: its operands, its parameters and the formulas they select.

Everything else about an op is derived from its declaration: functions and their signatures, plans,
integrations, command-line options, tests and tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from ..formulas.record import Formula, RowFormula, names_read
from .elements import FLOATS
from .parse import KINDS, Kind

BACKENDS = ("numba", "triton")


class Role(Enum):
    """How many elements an operand has."""

    ELEMENT = "element"  # one for every position
    ROW = "row"  # one for every row: of a segment op, for every segment and column
    IDS = "ids"  # a segment id for every position along the axis
    OFFSETS = "offsets"  # where each segment begins, and where the last one ends


class Type(Enum):
    """What type an operand's elements have."""

    ELEMENT = "element"  # the op's element type
    BOOL = "bool"
    INDEX = "index"  # int32 or int64
    STATE = "state"  # the op's element type, or float64


@dataclass(frozen=True)
class Operand:
    """An array that an op reads or writes.

    Attributes
    ----------
    name
        What the caller calls it.
    role, type
        How many elements it has, and of which type.
    optional
        Whether it may be left out. An op may have a parameter of the same name: then a number may
        stand for the array.
    known_as
        What formulas call it, where that differs: rows of a segment op are ``x`` there as those of
        any reduction.
    broadcasts
        Whether it is stretched to the shape it should have, as NumPy does it.
    asked_by
        Of an output: the parameter, or the operand that may be left out, without which it is not
        made.
    allows
        Of integers with one for every row, which name positions along the axis: the parameter whose
        value may stand there as well.
    doc
        What it holds, in a sentence.
    """

    name: str
    role: Role = Role.ELEMENT
    type: Type = Type.ELEMENT
    optional: bool = False
    known_as: str = ""
    broadcasts: bool = False
    asked_by: str = ""
    allows: str = ""
    doc: str = ""

    @property
    def symbol(self) -> str:
        """What formulas call it."""
        return self.known_as or self.name


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()


@dataclass(frozen=True)
class Parameter:
    """An argument that is not an array.

    Attributes
    ----------
    name
        What the caller calls it.
    parse
        ``parse(value, what)``: the value in its one form, or an error that names ``what``.
    default
        What it is where the caller does not say, or ``REQUIRED``.
    choices
        The values it may take, where they are few and select a formula record.
    is_data
        Whether formulas ask for it by name, as a float.
    is_positional
        Whether a forward function takes it by position too.
    alias
        What NumPy calls it, where that differs: functions take it by either name.
    doc
        What it says, in a sentence.
    usual
        What the benchmark and the certificate take, if there is no default.
    """

    name: str
    parse: Callable[[Any, str], Any] = field(repr=False)
    default: Any = REQUIRED
    choices: tuple[Any, ...] = ()
    is_data: bool = False
    is_positional: bool = False
    alias: str = ""
    doc: str = ""
    usual: Any = None

    @property
    def kind(self) -> Kind:
        """What values it takes, for those who write them down."""
        return KINDS[self.parse]


class Text(NamedTuple):
    """What is said of one direction of an op.

    Attributes
    ----------
    formula
        The formula in one line.
    edges
        What happens at zeros, ties, infinities and the like.
    example
        A call of the function and what it shows, for the docstring.
    """

    formula: str
    edges: str = ""
    example: tuple[str, str] | None = None


@dataclass(frozen=True)
class Op:
    """One direction of one op.

    Attributes
    ----------
    name
        Name of the function, e.g. ``"cumprod_backward"``.
    family
        Name of its family; see :mod:`.families`.
    kind
        The op without direction, e.g. ``"cumprod"``.
    direction
        ``"forward"`` or ``"backward"``.
    text
        Formula, edge cases and an example, as text.
    reads, writes
        The operands, in order.
    parameters
        Everything else a call may pass.
    records
        Gives the formula record of a selection: called with the values of ``selectors`` by name.
    needs
        Tensors saved by the forward pass that the backward needs.
    refuses_empty
        Whether a row without elements has no value.
    """

    name: str
    family: str
    kind: str
    direction: str
    text: Text
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]
    records: Callable[..., Formula] = field(repr=False, hash=False)
    parameters: tuple[Parameter, ...] = ()
    needs: frozenset[str] = frozenset()
    refuses_empty: bool = False
    dtypes: tuple[str, ...] = FLOATS
    backends: tuple[str, ...] = BACKENDS

    @property
    def formula(self) -> str:
        """The formula in one line."""
        return self.text.formula

    @property
    def edges(self) -> str:
        """What happens at zeros, ties, infinities and the like."""
        return self.text.edges

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the operands that are read."""
        return tuple(o.name for o in self.reads)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the operands that are written."""
        return tuple(o.name for o in self.writes)

    @property
    def optional(self) -> tuple[str, ...]:
        """Names of the operands that may be left out."""
        return tuple(o.name for o in self.reads if o.optional)

    @cached_property
    def spared(self) -> tuple[str, ...]:
        """Names of the saves that no record of it reads: whoever calls it may leave them out."""
        rest = {n: self.operand(n).symbol for n in sorted(self.needs)}
        for selection, element in itertools.product(self.selections(), ("f64", "f32")):
            if not rest:
                break
            asked = names_read(self.record(selection, element))
            rest = {n: s for n, s in rest.items() if not {s, f"{s}_before"} & asked}
        return tuple(o.name for o in self.reads if o.name in rest)

    @property
    def data(self) -> tuple[str, ...]:
        """Names of the parameters that formulas ask for."""
        return tuple(p.name for p in self.parameters if p.is_data)

    def names(self, role: Role) -> tuple[str, ...]:
        """Names of the operands of a role that are read."""
        return tuple(o.name for o in self.reads if o.role is role)

    def operand(self, name: str) -> Operand:
        """The operand of a name."""
        return next(o for o in (*self.reads, *self.writes) if o.name == name)

    def parameter(self, name: str) -> Parameter | None:
        """The parameter of a name, or None."""
        return next((p for p in self.parameters if p.name == name), None)

    @property
    def selectors(self) -> Mapping[str, tuple[Any, ...]]:
        """What selects a record, with the values it may have, the default first.

        Parameters with choices, and operands that may be left out: those are True where given.
        """
        found: dict[str, tuple[Any, ...]] = {
            p.name: p.choices for p in self.parameters if p.choices
        }
        return found | dict.fromkeys(self.optional, (False, True))

    def made(self, selection: tuple[Any, ...]) -> tuple[Operand, ...]:
        """The outputs there are: those that an operand asks for only if it was given."""
        chosen = dict(zip(self.selectors, selection, strict=False))
        return tuple(o for o in self.writes if chosen.get(o.asked_by, True))

    def record(self, selection: tuple[Any, ...] = (), element: str = "f64") -> Formula:
        """The formula record for values of the selectors, in order, and an element type.

        Selectors that are left out have their defaults.
        """
        selectors = self.selectors
        chosen = {n: values[0] for n, values in selectors.items()}
        chosen |= dict(zip(selectors, selection, strict=False))
        found = self.records(**chosen)
        if element != "f64" and isinstance(found, RowFormula) and found.narrow:
            return found.narrow
        return found

    def simplest(self, selection: tuple[Any, ...]) -> tuple[Any, ...]:
        """The selection with defaults for parameters that make no difference to the record."""
        record = self.record(selection)
        for k, (name, values) in enumerate(self.selectors.items()):
            if name not in self.optional and selection[k] != values[0]:
                other = (*selection[:k], values[0], *selection[k + 1 :])
                selection = other if self.record(other) == record else selection
        return selection

    def selections(self) -> Iterator[tuple[Any, ...]]:
        """Every selection there is."""
        return itertools.product(*self.selectors.values())

    @property
    def ties(self) -> tuple[str, ...]:
        """The ties policies, the default first; empty where ties mean nothing."""
        return self.selectors.get("ties", ())
