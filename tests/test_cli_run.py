"""``pullback run``: the bytes of the in-memory function, and nothing left behind."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import pullback as pb
from pullback.bench import Case, find_op
from pullback.cli import main
from pullback.outofcore import Job, Options, blocks, running, segments
from pullback.outofcore.blocks import cut
from scripts import SOURCE

RNG = np.random.default_rng(3)


def normal(*shape: int, dtype: object = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def run(*arguments: object) -> str:
    result = CliRunner().invoke(main, ["run", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def refused(folder: Path, *arguments: object) -> str:
    """The one line of a run that exits with 2 and leaves the folder as it was."""
    before = sorted(p.name for p in folder.iterdir())
    result = CliRunner().invoke(main, ["run", *map(str, arguments)])
    assert result.exit_code == 2, (result.exit_code, result.output)
    assert sorted(p.name for p in folder.iterdir()) == before
    lines = result.output.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype.itemsize == b.dtype.itemsize and (
        np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
    )  # fmt: skip


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


def test_the_output_may_replace_the_input(tmp_path: Path) -> None:
    dy = normal(20, 30)
    np.save(tmp_path / "dy.npy", dy)
    run("cumsum_backward", "--dy", tmp_path / "dy.npy", "--out", tmp_path / "dy.npy")
    assert same(np.load(tmp_path / "dy.npy"), pb.cumsum_backward(dy))


class TestRefusals:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        np.save(tmp_path / "dy.npy", normal(6, 8))
        np.save(tmp_path / "short.npy", normal(6, 7))
        np.save(tmp_path / "double.npy", normal(6, 8, dtype=np.float64))
        np.save(tmp_path / "words.npy", np.arange(6))
        np.save(tmp_path / "ids.npy", np.array([0, 1, 99]))
        (tmp_path / "junk.npy").write_bytes(b"not an array")
        (tmp_path / "junk.npz").write_bytes(b"not an archive")
        return tmp_path

    def test_missing_file(self, folder: Path) -> None:
        out = ("--out", folder / "dx.npy")
        line = refused(folder, "cumsum_backward", "--dy", folder / "none.npy", *out)
        assert "none.npy" in line
        assert "no such file" in line

    def test_missing_operand(self, folder: Path) -> None:
        line = refused(
            folder, "softmax_backward", "--dy", folder / "dy.npy", "--out", folder / "o.npy"
        )
        assert line.startswith("pullback: y: required")

    def test_operand_that_is_not_read(self, folder: Path) -> None:
        dy = folder / "dy.npy"
        line = refused(folder, "cumsum_backward", "--dy", dy, "--x", dy, "--out", folder / "o.npy")
        assert "reads dy only" in line

    def test_shape(self, folder: Path) -> None:
        line = refused(folder, "softmax_backward", "--dy", folder / "dy.npy", "--y",
                       folder / "short.npy", "--out", folder / "o.npy")  # fmt: skip
        assert "(6, 8)" in line
        assert "(6, 7)" in line

    def test_dtype_mismatch(self, folder: Path) -> None:
        line = refused(folder, "softmax_backward", "--dy", folder / "dy.npy", "--y",
                       folder / "double.npy", "--out", folder / "o.npy")  # fmt: skip
        assert "f32" in line
        assert "f64" in line

    def test_dtype_that_is_no_float(self, folder: Path) -> None:
        line = refused(folder, "cumsum", "--x", folder / "words.npy", "--out", folder / "o.npy")
        assert line == "pullback: x: expected one of f32, f64, f16, bf16, got i64"

    @pytest.mark.parametrize("name", ["junk.npy", "junk.npz"])
    def test_file_that_holds_no_array(self, folder: Path, name: str) -> None:
        assert name in refused(folder, "cumsum", "--x", folder / name, "--out", folder / "o.npy")

    def test_raw_file_of_unknown_dtype(self, folder: Path) -> None:
        (folder / "x.bin").write_bytes(bytes(64))
        line = refused(folder, "cumsum", "--x", folder / "x.bin", "--out", folder / "o.npy")
        assert "--dtype" in line

    def test_unknown_op(self, folder: Path) -> None:
        line = refused(
            folder, "sofmax_backward", "--dy", folder / "dy.npy", "--out", folder / "o.npy"
        )
        assert "softmax_backward" in line

    def test_axis(self, folder: Path) -> None:
        line = refused(folder, "cumsum", "--x", folder / "dy.npy", "--axis", 5, "--out",
                       folder / "o.npy")  # fmt: skip
        assert "axis" in line

    def test_folder_that_is_not_there(self, folder: Path) -> None:
        line = refused(folder, "cumsum", "--x", folder / "dy.npy", "--out", folder / "no" / "o.npy")
        assert "does not exist" in line

    @pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="no read-only folder to write to")
    def test_read_only_target(self, folder: Path) -> None:
        line = refused(folder, "cumsum", "--x", folder / "dy.npy", "--out", "/sys/kernel/o.npy")
        assert line == "pullback: /sys/kernel/o.npy: Permission denied"

    def test_target_that_may_not_be_written(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (folder / "o.npy").write_bytes(b"precious")
        monkeypatch.setattr(os, "access", lambda path, mode, **_: mode != os.W_OK)
        line = refused(folder, "cumsum", "--x", folder / "dy.npy", "--out", folder / "o.npy")
        assert line == f"pullback: {folder / 'o.npy'}: is not writable"
        assert (folder / "o.npy").read_bytes() == b"precious"

    @pytest.mark.parametrize(
        "option",
        [
            ("--weight", 3), ("--ties", "first"), ("--reverse",), ("--keepdims",), ("--sorted",),
            ("--num-segments", 3), ("--correction", 0), ("--out-of-range", "drop"),
        ],
    )  # fmt: skip
    def test_parameter_of_another_op(self, folder: Path, option: tuple[object, ...]) -> None:
        line = refused(
            folder, "softmax", "--x", folder / "dy.npy", "--out", folder / "o.npy", *option
        )
        assert line.endswith(": softmax has no such parameter")

    def test_ties_of_another_op(self, folder: Path) -> None:
        dy = folder / "dy.npy"
        line = refused(folder, "cummax_backward", "--dy", dy, "--x", dy, "--ties", "split", "--out",
                       folder / "o.npy")  # fmt: skip
        assert "ties: expected one of first, last for cummax_backward, got 'split'" in line

    def test_shape_and_dtype_that_the_file_has_not(self, folder: Path) -> None:
        files = ("--x", folder / "dy.npy", "--out", folder / "o.npy")
        assert "(6, 8)" in refused(folder, "cumsum", *files, "--shape", "3x4")
        assert "f64 as --dtype says" in refused(folder, "cumsum", *files, "--dtype", "float64")

    @pytest.mark.parametrize("axis", ["0,1", "all"])
    def test_several_axes_for_a_scan(self, folder: Path, axis: str) -> None:
        line = refused(folder, "cumsum", "--x", folder / "dy.npy", "--axis", axis, "--out",
                       folder / "o.npy")  # fmt: skip
        assert "axis: expected one axis" in line

    def test_axis_that_is_none(self, folder: Path) -> None:
        line = refused(folder, "cumsum", "--x", folder / "dy.npy", "--axis", "last", "--out",
                       folder / "o.npy")  # fmt: skip
        assert "axis: expected" in line

    def test_both_results_into_the_same_file(self, folder: Path) -> None:
        line = refused(folder, "lerp_backward", "--dy", folder / "dy.npy", "--weight", 0.5,
                       "--da", folder / "o.npy", "--db", folder / "o.npy")  # fmt: skip
        assert "da and db: expected different files" in line

    def test_bytes_in_another_order(self, folder: Path) -> None:
        np.save(folder / "big.npy", normal(3, 4, dtype=">f4"))
        line = refused(folder, "cumsum", "--x", folder / "big.npy", "--out", folder / "o.npy")
        assert "float32 in another byte order" in line

    def test_file_that_was_cut_short(self, folder: Path) -> None:
        (folder / "cut.npy").write_bytes((folder / "dy.npy").read_bytes()[:200])
        line = refused(folder, "cumsum", "--x", folder / "cut.npy", "--out", folder / "o.npy")
        assert "shorter than its header says" in line

    def test_full_disk(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "posix_fallocate", full)
        line = refused(folder, "cumsum", "--x", folder / "dy.npy", "--out", folder / "o.npy")
        assert line == f"pullback: {folder / 'o.npy'}: No space left on device"

    def test_too_little_memory(self, folder: Path) -> None:
        line = refused(folder, "cumsum", "--x", folder / "dy.npy", "--out", folder / "o.npy",
                       "--memory", "20MB")  # fmt: skip
        assert "memory: expected at least" in line

    def test_size_that_is_none(self, folder: Path) -> None:
        line = refused(folder, "cumsum", "--x", folder / "dy.npy", "--out", folder / "o.npy",
                       "--memory", "lots")  # fmt: skip
        assert "2GB" in line

    def test_id_out_of_range_in_a_late_block(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(running, "LARGEST_BLOCK", 64)
        line = refused(folder, "segment_sum_backward", "--d-output", folder / "dy.npy", "--ids",
                       folder / "ids.npy", "--out", folder / "o.npy")  # fmt: skip
        assert "got 99 at row 2" in line

    def test_two_outputs_into_one_npy(self, folder: Path) -> None:
        line = refused(folder, "lerp_backward", "--dy", folder / "dy.npy", "--weight", 0.5, "--out",
                       folder / "o.npy")  # fmt: skip
        assert "--da" in line


class TestResume:
    def start(self, folder: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int) -> Job:
        """A job that is interrupted after some blocks."""
        monkeypatch.setattr(running, "LARGEST_BLOCK", 1 << 13)
        dy = normal(64, 256)
        np.save(folder / "dy.npy", dy)
        made = Job(
            find_op("cumsum_backward"),
            {"dy": folder / "dy.npy"},
            {"dx": folder / "dx.npy"},
            Options(),
        )
        calls = []

        def stop(done: int, total: int) -> None:
            calls.append(done)
            if len(calls) > stop_after:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt) as caught:
            made.run(progress=stop)
        said = "--resume does the rest" if stop_after else "nothing is left behind"
        assert said in str(caught.value)
        return made

    def test_continues_where_it_stopped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = self.start(tmp_path, monkeypatch, stop_after=5)
        left = {p.name for p in tmp_path.iterdir()}
        assert left == {"dy.npy", ".dx.npy.partial", ".dx.npy.resume"}
        done = json.loads((tmp_path / ".dx.npy.resume").read_text())["done"]
        assert done >= 4
        summary = made.run(resume=True)
        assert summary.resumed == done
        assert same(np.load(tmp_path / "dx.npy"), pb.cumsum_backward(np.load(tmp_path / "dy.npy")))
        assert {p.name for p in tmp_path.iterdir()} == {"dy.npy", "dx.npy"}

    def test_keeps_the_blocks_it_began_with(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = self.start(tmp_path, monkeypatch, stop_after=5)
        monkeypatch.setattr(running, "LARGEST_BLOCK", 1 << 14)  # as if more memory were free now
        assert made.run(resume=True).resumed >= 4
        assert same(np.load(tmp_path / "dx.npy"), pb.cumsum_backward(np.load(tmp_path / "dy.npy")))

    def test_leaves_nothing_when_nothing_was_finished(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.start(tmp_path, monkeypatch, stop_after=0)
        assert {p.name for p in tmp_path.iterdir()} == {"dy.npy"}

    def test_starts_anew_when_an_input_has_changed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = self.start(tmp_path, monkeypatch, stop_after=5)
        dy = normal(64, 256)
        np.save(tmp_path / "dy.npy", dy)
        os.utime(tmp_path / "dy.npy", ns=(1, 1))
        assert made.run(resume=True).resumed == 0
        assert same(np.load(tmp_path / "dx.npy"), pb.cumsum_backward(dy))

    def test_without_the_option_it_starts_anew(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = self.start(tmp_path, monkeypatch, stop_after=5)
        assert made.run().resumed == 0
        assert {p.name for p in tmp_path.iterdir()} == {"dy.npy", "dx.npy"}


def test_nothing_to_resume_is_said(tmp_path: Path) -> None:
    np.save(tmp_path / "dy.npy", normal(6, 8))
    said = run(
        "cumsum_backward", "--dy", tmp_path / "dy.npy", "--out", tmp_path / "dx.npy", "--resume"
    )
    assert "found nothing to resume" in said


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
               "--memory", "2GB", "--out", tmp_path / "dx.npy")  # fmt: skip
    assert int(re.search(r"(\d+) blocks", said)[1]) > 20
    assert same(np.load(tmp_path / "dx.npy"), getattr(pb, op)(dy, y=y, axis=axis))


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
                   "--num-segments", 60, "--out-of-range", "drop", "--memory", "2GB", "--out",
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
            Options(num_segments=60),
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
                   tmp_path / "ids.npy", "--out-of-range", "drop", "--memory", "2GB", "--out",
                   tmp_path / "dx.npy")  # fmt: skip
        assert int(re.search(r"(\d+) blocks", said)[1]) > 3
        wanted = pb.segment_sum_backward(table, ids, out_of_range="drop")
        assert same(np.load(tmp_path / "dx.npy"), wanted)


def test_blocks_cover_the_shape_once() -> None:
    case = Case(find_op("softmax_backward"), "f32", (37, 11, 50), 1)
    made = cut(case, np.empty(case.shape, np.float32).strides, 12.0, 4000)
    seen = np.zeros(case.shape, int)
    for where in made.slices():
        seen[where] += 1
        assert seen[where].shape[1] == 11
    assert (seen == 1).all()
    assert made.count > 10


MEMORY = 256_000_000
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE)}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a raw file three times as large as MEMORY."""
    folder = tmp_path_factory.mktemp("large")
    piece = np.random.default_rng(0).standard_normal(4096 * 1024).astype(np.float32)
    with open(folder / "dy.bin", "wb") as file:
        while file.tell() < 3 * MEMORY:
            piece[0] += 1
            file.write(piece)
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
class TestMemory:
    """A raw file three times as large as the memory the process may occupy."""

    def measured(self, folder: Path, shape: str, axis: int) -> tuple[str, int]:
        """What the command says, and the peak of its resident memory as the system saw it."""
        command = ["run", "cumsum_backward", "--dy", "dy.bin", "--dtype", "f32", "--shape", shape,
                   "--axis", str(axis), "--out", "dx.bin", "--force", "--memory", str(MEMORY)]  # fmt: skip
        code = (
            "import sys; from pullback.cli import main; "
            f"code = 0\ntry:\n main({command!r}, prog_name='pullback')\n"
            "except SystemExit as e:\n code = e.code\n"
            "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]); sys.exit(code)"
        )
        result = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        said, peak = result.stdout.splitlines()
        return said, int(peak) * 1024

    @pytest.mark.parametrize(("rows", "axis"), [(4096, 1), (4096, 0), (1, 1)])
    def test_peak_stays_below(self, large: Path, rows: int, axis: int) -> None:
        count = (large / "dy.bin").stat().st_size // 4
        said, peak = self.measured(large, f"{rows}x{count // rows}", axis)
        assert (large / "dy.bin").stat().st_size >= 3 * MEMORY
        assert peak < MEMORY, said
        assert ("1 block;" in said) == (rows == 1), said
        dy = np.memmap(large / "dy.bin", np.float32, "r", shape=(rows, count // rows))
        dx = np.memmap(large / "dx.bin", np.float32, "r", shape=dy.shape)
        wanted = pb.cumsum_backward(np.asarray(dy), axis=axis)
        for k in range(rows):
            assert np.array_equal(dx[k].view(np.uint32), wanted[k].view(np.uint32))


# The command line, with blocks that take long enough for an interrupt to find one.
SLOWED = """
import time
from pullback.cli import main
from pullback.outofcore.running import Run

run_block = Run._run_block

def slowly(self, *args, **options):
    run_block(self, *args, **options)
    time.sleep(20)

Run._run_block = slowly
main(prog_name="pullback")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_interrupt_from_the_keyboard(tmp_path: Path) -> None:
    dy = np.lib.format.open_memmap(tmp_path / "dy.npy", "w+", np.float32, (2048, 32768))
    dy[:] = 1
    del dy
    arguments = ["run", "cumsum_backward", "--dy", "dy.npy", "--out", "dx.npy", "--memory", "300MB"]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOWED, *arguments],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / ".dx.npy.partial").exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said.strip().splitlines()[-1].startswith("pullback: interrupted")
    assert not (tmp_path / "dx.npy").exists()
    again = subprocess.run(
        [sys.executable, "-m", "pullback", *arguments, "--resume"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        check=False,
    )
    assert again.returncode == 0
    assert (np.load(tmp_path / "dx.npy", mmap_mode="r")[:, 0] == 32768).all()
    assert {p.name for p in tmp_path.iterdir()} == {"dy.npy", "dx.npy"}


def test_archive_of_large_members_is_stored(tmp_path: Path) -> None:
    np.save(tmp_path / "dy.npy", normal(10, 10))
    run("cumsum_backward", "--dy", tmp_path / "dy.npy", "--out", tmp_path / "dx.npz")
    with zipfile.ZipFile(tmp_path / "dx.npz") as archive:
        assert archive.namelist() == ["dx.npy"]
