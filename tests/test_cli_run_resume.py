"""``pullback run``: interrupts, errors on the way, and what ``--resume`` makes of what is left."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import pullback as pb
from pullback.errors import InvalidProblemError
from pullback.tools.bench import find_op
from pullback.tools.cli import main
from pullback.tools.files import Interrupted, Job, identity, partial, running, segments, transfer
from run_files import contents, normal, refused, run, same
from scripts import SOURCE, run_script

NOTE, PARTIAL = ".dx.npy.resume", ".dx.npy.partial"


def job(folder: Path, **changed: Any) -> Job:
    made = Job(find_op("cumsum_backward"), {"dy": folder / "dy.npy"}, {"dx": folder / "dx.npy"})
    return dataclasses.replace(made, **changed)


def command(folder: Path) -> list[object]:
    return ["cumsum_backward", "--dy", folder / "dy.npy", "--out", folder / "dx.npy"]


def stop_after(calls: int) -> Callable[[int, int], None]:
    """A progress that is interrupted after so many calls."""
    left = iter(range(calls))

    def stop(done: int, total: int) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    return stop


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an input of 16 blocks."""
    monkeypatch.setattr(running, "LARGEST_BLOCK", 1 << 13)
    np.save(tmp_path / "dy.npy", normal(64, 256))
    return tmp_path


@pytest.fixture
def stopped(folder: Path) -> Path:
    """A folder in which a run was interrupted after five blocks."""
    with pytest.raises(KeyboardInterrupt, match=r"5 of 16 blocks are kept in .*does the rest"):
        job(folder).run(progress=stop_after(5))
    assert sorted(contents(folder)) == [PARTIAL, NOTE, "dy.npy"]
    return folder


def finished(folder: Path) -> bool:
    """Whether the output is right, and nothing else is left."""
    right = same(np.load(folder / "dx.npy"), pb.cumsum_backward(np.load(folder / "dy.npy")))
    return right and sorted(contents(folder)) == ["dx.npy", "dy.npy"]


def note(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / NOTE).read_text()))


def sign(state: dict[str, Any]) -> str:
    """A note with the digest that its contents should have."""
    held = {k: v for k, v in state.items() if k != "digest"}
    digest = hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()
    return json.dumps({**held, "digest": digest})


class TestResume:
    def test_continues_where_it_stopped(self, stopped: Path) -> None:
        said = run(*command(stopped), "--resume")
        assert "16 blocks, 5 done earlier" in said
        assert ": 90.1 kB in " in said  # eleven blocks, whose bytes the speed is of
        assert finished(stopped)

    def test_keeps_the_blocks_it_began_with(
        self, stopped: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(running, "LARGEST_BLOCK", 1 << 14)  # as if more memory were free now
        assert job(stopped).run(resume=True).resumed == 5
        assert finished(stopped)

    def test_leaves_nothing_when_nothing_was_finished(self, folder: Path) -> None:
        with pytest.raises(Interrupted, match="nothing is left behind"):
            job(folder).run(progress=stop_after(0))
        assert sorted(contents(folder)) == ["dy.npy"]

    def test_without_the_option_it_starts_anew_and_says_so(self, stopped: Path) -> None:
        assert "discarded 5 blocks of an earlier run" in run(*command(stopped))
        assert finished(stopped)

    def test_nothing_to_resume_is_said(self, folder: Path) -> None:
        assert "found nothing to resume" in run(*command(folder), "--resume")

    def test_interrupted_again_and_again(self, stopped: Path) -> None:
        for calls in (8, 12):
            with pytest.raises(Interrupted, match=f"{calls} of 16 blocks are kept"):
                job(stopped).run(resume=True, progress=stop_after(calls))
        assert job(stopped).run(resume=True).resumed == 12
        assert finished(stopped)

    def test_archive(self, folder: Path) -> None:
        out = folder / "o.npz"
        made = Job(
            find_op("lerp_backward"), {"dy": folder / "dy.npy"}, {"da": out, "db": out},
            {"weight": 0.25},
        )  # fmt: skip
        with pytest.raises(Interrupted, match="are kept"):
            made.run(progress=stop_after(5))
        assert made.run(resume=True).resumed == 5
        da, db = pb.lerp_backward(np.load(folder / "dy.npy"), weight=0.25)
        with np.load(out) as held:
            assert same(held["da"], da)
            assert same(held["db"], db)
        assert sorted(contents(folder)) == ["dy.npy", "o.npz"]

    def test_interrupt_that_comes_too_late(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While the file gets its name an interrupt waits, and then the file is there."""
        replace = os.replace

        def interrupted(source: Path, target: Path) -> None:
            if target.name == "dx.npy":
                os.kill(os.getpid(), signal.SIGINT)
            replace(source, target)

        monkeypatch.setattr(os, "replace", interrupted)
        job(folder).run()
        assert finished(folder)


class TestWhatDiffers:
    """A run that cannot be continued is refused, by what differs, and what was done is kept."""

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            (("--memory", "2GB"), "--memory is 2000000000, was not given when the run began"),
            (("--axis", "0"), "--axis is 0, was -1"),
            (("--reverse",), "--reverse is True, was False"),
        ],
    )
    def test_option(self, stopped: Path, more: tuple[str, ...], said: str) -> None:
        line = refused(stopped, *command(stopped), "--resume", *more)
        assert f"resume: {said}" in line
        assert f"{stopped / PARTIAL} is kept, without --resume the run starts anew" in line
        assert job(stopped).run(resume=True).resumed == 5

    def test_op(self, stopped: Path) -> None:
        line = refused(stopped, "cumsum", "--x", stopped / "dy.npy", "--out", stopped / "dx.npy",
                       "--resume")  # fmt: skip
        assert "the op is cumsum, was cumsum_backward" in line

    def test_modification_time(self, stopped: Path) -> None:
        os.utime(stopped / "dy.npy", ns=(1, 1))
        line = refused(stopped, *command(stopped), "--resume")
        assert "the modification time of dy.npy (dy) changed since the run began" in line

    def test_size(self, stopped: Path) -> None:
        with open(stopped / "dy.npy", "ab") as file:
            file.write(b"more")
        size = (stopped / "dy.npy").stat().st_size
        line = refused(stopped, *command(stopped), "--resume")
        assert f"the size of dy.npy (dy) is {size}, was {size - 4}" in line

    def test_contents(self, stopped: Path) -> None:
        before = (stopped / "dy.npy").stat()
        with open(stopped / "dy.npy", "r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"abcd")
        os.utime(stopped / "dy.npy", ns=(before.st_atime_ns, before.st_mtime_ns))
        line = refused(stopped, *command(stopped), "--resume")
        assert "the contents of dy.npy (dy) changed since the run began" in line

    def test_kernels(self, stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(identity, "source_digest", lambda: "another")
        line = refused(stopped, *command(stopped), "--resume")
        assert "the source of pullback's kernels changed" in line

    def test_version(self, stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(identity, "__version__", "99")
        assert "the version of pullback is 99, was" in refused(
            stopped, *command(stopped), "--resume"
        )

    @pytest.mark.parametrize("change", [-1, -7000, +1])
    def test_size_of_the_partial_file(self, stopped: Path, change: int) -> None:
        size = (stopped / PARTIAL).stat().st_size
        os.truncate(stopped / PARTIAL, size + change)
        line = refused(stopped, *command(stopped), "--resume")
        assert f"{PARTIAL}: has {size + change} bytes, expected {size}" in line

    def test_partial_file_that_is_missing(self, stopped: Path) -> None:
        (stopped / PARTIAL).unlink()
        assert f"{PARTIAL}: is missing" in refused(stopped, *command(stopped), "--resume")

    @pytest.mark.parametrize(("at", "said"), [(10, "another header"), (9000, "block 3 in")])
    def test_contents_of_the_partial_file(self, stopped: Path, at: int, said: str) -> None:
        with open(stopped / PARTIAL, "r+b") as file:
            file.seek(at)
            file.write(b"?")
        assert said in refused(stopped, *command(stopped), "--resume")

    def test_partial_file_that_is_a_link(self, stopped: Path) -> None:
        os.rename(stopped / PARTIAL, stopped / "elsewhere")
        os.symlink(stopped / "elsewhere", stopped / PARTIAL)
        refused(stopped, *command(stopped), "--resume")


class TestNote:
    """Whatever a note holds, no unfinished file is published."""

    @pytest.mark.parametrize(
        "text",
        [
            b"[]", b"{}", b"null", b"5", b"", b"\xff\xfe\x00\x01garbage", b"[" * 100_000,
            b'{"digest": []}', b'{"digest": "0", "done": 1000000}', b"9" * 10_000,
        ],
    )  # fmt: skip
    def test_garbage(self, stopped: Path, text: bytes) -> None:
        (stopped / NOTE).write_bytes(text)
        assert NOTE in refused(stopped, *command(stopped), "--resume")

    def test_truncated(self, stopped: Path) -> None:
        (stopped / NOTE).write_bytes((stopped / NOTE).read_bytes()[:-20])
        assert "is damaged" in refused(stopped, *command(stopped), "--resume")

    @pytest.mark.parametrize("kind", [os.mkfifo, os.mkdir, lambda p: os.symlink("dy.npy", p)])
    def test_no_file(self, stopped: Path, kind: Callable[[Path], None]) -> None:
        (stopped / NOTE).unlink()
        kind(stopped / NOTE)
        refused(stopped, *command(stopped), "--resume")

    @pytest.mark.parametrize(
        "edit",
        [
            lambda s: s.update(done=1_000_000),
            lambda s: s["blocks"].extend(s["blocks"]),
            lambda s: s["cut"].update(block=[1, 256]),
            lambda s: s["job"].update(nothing=1),
        ],
    )
    def test_edited(self, stopped: Path, edit: Callable[[dict[str, Any]], None]) -> None:
        state = note(stopped)
        edit(state)
        (stopped / NOTE).write_text(json.dumps(state))
        line = refused(stopped, *command(stopped), "--resume")
        assert "was changed since the run wrote it" in line

    @pytest.mark.parametrize(
        ("edit", "said"),
        [
            (lambda s: s.update(done=1_000_000), "another version"),
            (lambda s: s.update(blocks=[0] * 1_000_000), "of another job"),
            (lambda s: s.update(blocks=[0] * 16), "is not what the run had written"),
            (lambda s: s["blocks"].append(0), "is not what the run had written"),
            (lambda s: s.update(blocks="16"), "another version"),
            (lambda s: s.update(blocks=[None] * 16), "another version"),
            (lambda s: s.update(cut=[]), "another version"),
            (lambda s: s.update(cut={}), "of another job"),
            (lambda s: s["cut"].update(block=[64, 256]), "of another job"),
            (lambda s: s["cut"].update(block=[4, 128]), "of another job"),
            (lambda s: s["cut"].update(block=[0, 256]), "of another job"),
            (lambda s: s["cut"].update(block=[4]), "of another job"),
            (lambda s: s["cut"].update(block=[4.0, 256]), "of another job"),
            (lambda s: s["cut"].update(shape=[16, 256]), "of another job"),
            (lambda s: s["cut"].update(fits="yes"), "of another job"),
            (lambda s: s.update(cut={"bounds": [0, 5], "rows": [5]}), "of another job"),
            (lambda s: s.update(job=[]), "another version"),
            (lambda s: s.update(job={}), "the op is cumsum_backward, was not given"),
            (lambda s: s["job"].update(nothing=1), "nothing is not given, was 1"),
        ],
    )  # fmt: skip
    def test_forged(self, stopped: Path, edit: Callable[[dict[str, Any]], None], said: str) -> None:
        """Also a note with the right digest is looked at."""
        state = note(stopped)
        edit(state)
        (stopped / NOTE).write_text(sign(state))
        assert said in refused(stopped, *command(stopped), "--resume")

    @pytest.mark.parametrize(
        "cut",
        [
            {"bounds": [0, 3], "rows": [9, 0]}, {"bounds": [], "rows": []},
            {"bounds": [0, 2, 1, 3], "rows": [3, 3, 3]}, {"bounds": [1, 3], "rows": [9]},
            {"bounds": [0, 3], "rows": [-9]}, {"bounds": [0, 4], "rows": [9]},
            {"bounds": 3, "rows": 9}, {"bounds": [0, 3]}, {"bounds": [0, "3"], "rows": [9]},
        ],
    )  # fmt: skip
    def test_forged_segments(self, cut: dict[str, Any]) -> None:
        assert segments.restored_segments({"bounds": [0, 1, 3], "rows": [4, 5]}, 3) is not None
        assert segments.restored_segments(cut, 3) is None


class TestErrorsOnTheWay:
    def fail(
        self, monkeypatch: pytest.MonkeyPatch, name: str, after: int, code: int = errno.ENOSPC
    ) -> None:
        """Let a call of the system fail after it has worked so often."""
        call, count = getattr(os, name), iter(range(after))

        def failing(*arguments: Any) -> Any:
            if next(count, None) is None:
                raise OSError(code, os.strerror(code))
            return call(*arguments)

        monkeypatch.setattr(os, name, failing)

    def test_full_disk_at_the_start(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fail(monkeypatch, "posix_fallocate", 0)
        line = refused(folder, *command(folder))
        assert line == f"pullback: {folder / 'dx.npy'}: No space left on device"

    def test_full_disk_on_the_way(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            self.fail(patch, "pwrite", 1 + 5)  # the lock, and five blocks
            result = CliRunner().invoke(main, ["run", *map(str, command(folder))])
        assert result.exit_code == 2
        assert result.output == (
            f"pullback: {folder / 'dx.npy'}: No space left on device; 5 of 16 blocks are kept in "
            f"{folder / PARTIAL}; the same command with --resume does the rest\n"
        )
        assert job(folder).run(resume=True).resumed == 5
        assert finished(folder)

    def test_note_that_cannot_be_written(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The run goes on: the note before is as true."""
        monkeypatch.setattr(partial, "PERIOD", 0)
        self.fail(monkeypatch, "replace", 4)
        with pytest.raises(OSError, match="3 of 16 blocks are kept"):
            job(folder).run()
        monkeypatch.undo()
        assert job(folder).run(resume=True).resumed == 3
        assert finished(folder)

    def test_full_disk_for_the_archive(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The results are whole; only the packing is done again."""
        made = job(folder, outputs={"dx": folder / "dx.npz"})

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(running.files, "pack", full)
            with pytest.raises(OSError, match="16 of 16 blocks are kept"):
                made.run()
        assert made.run(resume=True).resumed == 16
        with np.load(folder / "dx.npz") as held:
            assert same(held["dx"], pb.cumsum_backward(np.load(folder / "dy.npy")))
        assert sorted(contents(folder)) == ["dx.npz", "dy.npy"]

    def test_calls_that_do_less_than_asked(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transfer, "LARGEST_CALL", 100)
        job(folder).run()
        assert finished(folder)

    @pytest.mark.parametrize("size", [128 + 40_000, 4096, 10, 0])
    def test_input_cut_during_the_run(self, folder: Path, size: int) -> None:
        def cut(done: int, total: int) -> None:
            if done > total // 4:
                os.truncate(folder / "dy.npy", size)

        with pytest.raises(InvalidProblemError, match=rf"was cut from 65664 to {size} bytes"):
            job(folder).run(progress=cut)
        assert not (folder / "dx.npy").exists()

    def test_input_written_to_during_the_run(self, folder: Path) -> None:
        def write(done: int, total: int) -> None:
            if done > total // 2:
                with open(folder / "dy.npy", "r+b") as file:
                    file.seek(-4, os.SEEK_END)
                    file.write(b"abcd")

        with pytest.raises(InvalidProblemError, match=r"dy.npy: was changed during the run.*kept"):
            job(folder).run(progress=write)
        assert not (folder / "dx.npy").exists()

    def test_partial_file_cut_during_the_run(self, folder: Path) -> None:
        """It would grow again when it is written to, with zeros for what it held."""

        def cut(done: int, total: int) -> None:
            if total // 2 < done < total:
                os.truncate(folder / PARTIAL, 200)

        with pytest.raises(InvalidProblemError, match="was cut or extended during the run"):
            job(folder).run(progress=cut)
        assert not (folder / "dx.npy").exists()


def test_row_longer_than_memory_cut_during_the_run(tmp_path: Path) -> None:
    """A file that is cut short between two pieces is an error, not a signal."""
    np.save(tmp_path / "dy.npy", np.ones((1, 1 << 20), np.float32))
    said = run_script(f"""
        import os
        from pathlib import Path
        from pullback.tools.bench import find_op
        from pullback.tools.files import Job, running

        folder = Path({str(tmp_path)!r})
        running.LARGEST_BLOCK = 1 << 16
        running.Run._room_beside = lambda *_: 1 << 20
        made = Job(find_op("cumsum_backward"), {{"dy": folder / "dy.npy"}},
                   {{"dx": folder / "dx.npy"}}, memory=10**9)
        try:
            made.run(progress=lambda done, total: os.truncate(folder / "dy.npy", 9000))
        except ValueError as error:
            print(error)
    """)
    assert "was cut from 4194432 to 9000 bytes during the run" in said
    assert sorted(contents(tmp_path)) == ["dy.npy"]


class TestSignals:
    # A file whose open() has come back when the interrupt does, and its `with` not begun, is closed
    # by its last reference, which warns.
    @pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning"
    )
    def test_interrupts_at_random_moments(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each leaves the right file, or what --resume makes the right file of."""
        monkeypatch.setattr(os, "fsync", lambda handle: None)  # the system goes on running
        monkeypatch.setattr(partial, "PERIOD", 0)
        job(folder).run()
        choose = random.Random(0)
        kept = 0
        for _ in range(60):
            (folder / "dx.npy").unlink()
            timer = threading.Timer(choose.uniform(0, 0.05), os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                job(folder).run()
                timer.join()
                time.sleep(0.01)
            except KeyboardInterrupt:
                pass
            if not (folder / "dx.npy").exists():
                kept += bool(job(folder).run(resume=True).resumed)
            assert finished(folder)
        assert kept > 3

    def test_kills_at_random_moments(self, tmp_path: Path) -> None:
        """Each leaves the right file, or what --resume makes the right file of."""
        np.save(tmp_path / "dy.npy", normal(64, 256))
        said = run_script(f"""
            import os, random, signal, time
            from pathlib import Path
            from pullback.tools.bench import find_op
            from pullback.tools.files import Job, partial, running

            folder = Path({str(tmp_path)!r})
            running.LARGEST_BLOCK = 1 << 13
            os.fsync = lambda handle: None  # the system goes on running
            made = Job(find_op("cumsum_backward"), {{"dy": folder / "dy.npy"}},
                       {{"dx": folder / "dx.npy"}}, threads=1)
            made.run()
            began = time.monotonic()
            made.run(force=True)
            took = time.monotonic() - began
            wanted = (folder / "dx.npy").read_bytes()
            choose = random.Random(0)
            partial.PERIOD = 0
            kept = kills = 0
            while kills < 25 or (kept < 4 and kills < 400):  # it is luck to find a note
                kills += 1
                (folder / "dx.npy").unlink()
                child = os.fork()
                if not child:
                    made.run()
                    os._exit(0)
                time.sleep(choose.uniform(0, 2 * took))
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                if not (folder / "dx.npy").exists():
                    kept += bool(made.run(resume=True).resumed)
                assert (folder / "dx.npy").read_bytes() == wanted
            print(kept, sorted(os.listdir(folder)))
        """)
        kept, left = said.split(maxsplit=1)
        assert int(kept) > 3
        assert left.strip() == "['dx.npy', 'dy.npy']"


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE)}

# The command line, with a second block that takes long enough for an interrupt to find it.
SLOWED = """
import time
from pathlib import Path
from pullback.tools.cli import main
from pullback.tools.files import running

running.LARGEST_BLOCK = 1 << 18
run_block = running.Run._run_block
started = []

def slowly(self, *args, **options):
    started.append(args)
    if len(started) == 2:
        Path("second").touch()
        time.sleep(60)
    return run_block(self, *args, **options)

running.Run._run_block = slowly
main(prog_name="pullback")
"""


def test_interrupt_from_the_keyboard(tmp_path: Path) -> None:
    np.save(tmp_path / "dy.npy", normal(64, 4096))
    arguments = ["run", "cumsum_backward", "--dy", "dy.npy", "--out", "dx.npy"]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOWED, *arguments],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "second").exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said == (
        "pullback: interrupted; 1 of 8 blocks are kept in .dx.npy.partial; "
        "the same command with --resume does the rest\n"
    )
    (tmp_path / "second").unlink()
    again = subprocess.run(
        [sys.executable, "-m", "pullback", *arguments, "--resume"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        check=False,
    )
    assert again.returncode == 0
    assert b"8 blocks, 1 done earlier" in again.stdout
    assert finished(tmp_path)
