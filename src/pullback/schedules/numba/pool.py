"""Threads that share the units of a kernel: persistent, fork-safe, usable from several threads.

The caller works too. Chunks are claimed from an atomic counter inside native code with the GIL
released, so which thread computes a chunk is open and what it computes is not.
"""

from __future__ import annotations

import _thread
import os
import queue
import threading
from functools import cache

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .compile import native
from .lanes import I64
from .memory import least

# Traffic below this many bytes is not worth waking a thread for (a dispatch costs 3-5
# microseconds).
SERIAL_BYTES = 1 << 21
# Chunks per thread: enough to even out, few enough to keep the claims invisible.
CHUNKS_PER_THREAD = 8

CLAIMED, DONE = 0, 8  # words of a job, one cache line apart


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


@native("void(int64, int64, int64)")
def run_serial(function, p, units):
    """All units on the calling thread."""
    call_kernel(function, p, 0, units)


def _claim(job, function, p, units, chunk):
    chunks = (units + chunk - 1) // chunk
    finished = 0
    while True:
        c = fetch_add(job + 8 * CLAIMED, 1)
        if c >= chunks:
            return finished
        call_kernel(function, p, c * chunk, least(units, (c + 1) * chunk))
        if fetch_add(job + 8 * DONE, 1) == chunks - 1:
            finished = 1


@cache
def _worker():
    """``work(job, function, p, units, chunk)``, compiled when threads are first shared.

    It claims and runs chunks until none is left, and gives 1 if it finished the last one.
    """
    return native("int64(int64, int64, int64, int64, int64)")(_claim)


class Pool:
    """Worker threads of one process, started when they are first needed."""

    def __init__(self) -> None:
        self._pid = 0
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        self._workers = 0

    def _ensure(self, helpers: int) -> queue.SimpleQueue:
        with self._lock:
            if self._pid != os.getpid():  # after a fork the parent's threads are gone
                self._pid = os.getpid()
                self._jobs = queue.SimpleQueue()
                self._workers = 0
            while self._workers < helpers:
                threading.Thread(
                    target=_serve, args=(self._jobs,), daemon=True, name="pullback-worker"
                ).start()
                self._workers += 1
            return self._jobs

    def run(self, function: int, p: int, units: int, threads: int) -> None:
        """Run a kernel over ``units`` on up to ``threads`` threads, the caller among them."""
        chunk = -(-units // (threads * CHUNKS_PER_THREAD))
        job = np.zeros(16, np.int64)
        address = job.ctypes.data
        done = _thread.allocate_lock()
        done.acquire()
        work = _worker()
        jobs = self._ensure(threads - 1)
        for _ in range(threads - 1):
            jobs.put((address, function, p, units, chunk, done, job))
        if not work(address, function, p, units, chunk):
            done.acquire()


def _serve(jobs: queue.SimpleQueue) -> None:
    work = _worker()
    while True:
        address, function, p, units, chunk, done, job = jobs.get()
        if work(address, function, p, units, chunk):
            done.release()
        del address, function, p, done, job


pool = Pool()


def _after_fork_in_child() -> None:
    pool._lock = threading.Lock()  # the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def runs_serial(units: int, traffic: int, threads: int) -> bool:
    """Whether more than the calling thread would not pay."""
    return threads <= 1 or units <= 1 or traffic < SERIAL_BYTES


def run(kernel_address: int, p: int, units: int, traffic: int, threads: int) -> None:
    """Run a kernel, on the calling thread alone where more would not pay."""
    if runs_serial(units, traffic, threads):
        run_serial(kernel_address, p, units)
    else:
        pool.run(kernel_address, p, units, min(threads, units))
