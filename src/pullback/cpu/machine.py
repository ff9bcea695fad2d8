"""The machine at hand: caches, cores and pages, and what is chosen from them.

Read from the system, which some do not tell; then the caches are measured once, in a fifth of a
second, and kept beside the kernels. ``PULLBACK_L1_CACHE``, ``PULLBACK_L2_CACHE`` and
``PULLBACK_LAST_LEVEL_CACHE`` say otherwise, in bytes or with a unit ("16MB"). No result depends on
any of it.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import platform
import re
import time
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from ..errors import InvalidProblemError
from . import disk

VARIABLES = {
    "l1": "PULLBACK_L1_CACHE",
    "l2": "PULLBACK_L2_CACHE",
    "last_level": "PULLBACK_LAST_LEVEL_CACHE",
}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# No CPU has more of a last level than this. A virtual machine that is told of more shares its
# host's with others: of 273 MB for two CPUs, working sets of 67 and 134 MB were written through the
# caches in a tenth less time than past them, 201 MB in a third more. Half of it is assumed.
MOST_FOR_A_CPU = 32 << 20
_CPUS, _CGROUPS = Path("/sys/devices/system/cpu"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Caches:
    """Sizes of caches in bytes.

    Attributes
    ----------
    l1, l2
        A core's own, or its share of one.
    last_level
        All of the largest caches that the allowed cores have between them.
    source
        Where the sizes come from: "system", "measured" or "environment".
    """

    l1: int
    l2: int
    last_level: int
    source: str


@dataclass(frozen=True)
class Machine:
    """What choices are made from."""

    caches: Caches
    cores: int  # that this process may use
    page: int

    @property
    def sharing_bytes(self) -> int:
        """Traffic from which a worker that is awake takes part in a call.

        A core moves so much in about 5 microseconds, and handing over takes 1 to 2: on two threads
        a sum of 128x256 float32 took 4.2 microseconds instead of 3.8, of 256x512 8.1 instead of
        11.3, a softmax_backward of 64x256 5.8 instead of 6.2.
        """
        return min(3 << 16, self.caches.l2)

    @property
    def waking_bytes(self) -> int:
        """Traffic from which a call wakes a worker that sleeps.

        That takes the caller 5 to 10 microseconds, and below, what a call touches may be in the
        caller's own cache, from where another core would have to fetch it.
        """
        return self.caches.l2

    def streams(self, read: int, written: int) -> bool:
        """Whether outputs of a call that touches so many bytes are written past the caches.

        What counts is everything that the call touches. At 32 MB of last level, norm2 of twice
        16 MB took 0.65 ms so and 0.42 otherwise, softmax of three times 16 MB 0.79 and 1.14. A call
        that hardly reads has little to keep near: a sum's gradient of 50 MB took 1.90 and 1.55, one
        of 67 MB 1.34 and 1.93 on one machine and 2.48 and 2.22 on another.
        """
        room = self.caches.last_level
        if 8 * read < written:
            room += room // 2
        return read + written > room

    def is_far(self, working_set: int, threads: int) -> bool:
        """Whether so many bytes do not fit the caches that these threads' cores have of their own.

        Then rows that are folded four at a time are asked for ahead: a sum of 2048x2048 float32
        took 97 microseconds so and 124 otherwise, within a last level of 32 MB.
        """
        return working_set > self.caches.l2 * threads

    def widest(self, bytes_per_column: int) -> int:
        """Columns whose accumulators take no more than half of a core's cache."""
        return self.caches.l2 // 2 // bytes_per_column


@cache
def here() -> Machine:
    """This machine."""
    return Machine(_chosen_caches(), allowed_cores(), mmap.PAGESIZE)


def _chosen_caches() -> Caches:
    given = {field: _size(name) for field, name in VARIABLES.items() if os.environ.get(name)}
    if len(given) == len(VARIABLES):
        return Caches(**given, source="environment")
    found = _from_linux() or _from_sysctl() or _kept_or_measured()
    return replace(found, **given, source="environment") if given else found


def _size(variable: str) -> int:
    text = os.environ[variable]
    parts = re.fullmatch(r"\s*(\d+)\s*([KMG]?)i?B?\s*", text, re.IGNORECASE)
    if parts is None:
        raise InvalidProblemError(f"{variable}: expected bytes, such as 16MB, got {text!r}")
    return int(parts[1]) * _UNITS[parts[2].upper()]


def allowed_cpus() -> list[int]:
    """The CPUs that this process may run on, by number."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def allowed_cores() -> int:
    """How many CPUs this process may use: those it may run on, or the time it is granted."""
    cpus = len(allowed_cpus())
    quota = _quota()
    return max(1, min(cpus, math.ceil(quota) if quota else cpus))


def _quota() -> float | None:
    """CPUs' worth of time that control groups grant; None without a limit."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = _CGROUPS / "cpu" if controllers else _CGROUPS
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            limits.append(_limit(folder))
            if folder == root:
                break
    return min((limit for limit in limits if limit), default=None)


def _limit(folder: Path) -> float | None:
    """What one control group grants."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError):  # no such group, or "max"
        return None


def _from_linux() -> Caches | None:
    """Sizes that Linux tells of each CPU, and who shares them."""
    cpus = allowed_cpus()
    try:
        first = _levels(cpus[0])
        own = {level: size // len(shared & {*cpus}) for level, (size, shared) in first.items()}
        last, total, seen = max(first), 0, set[int]()
        for cpu in cpus:
            if cpu not in seen:
                size, shared = _levels(cpu)[last]
                seen |= shared | {cpu}
                total += size if size <= MOST_FOR_A_CPU * len(shared | {cpu}) else size // 2
        return Caches(own[1], own.get(2, own[1]), total, "system")
    except (OSError, ValueError, LookupError, ZeroDivisionError):
        return None


def _levels(cpu: int) -> dict[int, tuple[int, set[int]]]:
    """By level, the size of a CPU's data cache and the CPUs that share it."""
    found = {}
    for folder in (_CPUS / f"cpu{cpu}" / "cache").glob("index*"):
        kind, level, size, shared = (
            (folder / name).read_text(encoding="ascii").strip()
            for name in ("type", "level", "size", "shared_cpu_list")
        )
        if kind != "Instruction":
            unit = size[-1] if size[-1] in _UNITS else ""
            found[int(level)] = int(size.removesuffix(unit)) * _UNITS[unit], _listed(shared)
    return found


def _listed(text: str) -> set[int]:
    """CPUs of a list such as "0-3,8"."""
    ranges = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return {cpu for ends in ranges for cpu in range(ends[0], ends[-1] + 1)}


def _from_sysctl() -> Caches | None:
    """Sizes that macOS tells; of cores of two kinds, those of the larger one."""
    if platform.system() != "Darwin":
        return None
    ask = ctypes.CDLL(None).sysctlbyname

    def value(*names: str) -> int:
        for name in names:
            answer, length = ctypes.c_int64(0), ctypes.c_size_t(8)
            failed = ask(name.encode(), ctypes.byref(answer), ctypes.byref(length), None, 0)
            if not failed and answer.value > 0:
                return answer.value
        return 0

    l1 = value("hw.perflevel0.l1dcachesize", "hw.l1dcachesize")
    l2 = value("hw.perflevel0.l2cachesize", "hw.l2cachesize")
    if not l1 or not l2:
        return None
    sharing = value("hw.perflevel0.cpusperl2") or 1
    return Caches(l1, l2 // sharing, value("hw.l3cachesize") or l2, "system")


_MEASURED = "caches measured on this machine"


def _kept_or_measured() -> Caches:
    identity = f"{_MEASURED}: {platform.processor()} {platform.machine()} {allowed_cores()}"
    folder = disk.folder_for("0" * 16)
    kept = disk.read(folder, identity) if folder else None
    if kept is not None:
        return Caches(**json.loads(kept))
    found = measured()
    if folder:
        disk.write(folder, identity, json.dumps(asdict(found)).encode())
    return found


def measured() -> Caches:
    """Sizes by how long it takes to read at random, in a fifth of a second.

    A size belongs to a cache as long as reading takes less than half of what it takes from the next
    one out; memory is what 128 MB are read from. What L1 is cannot be seen this way: 32 kB is the
    least there is.
    """
    import numpy as np

    sizes = [1 << k for k in range(17, 28)]
    table = np.ones(sizes[-1] // 8)
    rng, target = np.random.default_rng(0), np.empty(1 << 14)
    times = []
    for size in sizes:
        part, runs = table[: size // 8], []
        for _ in range(6):
            part.max()  # into the caches, as far as it goes
            places = rng.integers(0, part.size, target.size)
            start = time.perf_counter()
            np.take(part, places, out=target, mode="clip")
            runs.append(time.perf_counter() - start)
        times.append(min(runs))
    last = max(s for s, t in zip(sizes, times, strict=True) if t <= max(times[-1] / 2, times[0]))
    near = [s for s, t in zip(sizes, times, strict=True) if t <= 1.5 * times[0] and s <= last]
    return Caches(32 << 10, max(near), last, "measured")
