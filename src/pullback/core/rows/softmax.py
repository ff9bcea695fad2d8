"""Normalisations along one axis."""

from __future__ import annotations

from collections.abc import Iterator

from ...formulas import projection, softmax
from ...formulas.primitives import INF
from ...formulas.record import Formula
from ..declare import Op, Text
from .shared import AXIS, DX, DY, SAVED_Y, WHERE, X, Y, by_ties, with_mask


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


def declare_projection(
    kind: str, forward: Text, backward: Text, record: Formula, backward_record: Formula
) -> Iterator[Op]:
    """A projection on the distributions along one axis, and its backward."""
    yield Op(kind, "softmax", kind, "forward", forward, (X,), (Y,), by_ties(record), (AXIS,))
    yield Op(
        f"{kind}_backward",
        "softmax",
        kind,
        "backward",
        backward,
        (DY, SAVED_Y),
        (DX,),
        by_ties(backward_record),
        (AXIS,),
        frozenset({"y"}),
    )


SOFTMAX_EDGES = "a row that is all −inf, or contains +inf or NaN, becomes NaN"
PROJECTION_EDGES = (
    "equal elements get equal y; −inf gets 0; several +inf share 1; a row that is all −inf, or "
    "contains NaN, becomes NaN"
)

ROWS = (
    *declare_softmax(
        "softmax",
        Text(
            "y = exp(x) / Σ exp(x)",
            SOFTMAX_EDGES,
            ("softmax(np.array([0.0, 0.0]))", "array([0.5, 0.5])"),
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
            SOFTMAX_EDGES,
            ("log_softmax(np.array([0.0, 0.0]))", "array([-0.69314718, -0.69314718])"),
        ),
        Text(
            "dx = dy − exp(y)·Σ dy",
            "where y = −inf, exp(y) is 0",
            (
                "log_softmax_backward(np.array([1.0, 0.0]), y=np.array([0.0, -np.inf]))",
                "array([0., 0.])",
            ),
        ),
        softmax.LOG_SOFTMAX,
        softmax.LOG_SOFTMAX_BACKWARD,
        outside=-INF,
    ),
    *declare_projection(
        "sparsemax",
        Text(
            "y = max(x − tau, 0), tau such that Σ y = 1",
            PROJECTION_EDGES,
            ("sparsemax(np.array([1.0, 0.5, -1.0]))", "array([0.75, 0.25, 0.  ])"),
        ),
        Text(
            "dx = dy − mean of dy where y > 0",
            "where y = 0 the gradient is 0; the mean is over dy where y > 0",
            (
                "sparsemax_backward(np.array([1.0, 0.0, 2.0]), y=np.array([0.75, 0.25, 0.0]))",
                "array([ 0.5, -0.5,  0. ])",
            ),
        ),
        projection.SPARSEMAX,
        projection.SPARSEMAX_BACKWARD,
    ),
    *declare_projection(
        "entmax15",
        Text(
            "y = max(x/2 − tau, 0)², tau such that Σ y = 1",
            PROJECTION_EDGES,
            ("entmax15(np.array([0.0, 0.0, -2.0]))", "array([0.5, 0.5, 0. ])"),
        ),
        Text(
            "dx = √y·(dy − Σ √y·dy / Σ √y)",
            "where y = 0 the gradient is 0, whatever dy is",
            (
                "entmax15_backward(np.array([1.0, 0.0, 2.0]), y=np.array([0.5, 0.5, 0.0]))",
                "array([ 0.35355339, -0.35355339,  0.        ])",
            ),
        ),
        projection.ENTMAX15,
        projection.ENTMAX15_BACKWARD,
    ),
)
