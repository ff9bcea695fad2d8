"""What runs between Python and kernels: blocks filled, phases run, chunks claimed.

Those of :data:`BUILTINS` are builtins of that name (:mod:`.builtin`): they get the address of the
arguments of the call, int64 words, and how many there are.
"""

from __future__ import annotations

import mmap

from ..memory.large_pages import ADVICE
from .array_words import (
    ALLOWED,
    ARRAY_TYPE,
    BELOW,
    BYTES,
    COUNT,
    DATA,
    DTYPE,
    ENTRIES,
    ENTRY_WORDS,
    FLAGS,
    IS_DTYPE,
    LOW_BITS,
    MOST_AXES,
    OF_RANK,
    PROGRAM,
    RANK,
    SHAPE,
    SIZES,
    STRIDES,
    TYPE,
    WITH_FLAGS,
    WRITTEN,
)
from .builtin import MOST_WORDS, clock, places
from .codegen.block import is_below
from .codegen.functions import inner
from .codegen.memory import (
    call,
    call_kernel,
    external,
    fetch_add,
    give_way,
    int32_at,
    low_half,
    pause,
    room_for,
    set_shared,
    set_word,
    shared_word,
    swap_if,
    without_bit,
    word,
)
from .pool import (
    BUSY,
    CPU,
    LAST,
    LOCK,
    LOOKS,
    SLEEPING,
    SLOT_WORDS,
    SLOTS,
    STATE,
    THREAD,
    USED,
    WATCHES,
    WATCHING,
)
from .program import (
    BOARD,
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
    THREADS,
    UNITS,
    WAKES,
)
from .program import CHUNK as CHUNK_OF_PHASE
from .segment_words import FLAGS as ANSWER
from .segment_words import ID_STRIDE, IDS, ORDERED
from .segment_words import NUM_SEGMENTS as LIMIT
from .segment_words import OPERANDS as CHECK_WORDS

PAGE = mmap.PAGESIZE


_as_word, _as_int = external("PyLong_AsLongLong"), external("PyLong_FromLongLong")
_failed, _room_for_words = external("PyErr_Occurred"), room_for(MOST_WORDS)
_let_others, _take = external("PyEval_SaveThread"), external("PyEval_RestoreThread")


@inner
def python_call(function, arguments, count):
    """The C function behind every builtin: ``self`` is an int, the address of what to call."""
    words = _room_for_words()
    if count > MOST_WORDS:
        return call(_as_int(), -1)
    for k in range(count):
        value = call(_as_word(), word(arguments, k))
        if value == -1 and call(_failed()) != 0:
            return 0
        set_word(words, k, value)
    native = call(_as_word(), function)
    thread = call(_let_others())
    answer = call(native, words, count)
    call(_take(), thread)
    return call(_as_int(), answer)


@inner
def phase_at(program, k):
    """The words of a phase."""
    return program + 8 * (HEAD + PHASE_WORDS * k)


@inner
def is_due(phase, block):
    """Whether a phase has no condition, or one that was met."""
    condition = word(phase, CONDITION)
    return condition == 0 or word(block, condition) != 0


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
                call(_advise(), first, last - first, _advice)


@inner
def fill_block(words, count):
    """``fill(program, block, *addresses)``."""
    fill(word(words, 0), word(words, 1), words + 16)
    return 0


@inner
def is_as_expected(array, entry, array_type):
    """Whether an object is a NumPy array as an entry says."""
    if word(array, TYPE) != array_type or word(array, DTYPE) != word(entry, IS_DTYPE):
        return False
    rank, flags = low_half(word(array, RANK)), word(entry, WITH_FLAGS)
    if rank != word(entry, OF_RANK) or low_half(word(array, FLAGS)) & flags != flags:
        return False
    sizes, shape, strides = entry + 8 * SIZES, word(array, SHAPE), word(array, STRIDES)
    for k in range(rank):
        if word(shape, k) != word(sizes, k):
            return False
        if word(strides, k) != word(sizes, MOST_AXES + k):
            return False
    return word(array, DATA) & word(entry, LOW_BITS) == 0


@inner
def are_positions(array, entry):
    """Whether all elements of an array are what an entry says of positions."""
    values, below, allowed = word(array, DATA), word(entry, BELOW), word(entry, ALLOWED)
    for k in range(word(entry, BYTES) // 8):
        if word(values, k) != allowed and not is_below(word(values, k), below):
            return False
    return True


@inner
def are_apart(entries, addresses, count):
    """Whether no array that is written overlaps another one."""
    for k in range(count):
        entry, at = entries + 8 * ENTRY_WORDS * k, word(addresses, k)
        if word(entry, WRITTEN) != 0:
            for j in range(count):
                other, place = entries + 8 * ENTRY_WORDS * j, word(addresses, j)
                before = place < at + word(entry, BYTES)
                if j != k and before and at < place + word(other, BYTES):
                    return False
    return True


@inner
def run_kernel(words, count):
    """``run(kernel, block, units)`` on the calling thread."""
    call_kernel(word(words, 0), word(words, 1), 0, word(words, 2))
    return 0


_room_for_check = room_for(CHECK_WORDS + 2)


@inner
def wrong_ids(words, count):
    """``wrong_ids(check, ids, stride, count, limit, ordered)``: what is wrong with ids or offsets.

    1 if one is out of range and 2 if they are out of order, together; a check kernel looks at them.
    """
    block, ids = _room_for_check(), word(words, 3)
    answer = block + 8 * CHECK_WORDS
    set_word(block, IDS, word(words, 1))
    set_word(block, ID_STRIDE, word(words, 2))
    set_word(block, LIMIT, word(words, 4))
    set_word(block, ORDERED, word(words, 5))
    set_word(block, ANSWER, answer)
    set_word(answer, 0, ids)
    set_word(answer, 1, ids)
    call_kernel(word(words, 0), block, 0, ids)
    return (word(answer, 0) < ids) + 2 * (word(answer, 1) < ids)


@inner
def wrong_positions(words, count):
    """``wrong_positions(at, stride, size, count, below, allowed)``: whether there is one."""
    at, stride, size = word(words, 0), word(words, 1), word(words, 2)
    below, allowed = word(words, 4), word(words, 5)
    for k in range(word(words, 3)):
        position = word(at + k * stride, 0) if size == 8 else int32_at(at + k * stride)
        if position != allowed and not is_below(position, below):
            return 1
    return 0


# Words of a job: what threads change, a cache line apart, and what they only read. Its chunks are
# cut into ranges, and every range has a count of those that are claimed.
DONE, REFERENCES = 0, 8
FUNCTION, BLOCK, JOB_UNITS, CHUNK, CHUNKS, RANGES = 16, 17, 18, 19, 20, 21
CLAIMED, CLAIMED_APART = 24, 8
MOST_RANGES = 64
ALL = 1 << 62

_allocate, _release = external("PyMem_RawMalloc"), external("PyMem_RawFree")
_lock, _unlock = external("PyThread_acquire_lock"), external("PyThread_release_lock")
_allocate_lock = external("PyThread_allocate_lock")


@inner
def new_job(function, block, units, chunk, threads):
    """A job with one reference, with a range for each thread; 0 where there is no memory."""
    chunks = (units + chunk - 1) // chunk
    ranges = min(threads, min(chunks, MOST_RANGES))
    job = call(_allocate(), 8 * (CLAIMED + CLAIMED_APART * ranges))
    if job != 0:
        set_word(job, DONE, 0)
        set_word(job, REFERENCES, 1)
        set_word(job, FUNCTION, function)
        set_word(job, BLOCK, block)
        set_word(job, JOB_UNITS, units)
        set_word(job, CHUNK, chunk)
        set_word(job, CHUNKS, chunks)
        set_word(job, RANGES, ranges)
        for k in range(ranges):
            set_word(job, CLAIMED + CLAIMED_APART * k, 0)
    return job


@inner
def range_begin(job, k):
    """The first chunk of a range; of the one behind the last, how many there are."""
    return word(job, CHUNKS) * k // word(job, RANGES)


@inner
def claim(job, k, count):
    """Claim so many chunks of a range; how many of it were claimed before."""
    return fetch_add(job + 8 * (CLAIMED + CLAIMED_APART * k), count)


@inner
def let_go(job, references):
    """Give references up; the job is freed with the last one, be it of a thread that came late."""
    if fetch_add(job + 8 * REFERENCES, -references) == references:
        call(_release(), job)


@inner
def run_chunks(job, number, most):
    """Claim and run so many chunks; whether there may be more.

    A thread begins with the range of its number, which is the same in call after call: what of the
    operands its cache still holds is of use. Then it helps the others with theirs.
    """
    units, chunk, ranges = word(job, JOB_UNITS), word(job, CHUNK), word(job, RANGES)
    left, own = most, number - number // ranges * ranges
    for step in range(ranges):
        k = own + step
        if k >= ranges:
            k -= ranges
        first, end = range_begin(job, k), range_begin(job, k + 1)
        c = first + claim(job, k, 1)
        while c < end:
            stop = min(units, (c + 1) * chunk)
            call_kernel(word(job, FUNCTION), word(job, BLOCK), c * chunk, stop)
            fetch_add(job + 8 * DONE, 1)
            left -= 1
            if left == 0:
                return True
            c = first + claim(job, k, 1)
    return False


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


# CPUs that a mask has room for: more than Linux may be built for.
MASK_WORDS = 128
_has_places, _room_for_mask = bool(places()), room_for(MASK_WORDS)
_thread, _cpu = external("gettid"), external("sched_getcpu")
_get_mask, _set_mask = external("sched_getaffinity"), external("sched_setaffinity")


@inner
def _keep_apart(slot):
    """Let a worker that sleeps wake on another CPU than the caller's, on which it ran last.

    Linux may wake it there though others are idle, time and again: on two CPUs a sum of 512x1024
    then took 130 microseconds on two threads, 42 where they were apart, 85 on one.
    """
    cpu = low_half(call(_cpu()))
    if cpu < 0 or cpu >= 64 * MASK_WORDS or word(slot, CPU) != cpu:
        return 0
    mask, others = _room_for_mask(), 0
    if low_half(call(_get_mask(), 0, 8 * MASK_WORDS, mask)) != 0:
        return 0
    at = cpu // 64
    set_word(mask, at, without_bit(word(mask, at), cpu - 64 * at))
    for k in range(MASK_WORDS):
        others += word(mask, k) != 0
    if others > 0:
        call(_set_mask(), word(slot, THREAD), 8 * MASK_WORDS, mask)
    return 0


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
                    if _has_places:
                        _keep_apart(slot)
                    call(_unlock(), word(slot, LOCK))
            else:
                fetch_add(job + 8 * REFERENCES, -1)


_clock_number = clock()
_get_time, _room_for_time = external("clock_gettime"), room_for(2)


@inner
def _nanoseconds():
    """Of a clock that runs on; 0 where there is none."""
    if _clock_number is None:
        return 0
    time = _room_for_time()
    call(_get_time(), _clock_number, time)
    return word(time, 0) * 1000000000 + word(time, 1)


@inner
def _finds_worker(board):
    """Whether a short call should be shared: a worker is awake, or should be for the next calls.

    It should where the last such call ended a moment ago. Waking takes the caller longer than it
    gains by help in this one; calls that follow find the worker awake.
    """
    for k in range(shared_word(board + 8 * USED)):
        if shared_word(board + 8 * (SLOTS + SLOT_WORDS * k + STATE)) == WATCHING:
            return True
    return _nanoseconds() - shared_word(board + 8 * LAST) < shared_word(board + 8 * WATCHES)


_room_for_block = room_for(LONGEST_BLOCK)


@inner
def run_phase(program, phase, block):
    """Run a phase; whether it could, which takes workers where threads are to share it."""
    kernel, units, threads = word(phase, KERNEL), word(phase, UNITS), word(phase, THREADS)
    if threads == 0:
        call_kernel(kernel, block, 0, units)
        return True
    board = word(word(program, BOARD), 0)
    if board == 0:
        return False
    if shared_word(board + 8 * USED) < threads - 1:
        return False
    if word(phase, WAKES) == 0 and not _finds_worker(board):
        call_kernel(kernel, block, 0, units)
        set_shared(board + 8 * LAST, _nanoseconds())
        return True
    job = new_job(kernel, block, units, word(phase, CHUNK_OF_PHASE), threads)
    if job == 0:
        call_kernel(kernel, block, 0, units)
        return True
    _hand_out(board, job, threads - 1)
    run_chunks(job, 0, ALL)
    wait_for(job, word(job, CHUNKS), shared_word(board + 8 * LOOKS))
    let_go(job, 1)
    return True


@inner
def run_program(words, count):
    """``run(program, *addresses)``: 0, or the phase that lacks a kernel, from 1, or -2: workers.

    Nothing was written that another run from the start does not write again.
    """
    program, block = word(words, 0), _room_for_block()
    fill(program, block, words + 8)
    for k in range(word(program, PHASES)):
        phase = phase_at(program, k)
        if is_due(phase, block):
            if word(phase, KERNEL) == 0:
                return k + 1
            if not run_phase(program, phase, block):
                return -2
    return 0


@inner
def array_call(function, arguments, count):
    """The C function of a call on arrays: ``self`` is an int, the address of what it expects.

    What :func:`run_program` gives, or -1 where the arrays are not as expected and nothing is done.
    """
    expected, words = call(_as_word(), function), _room_for_words()
    if count != word(expected, COUNT):
        return call(_as_int(), -1)
    entries, addresses = expected + 8 * ENTRIES, words + 8
    for k in range(count):
        array, entry = word(arguments, k), entries + 8 * ENTRY_WORDS * k
        if not is_as_expected(array, entry, word(expected, ARRAY_TYPE)):
            return call(_as_int(), -1)
        if word(entry, BELOW) != 0 and not are_positions(array, entry):
            return call(_as_int(), -1)
        set_word(addresses, k, word(array, DATA))
    if not are_apart(entries, addresses, count):
        return call(_as_int(), -1)
    set_word(words, 0, word(expected, PROGRAM))
    thread = call(_let_others())
    answer = run_program(words, count + 1)
    call(_take(), thread)
    return call(_as_int(), answer)


@inner
def new_lock(words, count):
    """``new_lock()``: a lock that is taken."""
    lock = call(_allocate_lock())
    call(_lock(), lock, 1)
    return lock


@inner
def look(words, count):
    """``look(times)`` as a worker does that watches for a job."""
    box = words + 8
    for _ in range(word(words, 0)):
        if shared_word(box) == BUSY:
            break
        pause()
    return 0


@inner
def serve(words, count):
    """``serve(slot, board)``: take jobs, for ever."""
    slot, board = word(words, 0), word(words, 1)
    state, number = slot + 8 * STATE, 1 + (slot - board - 8 * SLOTS) // (8 * SLOT_WORDS)
    if _has_places:
        set_word(slot, THREAD, low_half(call(_thread())))
    set_shared(state, WATCHING)
    for _ in range(ALL):
        looks = shared_word(board + 8 * LOOKS)
        while shared_word(state) == WATCHING and looks > 0:
            pause()
            looks -= 1
        if _has_places:
            set_word(slot, CPU, low_half(call(_cpu())))
        if swap_if(state, WATCHING, SLEEPING):
            call(_lock(), word(slot, LOCK), 1)
        job = shared_word(state)
        set_shared(state, BUSY)
        run_chunks(job, number, ALL)
        let_go(job, 1)
        set_shared(state, WATCHING)
    return 0


@inner
def share(words, count):
    """``share(handle, board, helpers, most, kernel, block, units, chunk)``: 0 when all is done.

    What is not is a job at ``handle``, and the next call goes on with it after ``most`` chunks.
    """
    handle, board, helpers = word(words, 0), word(words, 1), word(words, 2)
    kernel, block, units = word(words, 4), word(words, 5), word(words, 6)
    job = word(handle, 0)
    if job == 0:
        job = new_job(kernel, block, units, word(words, 7), helpers + 1)
        if job == 0:
            call_kernel(kernel, block, 0, units)
            return 0
        set_word(handle, 0, job)
    _hand_out(board, job, helpers + 1 - shared_word(job + 8 * REFERENCES))
    if run_chunks(job, 0, word(words, 3)):
        return 1
    wait_for(job, word(job, CHUNKS), shared_word(board + 8 * LOOKS))
    set_word(handle, 0, 0)
    let_go(job, 1)
    return 0


@inner
def abandon(words, count):
    """``abandon(handle)``: let nothing more of a job be claimed, wait for what is."""
    job = word(word(words, 0), 0)
    if job != 0:
        set_word(word(words, 0), 0, 0)
        claimed = 0
        for k in range(word(job, RANGES)):
            size = range_begin(job, k + 1) - range_begin(job, k)
            claimed += min(size, claim(job, k, ALL))
        wait_for(job, claimed, 0)
        let_go(job, 1)
    return 0


BUILTINS = {
    f.name: f
    for f in (
        *(fill_block, run_program, run_kernel, wrong_ids, wrong_positions),
        *(new_lock, look, serve, share, abandon),
    )
}
