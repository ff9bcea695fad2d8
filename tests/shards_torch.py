"""Every op on DTensors, run by four gloo processes: bytes of the uncut op, collectives counted.

A script of its own. Operands, results of the uncut op and kernels are made before the processes
fork, so that each is made once.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch._dynamo.backends.debugging  # once, before there are processes that would each do it
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import pullback as pb
import pullback.torch as pt
from pullback.core.catalog import OPS
from pullback.core.declare import Role
from pullback.cut import Cut, warm
from pullback.errors import PullbackError
from pullback.tools.case import Case
from pullback.tools.operands import make_operands
from pullback.torch.forms import Form, as_tuple
from pullback.torch.operations import kind_of
from pullback.torch.shards import give_rules

WORLD = 4
# Longer than a block of four shards, and not a multiple of one.
SCAN, ROW = 2500, 9000


def tensor_of(array: np.ndarray) -> torch.Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same bytes."""
    a, b = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(a, b)


def placed_on(mesh: DeviceMesh, t: torch.Tensor, placements: list[Any]) -> DTensor:
    """A tensor that every process has, as a DTensor; nothing is sent for it."""
    return distribute_tensor(t, mesh, placements, src_data_rank=None)


def is_sharded_like(found: DTensor, want: torch.Tensor) -> bool:
    """Whether this process has its part of a tensor, byte by byte."""
    assert (found.shape, found.dtype) == (want.shape, want.dtype), (found.shape, found.dtype)
    expected = placed_on(found.device_mesh, want.detach(), list(found.placements))
    own, part = found.to_local(), expected.to_local()
    return own.shape == part.shape and same(own, part)


class Call:
    """One direction of an op in torch: its form, tensors, parameters and uncut results."""

    def __init__(self, op: pb.Op, element: str = "f32", **how: Any):
        of = kind_of(op.kind)
        given = of.ordered([*of.usual, *how.pop("given", ())])
        operation = of.operation(given, tuple(n for n in of.flags if how.get(n)))
        give_rules(operation)
        forward = op.direction == "forward"
        form = operation.forward if forward else operation.backward
        assert form is not None
        self.form: Form = form
        self.op = operation.op if forward else operation.op_backward
        has_axis = op.parameter("axis") is not None
        if has_axis:
            how.setdefault("axis", 1)
        length = how.pop("length", SCAN if form.scans else ROW)
        shape = how.pop("shape", (3, length) if has_axis else (60, 9))
        self.case = Case.of(op, element, shape, tuple(form.given), **how)
        operands = make_operands(self.case)
        self.arrays = operands
        self.tensors = [tensor_of(operands[o.name]) for o in form.reads]
        told = {"shape": shape, "num_inputs": shape[0], "num_segments": self.case.segments}
        values = {
            p.name: told[p.name] if p.name in told else self.case.parameters.get(p.name, p.default)
            for p in form.parameters
        }
        params = tuple(values[n] for n in form.names)
        self.params = form.canonical(params, self.tensors)
        self.want = as_tuple(self.op(*self.tensors, *self.params))
        self.axis = form.axes(self.params, len(shape))[0] if has_axis else 0

    def warm(self) -> None:
        """Compile what pieces run, before there are processes."""
        problem = self.form.problem(self.params, *self.tensors)
        if problem.is_segmented or self.form.op.parameter("axis") is not None:
            warm(problem, tuple((n, a.dtype.name) for n, a in self.arrays.items()))

    def distributed(self, mesh: DeviceMesh, dim: int) -> list[DTensor]:
        """The tensors, those with dimension ``dim`` of the problem sharded along it."""
        found = []
        rank = len(self.case.shape)
        for o, t in zip(self.form.reads, self.tensors, strict=True):
            is_cut = o.role is Role.ELEMENT or (o.role is Role.ROW and t.dim() == rank)
            if o.role is Role.IDS:
                is_cut = dim == 0
            if o.role is Role.ROW and dim == self.axis:
                is_cut = False
            if o.role is Role.OFFSETS:
                is_cut = False
            placed = Shard(dim) if is_cut else Replicate()
            found.append(placed_on(mesh, t, [placed] * mesh.ndim))
        return found

    def check(self, tensors: list[DTensor]) -> dict[str, int]:
        """Compare bytes; returns how many collectives of which kind there were."""
        with CommDebugMode() as seen:
            found = as_tuple(self.op(*tensors, *self.params))
        assert len(found) == len(self.want)
        for o, f, w in zip(self.form.writes, found, self.want, strict=True):
            assert is_sharded_like(f, w), (self.form.op.name, o.name, f.placements)
        return {k.__name__: n for k, n in seen.get_comm_counts().items()}


VARIANTS: list[tuple[str, str, dict[str, Any]]] = [
    ("cumsum", "bf16", {"reverse": True}),
    ("softmax", "f32", {"given": ("where",)}),
    ("linear_recurrence", "f32", {"given": ("initial",), "return_final": True}),
]


def check_every_op(calls: list[Call], meshes: list[DeviceMesh]) -> None:
    """Batch dimensions need nothing, the axis one gather for each sweep."""
    for call in calls:
        for mesh in meshes:
            for dim in range(2):
                tensors = call.distributed(mesh, dim)
                counts = call.check(tensors)
                name, pointwise = call.form.op.name, call.form.op.parameter("axis") is None
                if call.form.is_segmented and dim == 0:
                    assert {*counts} <= {"broadcast"}, (name, counts)
                elif dim != call.axis or pointwise:
                    assert not counts, (name, counts)
                else:
                    problem = call.form.problem(call.params, *call.tensors)
                    cut = Cut(problem)
                    gathers = len(cut.sweeps) + bool(cut.neighbours)
                    assert counts.pop("all_gather_into_tensor", 0) == gathers, (name, counts)
                    # What lies off the grid: every operand and result with an element per position.
                    assert {*counts} <= {"all_to_all_single"}, (name, counts)


def check_on_grid(call: Call, mesh: DeviceMesh) -> None:
    """Where shards are whole blocks nothing moves but states."""
    counts = call.check(call.distributed(mesh, 1))
    assert counts == {"all_gather_into_tensor": 2}, counts


def check_autograd(mesh: DeviceMesh, x: torch.Tensor, dy: torch.Tensor) -> None:
    for name in ("softmax", "cumsum", "logsumexp", "cummax"):
        function = getattr(pt, name)
        for placement in (Shard(0), Shard(1), Replicate(), Partial("sum")):
            plain = x.clone().requires_grad_()
            want = function(plain, 1)
            sharded = placed_on(mesh, x, [Shard(1) if placement.is_partial() else placement])
            if placement.is_partial():
                share = x if mesh.get_rank() == 0 else torch.zeros_like(x)
                sharded = DTensor.from_local(share, mesh, [Partial("sum")], run_check=False)
            sharded = sharded.detach().requires_grad_()
            found = function(sharded, 1)
            if name == "cummax":
                assert is_sharded_like(found[1], want[1]), placement
                want, found = want[0], found[0]
            assert is_sharded_like(found, want), (name, placement)
            by = dy if want.shape == dy.shape else dy[:, 0]
            want.backward(by)
            found.backward(placed_on(mesh, by, list(found.placements)))
            assert is_sharded_like(sharded.grad, plain.grad), (name, placement)


def check_gradient(
    mesh: DeviceMesh, x: torch.Tensor, placements: list[Any], function: Callable[..., Any]
) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of a function and of its gradient, which lies as x does; collectives of both."""
    plain = x.clone().requires_grad_()
    want = function(plain)
    by = torch.linspace(1, 2, want.numel()).reshape(want.shape)
    want.backward(by)
    sharded = placed_on(mesh, x, placements).requires_grad_()
    with CommDebugMode() as ahead:
        found = function(sharded)
    assert is_sharded_like(found, want), placements
    with CommDebugMode() as back:
        found.backward(placed_on(mesh, by, list(found.placements)))
    assert list(sharded.grad.placements) == placements, (placements, sharded.grad.placements)
    assert is_sharded_like(sharded.grad, plain.grad), placements
    first, second = (
        {k.__name__: n for k, n in seen.get_comm_counts().items()} for seen in (ahead, back)
    )
    return first, second


def check_nested(mesh: DeviceMesh, more: dict[str, Any]) -> None:
    """An axis that two mesh dimensions cut, on the grid and off it, and a batch beside it."""
    nested = [Shard(1), Shard(1)]
    for placements in (nested, [Shard(0), Shard(1)], [Shard(1), Shard(0)]):
        check_gradient(mesh, more["even"], placements, lambda t: pt.cumsum(t, 1))
    # Two gathers, and of x and of y, off the grid, an exchange along each mesh dimension.
    counts = check_gradient(mesh, more["odd"], nested, lambda t: pt.cumsum(t, 1))
    assert counts == ({"all_gather_into_tensor": 2, "all_to_all_single": 4},) * 2, counts


def check_segments(mesh: DeviceMesh, table: torch.Tensor, ids: torch.Tensor) -> None:
    """Rows that two mesh dimensions cut: the states of every shard, sent along both."""
    rows = [Shard(0), Shard(0)]
    for function in (pt.segment_sum, pt.segment_softmax):
        want = function(table, ids, 5)
        with CommDebugMode() as seen:
            found = function(placed_on(mesh, table, rows), placed_on(mesh, ids, rows), 5)
        assert is_sharded_like(found, want), function
        assert seen.get_total_counts() % (2 * WORLD) == 0, seen.get_comm_counts()


def check_later_axes(four: DeviceMesh, mesh: DeviceMesh, x: torch.Tensor) -> None:
    """Of several axes any may be sharded: shards of a later one are exchanged, nothing is gathered
    but states."""
    for axes in ((0, 1, 2), (0, 2)):
        for dim in axes[1:]:
            counts = check_gradient(four, x, [Shard(dim)], lambda t, a=axes: pt.logsumexp(t, a))
            # x for the shards of axis 0, and off the grid; the gradient there and back.
            assert counts[0] == {"all_gather_into_tensor": 2, "all_to_all_single": 2}, counts
            assert counts[1] == {"all_to_all_single": 2}, counts
    for placements in (
        [Shard(2), Shard(1)], [Shard(1), Shard(2)], [Shard(2), Shard(2)], [Shard(2), Shard(0)],
        [Shard(0), Shard(2)],
    ):  # fmt: skip
        first, second = check_gradient(mesh, x, placements, lambda t: pt.norm2(t, (0, 1, 2)))
        # Pieces of two mesh dimensions: one gather along each.
        assert first.pop("all_gather_into_tensor") == 2, first
        assert {*first, *second} == {"all_to_all_single"}, (first, second)


def check_refusals(mesh: DeviceMesh, x: torch.Tensor) -> None:
    sharded = placed_on(mesh, x, [Shard(1)])
    with pytest.raises(PullbackError, match="b: expected a DTensor"):
        pt.lerp(sharded, x, 0.5)


def check_compiled(mesh: DeviceMesh, x: torch.Tensor, dy: torch.Tensor) -> None:
    """Forward and backward of a compiled function, sharded along a batch and along the axis."""
    compiled = torch.compile(lambda t: pt.softmax(t, 1), backend="aot_eager")
    plain = x.clone().requires_grad_()
    want = pt.softmax(plain, 1)
    want.backward(dy)
    for placement in (Shard(0), Shard(1)):
        sharded = placed_on(mesh, x, [placement]).requires_grad_()
        found = compiled(sharded)
        assert is_sharded_like(found, want), placement
        found.backward(placed_on(mesh, dy, [placement]))
        assert is_sharded_like(sharded.grad, plain.grad), placement


def told(rank: int, what: str) -> None:
    if not rank:
        print(f"{what}: same bytes, {time.process_time():.1f} s", flush=True)


def check_all(rank: int, calls: list[Call], more: dict[str, Any]) -> None:
    """Everything, in one of four processes; two of them also by themselves."""
    four, two = DeviceMesh("cpu", list(range(WORLD))), DeviceMesh("cpu", [0, 1])
    check_every_op(calls, [four])
    told(rank, "every op")
    check_on_grid(more["on_grid"], four)
    check_autograd(four, more["x"], more["dy"])
    check_refusals(four, more["x"])
    told(rank, "autograd, refused")
    if rank < 2:
        check_every_op(calls, [two])
        check_autograd(two, more["x"], more["dy"])
        told(rank, "two of them")
        check_compiled(two, more["x"], more["dy"])
        told(rank, "compiled")


def in_processes(work: Callable[[int], None]) -> None:
    """Run a function of the rank in processes that know each other; when one fails, all end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(probe.getsockname()[1]))
    workers = set()
    for rank in range(WORLD):
        worker = os.fork()
        if worker:
            workers.add(worker)
            continue
        try:
            dist.init_process_group("gloo", rank=rank, world_size=WORLD)
            work(rank)
            dist.barrier()
            dist.destroy_process_group()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    while workers:
        ended, status = os.wait()
        workers.discard(ended)
        if status:
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            raise SystemExit("a process failed")


def alone() -> None:
    """One thread in every process, of which there are as many as cores or more."""
    pb.set_num_threads(1)
    torch.set_num_threads(1)


def check_one(name: str) -> None:
    """One op, forward or backward, along a batch and along its axis."""
    alone()
    call = Call(OPS[name])
    call.warm()
    in_processes(lambda rank: check_every_op([call], [DeviceMesh("cpu", list(range(WORLD)))]))
    print("same bytes")


def check_meshes() -> None:
    """Axes that several mesh dimensions cut, and several axes."""
    alone()
    generator = torch.Generator().manual_seed(0)
    more = {
        "even": torch.randn(4, 2048, generator=generator),
        "odd": torch.randn(3, SCAN, generator=generator),
    }
    x = torch.randn(3, 5, 1501, generator=generator)
    ids = torch.randint(0, 5, (61,), generator=generator)
    table = torch.randn(61, 3, generator=generator)

    def work(rank: int) -> None:
        four = DeviceMesh("cpu", list(range(WORLD)))
        square = DeviceMesh("cpu", torch.arange(WORLD).view(2, 2))
        check_nested(square, more)
        told(rank, "nested")
        check_segments(square, table, ids)
        told(rank, "segments")
        check_later_axes(four, square, x)
        told(rank, "later axes")

    in_processes(work)
    print("same bytes")


def main() -> None:
    alone()
    calls = [Call(op) for op in OPS.values()]
    calls += [Call(OPS[name], element, **how) for name, element, how in VARIANTS]
    generator = torch.Generator().manual_seed(0)
    more = {
        "on_grid": Call(OPS["softmax"], length=16384),
        "x": torch.randn(3, 9000, generator=generator),
        "dy": torch.randn(3, 9000, generator=generator),
    }
    for call in calls:
        call.warm()
    in_processes(lambda rank: check_all(rank, calls, more))
    print("same bytes")


if __name__ == "__main__":
    main()
