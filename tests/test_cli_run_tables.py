"""``pullback run`` of segment ops on tables that do not fit: columns by blocks, rows by pieces."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pullback.core.catalog import OPS
from pullback.tools.case import Case
from pullback.tools.files import running, tables
from pullback.tools.operands import make_operands
from run_files import refused, run, same

# Several pieces of rows, however few columns there are at a time.
ROWS, SEGMENTS = 400, 9


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for a few kilobytes, whatever the process takes."""
    monkeypatch.setattr(running.Run, "_room_beside", lambda *_: 1 << 12)
    monkeypatch.setattr(tables, "STATES_SHARE", 0.25)


def check(folder: Path, name: str, tail: tuple[int, ...], order: str = "C", **how: object) -> int:
    """Compare with the function; returns how many blocks there were."""
    width = int(np.prod(tail))
    op = OPS[name]
    case = Case.of(op, "f32", (ROWS, width), segments=SEGMENTS, **how)
    operands = make_operands(case)
    told: list[object] = []
    for operand, array in operands.items():
        if array.ndim > 1:
            array = np.asarray(array.reshape(len(array), *tail), order=order)
        np.save(folder / f"{operand}.npy", array)
        told += [f"--{operand.replace('_', '-')}", folder / f"{operand}.npy"]
    if "segment_ids" in operands and op.parameter("num_segments"):
        told += ["--num-segments", SEGMENTS]
    for n, value in how.items():
        if n not in ("given", "is_sorted"):
            told += [f"--{n}", value]
    (out,) = case.outputs
    said = run(name, *told, "--memory", "8GB", "--out", folder / "out.npy")
    wanted = case.results(operands)[out]
    assert same(np.load(folder / "out.npy").reshape(wanted.shape), wanted)
    return int(re.search(r"(\d+) block", said)[1])


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("segment_softmax", {}),
        ("segment_softmax_backward", {}),
        ("segment_max_backward", {"ties": "first"}),
        ("segment_softmax", {"given": ("offsets",)}),
    ],
)
def test_columns_by_blocks(tmp_path: Path, name: str, how: dict) -> None:
    assert check(tmp_path, name, (9,), **how) > 1


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("name", ["segment_sum", "segment_sum_backward"])
def test_columns_that_are_not_in_the_order_of_memory(tmp_path: Path, name: str) -> None:
    assert check(tmp_path, name, (3, 5), "F") > 1


def test_they_are_put_in_order_where_all_fits(tmp_path: Path) -> None:
    assert check(tmp_path, "segment_sum", (3, 5), "F") == 1


def test_states_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.Run, "_room_beside", lambda *_: 1 << 7)
    np.save(tmp_path / "x.npy", np.ones((60, 9), np.float32))
    np.save(tmp_path / "ids.npy", np.zeros(60, np.int64))
    told = refused(tmp_path, "segment_softmax", "--input", tmp_path / "x.npy", "--ids",
                   tmp_path / "ids.npy", "--num-segments", 9, "--memory", "8GB",
                   "--out", tmp_path / "y.npy")  # fmt: skip
    assert "needs the states of all segments" in told
