"""The kernel behind :mod:`.positions`: indices of holders, one pass, bits compared as integers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir

from ..cpu.codegen.functions import emitter
from ..cpu.codegen.lanes import I64
from ..cpu.codegen.memory import set_word, word
from ..cpu.compile import Kernel, code_digest, compile_kernel
from ..formulas.record import RowFormula

TILE = 512  # columns of a unit: a row of indices stays in the first cache


def _loader(bits: int) -> Any:
    @emitter
    def load(builder, address, index):
        """Element ``index`` as an unsigned integer."""
        kind = ir.IntType(bits)
        pointer = builder.gep(builder.inttoptr(address, kind.as_pointer()), [index])
        value = builder.load(pointer)
        return value if bits == 64 else builder.zext(value, I64)

    return load


def _make(bits: int) -> Callable[..., None]:
    load = _loader(bits)
    size = (1 << (bits - 1)) - 1  # all bits but the sign
    tile = TILE

    def kernel(p, begin, end):
        a, b, out = word(p, 0), word(p, 1), word(p, 2)
        n, width, tiles = word(p, 3), word(p, 4), word(p, 5)
        start, step = word(p, 6), word(p, 7)
        wanted, infinity = word(p, 8), word(p, 9)
        for unit in range(begin, end):
            base = (unit // tiles) * n * width + start * width
            first = (unit % tiles) * tile
            stop = min(width, first + tile)
            for c in range(first, stop):
                set_word(out, base + c, start)
            if width == 1:
                held = start
                for k in range(1, n):
                    at = base + k * step
                    u, v = load(a, at), load(b, at)
                    lost = (u & size) > infinity and (v & size) > infinity
                    same = 1 if u == v or ((u | v) & size) == 0 or lost else 0
                    held = start + k * step if same == wanted else held
                    set_word(out, at, held)
            else:
                for k in range(1, n):
                    row = base + k * step * width
                    before = row - step * width
                    for c in range(first, stop):
                        u, v = load(a, row + c), load(b, row + c)
                        lost = ((u & size) > infinity) & ((v & size) > infinity)
                        same = (u == v) | (((u | v) & size) == 0) | lost
                        here = start + k * step
                        held = here if same == (wanted != 0) else word(out, before + c)
                        set_word(out, row + c, held)

    return kernel


@cache
def kernel_of(bits: int) -> Kernel:
    """The kernel for elements of so many bits."""
    name = f"positions-{bits}-{code_digest((_make,))}"
    return compile_kernel(name, RowFormula(), lambda: _make(bits))
