"""States of scaled products in front of a piece, where products are not scaled.

A scan of scaled products is first tried with plain ones, to which mantissas are the numbers and
exponents are 0. There a state that comes as mantissa and exponent must be made a number.
"""
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from ..formulas.primitives import INF, exponent, power_of_two, where


def is_plain(m):
    return exponent(m * 0.0 + 1.5) == 0


def multiplied(m, e):
    """A product so far. A tiny one stays tiny: of it plain products of float32 make zeros, as they
    should, and those of float64 are given up."""
    value = m * power_of_two(where(e < -1000, -1000.0, e))
    return where(is_plain(m), value, m), where(is_plain(m), 0.0, e)


def passed_on(m, e):
    """A sum so far: where it is tiny plain sums are given up."""
    value = where((e < -1000) & (m != 0), INF, m * power_of_two(e))
    return where(is_plain(m), value, m), where(is_plain(m), 0.0, e)
