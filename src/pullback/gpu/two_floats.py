"""Sums carried in two floats: the sum as it is rounded, and all that was rounded off.

What an addition rounds off is a float itself, found by six additions (Knuth's two_sum). Added up
beside the sum it makes for twice the digits without a unit for float64, of which many cards have a
sixty-fourth. An infinite sum leaves NaN beside it, which is then left out.
"""

from __future__ import annotations

LOST = "_lost"
# Added to anything it changes nothing, of which 0.0 would change -0.0.
NOTHING = -0.0


def with_lost(a, b):
    """A sum, and what it lost in rounding."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def add_twofold(total, lost, more):
    """A sum and all that it has lost, with one number more."""
    total, rounded = with_lost(total, more)
    return total, lost + rounded
