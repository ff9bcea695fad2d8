"""Normalisations along one axis."""

from __future__ import annotations

from collections.abc import Iterator

from ...formulas import softmax
from ...formulas.primitives import INF
from ...formulas.record import Formula
from ..declare import Op, Text
from .shared import AXIS, DX, DY, SAVED_Y, WHERE, X, Y, with_mask


def declare_softmax(
    kind: str,
    forward: Text,
    backward: Text,
    record: Formula,
    backward_record: Formula,
    outside: float = 0.0,
) -> Iterator[Op]:
    """A normalisation along one axis and its backward; a mask leaves ``outside`` elsewhere."""
    records = with_mask(record, outside)
    yield Op(kind, "softmax", kind, "forward", forward, (X, WHERE), (Y,), records, (AXIS,))
    yield Op(
        f"{kind}_backward",
        "softmax",
        kind,
        "backward",
        backward,
        (DY, SAVED_Y, WHERE),
        (DX,),
        with_mask(backward_record),
        (AXIS,),
        frozenset({"y"}),
    )


ROWS = (
    *declare_softmax(
        "softmax",
        Text(
            "y = exp(x) / Σ exp(x)", example=("softmax(np.array([0.0, 0.0]))", "array([0.5, 0.5])")
        ),
        Text(
            "dx = y·(dy − Σ y·dy)",
            example=(
                "softmax_backward(np.array([1.0, 0.0]), y=np.array([0.5, 0.5]))",
                "array([ 0.25, -0.25])",
            ),
        ),
        softmax.SOFTMAX,
        softmax.SOFTMAX_BACKWARD,
    ),
    *declare_softmax(
        "log_softmax",
        Text(
            "y = x − log Σ exp(x)",
            example=("log_softmax(np.array([0.0, 0.0]))", "array([-0.69314718, -0.69314718])"),
        ),
        Text(
            "dx = dy − exp(y)·Σ dy",
            "y = −inf: exp(y) is 0",
            (
                "log_softmax_backward(np.array([1.0, 0.0]), y=np.array([0.0, -np.inf]))",
                "array([0., 0.])",
            ),
        ),
        softmax.LOG_SOFTMAX,
        softmax.LOG_SOFTMAX_BACKWARD,
        outside=-INF,
    ),
)
