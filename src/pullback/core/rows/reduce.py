"""Reductions over one or more axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...formulas import norms, reduce
from ...formulas.product import PRODUCT_BY_COUNTS
from ...formulas.record import Formula, names_read
from .. import parse
from ..declare import Op, Parameter, Text
from .shared import DX, ROW_DY, ROW_Y, SAVED_ROW_Y, SAVED_X, WHERE, X, ties, with_mask

AXES = Parameter(
    "axis", parse.axes, None, is_positional=True, doc="The axes to reduce; None means all of them."
)
KEEPDIMS = Parameter("keepdims", parse.flag, False, doc="Keep the reduced axes at length 1.")
CORRECTION = Parameter(
    "correction",
    parse.correction,
    1,
    is_data=True,
    alias="ddof",
    doc="The sum of squares is divided by max(n - correction, 1).",
)
SHAPE = Parameter("shape", parse.shape, doc="Shape of the forward's input.")


def declare_reduce(
    kind: str,
    forward: Text,
    backward: Text,
    record: Formula,
    backward_record: Formula | Mapping[str, Formula],
    saves: tuple[str, ...] = (),
    refuses_empty: bool = False,
) -> Iterator[Op]:
    """A reduction and its backward, which reads ``saves``."""
    corrected = (CORRECTION,) if "correction" in names_read(record) else ()
    yield Op(
        kind,
        "reduce",
        kind,
        "forward",
        forward,
        (X, WHERE),
        (ROW_Y,),
        with_mask(record),
        (AXES, KEEPDIMS, *corrected),
        refuses_empty=refuses_empty,
    )
    shape = () if "x" in saves else (SHAPE,)
    yield Op(
        f"{kind}_backward",
        "reduce",
        kind,
        "backward",
        backward,
        (ROW_DY, *(o for o in (SAVED_X, SAVED_ROW_Y) if o.name in saves), WHERE),
        (DX,),
        with_mask(backward_record, instead=PRODUCT_BY_COUNTS),
        (*shape, AXES, *corrected, *ties(backward_record)),
        frozenset(saves),
    )


_NAN = "a NaN wins"
_TIES = "ties 'split', 'all', 'first' or 'last'; NaN equals NaN"
_NO_EXTREME = f"{_NAN}; empty: InvalidProblemError"
_TWO_BY_TWO = "np.array([[1.0, 2.0], [3.0, 4.0]])"

ROWS = (
    *declare_reduce(
        "sum",
        Text("y = Σ x", "empty: 0", (f"sum({_TWO_BY_TWO}, axis=1)", "array([3., 7.])")),
        Text(
            "dx = dy",
            example=(
                "sum_backward(np.array([1.0, 2.0]), shape=(2, 2), axis=1)",
                "array([[1., 1.],\n       [2., 2.]])",
            ),
        ),
        reduce.SUM,
        reduce.SUM_BACKWARD,
    ),
    *declare_reduce(
        "mean",
        Text("y = Σ x / n", "empty: NaN", (f"mean({_TWO_BY_TWO}, axis=1)", "array([1.5, 3.5])")),
        Text(
            "dx = dy / n",
            "divided in f64 before the cast",
            (
                "mean_backward(np.array([1.0, 2.0]), shape=(2, 2), axis=1)",
                "array([[0.5, 0.5],\n       [1. , 1. ]])",
            ),
        ),
        reduce.MEAN,
        reduce.MEAN_BACKWARD,
    ),
    *declare_reduce(
        "max",
        Text("y = max x", _NO_EXTREME, ("max(np.array([1.0, 3.0, 3.0]))", "array(3.)")),
        Text(
            "dx = dy where x = y",
            _TIES,
            (
                "max_backward(np.array(1.0), x=np.array([1.0, 3.0, 3.0]), y=np.array(3.0))",
                "array([0. , 0.5, 0.5])",
            ),
        ),
        reduce.MAX,
        reduce.EXTREME_BACKWARD,
        ("x", "y"),
        refuses_empty=True,
    ),
    *declare_reduce(
        "min",
        Text("y = min x", _NO_EXTREME, ("min(np.array([1.0, 3.0, 1.0]))", "array(1.)")),
        Text(
            "dx = dy where x = y",
            _TIES,
            (
                "min_backward(np.array(1.0), x=np.array([1.0, 3.0, 1.0]), y=np.array(1.0), "
                "ties='first')",
                "array([1., 0., 0.])",
            ),
        ),
        reduce.MIN,
        reduce.EXTREME_BACKWARD,
        ("x", "y"),
        refuses_empty=True,
    ),
    *declare_reduce(
        "prod",
        Text(
            "y = Π x",
            "no overflow or underflow inside; empty: 1",
            ("prod(np.array([2.0, 0.0, 4.0]))", "array(0.)"),
        ),
        Text(
            "dx[j] = dy·Π_{i≠j} x[i]",
            "exact with any number of zeros",
            (
                "prod_backward(np.array(1.0), x=np.array([2.0, 0.0, 4.0]), y=np.array(0.0))",
                "array([0., 8., 0.])",
            ),
        ),
        reduce.PROD,
        reduce.PROD_BACKWARD,
        ("x", "y"),
    ),
    *declare_reduce(
        "norm2",
        Text(
            "y = √Σ x²",
            "no overflow or underflow inside; empty: 0",
            ("norm2(np.array([3.0, 4.0]))", "array(5.)"),
        ),
        Text(
            "dx = dy·x/y",
            "y = 0 gives 0; no overflow or underflow inside",
            (
                "norm2_backward(np.array(5.0), x=np.array([3.0, 4.0]), y=np.array(5.0))",
                "array([3., 4.])",
            ),
        ),
        norms.NORM2,
        norms.NORM2_BACKWARD,
        ("x", "y"),
    ),
    *declare_reduce(
        "logsumexp",
        Text(
            "y = log Σ exp(x)",
            "empty: −inf",
            ("logsumexp(np.array([-np.inf, 0.0]))", "array(0.)"),
        ),
        Text(
            "dx = dy·exp(x−y)",
            "y = −inf gives 0",
            (
                "logsumexp_backward(np.array(2.0), x=np.array([-np.inf, 0.0]), y=np.array(0.0))",
                "array([0., 2.])",
            ),
        ),
        reduce.LOGSUMEXP,
        reduce.LOGSUMEXP_BACKWARD,
        ("x", "y"),
    ),
    *declare_reduce(
        "var",
        Text(
            "y = Σ (x−mean)² / m, m = max(n−correction, 1)",
            "no overflow or underflow inside; empty: NaN",
            ("var(np.array([1.0, 3.0]))", "array(2.)"),
        ),
        Text(
            "dx = dy·2(x−mean)/m",
            "no overflow or underflow inside",
            ("var_backward(np.array(1.0), x=np.array([1.0, 3.0]))", "array([-2.,  2.])"),
        ),
        reduce.VAR,
        reduce.VAR_BACKWARD,
        ("x",),
    ),
    *declare_reduce(
        "std",
        Text(
            "y = √(Σ (x−mean)² / m), m = max(n−correction, 1)",
            "no overflow or underflow inside; empty: NaN",
            ("std(np.array([1.0, 1.0]))", "array(0.)"),
        ),
        Text(
            "dx = dy·(x−mean)/(m·y)",
            "y = 0 gives 0; no overflow or underflow inside",
            (
                "std_backward(np.array(1.0), x=np.array([1.0, 1.0]), y=np.array(0.0))",
                "array([0., 0.])",
            ),
        ),
        norms.STD,
        norms.STD_BACKWARD,
        ("x", "y"),
    ),
)
