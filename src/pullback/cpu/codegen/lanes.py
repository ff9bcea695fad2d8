"""Formulas written out as LLVM instructions on eight float64 lanes.

A formula is straight-line scalar Python. Called once with ``Lanes`` in place of numbers it emits
its own arithmetic as vector instructions, so nothing but loops is left to translate. There
is no fast-math flag and no contraction: the bits of a lane depend on nothing but its own values,
and LLVM splits the lanes over whatever registers the CPU has. Arithmetic on Python numbers alone
happens at once, so what is constant in a formula costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from llvmlite import ir

from ...formulas import primitives as scalar
from ...formulas.bind import Binder
from ..words import LANES as LANES

# Adding this to a number below 2**51 rounds it to an integer e and leaves e + 1023, the exponent
# field of 2**e, in the low bits.
EXPONENT_MAGIC = 1.5 * 2.0**52 + 1023.0

DOUBLE = ir.DoubleType()
I1 = ir.IntType(1)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
DOUBLES = ir.VectorType(DOUBLE, LANES)


def constant(values, lane: ir.Type) -> ir.Constant:
    return ir.Constant(ir.VectorType(lane, LANES), list(values))


def doubles(value: float) -> ir.Constant:
    return constant([value] * LANES, DOUBLE)


def shuffle(builder, v, order):
    return builder.shuffle_vector(v, v, constant(order, I32))


def opaque_mask(builder, lanes):
    """Constant truth per lane that LLVM takes for unknown.

    Known, it merges a select by it with shuffles nearby, which are dearer than a masked operation.
    """
    bits = ir.IntType(LANES)(sum(bool(on) << lane for lane, on in enumerate(lanes)))
    kind = ir.FunctionType(bits.type, [bits.type])
    hidden = builder.asm(kind, "", "=r,0", [bits], side_effect=False)
    for fact in ("nounwind", "readnone"):  # else it could not leave a loop
        hidden.attributes.add(fact)
    return builder.bitcast(hidden, ir.VectorType(I1, LANES))


def expected(builder, truth):
    """A truth that LLVM lays out code for as if it always held."""
    kind = ir.FunctionType(I1, [I1, I1])
    known = builder.module.globals.get("llvm.expect.i1")
    expect = known or ir.Function(builder.module, kind, "llvm.expect.i1")
    return builder.call(expect, [truth, I1(1)])


def splat(builder, scalar):
    empty = ir.Constant(ir.VectorType(scalar.type, LANES), ir.Undefined)
    first = builder.insert_element(empty, scalar, I32(0))
    return builder.shuffle_vector(first, empty, constant([0] * LANES, I32))


CONTRACT = ("contract",)


class Truth:
    """A truth value per lane."""

    __slots__ = ("builder", "v")

    def __init__(self, builder, v):
        self.builder, self.v = builder, v

    def __and__(self, other: Truth | Lanes) -> Truth:
        return Truth(self.builder, self.builder.and_(self.v, _truth(other).v))

    def __or__(self, other: Truth | Lanes) -> Truth:
        return Truth(self.builder, self.builder.or_(self.v, _truth(other).v))

    def __bool__(self):
        raise TypeError("a formula must use where(), not if: lanes may differ")


def compared(builder, sign, left, right):
    """A comparison of floats: of NaN none holds but that it differs."""
    compare = builder.fcmp_unordered if sign == "!=" else builder.fcmp_ordered
    return compare(sign, left, right)


class Comparable:
    """Comparisons, and truth of bool operands, which are read as 1.0 or 0.0."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def _compare(self, sign: str, other):
        raise NotImplementedError

    def __eq__(self, other):
        return self._compare("==", other)

    def __ne__(self, other):
        return self._compare("!=", other)

    def __lt__(self, other):
        return self._compare("<", other)

    def __le__(self, other):
        return self._compare("<=", other)

    def __gt__(self, other):
        return self._compare(">", other)

    def __ge__(self, other):
        return self._compare(">=", other)

    def __and__(self, other):
        return (self != 0.0) & other

    def __or__(self, other):
        return (self != 0.0) | other


class Lanes(Comparable):
    """A number per lane, with the arithmetic of a float; a single lane where ``v`` is scalar.

    A product of two numbers that were float32 or narrower is exact, so a sum may take it in by one
    fma instruction where the CPU has one: the bits are the same. Sums say that they may
    (``contract``), and of products only those: norm2 of 512x1024 float32 took a tenth less.
    """

    __slots__ = ("builder", "v")

    def __init__(self, builder, v):
        self.builder, self.v = builder, v

    def __add__(self, other):
        return self._sum(self.v, _ir(other, self.v.type))

    def __radd__(self, other):
        return self._sum(_ir(other, self.v.type), self.v)

    def _sum(self, a, b):
        return Lanes(self.builder, self.builder.fadd(a, b, flags=CONTRACT))

    def __sub__(self, other):
        return self._difference(self.v, _ir(other, self.v.type))

    def __rsub__(self, other):
        return self._difference(_ir(other, self.v.type), self.v)

    def _difference(self, a, b):
        return Lanes(self.builder, self.builder.fsub(a, b, flags=CONTRACT))

    def __mul__(self, other):
        if _is_one(other):
            return self
        other = _ir(other, self.v.type)
        flags = CONTRACT if _was_narrow(self.v) and _was_narrow(other) else ()
        return Lanes(self.builder, self.builder.fmul(self.v, other, flags=flags))

    __rmul__ = __mul__

    def __truediv__(self, other):
        return Lanes(self.builder, self.builder.fdiv(self.v, _ir(other, self.v.type)))

    def __rtruediv__(self, other):
        return Lanes(self.builder, self.builder.fdiv(_ir(other, self.v.type), self.v))

    def __neg__(self):
        return Lanes(self.builder, self.builder.fneg(self.v))

    def _compare(self, sign, other):
        right = _ir(other, self.v.type)
        return Truth(self.builder, compared(self.builder, sign, self.v, right))


def _truth(value: Truth | Lanes) -> Truth:
    """A condition as it is; of a bool operand, which is read as 1.0 or 0.0, whether it holds."""
    return value if isinstance(value, Truth) else value.__ne__(0.0)


def _was_narrow(v) -> bool:
    """Whether lanes are elements of at most 32 bits as they were read."""
    return isinstance(v, ir.CastInstr) and v.opname == "fpext"


def _is_one(value) -> bool:
    return not isinstance(value, Lanes) and value == 1.0


def _ir(value, kind):
    """The LLVM value of lanes, or of a number as lanes of that type."""
    return value.v if isinstance(value, Lanes) else filled(float(value), kind)


def filled(value, kind: ir.Type) -> ir.Constant:
    """A constant of a scalar type, or the same in every lane of a vector type."""
    return kind([value] * kind.count) if isinstance(kind, ir.VectorType) else kind(value)


def alike(kind: ir.Type, lane: ir.Type) -> ir.Type:
    """The type with as many lanes as ``kind`` and another lane type."""
    return ir.VectorType(lane, kind.count) if isinstance(kind, ir.VectorType) else lane


def _kind(*values):
    return next(v.v.type for v in values if isinstance(v, Lanes))


def _builder(*values):
    return next(v.builder for v in values if isinstance(v, (Lanes, Truth)))


def _call(name, *args):
    """Call an LLVM intrinsic on vectors, which llvmlite has no name for."""
    builder = _builder(*args)
    kind = _kind(*args)
    name = f"{name}.v{kind.count}f64" if isinstance(kind, ir.VectorType) else f"{name}.f64"
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(kind, [kind] * len(args)), name)
    return Lanes(builder, builder.call(function, [_ir(a, kind) for a in args]))


def where(condition, a, b):
    if isinstance(condition, bool):  # of constants
        return a if condition else b
    if isinstance(a, float) and isinstance(b, float) and a.hex() == b.hex():
        return a
    condition = _truth(condition)
    builder = condition.builder
    kind = alike(condition.v.type, DOUBLE)
    return Lanes(builder, builder.select(condition.v, _ir(a, kind), _ir(b, kind)))


def isnan(v):
    return Truth(v.builder, v.builder.fcmp_unordered("uno", v.v, v.v))


def absolute(v):
    return _call("llvm.fabs", v)


def sqrt(v):
    return _call("llvm.sqrt", v)


def rint(v):
    return _call("llvm.rint", v)


def fma(a, b, c):
    return _call("llvm.fma", a, b, c)


def maximum(a, b):
    if not isinstance(a, Lanes) and not isinstance(b, Lanes):
        return max(a, b)
    builder, kind = _builder(a, b), _kind(a, b)
    left, right = _ir(a, kind), _ir(b, kind)
    first = builder.fcmp_ordered(">=", left, right)
    return Lanes(builder, builder.select(first, left, right))


def _frexp_bits(v):
    """Bits of v with subnormals lifted by 2**54, which lanes count, which were lifted."""
    builder = v.builder
    size = absolute(v)
    counts = (size > 0.0) & (size < float("inf"))
    lifted = size < 2.0**-1022
    bits = builder.bitcast(where(lifted, v * 2.0**54, v).v, alike(v.v.type, I64))
    return bits, counts, lifted


def mantissa(v):
    if not isinstance(v, Lanes):
        return scalar.mantissa(v)
    builder = v.builder
    bits, counts, _ = _frexp_bits(v)
    kept = builder.and_(bits, filled(~(0x7FF << 52) & (2**64 - 1), bits.type))
    half = builder.bitcast(builder.or_(kept, filled(0x3FE << 52, bits.type)), v.v.type)
    return where(counts, Lanes(builder, half), v)


def exponent(v):
    if not isinstance(v, Lanes):
        return scalar.exponent(v)
    builder = v.builder
    bits, counts, lifted = _frexp_bits(v)
    kind = bits.type
    field = builder.and_(builder.lshr(bits, filled(52, kind)), filled(0x7FF, kind))
    bias = builder.select(lifted.v, filled(1022 + 54, kind), filled(1022, kind))
    value = builder.sitofp(builder.sub(field, bias), v.v.type)
    return where(counts, Lanes(builder, value), where(v == 0.0, scalar.NOWHERE, 0.0))


def power_of_two(e):
    """2**e, with e held to the normal range."""
    if not isinstance(e, Lanes):
        return scalar.power_of_two(e)
    return normal_power_of_two(where(e < -1022.0, -1022.0, where(e > 1023.0, 1023.0, e)))


def normal_power_of_two(e):
    """2**e for an integer e in [-1022, 1023]."""
    return power_of_magic(e + EXPONENT_MAGIC)


def power_of_magic(sum_with_magic):
    """2**e of e + EXPONENT_MAGIC: the sum holds the exponent field in its low bits."""
    builder = sum_with_magic.builder
    kind = sum_with_magic.v.type
    field = builder.bitcast(sum_with_magic.v, alike(kind, I64))
    return Lanes(builder, builder.bitcast(builder.shl(field, filled(52, field.type)), kind))


def as_tuple(result) -> tuple:
    """What a formula function returned, one value or several, as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def scratch_builder() -> ir.IRBuilder:
    """A builder whose instructions go nowhere."""
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), []), "scratch")
    return ir.IRBuilder(function.append_basic_block())


def traced(function: Callable, primitives: tuple[tuple[str, Callable], ...]) -> Callable:
    """The same code object with its primitives bound to functions on ``Lanes``."""
    return _binder(primitives)(function)


@cache
def _binder(primitives: tuple[tuple[str, Callable], ...]) -> Binder:
    bound = dict(primitives)
    # The exponent that a zero has, as these primitives see it.
    of_zero = bound["exponent"](0.0)
    return Binder(bound, constant=lambda v: of_zero if v == scalar.NOWHERE else v)
