"""lerp: a + w·(b − a), whose gradient is (1 − w)·dy, w·dy and, by the weight, (b − a)·dy."""

from __future__ import annotations

from .record import RowFormula


def lerp(a, b, weight):
    return a + weight * (b - a)


def lerp_backward(dy, weight):
    return (1.0 - weight) * dy, weight * dy


def lerp_backward_of_all(dy, weight, a, b):
    return (1.0 - weight) * dy, weight * dy, (b - a) * dy


LERP = RowFormula(apply=lerp)
LERP_BACKWARD = RowFormula(apply=lerp_backward)
LERP_BACKWARD_OF_ALL = RowFormula(apply=lerp_backward_of_all)
