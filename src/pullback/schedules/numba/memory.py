"""The parameter block that a launch hands to a kernel, and addresses computed from it."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .jit import inner
from .lanes import I64

# Words of the block, int64 each.
UNITS = 0  # independent rows, or rows of tiles
EXTENT = 1  # length of the op's axis (of the product of its axes)
BLOCKS = 2  # blocks the axis is cut into
SCRATCH = 3  # address of the workspace
OUTER_RANK = 4
AXIS_RANK = 5
OUTER = 6  # word at which the outer sizes begin, followed by strides per operand
AXIS = 7  # word at which the axis sizes begin, followed by strides per operand
COLUMNS = 8  # number of columns (columns schedules)
TILE = 9  # columns per tile
TILES = 10  # tiles per unit
CONSTANTS = 11  # float64 bits of extent, correction, weight
STRAINED = 14  # set by a plain kernel that met what only scaled arithmetic can hold
PARTS = 15  # parts a row is cut into, where threads share rows
STREAMED = 16  # outputs are larger than caches: write past them
OPERANDS = 17  # address and column stride of each operand

CONSTANT_NAMES = ("extent", "correction", "weight")


@intrinsic
def word(context, block, index):
    """Word ``index`` of a block of int64 at an address."""

    def codegen(ctx, builder, sig, args):
        pointer = builder.inttoptr(args[0], I64.as_pointer())
        return builder.load(builder.gep(pointer, [args[1]]))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def set_word(context, block, index, value):
    def codegen(ctx, builder, sig, args):
        pointer = builder.inttoptr(args[0], I64.as_pointer())
        builder.store(args[2], builder.gep(pointer, [args[1]]))
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def int32_at(context, address):
    def codegen(ctx, builder, sig, args):
        return builder.sext(
            builder.load(builder.inttoptr(args[0], ir.IntType(32).as_pointer())), I64
        )

    return types.int64(types.int64), codegen


@inner
def unravel(p, rank, table, operand, index):
    """Byte offset of a flat index over the dimensions of a table of sizes and strides."""
    strides = table + rank * (1 + operand)
    offset = 0
    for d in range(rank - 1, 0, -1):
        size = word(p, table + d)
        offset += (index % size) * word(p, strides + d)
        index //= size
    return offset + index * word(p, strides)


@inner
def unit_address(p, operand, unit):
    """Address of an operand at the start of a unit."""
    base = word(p, OPERANDS + 2 * operand)
    rank = word(p, OUTER_RANK)
    if rank == 0:
        return base
    return base + unravel(p, rank, word(p, OUTER), operand, unit)


@inner
def axis_stride(p, operand):
    """Byte stride of the innermost dimension of the axis."""
    rank = word(p, AXIS_RANK)
    return word(p, word(p, AXIS) + rank * (1 + operand) + rank - 1)


@inner
def axis_offset(p, operand, index):
    """Byte offset of a position along the axis."""
    return unravel(p, word(p, AXIS_RANK), word(p, AXIS), operand, index)


@inner
def column_stride(p, operand):
    """Byte stride between columns."""
    return word(p, OPERANDS + 2 * operand + 1)
