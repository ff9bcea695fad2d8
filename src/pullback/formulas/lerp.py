"""lerp: a + w·(b − a), whose gradient is (1 − w)·dy and w·dy; the weight is a constant."""

from __future__ import annotations

from .record import RowFormula


def lerp(a, b, weight):
    return a + weight * (b - a)


def lerp_backward(dy, weight):
    return (1.0 - weight) * dy, weight * dy


LERP = RowFormula(apply=lerp)
LERP_BACKWARD = RowFormula(apply=lerp_backward)
