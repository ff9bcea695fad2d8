"""The parameter block that a launch hands to a kernel, and addresses computed from it."""

from __future__ import annotations

from llvmlite import ir

from ..words import AXIS, AXIS_RANK, OPERANDS, ORIGIN, OUTER, OUTER_RANK, STREAMED, TURN
from .functions import emitter
from .lanes import I32, I64
from .loops import counted
from .memory import declared, word

emit_word = word.function


def emit_index(builder, block, position):
    """Index, in memory, of the position that the loops count."""
    origin, turn = (emit_word(builder, block, I64(k)) for k in (ORIGIN, TURN))
    return builder.add(origin, builder.mul(turn, position))


@emitter
def index_of(builder, block, position):
    return emit_index(builder, block, position)


@emitter
def fetch_min(builder, address, value):
    """Lower a word that threads share to a value; what it was before."""
    pointer = builder.inttoptr(address, I64.as_pointer())
    return builder.atomic_rmw("min", pointer, value, "seq_cst")


@emitter
def ask_to_write(builder, address):
    """Ask for the line at an address, to be written soon."""
    emit_prefetch(builder, address, to_write=True)


@emitter
def ask_to_read(builder, address):
    """Ask for the line at an address, to be read soon."""
    emit_prefetch(builder, address)


@emitter
def is_below(builder, index, limit):
    """``0 <= index < limit`` of a limit that is not negative, in one comparison."""
    return builder.icmp_unsigned("<", index, limit)


def emit_axis_stride(builder, block, operand: int):
    """Byte stride of the innermost dimension of the axis."""
    rank, table = (emit_word(builder, block, I64(k)) for k in (AXIS_RANK, AXIS))
    last = builder.sub(builder.mul(rank, I64(operand + 2)), I64(1))
    return emit_word(builder, block, builder.add(table, last))


def emit_column_stride(builder, block, operand: int):
    """Byte stride between columns."""
    return emit_word(builder, block, I64(OPERANDS + 2 * operand + 1))


def emit_unit_address(builder, block, operand: int, unit):
    """Address of an operand at the start of a unit."""
    rank, table = (emit_word(builder, block, I64(k)) for k in (OUTER_RANK, OUTER))
    base = emit_word(builder, block, I64(OPERANDS + 2 * operand))
    # Rows one after the other need no division and no call, which short rows would feel.
    single = builder.icmp_signed("==", rank, I64(1))
    with builder.if_else(single, likely=True) as (then, otherwise):
        with then:
            stride = emit_word(builder, block, builder.add(table, I64(operand + 1)))
            near, near_block = builder.mul(unit, stride), builder.block
        with otherwise:
            arguments = [block, rank, table, I64(operand), unit]
            far, far_block = builder.call(_unravel(builder.module), arguments), builder.block
    offset = builder.phi(I64)
    offset.add_incoming(near, near_block)
    offset.add_incoming(far, far_block)
    return builder.add(base, offset)


def emit_is_streamed(builder, block, address):
    """Whether what begins at an address is to be written past the caches."""
    alignment = emit_word(builder, block, I64(STREAMED))
    over = builder.and_(address, builder.sub(alignment, I64(1)))
    large = builder.icmp_signed("!=", alignment, I64(0))
    return builder.and_(large, builder.icmp_signed("==", over, I64(0)))


@emitter
def is_streamed(builder, block, address):
    return emit_is_streamed(builder, block, address)


def _unravel(module):
    """Byte offset of a flat index over the dimensions of a table of sizes and strides."""
    name = "pullback_unravel"
    function = module.globals.get(name)
    if function is not None:
        return function
    function = ir.Function(module, ir.FunctionType(I64, [I64] * 5), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    block, rank, table, operand, index = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    with builder.if_then(builder.icmp_signed("==", rank, I64(0))):
        builder.ret(I64(0))
    strides = builder.add(table, builder.mul(rank, builder.add(operand, I64(1))))
    rest, offset = (builder.alloca(I64) for _ in range(2))
    builder.store(index, rest)
    builder.store(I64(0), offset)
    inner_dimensions = builder.sub(rank, I64(1))
    with counted(builder, inner_dimensions) as k:
        d = builder.sub(inner_dimensions, k)
        size = emit_word(builder, block, builder.add(table, d))
        left = builder.load(rest)
        step = emit_word(builder, block, builder.add(strides, d))
        inside = builder.mul(builder.srem(left, size), step)
        builder.store(builder.add(builder.load(offset), inside), offset)
        builder.store(builder.sdiv(left, size), rest)
    outermost = builder.mul(builder.load(rest), emit_word(builder, block, strides))
    builder.ret(builder.add(builder.load(offset), outermost))
    return function


@emitter
def axis_offset(builder, block, operand, index):
    """Byte offset of a position along the axis."""
    rank, table = (emit_word(builder, block, I64(k)) for k in (AXIS_RANK, AXIS))
    return builder.call(_unravel(builder.module), [block, rank, table, operand, index])


def emit_prefetch(builder, address, to_write=False):
    """Ask for the cache line at an address, which need not be there."""
    byte = ir.IntType(8).as_pointer()
    ask = declared(builder, "llvm.prefetch.p0i8", ir.VoidType(), byte, I32, I32, I32)
    builder.call(ask, [builder.inttoptr(address, byte), I32(int(to_write)), I32(3), I32(1)])


@emitter
def again(builder, index):
    """An index that LLVM does not know to be the same: what was read at it is read again.

    Else it would be held in registers for a second use that hardly ever comes.
    """
    hidden = builder.asm(ir.FunctionType(I64, [I64]), "", "=r,0", [index], side_effect=False)
    hidden.attributes.add("nounwind")
    return hidden


@emitter
def least(builder, a, b):
    """The smaller of two integers."""
    return builder.select(builder.icmp_signed("<", a, b), a, b)
