"""Every op on arrays sharded over host devices: bytes of the uncut op, and what is gathered.

A script of its own, for the number of devices is fixed when JAX starts. All ops are one program:
XLA compiles it once for each sharding.
"""

from __future__ import annotations

import os

# What XLA makes of the programs is not what is tested, so it need not be fast; and on a busy
# machine devices may wait long for each other.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
    "--xla_cpu_collective_call_terminate_timeout_seconds=600"
)

import re
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import pullback as pb
import pullback.jax as pj
from pullback.core.catalog import OPS
from pullback.core.declare import Op, Role
from pullback.core.pair import pair_of
from pullback.jax.conventions import names_of
from pullback.tools.case import Case
from pullback.tools.operands import make_operands

# Shards of 600 and of 1200 elements lie off the grid of blocks.
SCAN, ROW = (8, 4800), (8, 9600)


class Call:
    """The function of an op with a case's operands, and its gradient by its own results."""

    def __init__(self, op: Op, **how: Any):
        self.op, self.names = op, names_of(op)
        if op.parameter("axis"):
            how.setdefault("axis", 1)
            scans = op.family in ("scan", "recurrence") or op.parameter("reverse") is not None
            shape = SCAN if scans else ROW
        else:
            shape = (64, 16)
        self.case = Case.of(op, "f32", shape, **how)
        self.arrays = dict(make_operands(self.case))
        for name, array in self.arrays.items():
            if array.dtype == np.int64:
                self.arrays[name] = array.astype(np.int32)
            elif array.dtype == np.float64:
                self.arrays[name] = array.astype(np.float32)
        given = {self.names.get(n, n): v for n, v in self.case.arguments.items()}
        self.keywords = {n: v for n, v in given.items() if n != "out"}
        # What kernels give gradients of, and by; the rest is ordinary JAX code.
        kind = pair_of(op.kind)
        self.floats = [n for n in self.arrays if n in kind.gradients]
        self.by = [n in kind.cotangents.values() for n in self.case.outputs]

    def __call__(self, arrays: dict[str, Any], **more: Any) -> list[Any]:
        rest = {self.names.get(n, n): a for n, a in arrays.items() if n not in self.floats}
        function: Callable[..., Any] = getattr(pj, self.op.name)

        def run(*floats: Any) -> Any:
            named = {self.names.get(n, n): a for n, a in zip(self.floats, floats, strict=True)}
            found = jax.tree.leaves(function(**named, **rest, **self.keywords, **more))
            sides = zip(found, self.by, strict=True)
            return [r for r, is_by in sides if is_by], found

        if not any(self.by):
            return run(*(arrays[n] for n in self.floats))[1]
        results, back, found = jax.vjp(run, *(arrays[n] for n in self.floats), has_aux=True)
        return [*found, *back(results)]

    def specs(self, along_axis: bool) -> dict[str, Any]:
        """Where operands lie: cut along the op's axis, or along another dimension."""
        found = {}
        for n in self.arrays:
            role = self.op.operand(n).role
            if self.case.is_segmented and along_axis:
                rows = {Role.ELEMENT: P("i", None), Role.IDS: P("i")}
                found[n] = rows.get(role, P())
            elif self.case.is_segmented:
                found[n] = P(None, "i") if role in (Role.ELEMENT, Role.ROW) else P()
            elif role is Role.ELEMENT:
                found[n] = P(None, "i") if along_axis else P("i", None)
            else:
                found[n] = P() if along_axis else P("i", None)
        return found


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("cumsum", {"reverse": True, "exclusive": True}),
    ("softmax", {"given": ("where",)}),
    ("linear_recurrence", {"given": ("initial",), "return_final": True}),
    ("segment_max", {"ties": "first"}),
    ("segment_softmax", {"given": ("offsets",)}),
]


# One of every structure: a pass, several, a scan, a prefix, neighbours, states at both ends, rows
# of segments, their places.
SAMPLE = ("sum", "softmax", "cumsum", "cumprod", "cummax", "linear_recurrence", "max",
          "segment_max", "segment_softmax")  # fmt: skip


def same(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def check_text(text: str, along_axis: bool) -> None:
    """Only states are gathered, or known to all in the end, and only halos move."""
    for line in text.splitlines():
        found = re.search(r"= \(?(\w+)\[([\d,]*)\].* (all-gather|all-to-all|all-reduce)\(", line)
        if found:
            assert along_axis, line
            assert found[1] == "u32", line
            assert found[3] in ("all-gather", "all-reduce"), line
        assert along_axis or "collective-permute" not in line, line


def main() -> None:
    pb.set_num_threads(1)
    calls = [Call(op) for op in pb.catalog() if op.direction == "forward"]
    calls += [Call(OPS[name], **how) for name, how in VARIANTS]

    def everything(arrays: list[dict[str, Any]]) -> list[list[Any]]:
        return [call(a) for call, a in zip(calls, arrays, strict=True)]

    want = jax.jit(everything)([call.arrays for call in calls])
    some = [k for k, call in enumerate(calls) if call.op.name in SAMPLE]
    told("whole")
    for count, along_axis, which in ((8, False, None), (8, True, None), (2, True, some)):
        places = range(len(calls)) if which is None else which
        check_jit([calls[k] for k in places], [want[k] for k in places], count, along_axis)
    check_shard_map([calls[k] for k in some], [want[k] for k in some])
    check_types()
    check_later_axes()


def check_one(name: str) -> None:
    """One op and its gradient along an axis that two devices share."""
    pb.set_num_threads(1)
    call = Call(OPS[name])
    check_jit([call], [call(call.arrays)], 2, True)


def told(what: str) -> None:
    print(f"{what}, {time.process_time():.1f} s", flush=True)


def check_jit(calls: list[Call], want: list[Any], count: int, along_axis: bool) -> None:
    """Sharded operands under jit: bytes of the uncut op, and where results lie."""
    devices = jax.devices()[:count]
    mesh = jax.make_mesh((count,), ("i",), axis_types=(AxisType.Auto,), devices=devices)
    placed = [
        {
            n: jax.device_put(a, NamedSharding(mesh, spec))
            for (n, a), spec in zip(
                call.arrays.items(), call.specs(along_axis).values(), strict=True
            )
        }
        for call in calls
    ]

    def everything(arrays: list[dict[str, Any]]) -> list[list[Any]]:
        return [call(a) for call, a in zip(calls, arrays, strict=True)]

    compiled = jax.jit(everything).lower(placed).compile()
    check_text(compiled.as_text(), along_axis)
    for call, found, expected in zip(calls, compiled(placed), want, strict=True):
        for k, (f, w) in enumerate(zip(found, expected, strict=True)):
            assert same(f, w), (call.op.name, count, along_axis, k)
            stays = along_axis or 8 not in f.shape or not f.sharding.is_fully_replicated
            assert stays, (call.op.name, k)
    told(f"{count} devices, {'the axis' if along_axis else 'a batch'} sharded: same bytes")


def placed(call: Call, shape: tuple[int, ...]) -> Any:
    """Where a result lies whose op has its axis cut."""
    if shape != call.case.shape:
        return P()
    return P("i", None) if call.case.is_segmented else P(None, "i")


def check_shard_map(calls: list[Call], want: list[Any]) -> None:
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))

    def run(arrays: list[dict[str, Any]]) -> list[list[Any]]:
        return [call(a, axis_name="i") for call, a in zip(calls, arrays, strict=True)]

    out = [[placed(call, w.shape) for w in found] for call, found in zip(calls, want, strict=True)]
    specs = [call.specs(True) for call in calls]
    sharded = jax.shard_map(run, mesh=mesh, in_specs=(specs,), out_specs=out)
    results = jax.jit(sharded)([call.arrays for call in calls])
    for call, found, expected in zip(calls, results, want, strict=True):
        for f, w in zip(found, expected, strict=True):
            assert same(f, w), call.op.name
    told("shard_map: same bytes")


def check_types() -> None:
    """With explicit axes the types of results say how they are sharded."""
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Explicit,))
    x = np.random.default_rng(0).standard_normal(ROW).astype(np.float32)
    placed = jax.device_put(x, NamedSharding(mesh, P(None, "i")))
    assert jax.typeof(pj.softmax(placed)).sharding.spec == P(None, "i")
    total = pj.sum(placed, axis=1)
    assert jax.typeof(total).sharding.spec == P(None)
    assert same(total, pj.sum(x, axis=1))


def check_later_axes() -> None:
    """Shards along a later axis are exchanged for shards along the first, and not gathered."""
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    x = np.random.default_rng(0).standard_normal(ROW).astype(np.float32)
    for spec in (P(None, "b"), P("a", "b"), P(None, ("a", "b"))):
        array = jax.device_put(x, NamedSharding(mesh, spec))
        for function in (pj.sum, jax.grad(pj.logsumexp)):
            compiled = jax.jit(function).lower(array).compile()
            text = compiled.as_text()
            assert re.search(r"= \(?f32\[.* all-to-all\(", text), text
            assert not re.search(r"= \(?f32\[.* all-gather\(", text), text
            assert same(compiled(array), function(x)), spec
    told("later axes: same bytes")


if __name__ == "__main__":
    main()
