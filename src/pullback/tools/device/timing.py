"""One case timed on a GPU beside a copy and peers; a wrong result gets no time.

A time is the median over runs between events of the device, its cache flushed before each. The
host's own time for a call is measured where the device has next to nothing to do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...core.catalog import OPS
from ...core.declare import Op
from ...gpu.device import import_torch
from ..bench.cells import Grid, cells
from ..bench.verify import verify
from ..case import Case
from ..operands import make_operands, make_outputs
from .peers import prepare
from .running import Gpu

# Rows, the first axis, long rows, few rows, one call with nothing to do.
GRID = Grid(
    (
        ((4096, 4096), (-1, 0)),
        ((2048, 32768), (-1,)),
        ((2, 8_000_000), (-1,)),
        ((1, 128), (-1,)),
    ),
    ((262144, 64, 10000),),
    ("f32", "bf16"),
    elsewhere=("f32", "bf16"),
)
# Fewer bytes than this and the host is what takes time.
LITTLE = 2**20


def jobs_of(
    ops: Sequence[Op],
    dtypes: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    axes: Sequence[int],
    peers: Sequence[str],
) -> Iterator[dict[str, Any]]:
    """What to time, as data for another process."""
    for case in cells(GRID, ops, dtypes, shapes, axes):
        yield {
            "op": case.op.name,
            "dtype": case.element,
            "shape": list(case.shape),
            "axis": case.get("axis"),
            "segments": case.segments,
            "sorted": case.is_sorted,
            "peers": list(peers),
        }


def case_of(job: Mapping[str, Any]) -> Case:
    """The case of a job."""
    axis = {} if job["axis"] is None else {"axis": job["axis"]}
    shape = tuple(job["shape"])
    return Case.of(OPS[job["op"]], job["dtype"], shape, (), job["segments"], job["sorted"], **axis)


def measure_job(job: Mapping[str, Any], gpu: Gpu) -> dict[str, Any]:
    """Run, check, and time the case of a job."""
    return measure(case_of(job), gpu, job["peers"], times=gpu.is_card)


def measure(case: Case, gpu: Gpu, peers: Iterable[str], times: bool) -> dict[str, Any]:
    """Run, check, and time one case; without ``times``, run and check."""
    torch = import_torch()
    arrays = make_operands(case)
    given, outputs = gpu.placed(arrays), gpu.placed(make_outputs(case))
    tensors = {n: p.data.view(p.array.shape) for n, p in (*given.items(), *outputs.items())}
    plan = gpu.plan(case)
    room = torch.empty(max(8, plan.workspace_size), dtype=torch.uint8, device=gpu.device.name)

    def run() -> None:
        plan.run(**tensors, workspace=room)

    run()
    if case.is_segmented:
        plan.raise_for_ids()
    verdict = verify(case, arrays, {n: p.fetch() for n, p in outputs.items()}, gpu)
    op, element, shape, axis = case.key
    row: dict[str, Any] = {"op": op, "dtype": element, "shape": shape, "axis": axis}
    row |= {"ok": verdict.ok, "reason": verdict.reason, "checked": verdict.how, "peers": {}}
    if not (verdict.ok and times):
        return row
    row["us"] = microseconds(run)
    row["gbps"] = case.useful_bytes / row["us"] / 1000
    row["of_copy"] = row["gbps"] / copy_bandwidth(case.useful_bytes, gpu.device.name)
    row["host_us"] = host_microseconds(run) if case.useful_bytes < LITTLE else None
    operands = {n: tensors[n] for n in arrays}
    for name in peers:
        call, why = prepare(name, case, operands)
        if call is None:
            row["peers"][name] = {"reason": why}
            continue
        found: dict[str, Any] = {"us": microseconds(call)}
        if row["host_us"] is not None:
            found["host_us"] = host_microseconds(call)
        row["peers"][name] = found
    return row


def microseconds(call: Callable[[], object]) -> float:
    """The median between events of the device."""
    from triton.testing import do_bench

    return float(1000 * do_bench(call, warmup=50, rep=200, return_mode="median"))


def host_microseconds(call: Callable[[], object], calls: int = 100, rounds: int = 7) -> float:
    """What a call takes of the host's time, while the device keeps up."""
    synchronize = import_torch().cuda.synchronize
    samples = []
    for _ in range(rounds):
        synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        samples.append((time.perf_counter() - start) / calls)
    return 1e6 * statistics.median(samples)


def copy_bandwidth(nbytes: int, device: str) -> float:
    """GB/s of a copy that reads and writes that many bytes in all."""
    torch = import_torch()
    source = torch.empty(max(1, nbytes // 2), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return float(2 * source.numel() / microseconds(lambda: target.copy_(source)) / 1000)
