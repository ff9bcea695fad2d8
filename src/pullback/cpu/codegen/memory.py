"""What functions of words do with memory and other threads, as LLVM code."""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir

from .functions import Emitter, emitter
from .lanes import I32, I64

MACHINE = platform.machine().lower()
VOID = ir.VoidType()


def is_x86() -> bool:
    return MACHINE in ("x86_64", "amd64")


def is_arm() -> bool:
    return MACHINE in ("aarch64", "arm64")


def symbol(function: str) -> str:
    """The name by which native code knows a function of C."""
    return f"pullback_{function}"


def declared(builder: Any, name: str, result: ir.Type, *arguments: ir.Type) -> Any:
    """A function that is defined elsewhere."""
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


def _pointer(builder: Any, address: Any, kind: ir.Type = I64) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


@emitter
def word(builder, block, index):
    """Word ``index`` of a block of int64 at an address."""
    return builder.load(builder.gep(_pointer(builder, block), [index]))


@emitter
def set_word(builder, block, index, value):
    builder.store(value, builder.gep(_pointer(builder, block), [index]))


@emitter
def int32_at(builder, address):
    return builder.sext(builder.load(_pointer(builder, address, I32)), I64)


@emitter
def set_int32(builder, address, value):
    builder.store(builder.trunc(value, I32), _pointer(builder, address, I32))


@emitter
def low_half(builder, value):
    """What a function of C gives that gives an int."""
    return builder.sext(builder.trunc(value, I32), I64)


@emitter
def without_bit(builder, value, bit):
    return builder.and_(value, builder.not_(builder.shl(I64(1), bit)))


def room_for(words: int) -> Emitter:
    """``f()``: the address of so many words on the stack of the caller, the same each time."""

    @emitter
    def room(builder):
        with builder.goto_entry_block():
            box = builder.alloca(ir.ArrayType(I64, words))
        return builder.ptrtoint(box, I64)

    return room


def address_of(name: str) -> Emitter:
    """``f()``: the address that a symbol stands for."""

    @emitter
    def address(builder):
        known = builder.module.globals.get(name)
        if known is None:
            known = ir.GlobalVariable(builder.module, I64, name)
        return builder.ptrtoint(known, I64)

    return address


def external(name: str) -> Emitter:
    """``f()``: the address of a function of C."""
    return address_of(symbol(name))


@emitter
def call(builder, function, *words):
    """Call a C function at an address with some words."""
    kind = ir.FunctionType(I64, [I64] * len(words))
    return builder.call(_pointer(builder, function, kind), words)


@emitter
def call_kernel(builder, function, p, begin, end):
    """Run a kernel at an address over a range of units."""
    kind = ir.FunctionType(VOID, [I64] * 3)
    builder.call(_pointer(builder, function, kind), [p, begin, end])


@emitter
def fetch_add(builder, address, value):
    """Add to a word that threads share; what it was before."""
    return builder.atomic_rmw("add", _pointer(builder, address), value, "seq_cst")


@emitter
def shared_word(builder, address):
    """A word that other threads may change, and what they wrote before they changed it."""
    return builder.load_atomic(_pointer(builder, address), "acquire", 8)


@emitter
def set_shared(builder, address, value):
    """Set a word that other threads watch, after all that was written before."""
    builder.store_atomic(value, _pointer(builder, address), "release", 8)


@emitter
def swap_if(builder, address, expected, value):
    """Set a word if it still is what is expected; whether it was."""
    swapped = builder.cmpxchg(_pointer(builder, address), expected, value, "seq_cst", "seq_cst")
    return builder.extract_value(swapped, 1)


@emitter
def pause(builder):
    """Tell the core that its thread is waiting for a word to change."""
    if is_x86():
        builder.call(declared(builder, "llvm.x86.sse2.pause", VOID), [])
    elif is_arm():
        builder.call(declared(builder, "llvm.aarch64.hint", VOID, I32), [I32(1)])


@emitter
def give_way(builder):
    """Let another thread run."""
    builder.call(declared(builder, symbol("yield"), I32), [])
