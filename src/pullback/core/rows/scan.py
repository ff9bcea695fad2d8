"""Scans along one axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...formulas import scan
from ...formulas.record import Formula
from .. import parse
from ..declare import Op, Operand, Parameter, Text
from .shared import AXIS, DX, DY, RESETS, REVERSE, RUN_OFFSETS, SAVED_X, SAVED_Y, TIES, X, Y

Records = Callable[..., Formula]

EXCLUSIVE = Parameter(
    "exclusive", parse.flag, False, (False, True), doc="Leave out the element itself."
)
FIRST_OR_LAST = Parameter("ties", parse.ties, "first", ("first", "last"), doc=TIES)


def declare_scan(
    kind: str,
    forward: Text,
    backward: Text,
    records: Records | Formula,
    backward_records: Records | Formula,
    saves: tuple[str, ...] = (),
    ties: tuple[Parameter, ...] = (),
) -> Iterator[Op]:
    """A scan and its backward, which reads ``saves``.

    ``records`` are made of what selects one: ``exclusive``, ``reverse``, whether ``resets`` are
    given and, for the backward, ``ties``. A single record is of a scan that knows none of these.
    """
    how: tuple[Parameter, ...] = (AXIS, REVERSE)
    runs: tuple[Operand, ...] = ()
    if callable(records):
        how, runs = (*how, EXCLUSIVE), (RESETS, RUN_OFFSETS)
    yield Op(kind, "scan", kind, "forward", forward, (X, *runs), (Y,), _made(records), how)
    yield Op(
        f"{kind}_backward",
        "scan",
        kind,
        "backward",
        backward,
        (DY, *(o for o in (SAVED_X, SAVED_Y) if o.name in saves), *runs),
        (DX,),
        _made(backward_records),
        (*ties, *how),
        frozenset(saves),
    )


def _made(records: Records | Formula) -> Records:
    return records if callable(records) else lambda **_: records


_NAN = "from the first NaN on, the result is NaN"
_TIES = f"ties 'first' or 'last'; {_NAN}"

ROWS = (
    *declare_scan(
        "cumsum",
        Text(
            "y[j] = Σ_{i≤j} x[i]",
            example=("cumsum(np.array([1.0, 2.0, 3.0]))", "array([1., 3., 6.])"),
        ),
        Text(
            "dx[j] = Σ_{i≥j} dy[i]",
            example=("cumsum_backward(np.array([1.0, 2.0, 3.0]))", "array([6., 5., 3.])"),
        ),
        scan.cumsum,
        scan.cumsum_backward,
    ),
    *declare_scan(
        "cumprod",
        Text(
            "y[j] = Π_{i≤j} x[i]",
            "no overflow or underflow inside",
            ("cumprod(np.array([2.0, 0.0, 4.0]))", "array([2., 0., 0.])"),
        ),
        Text(
            "dx[j] = P[j]·R[j], P[j] = Π_{i<j} x[i], R[j] = dy[j] + x[j+1]·R[j+1]",
            "exact with any number of zeros; no overflow inside unless the result overflows",
            (
                "cumprod_backward(np.ones(3), x=np.array([2.0, 0.0, 4.0]), "
                "y=np.array([2.0, 0.0, 0.0]))",
                "array([ 1., 10.,  0.])",
            ),
        ),
        scan.cumprod,
        scan.cumprod_backward,
        ("x", "y"),
    ),
    *declare_scan(
        "cummax",
        Text(
            "y[j] = max_{i≤j} x[i]",
            _NAN,
            ("cummax(np.array([1.0, 3.0, 2.0]))", "array([1., 3., 3.])"),
        ),
        Text(
            "dx[j] = Σ dy[i] over the i whose running maximum sits at j",
            _TIES,
            (
                "cummax_backward(np.ones(3), x=np.array([1.0, 3.0, 2.0]))",
                "array([1., 2., 0.])",
            ),
        ),
        scan.cummax,
        scan.cummax_backward,
        ("x",),
        (FIRST_OR_LAST,),
    ),
    *declare_scan(
        "cummin",
        Text(
            "y[j] = min_{i≤j} x[i]",
            _NAN,
            ("cummin(np.array([3.0, 1.0, 2.0]))", "array([3., 1., 1.])"),
        ),
        Text(
            "dx[j] = Σ dy[i] over the i whose running minimum sits at j",
            _TIES,
            (
                "cummin_backward(np.ones(3), x=np.array([3.0, 1.0, 2.0]))",
                "array([1., 2., 0.])",
            ),
        ),
        scan.cummin,
        scan.cummin_backward,
        ("x",),
        (FIRST_OR_LAST,),
    ),
    *declare_scan(
        "logcumsumexp",
        Text(
            "y[j] = log Σ_{i≤j} exp(x[i])",
            "every exponent ≤ 0; a −inf prefix gives −inf",
            ("logcumsumexp(np.zeros(2))", "array([0.        , 0.69314718])"),
        ),
        Text(
            "dx[k] = exp(x[k]−y[k])·S[k], S[k] = dy[k] + exp(y[k]−y[k+1])·S[k+1]",
            "every exponent ≤ 0; x = −inf gives 0; a −inf prefix gives 0, never NaN",
            (
                "logcumsumexp_backward(np.ones(2), x=np.zeros(2), y=np.log([1.0, 2.0]))",
                "array([1.5, 0.5])",
            ),
        ),
        scan.logcumsumexp,
        scan.logcumsumexp_backward,
        ("x", "y"),
    ),
)
