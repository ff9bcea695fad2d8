"""Exclusive scans and scans cut into runs, beside plain loops and byte for byte."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import pullback as pb
from runs import borders, f64, shown

INF, NAN = np.inf, np.nan
SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")


def gradient(name, dy, x, y, **how):
    """The backward of a scan with the saves it asks for."""
    backward = getattr(pb, f"{name}_backward")
    saves = {"x": x, "y": y}
    asked = [n for n in saves if n in inspect.signature(backward).parameters]
    return backward(dy, **{n: saves[n] for n in asked}, **how)


# The scans by definition, one run at a time, with the derivative of every y[i] by every x[k].


def scanned(name, x, exclusive):
    n = len(x)
    y, slope = np.empty(n), np.zeros((n, n))
    for i in range(n):
        seen = x[: i + (not exclusive)]
        if name == "cumsum":
            y[i], slope[i, : len(seen)] = seen.sum(), 1.0
        elif name == "cumprod":
            y[i] = np.prod(seen)
            slope[i, : len(seen)] = [np.prod(np.delete(seen, k)) for k in range(len(seen))]
        elif name == "logcumsumexp":
            y[i] = np.log(np.exp(seen).sum()) if len(seen) else -INF
            slope[i, : len(seen)] = np.exp(seen - y[i])
        else:
            least = name == "cummin"
            y[i] = (INF if least else -INF) if not len(seen) else (min if least else max)(seen)
            if len(seen):
                slope[i, (np.argmin if least else np.argmax)(seen)] = 1.0
    return y, slope


def by_runs(name, x, dy, marks, exclusive, reverse):
    y, dx = np.empty(x.shape), np.empty(x.shape)
    turn = slice(None, None, -1 if reverse else 1)
    for r in range(len(x)):
        for start, stop in borders(marks[r]):
            row = x[r, start:stop][turn].astype(np.float64)
            found, slope = scanned(name, row, exclusive)
            y[r, start:stop] = found[turn]
            dx[r, start:stop] = (dy[r, start:stop][turn].astype(np.float64) @ slope)[turn]
    return y, dx


def runs_of(shape, seed):
    """Marks about every 20 positions, one at the front of the first row.."""
    marks = np.random.default_rng(seed).random(shape) < 0.05
    marks[0, 0], marks[1, 0] = True, False
    return marks


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("name", SCANS)
def test_runs(name, exclusive, reverse):
    """The numbers of plain loops; and inf and NaN in one run leave every byte of its neighbours."""
    rng = np.random.default_rng(1)
    x, dy = (rng.standard_normal((3, 1200)).astype(np.float32) for _ in range(2))
    marks = runs_of(x.shape, 2)
    how = {"resets": marks, "exclusive": exclusive, "reverse": reverse}
    y = getattr(pb, name)(x, **how)
    dx = gradient(name, dy, x, y, **how)
    exact, exact_dx = by_runs(name, x, dy, marks, exclusive, reverse)
    np.testing.assert_allclose(y, exact, rtol=1e-6, atol=1e-6)
    # The saved y is rounded to float32, and logcumsumexp's gradient reads it.
    np.testing.assert_allclose(dx, exact_dx, rtol=2e-6, atol=2e-5)

    hurt, hurt_dy, is_hurt = x.copy(), dy.copy(), np.zeros(x.shape, bool)
    for r in range(len(x)):
        for start, stop in borders(marks[r])[r % 2 :: 2]:
            is_hurt[r, start:stop] = True
            places = rng.integers(start, stop, 3)
            hurt[r, places] = rng.choice([INF, -INF, NAN, 0.0], 3)
            hurt_dy[r, places] = rng.choice([INF, -INF, NAN, 0.0], 3)
    y_hurt = getattr(pb, name)(hurt, **how)
    dx_hurt = gradient(name, hurt_dy, hurt, y_hurt, **how)
    assert y_hurt[~is_hurt].tobytes() == y[~is_hurt].tobytes()
    assert dx_hurt[~is_hurt].tobytes() == dx[~is_hurt].tobytes()
    assert not np.isfinite(y_hurt[is_hurt]).all()


@pytest.mark.parametrize("name", ["cumsum", "logcumsumexp"])
def test_offsets_are_resets(name):
    """Empty runs, at the front and behind too, one row of marks for all rows, either axis."""
    offsets = np.array([0, 0, 3, 3, 3, 700, 1200, 1200])
    marks = np.zeros(1200, bool)
    marks[[0, 3, 700]] = True
    rng = np.random.default_rng(3)
    x, dy = (rng.standard_normal((3, 1200)).astype(np.float32) for _ in range(2))
    y = getattr(pb, name)(x, resets=marks)
    dx = gradient(name, dy, x, y, resets=marks)
    for index in (np.int32, np.int64):
        given = offsets.astype(index)
        assert getattr(pb, name)(x, offsets=given).tobytes() == y.tobytes()
        assert gradient(name, dy, x, y, offsets=given).tobytes() == dx.tobytes()
    for axis, resets in ((1, marks[None]), (0, marks[:, None])):
        turned = [np.moveaxis(v, 1, axis) for v in (x, dy, y)]
        assert np.array_equal(
            np.moveaxis(getattr(pb, name)(turned[0], axis=axis, resets=resets), axis, 1), y
        )
    assert pb.cumsum(np.empty((2, 0), np.float32), offsets=np.array([0, 0, 0])).shape == (2, 0)
    assert shown(pb.cumsum(f64(7), offsets=np.array([0, 0, 1, 1]))) == [7]


def test_exclusive_cumprod_through_zeros():
    """dx[k] = Σ_{i>k} dy[i]·Π of the others before i, with no division anywhere."""
    for x, dy, expected in (
        ((2, 0, 3, 4), (1, 1, 1, 1), [1, 8, 0, 0]),
        ((0, 2, 0, 5), (1, 1, 1, 1), [3, 0, 0, 0]),
        ((0, 0, 0, 0), (1, 1, 1, 1), [1, 0, 0, 0]),
        ((3, 2, 5, 0), (1, 2, 4, 8), [90, 132, 48, 0]),
        ((INF, NAN, 2, 3), (5, 0, 0, 0), [0, 0, 0, 0]),
    ):
        y = pb.cumprod(f64(*x), exclusive=True)
        dx = pb.cumprod_backward(f64(*dy), x=f64(*x), y=y, exclusive=True)
        assert shown(dx) == expected, x
        y = pb.cumprod(f64(*x)[::-1], exclusive=True, reverse=True)
        dx = pb.cumprod_backward(f64(*dy)[::-1], x=f64(*x)[::-1], y=y, exclusive=True, reverse=True)
        assert shown(dx[::-1]) == expected, x


def test_exclusive_scans_begin_with_nothing():
    x = f64(2, NAN, 3)
    assert shown(pb.cumsum(x, exclusive=True)) == [0, 2, None]
    assert shown(pb.cumprod(x, exclusive=True)) == [1, 2, None]
    assert shown(pb.cummax(x, exclusive=True)) == [-INF, 2, None]
    assert shown(pb.cummin(x, exclusive=True)) == [INF, 2, None]
    assert shown(pb.logcumsumexp(x, exclusive=True)) == [-INF, 2, None]
    for name in SCANS:
        one = f64(5)
        y = getattr(pb, name)(one, exclusive=True)
        assert shown(gradient(name, f64(NAN), one, y, exclusive=True)) == [0]


@pytest.mark.parametrize("ties", ["first", "last"])
@pytest.mark.parametrize(("name", "sign"), [("cummax", 1), ("cummin", -1)])
def test_an_extreme_of_nothing_passes_nothing(name, sign, ties):
    """The dy of a position that has seen nothing is nobody's, in every run."""
    x = sign * f64(1, 3, -INF, 4, 2)
    how = {"exclusive": True, "resets": np.array([False, False, True, False, False])}
    dx = gradient(name, f64(NAN, 2, INF, 8, 16), x, None, ties=ties, **how)
    assert shown(dx) == [2, 0, 8, 16, 0]
