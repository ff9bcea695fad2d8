"""Where workers run: never where Linux would have them wait for their caller."""

from __future__ import annotations

import os
import sys

import pytest

from scripts import run_script

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
