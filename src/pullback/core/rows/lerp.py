"""Element-wise ops of two operands and a weight."""

from __future__ import annotations

from ...formulas import lerp
from ...formulas.record import Formula
from .. import parse
from ..declare import Op, Operand, Parameter, Text
from .shared import DY, Y

A = Operand("a", doc="Value at weight 0.")
B = Operand("b", doc="Value at weight 1, of the same shape.")
WEIGHT = Parameter(
    "weight", parse.real, is_data=True, is_positional=True, doc="A number, or an array of numbers."
)
WEIGHTS = Operand("weight", optional=True, broadcasts=True, doc=WEIGHT.doc)


def _saved(name: str) -> Operand:
    return Operand(
        name, optional=True, doc="As in the forward pass; needed if the weight is an array."
    )


def _gradient(name: str, asked_by: str = "") -> Operand:
    return Operand(f"d{name}", asked_by=asked_by, doc=f"Gradient with respect to {name}.")


def _forward(weight: bool) -> Formula:
    return lerp.LERP


def _backward(weight: bool, **_: bool) -> Formula:
    return lerp.LERP_BACKWARD_OF_ALL if weight else lerp.LERP_BACKWARD


_EDGES = "NaN and inf in the weight propagate"

ROWS = (
    Op(
        "lerp",
        "lerp",
        "lerp",
        "forward",
        Text(
            "y = a + w·(b−a)",
            _EDGES,
            ("lerp(np.array([0.0, 2.0]), np.array([4.0, 4.0]), 0.25)", "array([1. , 2.5])"),
        ),
        (A, B, WEIGHTS),
        (Y,),
        _forward,
        (WEIGHT,),
    ),
    Op(
        "lerp_backward",
        "lerp",
        "lerp",
        "backward",
        Text(
            "da = (1−w)·dy, db = w·dy, dweight = (b−a)·dy",
            f"{_EDGES}; dweight, of the full shape, only if the weight is an array",
            ("lerp_backward(np.array([4.0]), weight=0.25)", "(array([3.]), array([1.]))"),
        ),
        (DY, WEIGHTS, _saved("a"), _saved("b")),
        (_gradient("a"), _gradient("b"), _gradient("weight", asked_by="weight")),
        _backward,
        (WEIGHT,),
    ),
)
