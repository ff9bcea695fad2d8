"""Running products, hardly scaled.

Eight factors are multiplied as they are. Of elements narrower than float64, products of up to four
cannot leave the range of a float64; where that of all eight stays moderate, so do those of five to
seven. Factors of float64 must be moderate themselves. The roundings are those of scaled products
then, and the carry is brought back to a mantissa and an exponent only where it is far from 1.

What the exponent of a carry is held to, 2**±1000, leaves a narrow result 0 or inf with 2**±800 more
or less. A float64 result is its product times a power of two, which rounds once, where that is a
normal number; else ``ldexp`` is called.
"""

from __future__ import annotations

from ..codegen.elementary import ldexp, ldexp_single
from ..codegen.functions import emitter, inlined
from ..codegen.lanes import (
    Lanes,
    absolute,
    expected,
    exponent,
    mantissa,
    normal_power_of_two,
)
from ..codegen.registers import any_piece, pieces

# A carry, and products of eight factors: of eight alone, and of two times eight. Three factors more
# or less, of up to 2**149, leave all that is made of them within 2**800.
CARRY, OF_EIGHT, OF_TWICE_EIGHT = 2.0**100, 2.0**240, 2.0**120
# A factor of float64, whose products of twice eight and a carry stay within 2**741, and an exponent
# whose power of two is normal.
OF_ONE, NORMAL = 2.0**40, 1022.0


def _hold(builder, vectors, condition):
    """Whether a condition holds in all lanes of some vectors, as is expected."""
    parts = [Lanes(builder, part) for v in vectors for (part,) in pieces(builder, [v])]
    fails = [builder.not_(condition(part).v) for part in parts]
    return expected(builder, builder.not_(any_piece(builder, fails)))


def _within(most: float):
    """Whether a number lies within a power of two of 1."""

    def condition(v):
        size = absolute(v)
        return (size >= 1.0 / most) & (size <= most)

    return condition


def moderate_products(element: str):
    """``two_are(lifted, totals)`` and ``is_moderate(lifted, total)``.

    Whether the products of two chunks, or of one, are moderate: for float64, whether factors are.
    """

    @emitter
    def factors_are(builder, lifted, totals):
        return _hold(builder, [v for (v,) in lifted], _within(OF_ONE))

    @emitter
    def two_are(builder, lifted, totals):
        return _hold(builder, [v for (v,) in totals], _within(OF_TWICE_EIGHT))

    @emitter
    def is_moderate(builder, lifted, total):
        return _hold(builder, total, _within(OF_EIGHT))

    return (factors_are, factors_are) if element == "f64" else (two_are, is_moderate)


@emitter
def _is_near(builder, product):
    return _hold(builder, product, _within(CARRY))


@emitter
def _is_zero(builder, e):
    return _hold(builder, e, lambda v: v == 0.0)


@emitter
def _is_normal(builder, e):
    return _hold(builder, e, lambda v: absolute(v) <= NORMAL)


@emitter
def _rescaled(builder, product, e):
    v, by = (Lanes(builder, *a) for a in (product, e))
    return mantissa(v).v, (by + exponent(v)).v


@inlined
def carried_on(product, e):
    """A state of a product and an exponent."""
    state = (product[0], e[0])
    if not _is_near(product):
        state = _rescaled(product, e)
    return state


def brought_to(element: str):
    """``brought(products, e)``: ``ldexp`` of some products."""

    @emitter
    def narrow(builder, products, e):
        by = Lanes(builder, *e)
        return tuple((ldexp_single(Lanes(builder, *v), by).v,) for v in products)

    @emitter
    def wide(builder, products, e):
        by = Lanes(builder, *e)
        return tuple((ldexp(Lanes(builder, *v), by).v,) for v in products)

    @emitter
    def at_once(builder, products, e):
        power = normal_power_of_two(Lanes(builder, *e))
        return tuple(((Lanes(builder, *v) * power).v,) for v in products)

    @inlined
    def brought_narrow(products, e):
        if not _is_zero(e):
            products = narrow(products, e)
        return products

    @inlined
    def brought_wide(products, e):
        return at_once(products, e) if _is_normal(e) else wide(products, e)

    return brought_wide if element == "f64" else brought_narrow


@emitter
def products_of_two(builder, block_carry, carried, states, totals):
    """Of two chunks, what each place's product is but for ``ldexp``, and what is carried on.

    Then the products in front of them, likewise, and the exponents: of both chunks, and of what is
    carried on.
    """
    (block_m, block_e), (m, e) = ([Lanes(builder, v) for v in a] for a in (block_carry, carried))
    first, second = (Lanes(builder, *a) for a in states)
    total1, total2 = (Lanes(builder, *a) for a in totals)
    between = m * total1
    after = between * total2
    before1, before2 = block_m * m, block_m * between

    def one(v):
        return (v.v,)

    def two(a, b):
        return (one(a), one(b))

    values = two(before1 * first, before2 * second)
    return values, one(after), two(before1, before2), one(block_e + e), one(e)


def products_of_eight(inclusive: bool):
    """``products(block_carry, carried, states)`` of eight positions, and what is carried on.

    Then the exponents of both.
    """

    @emitter
    def products(builder, block_carry, carried, states):
        (block_m, block_e), (m, e) = (
            [Lanes(builder, v) for v in a] for a in (block_carry, carried)
        )
        own = [Lanes(builder, *state) for state in states]
        before = block_m * m
        found = [before * product for product in own]
        if not inclusive:
            found = [before, *found[:-1]]
        values = tuple((v.v,) for v in found)
        return values, ((m * own[-1]).v,), ((block_e + e).v,), (e.v,)

    return products
