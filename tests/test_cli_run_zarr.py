"""``pullback run`` on zarr stores, and on the workers of a cluster."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import pullback as pb
from pullback.tools.cli import main
from pullback.tools.files import running, zarrs
from run_files import contents, normal, refused, run, same
from scripts import SOURCE
from two_workers import two_workers

zarr = pytest.importorskip("zarr")
RNG = np.random.default_rng(5)


def save(path: Path, array: np.ndarray, chunks: tuple[int, ...], form: int = 3, **how: object):
    made = zarr.create_array(
        store=str(path),
        shape=array.shape,
        dtype=array.dtype,
        chunks=chunks,
        zarr_format=form,
        **how,
    )
    made[...] = array
    return made


def load(path: Path) -> np.ndarray:
    return np.asarray(zarr.open_array(store=str(path), mode="r")[...])


@pytest.mark.parametrize("form", [2, 3])
def test_both_formats_in_and_out(tmp_path: Path, form: int) -> None:
    x = normal(40, 70)
    save(tmp_path / "x.zarr", x, (16, 32), form)
    run("softmax", "--x", tmp_path / "x.zarr", "--axis", 1, "--out", tmp_path / "y.zarr")
    found = zarr.open_array(store=str(tmp_path / "y.zarr"), mode="r")
    assert (found.metadata.zarr_format, found.chunks) == (form, (16, 32))
    assert same(np.asarray(found[...]), pb.softmax(x, axis=1))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.zarr", "y.zarr"]


def test_from_and_to_other_files(tmp_path: Path) -> None:
    x = normal(40, 70)
    np.save(tmp_path / "x.npy", x)
    run("softmax", "--x", tmp_path / "x.npy", "--out", tmp_path / "y.zarr", "--zarr-format", 2)
    assert zarr.open_array(store=str(tmp_path / "y.zarr")).metadata.zarr_format == 2
    assert same(load(tmp_path / "y.zarr"), pb.softmax(x, axis=1))
    run("sum", "--x", tmp_path / "y.zarr", "--axis", 1, "--out", tmp_path / "s.npy")
    assert same(np.load(tmp_path / "s.npy"), pb.sum(pb.softmax(x, axis=1), axis=1))


def test_shards_groups_and_bfloat16(tmp_path: Path) -> None:
    x = normal(40, 70).astype(ml_dtypes.bfloat16)
    zarr.create_group(store=str(tmp_path / "g.zarr"))
    np.save(tmp_path / "x.npy", x)
    run("softmax", "--x", tmp_path / "x.npy", "--out", tmp_path / "g.zarr" / "x")
    run("softmax", "--x", tmp_path / "g.zarr", "--out", tmp_path / "y.zarr")
    assert same(load(tmp_path / "y.zarr"), pb.softmax(pb.softmax(x)))
    f = normal(40, 70)
    save(tmp_path / "f.zarr", f, (5, 7), shards=(20, 70))
    run("softmax", "--x", tmp_path / "f.zarr", "--out", tmp_path / "z.zarr")
    assert zarr.open_array(store=str(tmp_path / "z.zarr")).shards == (20, 70)
    assert same(load(tmp_path / "z.zarr"), pb.softmax(f))


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_that_do_not_fit_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, axis: int
) -> None:
    monkeypatch.setattr(running.Run, "_room_beside", lambda *_: 1 << 13)
    monkeypatch.setattr(zarrs, "TOGETHER", 1 << 10)
    x = normal(1400, 3) if axis == 0 else normal(3, 1400)
    save(tmp_path / "x.zarr", x, (100, 2) if axis == 0 else (2, 100))
    run("cumsum", "--x", tmp_path / "x.zarr", "--axis", axis, "--memory", "8GB",
        "--out", tmp_path / "y.zarr")  # fmt: skip
    assert same(load(tmp_path / "y.zarr"), pb.cumsum(x, axis))


def test_tables_of_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LARGEST_BLOCK", 1 << 12)
    rows, ids = normal(500, 3, 8), RNG.integers(0, 41, 500)
    save(tmp_path / "rows.zarr", rows, (90, 2, 8))
    save(tmp_path / "ids.zarr", ids, (100,))
    run("segment_sum", "--input", tmp_path / "rows.zarr", "--ids", tmp_path / "ids.zarr",
        "--num-segments", 41, "--out", tmp_path / "sums.zarr")  # fmt: skip
    assert same(load(tmp_path / "sums.zarr"), pb.segment_sum(rows, ids, 41))


def test_places_of_parts() -> None:
    """Parts of an array in another shape are found where they lie, also across its dimensions."""
    memory = zarr.storage.MemoryStore()
    array = np.arange(4 * 5 * 6, dtype=np.float32).reshape(4, 5, 6)
    store = zarr.create_array(store=memory, shape=array.shape, dtype="f4", chunks=(3, 2, 4))
    store[...] = array
    held = zarrs._stored(zarrs.ZarrFolder(Path(), "x"), store, np.dtype("f4"))
    flat, table, shown = held.array.reshape(-1), held.array.reshape(4, 30), array.reshape(4, 30)
    for part, wanted in (
        (held.array[1:3, :, 2:5], array[1:3, :, 2:5]),
        (held.array[2, 3:5].T, array[2, 3:5].T),
        (flat[7:93], array.reshape(-1)[7:93]),
        (table[1:4, 5:23], shown[1:4, 5:23]),
        (table[2:3, 29:30], shown[2:3, 29:30]),
    ):
        buffer = np.empty_like(wanted, order="K")
        held.load(part, buffer)
        assert same(buffer, wanted)


def test_what_is_refused(tmp_path: Path) -> None:
    x = normal(4, 6)
    save(tmp_path / "x.zarr", x, (2, 3))
    (tmp_path / "y.zarr").mkdir()
    told = refused(tmp_path, "softmax", "--x", tmp_path / "x.zarr", "--out", tmp_path / "y.zarr")
    assert "is a folder that holds no zarr array" in told
    told = refused(tmp_path, "softmax", "--x", tmp_path / "y.zarr", "--out", tmp_path / "z.zarr")
    assert told.endswith("holds no zarr array")
    told = refused(tmp_path, "softmax", "--x", tmp_path / "x.zarr", "--out", tmp_path / "x.zarr")
    assert "is the input x" in told
    (tmp_path / "x.zarr" / "zarr.json").write_text("{")
    told = refused(tmp_path, "softmax", "--x", tmp_path / "x.zarr", "--out", tmp_path / "z.zarr")
    assert "not a zarr array" in told


def test_an_array_that_exists_is_replaced_with_force_only(tmp_path: Path) -> None:
    x = normal(4, 6)
    save(tmp_path / "x.zarr", x, (2, 3))
    save(tmp_path / "y.zarr", x, (4, 6))
    told = refused(tmp_path, "softmax", "--x", tmp_path / "x.zarr", "--out", tmp_path / "y.zarr")
    assert "exists already; --force replaces it" in told
    run("softmax", "--x", tmp_path / "x.zarr", "--out", tmp_path / "y.zarr", "--force")
    assert same(load(tmp_path / "y.zarr"), pb.softmax(x))
    assert sorted(contents(tmp_path)) == ["x.zarr", "y.zarr"]


def test_a_missing_library_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "x.zarr", normal(4, 6), (2, 3))
    monkeypatch.setitem(sys.modules, "zarr", None)
    told = refused(tmp_path, "softmax", "--x", tmp_path / "x.zarr", "--out", tmp_path / "y.npy")
    assert "pip install zarr" in told


def test_an_interrupted_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LARGEST_BLOCK", 1 << 9)
    x = normal(40, 64)
    save(tmp_path / "x.zarr", x, (4, 64))
    told = ["softmax", "--x", tmp_path / "x.zarr", "--out", tmp_path / "y.zarr"]
    saves, calls = zarrs.StoredZarr.save, []

    def interrupt(self: zarrs.StoredZarr, *what: object) -> None:
        calls.append(self)
        if len(calls) == 4:
            raise KeyboardInterrupt
        saves(self, *what)

    monkeypatch.setattr(zarrs.StoredZarr, "save", interrupt)
    result = CliRunner().invoke(main, ["run", *map(str, told)])
    assert result.exit_code == 130
    assert "3 of " in result.output
    assert not (tmp_path / "y.zarr").exists()
    assert "3 done earlier" in run(*told, "--resume")
    assert same(load(tmp_path / "y.zarr"), pb.softmax(x))
    assert sorted(contents(tmp_path)) == ["x.zarr", "y.zarr"]


def test_a_chunk_that_changes_during_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "x.zarr", normal(4, 6), (2, 3))
    loads = zarrs.StoredZarr.load

    def change(self: zarrs.StoredZarr, *what: object) -> None:
        loads(self, *what)
        if self.file.name.startswith("x"):
            os.utime(self.file.path / "c" / "0" / "0", ns=(1, 1))

    monkeypatch.setattr(zarrs.StoredZarr, "load", change)
    told = ["run", "softmax", "--x", tmp_path / "x.zarr", "--out", tmp_path / "y.zarr"]
    result = CliRunner().invoke(main, [*map(str, told)])
    assert result.exit_code == 2
    assert "x.zarr: was changed during the run" in result.output
    assert not (tmp_path / "y.zarr").exists()


# A run that is killed when it has written two of three chunks.
KILLED = """
    import os, signal, sys
    from pathlib import Path
    from pullback.tools.bench import find_op
    from pullback.tools.files import Job, cluster, partial

    cluster.TASK_BYTES, partial.PERIOD = 1 << 12, 0.0
    left = iter(range(2))

    def kill(done, total):
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    if __name__ == "__main__":
        x, y = map(Path, sys.argv[1:])
        how = {"axis": 1, "reverse": True}
        Job(find_op("cumsum"), {"x": x}, {"y": y}, how, workers=2).run(progress=kill)
"""


# Workers that take their time, so that there is something left to do when one is killed.
SLOW = """
    import time
    from pullback.tools.files import shares

    def slow_write(*what, write=shares.write):  # may be loaded twice
        time.sleep(0.05)
        return write(*what)

    shares.write = slow_write
"""

# The command, which kills a worker of the cluster when it notes for the third time how far it is.
KILLS = """
    import os, signal, sys
    from pullback.tools.cli import main
    from pullback.tools.files import cluster, partial

    cluster.TASK_BYTES = 1 << 12
    save, calls = partial.Note.save, []

    def kill_and_save(*what, **how):
        calls.append(what)
        if len(calls) == 3:
            os.kill(int(sys.argv[1]), signal.SIGKILL)
        return save(*what, **how)

    partial.Note.save = kill_and_save
    main(["run", *sys.argv[2:]])
"""


class TestWorkers:
    """The same jobs on two processes that are started for them."""

    pytest.importorskip("distributed")

    def test_a_scan_and_a_softmax_along_a_cut_axis(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pullback.tools.files.cluster.TASK_BYTES", 1 << 12)
        x = normal(3, 1400)
        np.save(tmp_path / "x.npy", np.asfortranarray(x))
        monkeypatch.chdir(tmp_path)  # names need not be absolute
        said = run("cumsum", "--x", "x.npy", "--axis", 1, "--reverse", "--workers", 2,
                   "--out", "y.zarr")  # fmt: skip
        assert int(re.search(r"(\d+) blocks", said)[1]) >= 3
        assert "peak memory of a worker" in said
        assert same(load(tmp_path / "y.zarr"), pb.cumsum(x, 1, reverse=True))

    def test_a_cluster_that_is_given(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Segments, columns beside each other in one file, and workers that cannot write."""
        import distributed

        monkeypatch.setattr("pullback.tools.files.cluster.TASK_BYTES", 1 << 12)
        monkeypatch.setattr("pullback.tools.files.blocks.NARROWEST", 64)
        rows, ids = normal(500, 3, 8), RNG.integers(0, 41, 500)
        np.save(tmp_path / "rows.npy", rows)
        np.save(tmp_path / "ids.npy", ids)
        x = normal(90, 40)
        save(tmp_path / "x.zarr", x, (30, 16))
        with two_workers() as cluster:
            where = ("--cluster", cluster.scheduler_address)
            run("segment_softmax", "--input", tmp_path / "rows.npy", "--ids", tmp_path / "ids.npy",
                "--num-segments", 41, "--out", tmp_path / "y.npy", *where)  # fmt: skip
            assert same(np.load(tmp_path / "y.npy"), pb.segment_softmax(rows, ids, 41))
            said = run("softmax", "--x", tmp_path / "x.zarr", "--axis", 0, "--out",
                       tmp_path / "s.npy", *where)  # fmt: skip
            assert int(re.search(r"(\d+) block", said)[1]) > 1
            assert same(np.load(tmp_path / "s.npy"), pb.softmax(x, axis=0))
            with distributed.Client(cluster) as client:
                client.run(limit_files)
            before = contents(tmp_path)
            again = ("softmax", "--x", tmp_path / "x.zarr", "--axis", 0, "--out",
                     tmp_path / "z.npy")  # fmt: skip
            result = CliRunner().invoke(main, ["run", *map(str, (*again, *where))])
            assert result.exit_code == 2, result.output
            assert "z.npy" in result.output
            assert "File too large" in result.output
            assert "does the rest" in result.output or contents(tmp_path) == before
        run(*again, "--workers", 2, "--resume")
        assert same(np.load(tmp_path / "z.npy"), pb.softmax(x, axis=0))
        assert contents(tmp_path).keys() == {*before, "z.npy"}

    def test_a_worker_of_a_cluster_that_is_killed(self, tmp_path: Path) -> None:
        """Its tasks are run again by others. One client in a process: the command has its own."""
        x = normal(3, 12_000)
        np.save(tmp_path / "x.npy", np.asfortranarray(x))
        script, slow = tmp_path / "kills.py", tmp_path / "slow.py"
        script.write_text(textwrap.dedent(KILLS))
        slow.write_text(textwrap.dedent(SLOW))
        with two_workers(preload=[str(slow)]) as cluster:
            victim = cluster.workers[0].pid
            line = ("cumsum", "--x", tmp_path / "x.npy", "--axis", 1, "--out", tmp_path / "y.npy",
                    "--cluster", cluster.scheduler_address)  # fmt: skip
            done = subprocess.run(
                [sys.executable, script, str(victim), *map(str, line)],
                env={**os.environ, "PYTHONPATH": str(SOURCE)},
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert cluster.workers[0].pid != victim
        assert done.returncode == 0, done.stderr
        assert int(re.search(r"(\d+) blocks", done.stdout)[1]) > 20
        assert same(np.load(tmp_path / "y.npy"), pb.cumsum(x, 1))
        assert contents(tmp_path).keys() == {"x.npy", "kills.py", "slow.py", "y.npy"}

    def test_a_run_that_was_killed_goes_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        x = normal(3, 1400)
        np.save(tmp_path / "x.npy", np.asfortranarray(x))
        out = tmp_path / "y.zarr"
        script = tmp_path / "killed.py"
        script.write_text(textwrap.dedent(KILLED))
        told = [sys.executable, script, tmp_path / "x.npy", out]
        variables = {**os.environ, "PYTHONPATH": str(SOURCE)}
        done = subprocess.run(told, env=variables, timeout=300, check=False)
        assert done.returncode == -signal.SIGKILL
        assert not out.exists()
        script.unlink()
        monkeypatch.setattr("pullback.tools.files.cluster.TASK_BYTES", 1 << 12)
        line = ("cumsum", "--x", tmp_path / "x.npy", "--axis", 1, "--out", out, "--workers", 2)
        told = CliRunner().invoke(main, ["run", *map(str, line), "--resume"])
        assert (told.exit_code, out.exists()) == (2, False)
        assert "--reverse is False, was True" in told.output
        said = run(*line, "--reverse", "--resume")
        assert re.search(r"3 blocks, 2 done earlier", said), said
        assert same(load(out), pb.cumsum(x, 1, reverse=True))
        assert contents(tmp_path).keys() == {"x.npy", "y.zarr"}

    def test_what_a_cluster_does_not_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pullback.tools.files.cluster.PATIENCE", 1)
        np.savez(tmp_path / "x.npz", x=normal(3, 4))
        np.save(tmp_path / "x.npy", normal(3, 4))
        out = ("--out", tmp_path / "y.npy")
        told = refused(tmp_path, "softmax", "--x", tmp_path / "x.npz", "--workers", 2, *out)
        assert "x.npz: workers cannot share an archive" in told
        told = refused(
            tmp_path, "softmax", "--x", tmp_path / "x.npy", "--cluster", "tcp://127.0.0.1:9", *out
        )
        assert "cluster: tcp://127.0.0.1:9" in told


def once(action: Callable[[], object]) -> Callable[[int, int], None]:
    """A progress that does something when the first chunk is done."""
    left = [action]

    def tell(done: int, total: int) -> None:
        if done and left:
            left.pop()()

    return tell


def limit_files() -> None:
    """Let this process write to files of 4 KB only: as a full disk, what follows is an error."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
