"""Ops on rows that ids or offsets cut into segments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...formulas import reduce, segment, softmax
from ...formulas.primitives import INF
from ...formulas.product import SEGMENT_PRODUCT_BY_COUNTS
from ...formulas.record import Formula
from .. import parse
from ..declare import Op, Operand, Parameter, Role, Text, Type
from .shared import by_ties, ties

IDS = Operand(
    "segment_ids", Role.IDS, Type.INDEX, optional=True, doc="The segment of each row, an integer."
)
OFFSETS = Operand(
    "offsets",
    Role.OFFSETS,
    Type.INDEX,
    optional=True,
    doc="Instead of ids: where each segment begins, and where the last one ends.",
)
CUTS = (IDS, OFFSETS)
INPUT = Operand("input", known_as="x", doc="The rows; any number of further dimensions.")
OUTPUT = Operand("output", Role.ROW, known_as="y", doc="One row per segment.")
D_OUTPUT = Operand(
    "d_output",
    Role.ROW,
    known_as="dy",
    doc="Gradient with respect to the output, one row per segment.",
)
D_INPUT = Operand("d_input", known_as="dx", doc="Gradient with respect to the input.")
Y = Operand("y", doc="The result, of the shape of the input.")
DY = Operand("dy", doc="Gradient with respect to y.")
NUM_SEGMENTS = Parameter(
    "num_segments",
    parse.optional_count,
    None,
    is_positional=True,
    doc="Number of segments; not needed with offsets.",
)
NUM_INPUTS = Parameter(
    "num_inputs", parse.optional_count, None, doc="Number of rows; not needed with ids."
)
SORTED = Parameter(
    "sorted", parse.flag, False, doc="Promises that ids ascend, which saves sorting them."
)
OUT_OF_RANGE = Parameter(
    "out_of_range",
    parse.out_of_range,
    "raise",
    doc='What to do with an id outside [0, num_segments): "raise" or "drop".',
)


def declare_segment(
    kind: str,
    forward: Text,
    backward: Text,
    record: Formula,
    backward_record: Formula | Mapping[str, Formula],
    saves: tuple[str, ...] = (),
    empty: float | None = None,
) -> Iterator[Op]:
    """An op with a row for every segment, and its backward, which reads ``saves``.

    ``empty`` is the value of a segment without rows, where the caller may say another.
    """
    of_nothing: tuple[Parameter, ...] = ()
    if empty is not None:
        doc = "The value of a segment without rows."
        of_nothing = (Parameter("empty", parse.real, empty, is_data=True, doc=doc),)
    yield Op(
        kind,
        "segment",
        kind,
        "forward",
        forward,
        (INPUT, *CUTS),
        (OUTPUT,),
        by_ties(record),
        (NUM_SEGMENTS, SORTED, OUT_OF_RANGE, *of_nothing),
    )
    rows = () if "input" in saves else (NUM_INPUTS,)
    yield Op(
        f"{kind}_backward",
        "segment",
        kind,
        "backward",
        backward,
        (D_OUTPUT, *CUTS, *(o for o in (INPUT, OUTPUT) if o.name in saves)),
        (D_INPUT,),
        by_ties(backward_record),
        (*rows, *ties(backward_record), SORTED, OUT_OF_RANGE),
        frozenset(saves),
    )


def declare_segment_softmax(
    kind: str, forward: Text, backward: Text, record: Formula, backward_record: Formula
) -> Iterator[Op]:
    """An op with a value for every row, and its backward, which reads ``y``."""
    how = (NUM_SEGMENTS, SORTED, OUT_OF_RANGE)
    yield Op(kind, "segment", kind, "forward", forward, (INPUT, *CUTS), (Y,), by_ties(record), how)
    yield Op(
        f"{kind}_backward",
        "segment",
        kind,
        "backward",
        backward,
        (DY, *CUTS, Y),
        (D_INPUT,),
        by_ties(backward_record),
        (replace(NUM_SEGMENTS, is_positional=False), SORTED, OUT_OF_RANGE),
        frozenset({"y"}),
    )


_IDS, _IDS_BACK = (
    "an id out of range raises, or its row is dropped",
    ("an id out of range raises, or its row is 0"),
)
_X = "np.array([[1.0], [2.0], [4.0]])"
_CUT = "np.array([1, 0, 1])"
_SAVES = ("input", "output")


def _shown(kind: str, output: str) -> tuple[str, str]:
    return f"segment_{kind}({_X}, {_CUT}, 2)", output


def _shown_back(kind: str, y: str, dx: str) -> tuple[str, str]:
    return (
        f"segment_{kind}_backward(np.ones((2, 1)), {_CUT}, input={_X}, output=np.array({y}))",
        dx,
    )


ROWS = (
    *declare_segment(
        "segment_sum",
        Text(
            "output[s] = Σ input[n] over ids[n] = s",
            f"empty: 0; {_IDS}",
            _shown("sum", "array([[2.],\n       [5.]])"),
        ),
        Text(
            "d_input[n] = d_output[ids[n]]",
            _IDS_BACK,
            (
                f"segment_sum_backward(np.array([[2.0], [5.0]]), {_CUT})",
                "array([[5.],\n       [2.],\n       [5.]])",
            ),
        ),
        reduce.SUM,
        reduce.SUM_BACKWARD,
    ),
    *declare_segment(
        "segment_mean",
        Text(
            "output[s] = Σ input[n] / n_s over ids[n] = s",
            f"empty: 0; {_IDS}",
            _shown("mean", "array([[2. ],\n       [2.5]])"),
        ),
        Text(
            "d_input[n] = d_output[ids[n]] / n_s",
            _IDS_BACK,
            (
                f"segment_mean_backward(np.array([[2.0], [5.0]]), {_CUT})",
                "array([[2.5],\n       [2. ],\n       [2.5]])",
            ),
        ),
        segment.SEGMENT_MEAN,
        reduce.MEAN_BACKWARD,
    ),
    *declare_segment(
        "segment_max",
        Text(
            "output[s] = max input[n] over ids[n] = s",
            f"a NaN wins; empty: −inf, or the value of empty=; {_IDS}",
            _shown("max", "array([[2.],\n       [4.]])"),
        ),
        Text(
            "d_input[n] = d_output[s] where input[n] = output[s], s = ids[n]",
            f"ties 'split', 'all', 'first' or 'last'; NaN equals NaN; {_IDS_BACK}",
            _shown_back("max", "[[2.0], [4.0]]", "array([[0.],\n       [1.],\n       [1.]])"),
        ),
        segment.SEGMENT_MAX,
        reduce.EXTREME_BACKWARD,
        _SAVES,
        empty=-INF,
    ),
    *declare_segment(
        "segment_min",
        Text(
            "output[s] = min input[n] over ids[n] = s",
            f"a NaN wins; empty: +inf, or the value of empty=; {_IDS}",
            _shown("min", "array([[2.],\n       [1.]])"),
        ),
        Text(
            "d_input[n] = d_output[s] where input[n] = output[s], s = ids[n]",
            f"ties 'split', 'all', 'first' or 'last'; NaN equals NaN; {_IDS_BACK}",
            _shown_back("min", "[[2.0], [1.0]]", "array([[1.],\n       [1.],\n       [0.]])"),
        ),
        segment.SEGMENT_MIN,
        reduce.EXTREME_BACKWARD,
        _SAVES,
        empty=INF,
    ),
    *declare_segment(
        "segment_prod",
        Text(
            "output[s] = Π input[n] over ids[n] = s",
            f"no overflow or underflow inside; empty: 1; {_IDS}",
            _shown("prod", "array([[2.],\n       [4.]])"),
        ),
        Text(
            "d_input[n] = d_output[s]·Π input[m] over the other rows m of s = ids[n]",
            f"exact with any number of zeros; {_IDS_BACK}",
            _shown_back("prod", "[[2.0], [4.0]]", "array([[4.],\n       [1.],\n       [1.]])"),
        ),
        reduce.PROD,
        SEGMENT_PRODUCT_BY_COUNTS,
        _SAVES,
    ),
    *declare_segment(
        "segment_logsumexp",
        Text(
            "output[s] = log Σ exp(input[n]) over ids[n] = s",
            f"empty: −inf; {_IDS}",
            (
                "segment_logsumexp(np.zeros((2, 1)), np.array([1, 1]), 2)",
                "array([[      -inf],\n       [0.69314718]])",
            ),
        ),
        Text(
            "d_input[n] = d_output[s]·exp(input[n]−output[s]), s = ids[n]",
            f"output = −inf gives 0; {_IDS_BACK}",
            (
                "segment_logsumexp_backward(np.ones((1, 1)), np.array([0, 0]), "
                "input=np.zeros((2, 1)), output=np.log([[2.0]]))",
                "array([[0.5],\n       [0.5]])",
            ),
        ),
        reduce.LOGSUMEXP,
        reduce.LOGSUMEXP_BACKWARD,
        _SAVES,
    ),
    *declare_segment_softmax(
        "segment_softmax",
        Text(
            "y[n] = exp(input[n]) / Σ exp(input[m]) over ids[m] = ids[n]",
            "an id out of range raises, or its row is 0",
            (
                "segment_softmax(np.zeros((3, 1)), np.array([1, 0, 1]), 2)",
                "array([[0.5],\n       [1. ],\n       [0.5]])",
            ),
        ),
        Text(
            "d_input[n] = y[n]·(dy[n] − Σ y[m]·dy[m] over ids[m] = ids[n])",
            _IDS_BACK,
            (
                "segment_softmax_backward(np.array([[1.0], [0.0]]), np.array([0, 0]), "
                "y=np.full((2, 1), 0.5))",
                "array([[ 0.25],\n       [-0.25]])",
            ),
        ),
        softmax.SOFTMAX,
        softmax.SOFTMAX_BACKWARD,
    ),
    *declare_segment_softmax(
        "segment_log_softmax",
        Text(
            "y[n] = input[n] − log Σ exp(input[m]) over ids[m] = ids[n]",
            "an id out of range raises, or its row is 0",
            (
                "segment_log_softmax(np.zeros((2, 1)), np.array([0, 0]), 1)",
                "array([[-0.69314718],\n       [-0.69314718]])",
            ),
        ),
        Text(
            "d_input[n] = dy[n] − exp(y[n])·Σ dy[m] over ids[m] = ids[n]",
            f"where y = −inf, exp(y) is 0; {_IDS_BACK}",
            (
                "segment_log_softmax_backward(np.array([[1.0], [0.0]]), np.array([0, 0]), "
                "y=np.log(np.full((2, 1), 0.5)))",
                "array([[ 0.5],\n       [-0.5]])",
            ),
        ),
        softmax.LOG_SOFTMAX,
        softmax.LOG_SOFTMAX_BACKWARD,
    ),
)
