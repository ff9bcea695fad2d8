"""Formula functions for Triton: the same code objects, with their names bound to Triton's.

A bound function keeps the code of the formula it was made from (``bound.fn.__code__``); only the
globals it looks names up in are new.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from ..formulas.bind import Binder
from .primitives import PRIMITIVES


class _Nan(tl.constexpr):
    """A constant NaN that equals itself, as Triton's check for changed globals wants it."""

    def __eq__(self, other):
        return isinstance(other, _Nan)

    def __ne__(self, other):
        return not isinstance(other, _Nan)

    __hash__ = object.__hash__


def _constant(value: float):
    return _Nan(value) if math.isnan(value) else tl.constexpr(value)


bind = Binder(PRIMITIVES, wrap=triton.jit, constant=_constant, scope={"tl": tl})
