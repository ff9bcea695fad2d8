"""Workers: where they run, and which chunks of a job they begin with."""

from __future__ import annotations

import os
import sys
import time
from array import array

import pytest

from pullback.cpu import machine, pool
from pullback.cpu.codegen.functions import inner
from pullback.cpu.codegen.memory import (
    call,
    external,
    fetch_add,
    give_way,
    low_half,
    set_word,
    shared_word,
    word,
)
from pullback.cpu.compile import compile_words
from pullback.cpu.program import Patch, Phase, Program
from scripts import run_script

_thread = external("gettid")

SCRIPT = """
import os, time
import numpy as np
import pullback as pb

x = np.ones((1024, 1024), np.float32)
before = set(os.listdir("/proc/self/task"))
pb.set_num_threads(2)
pb.sum(x, axis=-1)
(worker,) = (int(t) for t in set(os.listdir("/proc/self/task")) - before)
both = sorted(os.sched_getaffinity(0))[:2]
told = False
for attempt in range(50):
    # Both on one CPU, the worker asleep there; then the caller may run on two.
    os.sched_setaffinity(0, both[:1])
    os.sched_setaffinity(worker, both[:1])
    for _ in range(3):
        assert (pb.sum(x, axis=-1) == 1024).all()
    assert os.sched_getaffinity(worker) == set(both[:1])  # there is no other
    time.sleep(0.01)
    os.sched_setaffinity(0, both)
    pb.sum(x, axis=-1)
    if os.sched_getaffinity(worker) == set(both[1:]):
        told = True
        break
print(told)
"""


@pytest.mark.quick
@pytest.mark.skipif(sys.platform != "linux", reason="masks of CPUs are those of Linux")
def test_a_worker_wakes_on_another_cpu_than_its_caller():
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU")
    assert run_script(SCRIPT).strip() == "True"


# Words of the block: how many chunks have begun, then which thread had each, and when it did.
BEGUN, OWNERS, TURNS = 0, 1, 5
LONGEST_WAIT = 1 << 16  # times that others may go first


@inner
def note_chunk(p, begin, end):
    """A chunk that says who computes it; the first one waits until there is a second."""
    turn = fetch_add(p + 8 * BEGUN, 1)
    set_word(p, OWNERS + begin, low_half(call(_thread())))
    set_word(p, TURNS + begin, turn)
    if turn == 0:
        for _ in range(LONGEST_WAIT):
            if shared_word(p + 8 * BEGUN) > 1:
                break
            give_way()
    return 0


@pytest.mark.quick
@pytest.mark.skipif(sys.platform != "linux", reason="threads are told apart as Linux does")
def test_a_worker_begins_with_a_range_of_its_own():
    """Where it began with its caller's, lines moved between the caches of both at every call."""
    kernel, began = compile_words(note_chunk), []
    for _ in range(200):
        block = array("q", bytes(8 * (TURNS + 4)))
        pool.pool.run(kernel.address, block.buffer_info()[0], 4, 1, 1, 4)
        owners, turns = block[OWNERS:TURNS], block[TURNS:].tolist()
        second = turns.index(1)
        if owners[second] != owners[turns.index(0)]:
            began.append((turns.index(0), second))
        if len(began) == 5:
            break
    assert began, "no worker took part"
    assert set(began) <= {(0, 2), (2, 0)}


ONE_WORKER = pool.Pool()


@inner
def note_at(p, begin, end):
    """The same of a block that a word of the parameter block points to."""
    return note_chunk(word(p, 0), begin, end)


def shares(program: Program) -> bool:
    """Whether two threads took part in a run."""
    block = array("q", bytes(8 * (TURNS + 4)))
    program.run([block.buffer_info()[0]], block)
    return len({*block[OWNERS:TURNS]} - {0}) > 1


@pytest.mark.quick
@pytest.mark.skipif(sys.platform != "linux", reason="threads are told apart as Linux does")
def test_a_short_call_is_shared_with_a_worker_that_is_awake(monkeypatch):
    if machine.here().cores < 2:
        pytest.skip("one CPU")
    # With a single worker: of more than there are CPUs for, none stays awake.
    monkeypatch.setattr(pool, "pool", ONE_WORKER)
    kernel = compile_words(note_at)
    short = machine.here().sharing_bytes
    assert not pool.wakes(short)
    program = Program([0], [Patch(0, "at")], [Phase(lambda: kernel, 4, short)], ["at"], 0, 2)
    shares(program)  # starts the worker
    apart, together = [], []
    for _ in range(20):
        time.sleep(0.01)
        apart.append(shares(program))
        # One that follows wakes it, those behind find it awake.
        for _ in range(20):
            shares(program)
        together.append(shares(program))
    # On a busy machine a worker may have been interrupted while it watched.
    assert not all(apart)
    assert any(together)
