"""What runs between Python and kernels: blocks filled, phases run, chunks claimed.

What a ``make_…`` gives is a builtin of that name (:mod:`.builtin`): it gets the address of the
arguments of the call, int64 words, and how many there are.
"""

from __future__ import annotations

import mmap
import platform

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..memory.large_pages import ADVICE
from .builtin import MOST_WORDS, symbol
from .codegen.block import emit_word, least, set_word, word
from .codegen.jit import inner
from .codegen.lanes import I64
from .codegen.vectors import stack
from .pool import (
    BUSY,
    LOCK,
    LOOKS,
    SLEEPING,
    SLOT_WORDS,
    SLOTS,
    STATE,
    USED,
    WATCHING,
)
from .program import (
    CONDITION,
    HEAD,
    KERNEL,
    LENGTH,
    LONGEST_BLOCK,
    NEW_BYTES,
    OFFSET,
    OPERAND,
    PATCH_WORDS,
    PATCHES,
    PHASE_WORDS,
    PHASES,
    PLACE,
    UNITS,
)

PAGE = mmap.PAGESIZE
MACHINE = platform.machine().lower()


def address_of(name: str):
    """``f()``: the address that a symbol stands for."""

    @intrinsic
    def address(context):
        def codegen(ctx, builder, sig, args):
            known = builder.module.globals.get(name)
            if known is None:
                known = ir.GlobalVariable(builder.module, I64, name)
            return builder.ptrtoint(known, I64)

        return types.int64(), codegen

    return address


def _emit_call(ctx, builder, sig, args):
    kind = ir.FunctionType(I64, [I64] * (len(args) - 1))
    return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])


@intrinsic
def call_0(context, function):
    """Call a C function at an address; here with no argument, below with some words."""
    return types.int64(types.int64), _emit_call


@intrinsic
def call_1(context, function, a):
    return types.int64(*[types.int64] * 2), _emit_call


@intrinsic
def call_2(context, function, a, b):
    return types.int64(*[types.int64] * 3), _emit_call


@intrinsic
def call_3(context, function, a, b, c):
    return types.int64(*[types.int64] * 4), _emit_call


@intrinsic
def call_kernel(context, function, p, begin, end):
    """Run a kernel at an address over a range of units."""

    def codegen(ctx, builder, sig, args):
        kind = ir.FunctionType(ir.VoidType(), [I64] * 3)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return ctx.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def fetch_add(context, address, value):
    """Add to a word that threads share; what it was before."""

    def codegen(ctx, builder, sig, args):
        pointer = builder.inttoptr(args[0], I64.as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def shared_word(context, address):
    """A word that other threads may change, and what they wrote before they changed it."""

    def codegen(ctx, builder, sig, args):
        pointer = builder.inttoptr(args[0], I64.as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def set_shared(context, address, value):
    """Set a word that other threads watch, after all that was written before."""

    def codegen(ctx, builder, sig, args):
        pointer = builder.inttoptr(args[0], I64.as_pointer())
        builder.store_atomic(args[1], pointer, "release", 8)
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def swap_if(context, address, expected, value):
    """Set a word if it still is what is expected; whether it was."""

    def codegen(ctx, builder, sig, args):
        pointer = builder.inttoptr(args[0], I64.as_pointer())
        swapped = builder.cmpxchg(pointer, args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(swapped, 1)

    return types.boolean(*[types.int64] * 3), codegen


@intrinsic
def pause(context):
    """Tell the core that its thread is waiting for a word to change."""

    def codegen(ctx, builder, sig, args):
        if MACHINE in ("x86_64", "amd64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            name, given = "llvm.x86.sse2.pause", []
        elif MACHINE in ("aarch64", "arm64"):
            kind = ir.FunctionType(ir.VoidType(), [ir.IntType(32)])
            name, given = "llvm.aarch64.hint", [ir.IntType(32)(1)]
        else:
            return ctx.get_dummy_value()
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), given)
        return ctx.get_dummy_value()

    return types.void(), codegen


@intrinsic
def give_way(context):
    """Let another thread run."""

    def codegen(ctx, builder, sig, args):
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, symbol("yield")), [])
        return ctx.get_dummy_value()

    return types.void(), codegen


def external(name: str):
    """``f()``: the address of a function of C."""
    return address_of(symbol(name))


def make_python_call():
    """The C function behind every builtin: ``self`` is an int, the address of what to call."""
    as_word, as_int = external("PyLong_AsLongLong"), external("PyLong_FromLongLong")
    failed, room = external("PyErr_Occurred"), stack(MOST_WORDS)
    let_go, take = external("PyEval_SaveThread"), external("PyEval_RestoreThread")

    def python_call(function, arguments, count):
        words = room()
        if count > MOST_WORDS:
            return call_1(as_int(), -1)
        for k in range(count):
            value = call_1(as_word(), word(arguments, k))
            if value == -1 and call_0(failed()) != 0:
                return 0
            set_word(words, k, value)
        native = call_1(as_word(), function)
        thread = call_0(let_go())
        answer = call_2(native, words, count)
        call_1(take(), thread)
        return call_1(as_int(), answer)

    return python_call


# Small enough to be emitted in place: a function of its own takes 30 ms to compile.
@intrinsic
def phase_at(context, program, k):
    """The words of a phase."""

    def codegen(ctx, builder, sig, args):
        before = builder.mul(args[1], I64(8 * PHASE_WORDS))
        return builder.add(args[0], builder.add(before, I64(8 * HEAD)))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def is_due(context, phase, block):
    """Whether a phase has no condition, or one that was met."""

    def codegen(ctx, builder, sig, args):
        condition = emit_word(builder, args[0], I64(CONDITION))
        always = builder.icmp_signed("==", condition, I64(0))
        met = builder.icmp_signed("!=", emit_word(builder, args[1], condition), I64(0))
        return builder.or_(always, met)

    return types.boolean(types.int64, types.int64), codegen


_advise, _has_advice, _advice = external("madvise"), ADVICE is not None, ADVICE or 0


@inner
def fill(program, block, addresses):
    """The parameter block of a program, for operands at these addresses."""
    patches = phase_at(program, word(program, PHASES))
    template = patches + 8 * PATCH_WORDS * word(program, PATCHES)
    for k in range(word(program, LENGTH)):
        set_word(block, k, word(template, k))
    for k in range(word(program, PATCHES)):
        patch = patches + 8 * PATCH_WORDS * k
        address, size = word(addresses, word(patch, OPERAND)), word(patch, NEW_BYTES)
        set_word(block, word(patch, PLACE), address + word(patch, OFFSET))
        if _has_advice and size != 0:
            first, last = (address + PAGE - 1) // PAGE * PAGE, (address + size) // PAGE * PAGE
            if first < last:
                call_3(_advise(), first, last - first, _advice)


def make_fill_block():
    """``fill(program, block, *addresses)``."""

    def fill_block(words, count):
        fill(word(words, 0), word(words, 1), words + 16)
        return 0

    return fill_block


def make_run_program():
    """``run(program, *addresses)`` on the calling thread: 0, or the phase without a kernel, from 1.

    Nothing was written that another run from the start does not write again.
    """
    room = stack(LONGEST_BLOCK)

    def run_program(words, count):
        program, block = word(words, 0), room()
        fill(program, block, words + 8)
        for k in range(word(program, PHASES)):
            phase = phase_at(program, k)
            if is_due(phase, block):
                if word(phase, KERNEL) == 0:
                    return k + 1
                call_kernel(word(phase, KERNEL), block, 0, word(phase, UNITS))
        return 0

    return run_program


def make_run_kernel():
    """``run(kernel, block, units)`` on the calling thread."""

    def run_kernel(words, count):
        call_kernel(word(words, 0), word(words, 1), 0, word(words, 2))
        return 0

    return run_kernel


# Words of a job: what threads change, a cache line apart, and what they only read.
CLAIMED, DONE, REFERENCES = 0, 8, 16
FUNCTION, BLOCK, JOB_UNITS, CHUNK, CHUNKS, JOB_WORDS = 24, 25, 26, 27, 28, 32
ALL = 1 << 62

_allocate, _release = external("PyMem_RawMalloc"), external("PyMem_RawFree")
_lock, _unlock = external("PyThread_acquire_lock"), external("PyThread_release_lock")
_allocate_lock = external("PyThread_allocate_lock")


@inner
def new_job(function, block, units, chunk):
    """A job with one reference; 0 where there is no memory."""
    job = call_1(_allocate(), 8 * JOB_WORDS)
    if job != 0:
        set_word(job, CLAIMED, 0)
        set_word(job, DONE, 0)
        set_word(job, REFERENCES, 1)
        set_word(job, FUNCTION, function)
        set_word(job, BLOCK, block)
        set_word(job, JOB_UNITS, units)
        set_word(job, CHUNK, chunk)
        set_word(job, CHUNKS, (units + chunk - 1) // chunk)
    return job


@inner
def let_go(job, references):
    """Give references up; the job is freed with the last one, be it of a thread that came late."""
    if fetch_add(job + 8 * REFERENCES, -references) == references:
        call_1(_release(), job)


@inner
def run_chunks(job, most):
    """Claim and run so many chunks; whether there may be more."""
    units, chunk, chunks = word(job, JOB_UNITS), word(job, CHUNK), word(job, CHUNKS)
    for _ in range(most):
        c = fetch_add(job + 8 * CLAIMED, 1)
        if c >= chunks:
            return False
        end = least(units, (c + 1) * chunk)
        call_kernel(word(job, FUNCTION), word(job, BLOCK), c * chunk, end)
        fetch_add(job + 8 * DONE, 1)
    return True


@inner
def wait_for(job, chunks, looks):
    """Wait until so many chunks are computed, which other threads have claimed."""
    looked = 0
    while shared_word(job + 8 * DONE) < chunks:
        if looked < looks:
            pause()
            looked += 1
        else:
            give_way()


@inner
def _hand_out(board, job, helpers):
    """Give a job to workers that are free."""
    for k in range(shared_word(board + 8 * USED)):
        if helpers <= 0:
            break
        slot = board + 8 * (SLOTS + SLOT_WORDS * k)
        state = shared_word(slot + 8 * STATE)
        if state < BUSY:
            fetch_add(job + 8 * REFERENCES, 1)
            if swap_if(slot + 8 * STATE, state, job):
                helpers -= 1
                if state == SLEEPING:
                    call_1(_unlock(), word(slot, LOCK))
            else:
                fetch_add(job + 8 * REFERENCES, -1)


def make_new_lock():
    """``new_lock()``: a lock that is taken."""

    def new_lock(words, count):
        lock = call_0(_allocate_lock())
        call_2(_lock(), lock, 1)
        return lock

    return new_lock


def make_look():
    """``look(times)`` as a worker does that watches for a job."""

    def look(words, count):
        box = words + 8
        for _ in range(word(words, 0)):
            if shared_word(box) == BUSY:
                break
            pause()
        return 0

    return look


def make_serve():
    """``serve(slot, board)``: take jobs, for ever."""

    def serve(words, count):
        slot, board = word(words, 0), word(words, 1)
        state = slot + 8 * STATE
        set_shared(state, WATCHING)
        for _ in range(ALL):
            looks = shared_word(board + 8 * LOOKS)
            while shared_word(state) == WATCHING and looks > 0:
                pause()
                looks -= 1
            if swap_if(state, WATCHING, SLEEPING):
                call_2(_lock(), word(slot, LOCK), 1)
            job = shared_word(state)
            set_shared(state, BUSY)
            run_chunks(job, ALL)
            let_go(job, 1)
            set_shared(state, WATCHING)
        return 0

    return serve


def make_share():
    """``share(handle, board, helpers, most, kernel, block, units, chunk)``: 0 when all is done.

    What is not is a job at ``handle``, and the next call goes on with it after ``most`` chunks.
    """

    def share(words, count):
        handle, board, helpers = word(words, 0), word(words, 1), word(words, 2)
        kernel, block, units = word(words, 4), word(words, 5), word(words, 6)
        job = word(handle, 0)
        if job == 0:
            job = new_job(kernel, block, units, word(words, 7))
            if job == 0:
                call_kernel(kernel, block, 0, units)
                return 0
            set_word(handle, 0, job)
        _hand_out(board, job, helpers + 1 - shared_word(job + 8 * REFERENCES))
        if run_chunks(job, word(words, 3)):
            return 1
        wait_for(job, word(job, CHUNKS), shared_word(board + 8 * LOOKS))
        set_word(handle, 0, 0)
        let_go(job, 1)
        return 0

    return share


def make_abandon():
    """``abandon(handle)``: let nothing more of a job be claimed, wait for what is."""

    def abandon(words, count):
        job = word(word(words, 0), 0)
        if job != 0:
            set_word(word(words, 0), 0, 0)
            claimed = least(word(job, CHUNKS), fetch_add(job + 8 * CLAIMED, ALL))
            wait_for(job, claimed, 0)
            let_go(job, 1)
        return 0

    return abandon
