"""Ops declared for the Triton tests, with operands and outputs of every role and type."""

from __future__ import annotations

import new_ops
import test_segment_records as records
from pullback.core import parse
from pullback.core.declare import Op, Operand, Parameter, Role, Type
from pullback.core.rows.shared import AXIS
from pullback.formulas.folds import PEAK, add, recurrence
from pullback.formulas.primitives import INF, exp, log, where
from pullback.formulas.record import Monoid, Pass, RowFormula, ScanFormula

# A sum of what comes before, begun anew at marked positions.


def sum_step(x, resets):
    return where(resets, 0.0, 1.0), x


def before_here(resets, passed):
    return where(resets, 0.0, passed)


STATE = ("factor", "passed")
RESETS = Operand("resets", type=Type.BOOL)


def scan_op(name, reads, record):
    return Op(
        name, "scan", name, "forward", "", reads, (Operand("y"),), lambda: record,
        new_ops.HOW,
    )  # fmt: skip


EXCLUSIVE = scan_op(
    "cumsum_with_resets",
    (Operand("x"), RESETS),
    ScanFormula(Monoid(sum_step, recurrence, (1.0, 0.0), STATE), before_here, False, False),
)


# The loss of integer targets, with outputs of every type.


def exp_below(logits, peak):
    return exp(logits - peak)


def picked(logits, index, target):
    return where(index == target, logits, 0.0)


def loss_and_lse(peak, total, chosen, target, ignore_index):
    lse = peak + log(total)
    ignored = target == ignore_index
    return where(ignored, 0.0, lse - chosen), where(ignored, 0.0, lse), ignored, target


def value_of(logits):
    return logits


CROSS_ENTROPY = Op(
    "cross_entropy",
    "softmax",
    "cross_entropy",
    "forward",
    "",
    (Operand("logits"), Operand("target", Role.ROW, Type.INDEX)),
    (
        Operand("loss", Role.ROW),
        Operand("lse", Role.ROW, Type.STATE),
        Operand("ignored", Role.ROW, Type.BOOL),
        Operand("again", Role.ROW, Type.INDEX),
    ),
    lambda: RowFormula(
        (
            Pass(Monoid(value_of, PEAK.combine, (-INF,), ("peak",))),
            Pass(Monoid(exp_below, add, (0.0,), ("total",))),
            Pass(Monoid(picked, add, (0.0,), ("chosen",))),
        ),
        finish=loss_and_lse,
    ),
    (AXIS, Parameter("ignore_index", parse.real, -100, is_data=True)),
)


# A weight array.


def mixed(a, b, weight):
    return a + weight * (b - a)


def mixed_backward(dy, a, b, weight):
    return (1.0 - weight) * dy, weight * dy, dy * (b - a), 1.0


WEIGHTED = tuple(map(Operand, ("a", "b", "weight")))
MIX = Op(
    "mix", "lerp", "mix", "forward", "", WEIGHTED, (Operand("y"),), lambda: RowFormula(apply=mixed)
)
MIX_BACKWARD = Op(
    "mix_backward",
    "lerp",
    "mix",
    "backward",
    "",
    (Operand("dy"), *WEIGHTED),
    tuple(map(Operand, ("da", "db", "dweight", "one"))),
    lambda: RowFormula(apply=mixed_backward),
)


# Segments with a mask, and a state for each.


def masked_total(x, mask, scale):
    return where(mask, x * scale, 0.0)


def over_total(x, x_before, mask, first, total):
    return where(mask & (first == (x != x)), x_before / total, total), mask


MASKED_SEGMENTS = records.op(
    "masked",
    "forward",
    (
        records.X,
        records.IDS,
        Operand("mask", type=Type.BOOL),
        Operand("scale", Role.ROW, Type.STATE),
    ),
    (records.Y, Operand("flag", type=Type.BOOL)),
    RowFormula((Pass(Monoid(masked_total, add, (0.0,), ("total",))),), apply=over_total),
)
