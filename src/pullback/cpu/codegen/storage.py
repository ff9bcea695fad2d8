"""Where storage meets arithmetic: eight elements in, eight elements out.

Every element is widened to float64 when it is read and rounded once to its storage type when it is
written.
"""

from __future__ import annotations

import math
from functools import cache

from llvmlite import binding, ir

from ..loader import target_machine
from ..words import ITEMSIZE as ITEMSIZE
from .lanes import DOUBLE, DOUBLES, I32, I64, LANES, constant, doubles, splat
from .loops import counted
from .memory import declared
from .registers import shuffles_words

FLOAT, HALF = ir.FloatType(), ir.HalfType()
I16 = ir.IntType(16)

_MASK = ir.VectorType(ir.IntType(1), LANES)
_STORAGE = {
    "f64": DOUBLE,
    "f32": FLOAT,
    "f16": I16,
    "bf16": I16,
    "i32": I32,
    "i64": I64,
    "bool": ir.IntType(8),
}


# Both conversions, and what LLVM calls where the target has no instruction for them: functions that
# a process need not have.
_CONVERSIONS = """
define <8 x half> @narrow(<8 x float> %v) {
  %r = fptrunc <8 x float> %v to <8 x half>
  ret <8 x half> %r
}
define <8 x float> @widen(<8 x half> %v) {
  %r = fpext <8 x half> %v to <8 x float>
  ret <8 x float> %r
}
"""
_CALLED = ("__truncsfhf2", "__extendhfsf2", "__gnu_f2h_ieee", "__gnu_h2f_ieee")


@cache
def has_native_half() -> bool:
    """Whether half conversions are instructions of the CPU that is compiled for.

    That need not be this one (``PULLBACK_CPU``), and what a CPU has follows from its name and its
    features together, so LLVM is asked.
    """
    code = target_machine().emit_assembly(binding.parse_assembly(_CONVERSIONS))
    return not any(name in code for name in _CALLED)


def _as(v, lane: ir.Type) -> ir.VectorType:
    """The type with as many lanes as a vector and another lane type."""
    return ir.VectorType(lane, v.type.count)


def _ints(v, value: int) -> ir.Constant:
    """An integer in as many lanes as a vector has."""
    return _as(v, I32)([value] * v.type.count)


def _half_to_float_by_bits(builder, v):
    """float16 to float32 in integer arithmetic, exact on all 65536 values."""
    u = builder.zext(v, _as(v, I32))
    sign = builder.shl(builder.and_(u, _ints(v, 0x8000)), _ints(v, 16))
    size = builder.and_(u, _ints(v, 0x7FFF))
    shifted = builder.shl(size, _ints(v, 13))
    scale = builder.bitcast(_ints(v, 0x77800000), _as(v, FLOAT))  # 2**112 rebiases the exponent
    number = builder.fmul(builder.bitcast(shifted, _as(v, FLOAT)), scale)
    special = builder.or_(shifted, _ints(v, 0x7F800000))
    is_special = builder.icmp_unsigned(">=", size, _ints(v, 0x7C00))
    bits = builder.select(is_special, special, builder.bitcast(number, _as(v, I32)))
    return builder.bitcast(builder.or_(bits, sign), _as(v, FLOAT))


def _float_to_half_by_bits(builder, v):
    """float32 to float16, round to nearest even, in integer arithmetic."""
    u = builder.bitcast(v, _as(v, I32))
    sign = builder.and_(builder.lshr(u, _ints(v, 16)), _ints(v, 0x8000))
    size = builder.and_(u, _ints(v, 0x7FFFFFFF))
    odd = builder.and_(builder.lshr(size, _ints(v, 13)), _ints(v, 1))
    rounded = builder.add(builder.add(size, _ints(v, 0xFFF)), odd)
    normal = builder.lshr(builder.sub(rounded, _ints(v, 0x38000000)), _ints(v, 13))
    # Adding 0.5 aligns a subnormal's last bit.
    half = builder.bitcast(_ints(v, 0x3F000000), v.type)
    lifted = builder.bitcast(builder.fadd(builder.bitcast(size, v.type), half), u.type)
    subnormal = builder.sub(lifted, _ints(v, 0x3F000000))
    is_subnormal = builder.icmp_unsigned("<", size, _ints(v, 0x38800000))
    bits = builder.select(is_subnormal, subnormal, normal)
    is_large = builder.icmp_unsigned(">=", size, _ints(v, 0x47800000))
    bits = builder.select(is_large, _ints(v, 0x7C00), bits)
    is_nan = builder.icmp_unsigned(">", size, _ints(v, 0x7F800000))
    bits = builder.select(is_nan, _ints(v, 0x7E00), bits)
    return builder.trunc(builder.or_(bits, sign), _as(v, I16))


def _bfloat_to_float(builder, v):
    """The upper half of a float32, with zeros below: one shuffle where shuffles are quick."""
    if not shuffles_words():
        wide = builder.zext(v, _as(v, I32))
        return builder.bitcast(builder.shl(wide, _ints(v, 16)), _as(v, FLOAT))
    count = v.type.count
    order = ir.VectorType(I32, 2 * count)([i for k in range(count) for i in (count, k)])
    halves = builder.shuffle_vector(v, ir.Constant(v.type, None), order)
    return builder.bitcast(halves, _as(v, FLOAT))


def _float_to_bfloat(builder, v):
    """Round to nearest even.

    A NaN comes from an operand, whose low 16 bits are 0, or from arithmetic, which makes
    0x7fc00000: neither carries over into a number. float64 operands are read so that none of
    theirs does (``plain_nan``).
    """
    u = builder.bitcast(v, _as(v, I32))
    odd = builder.and_(builder.lshr(u, _ints(v, 16)), _ints(v, 1))
    rounded = builder.add(u, builder.add(odd, _ints(v, 0x7FFF)))
    return builder.trunc(builder.lshr(rounded, _ints(v, 16)), _as(v, I16))


def to_float(builder, v, element: str, native_half: bool):
    """Stored elements of a narrow type as float32."""
    if element == "bf16":
        return _bfloat_to_float(builder, v)
    if element == "f16" and native_half:
        return builder.fpext(builder.bitcast(v, _as(v, HALF)), _as(v, FLOAT))
    return _half_to_float_by_bits(builder, v) if element == "f16" else v


def from_float(builder, v, element: str, native_half: bool):
    """float32 as stored elements of a narrow type."""
    if element == "bf16":
        return _float_to_bfloat(builder, v)
    if element == "f16" and native_half:
        return builder.bitcast(builder.fptrunc(v, _as(v, HALF)), _as(v, I16))
    return _float_to_half_by_bits(builder, v) if element == "f16" else v


def widen(builder, v, element: str, native_half: bool):
    """Eight stored elements as eight float64; a bool as 1.0 or 0.0."""
    if element == "f64":
        return v
    if element in ("i32", "i64"):
        return builder.sitofp(v, DOUBLES)
    if element == "bool":
        there = builder.icmp_unsigned("!=", v, ir.Constant(v.type, None))
        return builder.uitofp(there, DOUBLES)
    return builder.fpext(to_float(builder, v, element, native_half), DOUBLES)


# Bits of a float64 that no float16 or bfloat16 has, nor the number halfway between two of them.
_BELOW = (1 << 40) - 1


def _rounded_to_odd(builder, v):
    """float64 with 12 bits behind the point, the last of them set if any was cut off.

    float32 holds these, bfloat16's subnormal numbers included, and what is halfway between two
    narrow numbers stays the only one that is taken for it: the next rounding is the only one.
    """
    u = builder.bitcast(v, _as(v, I64))
    below, kept = (u.type([bits] * v.type.count) for bits in (_BELOW, 2**64 - 1 - _BELOW))
    any_below = builder.add(builder.and_(u, below), below)
    return builder.bitcast(builder.and_(builder.or_(u, any_below), kept), v.type)


def to_narrow_float(builder, v, element: str):
    """float64 as float32 to be stored, or to be rounded to what is stored."""
    if element in ("f16", "bf16"):
        v = _rounded_to_odd(builder, v)
    return builder.fptrunc(v, _as(v, FLOAT))


def narrow(builder, v, element: str, native_half: bool):
    """Eight float64 as eight stored elements."""
    if element == "f64":
        return v
    return from_float(builder, to_narrow_float(builder, v, element), element, native_half)


def _halves(builder, v):
    """The first eight lanes of sixteen, and the last."""
    halves = (range(LANES), range(LANES, 2 * LANES))
    return [builder.shuffle_vector(v, v, constant(half, I32)) for half in halves]


def _lanes_there(builder, count, flipped):
    """A mask of the first ``count`` lanes, or of the last where ``flipped``."""
    lanes = range(LANES - 1, -1, -1) if flipped else range(LANES)
    return builder.icmp_signed("<", constant(lanes, I64), splat(builder, count))


class Edge:
    """Loads and stores of one element type, as emitters of LLVM code.

    With ``plain_nan`` every NaN that is read becomes the one that arithmetic makes.
    """

    def __init__(self, element: str, native_half: bool | None = None, plain_nan: bool = False):
        self.element, self.plain_nan = element, plain_nan
        self.native_half = has_native_half() if native_half is None else native_half
        self.item = ITEMSIZE[element]
        self.storage = _STORAGE[element]
        self.stored = ir.VectorType(self.storage, LANES)
        self._pair = ir.VectorType(self.storage, 2 * LANES)

    def widen(self, builder, v):
        """Eight stored elements as float64."""
        v = widen(builder, v, self.element, self.native_half)
        if not self.plain_nan:
            return v
        return builder.select(builder.fcmp_unordered("uno", v, v), doubles(math.nan), v)

    def load(self, builder, address, stride, count, packed=False, flipped=False):
        """Up to eight elements ``stride`` bytes apart as float64; absent lanes are 0.

        ``packed`` promises that the stride is the item size, or minus that where ``flipped``: then
        the first element comes in the last lane, as it lies in memory.
        """
        whole = self._is_whole(builder, stride, count, packed)
        lowest = self._lowest(builder, address) if flipped else address
        with builder.if_else(whole, likely=True) as (then, otherwise):
            with then:
                near, near_block = self.near(builder, lowest), builder.block
            with otherwise:
                if packed:
                    far = self._some(builder, lowest, count, flipped)
                else:
                    far = self.far(builder, address, stride, count)
                far_block = builder.block
        v = builder.phi(self.stored)
        v.add_incoming(near, near_block)
        v.add_incoming(far, far_block)
        return self.widen(builder, v)

    def store(self, builder, address, stride, count, v, packed=False, flipped=False):
        """``count`` lanes, each rounded once; from the last lane down where ``flipped``."""
        v = narrow(builder, v, self.element, self.native_half)
        whole = self._is_whole(builder, stride, count, packed)
        lowest = self._lowest(builder, address) if flipped else address
        with builder.if_else(whole, likely=True) as (then, otherwise):
            with then:
                self.set_near(builder, lowest, v)
            with otherwise:
                if packed:
                    self._set_some(builder, lowest, count, flipped, v)
                else:
                    self.set_far(builder, address, stride, count, v)

    def near(self, builder, address):
        """Eight elements side by side, as they are stored."""
        v = builder.load(builder.inttoptr(address, self.stored.as_pointer()))
        v.align = self.item
        return v

    def set_near(self, builder, address, v):
        builder.store(v, builder.inttoptr(address, self.stored.as_pointer())).align = self.item

    def _some(self, builder, address, count, flipped):
        """Less than eight elements side by side: the first lanes, or the last where ``flipped``."""
        pointer = builder.inttoptr(address, self.stored.as_pointer())
        kinds = (pointer.type, I32, _MASK, self.stored)
        load = declared(builder, self._masked("load"), self.stored, *kinds)
        mask, nothing = _lanes_there(builder, count, flipped), ir.Constant(self.stored, None)
        return builder.call(load, [pointer, I32(self.item), mask, nothing])

    def _set_some(self, builder, address, count, flipped, v):
        pointer = builder.inttoptr(address, self.stored.as_pointer())
        kinds = (self.stored, pointer.type, I32, _MASK)
        store = declared(builder, self._masked("store"), ir.VoidType(), *kinds)
        mask = _lanes_there(builder, count, flipped)
        builder.call(store, [v, pointer, I32(self.item), mask])

    def _masked(self, what: str) -> str:
        name = f"v{LANES}{self.storage.intrinsic_name}"
        return f"llvm.masked.{what}.{name}.p0{name}"

    def far(self, builder, address, stride, count):
        """Up to eight elements ``stride`` bytes apart, as they are stored."""
        return builder.call(self._gather(builder.module), [address, stride, count])

    def set_far(self, builder, address, stride, count, v):
        builder.call(self._scatter(builder.module), [address, stride, count, v])

    def stream(self, builder, address, v):
        """Eight lanes to an address that is a multiple of their size, past the caches."""
        v = narrow(builder, v, self.element, self.native_half)
        store = builder.store(v, builder.inttoptr(address, self.stored.as_pointer()))
        store.align = LANES * self.item
        store.set_metadata("nontemporal", builder.module.add_metadata([I32(1)]))

    @property
    def pairs(self) -> bool:
        """Whether sixteen elements cost less than twice eight.

        Rounding to bfloat16 takes five instructions on float32, of which sixteen fill a register
        (lerp took three quarters of the time). float16 has an instruction, and gains nothing.
        """
        return self.element == "bf16"

    def load_pair(self, builder, address):
        """Sixteen elements side by side, as two vectors of float64."""
        if not self.pairs:
            second = builder.add(address, I64(LANES * self.item))
            found = (self.near(builder, at) for at in (address, second))
            return [self.widen(builder, v) for v in found]
        v = builder.load(builder.inttoptr(address, self._pair.as_pointer()))
        v.align = self.item
        floats = to_float(builder, v, self.element, self.native_half)
        return [builder.fpext(part, DOUBLES) for part in _halves(builder, floats)]

    def narrow_pair(self, builder, first, second):
        """Two vectors of float64 as sixteen stored elements."""
        floats = [to_narrow_float(builder, v, self.element) for v in (first, second)]
        in_order = ir.VectorType(I32, 2 * LANES)(list(range(2 * LANES)))
        both = builder.shuffle_vector(*floats, in_order)
        return from_float(builder, both, self.element, self.native_half)

    def narrow_all(self, builder, values, paired: bool):
        """Vectors of float64, an even number of them, as vectors of stored elements."""
        if not (paired and self.pairs):
            return [narrow(builder, v, self.element, self.native_half) for v in values]
        found: list = []
        for first, second in zip(values[::2], values[1::2], strict=True):
            found += _halves(builder, self.narrow_pair(builder, first, second))
        return found

    def store_pair(self, builder, address, first, second, stream):
        """Two vectors side by side, past the caches to an aligned address if they ``stream``."""
        self.put_stored(builder, address, self.narrow_pair(builder, first, second), stream)

    def put_stored(self, builder, address, v, stream):
        """Stored elements side by side, past the caches to an aligned address if asked to."""
        pointer = builder.inttoptr(address, v.type.as_pointer())
        with builder.if_else(stream) as (then, otherwise):
            with then:
                store = builder.store(v, pointer)
                store.align = v.type.count * self.item
                store.set_metadata("nontemporal", builder.module.add_metadata([I32(1)]))
            with otherwise:
                builder.store(v, pointer).align = self.item

    def _lowest(self, builder, address):
        """Where eight elements going down in memory from an address begin."""
        return builder.sub(address, I64((LANES - 1) * self.item))

    @staticmethod
    def zero():
        """Eight zeros, for the place of an operand that is not there."""
        return ir.Constant(DOUBLES, None)

    def load_one(self, builder, address):
        """One element in every lane."""
        value = builder.load(builder.inttoptr(address, self.storage.as_pointer()))
        return self.widen(builder, splat(builder, value))

    def store_one(self, builder, address, v):
        """Lane 0."""
        v = narrow(builder, v, self.element, self.native_half)
        value = builder.extract_element(v, I32(0))
        builder.store(value, builder.inttoptr(address, self.storage.as_pointer()))

    def _is_whole(self, builder, stride, count, packed):
        whole = builder.icmp_signed("==", count, I64(LANES))
        if packed:
            return whole
        return builder.and_(builder.icmp_signed("==", stride, I64(self.item)), whole)

    def _gather(self, module):
        return self._elementwise(module, "gather", self.stored, [I64] * 3, self._emit_gather)

    def _scatter(self, module):
        kinds = [*[I64] * 3, self.stored]
        return self._elementwise(module, "scatter", ir.VoidType(), kinds, self._emit_scatter)

    def _elementwise(self, module, name, result, kinds, emit):
        """An out-of-line function of the module: lanes one by one."""
        name = f"pullback_{name}_{self.element}"
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(result, kinds), name)
            function.linkage = "internal"
            function.attributes.add("noinline")
            emit(ir.IRBuilder(function.append_basic_block()), *function.args)
        return function

    def _emit_gather(self, builder, address, stride, count):
        box = builder.alloca(self.stored)
        box.align = 64
        builder.store(ir.Constant(self.stored, None), box)
        slots = builder.bitcast(box, self.storage.as_pointer())
        whole = builder.icmp_signed("==", count, I64(LANES))
        with builder.if_then(whole):
            v = ir.Constant(self.stored, ir.Undefined)
            at = address
            for lane in range(LANES):
                value = builder.load(builder.inttoptr(at, self.storage.as_pointer()))
                v = builder.insert_element(v, value, I32(lane))
                at = builder.add(at, stride)
            builder.ret(v)
        with counted(builder, count) as k:
            at = builder.add(address, builder.mul(k, stride))
            value = builder.load(builder.inttoptr(at, self.storage.as_pointer()))
            builder.store(value, builder.gep(slots, [k]))
        builder.ret(builder.load(box))

    def _emit_scatter(self, builder, address, stride, count, v):
        box = builder.alloca(self.stored)
        box.align = 64
        builder.store(v, box)
        slots = builder.bitcast(box, self.storage.as_pointer())
        with counted(builder, count) as k:
            at = builder.add(address, builder.mul(k, stride))
            value = builder.load(builder.gep(slots, [k]))
            builder.store(value, builder.inttoptr(at, self.storage.as_pointer()))
        builder.ret_void()
