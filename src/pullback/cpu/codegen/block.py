"""The parameter block that a launch hands to a kernel, and addresses computed from it."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..words import AXIS, AXIS_RANK, OPERANDS, ORIGIN, OUTER, OUTER_RANK, STREAMED, TURN
from .lanes import I32, I64


@intrinsic
def word(context, block, index):
    """Word ``index`` of a block of int64 at an address."""

    def codegen(ctx, builder, sig, args):
        return emit_word(builder, *args)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def set_word(context, block, index, value):
    def codegen(ctx, builder, sig, args):
        pointer = builder.inttoptr(args[0], I64.as_pointer())
        builder.store(args[2], builder.gep(pointer, [args[1]]))
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


def emit_index(builder, block, position):
    """Index, in memory, of the position that the loops count."""
    origin, turn = (emit_word(builder, block, I64(k)) for k in (ORIGIN, TURN))
    return builder.add(origin, builder.mul(turn, position))


@intrinsic
def index_of(context, block, position):
    def codegen(ctx, builder, sig, args):
        return emit_index(builder, *args)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def fetch_min(context, address, value):
    """Lower a word that threads share to a value; what it was before."""

    def codegen(ctx, builder, sig, args):
        pointer = builder.inttoptr(args[0], I64.as_pointer())
        return builder.atomic_rmw("min", pointer, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def ask_to_write(context, address):
    """Ask for the line at an address, to be written soon."""

    def codegen(ctx, builder, sig, args):
        emit_prefetch(builder, args[0], to_write=True)
        return ctx.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def is_below(context, index, limit):
    """``0 <= index < limit`` of a limit that is not negative, in one comparison."""

    def codegen(ctx, builder, sig, args):
        return builder.icmp_unsigned("<", *args)

    return types.boolean(types.int64, types.int64), codegen


@intrinsic
def int32_at(context, address):
    def codegen(ctx, builder, sig, args):
        return builder.sext(
            builder.load(builder.inttoptr(args[0], ir.IntType(32).as_pointer())), I64
        )

    return types.int64(types.int64), codegen


def emit_word(builder, block, index):
    """Word ``index`` of a block, as LLVM code."""
    pointer = builder.inttoptr(block, I64.as_pointer())
    return builder.load(builder.gep(pointer, [index]))


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


@intrinsic
def is_streamed(context, block, address):
    def codegen(ctx, builder, sig, args):
        return emit_is_streamed(builder, *args)

    return types.boolean(types.int64, types.int64), codegen


def _unravel(module):
    """Byte offset of a flat index over the dimensions of a table of sizes and strides.

    A function of the module, written as LLVM code: as a Numba function it cost a tenth of a second
    of compile time for every operand.
    """
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
    rest, offset = (cgutils.alloca_once_value(builder, v) for v in (index, I64(0)))
    inner_dimensions = builder.sub(rank, I64(1))
    with cgutils.for_range(builder, inner_dimensions, intp=I64) as loop:
        d = builder.sub(inner_dimensions, loop.index)
        size = emit_word(builder, block, builder.add(table, d))
        left = builder.load(rest)
        step = emit_word(builder, block, builder.add(strides, d))
        inside = builder.mul(builder.srem(left, size), step)
        builder.store(builder.add(builder.load(offset), inside), offset)
        builder.store(builder.sdiv(left, size), rest)
    outermost = builder.mul(builder.load(rest), emit_word(builder, block, strides))
    builder.ret(builder.add(builder.load(offset), outermost))
    return function


@intrinsic
def axis_offset(context, block, operand, index):
    """Byte offset of a position along the axis."""

    def codegen(ctx, builder, sig, args):
        block_, operand_, index_ = args
        rank, table = (emit_word(builder, block_, I64(k)) for k in (AXIS_RANK, AXIS))
        return builder.call(_unravel(builder.module), [block_, rank, table, operand_, index_])

    return types.int64(types.int64, types.int64, types.int64), codegen


def emit_prefetch(builder, address, to_write=False):
    """Ask for the cache line at an address, which need not be there."""
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
    ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(ask, [builder.inttoptr(address, byte), I32(int(to_write)), I32(3), I32(1)])


@intrinsic
def again(context, index):
    """An index that LLVM does not know to be the same: what was read at it is read again.

    Else it would be held in registers for a second use that hardly ever comes.
    """

    def codegen(ctx, builder, sig, args):
        hidden = builder.asm(ir.FunctionType(I64, [I64]), "", "=r,0", args, side_effect=False)
        hidden.attributes.add("nounwind")
        return hidden

    return types.int64(types.int64), codegen


@intrinsic
def least(context, a, b):
    """The smaller of two integers, where ``min`` would be compiled as a function of its own."""

    def codegen(ctx, builder, sig, args):
        return builder.select(builder.icmp_signed("<", *args), *args)

    return types.int64(types.int64, types.int64), codegen
