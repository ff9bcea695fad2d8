"""Calls of ops of every shape that torch's own do not have, beside torch's own way to the results.

Several inputs, outputs and gradients, operands that may be left out, masks that broadcast, numbers
or tensors, outputs that are asked for, segments by ids or offsets, integers, no gradient at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import pullback.torch as pt
from pullback.core import parse
from pullback.core.declare import Op, Operand, Parameter, Role, Text
from pullback.formulas.primitives import INF
from pullback.formulas.record import Monoid, Pass, RowFormula
from torch_ops import data

# A reduction with two outputs that take gradients, which the catalog does not have.


def both(x):
    return x, x * x


def add_both(a, b, c, d):
    return a + c, b + d


def mean_and_power(total, squares, extent):
    return total / extent, squares


def mean_and_power_backward(x, dmean, dpower, extent):
    return dmean / extent + 2.0 * x * dpower


AXES = Parameter("axis", parse.axes, None, is_positional=True)
MEAN, POWER, D_MEAN, D_POWER = (Operand(n, Role.ROW) for n in ("mean", "power", "dmean", "dpower"))
SUMS = Monoid(both, add_both, (0.0, 0.0), ("total", "squares"))
TWO_RESULTS = (
    Op(
        "mean_and_power",
        "reduce",
        "mean_and_power",
        "forward",
        Text("mean = Σ x / n, power = Σ x²"),
        (Operand("x"),),
        (MEAN, POWER),
        lambda: RowFormula((Pass(SUMS),), finish=mean_and_power),
        (AXES, Parameter("keepdims", parse.flag, False)),
    ),
    Op(
        "mean_and_power_backward",
        "reduce",
        "mean_and_power",
        "backward",
        Text("dx = dmean / n + 2·x·dpower"),
        (D_MEAN, Operand("x"), D_POWER),
        (Operand("dx"),),
        lambda: RowFormula(apply=mean_and_power_backward),
        (AXES,),
    ),
)


BY_IDS = torch.tensor([2, 0, 1, 3, 2])
BY_OFFSETS, AS_IDS = torch.tensor([0, 1, 3, 5]), torch.tensor([0, 1, 1, 2, 2])
ALLOWED = torch.tensor([True, False, True, True])
RESETS, MARKS = torch.tensor([False, True, False, False]), torch.tensor([0, 1, 1, 4])
TARGETS = torch.tensor([3, 0, 2])


def recurrence_by_loop(a, b, initial=None, dim=-1, reverse=False):
    a, b = torch.broadcast_tensors(a, b)
    rows = list(zip(a.unbind(dim), b.unbind(dim), strict=True))
    now, found = torch.zeros_like(rows[0][0]) if initial is None else initial, []
    for one, other in reversed(rows) if reverse else rows:
        now = one * now + other
        found.append(now)
    return torch.stack(found[::-1] if reverse else found, dim), now


def each_segment(of, x, ids):
    """A result per segment; every segment has rows."""
    return torch.stack([of(x[ids == s]) for s in range(int(ids.max()) + 1)])


def each_row(of, x, ids):
    """A result per row."""
    parts = [of(x[ids == s]) for s in range(int(ids.max()) + 1)]
    return torch.cat(parts)[torch.argsort(torch.argsort(ids, stable=True))]


def each_run(of, x):
    """Over the columns in front of the reset, and over those behind."""
    return torch.cat([of(x[:, :1]), of(x[:, 1:])], 1)


def allowed(x, otherwise):
    return torch.where(ALLOWED, x, otherwise)


@dataclass(frozen=True)
class Shape:
    """A call of one of the ops on float tensors, and torch's own way to the same results."""

    name: str
    kind: str
    shapes: tuple[tuple[int, ...], ...]
    ours: Callable[..., Any]
    torchs: Callable[..., Any]

    def inputs(self) -> list[torch.Tensor]:
        return [data(s, seed=k) for k, s in enumerate(self.shapes)]

    def leaves(self) -> list[torch.Tensor]:
        return [t.requires_grad_() for t in self.inputs()]

    def __str__(self) -> str:
        return self.name


TABLE = (3, 4)
# One of each shape of op: these go through all of torch's machinery.
SHAPES = [
    Shape(
        "recurrence",
        "linear_recurrence",
        (TABLE, TABLE),
        lambda a, b: pt.linear_recurrence(a, b, 1),
        lambda a, b: recurrence_by_loop(a, b)[0],
    ),
    Shape(
        "recurrence between states",
        "linear_recurrence",
        ((1, 4), TABLE, (3,)),
        lambda a, b, s: pt.linear_recurrence(a, b, initial=s, return_final=True),
        recurrence_by_loop,
    ),
    Shape(
        "softmax with a mask",
        "softmax",
        (TABLE,),
        lambda x: pt.softmax(x, 1, where=ALLOWED),
        lambda x: allowed(x, -INF).softmax(1),
    ),
    Shape(
        "mean with a mask",
        "mean",
        (TABLE,),
        lambda x: pt.mean(x, 1, where=ALLOWED),
        lambda x: allowed(x, 0.0).sum(1) / 3,
    ),
    Shape(
        "largest by ids",
        "segment_max",
        ((5, 2, 2),),
        lambda x: pt.segment_max(x, BY_IDS, 4),
        lambda x: each_segment(lambda r: r.amax(0), x, BY_IDS),
    ),
    Shape(
        "softmax by offsets",
        "segment_softmax",
        ((5, 3),),
        lambda x: pt.segment_softmax(x, offsets=BY_OFFSETS),
        lambda x: each_row(lambda r: r.softmax(0), x, AS_IDS),
    ),
    Shape(
        "two results",
        "mean_and_power",
        ((2, 3, 2),),
        lambda x: pt.mean_and_power(x, (0, 2), True),
        lambda x: (x.mean((0, 2), True), x.square().sum((0, 2), True)),
    ),
    Shape(
        "product of runs by offsets",
        "cumprod",
        (TABLE,),
        lambda x: pt.cumprod(x, 1, offsets=MARKS),
        lambda x: each_run(lambda r: r.cumprod(1), x),
    ),
    Shape(
        "loss by class",
        "cross_entropy",
        (TABLE,),
        lambda x: pt.cross_entropy(x, TARGETS)[0],
        lambda x: torch.nn.functional.cross_entropy(x, TARGETS, reduction="none"),
    ),
    Shape(
        "lerp by a tensor",
        "lerp",
        (TABLE, TABLE, (4,)),
        lambda a, b, w: pt.lerp(a, b, w),
        lambda a, b, w: a + w * (b - a),
    ),
    Shape(
        "discounted sum by a discount that learns",
        "discounted_sum",
        (TABLE, TABLE, (3,)),
        lambda x, g, s: pt.discounted_sum(x, g, done=RESETS, initial=s),
        lambda x, g, s: recurrence_by_loop(torch.where(RESETS, 0.0, g), x, s, -1, True)[0],
    ),
]
# The other kinds and selections: results and gradients.
MORE = [
    Shape(
        "recurrence from a state",
        "linear_recurrence",
        (TABLE, TABLE, (4,)),
        lambda a, b, s: pt.linear_recurrence(a, b, 0, initial=s, reverse=True),
        lambda a, b, s: recurrence_by_loop(a, b, s, 0, True)[0],
    ),
    Shape(
        "recurrence to a state",
        "linear_recurrence",
        (TABLE, TABLE),
        lambda a, b: pt.linear_recurrence(a, b, return_final=True),
        recurrence_by_loop,
    ),
    Shape(
        "recurrence with resets",
        "linear_recurrence",
        (TABLE, TABLE),
        lambda a, b: pt.linear_recurrence(a, b, resets=RESETS),
        lambda a, b: recurrence_by_loop(torch.where(RESETS, 0.0, a), b)[0],
    ),
    Shape(
        "discounted sum",
        "discounted_sum",
        (TABLE,),
        lambda x: pt.discounted_sum(x, 0.5, done=RESETS),
        lambda x: recurrence_by_loop(torch.where(RESETS, 0.0, 0.5), x, None, -1, True)[0],
    ),
    Shape(
        "discounted sum by a tensor",
        "discounted_sum",
        (TABLE,),
        lambda x: pt.discounted_sum(x, data(TABLE, seed=7)),
        lambda x: recurrence_by_loop(data(TABLE, seed=7), x, None, -1, True)[0],
    ),
    Shape(
        "sum with a mask",
        "sum",
        (TABLE,),
        lambda x: pt.sum(x, 1, where=ALLOWED),
        lambda x: x[:, ALLOWED].sum(1),
    ),
    Shape(
        "max with a mask",
        "max",
        (TABLE,),
        lambda x: pt.amax(x, 1, where=ALLOWED),
        lambda x: x[:, ALLOWED].amax(1),
    ),
    Shape(
        "min with a mask",
        "min",
        (TABLE,),
        lambda x: pt.amin(x, 1, where=ALLOWED),
        lambda x: x[:, ALLOWED].amin(1),
    ),
    Shape(
        "prod with a mask",
        "prod",
        (TABLE,),
        lambda x: pt.prod(x, 1, where=ALLOWED),
        lambda x: x[:, ALLOWED].prod(1),
    ),
    Shape(
        "logsumexp with a mask",
        "logsumexp",
        (TABLE,),
        lambda x: pt.logsumexp(x, 1, where=ALLOWED),
        lambda x: x[:, ALLOWED].logsumexp(1),
    ),
    Shape(
        "var with a mask",
        "var",
        (TABLE,),
        lambda x: pt.var(x, 1, where=ALLOWED),
        lambda x: x[:, ALLOWED].var(1),
    ),
    Shape(
        "std with a mask",
        "std",
        (TABLE,),
        lambda x: pt.std(x, 1, where=ALLOWED),
        lambda x: x[:, ALLOWED].std(1),
    ),
    Shape(
        "norm with a mask",
        "norm2",
        (TABLE,),
        lambda x: pt.norm2(x, 1, where=ALLOWED),
        lambda x: x[:, ALLOWED].norm(dim=1),
    ),
    Shape(
        "largest by offsets",
        "segment_max",
        ((5, 3),),
        lambda x: pt.segment_max(x, offsets=BY_OFFSETS),
        lambda x: each_segment(lambda r: r.amax(0), x, AS_IDS),
    ),
    Shape(
        "segment sum",
        "segment_sum",
        ((5, 3),),
        lambda x: pt.segment_sum(x, offsets=BY_OFFSETS),
        lambda x: each_segment(lambda r: r.sum(0), x, AS_IDS),
    ),
    Shape(
        "segment mean",
        "segment_mean",
        ((5, 3),),
        lambda x: pt.segment_mean(x, offsets=BY_OFFSETS),
        lambda x: each_segment(lambda r: r.mean(0), x, AS_IDS),
    ),
    Shape(
        "segment min",
        "segment_min",
        ((5, 3),),
        lambda x: pt.segment_min(x, offsets=BY_OFFSETS),
        lambda x: each_segment(lambda r: r.amin(0), x, AS_IDS),
    ),
    Shape(
        "segment prod",
        "segment_prod",
        ((5, 3),),
        lambda x: pt.segment_prod(x, offsets=BY_OFFSETS),
        lambda x: each_segment(lambda r: r.prod(0), x, AS_IDS),
    ),
    Shape(
        "segment logsumexp",
        "segment_logsumexp",
        ((5, 3),),
        lambda x: pt.segment_logsumexp(x, offsets=BY_OFFSETS),
        lambda x: each_segment(lambda r: r.logsumexp(0), x, AS_IDS),
    ),
    Shape(
        "log softmax by ids",
        "segment_log_softmax",
        ((5, 3),),
        lambda x: pt.segment_log_softmax(x, BY_IDS, 4),
        lambda x: each_row(lambda r: r.log_softmax(0), x, BY_IDS),
    ),
    Shape(
        "exclusive running sum",
        "cumsum",
        (TABLE,),
        lambda x: pt.cumsum(x, 1, exclusive=True, reverse=True),
        lambda x: x.flip(1).cumsum(1).flip(1) - x,
    ),
    Shape(
        "cumsum of runs",
        "cumsum",
        (TABLE,),
        lambda x: pt.cumsum(x, 1, resets=RESETS),
        lambda x: each_run(lambda r: r.cumsum(1), x),
    ),
    Shape(
        "cummax of runs",
        "cummax",
        (TABLE,),
        lambda x: pt.cummax(x, 1, resets=RESETS),
        lambda x: each_run(lambda r: r.cummax(1).values, x),
    ),
    Shape(
        "cummin of runs",
        "cummin",
        (TABLE,),
        lambda x: pt.cummin(x, 1, resets=RESETS),
        lambda x: each_run(lambda r: r.cummin(1).values, x),
    ),
    Shape(
        "logcumsumexp of runs",
        "logcumsumexp",
        (TABLE,),
        lambda x: pt.logcumsumexp(x, 1, resets=RESETS),
        lambda x: each_run(lambda r: r.logcumsumexp(1), x),
    ),
    Shape(
        "smoothed loss by class",
        "cross_entropy",
        (TABLE,),
        lambda x: pt.cross_entropy(x, TARGETS, ignore_index=2, label_smoothing=0.25)[0],
        lambda x: torch.nn.functional.cross_entropy(
            x, TARGETS, ignore_index=2, label_smoothing=0.25, reduction="none"
        ),
    ),
]
