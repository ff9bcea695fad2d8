"""``pullback check`` and ``pullback bench`` with ``--device cuda``: a line as each result comes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from ...core.declare import Op
from ...errors import UnsupportedError
from ..bench.machine import describe
from .output import write_json

DEVICES = ("cpu", "cuda")


def described(purpose: str) -> dict[str, Any]:
    """The GPU that is there, or one line that says why there is none."""
    from ...gpu.device import current_device

    try:
        device = current_device()
    except UnsupportedError as error:
        raise click.ClickException(f"--device cuda: {error}") from None
    if device.backend == "interpreter" and purpose == "bench":
        raise click.ClickException(
            "--device cuda: interpreted kernels are not worth timing (TRITON_INTERPRET is set)"
        )
    name = "Triton's interpreter"
    if device.backend != "interpreter":
        import torch

        name = torch.cuda.get_device_name(device.name)
    return {"name": name, "arch": device.arch, "backend": device.backend}


def check(ops: Sequence[Op], dtypes: Sequence[str], json_file: Path | None) -> None:
    """Certify the GPU backend on the card that is here."""
    device = described("check")
    jobs = [{"op": op.name, "dtype": d} for op in ops for d in dtypes if d in op.dtypes]
    results = []
    _say(_title(device))
    for job, result in _results("check", jobs):
        results.append(result)
        is_right = result["ok"]
        shown = f"{result['max_ulp']:.2g} ulp" if is_right else "; ".join(result["reasons"])
        _say(f"{job['op']:<28} {job['dtype']:<5} {'ok    ' if is_right else 'FAILED'} {shown}")
    wrong = [r for r in results if not r["ok"]]
    _say(f"{len(results) - len(wrong)} of {len(results)} passed on {device['name']}")
    _finish(json_file, {"device": device, "results": results, "ok": not wrong}, not wrong)


def bench(
    ops: Sequence[Op],
    dtypes: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    axes: Sequence[int],
    peers: Sequence[str] | None,
    json_file: Path | None,
) -> None:
    """Time the GPU backend on the card that is here."""
    from ..device.peers import PEERS, installed
    from ..device.timing import jobs_of

    device = described("bench")
    wanted = installed() if peers is None else tuple(p for p in peers if p != "none")
    unknown = [p for p in wanted if p not in PEERS]
    if unknown:
        raise click.ClickException(
            f"unknown peer {unknown[0]!r} with --device cuda; peers are {', '.join(PEERS)}, none"
        )
    absent = [p for p in wanted if p not in installed()]
    if absent:
        raise click.ClickException(f"not installed: {', '.join(absent)}")
    jobs = list(jobs_of(ops, dtypes, shapes, axes, wanted))
    if not jobs:
        raise click.ClickException("nothing to run: no op fits these shapes and axes")
    _say(_title(device))
    head = "".join(f"{p:>10}" for p in wanted)
    _say(
        f"{'op':<28} {'type':<5} {'shape':<26} {'axis':<5} {'us':>9} {'GB/s':>6} {'copy':>5}{head}"
    )
    rows = []
    for job, row in _results("bench", jobs):
        rows.append(row)
        _say(_line(job, row, wanted))
    wrong = [r for r in rows if not r["ok"]]
    if wrong:
        _say(f"{len(wrong)} of {len(rows)} failed and have no time")
    _finish(json_file, {"device": device, "cells": rows, "ok": not wrong}, not wrong)


def _results(what: str, jobs: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], Any]]:
    """Every job with its result; one that raised or crashed has failed."""
    from ..device.worker import run_jobs

    for job, result in zip(jobs, run_jobs(what, jobs), strict=True):
        if "error" in result:
            why = result["error"]
            result = {**job, "ok": False, "max_ulp": None, "reasons": [why], "reason": why}
        yield job, result


def _title(device: dict[str, Any]) -> str:
    versions: Any = describe()["libraries"]
    shown = ", ".join(f"{n} {versions[n]}" for n in ("torch", "triton") if versions.get(n))
    return f"{device['name']} ({device['arch']}), {shown}"


def _line(job: dict[str, Any], row: dict[str, Any], peers: Iterable[str]) -> str:
    shape = row["shape"] if isinstance(row["shape"], str) else "x".join(map(str, row["shape"]))
    head = f"{job['op']:<28} {job['dtype']:<5} {shape:<26} {row['axis']!s:<5}"
    if not row["ok"]:
        return f"{head} FAILED {row['reason']}"
    timed = [row["peers"].get(p, {}) for p in peers]
    ratios = "".join(f"{t['us'] / row['us']:>9.2f}x" if "us" in t else f"{'-':>10}" for t in timed)
    host = f"  host {row['host_us']:.1f} us" if row["host_us"] is not None else ""
    return f"{head} {row['us']:>9.1f} {row['gbps']:>6.0f} {row['of_copy']:>5.2f}{ratios}{host}"


def _say(text: str) -> None:
    click.echo(text)


def _finish(json_file: Path | None, found: dict[str, Any], ok: bool) -> None:
    if json_file:
        when = datetime.now(timezone.utc).isoformat(timespec="seconds")
        write_json(json_file, {"schema": 1, "when": when, "machine": describe(), **found})
    if not ok:
        raise SystemExit(1)
