"""Sums and products with the error of their rounding, which is a number of the same type.

A number held as two, the second within half an ulp of the first, has twice the digits.
"""

from __future__ import annotations

# Times this, less the excess: the upper half of the digits of a float64.
HALVES = 2.0**27 + 1.0


def exact_sum(a, b):
    """a + b as two numbers."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def exact_product(a, b):
    """a·b as two numbers, of sizes below 2**990; digits below 2**-1074 are lost."""
    scaled = a * HALVES
    a_high = scaled - (scaled - a)
    scaled = b * HALVES
    b_high = scaled - (scaled - b)
    a_low, b_low = a - a_high, b - b_high
    product = a * b
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def add_exactly(a1, a2, b1, b2):
    """The sum of two numbers held as two; the second of it need not be small."""
    total, error = exact_sum(a1, b1)
    return total, (a2 + b2) + error
