"""Formulas on float32 lanes: the same source as on float64 lanes, traced with other numbers.

A ``Single`` is a vector of float32 and, where it stands for more than that holds, a second one that
is added to it: a float64 total is two of them. Products use both, so a total costs no accuracy. The
rounding error of a difference is at hand for exp, where it would be one of the result.

float32 has less range than float64. Where a lane may have left it, or comes out infinite or NaN,
``Trace.doubtful`` says so, and the kernel takes that lane from the formula on float64 lanes. What
float32 would compute with a larger error than two units in the last place is refused with
``NotInSingles``, and the whole formula is computed on float64 lanes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from llvmlite import ir

from ...formulas.bind import Binder
from .lanes import DOUBLE, I1, I32, Comparable, compared

FLOAT = ir.FloatType()

# exp(x) is an ordinary number up to this size of x; below NOTHING it is 0 even times the largest
# float32.
EXP_LIMIT, NOTHING = 87.0, -200.0
# What it is off by, in units of 2**-24 of itself, and how small it is within that limit.
EXP_UNITS, EXP_LEAST = 1.7, 2.0**-126
# A row's number outside of this is too small, or too large, for two float32.
LEAST, LARGEST = 2.0**-100, 2.0**120

INVERSE_LN2 = 1.0 / math.log(2.0)
# The first has so few bits that a multiple of it is exact.
LN2_HIGH = float.fromhex("0x1.63p-1")
LN2_LOW = math.log(2.0) - LN2_HIGH
# Adding this to a number below 2**22 rounds it to an integer e and leaves e + 127, the exponent
# field of 2**e, in the low bits.
EXPONENT_MAGIC = 1.5 * 2.0**23 + 127.0
# By tools/fit_exp.py: relative error 2**-27.96.
EXP = tuple(
    float.fromhex(c)
    for c in (
        "0x1.6a244c0000000p-10",
        "0x1.1239d40000000p-7",
        "0x1.5558f20000000p-5",
        "0x1.5554920000000p-3",
        "0x1.fffffc0000000p-2",
    )
)


class NotInSingles(TypeError):
    """A formula asks for what float32 lanes do not do, or not well enough."""


class Trace:
    """The lanes of one evaluation: how many, and in which of them float32 may not do.

    Conditions, which round nothing, may be traced on lanes of float64 as well.
    """

    def __init__(self, builder, count: int, lane: ir.Type = FLOAT):
        self.builder, self.count = builder, count
        self.kind = ir.VectorType(lane, count)
        self._suffix = f"v{count}f{64 if lane is DOUBLE else 32}"
        self.doubtful = ir.VectorType(I1, count)([0] * count)
        # What results are off by, in units of 2**-24 of their size.
        self.units = 0.0
        # Elements that are not 0 are at least this large.
        self.least_element = 0.0
        # Whether a product takes in all of a number that is two, and a sum what its parts left out.
        self.keeps_low, self.settles = True, True

    def doubt(self, mask) -> None:
        self.doubtful = self.builder.or_(self.doubtful, mask)

    def number(self, value: float) -> ir.Constant:
        return self.kind([value] * self.count)

    def single(self, v, low=None, exact: bool = True) -> Single:
        return Single(self, v, low, exact)

    def element(self, v) -> Single:
        """An element as it was read."""
        made = self.single(v)
        made.least = self.least_element
        return made

    def sum_of_rounded(self, a: Single, b: Single) -> Single:
        """A sum of which a part has been rounded."""
        # Where it cancels, the rounding of a product would be most of the result.
        raise NotInSingles("a sum of rounded numbers")

    def is_zero(self, a: Single):
        """Where a number that may be two is 0."""
        raise NotInSingles("a comparison of rounded numbers")

    def call(self, name: str, *args):
        name = f"{name}.{self._suffix}"
        module = self.builder.module
        function = module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(self.kind, [self.kind] * len(args))
            function = ir.Function(module, kind, name)
        return self.builder.call(function, args)

    def fma(self, a, b, c):
        return self.call("llvm.fma", a, b, c)

    def compare(self, sign: str, a, b):
        return self.builder.fcmp_ordered(sign, a, b)

    def of_doubles(self, halves) -> Single:
        """Numbers of rows, eight float64 or two times eight, as two float32 each."""
        builder, wide = self.builder, _joined(self.builder, halves)
        high = builder.fptrunc(wide, self.kind)
        rest = builder.fsub(wide, builder.fpext(high, wide.type))
        size = self.call("llvm.fabs", high)
        inside = builder.and_(
            self.compare(">=", size, self.number(LEAST)),
            self.compare("<=", size, self.number(LARGEST)),
        )
        zero = builder.fcmp_ordered("==", wide, wide.type([0.0] * self.count))
        # What is NaN makes results so, and they are doubtful.
        high = builder.select(builder.or_(inside, zero), high, self.number(math.nan))
        made = self.single(high, builder.fptrunc(rest, self.kind))
        made.least = LEAST
        return made

    def of_elements(self, halves) -> Single:
        """Numbers of rows that float32 holds."""
        return self.single(self.builder.fptrunc(_joined(self.builder, halves), self.kind))

    def results(self, values) -> list:
        """What a formula gave, as vectors; doubtful where not finite."""
        found = []
        for value in values:
            number = as_single(self, value)
            self.units = max(self.units, number.units + (0.0 if number.low is None else 1.0))
            v = number.whole()
            if not number.finite:
                size = self.call("llvm.fabs", v)
                self.doubt(self.builder.not_(self.compare("<", size, self.number(math.inf))))
            found.append(v)
        return found


def _joined(builder, halves):
    if len(halves) == 1:
        return halves[0]
    count = sum(h.type.count for h in halves)
    return builder.shuffle_vector(*halves, ir.VectorType(I32, count)(list(range(count))))


def as_single(trace: Trace, value) -> Single:
    if isinstance(value, Single):
        return value
    if isinstance(value, Condition):
        raise NotInSingles("a condition where a number is wanted")
    high = float(_as_float32(value))
    low = value - high if math.isfinite(high) else 0.0
    made = trace.single(trace.number(high), trace.number(low) if low else None)
    made.least = abs(high) or math.inf
    return made


def _as_float32(value: float) -> float:
    import numpy as np

    with np.errstate(over="ignore"):
        return float(np.float32(value))


class Condition:
    """A truth value per lane."""

    __slots__ = ("trace", "v")

    def __init__(self, trace: Trace, v):
        self.trace, self.v = trace, v

    def __and__(self, other):
        return Condition(self.trace, self.trace.builder.and_(self.v, _condition(other).v))

    def __or__(self, other):
        return Condition(self.trace, self.trace.builder.or_(self.v, _condition(other).v))

    def __bool__(self):
        raise TypeError("a formula must use where(), not if: lanes may differ")


class Single(Comparable):
    """A number per lane: ``v``, with ``low`` beside it where that is not all.

    ``exact`` unless it has been rounded; ``parts`` are what a rounded sum is one of, ``factors``
    what a product is one of. ``finite`` where every lane is, or doubtful already. What is 1 where a
    condition holds, and 0 elsewhere, has it as its ``truth``; what is ``chosen`` is a number where
    a condition holds, and 0 elsewhere. ``inverse()``, of a number that knows it, gives 1 over it.

    ``v`` is off by at most ``units`` of 2**-24 of its size and, if there is an ``error``, by that
    beside. What is not 0 is at least as large as ``least``. What is ``seldom`` is 0 in most lanes.
    A number that all lanes have may be at hand as a float64, ``alone``. What is no more than a
    ``product`` is one of those numbers. An exp is ``positive``.
    """

    __slots__ = (
        "alone", "chosen", "error", "exact", "factors", "finite", "inverse", "least", "low",
        "parts", "positive", "product", "seldom", "trace", "truth", "units", "v",
    )  # fmt: skip
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, trace: Trace, v, low=None, exact: bool = True):
        self.trace, self.v, self.low, self.exact = trace, v, low, exact
        self.parts: tuple | None = None
        self.factors: tuple | None = None
        self.finite = False
        self.truth: Condition | None = None
        self.chosen: tuple[Condition, Single] | None = None
        self.inverse: Callable[[], Single] | None = None
        self.units = 0.0
        self.error: ir.Value | None = None
        self.least, self.seldom = 0.0, False
        self.alone: ir.Value | None = None
        self.product: tuple[Single, Single] | None = None
        self.positive = False

    def whole(self):
        return self.v if self.low is None else self.trace.builder.fadd(self.v, self.low)

    def __neg__(self):
        builder = self.trace.builder
        low = None if self.low is None else builder.fneg(self.low)
        made = Single(self.trace, builder.fneg(self.v), low, self.exact)
        made.units, made.error = self.units, self.error
        made.least, made.seldom = self.least, self.seldom
        if self.product:
            one, other = self.product
            made.product = (one, -other) if one.positive else (-one, other)
        return made

    def __add__(self, other):
        return _sum(self, as_single(self.trace, other))

    __radd__ = __add__

    def __sub__(self, other):
        return _sum(self, -as_single(self.trace, other))

    def __rsub__(self, other):
        return _sum(as_single(self.trace, other), -self)

    def __mul__(self, other):
        return _product(self, as_single(self.trace, other))

    __rmul__ = __mul__

    def __truediv__(self, other):
        return _quotient(self, as_single(self.trace, other))

    def __rtruediv__(self, other):
        return _quotient(as_single(self.trace, other), self)

    def _compare(self, sign, other):
        is_constant = not isinstance(other, (Single, Condition))
        if self.low is not None and self.exact and sign == "==" and is_constant and other == 0:
            return Condition(self.trace, self.trace.is_zero(self))
        other = as_single(self.trace, other)
        if self.low is not None or other.low is not None or not (self.exact and other.exact):
            raise NotInSingles("a comparison of rounded numbers")
        return Condition(self.trace, compared(self.trace.builder, sign, self.v, other.v))


def _condition(value) -> Condition:
    """A condition as it is; of a bool operand, which is read as 1.0 or 0.0, whether it holds."""
    return value if isinstance(value, Condition) else value != 0.0


def _sum(a: Single, b: Single) -> Single:
    trace, builder = a.trace, a.trace.builder
    rounded = a, b
    if not trace.settles and (a.parts or b.parts):
        return trace.sum_of_rounded(a, b)
    a, b = _settled(a), _settled(b)
    if not (a.exact and b.exact):
        return trace.sum_of_rounded(*rounded)
    lows = [s.low for s in (a, b) if s.low is not None]
    low = builder.fadd(*lows) if len(lows) == 2 else lows[0] if lows else None
    made = Single(trace, builder.fadd(a.v, b.v), low, exact=False)
    made.parts, made.units = (a, b), 1.0
    if a.least == b.least == trace.least_element:
        made.least = a.least  # of which both are multiples
    return made


def _settled(a: Single) -> Single:
    """A sum with what it left out beside it."""
    if a.parts is None:
        return a
    error = _rounding_error(a)
    low = error if a.low is None else a.trace.builder.fadd(error, a.low)
    return a.trace.single(a.v, low, all(part.exact for part in a.parts))


def _rounding_error(made: Single):
    """What a sum of two numbers left out, which a float32 holds."""
    assert made.parts is not None
    builder, (a, b) = made.trace.builder, made.parts
    shared = builder.fsub(made.v, a.v)
    first = builder.fsub(a.v, builder.fsub(made.v, shared))
    return builder.fadd(first, builder.fsub(b.v, shared))


def _product(a: Single, b: Single) -> Single:
    trace, builder = a.trace, a.trace.builder
    _doubt_small(a, b)
    rest = None
    for one, other in ((a, b), (b, a)):
        if one.low is not None and trace.keeps_low:
            part = builder.fmul(one.low, other.v)
            rest = part if rest is None else builder.fadd(rest, part)
    v = builder.fmul(a.v, b.v) if rest is None else trace.fma(a.v, b.v, rest)
    made = trace.single(v, exact=False)
    made.factors, made.least = (a.v, b.v), a.least * b.least
    made.units, made.product = _units_of_product(a, b), (a, b)
    return made


def _units_of_product(a: Single, b: Single) -> float:
    if a.error is not None or b.error is not None:
        raise NotInSingles("a product of what may have cancelled")
    left_out = sum(0.5 for s in (a, b) if s.low is not None and not s.trace.keeps_low)
    return a.units + b.units + left_out + 1.01


def _doubt_small(a: Single, b: Single) -> None:
    """A product that is small may have lost bits below the range of a float32."""
    for one in (a, b):
        if one.factors is not None:
            trace, builder = one.trace, one.trace.builder
            size, zero = trace.call("llvm.fabs", one.v), trace.number(0.0)
            small = trace.compare("<", size, trace.number(LEAST))
            for factor in one.factors:
                small = builder.and_(small, trace.compare("!=", factor, zero))
            trace.doubt(small)


def _quotient(a: Single, b: Single) -> Single:
    if b.low is None:
        _doubt_small(a, b)
        made = a.trace.single(a.trace.builder.fdiv(a.whole(), b.v), exact=False)
        made.factors, made.units = (a.v, b.v), _units_of_product(a, b)
        return made
    return _product(a, b.inverse() if b.inverse else inverse_of(b))


def inverse_of(b: Single) -> Single:
    """1/(h + l) as two numbers.

    The second corrects what the first leaves of 1, and what l takes.
    """
    trace, builder = b.trace, b.trace.builder
    inverse = builder.fdiv(trace.number(1.0), b.v)
    left = trace.fma(builder.fneg(inverse), b.v, trace.number(1.0))
    left = trace.fma(builder.fneg(inverse), b.low, left)
    return trace.single(inverse, builder.fmul(left, inverse))


def where(condition, a, b):
    if isinstance(condition, bool):
        return a if condition else b
    condition = _condition(condition)
    trace, builder = condition.trace, condition.trace.builder
    one, other = (as_single(trace, s) for s in (a, b))
    v = builder.select(condition.v, one.v, other.v)
    low = None
    if one.low is not None or other.low is not None:
        lows = [trace.number(0.0) if s.low is None else s.low for s in (one, other)]
        low = builder.select(condition.v, *lows)
    made = Single(trace, v, low, one.exact and other.exact)
    made.units, made.least = max(one.units, other.units), min(one.least, other.least)
    if one.error is not None or other.error is not None:
        errors = [trace.number(0.0) if s.error is None else s.error for s in (one, other)]
        made.error = builder.select(condition.v, *errors)
    if not isinstance(b, Single) and b == 0.0:
        made.seldom = True
        if isinstance(a, Single):
            made.chosen = (condition, a)
            made.truth = None if a.truth is None else condition & a.truth
        elif a == 1.0:
            made.truth = condition
    return made


def isnan(v):
    return Condition(v.trace, v.trace.builder.fcmp_unordered("uno", v.v, v.v))


def absolute(v):
    if v.low is not None:
        raise NotInSingles("the size of a number that is two")
    made = v.trace.single(v.trace.call("llvm.fabs", v.v), exact=v.exact)
    made.units, made.error, made.least = v.units, v.error, v.least
    return made


def exp(x):
    """exp below 0.8 ULP for what is not doubtful; 0 for what is far below."""
    if not isinstance(x, Single):
        raise NotInSingles("exp of a constant")
    if not all(part.exact for part in x.parts or (x,)):
        raise NotInSingles("exp of a rounded number")
    trace, builder = x.trace, x.trace.builder
    inside = trace.compare("<=", trace.call("llvm.fabs", x.v), trace.number(EXP_LIMIT))
    magic = trace.fma(x.v, trace.number(INVERSE_LN2), trace.number(EXPONENT_MAGIC))
    k = builder.fsub(magic, trace.number(EXPONENT_MAGIC))
    r = trace.fma(k, trace.number(-LN2_HIGH), x.v)
    r = trace.fma(k, trace.number(-LN2_LOW), r)
    rest = _rounding_error(x) if x.parts else None
    if x.low is not None:
        rest = x.low if rest is None else builder.fadd(rest, x.low)
    if rest is not None:
        r = builder.fadd(r, rest)
    p = trace.number(EXP[0])
    for c in EXP[1:]:
        p = trace.fma(p, r, trace.number(c))
    p = builder.fadd(trace.fma(p, builder.fmul(r, r), r), trace.number(1.0))
    field = builder.bitcast(magic, ir.VectorType(I32, trace.count))
    power = builder.shl(field, field.type([23] * trace.count))
    v = builder.fmul(p, builder.bitcast(power, trace.kind))
    made = trace.single(_exp_outside(trace, x.v, inside, v), exact=False)
    made.finite, made.units, made.least, made.positive = True, EXP_UNITS, EXP_LEAST, True
    return made


def _exp_outside(trace: Trace, x, inside, v):
    """exp of x: v where x is inside the limit, 0 far below; else doubtful.

    A look at the others is a branch that is hardly ever taken: softmax took 3 % less.
    """
    builder, before = trace.builder, trace.builder.block
    outside = builder.not_(inside)
    bits = builder.bitcast(outside, ir.IntType(trace.count))
    with builder.if_then(builder.icmp_unsigned("!=", bits, bits.type(0)), likely=False):
        far_below = trace.compare("<", x, trace.number(NOTHING))
        unsure = builder.and_(outside, builder.not_(far_below))
        zeroed, there = builder.select(inside, v, trace.number(0.0)), builder.block
    found, doubtful = builder.phi(v.type), builder.phi(outside.type)
    for phi, here, otherwise in (
        (found, zeroed, v),
        (doubtful, unsure, outside.type([0] * trace.count)),
    ):
        phi.add_incoming(here, there)
        phi.add_incoming(otherwise, before)
    trace.doubt(doubtful)
    return found


def _refused(name: str) -> Callable:
    def refuse(*_):
        raise NotInSingles(f"{name} in float32")

    return refuse


PRIMITIVES = (
    ("where", where),
    ("isnan", isnan),
    ("exp", exp),
    ("absolute", absolute),
    *(
        (name, _refused(name))
        for name in ("log", "sqrt", "maximum", "mantissa", "exponent", "power_of_two", "ldexp")
    ),
)


# Not as lanes are bound, which asks what exponent a zero has: float32 lanes refuse exponents.
_BINDER = Binder(dict(PRIMITIVES))


def in_singles(function: Callable) -> Callable:
    """A formula function bound to float32 lanes."""
    return _BINDER(function)
