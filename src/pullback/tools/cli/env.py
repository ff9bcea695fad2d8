"""``pullback env``."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
from dataclasses import asdict
from typing import Any

import click

from ...cpu import machine as cpu_machine
from ...threads import get_num_threads
from ..bench import machine
from . import tables
from .output import console, print_json

# The instruction sets that the kernels can use.
INTERESTING = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl"),
    *("avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "fphp", "asimdhp", "bf16", "sve"),
)
VARIABLES = (
    "PULLBACK_NUM_THREADS",
    "PULLBACK_CACHE_DIR",
    *cpu_machine.VARIABLES.values(),
    "PULLBACK_CPU",
    "PULLBACK_CPU_FEATURES",
    "OMP_NUM_THREADS",
)


def _cache() -> dict[str, Any]:
    """The kernels of all versions that are kept, and whether this one can keep its own."""
    from ...cpu import disk
    from ...cpu.compile import source_digest

    base = disk.cache_directory()
    found: dict[str, Any] = {"folder": None, "kernels": 0, "bytes": 0, "writable": False}
    if base is None:
        return found | {"refused": None}
    sizes: list[int] = []
    with contextlib.suppress(OSError):
        for folder in disk.folders(base):
            sizes += [entry.stat().st_size for entry in disk.kernels(folder)]
    nearest = next(p for p in (base, *base.absolute().parents) if os.path.exists(p))
    return {
        "folder": str(base),
        "kernels": len(sizes),
        "bytes": sum(sizes),
        "writable": os.path.isdir(nearest) and os.access(nearest, os.W_OK),
        "refused": disk.objection(source_digest()),
    }


def _gpu() -> list[str]:
    if importlib.util.find_spec("torch") is None:
        return []
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]


def facts() -> dict[str, Any]:
    """What a bug report needs."""
    found, here = machine.describe(), cpu_machine.here()
    flags = set(machine.cpu_features())
    return found | {
        "system": platform.platform(),
        "cli": {n: machine.version_of(n) for n in ("click", "rich", "matplotlib", "mpmath")},
        "cpu_features": [f for f in INTERESTING if f in flags],
        "memory_available_bytes": machine.available_memory(),
        "threads": get_num_threads(),
        "caches": asdict(here.caches),
        "page_bytes": here.page,
        "choices": {
            "threads_from_bytes": here.sharing_bytes,
            "woken_from_bytes": here.waking_bytes,
            "past_the_caches_from_bytes": here.caches.last_level + 1,
        },
        "cache": _cache(),
        "gpus": _gpu(),
        "variables": {v: os.environ[v] for v in VARIABLES if v in os.environ},
    }


EPILOG = """
\b
Examples:
  pullback env                    for a bug report
  pullback env --json
"""


@click.command("env", epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(as_json: bool) -> None:
    """Show versions, CPU, kernel cache, threads and GPU."""
    found = facts()
    if as_json:
        print_json(found)
        return
    console().print(tables.environment(found))
