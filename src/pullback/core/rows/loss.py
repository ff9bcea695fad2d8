"""Losses of logits, one for every row."""

from __future__ import annotations

from ...formulas import loss
from .. import parse
from ..declare import Op, Operand, Parameter, Role, Text, Type
from .shared import AXIS, by_ties

LOGITS = Operand("logits", doc="Scores of the classes along the axis.")
TARGET = Operand(
    "target",
    Role.ROW,
    Type.INDEX,
    allows="ignore_index",
    doc="The class of each row, an integer.",
)
LSE = Operand(
    "lse", Role.ROW, Type.STATE, doc="log Σ exp(logits), float64, which the backward reads."
)
D_LOSS = Operand("d_loss", Role.ROW, doc="Gradient with respect to the loss.")
HOW = (
    Parameter(
        "ignore_index",
        parse.optional_integer,
        None,
        is_data=True,
        doc="Rows with this target are ignored: their loss, lse and gradient are 0.",
    ),
    Parameter(
        "label_smoothing",
        parse.fraction,
        0.0,
        is_data=True,
        doc="How much of the target is spread evenly over all classes, from 0 to 1.",
    ),
    Parameter("z_loss", parse.penalty, 0.0, is_data=True, doc="Weight of lse² in the loss."),
)

ROWS = (
    Op(
        "cross_entropy",
        "loss",
        "cross_entropy",
        "forward",
        Text(
            "loss = lse − (1−e)·x[target] − e·mean(x) + z·lse², lse = log Σ exp(x)",
            "ignored rows have loss 0 and lse 0; a target out of range raises",
            (
                "cross_entropy(np.zeros((1, 2)), np.array([1]))",
                "(array([0.69314718]), array([0.69314718]))",
            ),
        ),
        (LOGITS, TARGET),
        (Operand("loss", Role.ROW, doc="The loss of each row."), LSE),
        by_ties(loss.CROSS_ENTROPY),
        (AXIS, *HOW),
        refuses_empty=True,
    ),
    Op(
        "cross_entropy_backward",
        "loss",
        "cross_entropy",
        "backward",
        Text(
            "d_logits = d_loss·((1+2z·lse)·exp(x−lse) − (1−e)·[j = target] − e/n)",
            "ignored rows have gradient 0; out may be the logits",
            (
                "cross_entropy_backward(np.ones(1), logits=np.zeros((1, 2)), "
                "target=np.array([1]), lse=np.log([2.0]))",
                "array([[ 0.5, -0.5]])",
            ),
        ),
        (D_LOSS, LOGITS, TARGET, LSE),
        (Operand("d_logits", doc="Gradient with respect to the logits."),),
        by_ties(loss.CROSS_ENTROPY_BACKWARD),
        (AXIS, *HOW),
        frozenset({"logits", "lse"}),
    ),
)
