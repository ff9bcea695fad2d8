"""Running products of elements narrower than float64, hardly scaled.

Eight factors are multiplied as they are. Products of up to four of them cannot leave the range of a
float64; where that of all eight stays moderate, so do those of five to seven. The roundings are
those of scaled products then, and the carry is brought back to a mantissa and an exponent once for
all. What the exponent of a carry is held to, 2**±1000, leaves a narrow result 0 or inf with 2**±750
more or less.
"""

from __future__ import annotations

from ..codegen.elementary import ldexp_single
from ..codegen.functions import emitter
from ..codegen.lanes import Lanes, absolute, expected, exponent, mantissa
from ..codegen.registers import any_piece, pieces

# Products of eight factors that three more or less, of up to 2**149, leave within 2**750: of eight
# alone, and of two times eight.
OF_EIGHT, OF_TWICE_EIGHT = 2.0**300, 2.0**150


def _are_moderate(builder, totals, most: float):
    """Whether no lane is far from 1, as is expected."""
    far = []
    for (v,) in totals:
        for (part,) in pieces(builder, [v]):
            size = absolute(Lanes(builder, part))
            near = (size >= 1.0 / most) & (size <= most)
            far.append(builder.not_(near.v))
    return expected(builder, builder.not_(any_piece(builder, far)))


@emitter
def two_are_moderate(builder, totals):
    """Whether the products of two chunks are moderate."""
    return _are_moderate(builder, totals, OF_TWICE_EIGHT)


@emitter
def is_moderate(builder, total):
    """Whether the product of a chunk is."""
    return _are_moderate(builder, [total], OF_EIGHT)


def _scaled(builder, product, e):
    """A state: a product and an exponent."""
    return mantissa(product).v, (e + exponent(product)).v


@emitter
def products_of_two(builder, block_carry, carried, states, totals):
    """Of two chunks, what each place's product is but for ``ldexp``, and what is carried on.

    ``before`` are the products in front of them, likewise; the exponent is that of both chunks.
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
    made = [values, two(before1, before2), one(block_e + e), _scaled(builder, after, e)]
    return tuple(made)


@emitter
def brought_to(builder, product, e):
    """``ldexp`` of products."""
    v, by = (Lanes(builder, *a) for a in (product, e))
    return (ldexp_single(v, by).v,)


def products_of_eight(inclusive: bool):
    """``products(block_carry, carried, states)``: outputs of eight positions, and the carry."""

    @emitter
    def products(builder, block_carry, carried, states):
        (block_m, block_e), (m, e) = (
            [Lanes(builder, v) for v in a] for a in (block_carry, carried)
        )
        own = [Lanes(builder, *state) for state in states]
        before, by = block_m * m, block_e + e
        found = [before * product for product in own]
        if not inclusive:
            found = [before, *found[:-1]]
        values = tuple((ldexp_single(v, by).v,) for v in found)
        return values, _scaled(builder, m * own[-1], e)

    return products
