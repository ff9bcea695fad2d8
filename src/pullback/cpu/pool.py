"""Threads that share the units of a kernel: persistent, fork-safe, usable from several threads.

The caller works too. Chunks are claimed from an atomic counter inside native code with the GIL
released, so which thread computes a chunk is open and what it computes is not.

A signal may raise an exception between any two steps of the interpreter. None leaves a call before
every thread has left its job: no more chunks are claimed, those that run are waited for. A thread
that comes to a job late finds nothing to claim and touches only the job itself.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import queue
import sys
import threading
from array import array
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .codegen.block import least, word
from .codegen.lanes import I64
from .compile import native

# Traffic below this many bytes is not worth waking a thread for (a dispatch costs 3-5
# microseconds).
SERIAL_BYTES = 1 << 21
# Chunks per thread: enough to even out, few enough to keep the claims invisible.
CHUNKS_PER_THREAD = 8
# Traffic of the largest chunk, where a unit is not larger, and of what a caller does before it
# looks for signals: 10 to 50 ms.
SLICE_BYTES = 1 << 25

# Words of a job: what threads change, a cache line apart, and what they only read.
CLAIMED, DONE, FUNCTION, BLOCK, UNITS, CHUNK, CHUNKS, WORDS = 0, 8, 16, 17, 18, 19, 20, 24
# How a thread left a job: with chunks to claim, with none, or with all of them computed, which is
# what one thread is told.
MORE, NONE_LEFT, FINISHED = 0, 1, 2
ALL = 1 << 62

_YIELD = "pullback_yield"


def _yield_address() -> int:
    if sys.platform == "win32":
        function = ctypes.WinDLL("kernel32").SwitchToThread
    else:
        function = ctypes.CDLL(None).sched_yield
    return ctypes.cast(function, ctypes.c_void_p).value or 0


llvm.add_symbol(_YIELD, _yield_address())


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
def give_way(context):
    """Let another thread run."""

    def codegen(ctx, builder, sig, args):
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, _YIELD), [])
        return ctx.get_dummy_value()

    return types.void(), codegen


@native("void(int64, int64, int64)")
def run_serial(function, p, units):
    """All units on the calling thread."""
    call_kernel(function, p, 0, units)


def _work(job, most):
    units, chunk, chunks = word(job, UNITS), word(job, CHUNK), word(job, CHUNKS)
    for _ in range(most):
        c = fetch_add(job + 8 * CLAIMED, 1)
        if c >= chunks:
            return NONE_LEFT
        end = least(units, (c + 1) * chunk)
        call_kernel(word(job, FUNCTION), word(job, BLOCK), c * chunk, end)
        if fetch_add(job + 8 * DONE, 1) == chunks - 1:
            return FINISHED
    return MORE


def _abandon(job):
    claimed = least(word(job, CHUNKS), fetch_add(job + 8 * CLAIMED, ALL))
    while fetch_add(job + 8 * DONE, 0) < claimed:
        give_way()


@cache
def worker() -> Any:
    """``work(job, most)``, compiled when threads are first shared: claim and run some chunks."""
    return native("int64(int64, int64)")(_work)


@cache
def abandoner() -> Any:
    """``abandon(job)``, to be called once: let nothing be claimed, wait for what is."""
    return native("void(int64)")(_abandon)


class Job:
    """A kernel on a range of units in chunks, and the memory that it touches.

    Attributes
    ----------
    address
        Of the words that threads share.
    finished
        A lock that is held until the last chunk is computed.
    owners
        What keeps the parameter block, the workspace and the operands alive.
    """

    __slots__ = ("_words", "address", "finished", "owners")

    def __init__(self, function: int, p: int, units: int, chunk: int, owners: Any):
        self._words = array("q", bytes(8 * WORDS))
        self._words[FUNCTION : CHUNKS + 1] = array(
            "q", (function, p, units, chunk, -(-units // chunk))
        )
        self.address = self._words.buffer_info()[0]
        self.finished = _thread.allocate_lock()
        self.finished.acquire()
        self.owners = owners


class Pool:
    """Worker threads of one process, started when they are first needed."""

    def __init__(self) -> None:
        self._pid = 0
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._workers = 0

    def _ensure(self, wanted: int) -> tuple[queue.SimpleQueue[Job], int]:
        """The queue of jobs, and how many helpers serve it: as wanted, or as could be started."""
        with self._lock:
            if self._pid != os.getpid():  # after a fork the parent's threads are gone
                self._pid = os.getpid()
                self._jobs = queue.SimpleQueue()
                self._workers = 0
            while self._workers < wanted:
                try:
                    _thread.start_new_thread(_serve, (self._jobs,))
                except (RuntimeError, MemoryError):  # no more threads, or memory for their stacks
                    break
                self._workers += 1
            return self._jobs, min(wanted, self._workers)

    def run(self, job: Job, helpers: int, most: int) -> None:
        """Run a job on this thread and helpers, looking for signals after ``most`` chunks here."""
        work, abandon = worker(), abandoner()
        jobs, helpers = self._ensure(helpers)
        address = job.address
        try:
            for _ in range(helpers):
                jobs.put(job)
            how = work(address, most)
            while how == MORE:
                how = work(address, most)
            if how != FINISHED:
                job.finished.acquire()
        except BaseException:
            # One native call, and the first thing here: no signal is looked for before it.
            abandon(address)
            raise
        job.owners = None  # a helper that comes late should not keep them


def _serve(jobs: queue.SimpleQueue[Job]) -> None:
    work = worker()
    while True:
        job = jobs.get()
        if work(job.address, ALL) == FINISHED:
            job.finished.release()
        del job


pool = Pool()


def _after_fork_in_child() -> None:
    pool._lock = threading.Lock()  # the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def runs_serial(units: int, traffic: int, threads: int) -> bool:
    """Whether one native call on the calling thread is best."""
    if threads <= 1:
        return units <= 1 or traffic <= SLICE_BYTES
    return units <= 1 or traffic < SERIAL_BYTES


def run(kernel_address: int, p: int, units: int, traffic: int, threads: int, owners: Any) -> None:
    """Run a kernel, on the calling thread alone where more would not pay.

    Parameters
    ----------
    kernel_address, p
        The kernel and its parameter block.
    units
        How many units there are.
    traffic
        Bytes that are read and written.
    threads
        How many threads may share the units.
    owners
        What keeps the block and all that it points to alive.
    """
    if runs_serial(units, traffic, threads):
        run_serial(kernel_address, p, units)
        return
    threads = min(threads, units)
    chunk = -(-units // max(threads * CHUNKS_PER_THREAD, traffic // SLICE_BYTES))
    most = max(1, SLICE_BYTES * units // (traffic * chunk))
    pool.run(Job(kernel_address, p, units, chunk, owners), threads - 1, most)
