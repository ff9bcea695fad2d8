"""The XLA FFI handler: a native function that runs any launch, without Python and the GIL.

A call carries one attribute, an array of int64 that says what to run (see ``HEAD``): the kernels by
id, the parameter block they share, and which words of the block are addresses of operands and
results. Kernels are found by id in a table of this process, because an executable may have been
compiled by another one. The structs of XLA's C API (``xla/ffi/api/c_api.h``) are read as words.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import platform
from collections.abc import Callable
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ..cpu.codegen.block import int32_at, set_word, word
from ..cpu.compile import compile_for_c
from ..cpu.pool import call_kernel, fetch_add, give_way
from ..memory.large_pages import ADVICE, madvise

I32, I64 = ir.IntType(32), ir.IntType(64)

PAGE = mmap.PAGESIZE

# Words of the attribute: a head, then the phases, the patches and the parameter block.
VERSION, PHASES, PATCHES, LENGTH, THREADS, HEAD = 0, 1, 2, 3, 4, 5
LAUNCH_VERSION = 3
# Of a phase: kernel id, units, whether threads may share them, and the word of the block that must
# not be 0 for it to run (0: it always runs).
PHASE_WORDS = 4
# Of a patch: word of the block, operand (or -1 - result), bytes to add, and the size of a result
# that is worth large pages (0 where it is not).
PATCH_WORDS = 4

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

# Threads take chunks of the units; enough of them to even out.
CHUNKS_PER_THREAD = 8
REFERENCES, CLAIMED, DONE, FUNCTION, BLOCK, UNITS, CHUNK, JOB = 0, 8, 16, 24, 25, 26, 27, 32


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
    python = ctypes.pythonapi
    symbols: dict[str, int | None] = {n: text.ctypes.data for n, text in _MESSAGES.items()}
    symbols["pullback_jax_registry"] = registry.ctypes.data
    symbols["pullback_jax_allocate"] = ctypes.cast(python.PyMem_RawMalloc, ctypes.c_void_p).value
    symbols["pullback_jax_release"] = ctypes.cast(python.PyMem_RawFree, ctypes.c_void_p).value
    if madvise is not None:
        symbols["pullback_jax_advise"] = ctypes.cast(madvise, ctypes.c_void_p).value
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


def _symbol(name: str) -> Callable:
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


def _external(name: str, count: int) -> Callable:
    """``f(...)``: a call of an external function on words."""
    kind = ir.FunctionType(I64, [I64] * count)

    def codegen(ctx, builder, sig, args):
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)

    if count == 3:

        @intrinsic
        def call(context, first, second, third):
            return types.int64(types.int64, types.int64, types.int64), codegen
    else:

        @intrinsic
        def call(context, argument):
            return types.int64(types.int64), codegen

    return call


_registry = _symbol("pullback_jax_registry")
_abi_message = _symbol("pullback_jax_abi")
_launch_message = _symbol("pullback_jax_launch")
_kernel_message = _symbol("pullback_jax_kernel")
_memory_message = _symbol("pullback_jax_memory")
_allocate = _external("pullback_jax_allocate", 1)
_release = _external("pullback_jax_release", 1)
_advise = _external("pullback_jax_advise", 3)


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


@intrinsic
def _call_api(context, function, arguments):
    def codegen(ctx, builder, sig, args):
        kind = ir.FunctionType(I64, [I64])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])

    return types.int64(types.int64, types.int64), codegen


# XLA flushes subnormal numbers to zero on its threads; kernels keep them, as they do under NumPy.
# The plain mode is what Python's threads have: rounding to nearest, nothing flushed.
_MACHINE = platform.machine().lower()
_PLAIN_MODE = 0x1F80 if _MACHINE in ("x86_64", "amd64") else 0


@intrinsic
def _get_float_mode(context):
    def codegen(ctx, builder, sig, args):
        if _MACHINE in ("x86_64", "amd64"):
            box = cgutils.alloca_once(builder, I32)
            byte = ir.IntType(8).as_pointer()
            kind = ir.FunctionType(ir.VoidType(), [byte])
            get = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse.stmxcsr")
            builder.call(get, [builder.bitcast(box, byte)])
            return builder.zext(builder.load(box), I64)
        if _MACHINE in ("aarch64", "arm64"):
            kind = ir.FunctionType(I64, [])
            get = cgutils.get_or_insert_function(builder.module, kind, "llvm.aarch64.get.fpcr")
            return builder.call(get, [])
        return I64(0)

    return types.int64(), codegen


@intrinsic
def _set_float_mode(context, mode):
    def codegen(ctx, builder, sig, args):
        if _MACHINE in ("x86_64", "amd64"):
            box = cgutils.alloca_once(builder, I32)
            builder.store(builder.trunc(args[0], I32), box)
            byte = ir.IntType(8).as_pointer()
            kind = ir.FunctionType(ir.VoidType(), [byte])
            put = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse.ldmxcsr")
            builder.call(put, [builder.bitcast(box, byte)])
        elif _MACHINE in ("aarch64", "arm64"):
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
    return _call_api(word(api, ERROR_CREATE), arguments)


@_compiled
def _succeeded(api, error):
    """Whether a call of the API went well; an error it returned is destroyed."""
    if error == 0:
        return True
    arguments = _stack()
    set_word(arguments, 0, 24)
    set_word(arguments, 1, 0)
    set_word(arguments, 2, error)
    _call_api(word(api, ERROR_DESTROY), arguments)
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
    if _succeeded(api, _call_api(word(api, NUM_THREADS), arguments)):
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
    _set_float_mode(_PLAIN_MODE)
    units, chunk = word(job, UNITS), word(job, CHUNK)
    while True:
        begin = fetch_add(job + 8 * CLAIMED, 1) * chunk
        if begin >= units:
            break
        call_kernel(word(job, FUNCTION), word(job, BLOCK), begin, min(units, begin + chunk))
        fetch_add(job + 8 * DONE, 1)
    _set_float_mode(mode)


@_compiled
def _let_go(job, references):
    """Give references up; the job is freed with the last one, be it of a task that came late."""
    if fetch_add(job + 8 * REFERENCES, -references) == references:
        _release(job)


_DIGEST = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]


def _native(signature: str) -> Callable:
    """Compile for C callers, or load what was compiled from the same sources."""
    return lambda function: compile_for_c(function, signature, f"{function.__name__}-{_DIGEST}")


@_native("void(int64)")
def _task(job):
    _work(job)
    _let_go(job, 1)


_TASK_SYMBOL = "pullback_jax_task"
llvm.add_symbol(_TASK_SYMBOL, _task.address)
_task_address = _symbol(_TASK_SYMBOL)


@_compiled
def _share(api, context, function, block, units, threads):
    """Run a kernel over its units on the threads of XLA, the calling one among them."""
    job = _allocate(8 * JOB)
    if job == 0:
        return False
    chunk = max(1, -(-units // (threads * CHUNKS_PER_THREAD)))
    chunks = -(-units // chunk)
    helpers = min(threads, chunks) - 1
    set_word(job, REFERENCES, helpers + 1)
    set_word(job, CLAIMED, 0)
    set_word(job, DONE, 0)
    set_word(job, FUNCTION, function)
    set_word(job, BLOCK, block)
    set_word(job, UNITS, units)
    set_word(job, CHUNK, chunk)
    arguments = _stack()
    set_word(arguments, 0, 40)
    set_word(arguments, 1, 0)
    set_word(arguments, 2, context)
    set_word(arguments, 3, _task_address())
    set_word(arguments, 4, job)
    refused = 0
    for _ in range(helpers):
        if not _succeeded(api, _call_api(word(api, SCHEDULE), arguments)):
            refused += 1
    _work(job)
    # Every chunk is claimed; those of other threads are running and will end.
    while fetch_add(job + 8 * DONE, 0) < chunks:
        give_way()
    _let_go(job, refused + 1)
    return True


if madvise is None:

    @_compiled
    def _use_large_pages(address, size):
        pass
else:

    @_compiled
    def _use_large_pages(address, size):
        first = (address + PAGE - 1) // PAGE * PAGE
        last = (address + size) // PAGE * PAGE
        if first < last:
            _advise(first, last - first, ADVICE)


@_compiled
def _launch(frame, words):
    """Run the phases of a launch; the message of what went wrong, or 0."""
    phases, patches = word(words, PHASES), word(words, PATCHES)
    length = word(words, LENGTH)
    phase = words + 8 * HEAD
    patch = phase + 8 * PHASE_WORDS * phases
    template = patch + 8 * PATCH_WORDS * patches
    for k in range(phases):
        if _find(word(phase, PHASE_WORDS * k)) == 0:
            return _kernel_message()
    block = _allocate(8 * length)
    if block == 0:
        return _memory_message()
    for k in range(length):
        set_word(block, k, word(template, k))
    for k in range(patches):
        source = word(patch, PATCH_WORDS * k + 1)
        if source >= 0:
            buffer = word(word(frame, ARGS), source)
        else:
            buffer = word(word(frame, RETS), -1 - source)
        size = word(patch, PATCH_WORDS * k + 3)
        if size != 0:
            _use_large_pages(word(buffer, BUFFER_DATA), size)
        address = word(buffer, BUFFER_DATA) + word(patch, PATCH_WORDS * k + 2)
        set_word(block, word(patch, PATCH_WORDS * k), address)
    api, context = word(frame, FRAME_API), word(frame, FRAME_CONTEXT)
    enough = True
    for k in range(phases):
        function = _find(word(phase, PHASE_WORDS * k))
        units = word(phase, PHASE_WORDS * k + 1)
        condition = word(phase, PHASE_WORDS * k + 3)
        if condition != 0 and word(block, condition) == 0:
            continue
        threads = 1
        if word(phase, PHASE_WORDS * k + 2) != 0 and units > 1:
            threads = min(_pool_size(api, context), word(words, THREADS))
        if threads > 1:
            enough = _share(api, context, function, block, units, threads) and enough
        else:
            mode = _get_float_mode()
            _set_float_mode(_PLAIN_MODE)
            call_kernel(function, block, 0, units)
            _set_float_mode(mode)
    _release(block)
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
    message = _launch(frame, words)
    if message != 0:
        return _error(api, message, FAILED_PRECONDITION)
    return 0
