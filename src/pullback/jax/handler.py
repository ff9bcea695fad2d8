"""The XLA FFI handler: a native function that runs any launch, without Python and the GIL.

A call carries one attribute, an array of int64 that says what to run (see ``HEAD``): the kernels by
id, the parameter block they share, and which words of the block are addresses of operands and
results. Kernels are found by id in a table of this process, because an executable may have been
compiled by another one. The structs of XLA's C API (``xla/ffi/api/c_api.h``) are read as words.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ..cpu.codegen.block import int32_at, set_word, word
from ..cpu.compile import Native, compile_for_c
from ..cpu.dispatch import (
    ALL,
    CHUNKS,
    MACHINE,
    REFERENCES,
    address_of,
    call_1,
    call_kernel,
    external,
    fetch_add,
    fill,
    is_due,
    let_go,
    new_job,
    phase_at,
    run_chunks,
    wait_for,
)
from ..cpu.pool import CHUNKS_PER_THREAD
from ..cpu.program import KERNEL, LENGTH, PHASES, THREADS
from ..cpu.program import UNITS as PHASE_UNITS

I32, I64 = ir.IntType(32), ir.IntType(64)

# Words of the attribute: a version, then a program (``cpu/program.py``) with ids of kernels in the
# place of their addresses. Operands are the arguments of the call, then its results.
VERSION, PROGRAM = 0, 1
LAUNCH_VERSION = 4

# Words of the C API: call frame, its arguments, results and attributes, a buffer, an array.
FRAME_SIZE, FRAME_EXTENSION, FRAME_API, FRAME_CONTEXT, FRAME_STAGE = 0, 1, 2, 3, 4
ARGS_SIZE, ARGS_COUNT, ARGS = 5, 7, 9
RETS_SIZE, RETS_COUNT, RETS = 10, 12, 14
ATTRS_SIZE, ATTRS_COUNT, ATTRS_TYPES, ATTRS = 15, 17, 18, 20
BUFFER_DATA = 3
ARRAY_DTYPE, ARRAY_LENGTH, ARRAY_DATA = 0, 1, 2
API_SIZE, API_VERSION = 0, 4
ERROR_CREATE, ERROR_DESTROY, SCHEDULE, NUM_THREADS = 6, 8, 17, 18
EXTENSION_TYPE, EXTENSION_METADATA = 1, 3
METADATA_EXTENSION, ARRAY_ATTRIBUTE, DTYPE_S64, EXECUTE = 1, 1, 5, 3
FAILED_PRECONDITION, UNIMPLEMENTED = 9, 12

# What the structs must hold at least, in bytes, for the words above to mean what they say.
API_MAJOR = 0
SMALLEST = {"frame": 8 * 21, "api": 8 * 9, "args": 8 * 5, "rets": 8 * 5, "attrs": 8 * 6}
_FRAME, _API, _ARGS, _ATTRS = (SMALLEST[k] for k in ("frame", "api", "args", "attrs"))

# The registry: what XLA said of itself when asked for metadata, then slots of (id, address).
ASKED, SEEN_VERSION, SEEN_API, SEEN_FRAME, HEADER_VERSION, SLOT = 0, 1, 2, 3, 4, 5
SLOTS = 1 << 13
registry = np.zeros(SLOT + 2 * SLOTS, np.int64)


def _text(message: str) -> np.ndarray:
    return np.frombuffer(message.encode() + b"\0", np.uint8)


_MESSAGES = {
    "pullback_jax_abi": _text("pullback: the layout of XLA's call frame is not the one known here"),
    "pullback_jax_launch": _text("pullback: the launch was written by another version of pullback"),
    "pullback_jax_kernel": _text(
        "pullback: the kernel of this executable is not loaded in this process; trace and lower "
        "the function here instead of loading the executable"
    ),
    "pullback_jax_memory": _text("pullback: out of memory"),
}


def _add_symbols() -> None:
    """Names that compiled code refers to, whether compiled now or loaded from a cache."""
    symbols: dict[str, int | None] = {n: text.ctypes.data for n, text in _MESSAGES.items()}
    symbols["pullback_jax_registry"] = registry.ctypes.data
    for name, address in symbols.items():
        llvm.add_symbol(name, address)


_add_symbols()


def register_kernel(identity: int, address: int) -> None:
    """Let the handler find a kernel. The same id may be given again."""
    place = identity & (SLOTS - 1)
    for step in range(SLOTS):
        slot = SLOT + 2 * ((place + step) & (SLOTS - 1))
        if registry[slot] in (0, identity):
            registry[slot + 1] = address
            registry[slot] = identity
            return
    raise MemoryError(f"more than {SLOTS} kernels")


_registry = address_of("pullback_jax_registry")
_abi_message = address_of("pullback_jax_abi")
_launch_message = address_of("pullback_jax_launch")
_kernel_message = address_of("pullback_jax_kernel")
_memory_message = address_of("pullback_jax_memory")
_allocate, _release = external("PyMem_RawMalloc"), external("PyMem_RawFree")


@intrinsic
def _set_int32(context, address, value):
    def codegen(ctx, builder, sig, args):
        pointer = builder.inttoptr(args[0], I32.as_pointer())
        builder.store(builder.trunc(args[1], I32), pointer)
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def _stack(context):
    """The address of eight words on the stack of the caller."""

    def codegen(ctx, builder, sig, args):
        return builder.ptrtoint(cgutils.alloca_once(builder, I64, size=8), I64)

    return types.int64(), codegen


# XLA flushes subnormal numbers to zero on its threads; kernels keep them, as they do under NumPy.
# The plain mode is what Python's threads have: rounding to nearest, nothing flushed.
PLAIN_MODE = 0x1F80 if MACHINE in ("x86_64", "amd64") else 0


@intrinsic
def _get_float_mode(context):
    def codegen(ctx, builder, sig, args):
        if MACHINE in ("x86_64", "amd64"):
            box = cgutils.alloca_once(builder, I32)
            byte = ir.IntType(8).as_pointer()
            kind = ir.FunctionType(ir.VoidType(), [byte])
            get = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse.stmxcsr")
            builder.call(get, [builder.bitcast(box, byte)])
            return builder.zext(builder.load(box), I64)
        if MACHINE in ("aarch64", "arm64"):
            kind = ir.FunctionType(I64, [])
            get = cgutils.get_or_insert_function(builder.module, kind, "llvm.aarch64.get.fpcr")
            return builder.call(get, [])
        return I64(0)

    return types.int64(), codegen


@intrinsic
def _set_float_mode(context, mode):
    def codegen(ctx, builder, sig, args):
        if MACHINE in ("x86_64", "amd64"):
            box = cgutils.alloca_once(builder, I32)
            builder.store(builder.trunc(args[0], I32), box)
            byte = ir.IntType(8).as_pointer()
            kind = ir.FunctionType(ir.VoidType(), [byte])
            put = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse.ldmxcsr")
            builder.call(put, [builder.bitcast(box, byte)])
        elif MACHINE in ("aarch64", "arm64"):
            kind = ir.FunctionType(ir.VoidType(), [I64])
            put = cgutils.get_or_insert_function(builder.module, kind, "llvm.aarch64.set.fpcr")
            builder.call(put, [args[0]])
        return ctx.get_dummy_value()

    return types.void(types.int64), codegen


# No entry points for Python and C: they take half of the compile time.
_compiled = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


@_compiled
def _error(api, message, code):
    """An XLA error, which XLA will own."""
    arguments = _stack()
    set_word(arguments, 0, 28)
    set_word(arguments, 1, 0)
    set_word(arguments, 2, message)
    set_word(arguments, 3, code)
    return call_1(word(api, ERROR_CREATE), arguments)


@_compiled
def _succeeded(api, error):
    """Whether a call of the API went well; an error it returned is destroyed."""
    if error == 0:
        return True
    arguments = _stack()
    set_word(arguments, 0, 24)
    set_word(arguments, 1, 0)
    set_word(arguments, 2, error)
    call_1(word(api, ERROR_DESTROY), arguments)
    return False


@_compiled
def _pool_size(api, context):
    if word(api, API_SIZE) < 8 * (NUM_THREADS + 1):
        return 1  # an API that ends before the pool; jaxlib 0.4.38 says so of a longer one
    answer, arguments = _stack(), _stack()
    set_word(answer, 0, 1)
    set_word(arguments, 0, 32)
    set_word(arguments, 1, 0)
    set_word(arguments, 2, context)
    set_word(arguments, 3, answer)
    if _succeeded(api, call_1(word(api, NUM_THREADS), arguments)):
        return max(1, word(answer, 0))
    return 1


@_compiled
def _find(identity):
    """The address of a kernel, 0 if it is not known."""
    slots = _registry() + 8 * SLOT
    place = identity & (SLOTS - 1)
    for _ in range(SLOTS):
        found = word(slots, 2 * place)
        if found == identity:
            return word(slots, 2 * place + 1)
        if found == 0:
            return 0
        place = (place + 1) & (SLOTS - 1)
    return 0


@_compiled
def _work(job):
    """Claim and run chunks until none is left."""
    mode = _get_float_mode()
    _set_float_mode(PLAIN_MODE)
    run_chunks(job, ALL)
    _set_float_mode(mode)


_DIGEST = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]


def _native(signature: str) -> Callable:
    """Compile for C callers, or load what was compiled from the same sources."""

    def compiled(function: Callable) -> Native:
        return compile_for_c(f"{function.__name__}-{_DIGEST}", signature, lambda: function)

    return compiled


@_native("void(int64)")
def _task(job):
    _work(job)
    let_go(job, 1)


@_native("int64(int64)")
def _swap(mode):
    before = _get_float_mode()
    _set_float_mode(mode)
    return before


# How this thread rounds and whether it keeps subnormal numbers: sets it, and returns what it was.
swap_float_mode = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(_swap.address)

_TASK_SYMBOL = "pullback_jax_task"
llvm.add_symbol(_TASK_SYMBOL, _task.address)
_task_address = address_of(_TASK_SYMBOL)


@_compiled
def _share(api, context, function, block, units, threads):
    """Run a kernel over its units on the threads of XLA, the calling one among them."""
    chunk = max(1, -(-units // (threads * CHUNKS_PER_THREAD)))
    job = new_job(function, block, units, chunk)
    if job == 0:
        return False
    helpers = min(threads, word(job, CHUNKS)) - 1
    fetch_add(job + 8 * REFERENCES, helpers)
    arguments = _stack()
    set_word(arguments, 0, 40)
    set_word(arguments, 1, 0)
    set_word(arguments, 2, context)
    set_word(arguments, 3, _task_address())
    set_word(arguments, 4, job)
    refused = 0
    for _ in range(helpers):
        if not _succeeded(api, call_1(word(api, SCHEDULE), arguments)):
            refused += 1
    _work(job)
    # Every chunk is claimed; those of other threads are running and will end.
    wait_for(job, word(job, CHUNKS), 0)
    let_go(job, refused + 1)
    return True


@_compiled
def _gather(frame, addresses):
    """The addresses of arguments and results, one after the other."""
    count = word(frame, ARGS_COUNT)
    for k in range(count):
        set_word(addresses, k, word(word(word(frame, ARGS), k), BUFFER_DATA))
    for k in range(word(frame, RETS_COUNT)):
        set_word(addresses, count + k, word(word(word(frame, RETS), k), BUFFER_DATA))


@_compiled
def _launch(frame, program):
    """Run the phases of a program; the message of what went wrong, or 0."""
    phases = word(program, PHASES)
    for k in range(phases):
        if _find(word(phase_at(program, k), KERNEL)) == 0:
            return _kernel_message()
    # A block, and behind it the addresses that go into it.
    length = word(program, LENGTH)
    operands = word(frame, ARGS_COUNT) + word(frame, RETS_COUNT)
    block = call_1(_allocate(), 8 * (length + operands))
    if block == 0:
        return _memory_message()
    _gather(frame, block + 8 * length)
    fill(program, block, block + 8 * length)
    api, context = word(frame, FRAME_API), word(frame, FRAME_CONTEXT)
    enough = True
    for k in range(phases):
        phase = phase_at(program, k)
        if not is_due(phase, block):
            continue
        function, units = _find(word(phase, KERNEL)), word(phase, PHASE_UNITS)
        threads = word(phase, THREADS)
        if threads > 1:
            threads = min(_pool_size(api, context), threads)
        if threads > 1:
            enough = _share(api, context, function, block, units, threads) and enough
        else:
            mode = _get_float_mode()
            _set_float_mode(PLAIN_MODE)
            call_kernel(function, block, 0, units)
            _set_float_mode(mode)
    call_1(_release(), block)
    return 0 if enough else _memory_message()


@_compiled
def _answer(frame):
    """Answer a query for metadata, noting what XLA says of itself; False for any other call."""
    extension = word(frame, FRAME_EXTENSION)
    if extension == 0 or int32_at(extension + 8 * EXTENSION_TYPE) != METADATA_EXTENSION:
        return False
    metadata, api = word(extension, EXTENSION_METADATA), word(frame, FRAME_API)
    notes = _registry()
    # Some versions of XLA ask without showing their API.
    version = word(notes, HEADER_VERSION)
    if api != 0:
        version = word(api, API_VERSION)
        set_word(notes, SEEN_API, word(api, API_SIZE))
    set_word(notes, SEEN_VERSION, version)
    set_word(notes, SEEN_FRAME, word(frame, FRAME_SIZE))
    set_word(notes, ASKED, 1)
    # XLA_FFI_Metadata: its size, then the version struct (size, extension, major and minor), traits
    # and, in newer versions, the id of a state type.
    set_word(metadata, 1, 24)
    set_word(metadata, 2, 0)
    set_word(metadata, 3, version)
    _set_int32(metadata + 8 * 4, 0)
    if word(metadata, 0) >= 8 * 6:
        set_word(metadata, 5, 0)
    return True


@_native("int64(int64)")
def handler(frame):
    """``XLA_FFI_Error* handler(XLA_FFI_CallFrame*)``."""
    if _answer(frame):
        return 0
    api = word(frame, FRAME_API)
    if (
        word(frame, FRAME_SIZE) < _FRAME
        or word(api, API_SIZE) < _API
        or int32_at(api + 8 * API_VERSION) != API_MAJOR
        or word(frame, ARGS_SIZE) != _ARGS
        or word(frame, RETS_SIZE) != _ARGS
        or word(frame, ATTRS_SIZE) != _ATTRS
    ):
        return _error(api, _abi_message(), UNIMPLEMENTED)
    if int32_at(frame + 8 * FRAME_STAGE) != EXECUTE:
        return 0
    if word(frame, ATTRS_COUNT) != 1 or int32_at(word(frame, ATTRS_TYPES)) != ARRAY_ATTRIBUTE:
        return _error(api, _launch_message(), FAILED_PRECONDITION)
    array = word(word(frame, ATTRS), 0)
    words = word(array, ARRAY_DATA)
    if int32_at(array) != DTYPE_S64 or word(words, VERSION) != LAUNCH_VERSION:
        return _error(api, _launch_message(), FAILED_PRECONDITION)
    message = _launch(frame, words + 8 * PROGRAM)
    if message != 0:
        return _error(api, message, FAILED_PRECONDITION)
    return 0
