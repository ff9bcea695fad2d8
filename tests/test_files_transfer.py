"""Parts of arrays between files and memory: the bytes of an assignment, however they lie."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pullback.tools.files import files, transfer
from pullback.tools.files.blocks import chunks

ARRAY = np.arange(5 * 7 * 6 * 4, dtype=np.float32).reshape(5, 7, 6, 4)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[slice, ...]:
    """A part of ARRAY."""
    found = []
    for length in ARRAY.shape:
        start = draw(st.integers(0, length))
        found.append(slice(start, draw(st.integers(start, length))))
    return tuple(found)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transfer")


def packed(part: np.ndarray) -> np.ndarray:
    return transfer.packed_like(part, lambda size: np.empty(size, np.uint8))


@given(box=boxes(), fortran=st.booleans(), gap=st.sampled_from([0, 40, 1 << 13]))
def test_read_and_write(places: Path, box: tuple[slice, ...], fortran: bool, gap: int) -> None:
    """With runs read one by one, with near ones read together, and in groups."""
    order = "F" if fortran else "C"
    np.save(places / "x.npy", np.asarray(ARRAY, order=order))
    form = files.Form(ARRAY.shape, "f32", False)
    (places / "y.npy").unlink(missing_ok=True)
    files.create(places / "y.npy", form)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(transfer, "SMALL_GAP", gap)
        patch.setattr(transfer, "SCRATCH", 300)
        source = files.open_input(places / "x.npy", "x", None, None, stack)
        target = files.open_output(places / "y.npy", form, stack)
        part = source.array[box]
        held = packed(part)
        source.load(part, held)
        assert np.array_equal(held, ARRAY[box])
        into = target.array[box]
        buffer = packed(into)
        buffer[...] = held
        target.save(into, buffer)
    wanted = np.zeros_like(ARRAY)
    wanted[box] = ARRAY[box]
    assert np.array_equal(np.load(places / "y.npy"), wanted)


@given(box=boxes(), size=st.integers(1, 4000))
def test_chunks_in_the_order_of_memory(box: tuple[slice, ...], size: int) -> None:
    for array in (ARRAY, np.asfortranarray(ARRAY)):
        part = array[box]
        order = sorted(range(4), key=lambda k: -array.strides[k])
        found = [chunk.transpose(order).ravel() for chunk in chunks(part, size)]
        assert np.array_equal(np.concatenate(found), part.transpose(order).ravel())
        assert all(chunk.nbytes <= max(size, 4) for chunk in found)


def test_what_others_write_between_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns of a file that several processes write are not read first, nor is what is between."""

    def refuse(*_: object) -> None:
        raise AssertionError("read")

    monkeypatch.setattr(transfer, "_fill", refuse)
    part = np.zeros((6, 8), np.float32)[:, 2:5]
    buffer = np.ones_like(part, order="C")
    (tmp_path / "x").write_bytes(bytes(200))
    handle = os.open(tmp_path / "x", os.O_RDWR)
    try:
        transfer.write_box(handle, 8, part, buffer, shared=True)
        with pytest.raises(AssertionError, match="read"):
            transfer.write_box(handle, 8, part, buffer)
    finally:
        os.close(handle)
    found = np.frombuffer((tmp_path / "x").read_bytes()[:192], np.float32).reshape(6, 8)
    assert found.sum() == found[:, 2:5].sum() == 18


def test_file_that_ends_too_early(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(100))
    handle = os.open(tmp_path / "x", os.O_RDONLY)
    try:
        with pytest.raises(EOFError):
            transfer.read_exactly(handle, 60, 50)
    finally:
        os.close(handle)
