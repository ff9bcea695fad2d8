"""Threads that share the units of a kernel: persistent, fork-safe, usable from several threads.

The caller works too. Chunks are claimed from an atomic counter inside native code with the GIL
released, so which thread computes a chunk is open and what it computes is not.

A worker never leaves native code. It watches a word of its own for some tens of microseconds after
its last job, so that the next call need not wake it, then sleeps. A call hands its job to workers
that are free, and computes alone what they do not.

A signal may raise an exception between any two steps of the interpreter. None leaves a call before
every thread has left its operands: no more chunks are claimed, those that run are waited for. A
worker that comes to a job late finds nothing to claim and touches only the job itself.
"""

from __future__ import annotations

import _thread
import os
import threading
import time
from array import array
from functools import cache
from typing import Any

from . import machine
from .builtin import builtin, clock

# Chunks per thread: enough to even out, few enough to keep the claims invisible.
CHUNKS_PER_THREAD = 8
# Traffic of the largest chunk, where a unit is not larger, and of what a caller does before it
# looks for signals: 10 to 50 ms.
SLICE_BYTES = 1 << 25
# How long a worker watches for the next job before it sleeps.
WATCH_SECONDS = 50e-6
MOST_SLOTS = 1023

# Words of the board, by which callers find workers: how many slots are used, how often a worker
# looks before it sleeps, for how many nanoseconds that is, when a short call last ended that found
# all asleep, and the slots: what a worker does, the lock that it sleeps at, who it is to the
# system, and the CPU that it ran on last. Words that different threads change are two cache lines
# apart, for the sake of prefetchers.
USED, LOOKS, WATCHES, LAST, SLOTS = 0, 1, 2, 3, 16
STATE, LOCK, THREAD, CPU, SLOT_WORDS = 0, 1, 2, 3, 16
# What a worker does; any other value is the job that it is to take.
WATCHING, SLEEPING, BUSY = 0, 1, 2


class Pool:
    """Worker threads of one process, started when they are first needed."""

    def __init__(self) -> None:
        self._place = array("q", (0,))
        self.reset()

    @property
    def place(self) -> int:
        """The address of a word that is the address of the board, or 0 while there is no worker."""
        return self._place.buffer_info()[0]

    def reset(self) -> None:
        """Know of no worker."""
        self._place[0] = 0
        self._lock = threading.Lock()
        self._board = array("q", bytes(8 * SLOTS))
        self._slots = self._workers = 0

    def _ensure(self, wanted: int) -> int:
        """The address of the board, with as many workers as wanted, or as could be started."""
        if self._workers < wanted:
            with self._lock:
                if not self._slots:
                    self._board = array("q", bytes(8 * (SLOTS + SLOT_WORDS * MOST_SLOTS)))
                while self._workers < wanted and self._slots < MOST_SLOTS and self._start():
                    pass
                self._board[LOOKS] = looks = _looks(self._workers)
                tells_time = clock() is not None
                self._board[WATCHES] = int(WATCH_SECONDS * 1e9) if looks and tells_time else 0
                self._board[USED] = self._slots
                self._place[0] = self._board.buffer_info()[0]
        return self._board.buffer_info()[0]

    def _start(self) -> bool:
        """Start a worker; one that an interrupt left half started keeps its slot."""
        place = SLOTS + SLOT_WORDS * self._slots
        board = self._board.buffer_info()[0]
        self._board[place + STATE], self._board[place + LOCK] = BUSY, builtin("new_lock")()
        self._slots += 1
        try:
            _thread.start_new_thread(builtin("serve"), (board + 8 * place, board))
        except (RuntimeError, MemoryError):  # no more threads, or memory for their stacks
            self._slots -= 1
            return False
        self._workers += 1
        return True

    def run(self, kernel: int, p: int, units: int, chunk: int, helpers: int, most: int) -> None:
        """Run a kernel on this thread and helpers, looking for signals after ``most`` chunks."""
        share, abandon = builtin("share"), builtin("abandon")
        board = self._ensure(helpers)
        handle = array("q", (0,))  # the job, as long as there is one
        at = handle.buffer_info()[0]
        try:
            while share(at, board, helpers, most, kernel, p, units, chunk):
                pass
        except BaseException:
            # One native call, and the first thing here: no signal is looked for before it.
            abandon(at)
            raise


@cache
def _pause_seconds() -> float:
    """How long a worker takes to look once."""
    look, best = builtin("look"), 1.0
    for _ in range(3):
        start = time.perf_counter()
        look(1000)
        best = min(best, time.perf_counter() - start)
    return best / 1000


def _looks(workers: int) -> int:
    """How often a worker looks for a job before it sleeps.

    Not at all where workers are more than there are cores for: one that looks would take the time
    of one that works.
    """
    if workers >= machine.here().cores:
        return 0
    return int(WATCH_SECONDS / _pause_seconds())


pool = Pool()


def _after_fork_in_child() -> None:
    """The parent's workers are gone; its words and locks are left as they were."""
    pool.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def threads_for(units: int, traffic: int, threads: int) -> int:
    """How many threads should share units; 0 where one native call on the calling thread is best.

    One thread that does not is the calling one, which looks for signals now and then. Short calls
    are shared with workers that are awake: see :func:`wakes`.
    """
    least = SLICE_BYTES + 1 if threads == 1 else machine.here().sharing_bytes
    if units <= 1 or traffic < least:
        return 0
    return min(threads, units)


def wakes(traffic: int) -> bool:
    """Whether so much traffic is worth waking a worker for that sleeps."""
    return traffic >= machine.here().waking_bytes


def chunk_of(units: int, traffic: int, threads: int) -> int:
    """Units that a thread claims at a time."""
    return -(-units // max(threads * CHUNKS_PER_THREAD, traffic // SLICE_BYTES))


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
    threads = threads_for(units, traffic, threads)
    if not threads:
        builtin("run_kernel")(kernel_address, p, units)
        return
    chunk = chunk_of(units, traffic, threads)
    most = max(1, SLICE_BYTES * units // (traffic * chunk))
    pool.run(kernel_address, p, units, chunk, threads - 1, most)
