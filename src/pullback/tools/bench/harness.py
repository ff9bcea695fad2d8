"""Check a case, then time it beside a copy and its peers."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

import numpy as np

from ...cpu.machine import here
from ...threads import get_num_threads, set_num_threads
from ..case import Case, function_of
from ..operands import make_operands, make_outputs
from .copying import copies
from .machine import available_memory, describe, usable_cores
from .peers import prepare
from .summary import SCHEMA
from .timing import interleave
from .verify import verify

# Operands, a peer's copies and residuals, and the float64 check, in multiples of the useful bytes.
_FOOTPRINT = 8


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes
    ----------
    threads
        Threads of pullback, of torch and of the copy; JAX follows the CPUs of the process.
    peers
        Names from ``peers.PEERS``.
    rounds, budget
        Samples per contender, and the seconds each may take in a case.
    """

    threads: int = field(default_factory=get_num_threads)
    peers: tuple[str, ...] = ()
    rounds: int = 7
    budget: float = 1.0


@contextmanager
def thread_count(threads: int, peers: Iterable[str]) -> Iterator[None]:
    """Hold pullback, torch and, through the CPUs of this process, XLA to so many threads."""
    before, affinity = get_num_threads(), None
    set_num_threads(threads)
    if hasattr(os, "sched_setaffinity") and threads < usable_cores():
        affinity = os.sched_getaffinity(0)
        os.sched_setaffinity(0, sorted(affinity)[:threads])
    try:
        if {"torch", "compile"} & set(peers):
            import torch

            torch.set_num_threads(threads)
        yield
    finally:
        set_num_threads(before)
        if affinity is not None:
            os.sched_setaffinity(0, affinity)


def _record(times: Any) -> dict[str, Any]:
    noise = None if times.noise is None else round(times.noise, 4)
    return {
        "ms": times.best * 1e3,
        "median_ms": times.median * 1e3,
        "rounds": times.rounds,
        "noise": noise,
    }


def measure(
    case: Case, settings: Settings, without: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Everything about one case, as a record for a report; ``without`` peers, for some reason."""
    name, element, shape, axis = case.key
    found: dict[str, Any] = {
        "op": name,
        "family": case.op.family,
        "dtype": element,
        "shape": shape,
        "axis": axis,
        "bytes": case.useful_bytes,
        "within_caches": case.useful_bytes <= here().caches.last_level,
    }
    if case.useful_bytes * _FOOTPRINT > available_memory():
        return found | {"skipped": f"needs about {case.useful_bytes * _FOOTPRINT >> 20} MiB"}
    operands, outputs = make_operands(case), make_outputs(case)
    plan = case.plan(settings.threads)
    needed = plan.workspace_size
    space = np.empty(-(-needed // 8), np.int64) if needed else None

    def run() -> None:
        plan.run(**operands, **outputs, workspace=space)

    run()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        verdict = verify(case, operands, outputs)
    found["check"] = asdict(verdict)
    if not verdict.ok:
        return found
    function, arguments = function_of(case.op), {**operands, **case.arguments}
    contenders: dict[str, Callable[[], object]] = {
        "plan": run,
        "function": lambda: function(**arguments),
    }
    missing = dict(without or {})
    for peer in settings.peers:
        if peer in missing:
            continue
        call, reason = prepare(peer, case, operands)
        if call is None:
            missing[peer] = reason
        else:
            contenders[peer] = call
    with (
        copies(case.useful_bytes, settings.threads) as copying,
        np.errstate(all="ignore"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for _ in range(2):  # the second call prepares the shorter way that all later ones take
            function(**arguments)
        for call in copying.values():
            call()
        collecting = gc.isenabled()
        gc.disable()
        try:
            times = interleave(copying | contenders, settings.rounds, settings.budget)
        finally:
            if collecting:
                gc.enable()
    by = min(copying, key=lambda n: times[n].best)
    found["copy"] = _record(times[by]) | {"by": by.removeprefix("copy ")}
    found["runs"] = {n: _record(times[n]) for n in contenders}
    if missing:
        found["missing"] = missing
    return found


def run(
    cases: Iterable[Case],
    settings: Settings,
    progress: Callable[[Case, dict[str, Any] | None], None] | None = None,
    without: Callable[[Case], Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Measure cases; ``progress`` is called before each one, and after it with its record.

    ``without`` gives the peers that a case is not compared with, and why.
    """
    found = []
    with thread_count(settings.threads, settings.peers):
        for case in cases:
            if progress:
                progress(case, None)
            record = measure(case, settings, without(case) if without else None)
            found.append(record)
            if progress:
                progress(case, record)
    return heading(settings) | {"cells": found}


def heading(settings: Settings) -> dict[str, Any]:
    """What every report begins with."""
    return {
        "schema": SCHEMA,
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": describe(),
        "settings": asdict(settings),
    }
