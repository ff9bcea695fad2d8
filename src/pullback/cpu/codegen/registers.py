"""The vector registers that LLVM uses on the CPU that kernels are compiled for.

That need not be this one (``PULLBACK_CPU``), and what a CPU has follows from its name and its
features together, so LLVM is asked to compile something. No result depends on any of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, reduce

from llvmlite import binding, ir

from ..loader import is_amd, target_machine
from .lanes import DOUBLES, I1, I32, LANES


@dataclass(frozen=True)
class Registers:
    """Vector registers.

    Attributes
    ----------
    of_lanes
        How many of them eight float64 take.
    count
        How many there are.
    masks
        Whether a truth value per lane is a bit of a register of its own.
    """

    of_lanes: int
    count: int
    masks: bool


def _example() -> str:
    """Two loads, a choice between them by bits, and a store."""
    module = ir.Module()
    place, bits = DOUBLES.as_pointer(), ir.IntType(LANES)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [place, bits]), "choose")
    builder = ir.IRBuilder(function.append_basic_block())
    one = builder.load(function.args[0])
    other = builder.load(builder.gep(function.args[0], [ir.IntType(32)(1)]))
    chosen = builder.bitcast(function.args[1], ir.VectorType(I1, LANES))
    builder.store(builder.select(chosen, one, other), function.args[0])
    builder.ret_void()
    return str(module)


@cache
def registers() -> Registers:
    """Those of the CPU."""
    code = target_machine().emit_assembly(binding.parse_assembly(_example()))
    masks = "%k" in code
    if "%zmm" in code:
        return Registers(1, 32, masks)
    if "%ymm" in code:
        return Registers(2, 32 if masks else 16, masks)
    if "%xmm" in code:
        return Registers(4, 32 if masks else 16, masks)
    return Registers(4, 32, masks)


@cache
def shuffles_words() -> bool:
    """Whether elements of sixteen bits are put anywhere in a register by one quick instruction.

    AMD's CPUs do: a sum of bfloat16 in the nearest cache took 0.67 ns for sixteen elements with a
    shuffle, 1.07 with a widening and a shift. Intel's take three steps: softmax_backward of 256x512
    took 57 microseconds with a shuffle, 44 without.
    """
    return is_amd()


@cache
def foresees_rows() -> bool:
    """Whether a core reads four rows side by side ahead from the last cache without being asked to.

    AMD's do: a product of 1024x1024 float64 took 114 microseconds where lines were asked for, 65
    where not, a sum 67 and 53. Beyond that cache it is the other way round.
    """
    return is_amd()


def pieces(builder, vectors) -> list[list]:
    """Vectors of eight float64 as parts that take a register each, where lanes have no masks.

    A condition is found piece by piece: that of several registers would be brought to one.
    """
    if registers().masks:
        return [list(vectors)]
    size = LANES // registers().of_lanes

    def lanes(v, first: int):
        if v is None:  # of constants that no function asks for
            return None
        order = ir.VectorType(I32, size)(list(range(first, first + size)))
        return builder.shuffle_vector(v, v, order)

    return [[lanes(v, first) for v in vectors] for first in range(0, LANES, size)]


def any_piece(builder, masks):
    """Whether a lane of any mask is set."""
    joined = reduce(builder.or_, masks)
    bits = builder.bitcast(joined, ir.IntType(joined.type.count))
    return builder.icmp_unsigned("!=", bits, bits.type(0))
