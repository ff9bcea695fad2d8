"""``pullback run``: which names an output may get, and who may write to one at a time."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pullback as pb
from pullback.errors import InvalidProblemError
from pullback.tools.bench import find_op
from pullback.tools.files import Job, running, targets
from run_files import contents, normal, refused, run, same


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "dy.npy", normal(6, 8))
    return tmp_path


def cumsum(folder: Path, out: object, *more: object) -> str:
    return refused(folder, "cumsum", "--x", folder / "dy.npy", "--out", out, *more)


class TestNames:
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
        line = refused(folder, "cumsum", "--x", folder / "dy.npy", "--out", folder / "o.npy",
                       "--force")  # fmt: skip
        assert line == f"pullback: {folder / 'o.npy'}: is not writable"
        assert (folder / "o.npy").read_bytes() == b"precious"

    def test_input(self, folder: Path) -> None:
        line = cumsum(folder, folder / "dy.npy", "--force")
        assert "dy.npy: is the input x" in line

    @pytest.mark.parametrize("link", [os.link, os.symlink])
    def test_input_under_another_name(self, folder: Path, link: object) -> None:
        link(folder / "dy.npy", folder / "same.npy")
        assert "is the input x" in cumsum(folder, folder / "same.npy", "--force")

    def test_input_by_another_path(self, folder: Path) -> None:
        (folder / "sub").mkdir()
        os.symlink(folder, folder / "loop")
        for path in (folder / "sub" / ".." / "dy.npy", folder / "loop" / "dy.npy"):
            assert "is the input x" in cumsum(folder, path, "--force")

    @pytest.mark.parametrize("kind", ["partial", "resume", "lock"])
    def test_input_where_unfinished_work_is_kept(self, folder: Path, kind: str) -> None:
        os.rename(folder / "dy.npy", folder / f".y.npy.{kind}")
        line = refused(folder, "cumsum", "--x", folder / f".y.npy.{kind}", "--dtype", "f32",
                       "--out", folder / "y.npy")  # fmt: skip
        assert "is where the unfinished" in line

    def test_output_where_another_is_kept(self, folder: Path) -> None:
        outputs = {"da": folder / "a.npy", "db": folder / ".a.npy.partial"}
        job = Job(find_op("lerp_backward"), {"dy": folder / "dy.npy"}, outputs, {"weight": 0.5})
        with pytest.raises(InvalidProblemError, match="is where the unfinished"):
            job.run()
        assert contents(folder).keys() == {"dy.npy"}

    def test_one_archive_by_two_names(self, folder: Path) -> None:
        os.symlink(folder, folder / "loop")
        line = refused(folder, "lerp_backward", "--dy", folder / "dy.npy", "--weight", 0.5, "--da",
                       folder / "o.npz", "--db", folder / "loop" / "o.npz")  # fmt: skip
        assert "expected different files" in line

    def test_device(self, folder: Path) -> None:
        assert "/dev/null: is a device" in cumsum(folder, "/dev/null", "--force")

    def test_pipe(self, folder: Path) -> None:
        os.mkfifo(folder / "pipe.npy")
        assert "is a pipe" in cumsum(folder, folder / "pipe.npy", "--force")

    def test_folder(self, folder: Path) -> None:
        (folder / "sub.npy").mkdir()
        assert "is a folder" in cumsum(folder, folder / "sub.npy", "--force")

    @pytest.mark.parametrize("there", [True, False])
    def test_symbolic_link(self, folder: Path, there: bool) -> None:
        if there:
            (folder / "real.npy").write_bytes(b"precious")
        os.symlink(folder / "real.npy", folder / "link.npy")
        line = cumsum(folder, folder / "link.npy", "--force")
        assert f"is a symbolic link to {folder / 'real.npy'}; name the file itself" in line

    def test_file_that_exists(self, folder: Path) -> None:
        (folder / "o.npy").write_bytes(b"precious")
        assert cumsum(folder, folder / "o.npy").endswith("exists already; --force replaces it")
        run("cumsum", "--x", folder / "dy.npy", "--out", folder / "o.npy", "--force")
        assert same(np.load(folder / "o.npy"), pb.cumsum(np.load(folder / "dy.npy")))

    def test_file_that_comes_to_exist_meanwhile(self, folder: Path) -> None:
        """It is not replaced, and the work is kept for a run that may."""
        made = Job(find_op("cumsum"), {"x": folder / "dy.npy"}, {"y": folder / "o.npy"})
        with pytest.raises(InvalidProblemError, match=r"exists already.*1 of 1 blocks are kept"):
            made.run(progress=lambda *_: (folder / "o.npy").write_bytes(b"precious"))
        assert (folder / "o.npy").read_bytes() == b"precious"
        assert made.run(resume=True, force=True).resumed == 1
        assert same(np.load(folder / "o.npy"), pb.cumsum(np.load(folder / "dy.npy")))

    def test_planted_links_are_not_followed(self, folder: Path) -> None:
        (folder / "victim").write_bytes(b"precious")
        for name in (".o.npy.partial", ".o.npy.resume", ".o.npy.resume.new"):
            os.symlink(folder / "victim", folder / name)
        run("cumsum", "--x", folder / "dy.npy", "--out", folder / "o.npy")
        assert (folder / "victim").read_bytes() == b"precious"
        assert sorted(contents(folder)) == ["dy.npy", "o.npy", "victim"]


class TestTwoRuns:
    """Two runs with one output: the second is refused, and a killed one blocks nobody."""

    def job(self, folder: Path) -> Job:
        return Job(find_op("cumsum"), {"x": folder / "dy.npy"}, {"y": folder / "y.npy"})

    def test_the_second_is_refused(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(running, "LARGEST_BLOCK", 128)
        said = []

        def again(done: int, total: int) -> None:
            if not said:
                line = refused(folder, "cumsum", "--x", folder / "dy.npy", "--out",
                               folder / "sub" / ".." / "y.npy", "--force")  # fmt: skip
                said.append(line)

        (folder / "sub").mkdir()
        assert self.job(folder).run(progress=again).blocks > 1
        assert f"another run (process {os.getpid()} on " in said[0]
        assert "is writing it now" in said[0]
        assert same(np.load(folder / "y.npy"), pb.cumsum(np.load(folder / "dy.npy")))
        assert sorted(contents(folder)) == ["dy.npy", "sub", "y.npy"]

    def test_lock_of_a_killed_process(self, folder: Path) -> None:
        code = (
            "import fcntl, os, signal; h = os.open('.y.npy.lock', os.O_RDWR | os.O_CREAT);"
            "fcntl.flock(h, fcntl.LOCK_EX); os.write(h, b'1 there'); os.kill(os.getpid(), 9)"
        )
        killed = subprocess.run([sys.executable, "-c", code], cwd=folder, check=False)
        assert killed.returncode == -signal.SIGKILL
        assert (folder / ".y.npy.lock").exists()
        self.job(folder).run()
        assert sorted(contents(folder)) == ["dy.npy", "y.npy"]

    @pytest.mark.parametrize("text", [b"", b"\xff\x00garbage", b"one two three"])
    def test_lock_that_tells_nothing(self, folder: Path, text: bytes) -> None:
        (folder / ".y.npy.lock").write_bytes(text)
        with open(folder / ".y.npy.lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            line = refused(folder, "cumsum", "--x", folder / "dy.npy", "--out", folder / "y.npy")
        assert "another run is writing it now" in line

    def test_lock_removed_between_the_two_calls(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A run that ends takes its lock away, and another may hold the file that is gone."""
        lock, tries = targets._lock, []

        def late(handle: int) -> None:
            if not tries:
                (folder / ".y.npy.lock").unlink()
            tries.append(handle)
            lock(handle)

        monkeypatch.setattr(targets, "_lock", late)
        self.job(folder).run()
        assert len(tries) == 2

    def test_without_locks_no_unfinished_file_is_published(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where the file system has no locks, the second run takes the partial file away."""
        monkeypatch.setattr(targets, "_lock", lambda handle: None)
        monkeypatch.setattr(running, "LARGEST_BLOCK", 128)

        def replace(done: int, total: int) -> None:
            (folder / ".y.npy.partial").unlink(missing_ok=True)
            (folder / ".y.npy.partial").write_bytes(bytes(320))

        with pytest.raises(InvalidProblemError, match="was replaced during the run"):
            self.job(folder).run(progress=replace)
        assert not (folder / "y.npy").exists()
