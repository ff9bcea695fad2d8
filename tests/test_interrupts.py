"""Interrupts: a call that is left by an exception is left by all of its threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pullback as pb
from scripts import SOURCE, run_script

TOOL = Path(__file__).resolve().parents[1] / "tools" / "interrupts.py"

# An exception wherever the interpreter would look for signals in the dispatch of a threaded call:
# at the start of a function, after a call and at the end of a turn of a loop.
EVERYWHERE = """
import dis, faulthandler, functools, sys, time
import numpy as np
import pullback as pb
from pullback.cpu import pool

faulthandler.dump_traceback_later(120, exit=True)
pb.set_num_threads(4)
x = np.random.default_rng(0).standard_normal((64, 2**14)).astype("f4")
plan = pb.SoftmaxPlan.select(pb.SoftmaxDescriptor("softmax", x.shape))
y = np.empty_like(x)
plan.run(x=x, y=y)
want = y.copy()
LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")

@functools.cache
def names(code):
    return {i.offset: i.opname for i in dis.get_instructions(code)}

class Interrupt:
    def __init__(self, place):
        self.place, self.seen, self.before = place, 0, {}

    def __call__(self, frame, event, argument):
        if frame.f_code.co_filename != pool.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = self.before.get(frame)
            self.before[frame] = names(frame.f_code)[frame.f_lasti]
            if before is None or before.startswith(LOOKS):
                self.seen += 1
                if self.seen == self.place:
                    raise KeyboardInterrupt
        return self

interrupted = written_later = 0
while True:
    y[:] = -1
    sys.settrace(Interrupt(interrupted + 1))
    try:
        plan.run(x=x, y=y)
        break
    except KeyboardInterrupt:
        sys.settrace(None)
        seen = y.copy()
        time.sleep(0.003)
        written_later += not np.array_equal(seen, y)
        interrupted += 1
    finally:
        sys.settrace(None)
assert np.array_equal(y, want)
print(interrupted, written_later)
"""


def test_no_thread_writes_after_an_exception_at_any_point():
    interrupted, written_later = map(int, run_script(EVERYWHERE).split())
    assert interrupted > 5
    assert written_later == 0


@pytest.mark.parametrize("threads", [1, 3])
def test_a_long_call_stops_early(threads):
    """16 GB of traffic in cache, a second or more, and an interrupt after 50 ms."""
    x = np.broadcast_to(np.ones(1 << 16, np.float32), (1 << 16, 1 << 16))
    y = np.full((1 << 16, 1), np.nan, np.float32)
    how = pb.PlanPreference(threads=threads)
    plan, small = (
        pb.ReducePlan.select(pb.ReduceDescriptor("sum", shape, (1,)), how)
        for shape in (x.shape, (64, 1 << 16))
    )
    small.run(x=x[:64], y=y[:64])  # compiled now, and the threads started
    y[:] = np.nan
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            plan.run(x=x, y=y)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert y[0, 0] == 1 << 16
    assert np.isnan(y[-1, 0])


def interrupt(number, frame):
    raise KeyboardInterrupt


# At least as often in a longer run by hand: see the tool.
@pytest.mark.parametrize("front_end", ["numpy", "torch", "jax"])
def test_random_interrupts(front_end):
    done = subprocess.run(
        [sys.executable, TOOL, "--only", front_end, "--count", "12", "--seed", "7"],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[1]) >= 10, done.stdout
