"""The kernels on disk: found again, right after an edit, never mixed up or another's, harmless."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import threading
import time
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from pullback.cpu import compile as compiling
from pullback.cpu import disk, loader
from pullback.cpu.codegen.functions import inner
from pullback.cpu.compile import compile_words, source_digest
from scripts import SOURCE, run_script

# Prints the result of an op and whether each kernel came from disk.
RECORDER = """
import numpy as np
import pullback as pb
from pullback.cpu import compile as compiling

made = []
plain = compiling.Kernel.__init__

def recorded(self, *args, **kwargs):
    plain(self, *args, **kwargs)
    made.append(self)

compiling.Kernel.__init__ = recorded
"""


def test_a_second_process_loads_what_the_first_compiled(tmp_path):
    code = RECORDER + (
        "x = np.arange(6.0)\nprint(pb.cumsum(x).tolist(), [k.from_cache for k in made])\n"
    )
    first = run_script(code, PULLBACK_CACHE_DIR=tmp_path)
    second = run_script(code, PULLBACK_CACHE_DIR=tmp_path)
    values = "[0.0, 1.0, 3.0, 6.0, 10.0, 15.0]"
    assert first.strip() == f"{values} [False]"
    assert second.strip() == f"{values} [True]"


TOY = (
    RECORDER
    + """
from pullback.core.catalog import register
from pullback.core.declare import Text
from pullback.core.rows.reduce import declare_reduce
from pullback.formulas.folds import add
from pullback.formulas.record import Monoid, Pass, RowFormula
from pullback.api.functions import make_function

{formula}

def total_itself(total):
    return total

start = globals().get("START", 0.0)
record = RowFormula((Pass(Monoid(lifted, add, (start,), ("total",))),), finish=total_itself)
op, backward = declare_reduce("toy", Text(""), Text(""), record, RowFormula(apply=total_itself))
register(op)
print(float(make_function(op)(np.arange(1.0, 4.0))), [k.from_cache for k in made])
"""
)


def test_two_formulas_of_one_name_do_not_mix(tmp_path):
    """The same op and function names, another body, callee or global."""
    bodies = [
        ("def lifted(x):\n    return x * x", 14.0),
        ("def lifted(x):\n    return x + x", 12.0),
        ("def inner(x):\n    return x\ndef lifted(x):\n    return inner(x)", 6.0),
        ("def inner(x):\n    return x + 1.0\ndef lifted(x):\n    return inner(x)", 9.0),
        ("SCALE = 8\ndef lifted(x):\n    return x * SCALE", 48.0),
        ("SCALE = 9\ndef lifted(x):\n    return x * SCALE", 54.0),
        # An "identity" that is none: eight lanes, one block and the row each begin with it.
        ("START = 2.0\ndef lifted(x):\n    return x * x", 14.0 + 2.0 * 9),
    ]
    for body, value in bodies:
        shown = run_script(TOY.format(formula=body), PULLBACK_CACHE_DIR=tmp_path)
        assert shown.strip() == f"{value} [False]", body
    again = run_script(TOY.format(formula=bodies[0][0]), PULLBACK_CACHE_DIR=tmp_path)
    assert again.strip() == "14.0 [True]"


def test_an_edited_source_is_compiled_anew(tmp_path):
    """A formula edited in its file, with the old kernel in the cache."""
    package = tmp_path / "src"
    ignored = shutil.ignore_patterns("__pycache__", "torch", "jax", "triton", "bench", "cli")
    shutil.copytree(SOURCE / "pullback", package / "pullback", ignore=ignored)
    code = RECORDER + (
        "a, b = np.array([2.0]), np.array([6.0])\n"
        "print(pb.lerp(a, b, 0.25).tolist(), [k.from_cache for k in made])\n"
    )
    cache = tmp_path / "cache"
    assert run_script(code, source=package, PULLBACK_CACHE_DIR=cache).strip() == "[3.0] [False]"
    assert run_script(code, source=package, PULLBACK_CACHE_DIR=cache).strip() == "[3.0] [True]"
    formula = package / "pullback" / "formulas" / "lerp.py"
    text = formula.read_text(encoding="utf-8")
    edited = text.replace("a + weight * (b - a)", "a - weight * (b - a)")
    assert edited != text, "the formula of lerp is written differently now; adapt this test"
    formula.write_text(edited, encoding="utf-8")
    assert run_script(code, source=package, PULLBACK_CACHE_DIR=cache).strip() == "[1.0] [False]"


def test_kernels_of_two_processes_do_not_mix(tmp_path):
    """Kernels compiled as the first of their processes, then loaded side by side.

    Helper functions get the same internal names in both processes; linked by name, one kernel
    would call the other's.
    """
    head = "import numpy as np, pullback as pb\nx = np.arange(1.0, 41.0).reshape(4, 10)\n"
    calls = {
        "low": "pb.min(x.astype('f4'), 0).tolist()",
        "mean": "pb.mean(x, 0).tolist()",
        "sums": "pb.cumsum(x, 0)[-1].tolist()",
        "tops": "pb.cummax(-x.astype('f4'), 0)[-1].tolist()",
    }
    alone = {
        name: run_script(f"{head}print({call})", PULLBACK_CACHE_DIR=tmp_path)
        for name, call in calls.items()
    }
    shown = "".join(f"print({call})\n" for call in calls.values())
    together = run_script(f"{RECORDER}{head}{shown}", PULLBACK_CACHE_DIR=tmp_path)
    assert together == "".join(alone.values())
    starts = {name: shown.split(",")[0] for name, shown in alone.items()}
    assert starts == {"low": "[1.0", "mean": "[16.0", "sums": "[64.0", "tops": "[-1.0"}


@pytest.mark.parametrize("place", ["file/below", "/proc/pullback"])
def test_harmless_where_nothing_can_be_written(tmp_path, place):
    (tmp_path / "file").write_text("not a directory")
    directory = place if place.startswith("/") else tmp_path / place
    code = "import numpy as np, pullback as pb\nprint(pb.sum(np.arange(5.0)))\n"
    assert run_script(code, PULLBACK_CACHE_DIR=directory).strip() == "10.0"


def test_a_damaged_file_is_compiled_over(tmp_path):
    code = RECORDER + "print(float(pb.sum(np.arange(5.0))), [k.from_cache for k in made])\n"
    run_script(code, PULLBACK_CACHE_DIR=tmp_path)
    files = [f for f in tmp_path.rglob("*") if f.is_file()]
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert run_script(code, PULLBACK_CACHE_DIR=tmp_path).strip() == "10.0 [False]"


def from_disk(name: str = "plus_one", step: int = 1) -> bool:
    """Compile a small function, or load it; whether it was loaded."""

    def function(x):
        return x + step

    marked = inner(function)
    marked.name = name
    made = compile_words(marked)
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(made.address)(1) == 1 + step
    return made.from_cache


def files(folder: Path) -> set[Path]:
    return {f for f in folder.rglob("*") if f.is_file()}


def kernel_file(folder: Path) -> Path:
    """The only kernel below a folder, beside whatever else is there."""
    return max(files(folder), key=lambda f: f.stat().st_size)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache directory with one kernel in it, which is found again."""
    where = tmp_path / "kernels"
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(where))
    assert not from_disk()
    assert from_disk()
    return where


def give_away(path: Path, monkeypatch) -> None:
    """Make a path another user's: root gives it away, anyone else becomes someone else."""
    if os.getuid() == 0:
        os.chown(path, 12345, -1)
    else:
        own = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: own + 1)


def test_only_the_user_can_write_what_is_made(tmp_path, monkeypatch):
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "new" / "kernels"))
    before = os.umask(0)
    try:
        from_disk()
    finally:
        os.umask(before)
    made = list((tmp_path / "new").rglob("*"))
    assert {p.is_dir(): p.stat().st_mode & 0o777 for p in made} == {True: 0o700, False: 0o600}
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("level", [0, 1, 2], ids=["folder", "directory", "parent"])
@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_what_others_can_write_to_is_refused(tmp_path, folder, monkeypatch, level, mode):
    monkeypatch.setattr(disk, "_private_group", lambda: None)
    inside = kernel_file(folder).parent
    open_one = (inside, *inside.parents)[level]
    open_one.chmod(mode)
    before = files(tmp_path)
    with pytest.warns(RuntimeWarning, match=f"{open_one} can be written to"):
        assert not from_disk()
    assert not from_disk("another", 2)  # a second warning would be an error
    assert files(tmp_path) == before
    open_one.chmod(0o700)
    assert from_disk()


@pytest.mark.parametrize("level", [0, 1, 2], ids=["folder", "directory", "parent"])
def test_what_belongs_to_another_user_is_refused(folder, monkeypatch, level):
    inside = kernel_file(folder).parent
    give_away((inside, *inside.parents)[level], monkeypatch)
    with pytest.warns(RuntimeWarning, match="belongs to user"):
        assert not from_disk()
    assert not from_disk()  # a second warning would be an error


def test_a_directory_behind_a_link_is_checked_where_it_is(tmp_path, folder, monkeypatch):
    link = tmp_path / "link"
    link.symlink_to(folder)
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(link))
    assert from_disk()
    folder.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="every user"):
        assert not from_disk()


def test_a_shared_folder_for_temporary_files_is_no_reason(tmp_path, folder):
    tmp_path.chmod(0o1777)
    assert from_disk()


def test_a_group_of_one_is_no_reason(folder, monkeypatch):
    folder.chmod(0o775)
    monkeypatch.setattr(disk, "_private_group", lambda: folder.stat().st_gid)
    assert from_disk()


def test_a_file_of_another_user_is_compiled_over(folder, monkeypatch):
    file = kernel_file(folder)
    give_away(file, monkeypatch)
    monkeypatch.setattr(disk, "_check", lambda path: path.stat())  # only the file is in question
    with pytest.warns(RuntimeWarning, match=f"{file} belongs to user"):
        assert not from_disk()


def test_a_file_that_others_can_write_to_is_compiled_over(folder):
    file = kernel_file(folder)
    file.chmod(0o666)
    with pytest.warns(RuntimeWarning, match=f"{file} can be written to by every user"):
        assert not from_disk()
    assert file.stat().st_mode & 0o777 == 0o600
    assert from_disk()


@pytest.mark.parametrize("kind", ["link", "pipe", "empty"])
def test_what_is_no_kernel_file_is_compiled_over(tmp_path, folder, kind):
    file = kernel_file(folder)
    moved = file.rename(tmp_path / "moved")
    if kind == "link":
        file.symlink_to(moved)
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.touch()
    assert not from_disk()
    assert from_disk()


def test_a_kernel_under_the_name_of_another_is_compiled_over(folder):
    first = kernel_file(folder)
    assert not from_disk("plus_two", 2)
    (second,) = files(folder) - {first}
    shutil.copy(first, second)
    assert not from_disk("plus_two", 2)
    assert from_disk("plus_two", 2)


def test_every_byte_of_a_file_counts(folder):
    file = kernel_file(folder)
    data = file.read_bytes()
    magic, length, _ = disk._HEADER.unpack_from(data)
    identity = data[disk._HEADER.size : disk._HEADER.size + length].decode()
    where = file.parent
    payload = disk.read(where, identity)
    assert payload
    assert data.endswith(payload)
    head = len(data) - len(payload)
    for place in [*range(0, head + 64, 7), *range(head + 64, len(data), 997), len(data) - 1]:
        file.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        assert disk.read(where, identity) is None, place
    for cut in (0, 1, disk._HEADER.size, head, len(data) - 1):
        file.write_bytes(data[:cut])
        assert disk.read(where, identity) is None, cut
    file.write_bytes(data + b"\0")
    assert disk.read(where, identity) is None
    assert not from_disk()
    assert file.read_bytes()[: len(magic)] == magic


def test_another_version_of_llvm_does_not_load(folder, monkeypatch):
    monkeypatch.setattr("llvmlite.__version__", "0.0.1")
    monkeypatch.setattr(compiling, "platform_tag", loader.platform_tag.__wrapped__)
    assert not from_disk()


@pytest.mark.parametrize("variable", loader.VARIABLES)
def test_a_cpu_that_the_environment_names_counts(folder, monkeypatch, variable):
    monkeypatch.setattr(compiling, "platform_tag", loader.platform_tag.__wrapped__)
    monkeypatch.setenv(variable, "x86-64" if variable == "PULLBACK_CPU" else "-avx")
    assert not from_disk()
    assert from_disk()


def test_the_identity_names_the_cpu(folder):
    data = kernel_file(folder).read_bytes()
    features = llvm.get_host_cpu_features().flatten()
    for part in (llvm.get_host_cpu_name(), features, "plus_one", source_digest()):
        assert part.encode() in data


def test_kernels_are_loaded_without_a_compiler(tmp_path):
    code = """
    import sys
    import numpy as np
    import pullback as pb
    x = np.arange(12.0).reshape(3, 4)
    ids = np.array([1, 0, 1])
    print(pb.softmax(x)[0, 0], pb.cumsum(x)[0].tolist(), pb.segment_sum(x, ids, 2)[0].tolist())
    print("pullback.cpu.emit" in sys.modules)
    """
    values, compiles = run_script(code, PULLBACK_CACHE_DIR=tmp_path).splitlines()
    assert compiles == "True"
    assert run_script(code, PULLBACK_CACHE_DIR=tmp_path).splitlines() == [values, "False"]


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, before[1]))
    try:
        assert not from_disk("large", 4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert files(tmp_path) == set()


def test_an_interrupt_while_writing_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        disk.write(tmp_path, "identity", b"payload")
    assert files(tmp_path) == set()


def test_what_killed_processes_left_is_removed_in_time(tmp_path):
    old, new = (tmp_path / f".{name}{disk.SUFFIX}.partial" for name in ("old", "new"))
    for file in (old, new):
        file.touch()
    os.utime(old, (time.time() - 7200,) * 2)
    disk.write(tmp_path, "identity", b"payload")
    assert not old.exists()
    assert new.exists()
    assert disk.read(tmp_path, "identity") == b"payload"


def test_many_at_once_read_nothing_but_whole_kernels(tmp_path):
    disk.write(tmp_path, "identity", b"0" * 100_000)
    seen: list[bytes | None] = []

    def write(digit: bytes) -> None:
        for _ in range(50):
            disk.write(tmp_path, "identity", digit * 100_000)
            seen.append(disk.read(tmp_path, "identity"))

    writers = [threading.Thread(target=write, args=(d,)) for d in (b"1", b"2", b"3")]
    for w in writers:
        w.start()
    for w in writers:
        w.join()
    assert len(seen) == 150
    assert all(s is not None and len(s) == 100_000 and len(set(s)) == 1 for s in seen)
    assert len(files(tmp_path)) == 1


def test_kernels_of_sources_unused_for_long_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path))
    ages = {"0" * 16: 31, "1" * 16: 29, "other": 31}
    for name, days in ages.items():
        (tmp_path / name).mkdir()
        disk.write(tmp_path / name, "identity", b"payload")
        os.utime(tmp_path / name, (time.time() - 86400 * days,) * 2)
    assert disk.folder_for("1" * 16)  # in use: young again
    assert disk.folder_for("2" * 16)
    assert {p.name for p in tmp_path.iterdir()} == {"1" * 16, "2" * 16, "other"}
    assert time.time() - (tmp_path / ("1" * 16)).stat().st_mtime < 3600


@pytest.mark.parametrize("home", [None, "", "/", "//", "relative"])
def test_no_cache_on_disk_without_a_home(tmp_path, monkeypatch, home):
    for name in ("PULLBACK_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    monkeypatch.chdir(tmp_path)
    assert disk.cache_directory() is None
    assert not from_disk("homeless", 5)
    assert not from_disk("homeless", 5)
    assert list(tmp_path.iterdir()) == []


def test_where_kernels_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PULLBACK_CACHE_DIR", "~/kernels")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert disk.cache_directory() == tmp_path / "kernels"
    monkeypatch.delenv("PULLBACK_CACHE_DIR")
    assert disk.cache_directory() == Path("/var/cache/me/pullback")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the standard says to ignore
    assert disk.cache_directory() == tmp_path / ".cache" / "pullback"
