"""Running products of elements narrower than float64, sixteen at a time and hardly scaled.

While factors are moderate, products of sixteen of them stay within 2**±640, and so does what they
make of a carry whose mantissa is near 1: ordinary products have the roundings of scaled ones, and
the carry is brought back to a mantissa and an exponent once for all sixteen. What the exponent of a
carry is held to, 2**±1000, leaves a narrow result 0 or inf with that much more or less.
"""

from __future__ import annotations

from llvmlite import ir

from ...formulas.folds import scaled, scaled_product
from ...formulas.record import ScanFormula
from ...formulas.scan import product_itself
from ..codegen.elementary import ldexp_single
from ..codegen.functions import emitter
from ..codegen.lanes import I64, LANES, Lanes, constant, expected, exponent, mantissa
from ..codegen.watch import bits_of

# Sixteen factors of these magnitudes, or zeros.
LEAST, MOST = 2.0**-40, 2.0**40


def is_narrow_product(formula: ScanFormula, element: str) -> bool:
    """Whether a formula is the running product, of elements whose products float64 has room for."""
    monoid = formula.monoid
    return (
        element != "f64"
        and (monoid.lift, monoid.combine, formula.finish)
        == (scaled, scaled_product, product_itself)
        and formula.prefix is None
        and formula.start is None
    )


@emitter
def are_moderate(builder, first, second):
    """Whether all factors of two vectors are moderate, as is expected, or zero."""
    kind = ir.VectorType(I64, LANES)

    def filled(value):
        return constant([value] * LANES, I64)

    fine = None
    for (v,) in (first, second):
        size = builder.and_(builder.bitcast(v, kind), filled(2**63 - 1))
        above = builder.sub(size, filled(bits_of(LEAST)))
        inside = builder.icmp_unsigned("<=", above, filled(bits_of(MOST) - bits_of(LEAST)))
        inside = builder.or_(inside, builder.icmp_signed("==", size, filled(0)))
        fine = inside if fine is None else builder.and_(fine, inside)
    bits = builder.bitcast(fine, ir.IntType(LANES))
    return expected(builder, builder.icmp_unsigned("==", bits, bits.type(2**LANES - 1)))


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

    state = (mantissa(after).v, (e + exponent(after)).v)
    values = two(before1 * first, before2 * second)
    made = [values, two(before1, before2), one(block_e + e), state]
    return tuple(made)


@emitter
def brought_to(builder, product, e):
    """``ldexp`` of products."""
    v, by = (Lanes(builder, *a) for a in (product, e))
    return (ldexp_single(v, by).v,)
