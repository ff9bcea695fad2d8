"""``pullback run``: input that cannot be run, in one line and with nothing left behind."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from pullback.tools.files import running
from run_files import normal, refused


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
        assert "x: cumsum_backward reads dy" in line
        assert line.endswith("only")

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

    @pytest.mark.parametrize("name", ["o.parquet", "o.h5", "o.npy.gz"])
    def test_output_of_a_format_that_is_not_written(self, folder: Path, name: str) -> None:
        line = refused(folder, "cumsum", "--x", folder / "x.npy", "--out", folder / name)
        assert f"--out: {Path(name).suffix} files are not written; use .npy, .npz or .zarr" in line
        line = refused(folder, "lerp_backward", "--dy", folder / "x.npy", "--weight", "0.5",
                       "--da", folder / name)  # fmt: skip
        assert line.startswith("pullback: --da: ")

    @pytest.mark.parametrize("name", ["", ".", "/"])
    def test_output_without_a_name(self, folder: Path, name: str) -> None:
        line = refused(folder, "cumsum", "--x", folder / "dy.npy", "--out", name)
        assert line == "pullback: --out: expected the name of a file, got a folder"

    def test_unknown_op(self, folder: Path) -> None:
        line = refused(
            folder, "sofmax_backward", "--dy", folder / "dy.npy", "--out", folder / "o.npy"
        )
        assert "softmax_backward" in line

    def test_axis(self, folder: Path) -> None:
        line = refused(folder, "cumsum", "--x", folder / "dy.npy", "--axis", 5, "--out",
                       folder / "o.npy")  # fmt: skip
        assert "axis" in line

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
        assert "ties: expected one of first, last, got 'split'" in line

    def test_shape_and_dtype_that_the_file_has_not(self, folder: Path) -> None:
        files = ("--x", folder / "dy.npy", "--out", folder / "o.npy")
        assert "(6, 8)" in refused(folder, "cumsum", *files, "--shape", "3x4")
        assert "f64 as --dtype says" in refused(folder, "cumsum", *files, "--dtype", "float64")

    @pytest.mark.parametrize("axis", ["0,1", "all"])
    def test_several_axes_for_a_scan(self, folder: Path, axis: str) -> None:
        line = refused(folder, "cumsum", "--x", folder / "dy.npy", "--axis", axis, "--out",
                       folder / "o.npy")  # fmt: skip
        assert "axis: expected an integer" in line

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

    @pytest.mark.parametrize("size", ["9" * 400, "9e9" + "9" * 50, "8EiB", "9999999999GiB"])
    def test_size_that_no_machine_has(self, folder: Path, size: str) -> None:
        line = refused(folder, "cumsum", "--x", folder / "dy.npy", "--out", folder / "o.npy",
                       "--memory", size)  # fmt: skip
        assert "--memory" in line
        assert len(line) < 200

    @pytest.mark.parametrize(
        "option",
        [
            ("--shape", "1e200x1e200"), ("--shape", "9" * 400), ("--axis", "9" * 400),
            ("--axis", "9" * 5000),
        ],
    )  # fmt: skip
    def test_numbers_beyond_all_bounds(self, folder: Path, option: tuple[str, str]) -> None:
        files = ("--x", folder / "dy.npy", "--out", folder / "o.npy")
        refused(folder, "cumsum", *files, *option)
        (folder / "x.bin").write_bytes(bytes(64))
        raw = ("--x", folder / "x.bin", "--dtype", "f32", "--out", folder / "o.npy")
        refused(folder, "cumsum", *raw, *option)

    @pytest.mark.parametrize("count", ["9" * 400, "9" * 17])
    def test_segments_beyond_all_bounds(self, folder: Path, count: str) -> None:
        np.save(folder / "rows.npy", normal(3, 4))
        refused(folder, "segment_sum", "--input", folder / "rows.npy", "--ids", folder / "ids.npy",
                "--num-segments", count, "--out", folder / "o.npy")  # fmt: skip


def npy(header: str, data: bytes = bytes(64), version: bytes = b"\x01\x00") -> bytes:
    """A .npy file with a header of one's own."""
    width = 2 if version == b"\x01\x00" else 4
    return b"\x93NUMPY" + version + len(header).to_bytes(width, "little") + header.encode() + data


def fields(shape: str, dtype: str = "'<f4'") -> str:
    return f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}\n"


class TestLyingHeaders:
    @pytest.mark.parametrize(
        ("made", "said"),
        [
            (npy(fields("(1000,)")), "shorter than its header says"),
            (npy(fields("(17,)")), "shorter than its header says"),
            (npy(fields("(-4, 4)")), "expected lengths from 0 on, got (-4, 4)"),
            (npy(fields("(-4, -4)")), "expected lengths from 0 on, got (-4, -4)"),
            (npy(fields("(True, 16)")), "expected lengths from 0 on"),
            (npy(fields("(2**70,)")), "not a .npy file"),
            (npy(fields(f"({2**70},)")), "larger than any file"),
            (npy(fields(f"({2**32}, {2**32}, 4)")), "larger than any file"),
            (npy(fields(f"({2**62}, {2**62}, 0)"), b""), "x.npy"),
            (npy(fields("(" + "1," * 100 + ")")), "x.npy"),
            (npy(fields("('4',)")), "not a .npy file"),
            (npy(fields("4")), "not a .npy file"),
            (npy(fields("(2, 4)", "'|O'")), "got object"),
            (npy(fields("(2,)", "[('a', '<f4'), ('b', '<f4')]")), "got named fields"),
            (npy(fields("(2,)", "[('a', '<i2')]")), "got named fields"),
            (npy(fields("(2, 4)", "'<f99999'")), "not a .npy file"),
            (npy(fields("(2, 4)", "'<U8'")), "got <U8"),
            (npy("(" * 5000), "not a .npy file"),
            (npy("{}"), "not a .npy file"),
            (npy(fields("(4, 4)"))[:40], "not a .npy file"),
            (npy(fields("(4, 4)"), version=b"\x03\x00"), "version 3.0"),
            (npy(fields("(4, 4)"), version=b"\x09\x07"), "not a .npy file"),
            (b"\x93NUMPY", "not a .npy file"),
            (b"", "not a .npy file"),
        ],
    )  # fmt: skip
    def test_npy(self, tmp_path: Path, made: bytes, said: str) -> None:
        (tmp_path / "x.npy").write_bytes(made)
        line = refused(tmp_path, "cumsum", "--x", tmp_path / "x.npy", "--out", tmp_path / "y.npy")
        assert said in line
        assert len(line) < 500

    def test_pickled_objects_are_never_loaded(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.array([1, "a", None], object), allow_pickle=True)
        line = refused(tmp_path, "cumsum", "--x", tmp_path / "x.npy", "--out", tmp_path / "y.npy")
        assert "got object" in line

    def test_npz_with_a_damaged_member(self, tmp_path: Path) -> None:
        np.savez_compressed(tmp_path / "x.npz", x=normal(40, 40))
        held = bytearray((tmp_path / "x.npz").read_bytes())
        held[200:300] = bytes(100)
        (tmp_path / "x.npz").write_bytes(held)
        line = refused(tmp_path, "cumsum", "--x", tmp_path / "x.npz", "--out", tmp_path / "y.npy")
        assert "not a .npz file" in line

    def test_pipe(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "x.npy")
        line = refused(tmp_path, "cumsum", "--x", tmp_path / "x.npy", "--out", tmp_path / "y.npy")
        assert "is not a file" in line
