"""Time the GPU kernels beside torch and a copy on the same device.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --ops softmax_backward,cumsum_backward --dtypes bf16 --shape 8192x8192

Every result is compared with the plain formula in float64 before it is timed; one that differs is
reported and not timed. A time is the median over runs between CUDA events, with the cache of the
device flushed before each. GB/s count every operand once. The share is of the bandwidth of a copy
of the same number of bytes, measured in the same run. Torch's times are those of its eager op, or
of the backward of a graph that is kept, and of the same through torch.compile.

Without a GPU, ``--check`` compares and does not time, in Triton's interpreter:

    TRITON_INTERPRET=1 python benchmarks/gpu.py --check --shape 4x100
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any
from unittest import mock

import click
import numpy as np
import torch

import pullback as pb
from pullback.gpu.device import current_device
from pullback.gpu.tiles import STEPS
from pullback.tools.bench import verify
from pullback.tools.bench.peers import NotOffered, to_torch, torch_forward, variables
from pullback.tools.case import Case, cuts
from pullback.tools.operands import make_operands

# Products and recurrences round once for every element, whatever their order; sums are trees, over
# what a thread has added up of STEPS tiles and of its 64 elements of one.
CHAINS = ("cumprod", "prod", "logcumsumexp")
SERIAL = STEPS + 64


@dataclass
class Row:
    """One line of the table; times in microseconds."""

    op: str
    element: str
    shape: str
    axis: str
    schedule: str
    ours: float = 0.0
    eager: float | None = None
    compiled: float | None = None
    gigabytes: float = 0.0
    share: float = 0.0
    wrong: str = ""


def cases(ops: list[str], elements: list[str], shape: tuple[int, ...]) -> Iterator[Case]:
    """Last and first axis of a matrix; segment ops on its rows."""
    for name in ops:
        op = next(o for o in pb.catalog() if o.name == name)
        for element in elements:
            if cuts(op):
                for is_sorted in (True, False):
                    yield Case.of(op, element, shape, (), max(1, shape[0] // 8), is_sorted)
            else:
                axes = (len(shape) - 1, 0) if op.parameter("axis") else (0,)
                yield from (Case.of(op, element, shape, axis=axis) for axis in axes)


def on_device(arrays: dict[str, np.ndarray], device: str) -> dict[str, torch.Tensor]:
    return {n: to_torch(torch, a.copy()).to(device) for n, a in arrays.items()}


def on_host(tensor: torch.Tensor, dtype: np.dtype) -> np.ndarray:
    """A tensor as NumPy has it; bfloat16 by way of its bits."""
    tensor = tensor.cpu()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(dtype)
    return tensor.numpy()


def difference(case: Case, given: dict[str, np.ndarray], outputs: dict[str, torch.Tensor]) -> str:
    """How a result differs from the float64 formula; nothing if it does not.

    ``verify`` counts the roundings of the CPU, all of them float64. Here they are of the compute
    type, on the longest path of a tree; exp is good to 2 ulps.
    """
    unit = 2.0**-53 if case.element == "f64" else 2.0**-24

    def rounding(terms: int) -> float:
        path = terms if case.op.kind in CHAINS else SERIAL + terms.bit_length() + 2
        return (4 * path + 16) * unit

    arrays = {n: on_host(t, case.dtype_of(n)) for n, t in outputs.items()}
    allowed = {"rounding": rounding, "EXP_ERROR": {case.element: 4 * unit}}
    with mock.patch.multiple(verify, **allowed):
        return verify.verify(case, given, arrays).reason


def in_torch(case: Case, given: dict[str, torch.Tensor], compiles: bool) -> Callable[[], object]:
    """The same job in torch: the op, or the backward of a graph that is kept."""

    def made(function: Callable[..., Any]) -> Callable[..., Any]:
        if not compiles:
            return function
        torch._dynamo.reset()
        # The graph is kept, so its buffers cannot be given away.
        torch._functorch.config.donated_buffer = False
        return torch.compile(function, dynamic=False)

    if case.op.direction == "backward" and not case.is_segmented and "dy" not in given:
        raise NotOffered("a gradient of several outputs")
    if case.is_segmented:
        if case.op.kind != "segment_sum":
            raise NotOffered("torch has no such segments")
        ids = given["segment_ids"]
        if case.op.direction == "backward":
            gather = made(lambda d_output: torch.index_select(d_output, 0, ids))
            return lambda: gather(given["d_output"])
        rows = given["input"]
        zeros = torch.zeros(case.segments, rows.shape[1], dtype=rows.dtype, device=rows.device)
        add = made(lambda rows: zeros.index_add(0, ids, rows))
        return lambda: add(rows)
    forward = made(torch_forward(torch, case, given))
    names = variables(case)
    if case.op.direction == "forward":
        return lambda: forward(*(given[n] for n in names))
    dy = given["dy"]
    leaves = [
        (given[n] if n in given else torch.randn(case.shape, device=dy.device).to(dy.dtype))
        .detach()
        .requires_grad_()
        for n in names
    ]
    y = forward(*leaves)
    return lambda: [g.contiguous() for g in torch.autograd.grad(y, leaves, dy, retain_graph=True)]


def time(call: Callable[[], object]) -> float:
    """Median in microseconds."""
    from triton.testing import do_bench

    return 1000 * do_bench(call, warmup=50, rep=200, return_mode="median")


def copy_bandwidth(nbytes: int, device: str) -> float:
    """GB/s of a copy that reads and writes that many bytes in all."""
    source = torch.empty(max(1, nbytes // 2), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / time(lambda: target.copy_(source)) / 1000


def schedule_of(plan: Any, case: Case) -> str:
    """How many kernels a run launches, and which way lanes lie."""
    launches = list(plan.runnable(case.given).runner._launches.values())
    if case.is_segmented:
        return "segments"
    way = "across" if launches[0].walk.across else "along"
    return f"{way}, {len(launches[0].steps)} kernels" if len(launches[0].steps) > 1 else way


def measure(case: Case, device: str, times: bool, compiles: bool) -> Row:
    """Run, check, and time one case."""
    plan = case.plan(backend="triton")
    arrays = make_operands(case)
    given = on_device(arrays, device)
    dtype = next(t.dtype for n, t in given.items() if n != "segment_ids")
    outputs = {
        n: torch.full(case.shape_of(n), float("nan"), dtype=dtype, device=device)
        for n in case.outputs
    }
    room = torch.empty(max(8, plan.workspace_size), dtype=torch.uint8, device=device)

    def run() -> None:
        plan.run(**given, **outputs, workspace=room)

    run()
    if case.is_segmented:
        plan.raise_for_ids()
    row = Row(
        case.op.name, case.element, case.shape_label, case.axis_label, schedule_of(plan, case)
    )
    row.wrong = difference(case, arrays, outputs)
    if row.wrong or not times:
        return row
    row.ours = time(run)
    row.gigabytes = case.useful_bytes / row.ours / 1000
    row.share = row.gigabytes / copy_bandwidth(case.useful_bytes, device)
    try:
        row.eager = time(in_torch(case, given, compiles=False))
        row.compiled = time(in_torch(case, given, compiles=True)) if compiles else None
    except NotOffered:
        pass
    return row


def show(rows: list[Row], times: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    heads = ["op", "dtype", "shape", "axis", "schedule"]
    heads += ["µs", "GB/s", "of copy", "torch", "compile"] if times else ["result"]
    for k, head in enumerate(heads):
        table.add_column(head, justify="left" if k < 5 else "right")
    for r in rows:
        cells = [r.op, r.element, r.shape, r.axis, r.schedule]
        if not times:
            cells.append(r.wrong or "agrees")
        elif r.wrong:
            cells += [r.wrong, "", "", "", ""]
        else:
            ratios = [f"{p / r.ours:.2f}x" if p else "" for p in (r.eager, r.compiled)]
            cells += [f"{r.ours:.1f}", f"{r.gigabytes:.0f}", f"{r.share:.2f}", *ratios]
        table.add_row(*cells)
    Console(width=140).print(table)


@click.command()
@click.option("--ops", default="", help="Names, separated by commas; all backwards by default.")
@click.option("--dtypes", default="f32,bf16", show_default=True)
@click.option("--shape", default="4096x4096", show_default=True)
@click.option("--compile/--no-compile", "compiles", default=True, help="Time torch.compile too.")
@click.option("--check", is_flag=True, help="Compare, but do not time.")
@click.option("--json", "path", type=click.Path(dir_okay=False), help="Write the rows to a file.")
def main(ops: str, dtypes: str, shape: str, compiles: bool, check: bool, path: str | None) -> None:
    """Time the GPU kernels beside torch and a copy on the same device."""
    try:
        device = current_device()
    except pb.UnsupportedError as error:
        raise click.ClickException(str(error)) from None
    if device.backend == "interpreter" and not check:
        raise click.ClickException("interpreted kernels are not worth timing; pass --check")
    names = ops.split(",") if ops else [o.name for o in pb.catalog() if o.direction == "backward"]
    unknown = sorted(set(names) - {o.name for o in pb.catalog()})
    if unknown:
        raise click.BadParameter(f"unknown: {', '.join(unknown)}", param_hint="--ops")
    sizes = tuple(int(n) for n in shape.split("x"))
    rows = [
        measure(case, device.name, not check, compiles)
        for case in cases(names, dtypes.split(","), sizes)
    ]
    click.echo(f"{device.name} {device.arch}, torch {torch.__version__}, pullback {pb.__version__}")
    show(rows, times=not check)
    if path:
        with open(path, "w") as file:
            json.dump([asdict(r) for r in rows], file, indent=1)
    sys.exit(1 if any(r.wrong for r in rows) else 0)


if __name__ == "__main__":
    main()
