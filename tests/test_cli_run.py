"""``pullback run``: the bytes of the in-memory function, and nothing left behind."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from pullback.tools.bench import Case, find_op
from pullback.tools.files import Job, blocks, running, segments
from pullback.tools.files.blocks import cut
from pullback.tools.files.boxes import boxes
from pullback.tools.operands import make_operands
from run_files import RNG, normal, run, same


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut every job into many blocks."""
    monkeypatch.setattr(running, "LARGEST_BLOCK", 1 << 14)
    monkeypatch.setattr(blocks, "NARROWEST", 64)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.usefixtures("small_blocks")
def test_npy_in_blocks_along_independent_axes(tmp_path: Path, axis: int) -> None:
    dy, y = normal(37, 20, 33), normal(37, 20, 33)
    np.save(tmp_path / "dy.npy", dy)
    np.save(tmp_path / "y.npy", np.asfortranarray(y))
    out = tmp_path / "dx.npy"
    said = run(
        "softmax_backward", "--dy", tmp_path / "dy.npy", "--y", tmp_path / "y.npy",
        "--axis", axis, "--out", out,
    )  # fmt: skip
    assert int(re.search(r"(\d+) blocks", said)[1]) > 3
    assert same(np.load(out), pb.softmax_backward(dy, y=y, axis=axis))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dx.npy", "dy.npy", "y.npy"]


@pytest.mark.usefixtures("small_blocks")
def test_reductions_take_squeezed_operands_and_several_axes(tmp_path: Path) -> None:
    x = normal(60, 7, 64)
    y = pb.std(x, axis=(1, 2))
    dy = normal(60)
    for name, array in {"x": x, "y": y, "dy": dy}.items():
        np.save(tmp_path / f"{name}.npy", array)
    files = [f"--{n}={tmp_path / n}.npy" for n in ("x", "y", "dy")]
    run("std_backward", *files, "--axis", "1,2", "--out", tmp_path / "dx.npy")
    assert same(np.load(tmp_path / "dx.npy"), pb.std_backward(dy, x=x, y=y, axis=(1, 2)))
    run("std", files[0], "--axis", "1,2", "--out", tmp_path / "forward.npy")
    assert same(np.load(tmp_path / "forward.npy"), y)
    run("std", files[0], "--axis", "all", "--keepdims", "--out", tmp_path / "all.npy")
    assert same(np.load(tmp_path / "all.npy"), pb.std(x, keepdims=True))


@pytest.mark.usefixtures("small_blocks")
def test_sum_backward_takes_its_shape_from_the_command_line(tmp_path: Path) -> None:
    dy = normal(1, 300)
    np.save(tmp_path / "dy.npy", dy)
    run("sum_backward", "--dy", tmp_path / "dy.npy", "--shape", "50x300", "--axis", 0, "--out",
        tmp_path / "dx.npy")  # fmt: skip
    assert same(np.load(tmp_path / "dx.npy"), pb.sum_backward(dy, shape=(50, 300), axis=0))


@pytest.mark.usefixtures("small_blocks")
def test_raw_bfloat16(tmp_path: Path) -> None:
    x = normal(40, 300, dtype=ml_dtypes.bfloat16)
    (tmp_path / "x.bin").write_bytes(x.tobytes())
    run("cumsum", "--x", tmp_path / "x.bin", "--dtype", "bfloat16", "--shape", "40x300",
        "--reverse", "--out", tmp_path / "y.bin")  # fmt: skip
    assert (tmp_path / "y.bin").read_bytes() == pb.cumsum(x, reverse=True).tobytes()


def test_bfloat16_npy_is_what_numpy_writes(tmp_path: Path) -> None:
    x = normal(4, 30, dtype=ml_dtypes.bfloat16)
    np.save(tmp_path / "x.npy", x)
    run("softmax", "--x", tmp_path / "x.npy", "--out", tmp_path / "y.npy")
    np.save(tmp_path / "wanted.npy", pb.softmax(x))
    assert (tmp_path / "y.npy").read_bytes() == (tmp_path / "wanted.npy").read_bytes()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_in_and_out(tmp_path: Path, save: object) -> None:
    dy = normal(30, 40)
    save(tmp_path / "in.npz", dy=dy, other=normal(3))
    out = tmp_path / "out.npz"
    run("lerp_backward", "--dy", tmp_path / "in.npz", "--weight", 0.25, "--out", out)
    with np.load(out) as held:
        da, db = pb.lerp_backward(dy, weight=0.25)
        assert same(held["da"], da)
        assert same(held["db"], db)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.npz", "out.npz"]


def test_one_output_of_lerp_backward(tmp_path: Path) -> None:
    dy = normal(30, 40)
    np.save(tmp_path / "dy.npy", dy)
    run("lerp_backward", "--dy", tmp_path / "dy.npy", "--weight", 0.25, "--db", tmp_path / "b.npy")
    assert same(np.load(tmp_path / "b.npy"), pb.lerp_backward(dy, weight=0.25)[1])


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("width", [np.int32, np.int64])
def test_segments(tmp_path: Path, width: type) -> None:
    rows, ids = normal(500, 3, 8), RNG.integers(0, 41, 500).astype(width)
    np.save(tmp_path / "rows.npy", rows)
    np.save(tmp_path / "ids.npy", ids)
    run("segment_sum", "--input", tmp_path / "rows.npy", "--ids", tmp_path / "ids.npy",
        "--num-segments", 41, "--out", tmp_path / "sums.npy")  # fmt: skip
    sums = pb.segment_sum(rows, ids, 41)
    assert same(np.load(tmp_path / "sums.npy"), sums)
    run("segment_sum_backward", "--d-output", tmp_path / "sums.npy", "--ids", tmp_path / "ids.npy",
        "--out", tmp_path / "back.npy")  # fmt: skip
    assert same(np.load(tmp_path / "back.npy"), pb.segment_sum_backward(sums, ids))


def test_empty_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "dy.npy", np.empty((0, 5), np.float32))
    run("cumsum_backward", "--dy", tmp_path / "dy.npy", "--out", tmp_path / "dx.npy")
    assert np.load(tmp_path / "dx.npy").shape == (0, 5)


def test_arrays_without_dimensions(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.float32(3))
    run("sum", "--x", tmp_path / "x.npy", "--axis", "all", "--out", tmp_path / "y.npy")
    assert np.load(tmp_path / "y.npy") == 3


def test_ids_in_an_archive(tmp_path: Path) -> None:
    rows, ids = normal(9, 4), RNG.integers(0, 3, 9)
    np.savez(tmp_path / "in.npz", input=rows, ids=ids)
    run("segment_sum", "--input", tmp_path / "in.npz", "--ids", tmp_path / "in.npz",
        "--num-segments", 3, "--out", tmp_path / "y.npy")  # fmt: skip
    assert same(np.load(tmp_path / "y.npy"), pb.segment_sum(rows, ids, 3))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", ["softmax_backward", "log_softmax_backward"])
def test_columns_narrower_than_a_page_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str, axis: int
) -> None:
    monkeypatch.setattr(running.Run, "_room_beside", lambda *_: 1 << 15)
    dy, y = normal(150, 40, 9), normal(150, 40, 9)
    np.save(tmp_path / "dy.npy", dy)
    np.save(tmp_path / "y.npy", np.asfortranarray(y))
    said = run(op, "--dy", tmp_path / "dy.npy", "--y", tmp_path / "y.npy", "--axis", axis,
               "--memory", "8GB", "--out", tmp_path / "dx.npy")  # fmt: skip
    assert int(re.search(r"(\d+) blocks", said)[1]) > 20
    assert same(np.load(tmp_path / "dx.npy"), getattr(pb, op)(dy, y=y, axis=axis))


class TestLongRows:
    """Rows that do not fit are cut along the axis; states go on from piece to piece."""

    @pytest.fixture(autouse=True)
    def narrow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Room for a few kilobytes, whatever the process takes."""
        monkeypatch.setattr(running.Run, "_room_beside", lambda *_: 1 << 13)

    def check(
        self, folder: Path, op: str, shape: tuple[int, ...], order: str, **how: object
    ) -> None:
        case = Case.of(find_op(op), "f32", shape, **how)
        operands = make_operands(case)
        told: list[object] = []
        for name, array in operands.items():
            np.save(folder / f"{name}.npy", np.asarray(array, order=order))
            told += [f"--{name}", folder / f"{name}.npy"]
        for name, value in how.items():
            text = ",".join(map(str, value)) if isinstance(value, tuple) else value
            told += [f"--{name}"] if value is True else [f"--{name}", text]
        (out,) = case.outputs
        said = run(op, *told, "--memory", "8GB", "--out", folder / "out.npy")
        assert int(re.search(r"(\d+) block", said)[1]) <= max(1, shape[0])
        found = np.load(folder / "out.npy")
        wanted = case.results(operands)[out]
        assert same(found.reshape(wanted.shape), wanted)

    @pytest.mark.parametrize(
        "op", ["cumprod_backward", "logcumsumexp_backward", "linear_recurrence", "cumsum"]
    )
    def test_scans(self, tmp_path: Path, op: str) -> None:
        self.check(tmp_path, op, (3, 1400), "C", axis=1)

    def test_a_softmax(self, tmp_path: Path) -> None:
        self.check(tmp_path, "softmax", (3, 9000), "C", axis=1)

    def test_several_axes(self, tmp_path: Path) -> None:
        self.check(tmp_path, "sum", (130, 90), "C", axis=(0, 1))

    def test_fortran_order_along_the_outer_axis(self, tmp_path: Path) -> None:
        self.check(tmp_path, "cumsum", (3, 1400), "F", axis=1)

    def test_boxes_cover_positions_in_order(self) -> None:
        """Boxes of several axes cover every position once, in order."""
        flat = np.arange(60).reshape(3, 4, 5)
        for start, stop in ((0, 60), (7, 8), (3, 41), (19, 20), (20, 40), (0, 0)):
            found = [flat[box].ravel() for box in boxes((3, 4, 5), start, stop)]
            assert [*np.concatenate([[], *found])] == [*range(start, stop)]


class TestSegmentBlocks:
    """Tables that do not fit: blocks of segments, and rows in the order of their ids."""

    @pytest.fixture
    def narrow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Room for a few kilobytes, whatever the process takes."""
        monkeypatch.setattr(running.Run, "_room_beside", lambda *_: 1 << 14)
        monkeypatch.setattr(segments, "CHUNK", 100)

    def files(self, folder: Path, dtype: object, ids: np.ndarray) -> np.ndarray:
        rows = normal(900, 3, 8, dtype=dtype)
        rows[::70] = np.nan
        np.save(folder / "rows.npy", rows)
        np.save(folder / "ids.npy", ids)
        return rows

    @pytest.mark.usefixtures("narrow")
    @pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
    @pytest.mark.parametrize("crowded", [False, True])
    def test_sum(self, tmp_path: Path, dtype: object, crowded: bool) -> None:
        ids = RNG.integers(-2, 64, 900).astype(np.int32)
        if crowded:  # a segment with more rows than there is room for
            ids[::2] = 17
        rows = self.files(tmp_path, dtype, ids)
        said = run("segment_sum", "--input", tmp_path / "rows.npy", "--ids", tmp_path / "ids.npy",
                   "--num-segments", 60, "--out-of-range", "drop", "--memory", "8GB", "--out",
                   tmp_path / "sums.npy")  # fmt: skip
        assert int(re.search(r"(\d+) blocks", said)[1]) > 3
        wanted = pb.segment_sum(rows, ids, 60, out_of_range="drop")
        assert same(np.load(tmp_path / "sums.npy"), wanted)

    def test_sum_is_resumed(
        self, tmp_path: Path, narrow: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = RNG.integers(0, 60, 900)
        rows = self.files(tmp_path, np.float32, ids)
        made = Job(
            find_op("segment_sum"),
            {"input": tmp_path / "rows.npy", "segment_ids": tmp_path / "ids.npy"},
            {"output": tmp_path / "sums.npy"},
            {"num_segments": 60},
            memory=2 * 10**9,
        )

        def stop(done: int, total: int) -> None:
            if done > total // 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            made.run(progress=stop)
        monkeypatch.setattr(running.Run, "_room_beside", lambda *_: 1 << 15)
        assert made.run(resume=True).resumed > 1
        assert same(np.load(tmp_path / "sums.npy"), pb.segment_sum(rows, ids, 60))

    @pytest.mark.usefixtures("narrow")
    def test_gather(self, tmp_path: Path) -> None:
        ids = RNG.integers(-2, 920, 700)
        table = self.files(tmp_path, np.float32, ids)
        said = run("segment_sum_backward", "--d-output", tmp_path / "rows.npy", "--ids",
                   tmp_path / "ids.npy", "--out-of-range", "drop", "--memory", "8GB", "--out",
                   tmp_path / "dx.npy")  # fmt: skip
        assert int(re.search(r"(\d+) blocks", said)[1]) > 3
        wanted = pb.segment_sum_backward(table, ids, out_of_range="drop")
        assert same(np.load(tmp_path / "dx.npy"), wanted)


def test_blocks_cover_the_shape_once() -> None:
    case = Case.of(find_op("softmax_backward"), "f32", (37, 11, 50), axis=1)
    made = cut(case, np.empty(case.shape, np.float32).strides, 12.0, 4000)
    seen = np.zeros(case.shape, int)
    for where in made.slices():
        seen[where] += 1
        assert seen[where].shape[1] == 11
    assert (seen == 1).all()
    assert made.count > 10


def test_archive_of_large_members_is_stored(tmp_path: Path) -> None:
    np.save(tmp_path / "dy.npy", normal(10, 10))
    run("cumsum_backward", "--dy", tmp_path / "dy.npy", "--out", tmp_path / "dx.npz")
    with zipfile.ZipFile(tmp_path / "dx.npz") as archive:
        assert archive.namelist() == ["dx.npy"]
