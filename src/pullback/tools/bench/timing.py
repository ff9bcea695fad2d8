"""Times of several contenders, taken in turns so that a change of the machine meets them all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

# A sample is made of enough calls to last this long, so that the clock does not show.
SHORTEST_SAMPLE = 1e-3
# After a call the threads of a library keep looking for work: torch's take a core from whoever
# comes next for 1.5 ms (a sum of 512x1024 on two threads took 90 microseconds instead of 36). So
# there is a pause before each sample, and a call that is not counted, which wakes one's threads and
# finds the caches as the contender before has left them: a bf16 sum of 4096x4096, which just fits
# the last one, took 1.06 ms after a copy and 0.92 after itself.
SETTLE = 3e-3
# Calls that take longer than this show none of that, and are counted from the first.
LONG_CALL = 20e-3


@dataclass(frozen=True)
class Times:
    """Seconds per call: the least and the median over rounds, and their spread.

    ``noise`` is half the distance between the quartiles over the median; with fewer than three
    rounds it is None.
    """

    best: float
    median: float
    rounds: int
    noise: float | None

    @classmethod
    def of(cls, samples: list[float]) -> Times:
        median = statistics.median(samples)
        noise = None
        if len(samples) > 2:
            low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
            noise = (high - low) / 2 / median
        return cls(min(samples), median, len(samples), noise)


def _seconds(call: Callable[[], object], calls: int, is_long: bool = False) -> float:
    time.sleep(SETTLE)
    if not is_long:
        call()
    clock = time.perf_counter
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls


def interleave(
    contenders: Mapping[str, Callable[[], object]], rounds: int, budget: float
) -> dict[str, Times]:
    """Time the contenders in turns.

    Parameters
    ----------
    contenders
        Calls by name, warmed up. The first calls of each set how often it is repeated.
    rounds
        Samples per contender.
    budget
        Seconds a contender may take in all; a slow one is sampled less often, at least once.
    """
    calls: dict[str, int] = {}
    turns: dict[str, int] = {}
    long: dict[str, bool] = {}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for name, call in contenders.items():
        # The second call of a function or of a library may still find something out and keep it.
        first = _seconds(call, 1, is_long=True)
        if first < LONG_CALL:
            first = _seconds(call, 1)
        if first < SHORTEST_SAMPLE:
            first = _seconds(call, 3)
        long[name] = first >= LONG_CALL
        calls[name] = max(1, round(SHORTEST_SAMPLE / max(first, 1e-9)))
        turns[name] = min(rounds, int(budget / max(first, SHORTEST_SAMPLE)))
        if not turns[name]:
            samples[name].append(first)
    for turn in range(max(turns.values())):
        # Every other time the other way round: who comes after others that read the same operands
        # finds more of them in the caches.
        for name, call in list(contenders.items())[:: -1 if turn % 2 else 1]:
            if turn < turns[name]:
                samples[name].append(_seconds(call, calls[name], long[name]))
    return {name: Times.of(taken) for name, taken in samples.items()}
