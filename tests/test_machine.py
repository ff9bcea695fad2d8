"""Choices follow the machine: what is known of it, what is chosen, the same bytes either way."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from cells import OPS, same_bytes
from grid import default
from machines import assume
from pullback.cpu import disk, launch, machine
from pullback.cpu.launch import Launch
from pullback.cpu.program import HEAD, PATCH_WORDS, PHASE_WORDS, THREADS, WAKES
from pullback.cpu.segment_launch import tiles_of
from pullback.cpu.words import FAR, STREAMED, TILE
from quick_data import quick_operands, quick_run
from scripts import run_script


def cpu_folder(root: Path, cpu: int, caches: list[tuple[int, str, str, str]]) -> None:
    for k, (level, kind, size, shared) in enumerate(caches):
        folder = root / f"cpu{cpu}" / "cache" / f"index{k}"
        folder.mkdir(parents=True)
        for name, text in zip(
            ("level", "type", "size", "shared_cpu_list"),
            (str(level), kind, size, shared),
            strict=True,
        ):
            (folder / name).write_text(f"{text}\n")


def test_caches_that_linux_tells(tmp_path, monkeypatch):
    """Four of eight CPUs, two and two on a last level; an L2 that two of them share."""
    for cpu in range(8):
        pair, four = cpu // 2 * 2, cpu // 4 * 4
        caches = [
            (1, "Instruction", "64K", str(cpu)),
            (1, "Data", "48K", str(cpu)),
            (2, "Unified", "2048K", f"{pair}-{pair + 1}"),
            (3, "Unified", "16384K", f"{four}-{four + 3}"),
        ]
        cpu_folder(tmp_path, cpu, caches)
    monkeypatch.setattr(machine, "_CPUS", tmp_path)
    monkeypatch.setattr(machine, "allowed_cpus", lambda: [2, 3, 5, 7])
    found = machine._from_linux()
    assert found == machine.Caches(48 << 10, 1 << 20, 32 << 20, "system")
    monkeypatch.setattr(machine, "allowed_cpus", lambda: [5])
    assert machine._from_linux() == machine.Caches(48 << 10, 2 << 20, 16 << 20, "system")
    monkeypatch.setattr(machine, "allowed_cpus", lambda: [99])
    assert machine._from_linux() is None


def test_a_cache_that_the_host_shares_with_others(tmp_path, monkeypatch):
    for size, last in (("266240K", 130 << 20), ("65536K", 64 << 20)):
        for cpu in range(2):
            caches = [(1, "Data", "48K", str(cpu)), (3, "Unified", size, "0-1")]
            cpu_folder(tmp_path / size, cpu, caches)
        monkeypatch.setattr(machine, "_CPUS", tmp_path / size)
        monkeypatch.setattr(machine, "allowed_cpus", lambda: [0, 1])
        found = machine._from_linux()
        assert found is not None
        assert found.last_level == last


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "max 100000\n"}, 4),
        ({"cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, 4),
        ({}, 4),
    ],
)
def test_cores_that_are_granted(tmp_path, monkeypatch, files, cores):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    grant = machine._limit(tmp_path)
    monkeypatch.setattr(machine, "_quota", lambda: grant)
    monkeypatch.setattr(machine, "allowed_cpus", lambda: [0, 1, 4, 5])
    assert machine.allowed_cores() == cores


def test_caches_measured_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path))
    for way in ("_from_linux", "_from_sysctl"):
        monkeypatch.setattr(machine, way, lambda: None)
    start = time.perf_counter()
    found = machine._chosen_caches()
    assert time.perf_counter() - start < 5  # a fifth of a second; machines that run tests are busy
    assert found.source == "measured"
    assert 32 << 10 <= found.l1 <= found.l2 <= found.last_level <= 128 << 20

    def again():
        raise AssertionError("measured again")

    monkeypatch.setattr(machine, "measured", again)
    assert machine._chosen_caches() == found
    assert any(disk.folders(tmp_path))


def test_the_environment_says_otherwise():
    code = "from pullback.cpu.machine import here; print(here().caches)"
    shown = run_script(code, PULLBACK_LAST_LEVEL_CACHE="8MB", PULLBACK_L2_CACHE="524288")
    assert "l2=524288, last_level=8388608, source='environment'" in shown
    with pytest.raises(AssertionError, match="PULLBACK_L2_CACHE: expected bytes, such as 16MB"):
        run_script(code, PULLBACK_L2_CACHE="much")


def word(launch: Launch, which: int) -> int:
    """A word of the template in a launch's program."""
    words = launch.program.words
    start = HEAD + PHASE_WORDS * words[0] + PATCH_WORDS * words[1]
    return words[start + which]


def launch_of(cell, threads: int = 2) -> Launch:
    problem = cell.problem
    arrays = {
        n: np.empty(cell.shape_of(n), cell.dtype) for n in (*cell.op.inputs, *cell.op.outputs)
    }
    return Launch(problem, {n: a.strides for n, a in arrays.items()}, threads)


@pytest.mark.parametrize(("name", "arrays"), [("sum_backward", 1), ("softmax_backward", 3)])
@pytest.mark.parametrize("axis", [0, 1])
def test_stores_past_the_caches_by_the_working_set(name, arrays, axis, monkeypatch):
    """All that a call touches counts, and not the output alone.

    A call that hardly reads writes through the caches up to half as much again.
    """
    cell = default(OPS[name], "f32", (300, 512), axis)
    rows = 4 * (300 if axis else 512) if arrays == 1 else 0
    working_set = arrays * 4 * 300 * 512 + rows
    given = quick_operands(cell)
    results = []
    enough = -(-2 * working_set // 3) if arrays == 1 else working_set
    for last_level, streamed in ((enough, False), (enough - 1, True)):
        with monkeypatch.context() as patch:
            assume(patch, last_level=last_level)
            assert bool(word(launch_of(cell), STREAMED)) == streamed
            results.append(quick_run(cell, given))
    assert all(map(same_bytes, *results))


def test_what_is_broadcast_is_touched_once(monkeypatch):
    cell = default(OPS["softmax_backward"], "f32", (300, 512), 1)
    problem = cell.problem
    packed, repeated = (2048, 4), (0, 4)
    for strides, touched in ((packed, 3 * 300), (repeated, 2 * 300 + 1)):
        operands = {"dy": strides, "y": packed, "dx": packed}
        for last_level, streamed in ((touched * 2048, 0), (touched * 2048 - 1, 1)):
            with monkeypatch.context() as patch:
                assume(patch, last_level=last_level)
                assert word(Launch(problem, operands, 1), STREAMED) == streamed


@pytest.mark.parametrize("name", ["softmax", "cumsum", "segment_sum"])
def test_threads_by_the_cache_of_a_core(name, monkeypatch):
    cell = default(OPS[name], "f32", (256, 256))
    cell = cell.but(segments=40)
    given = quick_operands(cell)
    results = []
    for l2, wakes in ((64 << 20, 0), (1 << 10, 1)):
        with monkeypatch.context() as patch:
            assume(patch, l2=l2)
            if not cell.is_segmented:
                assert launch_of(cell).program.words[HEAD + WAKES] == wakes
            results.append(quick_run(cell, given, threads=2))
    assert all(map(same_bytes, *results))


def test_threads_by_the_work():
    """Calls too short for handing over stay where they are, whatever the caches."""
    for size, shares in ((64, 0), (256, 2)):
        program = launch_of(default(OPS["sum"], "bf16", (size, size * 2), 1)).program
        assert program.words[HEAD + THREADS] == shares


@pytest.mark.parametrize("name", ["sum", "prod"])
def test_rows_asked_for_ahead_by_the_cache_of_a_core(name, monkeypatch):
    cell = default(OPS[name], "f32", (300, 512), 1)
    given = quick_operands(cell)
    results = []
    for l2, last_level, far in ((64 << 20, 1 << 30, 0), (1 << 10, 1 << 30, 1), (1 << 10, 1, 2)):
        with monkeypatch.context() as patch:
            assume(patch, l2=l2, last_level=last_level)
            assert word(launch_of(cell), FAR) == far
            results.append(quick_run(cell, given, threads=2))
    for other in results[1:]:
        assert all(map(same_bytes, results[0], other))


@pytest.mark.parametrize("name", ["softmax_backward", "var", "cumsum", "cumprod_backward"])
def test_tiles_of_columns_by_the_cache_of_a_core(name, monkeypatch):
    cell = default(OPS[name], "f32", (70, 1100), 0)
    given = quick_operands(cell)
    results, tiles = [], []
    for l2 in (16 << 20, 32 << 10, 1 << 10):
        with monkeypatch.context() as patch:
            assume(patch, l2=l2)
            tiles.append(word(launch_of(cell, 1), TILE))
            results.append(quick_run(cell, given, threads=1))
    assert tiles[0] > tiles[1] >= tiles[2] == 64
    for other in results[1:]:
        assert all(map(same_bytes, results[0], other))


def test_tiles_of_softmax_that_keep_what_is_lifted(monkeypatch):
    """Narrow ones by the maker, the element type and what is near."""
    results = []
    for element, amd, last_level, columns in (
        ("f32", True, 64 << 20, 64), ("f32", True, 1 << 20, 512), ("f32", False, 64 << 20, 512),
        ("bf16", False, 64 << 20, 64), ("bf16", True, 1 << 20, 512),
    ):  # fmt: skip
        cell = default(OPS["softmax"], element, (1024, 512), 0)
        with monkeypatch.context() as patch:
            assume(patch, last_level=last_level, l2=16 << 20)
            patch.setattr(launch, "is_amd", lambda amd=amd: amd)
            assert word(launch_of(cell, 1), TILE) == columns
            results.append((element, quick_run(cell, quick_operands(cell), threads=1)))
    for wanted in ("f32", "bf16"):
        first, *others = [found for element, found in results if element == wanted]
        for other in others:
            assert all(map(same_bytes, first, other))


@pytest.mark.parametrize(("name", "near"), [("sum", 4 << 20), ("softmax_backward", 1 << 20)])
def test_tiles_of_columns_beyond_the_caches(name, near, monkeypatch):
    """Wide ones, unless what they read again would be near in narrower ones."""
    cell = default(OPS[name], "f32", (70, 5000), 0)
    given = quick_operands(cell)
    results = []
    for last_level, columns in ((64 << 20, 1024), (near, 1024), (256 << 10, 2048)):
        with monkeypatch.context() as patch:
            assume(patch, last_level=last_level, l2=16 << 20)
            assert word(launch_of(cell, 1), TILE) == columns
            results.append(quick_run(cell, given, threads=1))
    for other in results[1:]:
        assert all(map(same_bytes, results[0], other))


@pytest.mark.parametrize("out_of_range", ["raise", "drop"])
@pytest.mark.parametrize(("rows", "columns", "segments"), [(500, 30, 40), (300, 17, 7), (9, 3, 2)])
@pytest.mark.parametrize("element", ["f32", "bf16"])
def test_segments_folded_in_tiles_by_the_caches(
    element, rows, columns, segments, out_of_range, monkeypatch
):
    """Rows in any order into tiles of columns, or sorted: the same order of additions."""
    cell = default(OPS["segment_sum"], element, (rows, columns))
    cell = cell.but(segments=segments, out_of_range=out_of_range, is_sorted=False)
    given = quick_operands(cell)
    problem = cell.problem
    results = []
    for last_level, l2 in ((1 << 30, 1 << 30), (1 << 30, 0), (32 << 10, 0), (0, 0)):
        with monkeypatch.context() as patch:
            assume(patch, last_level=last_level, l2=l2)
            tiles = tiles_of(problem, 2)
            assert (tiles is None) == (last_level == 0)
            results += [quick_run(cell, given, threads=threads) for threads in (1, 2, 3)]
            # Columns that do not lie side by side.
            strided = {**given, "input": np.asfortranarray(given["input"])}
            results.append(quick_run(cell, strided, threads=2))
    for other in results[1:]:
        assert all(map(same_bytes, results[0], other))


def test_tiles_are_as_wide_as_fits(monkeypatch):
    cell = default(OPS["segment_sum"], "f32", (50, 30)).but(segments=64)
    problem = cell.problem
    for last_level, columns in ((1 << 30, 32), (2 * 8 * 64 * 20, 16), (2 * 8 * 64 * 7, None)):
        assume(monkeypatch, last_level=last_level)
        tiles = tiles_of(problem, 1)
        assert (tiles.columns if tiles else None) == columns
    assume(monkeypatch, last_level=1 << 30)
    assert tiles_of(cell.but(shape=(50, 33)).problem, 1) is None


def test_one_core_uses_one_thread():
    """By affinity, where the system has it."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("no affinity on this system")
    code = """
    import os
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import pullback as pb
    print(pb.get_num_threads())
    """
    assert run_script(code).strip() == "1"


def test_env_shows_the_machine():
    code = "from pullback.tools.cli import main; main(['env', '--json'], standalone_mode=False)"
    found = json.loads(run_script(code, PULLBACK_LAST_LEVEL_CACHE="8MB"))
    assert found["caches"]["last_level"] == 8 << 20
    assert found["choices"]["past_the_caches_from_bytes"] == (8 << 20) + 1
    assert found["page_bytes"] > 0
