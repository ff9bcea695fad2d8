"""Operands and parameters that rows of several families declare."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...formulas.masked import masked
from ...formulas.record import Formula, RowFormula
from .. import parse
from ..declare import Operand, Parameter, Role, Type

X = Operand(
    "x",
    doc="Elements are float32, float64, float16 or bfloat16; any rank and strides.",
)
SAVED_X = Operand("x", doc="Input of the forward pass.")
Y = Operand("y", doc="The result.")
SAVED_Y = Operand("y", doc="Saved output of the forward pass.")
DY = Operand("dy", doc="Gradient with respect to the output of the forward pass.")
DX = Operand("dx", doc="Gradient with respect to x.")
ROW_Y = Operand("y", Role.ROW, doc="The result, one element per row.")
SAVED_ROW_Y = Operand("y", Role.ROW, doc="Saved output of the forward pass.")
ROW_DY = Operand("dy", Role.ROW, doc=DY.doc)

AXIS = Parameter(
    "axis", parse.axis, -1, is_positional=True, doc="The axis; a negative one counts from the end."
)
REVERSE = Parameter(
    "reverse",
    parse.flag,
    False,
    (False, True),
    doc="The forward scan runs from the end of the axis.",
)
RESETS = Operand(
    "resets",
    type=Type.BOOL,
    optional=True,
    broadcasts=True,
    doc="True where a new run begins, in memory order: nothing is carried across the border "
    "in front of it, in either direction. Broadcasts along any axis except the scan's.",
)
RUN_OFFSETS = Operand(
    "offsets",
    Role.OFFSETS,
    Type.INDEX,
    optional=True,
    known_as="resets",
    doc="Where each run begins along the axis, followed by the length of the axis; the same for "
    "every row.",
)
WHERE = Operand(
    "where",
    type=Type.BOOL,
    optional=True,
    known_as="mask",
    broadcasts=True,
    doc="True for the elements to include; the others are not read. Broadcasts to the full shape.",
)

TIES = "Which elements receive the gradient if several hold the extreme."


def ties(records: Formula | Mapping[str, Formula]) -> tuple[Parameter, ...]:
    """The parameter that selects among records by ties policy, the default first."""
    if not isinstance(records, Mapping):
        return ()
    return (
        Parameter(
            "ties",
            parse.ties,
            next(iter(records)),
            tuple(records),
            doc=TIES,
        ),
    )


def by_ties(records: Formula | Mapping[str, Formula]) -> Callable[..., Formula]:
    """The record of a ties policy, or the only one, whatever else is selected."""
    if isinstance(records, Mapping):
        return lambda ties, **_: records[ties]
    return lambda **_: records


def with_mask(
    records: Formula | Mapping[str, Formula],
    outside: float = 0.0,
    instead: RowFormula | None = None,
) -> Callable[..., Formula]:
    """The record of a ties policy, or the only one; masked where ``where`` is given.

    ``instead`` is masked in the place of a record that is not of rows.
    """
    plain = by_ties(records)

    def record(where: bool, **chosen: str) -> Formula:
        found = plain(**chosen)
        if not where:
            return found
        if not isinstance(found, RowFormula):
            assert instead is not None
            found = instead
        return masked(found, outside)

    return record
