"""Every op on dask arrays: the bytes of the uncut op for any chunks, lazily, by a linear graph."""

from __future__ import annotations

import os
import signal
import time
import zlib
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import pullback as pb
import pullback.dask as pd
from cells import same_bytes
from pullback.core.catalog import OPS
from pullback.core.declare import Role
from pullback.errors import InvalidProblemError, UnsupportedError
from pullback.formulas.record import ScanFormula
from pullback.tools.case import Case
from pullback.tools.operands import make_operands
from two_workers import two_workers

ONE_THREAD = {"scheduler": "synchronous"}


def random_chunks(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Two or three chunks a dimension, cut anywhere."""
    found = []
    for n in shape:
        cuts = sorted({*rng.integers(1, max(2, n), 2).tolist()} - {n})
        found.append(tuple(np.diff([0, *cuts, n]).tolist()))
    return tuple(found)


def shape_of(op: pb.Op) -> tuple[int, ...]:
    if op.parameter("axis") is None:
        return (60, 9)
    return (3, 1400 if isinstance(op.record(element="f32"), ScanFormula) else 9000)


def check(case: Case) -> None:
    rng = np.random.default_rng(zlib.crc32(str(case).encode()))
    operands = make_operands(case)
    expected = case.results(operands)
    chunks = random_chunks(rng, case.shape)
    arrays: dict[str, Any] = dict(operands)
    for name, array in operands.items():
        if case.role(name) is Role.ELEMENT:
            arrays[name] = da.from_array(array, chunks=chunks)
        elif case.role(name) is Role.ROW:
            arrays[name] = da.from_array(array, chunks=1 if array.ndim < 3 else -1)
        elif case.role(name) is Role.IDS:
            arrays[name] = da.from_array(array, chunks=(chunks[0],))
    with dask.config.set(ONE_THREAD):
        found = case.call(arrays, function=_without_out(getattr(pd, case.op.name)))
        several = found if isinstance(found, tuple) else (found,)
        results = {n: r for n, r in zip(case.op.outputs, several, strict=False) if r is not None}
        assert {*results} >= {*expected}
        for name, value in expected.items():
            lazy = results[name]
            assert (lazy.shape, lazy.dtype) == (value.shape, value.dtype)
            assert lazy._meta.dtype == value.dtype
            reads_elements = any(case.role(n) is Role.ELEMENT for n in case.reads)
            if case.role(name) is Role.ELEMENT and reads_elements:
                assert lazy.chunks == chunks
            assert same_bytes(lazy.compute(), value), name


def _without_out(function: Any) -> Any:
    return lambda out=None, **arguments: function(**arguments)


@pytest.mark.parametrize("name", [op.name for op in OPS.values()])
def test_every_op_has_the_bytes_of_the_uncut_one(name: str) -> None:
    op = OPS[name]
    check(Case.of(op, "f32", shape_of(op), **({"axis": -1} if op.parameter("axis") else {})))


def test_several_axes_and_another_dtype() -> None:
    check(Case.of(OPS["sum"], "f16", (70, 3, 130), axis=(0, 2)))


def test_states_borders_and_the_first_axis() -> None:
    given = ("initial", "resets")
    check(Case.of(OPS["linear_recurrence"], "f32", (1400, 4), given=given, axis=0))


def test_keywords_of_dask() -> None:
    x = np.random.default_rng(0).standard_normal((4, 600)).astype(np.float32)
    d = da.from_array(x, chunks=(2, 250))
    with dask.config.set(ONE_THREAD):
        assert same_bytes(
            pd.sum(d, axis=1, keepdims=True, split_every=2).compute(), pb.sum(x, 1, keepdims=True)
        )
        assert same_bytes(pd.cumsum(d, 1, reverse=True).compute(), pb.cumsum(x, 1, reverse=True))
        offsets = np.array([0, 100, 600])
        expected = pb.cumsum(x, 1, offsets=offsets)
        assert same_bytes(pd.cumsum(d, 1, offsets=offsets).compute(), expected)


def test_nothing_is_computed_before_it_is_asked_for() -> None:
    def refuse(block: np.ndarray) -> np.ndarray:
        raise AssertionError("computed")

    x = da.zeros((2, 3000), chunks=(1, 512), dtype=np.float32)
    lazy = x.map_blocks(refuse, dtype=np.float32, meta=np.empty((0, 0), np.float32))
    y = pd.softmax(lazy, axis=1)
    with pytest.raises(AssertionError, match="computed"):
        y.compute(**ONE_THREAD)


@pytest.mark.parametrize("name", ["cumsum", "softmax", "max", "cumprod_backward"])
def test_graphs_grow_with_the_chunks(name: str) -> None:
    op = OPS[name]
    sizes = []
    for count in (32, 64, 128):
        x = da.zeros(4096 * count, chunks=4096, dtype=np.float32)
        operands = {o.name: x for o in op.reads if not o.optional}
        sizes.append(len(getattr(pd, name)(**operands, axis=0).__dask_graph__()))
    assert sizes[2] - sizes[1] <= 2.1 * (sizes[1] - sizes[0])
    assert sizes[2] <= 128 * 16


def test_chunks_of_unknown_sizes_are_refused() -> None:
    x = da.zeros(1000, chunks=100, dtype=np.float32)
    with pytest.raises(InvalidProblemError, match="x: expected chunks of known sizes"):
        pd.cumsum(x[x > 0], axis=0)


def test_what_does_not_fit_is_refused_at_once() -> None:
    x = da.zeros((4, 10), chunks=2, dtype=np.float32)
    with pytest.raises(InvalidProblemError, match=r"x: expected shape \(4, 10\), got \(4, 9\)"):
        pd.cumprod_backward(x, x=x[:, :9], y=x)
    with pytest.raises(InvalidProblemError, match="x: expected element f32, got float64"):
        pd.cumprod_backward(x, x=x.astype(np.float64), y=x)
    with pytest.raises(UnsupportedError, match="x: expected a float array, got int64"):
        pd.cumsum(x.astype(np.int64))
    with pytest.raises(InvalidProblemError, match="num_segments: required"):
        pd.segment_sum(x, da.zeros(4, chunks=2, dtype=np.int64))


def test_a_wrong_target_is_refused_when_it_is_met() -> None:
    x = da.zeros((3, 10), chunks=(3, 5), dtype=np.float32)
    loss, _ = pd.cross_entropy(x, np.array([0, 10, 1]))
    with pytest.raises(InvalidProblemError, match="target: expected positions in"):
        loss.compute(**ONE_THREAD)


def test_chunks_may_begin_at_any_byte() -> None:
    """As those do that came from another process."""
    x = np.random.default_rng(0).standard_normal((2, 1400)).astype(np.float32)

    def moved(block: np.ndarray) -> np.ndarray:
        held = np.empty(block.nbytes + 1, np.uint8)[1:]
        held[:] = block.reshape(-1).view(np.uint8)
        return held.view(block.dtype).reshape(block.shape)

    lazy = da.from_array(x, chunks=(2, 512)).map_blocks(moved, dtype=x.dtype)
    assert same_bytes(pd.cumsum(lazy, 1).compute(**ONE_THREAD), pb.cumsum(x, 1))


def _slow(block: np.ndarray, folder: str, block_info: Any = None) -> np.ndarray:
    """A chunk that takes a while, and says that it was begun."""
    where = block_info[None]["chunk-location"]
    Path(folder, "-".join(map(str, where))).touch()
    time.sleep(0.1)
    return block


def test_a_worker_that_is_killed_changes_no_byte(tmp_path: Path) -> None:
    import distributed

    x = np.random.default_rng(0).standard_normal((2, 12_000)).astype(np.float32)
    expected = pb.cumsum(x, 1)
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "60s"}),
        two_workers() as cluster,
        distributed.Client(cluster) as client,
    ):
        chunks = da.from_array(x, chunks=(1, 1000))
        slow = chunks.map_blocks(_slow, str(tmp_path), dtype=np.float32)
        future = client.compute(pd.cumsum(slow, 1))
        while len(list(tmp_path.iterdir())) < 4:
            time.sleep(0.01)
        (pid, *_) = client.run(os.getpid).values()
        os.kill(pid, signal.SIGKILL)
        assert same_bytes(future.result(timeout=120), expected)


def test_the_scheduler_of_processes() -> None:
    x = np.random.default_rng(0).standard_normal((2, 1400)).astype(np.float32)
    y = pd.cumsum(da.from_array(x, chunks=(2, 700)), 1)
    assert same_bytes(y.compute(scheduler="processes", num_workers=1), pb.cumsum(x, 1))
