"""A call turned into what a backend runs: the op, its parameters and the shapes of its operands."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidProblemError, UnsupportedError
from ..formulas.record import Formula, RowFormula, in_doubles, names_read, repeats
from ..precision import DEFAULT, get_precision
from . import parse
from .declare import REQUIRED, Op, Operand, Parameter, Role, Type


@dataclass(frozen=True)
class Problem:
    """Everything about a call but memory.

    Attributes
    ----------
    op
        The op.
    element
        Storage type of the operands that have the op's element type.
    shape
        Shape of the full-size operands.
    axes
        The op's axes, ascending. A pointwise op has all of them, a segment op the first.
    selection
        Values of the op's selectors, in order: which of its records it is.
    reverse
        Whether a scan runs from the end.
    data
        Parameters that formulas ask for by name.
    segments
        Number of segments; None where rows are not cut by ids.
    is_sorted, drops
        Of a segment op: whether ids ascend, and whether ids out of range are dropped.
    precision
        Whether elements narrower than float64 are computed in float32 ("fast") or not ("tight").
    spared
        Saves that no record reads and that the caller left out.
    """

    op: Op
    element: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    selection: tuple[Any, ...] = ()
    reverse: bool = False
    data: tuple[tuple[str, float], ...] = ()
    segments: int | None = None
    is_sorted: bool = False
    drops: bool = False
    precision: str = DEFAULT
    spared: tuple[str, ...] = ()

    @property
    def extent(self) -> int:
        """Elements along the axes."""
        return math.prod(self.shape[a] for a in self.axes)

    @property
    def numel(self) -> int:
        """Elements of an operand with one for every position."""
        return math.prod(self.shape)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of the operands with one element for every row."""
        length = 1 if self.segments is None else self.segments
        return tuple(length if d in self.axes else n for d, n in enumerate(self.shape))

    @property
    def is_segmented(self) -> bool:
        """Whether ids say which row an element belongs to."""
        return self.segments is not None

    @property
    def num_inputs(self) -> int:
        """Rows of the table that a segment op reads or writes."""
        return self.shape[0]

    @property
    def embedding_dim(self) -> int:
        """Columns of that table."""
        return self.shape[1]

    @property
    def num_segments(self) -> int:
        """Number of segments."""
        return self.segments or 0

    @property
    def formula(self) -> Formula:
        """The formula record."""
        return self.op.record(self.selection, self.element)

    @property
    def formula_in_doubles(self) -> Formula:
        """The formula record where all types are computed in float64."""
        return in_doubles(self.formula, self.element)

    @property
    def constants(self) -> dict[str, float]:
        """What formulas know by name and is the same for all rows."""
        defaults = {
            p.name: float(p.default)
            for p in self.op.parameters
            if p.is_data and p.default not in (REQUIRED, None)
        }
        return {"extent": float(self.extent), **defaults, **dict(self.data)}

    @property
    def chosen(self) -> dict[str, Any]:
        """The selection by name."""
        return dict(zip(self.op.selectors, self.selection, strict=False))

    @property
    def reads(self) -> tuple[Operand, ...]:
        """The operands that are read: those that may be left out only if they were given."""
        chosen = self.chosen
        return tuple(
            o
            for o in self.op.reads
            if (not o.optional or chosen.get(o.name)) and o.name not in self.spared
        )

    @property
    def writes(self) -> tuple[Operand, ...]:
        """The outputs there are: those that an operand asks for only if it was given."""
        return self.op.made(self.selection)

    @property
    def cut_by(self) -> Operand:
        """What cuts the rows of a segment op: ids or offsets."""
        return next(o for o in self.reads if o.role in (Role.IDS, Role.OFFSETS))

    @property
    def positions(self) -> tuple[Operand, ...]:
        """The operands whose elements name positions along the axis."""
        return tuple(o for o in self.reads if o.role is Role.ROW and o.type is Type.INDEX)

    def shape_of(self, operand: str) -> tuple[int, ...]:
        """Shape an operand must have."""
        match self.op.operand(operand).role:
            case Role.ELEMENT:
                return self.shape
            case Role.ROW:
                return self.row_shape
            case Role.IDS:
                return tuple(self.shape[a] for a in self.axes)
            case Role.OFFSETS:
                return (len(self.row_shape) and (self.segments or 0) + 1,)

    def used(self, role: Role) -> tuple[Operand, ...]:
        """The operands of a role that the formula really reads."""
        asked = names_read(self.formula)
        return tuple(
            o
            for o in self.reads
            if o.role is role and (o.symbol in asked or f"{o.symbol}_before" in asked)
        )

    def symbols(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Operands that the formula really reads, as it calls them: by position and by row."""
        asked = names_read(self.formula)
        elements = [o.symbol for o in self.used(Role.ELEMENT)]
        full = [n for n in elements if n in asked]
        full += [f"{n}_before" for n in elements if f"{n}_before" in asked]
        return tuple(full), tuple(o.symbol for o in self.used(Role.ROW))


def describe(
    op: Op,
    element: str,
    shape: tuple[int, ...],
    parameters: Mapping[str, Any],
    given: Collection[str] = (),
    segments: int | None = None,
    called: Mapping[str, str] | None = None,
) -> Problem:
    """The problem of a call.

    Parameters
    ----------
    op, element, shape, segments
        As in :class:`Problem`.
    parameters
        Values by name; those that are left out have their defaults, those the op does not have are
        ignored.
    given
        Names of operands that may be left out and were not.
    called
        What the caller calls a parameter, where that differs.

    Raises
    ------
    InvalidProblemError, UnsupportedError
        For a value that a parameter cannot have, by the caller's name for it.
    """
    words = called or {}
    # A parameter for which an array stands is that operand.
    own = [p for p in op.parameters if p.name not in given]
    held = {
        p.name: parsed(p, parameters.get(p.name, p.default), words.get(p.name, p.name)) for p in own
    }
    axes = tuple(range(len(shape)))
    if segments is not None:
        axes = (0,)
    elif (axis := op.parameter("axis")) is not None:
        what = words.get("axis", "axis")
        if axis.parse is parse.axis:
            place = parse.normalized_axis(held["axis"], len(shape), what)
            axes = (place,) if shape else ()
        else:
            axes = parse.normalized_axes(held["axis"], len(shape), what)
    selection = tuple(n in given if n in op.optional else held[n] for n in op.selectors)
    problem = Problem(
        op,
        element,
        shape,
        axes,
        op.simplest(selection),
        held.get("reverse", False),
        tuple((p.name, _number(held[p.name])) for p in own if p.is_data),
        segments,
        held.get("sorted", False),
        held.get("out_of_range") == "drop",
        get_precision(),
    )
    masked = any(name in given for name in op.optional)
    if op.refuses_empty and not masked and problem.extent == 0 and 0 not in problem.row_shape:
        raise InvalidProblemError(
            f"{op.inputs[0]}: expected at least one element along axes {axes} for {op.name}, got "
            f"shape {shape}"
        )
    return problem


def _number(value: Any) -> float:
    """What formulas know of a parameter; nothing equals one that was not given."""
    return math.nan if value is None else float(value)


def parsed(parameter: Parameter, value: Any, what: str) -> Any:
    """A value of a parameter in its one form, or an error that names ``what``."""
    if value is REQUIRED:
        # The shape is asked for where no operand tells it, and who describes a problem has it.
        return None
    value = parameter.parse(value, what)
    if parameter.choices and value is None:
        return parameter.default
    if parameter.choices and value not in parameter.choices:
        names = ", ".join(map(str, parameter.choices))
        raise UnsupportedError(f"{what}: expected one of {names}, got {value!r}")
    return value


def folded_by_segments(op: Op, formula: Formula) -> RowFormula:
    """A formula as kernels by segment take it, or the reason why they do not."""
    if not isinstance(formula, RowFormula):
        raise UnsupportedError(f"{op.name}: a segment op folds rows, it does not scan them")
    if repeats(formula):
        raise UnsupportedError(f"{op.name}: a pass over segments cannot be taken again")
    return formula
