"""Arithmetic on (value, size) pairs of mpf, with IEEE rules for inf and nan.

mpf already follows IEEE: inf - inf, 0 * inf and inf / inf are nan, exp(-inf) is 0, log(0) is
-inf, comparisons with nan are false. Exponents are unbounded, so nothing finite overflows.
"""

from __future__ import annotations

from collections.abc import Iterable

import mpmath
from mpmath import mpf

INF = mpf("inf")
NAN = mpf("nan")


class Term:
    """A real number and the size of what was added to make it.

    ``size`` is computed by the same formula with every leaf replaced by its absolute value and
    every subtraction by an addition, so one line of maths yields value and condition scale.
    """

    __slots__ = ("size", "value")

    def __init__(self, value: mpf, size: mpf | None = None):
        self.value = value
        self.size = abs(value) if size is None else size

    def __add__(self, other: Term) -> Term:
        return Term(self.value + other.value, self.size + other.size)

    def __sub__(self, other: Term) -> Term:
        return Term(self.value - other.value, self.size + other.size)

    def __mul__(self, other: Term) -> Term:
        return Term(self.value * other.value, self.size * other.size)

    def __truediv__(self, other: Term) -> Term:
        """Divide; the divisors here are never zero and never a sum that could cancel."""
        return Term(self.value / other.value, self.size / abs(other.value))

    @property
    def is_nan(self) -> bool:
        return bool(mpmath.isnan(self.value))

    @property
    def is_finite(self) -> bool:
        return bool(mpmath.isfinite(self.value))


ZERO = Term(mpf(0))
ONE = Term(mpf(1))
# A result that the definition leaves open: whatever comes out is right.
ANYTHING = Term(NAN, INF)


def number(value: float) -> Term:
    """Return a Python number as a term, exactly."""
    return Term(mpf(value))


def total(terms: Iterable[Term]) -> Term:
    return sum(terms, start=ZERO)


def product(terms: Iterable[Term]) -> Term:
    result = ONE
    for term in terms:
        result = result * term
    return result


def exp(term: Term) -> Term:
    return Term(mpmath.exp(term.value))


def sqrt(term: Term) -> Term:
    return Term(mpmath.sqrt(term.value), mpmath.sqrt(term.size))


def log_of_sum(sum_of_exp: Term, largest: Term) -> Term:
    """Return log(sum of exp(x)), given also the largest x for the size |max| + log Σ exp(x-max)."""
    value = mpmath.log(sum_of_exp.value)
    top = largest.value
    return Term(value, abs(top) + (value - top) if mpmath.isfinite(top) else abs(value))


def extreme(terms: list[Term], sign: int) -> Term:
    """Return the largest (sign 1) or smallest (sign -1) term; a nan among them wins."""
    best = terms[0]
    for term in terms[1:]:
        if not best.is_nan and (term.is_nan or sign * term.value > sign * best.value):
            best = term
    return best


def same(a: Term, b: Term) -> bool:
    """Compare as the ops do: nan equals nan."""
    return a.value == b.value or (a.is_nan and b.is_nan)
