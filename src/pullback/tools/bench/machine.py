"""What a number was measured on: CPU, cores, versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import asdict
from pathlib import Path

from ...cpu.machine import here

LIBRARIES = ("numpy", "llvmlite", "ml_dtypes", "torch", "entmax", "jax", "triton")


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()


def cpu_model() -> str:
    """The CPU's name as it gives it."""
    try:
        for line in _lines("/proc/cpuinfo"):
            if line.lower().startswith(("model name", "hardware", "cpu model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_features() -> tuple[str, ...]:
    """Instruction sets of the CPU, as its flags name them; empty where the system does not tell."""
    try:
        for line in _lines("/proc/cpuinfo"):
            if line.lower().startswith(("flags", "features")):
                return tuple(sorted(line.partition(":")[2].split()))
    except OSError:
        pass
    return ()


def available_memory() -> int:
    """Bytes a process can take without swapping; a guess of 2 GB where the system does not tell."""
    try:
        for line in _lines("/proc/meminfo"):
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 2 << 30


def version_of(library: str) -> str | None:
    """The installed version, without importing it."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe() -> dict[str, object]:
    """The machine and the libraries, for a report."""
    from ... import __version__

    found = {name: version_of(name) for name in LIBRARIES}
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "caches": asdict(here().caches),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "pullback": __version__,
        "libraries": {name: version for name, version in found.items() if version},
    }
