"""What cutting costs: pieces, chunks of dask, processes with DTensors, and bytes that travel.

    python benchmarks/cutting.py PART...           # prints the tables of pieces, dask, processes
    python benchmarks/cutting.py --write PART...   # puts them into docs/cutting.md

Every result is compared byte by byte with the uncut op before anything is timed. Times are medians
of rounds in which all candidates take turns. The estimate for 1000 workers is computed from what
the part ``pieces`` measures, which it measures again.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

import pullback as pb
from pullback.core.catalog import OPS
from pullback.core.declare import Role
from pullback.cut import Cut, Piece, evaluate, settled, to_rows
from pullback.formulas.record import repeats
from pullback.tools.bench.machine import cpu_model, usable_cores
from pullback.tools.case import Case
from pullback.tools.operands import make_operands

PAGE = Path(__file__).parents[1] / "docs" / "cutting.md"
ROUNDS = 5
EXTENT = 1 << 24
SEVERAL = ("sum", "softmax", "cumsum", "cumprod_backward")
# A network of 10 Gbit/s with 50 us from one process to another.
BANDWIDTH, LATENCY = 1.25e9, 50e-6


def times(calls: Sequence[Callable[[], Any]], rounds: int = ROUNDS) -> list[float]:
    """Seconds of each call: medians of rounds in which they take turns."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for seconds, call in zip(found, calls, strict=True):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
    return [statistics.median(s) for s in found]


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def measured(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table of times, and the machine they are from."""
    return f"{table(head, rows)}\nMeasured on: {cpu_model()}, {usable_cores()} cores.\n"


def cut_case(case: Case, operands: dict[str, np.ndarray], count: int) -> tuple[Cut, list[Piece]]:
    """An op and so many pieces of its operands, which are views of them."""
    cut = Cut(case.problem)
    rows = {n: to_rows(case.problem, n, a) for n, a in operands.items()}
    grid = settled(cut, [case.extent * k // count for k in range(count + 1)])
    pieces = []
    for start, stop in itertools.pairwise(grid):
        held = {
            n: a[..., start:stop] if case.role(n) is Role.ELEMENT else a for n, a in rows.items()
        }
        before = {}
        at = stop if case.problem.reverse else start - 1
        if 0 <= at < case.extent:
            before = {n: rows[n][..., at] for n in cut.neighbours}
        pieces.append(Piece(held, start, before, stop - start))
    return cut, pieces


def same(case: Case, results: tuple[Any, Any], expected: dict[str, np.ndarray]) -> bool:
    outputs, rows = results
    joined = {n: np.concatenate([o[n] for o in outputs], -1) for n in outputs[0]} | rows
    return all(
        np.ascontiguousarray(joined[n]).tobytes() == np.ascontiguousarray(a).tobytes()
        for n, a in expected.items()
    )


def measure_pieces() -> dict[str, str]:
    """Overhead of 2, 16 and 256 pieces in one process on one thread, and an estimate from it."""
    pb.set_num_threads(1)
    counts, rows, rates = (1, 2, 16, 256), [], {}
    for name in SEVERAL:
        case = Case.of(OPS[name], "f32", (1, EXTENT), axis=1)
        operands = make_operands(case)
        expected = case.results(operands)
        cuts = [cut_case(case, operands, n) for n in counts]
        for cut, pieces in cuts:
            assert same(case, evaluate(cut, pieces), expected), name
        plan, out = case.plan(1), {n: np.empty_like(a) for n, a in expected.items()}
        calls: list[Callable[[], Any]] = [lambda plan=plan, o=operands, w=out: plan.run(**o, **w)]
        calls += [lambda c=cut, p=pieces: evaluate(c, p) for cut, pieces in cuts]
        whole, *cutted = times(calls)
        rows.append(
            [
                f"`{name}`",
                f"{whole * 1e3:.1f}",
                *(f"{t * 1e3:.1f} ({t / whole:.2f})" for t in cutted),
            ]
        )
        rates[name] = parts_of(*cuts[1])
    head = ("op", "uncut, ms", *(f"{n} piece{'s' * (n > 1)}" for n in counts))
    return {"pieces": measured(head, rows), "estimate": estimate(rates)}


def parts_of(cut: Cut, pieces: list[Piece]) -> tuple[float, float, float]:
    """Seconds of summaries and of results for each position, and of joining a block."""
    piece = pieces[0]
    n = piece.length or cut.rows_of(piece)[1]
    summaries = joins = 0.0
    states: list[np.ndarray] = []
    for k in range(len(cut.sweeps)):
        begin = cut.begin(k, (1,), {})
        found = cut.summary(k, piece, states)
        summaries += times([lambda k=k: cut.summary(k, piece, states)], 3)[0]
        joins += times([lambda k=k, b=begin, f=found: cut.combine(k, b, f)], 3)[0]
        states.append(cut.combine(k, begin, found))
    has_elements = any(o.role is Role.ELEMENT for o in cut.problem.writes)
    results = times([lambda: cut.apply(piece, states)], 3)[0] if has_elements else 0.0
    return summaries / n, results / n, joins / (n / cut.block)


def estimate(rates: dict[str, tuple[float, float, float]]) -> str:
    """Seconds of an op on 1000 workers, each of which gathers all states and joins them."""
    rows = []
    workers = 1000
    for name, (summary, result, join) in rates.items():
        op = OPS[name]
        cut = Cut(Case.of(op, "f32", (1, EXTENT), axis=1).problem)
        size = sum(len(s.monoid.state) for s in cut.sweeps) * 8
        for extent in (10**9, 10**11, 10**12):
            blocks = extent / cut.block
            local = (summary + result) * extent / workers
            hops = np.ceil(np.log2(workers)) * len(cut.sweeps)
            gather = blocks * size / BANDWIDTH + hops * LATENCY
            joins = blocks * join
            alone = (summary + result) * extent + joins
            total = local + gather + joins
            chain = local + joins / workers + workers * LATENCY * len(cut.sweeps)
            told = (f"10^{int(np.log10(extent))}", *(f"{t:.3g}" for t in (local, gather, joins)))
            both = (f"{t:.3g} ({alone / t:.0f})" for t in (total, chain))
            rows.append([f"`{name}`", *told, *both])
    head = ("op", "positions", "local work, s", "gather", "join",
            "all (times faster than one)", "one state along a chain")  # fmt: skip
    return table(head, rows)


def measure_dask() -> dict[str, str]:
    """The functions of pullback.dask beside those of dask.array, on two threads."""
    import dask
    import dask.array as da

    import pullback.dask as pd

    pb.set_num_threads(1)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(EXTENT).astype(np.float32)
    rows = []
    for count in (2, 16, 256):
        array = da.from_array(x, chunks=EXTENT // count)
        with dask.config.set(scheduler="threads", num_workers=2):
            own = pd.cumsum(array, axis=0)
            assert own.compute().tobytes() == pb.cumsum(x).tobytes()
            peers = [da.cumsum(array, axis=0, method=m) for m in ("sequential", "blelloch")]
            exact = np.cumsum(x, dtype=np.float64)
            errors = [np.abs(a.compute() - exact).max() for a in (own, *peers)]
            found = times([a.compute for a in (own, *peers)], 15)
        rows.append(
            [count, *(f"{t * 1e3:.0f} ({e:.1e})" for t, e in zip(found, errors, strict=True))]
        )
    head = ("chunks", "pullback.dask.cumsum, ms (largest error)", "dask.array.cumsum, sequential",
            "dask.array.cumsum, blelloch")  # fmt: skip
    return {"dask": measured(head, rows)}


def sent_bytes() -> int:
    """Bytes that processes of this machine have sent each other."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split()[9])
    return 0


def measure_processes() -> dict[str, str]:
    """Softmax along a sharded dimension, by 1, 2 and 4 processes, beside DTensor's own."""
    import torch

    import pullback.torch as pt

    torch.set_num_threads(1)
    pb.set_num_threads(1)
    x = torch.randn(4, EXTENT // 4, generator=torch.Generator().manual_seed(0))
    want, scanned = pt.softmax(x, 1), pt.cumsum(x, 1)
    small = make_operands(Case.of(OPS["softmax"], "f32", (1, 9000), axis=1))
    for name in ("softmax", "cumsum"):
        case = Case.of(OPS[name], "f32", (1, 9000), axis=1)
        evaluate(*cut_case(case, {"x": small["x"]}, 2))
    rows = []
    for count in (1, 2, 4):
        for kind, positions in (("strong", EXTENT // 4), ("weak", EXTENT // 16 * count)):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            read, written = os.pipe()
            workers = []
            for rank in range(count):
                worker = os.fork()
                if not worker:
                    try:
                        told = work(rank, count, port, x[:, :positions], want, scanned)
                        if not rank:
                            os.write(written, repr(told).encode())
                        os._exit(0)
                    except BaseException as error:
                        print(error, file=sys.stderr)
                        os._exit(1)
                workers.append(worker)
            assert [os.waitstatus_to_exitcode(os.waitpid(w, 0)[1]) for w in workers] == [0] * count
            found = eval(os.read(read, 1 << 16).decode())
            rows.append([f"{kind}, {count}", *(f"{t * 1e3:.0f} ({b / 1e6:.2f})" for t, b in found)])
    head = ("scaling, processes", "`pt.softmax`, ms (MB sent)", "`torch.softmax`", "`pt.cumsum`",
            "`torch.cumsum`")  # fmt: skip
    return {"processes": measured(head, rows)}


def work(rank: int, count: int, port: int, x: Any, want: Any, scanned: Any) -> list[Any]:
    """What one process does; gives seconds and bytes of every function."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor

    import pullback.torch as pt

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=count)
    mesh = DeviceMesh("cpu", list(range(count)))
    placed = distribute_tensor(x.contiguous(), mesh, [Shard(1)], src_data_rank=None)
    if x.shape == want.shape:
        for function, whole in ((pt.softmax, want), (pt.cumsum, scanned)):
            part = distribute_tensor(whole, mesh, [Shard(1)], src_data_rank=None).to_local()
            found = function(placed, 1).to_local()
            assert found.numpy().tobytes() == part.contiguous().numpy().tobytes()
    told = []
    for function in (pt.softmax, torch.softmax, pt.cumsum, torch.cumsum):
        function(placed, 1)
        seconds, sent = [], 0
        for _ in range(9):
            dist.barrier()
            before, start = sent_bytes(), time.perf_counter()
            function(placed, 1).to_local()
            dist.barrier()
            seconds.append(time.perf_counter() - start)
            sent = sent_bytes() - before
        told.append((statistics.median(seconds), sent))
    dist.destroy_process_group()
    return told


def count_bytes() -> dict[str, str]:
    """What is exchanged of every op with an axis, for a megabyte of its float32 operands."""
    rows = []
    for op in OPS.values():
        if op.parameter("axis") is None:
            continue
        case = Case.of(op, "f32", (1, 1 << 20), axis=1)
        if repeats(case.formula):
            rows.append([f"`{op.name}`", "", "", "", "rows are not cut"])
            continue
        cut = Cut(case.problem)
        sizes = [len(s.monoid.state) for s in cut.sweeps]
        elements = sum(o.role is Role.ELEMENT for o in cut.reads)
        each = 4 * max(1, elements) * cut.block
        share = sum(sizes) * 8 / each
        edge = len(cut.neighbours) * 8
        told = "+".join(map(str, sizes)) or "none"
        grain = cut.block if sizes else ""
        rows.append([f"`{op.name}`", told, grain, edge or "", f"{share * 1e6:.0f}"])
    head = ("op", "float64 of a block, by sweep", "positions of a block",
            "bytes of an edge, a piece and row", "bytes of states for a MB")  # fmt: skip
    return {"bytes": table(head, rows)}


PARTS = {
    "pieces": measure_pieces,
    "dask": measure_dask,
    "processes": measure_processes,
    "bytes": count_bytes,
}


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice(list(PARTS)))
@click.option("--write", is_flag=True)
def main(parts: tuple[str, ...], write: bool) -> None:
    for part in parts or tuple(PARTS):
        for name, made in PARTS[part]().items():
            if not write:
                print(f"{name}\n\n{made}")
                continue
            place = rf"(?<=<!-- {name}:begin -->\n).*?(?=<!-- {name}:end -->)"
            text, found = PAGE.read_text(), re.findall(place, PAGE.read_text(), re.DOTALL)
            assert len(found) == 1, name
            before, after = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
            PAGE.write_text(text.replace(before + found[0] + after, before + made + after))


if __name__ == "__main__":
    main()
