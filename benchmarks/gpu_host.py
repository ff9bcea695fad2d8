"""Time that the host takes before a launch, without a GPU.

    python benchmarks/gpu_host.py

Plans run on small tensors through a driver that stands in for a GPU's (``tests/triton_driver.py``):
kernels are compiled, arguments bound and handed over as ever, and the launch itself does nothing.
torch's switch of devices, some microseconds, is not in it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import pytest

import triton_driver
from pullback.core.catalog import OPS
from pullback.tools.case import Case

CASES = (
    ("softmax_backward", (64, 1024)),
    ("sum", (64, 1024)),
    ("cumsum", (64, 1024)),
    ("cumprod_backward", (1, 5000)),
    ("sum", (2, 2_000_000)),
)


@click.command()
@click.option("--calls", default=2000, show_default=True)
def main(calls: int) -> None:
    """Print microseconds for each case, the best of five."""
    with pytest.MonkeyPatch.context() as patch:
        driver = triton_driver.install(patch)
        for name, shape in CASES:
            case = Case.of(OPS[name], "f32", shape, axis=1)
            plan = case.plan(backend="triton")
            operands = (*case.problem.reads, *case.problem.writes)
            given = {o.name: torch.ones(case.shape_of(o.name)) for o in operands}
            plan.run(**given)
            kernels = len(driver.launches)
            best = float("inf")
            for _ in range(5):
                start = time.perf_counter()
                for _ in range(calls // 5):
                    plan.run(**given)
                best = min(best, (time.perf_counter() - start) / (calls // 5))
            size = "x".join(map(str, shape))
            click.echo(f"{name:<18} {size:>10} {kernels} kernels {1e6 * best:6.1f} us")
            driver.launches.clear()


if __name__ == "__main__":
    main()
