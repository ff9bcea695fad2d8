"""Rows in any order folded part by part, and 16-bit elements on float32 lanes: the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from cells import OPS, same_bytes
from grid import default
from machines import assume
from pullback.core.elements import ELEMENTS
from pullback.cpu import segment_launch
from quick_data import quick_run

ROWS, SEGMENTS = 600, 70
# A signalling NaN of each type, as its bits.
SIGNALLING = {"f32": 0x7F800123, "f16": 0x7C55, "bf16": 0x7F85}


def elements(rng, shape, element, signalling=False):
    """Few values, so that many are alike, with zeros of both signs, infinities and NaN."""
    x = np.round(rng.standard_normal(shape) * 3)
    for value, share in ((np.nan, 0.02), (-0.0, 0.05), (np.inf, 0.01), (-np.inf, 0.02)):
        x[rng.random(shape) < share] = value
    x = x.astype(ELEMENTS[element].dtype)
    if signalling:
        bits = x.view(f"u{x.itemsize}")
        bits[rng.random(shape) < 0.01] = SIGNALLING[element]
        bits[rng.random(shape) < 0.01] = SIGNALLING[element] | 1 << (8 * x.itemsize - 1)
    return x


def ids_of(rng, kind):
    """Segments of no rows, one of very many, and rows of none."""
    ids = rng.integers(-2, SEGMENTS + 2, ROWS)
    ids[rng.random(ROWS) < 0.2] = 7
    return ids.astype(kind)


def case_of(name, element, columns, ids, rng):
    """A case, and its operands."""
    case = default(OPS[name], element, (ROWS, columns), 0)
    case = case.but(segments=SEGMENTS, out_of_range="drop", is_sorted=False)
    x = elements(rng, (ROWS, columns), element, name.startswith(("segment_max", "segment_min")))
    given = {"d_output": elements(rng, (SEGMENTS, columns), element)}
    if not name.endswith("_backward"):
        return case, {"input": x, "segment_ids": ids}
    if name != "segment_mean_backward":
        forward = getattr(pb, name.removesuffix("_backward"))
        y = forward(x, ids, SEGMENTS, out_of_range="drop")
        given |= {"input": x, "output": y}
    return case, {**given, "segment_ids": ids}


def apart_of(given):
    return {n: apart(a) if a.ndim == 2 else a for n, a in given.items()}


def apart(a):
    """The same elements, every other column of an array."""
    wide = np.zeros((a.shape[0], 2 * a.shape[1]), a.dtype)
    wide[:, ::2] = a
    return wide[:, ::2]


IN_PARTS = (
    "segment_max",
    "segment_min",
    "segment_max_backward",
    "segment_min_backward",
    "segment_mean_backward",
)


@pytest.mark.parametrize("element", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", IN_PARTS)
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 8, 24, 32, 64, 128, 72])
def test_parts_have_the_bytes_of_rows_in_order(name, element, columns, monkeypatch):
    for kind in ("i8", "i4"):
        rng = np.random.default_rng(columns)
        case, given = case_of(name, element, columns, ids_of(rng, kind), rng)
        with monkeypatch.context() as patch:
            assume(patch, last_level=0)
            assert segment_launch.part_tables_of(case.problem, 7) is None
            (expected,) = quick_run(case, given, threads=1)
        with monkeypatch.context() as patch:
            assume(patch, l2=0)
            assert (segment_launch.part_tables_of(case.problem, 7) is None) == (columns == 3)
            for operands in (given, apart_of(given)):
                for threads in (1, 2, 7):
                    (found,) = quick_run(case, operands, threads=threads)
                    assert same_bytes(found, expected), (threads, kind)


def test_who_is_folded_in_parts(monkeypatch):
    """Choices that bytes do not show."""

    def tables(name, columns=4, element="f32", rows=40, **how):
        case = default(OPS[name], element, (rows, columns), 0).but(segments=5, **how)
        return segment_launch.part_tables_of(case.problem, 3)

    for name in IN_PARTS:
        assert tables(name).parts == 3, name
    widths = {c: tables("segment_max", c).width for c in (1, 2, 4, 8, 24, 48, 64, 256)}
    assert widths == {1: 1, 2: 2, 4: 4, 8: 8, 24: 8, 48: 16, 64: 64, 256: 64}
    assert tables("segment_max", 3) is None
    assert tables("segment_max", element="f64") is None
    assert tables("segment_max", is_sorted=True) is None
    assert tables("segment_sum") is None
    assert tables("segment_max_backward", ties="first") is None
    assert tables("segment_max", rows=9) is None
    assume(monkeypatch, last_level=2 * (2 * (320 + 64) + 128))
    assert tables("segment_max", 16).parts == 2


@pytest.mark.parametrize("element", ["f16", "bf16"])
@pytest.mark.parametrize("columns", [16, 40])
def test_gradients_of_16_bits_are_rounded_as_in_float64(element, columns):
    """Of packed columns on float32 lanes: middles between two numbers, and what leaves a range."""
    rng, rows, segments = np.random.default_rng(1), 20000, 1500
    dtype = ELEMENTS[element].dtype
    ids = rng.integers(0, segments, rows)
    # The first keeps within the range of float16: no element sends its neighbours to float64.
    for scale, powers in ((0.1, (0, 1)), (0.1, (-7, 5)), (3.0, (-7, 5)), (40.0, (-7, 5))):
        x = (rng.standard_normal((rows, columns)) * scale).astype(dtype)
        x[rng.random(x.shape) < 0.001] = -np.inf
        y = pb.segment_logsumexp(x, ids, segments)
        size = 10.0 ** rng.integers(*powers, (segments, columns))
        dy = (rng.standard_normal((segments, columns)) * size).astype(dtype)
        dy[rng.random(dy.shape) < 0.001] = np.nan
        packed = pb.segment_logsumexp_backward(dy, ids, input=x, output=y)
        strided = pb.segment_logsumexp_backward(dy, ids, input=apart(x), output=y)
        assert same_bytes(packed, strided), scale


@pytest.mark.parametrize("element", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("columns", [64, 65, 130])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_blocks_of_sorted_rows_have_the_bytes_of_columns_apart(kind, columns, element):
    """Extremes and those that hold them, on float32 lanes and on those of float64."""
    rng = np.random.default_rng(columns)
    ids = np.sort(ids_of(rng, "i8"))
    x = elements(rng, (ROWS, columns), element, signalling=True)
    dy = elements(rng, (SEGMENTS, columns), element)
    how = {"sorted": True, "out_of_range": "drop"}
    forward, backward = (getattr(pb, f"segment_{kind}{end}") for end in ("", "_backward"))
    y = forward(x, ids, SEGMENTS, **how)
    assert same_bytes(forward(apart(x), ids, SEGMENTS, **how), y)
    dx = backward(dy, ids, input=x, output=y, **how)
    assert same_bytes(backward(dy, ids, input=apart(x), output=y, **how), dx)
