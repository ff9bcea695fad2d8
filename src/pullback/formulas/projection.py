"""sparsemax and entmax15: the projections of a row on the distributions over its elements.

With tau such that Σ y = 1, sparsemax is y = max(x − tau, 0) and entmax15 y = max(x/2 − tau, 0)².
Both sums fall as tau rises and are convex, so Newton's method from below rises to tau and never
past it. It begins at 1 below the largest element, where one element alone is 1 already. Elements
below it are out at once, and what is out of the support stays out.

sparsemax is linear between elements: a step of Newton's method is tau = (Σ x − 1)/n over the
support so far (Michelot). If no element leaves the support, tau is found. For entmax15 the steps
are those of the root of the sum, sqrt(Σ max(x/2 − tau, 0)²) = 1, which is nearly straight.

How often. Of a convex function f that falls with slopes g, Newton's method from below gives
f'/f + g'/g <= 1 from one step to the next, so that f·g becomes at least four times smaller. It
begins below n² for both. A step is f/g with g >= 1, and a step of less than 2**-107 of tau, which
is at most −1/n, is none. So n elements take at most (3·log2(n) + 107)/2 steps, 128 for 2**49, and
in practice 4 to 12.

Numbers of a row are taken as differences from its largest element and summed with their rounding
errors, so that tau has twice the digits of a float64: tau + low. An element is in the support if it
is above that.
"""

from __future__ import annotations

from .exact import add_exactly, exact_product, exact_sum
from .folds import PEAK
from .primitives import INF, isnan, sqrt, where
from .record import Again, Monoid, Pass, RowFormula

MOST_STEPS = 128
# A step with half of its digits wrong is then good to 2**-80.
SHORT = 2.0**-40
# Times tau, which is negative: below tau + low, which differs from tau by roundings if it is below.
FURTHER = 1.0 + 2.0**-20


def below_peak(x, peak):
    """x − peak as two numbers; −3 stands for less than −2, which is out of either support.

    All of several +inf are the largest; of −inf alone nothing is.
    """
    difference, error = exact_sum(x, -peak)
    alike, far = (x == peak) & (x > -INF), difference < -2.0
    difference = where(alike, 0.0, where(far, -3.0, difference))
    return difference, where(alike | far, 0.0, error)


# sparsemax


def first_tau(peak):
    return -1.0, 0.0


def above_tau(x, peak, tau, low):
    """How far x is above tau; 0 or less out of the support."""
    difference, error = below_peak(x, peak)
    return (difference - tau) + (error - low)


def support(x, peak, tau, low):
    difference, error = below_peak(x, peak)
    inside = (difference - tau) + (error - low) > 0
    return where(inside, difference, 0.0), where(inside, error, 0.0), where(inside, 1.0, 0.0)


def add_support(total1, error1, count1, total2, error2, count2):
    total, error = add_exactly(total1, error1, total2, error2)
    return total, error, count1 + count2


def may_be_above_tau(x, peak, tau):
    return (x >= peak + tau * FURTHER) | isnan(peak)


def next_tau(total, error, count, tau, low):
    """(Σ − 1)/count as two numbers, if that is more than before."""
    rest, lost = exact_sum(total, -1.0)
    quotient = rest / count
    product, rounded = exact_product(quotient, count)
    found, more = exact_sum(quotient, (((rest - product) - rounded) + (lost + error)) / count)
    rises = (found > tau) | ((found == tau) & (more > low))
    return where(rises, found, tau), where(rises, more, low)


def sparsemax(x, peak, tau, low):
    gap = above_tau(x, peak, tau, low)
    return where(gap <= 0, 0.0, gap)


SPARSEMAX = RowFormula(
    (
        Pass(PEAK),
        Pass(
            Monoid(
                support,
                add_support,
                (0.0, 0.0, 0.0),
                ("total", "error", "count"),
                counts=may_be_above_tau,
            ),
            next_tau,
            ("tau", "low"),
            again=Again(first_tau, MOST_STEPS, ("tau", "low")),
        ),
    ),
    apply=sparsemax,
    counts=may_be_above_tau,
)


# entmax15


def above_half_tau(x, peak, tau):
    """x/2 − tau as two numbers."""
    difference, error = below_peak(x, peak)
    gap, lost = exact_sum(0.5 * difference, -tau)
    return exact_sum(gap, lost + 0.5 * error)


def first_half_tau(peak):
    return -1.0, 0.0, 0.0


def squares(x, peak, tau, top):
    gap, error = above_half_tau(x, peak, tau)
    inside = gap > 0
    near = inside & (gap <= top - tau)
    gap, error = where(inside, gap, 0.0), where(inside, error, 0.0)
    square, rounded = exact_product(gap, gap)
    rounded = rounded + 2.0 * gap * error
    return square, rounded, gap, where(inside, 1.0, 0.0), where(near, 1.0, 0.0)


def add_squares(
    square1, error1, gaps1, count1, near1, square2, error2, gaps2, count2, near2
):  # fmt: skip
    square, error = add_exactly(square1, error1, square2, error2)
    return square, error, gaps1 + gaps2, count1 + count2, near1 + near2


def half_may_be_above_tau(x, peak, tau):
    return (x >= peak + 2.0 * tau * FURTHER) | isnan(peak)


def next_half_tau(square, error, gaps, count, near, tau, top):
    """A step of Newton's method from tau; at last, what is left of the way.

    ``top`` is where the sum over the support so far is 1: the smaller root t of
    count·t² − 2·gaps·t + (square − 1) above tau, in a form without cancellation. That is not below
    the tau that is sought, because what leaves the support meanwhile has squares, too. If no
    element lies between, it is that tau: a step there, if it is a long one, leaves a short one,
    whose own rounding does not count.
    """
    excess = (square - 1.0) + error
    root = sqrt(square)
    risen = tau + excess * root / ((root + 1.0) * gaps)
    inner = gaps * gaps - count * excess
    left = excess / (gaps + sqrt(inner))
    found = where(inner >= 0, tau + left, top)
    after = where(near > 0, risen, found)
    rises = (after > tau) & ((near > 0) | (left > SHORT))
    return where(rises, after, tau), where(rises, 0.0, left), where(rises, found, top)


def entmax15(x, peak, tau, low):
    difference, error = below_peak(x, peak)
    # Near enough to low to cancel, the first difference is exact.
    above = (0.5 * difference - tau) + (0.5 * error - low)
    return where(above <= 0, 0.0, above * above)


ENTMAX15 = RowFormula(
    (
        Pass(PEAK),
        Pass(
            Monoid(
                squares,
                add_squares,
                (0.0, 0.0, 0.0, 0.0, 0.0),
                ("square", "error", "gaps", "count", "near"),
                counts=half_may_be_above_tau,
            ),
            next_half_tau,
            ("tau", "low", "top"),
            again=Again(first_half_tau, MOST_STEPS, ("tau",)),
        ),
    ),
    apply=entmax15,
    counts=half_may_be_above_tau,
)


# Backward: on the support, which is where y is above 0. The Jacobian of y = φ(x − tau) with Σ y = 1
# is diag(s) − s·sᵀ/Σ s with s = φ' there, which is 1 for sparsemax and sqrt(y) for entmax15.


def in_support(dy, y):
    inside = y > 0
    return where(inside, dy, 0.0), where(inside, 1.0, 0.0)


def add_both(a1, b1, a2, b2):
    return a1 + a2, b1 + b2


def mean_of(total, weight):
    return total / weight


def sparsemax_backward(dy, y, mean):
    return where(y > 0, dy - mean, 0.0 * y)


def root_of(y):
    return sqrt(where(y > 0, y, 1.0))


def weighted(dy, y):
    inside = y > 0
    root = root_of(y)
    return where(inside, root * dy, 0.0), where(inside, root, 0.0)


def entmax15_backward(dy, y, mean):
    return where(y > 0, root_of(y) * (dy - mean), 0.0 * y)


def _backward(lift, apply):
    sums = Monoid(lift, add_both, (0.0, 0.0), ("total", "weight"), sums=2)
    return RowFormula((Pass(sums, mean_of, ("mean",)),), apply=apply)


SPARSEMAX_BACKWARD = _backward(in_support, sparsemax_backward)
ENTMAX15_BACKWARD = _backward(weighted, entmax15_backward)
