"""Sums carried in two floats: the sum as it is rounded, and all that was rounded off.

What an addition rounds off is a float itself, found by six additions (Knuth's two_sum). Added up
beside the sum it makes for twice the digits without a unit for float64, of which many cards have a
sixty-fourth. An infinite sum leaves NaN beside it, which is then left out.
"""

from __future__ import annotations

from collections.abc import Callable

from ..formulas.folds import add
from ..formulas.norms import three_sums
from ..formulas.record import Monoid
from ..formulas.reduce import sums_and_peak, two_sums


def with_lost(a, b):
    """A sum, and what it lost in rounding."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def add_twofold(total, lost, more, more_lost):
    total, rounded = with_lost(total, more)
    return total, (lost + more_lost) + rounded


def two_sums_twofold(a, b, a_lost, b_lost, more_a, more_b, more_a_lost, more_b_lost):
    a, a_lost = add_twofold(a, a_lost, more_a, more_a_lost)
    b, b_lost = add_twofold(b, b_lost, more_b, more_b_lost)
    return a, b, a_lost, b_lost


def three_sums_twofold(
    a, b, c, a_lost, b_lost, c_lost, more_a, more_b, more_c, more_a_lost, more_b_lost, more_c_lost
):
    a, a_lost = add_twofold(a, a_lost, more_a, more_a_lost)
    b, b_lost = add_twofold(b, b_lost, more_b, more_b_lost)
    c, c_lost = add_twofold(c, c_lost, more_c, more_c_lost)
    return a, b, c, a_lost, b_lost, c_lost


def sums_and_peak_twofold(
    a, b, peak, a_lost, b_lost, more_a, more_b, more, more_a_lost, more_b_lost
):
    a, a_lost = add_twofold(a, a_lost, more_a, more_a_lost)
    b, b_lost = add_twofold(b, b_lost, more_b, more_b_lost)
    _, _, peak = sums_and_peak(a, b, peak, a, b, more)
    return a, b, peak, a_lost, b_lost


# What combines, in two floats, and how many components of its state are sums; they come first.
_TWOFOLD: dict[Callable, tuple[Callable, int]] = {
    add: (add_twofold, 1),
    two_sums: (two_sums_twofold, 2),
    three_sums: (three_sums_twofold, 3),
    sums_and_peak: (sums_and_peak_twofold, 2),
}
LOST = "_lost"
# Added to anything it changes nothing, of which 0.0 would change -0.0.
NOTHING = -0.0


def in_two_floats(monoid: Monoid) -> Monoid | None:
    """The monoid with what its sums have lost, as further components; None if it does not add."""
    if monoid.combine not in _TWOFOLD:
        return None
    combine, sums = _TWOFOLD[monoid.combine]
    lost = tuple(f"{n}{LOST}" for n in monoid.state[:sums])
    return Monoid(
        monoid.lift, combine, (*monoid.identity, *(NOTHING,) * sums), (*monoid.state, *lost)
    )
