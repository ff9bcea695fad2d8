"""Memory of large results is used again, by nobody who is still read."""

from __future__ import annotations

import gc
import mmap

import numpy as np
import pytest

import pullback as pb
from pullback.memory import given_back

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_FREE"), reason="no MADV_FREE here")
F32 = np.dtype(np.float32)


@pytest.fixture(autouse=True)
def nothing_kept():
    given_back._kept.clear()
    yield
    given_back._kept.clear()


def large(megabytes=32):
    return given_back.new_array((megabytes << 10, 256), F32)


def test_memory_is_used_again_when_the_last_array_on_it_is_gone():
    first = large()
    address, part = first.ctypes.data, first[3:5]
    assert first.dtype == F32
    assert first.flags.c_contiguous
    assert first.flags.writeable
    del first
    other = large()
    part[:] = 7
    other[:] = 8
    assert (part == 7).all()
    assert other.ctypes.data != address
    del part
    gc.collect()
    assert large().ctypes.data == address


def test_sizes_are_apart_and_bounded(monkeypatch):
    a, b = large(32), large(34)
    sizes = {a.nbytes, b.nbytes}
    del a, b
    assert {block.size for block in given_back._kept} == sizes
    assert large(36).nbytes not in sizes
    monkeypatch.setattr(given_back, "MOST", 80 << 20)
    del_me = [large(32), large(34), large(40)]
    youngest = del_me[-1].ctypes.data
    while del_me:
        del del_me[0]
    assert sum(block.size for block in given_back._kept) <= 80 << 20
    assert given_back._kept[-1].address == youngest


def test_smaller_arrays_are_numpys():
    assert given_back.new_array((4, 5), F32).flags.owndata


def test_functions_called_again_use_it():
    x = np.ones((1 << 14, 513), np.float32)
    kept = pb.cumsum_backward(x)
    results = [pb.cumsum_backward(x) for _ in range(2)]
    assert len({r.ctypes.data for r in (kept, *results)}) == 3
    assert all((r == kept).all() for r in results)
    address = results.pop().ctypes.data
    x[:, 0] = 2
    again = pb.cumsum_backward(x)
    assert again.ctypes.data == address
    assert again[5, 0] == 514
    assert kept[5, 0] == results[0][5, 0] == 513
