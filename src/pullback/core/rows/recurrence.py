"""Linear recurrences, discounted sums and advantages."""

from __future__ import annotations

from dataclasses import replace

from ...formulas import recurrence
from .. import parse
from ..declare import Op, Operand, Parameter, Role, Text, Type
from .shared import AXIS, DX, DY, RESETS, REVERSE, RUN_OFFSETS, SAVED_Y, X, Y

KEYWORD_AXIS = replace(AXIS, is_positional=False)


def _state(name: str, doc: str, **how: object) -> Operand:
    return Operand(name, Role.ROW, Type.STATE, doc=doc, **how)  # type: ignore[arg-type]


A = Operand("a", doc="Factor of the previous state; may be a broadcast view.")
B = Operand("b", doc="What is added at each step; same shape as a.")
INITIAL = _state(
    "initial", "The state before the first step of each row; 0 if not given.", optional=True
)
FINAL = _state(
    "final", "The state after the last step of each row, in float64.", asked_by="return_final"
)
D_FINAL = _state("d_final", "Gradient with respect to the final state.", optional=True)
D_INITIAL = _state("d_initial", "Gradient with respect to the initial state.", asked_by="initial")
RETURN_FINAL = Parameter(
    "return_final", parse.flag, False, doc="Also return the final state, as float64."
)
DISCOUNT = Parameter(
    "discount",
    parse.real,
    is_data=True,
    is_positional=True,
    doc="One number, or one for each step.",
    usual=0.99,
)
DISCOUNTS = Operand("discount", optional=True, broadcasts=True, doc=DISCOUNT.doc)


def _done(name: str, doc: str) -> Operand:
    return Operand(name, type=Type.BOOL, optional=True, broadcasts=True, doc=doc)


DONE = _done("done", "True at the last step of an episode: nothing after that step counts.")

ROWS = (
    Op(
        "linear_recurrence",
        "recurrence",
        "linear_recurrence",
        "forward",
        Text(
            "y[t] = a[t]·y[t−1] + b[t], y[−1] = initial or 0",
            "a = 0 cuts off everything before it, even inf and NaN; a state of 0 passes nothing on",
            ("linear_recurrence(np.full(3, 0.5), np.ones(3))", "array([1.  , 1.5 , 1.75])"),
        ),
        (A, B, INITIAL, RESETS, RUN_OFFSETS),
        (Y, FINAL),
        recurrence.linear_recurrence,
        (AXIS, REVERSE, RETURN_FINAL),
    ),
    Op(
        "linear_recurrence_backward",
        "recurrence",
        "linear_recurrence",
        "backward",
        Text(
            "g[t] = dy[t] + a[t+1]·g[t+1], da[t] = g[t]·y[t−1], db = g, d_initial = a[0]·g[0]",
            "a = 0 cuts off everything behind it; d_initial only if initial is given",
            (
                "linear_recurrence_backward(np.ones(3), a=np.full(3, 0.5), "
                "y=np.array([1.0, 1.5, 1.75]))",
                "(array([0. , 1.5, 1.5]), array([1.75, 1.5 , 1.  ]), None)",
            ),
        ),
        (
            DY,
            replace(A, doc="As in the forward pass."),
            SAVED_Y,
            INITIAL,
            D_FINAL,
            RESETS,
            RUN_OFFSETS,
        ),
        (
            Operand("da", doc="Gradient with respect to a, of the full shape."),
            Operand("db", doc="Gradient with respect to b."),
            D_INITIAL,
        ),
        recurrence.linear_recurrence_backward,
        (AXIS, REVERSE),
        frozenset({"a", "y"}),
    ),
    Op(
        "discounted_sum",
        "recurrence",
        "discounted_sum",
        "forward",
        Text(
            "y[t] = x[t] + γ[t]·(1−done[t])·y[t+1]",
            "nothing crosses a step that is done, not even inf or NaN",
            ("discounted_sum(np.ones(3), 0.5)", "array([1.75, 1.5 , 1.  ])"),
        ),
        (
            X,
            DISCOUNTS,
            DONE,
            replace(INITIAL, doc="The sum after the last step of each row; 0 if not given."),
        ),
        (Y,),
        recurrence.discounted_sum,
        (DISCOUNT, KEYWORD_AXIS),
    ),
    Op(
        "discounted_sum_backward",
        "recurrence",
        "discounted_sum",
        "backward",
        Text(
            "dx[t] = dy[t] + γ[t−1]·(1−done[t−1])·dx[t−1]",
            "nothing crosses a step that is done",
            ("discounted_sum_backward(np.ones(3), discount=0.5)", "array([1.  , 1.5 , 1.75])"),
        ),
        (DY, DISCOUNTS, DONE),
        (DX,),
        recurrence.discounted_sum_backward,
        (DISCOUNT, KEYWORD_AXIS),
    ),
    Op(
        "gae",
        "recurrence",
        "gae",
        "forward",
        Text(
            "A[t] = δ[t] + γλ·(1−(terminated or truncated))·A[t+1], "
            "δ[t] = r[t] + γ·(1−terminated)·v′[t] − v[t]; returns = A + v",
            "the value after a terminated step is not read",
            (
                "gae(np.ones(2), np.zeros(2), np.zeros(2), gamma=0.5, lam=1.0)",
                "(array([1.5, 1. ]), array([1.5, 1. ]))",
            ),
        ),
        (
            Operand("rewards", doc="The reward of each step."),
            Operand("values", doc="The value of the state each step begins in."),
            Operand("next_values", doc="The value of the state each step leads to."),
            _done(
                "terminated",
                "True where the state a step leads to is terminal, and so has no value.",
            ),
            _done(
                "truncated",
                "True where an episode was cut short: the state has a value, but no next step.",
            ),
        ),
        (
            Operand("advantages", doc="The advantages A."),
            Operand("returns", doc="The returns A + v."),
        ),
        recurrence.gae,
        (
            Parameter(
                "gamma", parse.fraction, is_data=True, doc="The discount, from 0 to 1.", usual=0.99
            ),
            Parameter(
                "lam", parse.fraction, is_data=True, doc="The weight of later steps, from 0 to 1."
            ),
            KEYWORD_AXIS,
        ),
    ),
)
