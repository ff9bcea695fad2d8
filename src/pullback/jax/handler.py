"""The XLA FFI handler: a native function that runs any launch, without Python and the GIL.

A call carries one attribute, an array of int64 that says what to run (see ``HEAD``): the kernels by
id, the parameter block they share, and which words of the block are addresses of operands and
results. Kernels are found by id in a table of this process, because an executable may have been
compiled by another one. The structs of XLA's C API (``xla/ffi/api/c_api.h``) are read as words.
"""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from ..cpu.codegen.functions import emitter, inner
from ..cpu.codegen.lanes import I32, I64
from ..cpu.codegen.memory import (
    VOID,
    address_of,
    call,
    call_kernel,
    declared,
    external,
    fetch_add,
    int32_at,
    is_arm,
    is_x86,
    room_for,
    set_int32,
    set_word,
    word,
)
from ..cpu.compile import compile_words
from ..cpu.dispatch import (
    ALL,
    CHUNKS,
    REFERENCES,
    fill,
    is_due,
    let_go,
    new_job,
    phase_at,
    run_chunks,
    wait_for,
)
from ..cpu.pool import CHUNKS_PER_THREAD
from ..cpu.program import KERNEL, LENGTH, PHASES, THREADS, WAKES
from ..cpu.program import UNITS as PHASE_UNITS

# Words of the attribute: a version, then a program (``cpu/program.py``) with ids of kernels in the
# place of their addresses. Operands are the arguments of the call, then its results.
VERSION, PROGRAM = 0, 1
LAUNCH_VERSION = 5

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


# Each of its own, which lives as long as the function.
_arguments, _reply = room_for(8), room_for(8)


# XLA flushes subnormal numbers to zero on its threads; kernels keep them, as they do under NumPy.
# The plain mode is what Python's threads have: rounding to nearest, nothing flushed.
PLAIN_MODE = 0x1F80 if is_x86() else 0


def _box(builder):
    with builder.goto_entry_block():
        return builder.alloca(I32)


@emitter
def _get_float_mode(builder):
    if is_x86():
        box, byte = _box(builder), ir.IntType(8).as_pointer()
        get = declared(builder, "llvm.x86.sse.stmxcsr", VOID, byte)
        builder.call(get, [builder.bitcast(box, byte)])
        return builder.zext(builder.load(box), I64)
    if is_arm():
        return builder.call(declared(builder, "llvm.aarch64.get.fpcr", I64), [])
    return I64(0)


@emitter
def _set_float_mode(builder, mode):
    if is_x86():
        box, byte = _box(builder), ir.IntType(8).as_pointer()
        builder.store(builder.trunc(mode, I32), box)
        put = declared(builder, "llvm.x86.sse.ldmxcsr", VOID, byte)
        builder.call(put, [builder.bitcast(box, byte)])
    elif is_arm():
        builder.call(declared(builder, "llvm.aarch64.set.fpcr", VOID, I64), [mode])


@inner
def _error(api, message, code):
    """An XLA error, which XLA will own."""
    arguments = _arguments()
    set_word(arguments, 0, 28)
    set_word(arguments, 1, 0)
    set_word(arguments, 2, message)
    set_word(arguments, 3, code)
    return call(word(api, ERROR_CREATE), arguments)


@inner
def _succeeded(api, error):
    """Whether a call of the API went well; an error it returned is destroyed."""
    if error == 0:
        return True
    arguments = _arguments()
    set_word(arguments, 0, 24)
    set_word(arguments, 1, 0)
    set_word(arguments, 2, error)
    call(word(api, ERROR_DESTROY), arguments)
    return False


@inner
def _pool_size(api, context):
    if word(api, API_SIZE) < 8 * (NUM_THREADS + 1):
        return 1  # an API that ends before the pool; jaxlib 0.4.38 says so of a longer one
    answer, arguments = _reply(), _arguments()
    set_word(answer, 0, 1)
    set_word(arguments, 0, 32)
    set_word(arguments, 1, 0)
    set_word(arguments, 2, context)
    set_word(arguments, 3, answer)
    if _succeeded(api, call(word(api, NUM_THREADS), arguments)):
        return max(1, word(answer, 0))
    return 1


@inner
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


@inner
def _work(job):
    """Claim and run chunks until none is left."""
    mode = _get_float_mode()
    _set_float_mode(PLAIN_MODE)
    run_chunks(job, 0, ALL)
    _set_float_mode(mode)


_DIGEST = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]


@inner
def _task(job):
    _work(job)
    let_go(job, 1)


@inner
def _swap(mode):
    before = _get_float_mode()
    _set_float_mode(mode)
    return before


# How this thread rounds and whether it keeps subnormal numbers: sets it, and returns what it was.
swap_float_mode = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(
    compile_words(_swap, _DIGEST).address
)

_TASK_SYMBOL = "pullback_jax_task"
llvm.add_symbol(_TASK_SYMBOL, compile_words(_task, _DIGEST).address)
_task_address = address_of(_TASK_SYMBOL)


@inner
def _share(api, context, function, block, units, threads):
    """Run a kernel over its units on the threads of XLA, the calling one among them."""
    chunk = max(1, -(-units // (threads * CHUNKS_PER_THREAD)))
    job = new_job(function, block, units, chunk, 1)
    if job == 0:
        return False
    helpers = min(threads, word(job, CHUNKS)) - 1
    fetch_add(job + 8 * REFERENCES, helpers)
    arguments = _arguments()
    set_word(arguments, 0, 40)
    set_word(arguments, 1, 0)
    set_word(arguments, 2, context)
    set_word(arguments, 3, _task_address())
    set_word(arguments, 4, job)
    refused = 0
    for _ in range(helpers):
        if not _succeeded(api, call(word(api, SCHEDULE), arguments)):
            refused += 1
    _work(job)
    # Every chunk is claimed; those of other threads are running and will end.
    wait_for(job, word(job, CHUNKS), 0)
    let_go(job, refused + 1)
    return True


@inner
def _gather(frame, addresses):
    """The addresses of arguments and results, one after the other."""
    count = word(frame, ARGS_COUNT)
    for k in range(count):
        set_word(addresses, k, word(word(word(frame, ARGS), k), BUFFER_DATA))
    for k in range(word(frame, RETS_COUNT)):
        set_word(addresses, count + k, word(word(word(frame, RETS), k), BUFFER_DATA))


@inner
def _launch(frame, program):
    """Run the phases of a program; the message of what went wrong, or 0."""
    phases = word(program, PHASES)
    for k in range(phases):
        if _find(word(phase_at(program, k), KERNEL)) == 0:
            return _kernel_message()
    # A block, and behind it the addresses that go into it.
    length = word(program, LENGTH)
    operands = word(frame, ARGS_COUNT) + word(frame, RETS_COUNT)
    block = call(_allocate(), 8 * (length + operands))
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
            # XLA's workers sleep.
            threads = min(_pool_size(api, context), threads) if word(phase, WAKES) != 0 else 1
        if threads > 1:
            enough = _share(api, context, function, block, units, threads) and enough
        else:
            mode = _get_float_mode()
            _set_float_mode(PLAIN_MODE)
            call_kernel(function, block, 0, units)
            _set_float_mode(mode)
    call(_release(), block)
    return 0 if enough else _memory_message()


@inner
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
    set_int32(metadata + 8 * 4, 0)
    if word(metadata, 0) >= 8 * 6:
        set_word(metadata, 5, 0)
    return True


@inner
def _handle(frame):
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


handler = compile_words(_handle, _DIGEST)
