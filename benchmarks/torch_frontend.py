"""Forward + backward through autograd: pullback.torch beside torch's own, every op of the catalog.

    python benchmarks/torch_frontend.py [--rows 4096] [--columns 4096] [--dim -1] [--dtype float32]
                                        [--only softmax ...] [--json out.json]

Both are checked against each other before a time is taken, and timed in turns, so that a busy
machine troubles both alike. The best of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import pullback as pb
import pullback.torch as pt
from pullback.torch.counterparts import COUNTERPARTS
from pullback.torch.operations import operation

WEIGHT = 0.3
Contender = Callable[..., Tensor]


def parameters(kind: str, dim: int, rows: int) -> tuple[Any, ...]:
    """Parameters of a kind in the order of its family."""
    family = operation(kind).family
    chosen = {
        "dim": (dim,) if family.parameters.get("dim") == "int[]" else dim,
        "reverse": False,
        "keepdim": False,
        "correction": 1.0,
        "ties": COUNTERPARTS[kind].ties,
        "weight": WEIGHT,
        "num_segments": rows // 16,
        "sorted": False,
        "out_of_range": "raise",
    }
    return tuple(chosen[name] for name in family.parameters)


def with_indices(kind: str, dim: int) -> tuple[Contender, Contender]:
    """cummax and cummin, whose indices are part of the work."""
    name = COUNTERPARTS[kind].name or kind
    ours, own = getattr(pt, name), getattr(torch, name)
    return (lambda x: ours(x, dim)[0]), (lambda x: own(x, dim)[0])


def contenders(kind: str, dim: int, rows: int) -> tuple[Contender, Contender]:
    """Ours and torch's, as functions of the operands."""
    if COUNTERPARTS[kind].result is not None:
        return with_indices(kind, dim)
    params = parameters(kind, dim, rows)
    made, run = operation(kind), COUNTERPARTS[kind].run
    return (lambda *tensors: made(params, *tensors)), (lambda *tensors: run(*tensors, *params))


def operands(kind: str, rows: int, columns: int, dtype: torch.dtype) -> list[Tensor]:
    """Tensors of the forward; ids in no order."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for name in operation(kind).family.tensors:
        if name == "segment_ids":
            found.append(torch.randint(0, rows // 16, (rows,), generator=generator))
        else:
            x = torch.randn(rows, columns, generator=generator, dtype=torch.float32)
            # Products of many numbers stay in range, and a few zeros are among them.
            x = x.sign() * (1 + 0.01 * x) if kind in ("cumprod", "prod") else x
            found.append(x.to(dtype).requires_grad_())
    return found


def step(run: Contender, tensors: list[Tensor], dy: Tensor) -> tuple[Tensor, ...]:
    wanted = [t for t in tensors if t.requires_grad]
    return torch.autograd.grad(run(*tensors), wanted, dy)


def check(ours: tuple[Tensor, ...], own: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    """The same gradients, but for what torch loses over long sums in a narrow type."""
    slack = 4096 * torch.finfo(dtype).eps
    for a, b in zip(ours, own, strict=True):
        scale = float(b.abs().max()) + 1e-30
        torch.testing.assert_close(a / scale, b / scale, rtol=slack, atol=slack)


def measure(kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of both, best of the rounds."""
    dtype = getattr(torch, arguments.dtype)
    tensors = operands(kind, arguments.rows, arguments.columns, dtype)
    ours, own = contenders(kind, arguments.dim, arguments.rows)
    dy = torch.randn(ours(*tensors).shape, dtype=torch.float32).to(dtype)
    check(step(ours, tensors, dy), step(own, tensors, dy), dtype)
    best = {"pullback": float("inf"), "torch": float("inf")}
    for _ in range(arguments.rounds):
        for name, run in (("pullback", ours), ("torch", own)):
            start = time.perf_counter()
            step(run, tensors, dy)
            best[name] = min(best[name], time.perf_counter() - start)
    return {"op": kind, **{name: seconds * 1e3 for name, seconds in best.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--dim", type=int, default=-1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--json", default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(pb.get_num_threads())
    kinds = [op.kind for op in pb.catalog() if op.direction == "forward"]
    print(f"{'op':14s} {'pullback ms':>12s} {'torch ms':>12s} {'times':>8s}")
    found = []
    for kind in arguments.only or kinds:
        row = measure(kind, arguments)
        found.append(row)
        ratio = row["torch"] / row["pullback"]
        print(f"{kind:14s} {row['pullback']:12.2f} {row['torch']:12.2f} {ratio:8.2f}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"arguments": vars(arguments), "results": found}, file, indent=1)


if __name__ == "__main__":
    main()
