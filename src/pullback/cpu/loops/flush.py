"""Copying what was staged in a box to its place in memory, past the caches or not.

A line that a slow kernel writes past the caches in pieces leaves the buffers half full, which
costs more than it saves (a product scan took 20 ms instead of 14); whole lines in a row do not.
"""

from __future__ import annotations

from llvmlite import ir

from ..codegen.block import least
from ..codegen.functions import emitter, inner
from ..codegen.lanes import I32
from ..words import LINE as LINE

_LINE = ir.VectorType(I32, LINE // 4)


@emitter
def copy_bytes(builder, target, source, count):
    """An ordinary copy."""
    byte = ir.IntType(8).as_pointer()
    pointers = [builder.inttoptr(a, byte) for a in (target, source)]
    copy = builder.module.declare_intrinsic("llvm.memcpy", [byte, byte, count.type])
    builder.call(copy, [*pointers, count, ir.IntType(1)(0)])


def _set_line(builder, target, source, align: int):
    """One cache line, from anywhere."""
    target_, source_ = (builder.inttoptr(a, _LINE.as_pointer()) for a in (target, source))
    line = builder.load(source_)
    line.align = 1
    store = builder.store(line, target_)
    store.align = align
    return store


@emitter
def stream_line(builder, target, source):
    """To an aligned address, past the caches."""
    store = _set_line(builder, target, source, LINE)
    store.set_metadata("nontemporal", builder.module.add_metadata([I32(1)]))


@emitter
def put_line(builder, target, source):
    _set_line(builder, target, source, 1)


@inner
def flush(target, box, count):
    """``count`` bytes from a box to their place, past the caches."""
    head = least(-target % LINE, count)
    if head > 0:
        copy_bytes(target, box, head)
    whole = head + (count - head) // LINE * LINE
    for at in range(head, whole, LINE):
        stream_line(target + at, box + at)
    if whole < count:
        copy_bytes(target + whole, box + whole, count - whole)


@inner
def put_bytes(target, box, count):
    """The same into the caches: as many aligned lines as there are, and the ends over them.

    A copy of C's own does not align what it writes of some hundred bytes: the gradient of a sum of
    512x1024 bfloat16 down columns took 20 microseconds instead of 10.
    """
    if count < LINE:
        copy_bytes(target, box, count)
    else:
        put_line(target, box)
        for at in range(LINE - target % LINE, count - LINE, LINE):
            put_line(target + at, box + at)
        put_line(target + count - LINE, box + count - LINE)
