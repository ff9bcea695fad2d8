"""Scans cut into runs and recurrences, beside plain loops and byte for byte."""

from __future__ import annotations

import inspect
import itertools

import numpy as np
import pytest

import pullback as pb
from pullback.cpu.loops.scan_parts import SCAN_BLOCK

INF, NAN = np.inf, np.nan
SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
WAYS = list(itertools.product((False, True), repeat=2))


def f64(*values):
    return np.array(values, np.float64)


def shown(array):
    """As a list in which NaN equals NaN."""
    return [None if v != v else v for v in np.asarray(array, np.float64).ravel().tolist()]


@pytest.fixture
def threads():
    before = pb.get_num_threads()
    yield pb.set_num_threads
    pb.set_num_threads(before)


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


def borders(marks):
    """Where runs begin and end along one row."""
    starts = [0, *(np.flatnonzero(marks[1:]) + 1)]
    return list(zip(starts, [*starts[1:], len(marks)], strict=True))


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


# linear_recurrence


def recurred(a, b, initial, marks, reverse):
    """y by a loop along the last axis, in float64; a zero factor or state passes nothing."""
    y, final = np.empty(b.shape), np.empty(b.shape[:-1])
    n = b.shape[-1]
    for row in np.ndindex(b.shape[:-1]):
        now = float(initial[row])
        for t in range(n)[:: -1 if reverse else 1]:
            at_border = (
                marks[row][t + 1] if reverse and t + 1 < n else not reverse and marks[row][t]
            )
            factor = 0.0 if at_border else float(a[row][t])
            now = float(b[row][t]) + (factor * now if factor and now else 0.0)
            y[row][t] = now
        final[row] = now
    return y, final


def recurred_back(dy, a, y, initial, d_final, marks, reverse):
    da, db, d_initial = np.zeros(dy.shape), np.zeros(dy.shape), np.zeros(dy.shape[:-1])
    n = dy.shape[-1]
    for row in np.ndindex(dy.shape[:-1]):
        order = list(range(n)[:: -1 if reverse else 1])
        passed = float(d_final[row])
        for place in reversed(range(n)):
            t = order[place]
            g = db[row][t] = float(dy[row][t]) + passed
            before = float(y[row][order[place - 1]]) if place else float(initial[row])
            at_border = (
                marks[row][t + 1] if reverse and t + 1 < n else not reverse and marks[row][t]
            )
            factor = 0.0 if at_border else float(a[row][t])
            da[row][t] = 0.0 if at_border or not g or not before else g * before
            passed = factor * g if factor and g else 0.0
        d_initial[row] = passed
    return da, db, d_initial


def problem(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    a = (0.9 + 0.2 * rng.standard_normal(shape)).astype(dtype)
    a[rng.random(shape) < 0.02] = 0.0
    b, dy = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    initial, d_final = (rng.standard_normal(shape[:-1]) for _ in range(2))
    return a, b, dy, initial, d_final, rng.random(shape) < 0.01


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("with_resets", [False, True])
@pytest.mark.parametrize("with_states", [False, True])
def test_linear_recurrence(with_states, with_resets, reverse):
    a, b, dy, initial, d_final, marks = problem((3, 1300), np.float64, 4)
    if with_resets:
        marks[0, 0] = marks[1, -1] = True
    how, back = {"reverse": reverse}, {}
    if with_resets:
        how["resets"] = marks
    else:
        marks = np.zeros(a.shape, bool)
    if with_states:
        how["initial"], back["d_final"] = initial, d_final
    else:
        initial = d_final = np.zeros(3)
    y, final = pb.linear_recurrence(a, b, return_final=True, **how)
    exact, exact_final = recurred(a, b, initial, marks, reverse)
    np.testing.assert_allclose(y, exact, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(final, exact_final, rtol=1e-11, atol=1e-11)
    da, db, d_initial = pb.linear_recurrence_backward(dy, a=a, y=y, **how, **back)
    wanted = recurred_back(dy, a, y, initial, d_final, marks, reverse)
    np.testing.assert_allclose(da, wanted[0], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(db, wanted[1], rtol=1e-11, atol=1e-11)
    if with_states:
        np.testing.assert_allclose(d_initial, wanted[2], rtol=1e-11, atol=1e-11)
    else:
        assert d_initial is None


@pytest.mark.parametrize(
    ("a", "b", "initial", "expected"),
    [
        ((0.5, 0.0, 2.0), (INF, 1.0, 1.0), 0.0, [INF, 1, 3]),
        ((0.5, 0.0, 2.0), (NAN, 1.0, 1.0), 0.0, [None, 1, 3]),
        ((0.0, 2.0, 2.0), (1.0, 1.0, 1.0), NAN, [1, 3, 7]),
        ((INF, INF, 0.0), (1.0, 1.0, 1.0), 0.0, [1, INF, 1]),
        ((NAN, 0.0, 3.0), (1.0, 1.0, 1.0), 2.0, [None, 1, 4]),
        ((NAN, 2.0, 3.0), (1.0, 1.0, 1.0), 0.0, [1, 3, 10]),
        ((-INF, 1.0, 1.0), (1.0, INF, 1.0), 2.0, [-INF, None, None]),
        ((1.0, 1.0, 1.0), (-0.0, 1.0, -1.0), 0.0, [0, 1, 0]),
    ],
)
def test_what_a_factor_stops(a, b, initial, expected):
    a, b, initial = f64(*a), f64(*b), np.float64(initial)
    y, final = pb.linear_recurrence(a, b, initial=initial, return_final=True)
    assert shown(y) == expected
    assert shown(final) == expected[-1:]
    turned = pb.linear_recurrence(a[::-1], b[::-1], initial=initial, reverse=True)
    assert shown(turned) == expected[::-1]


def test_what_a_factor_stops_backward():
    """A gradient of inf or NaN stays behind a = 0, and da of a state of 0 is 0."""
    a, dy = f64(2, 0, 3), f64(1, 1, INF)
    y = pb.linear_recurrence(a, f64(1, 1, 1), initial=f64(4)[0])
    found = pb.linear_recurrence_backward(dy, a=a, y=y, initial=np.float64(4))
    assert [shown(v) for v in found] == [[4, INF, INF], [1, INF, INF], [2]]
    found = pb.linear_recurrence_backward(f64(NAN, 1, 1), a=f64(0, 1, 1), y=f64(0, 0, 0))
    assert [shown(v) for v in found[:2]] == [[0, 0, 0], [None, 2, 1]]


@pytest.mark.parametrize("reverse", [False, True])
def test_nothing_crosses_a_border_of_a_recurrence(reverse):
    """Inf and NaN in a, b, dy and the states of one run leave every byte of its neighbours."""
    a, b, dy, _, _, marks = problem((2, 1200), np.float32, 5)
    marks[:, :: 1199 if reverse else 1200] = True
    how = {"resets": marks, "reverse": reverse}

    def run(a, b, dy, initial, d_final):
        y = pb.linear_recurrence(a, b, initial=initial, **how)
        back = pb.linear_recurrence_backward(dy, a=a, y=y, initial=initial, d_final=d_final, **how)
        return y, *back[:2]

    zero = np.zeros(2)
    clean = run(a, b, dy, zero, zero)
    rng = np.random.default_rng(6)
    hurt, is_hurt = [v.copy() for v in (a, b, dy)], np.zeros(a.shape, bool)
    for r in range(2):
        for start, stop in borders(marks[r])[r::2]:
            is_hurt[r, start:stop] = True
            for v in hurt:
                v[r, rng.integers(start, stop, 3)] = rng.choice([INF, -INF, NAN], 3)
    for was, now in zip(clean, run(*hurt, zero, zero), strict=True):
        assert now[~is_hurt].tobytes() == was[~is_hurt].tobytes()
        assert not np.isfinite(now[is_hurt]).all()


def test_a_border_in_front_of_all():
    """A reset at 0 keeps the initial state out; scanned from the end, it cuts nothing."""
    marks, ones = np.array([True, False, False]), np.ones(3)
    y, final = pb.linear_recurrence(
        ones, ones, initial=f64(NAN)[0], resets=marks, return_final=True
    )
    assert (shown(y), shown(final)) == ([1, 2, 3], [3])
    da, db, d_initial = pb.linear_recurrence_backward(
        ones, a=ones, y=y, initial=f64(NAN)[0], resets=marks
    )
    assert (shown(da), shown(db), shown(d_initial)) == ([0, 2, 2], [3, 2, 1], [0])
    y = pb.linear_recurrence(ones, ones, initial=f64(10)[0], resets=marks, reverse=True)
    assert shown(y) == [13, 12, 11]
    back = pb.linear_recurrence_backward(
        ones, a=ones, y=y, initial=f64(10)[0], resets=marks, reverse=True
    )
    assert [shown(v) for v in back] == [[12, 22, 30], [1, 2, 3], [3]]


def test_one_element_and_none():
    y, final = pb.linear_recurrence(
        np.full((2, 1), 3.0), np.ones((2, 1)), initial=f64(1, 2), return_final=True
    )
    assert (shown(y), shown(final)) == ([4, 7], [4, 7])
    back = pb.linear_recurrence_backward(
        np.ones((2, 1)), a=np.full((2, 1), 3.0), y=y, initial=f64(1, 2), d_final=f64(0, 1)
    )
    assert [shown(v) for v in back] == [[1, 4], [1, 2], [3, 6]]
    nothing = np.empty((2, 0))
    y, final = pb.linear_recurrence(nothing, nothing, initial=f64(1, 2), return_final=True)
    assert y.shape == (2, 0)
    assert shown(final) == [1, 2]
    back = pb.linear_recurrence_backward(
        nothing, a=nothing, y=nothing, initial=f64(1, 2), d_final=f64(5, 6)
    )
    assert shown(back[2]) == [5, 6]


@pytest.mark.parametrize("shape", [(5, 1300), (1, 300_000)])
def test_same_bytes(shape, threads):
    """Any layout, any number of threads, rows or columns, a row that threads share."""
    a, b, dy, initial, d_final, marks = problem(shape, np.float32, 7)
    results = []

    def run(arrays, axis, turn=lambda v: v):
        a, b, dy, marks = arrays
        how = {"initial": initial, "resets": marks, "axis": axis}
        y, final = pb.linear_recurrence(a, b, return_final=True, **how)
        back = pb.linear_recurrence_backward(dy, a=a, y=y, d_final=d_final, **how)
        found = [turn(v) for v in (y, *back[:2])] + [final, back[2]]
        results.append([np.ascontiguousarray(v).tobytes() for v in found])

    given = (a, b, dy, marks)
    threads(1)
    run(given, 1)
    threads(3)
    run(given, 1)
    run([np.asfortranarray(v) for v in given], 1)
    run([np.repeat(np.repeat(v, 2, 0), 2, 1)[::2, ::2] for v in given], 1)
    run([np.ascontiguousarray(v[::-1, ::-1])[::-1, ::-1] for v in given], 1)
    run([np.ascontiguousarray(v.T) for v in given], 0, np.transpose)
    assert all(r == results[0] for r in results)


def test_a_broadcast_factor():
    """A view of stride 0 gives the bytes of its copy, and a gradient of the full shape."""
    _, b, dy, initial, _, _ = problem((4, 700), np.float32, 8)
    for a in (np.full((4, 1), 0.9, np.float32), np.linspace(0.5, 1, 700, dtype=np.float32)[None]):
        view = np.broadcast_to(a, b.shape)
        y = pb.linear_recurrence(view, b, initial=initial)
        assert y.tobytes() == pb.linear_recurrence(view.copy(), b, initial=initial).tobytes()
        found = pb.linear_recurrence_backward(dy, a=view, y=y, initial=initial)
        copied = pb.linear_recurrence_backward(dy, a=view.copy(), y=y, initial=initial)
        assert [v.tobytes() for v in found] == [v.tobytes() for v in copied]
        assert found[0].shape == b.shape


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("extent", [3 * SCAN_BLOCK, 3 * SCAN_BLOCK + 100])
def test_pieces_give_the_bytes_of_the_whole(extent, reverse):
    """Cut on the grid, which counts from where a scan begins: the backward's from the other end.

    The backward of a piece takes the saved y in front of it as its initial state.
    """
    a, b, dy, initial, d_final, _ = problem((2, extent), np.float32, 9)
    y, final = pb.linear_recurrence(a, b, initial=initial, reverse=reverse, return_final=True)
    given = {"initial": initial, "d_final": d_final, "reverse": reverse}
    da, db, d_initial = pb.linear_recurrence_backward(dy, a=a, y=y, **given)

    def piece(v, start, stop):
        """Counted in the order of the scan."""
        return v[:, extent - stop : extent - start] if reverse else v[:, start:stop]

    state = initial
    for start in range(0, extent, SCAN_BLOCK):
        here = start, min(start + SCAN_BLOCK, extent)
        given = {"initial": state, "reverse": reverse, "return_final": True}
        got, state = pb.linear_recurrence(piece(a, *here), piece(b, *here), **given)
        assert got.tobytes() == piece(y, *here).tobytes()
    assert state.tobytes() == final.tobytes()

    passed = d_final
    for stop in range(extent, 0, -SCAN_BLOCK):
        here = max(stop - SCAN_BLOCK, 0), stop
        before = piece(y, here[0] - 1, here[0])[:, 0] if here[0] else initial
        given = {"initial": before, "d_final": passed, "reverse": reverse}
        got_a, got_b, passed = pb.linear_recurrence_backward(
            piece(dy, *here), a=piece(a, *here), y=piece(y, *here), **given
        )
        assert got_b.tobytes() == piece(db, *here).tobytes()
        assert got_a.tobytes() == piece(da, *here).tobytes()
    assert passed.tobytes() == d_initial.tobytes()


def test_growth_of_factors():
    """However large factors have grown, a state of 0 stays 0 and a factor of 0 cuts."""
    a, b = np.full(1000, 1e3), np.zeros(1000)
    assert not pb.linear_recurrence(a, b).any()
    b[600] = 1.0
    y = pb.linear_recurrence(a, b)
    assert not y[:600].any()
    np.testing.assert_allclose(y[600:610], 1e3 ** np.arange(10.0))
    assert y[-1] == INF
    a[800] = 0.0
    y = pb.linear_recurrence(a, b)
    np.testing.assert_allclose(y[700], 1e300)
    assert not y[800:].any()


def by_steps(a, b):
    """Chunk by chunk of one row as the scan joins them, with guards on every product."""

    def times(x, y):
        p = x * y
        return 0.0 if p != p and (x == 0 or y == 0) else p

    def join(first, later):
        return times(first[0], later[0]), later[1] + times(later[0], first[1])

    before, carried, y = (1.0, 0.0), (1.0, 0.0), []
    for start in range(0, len(b), 8):
        if start and start % SCAN_BLOCK == 0:
            before, carried = join(before, carried), (1.0, 0.0)
        held = [(float(p), float(q)) for p, q in zip(a, b, strict=True)][start : start + 8]
        held += [(1.0, 0.0)] * (8 - len(held))
        for half in (1, 2, 4):
            below = [k // half * half - 1 for k in range(8)]
            held = [join(held[below[k]], v) if k & half else v for k, v in enumerate(held)]
        y += [join(join(before, carried), state)[1] for state in held]
        carried = join(carried, held[7])
    return np.array(y[: len(b)])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("bad", [None, INF, NAN])
def test_guards_are_where_they_are_needed(bad, axis):
    """The bits of guarded products, in chunks that run without guards and in those that cannot.

    Zero factors stand at every place of a chunk, and behind and in front of what is not finite.
    """
    rng = np.random.default_rng(13)
    a, b = rng.standard_normal((2, 9, 1100))
    a[rng.random(a.shape) < 0.1] = 0.0
    b[rng.random(b.shape) < 0.1] = -0.0
    if bad is not None:
        a[1::2][rng.random(a[1::2].shape) < 0.01] = bad
        b[2::3][rng.random(b[2::3].shape) < 0.02] = bad
    with np.errstate(invalid="ignore"):
        expected = np.array([by_steps(p, q) for p, q in zip(a, b, strict=True)])
    laid = [np.ascontiguousarray(np.moveaxis(v, 1, axis)) for v in (a, b)]
    y = np.moveaxis(pb.linear_recurrence(*laid, axis=axis), axis, 1)
    assert np.array_equal(np.isnan(y), np.isnan(expected))
    known = ~np.isnan(expected)
    assert y[known].tobytes() == expected[known].tobytes()
    assert known.all() == (bad is None)


def test_not_even_a_sign_crosses_a_border():
    """A run of -0 gives the same bits behind a run of either sign."""
    marks = np.zeros(40, bool)
    marks[[11, 27]] = True
    found = []
    for before in (1.0, -1.0):
        b = np.where(np.arange(40) < 11, before, -0.0)
        y = pb.linear_recurrence(np.full(40, -0.5), b, resets=marks)
        back = pb.linear_recurrence_backward(b[::-1], a=np.full(40, -0.5), y=y, resets=marks[::-1])
        done = pb.discounted_sum(b[::-1], 0.5, done=marks[::-1])
        found.append([y[11:].tobytes(), back[1][::-1][12:].tobytes(), done[::-1][11:].tobytes()])
    assert found[0] == found[1]


def test_a_final_state_alone():
    """Of the two outputs either may be left out."""
    a, b, *_ = problem((3, 600), np.float32, 14)
    _, final = pb.linear_recurrence(a, b, return_final=True)
    plan = pb.Plan.select(pb.Descriptor("linear_recurrence", a.shape, "f32"))
    for _ in range(2):
        alone = np.full((3, 1), NAN)
        plan.run(a=a, b=b, final=alone)
        assert alone[:, 0].tobytes() == final.tobytes()


# discounted_sum and gae


def test_discounted_sum():
    """Beside a loop: done belongs to step t, and nothing crosses it, either way."""
    rng = np.random.default_rng(10)
    x, dy = rng.standard_normal((2, 3, 700))
    discount, done = rng.random((3, 700)), rng.random((3, 700)) < 0.05
    behind = rng.standard_normal(3)
    done[0, -1], done[1, 0] = True, True
    expected, expected_dx = np.empty(x.shape), np.empty(x.shape)
    for r in range(3):
        now, passed = behind[r], 0.0
        for t in reversed(range(700)):
            now = expected[r, t] = x[r, t] + discount[r, t] * (1 - done[r, t]) * now
        for t in range(700):
            now = expected_dx[r, t] = dy[r, t] + passed
            passed = discount[r, t] * (1 - done[r, t]) * now
    y = pb.discounted_sum(x, discount, done=done, initial=behind)
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)
    dx = pb.discounted_sum_backward(dy, discount=discount, done=done)
    np.testing.assert_allclose(dx, expected_dx, rtol=1e-12, atol=1e-12)

    ends = np.flatnonzero(done[2])
    hurt, hurt_dy = x.copy(), dy.copy()
    hurt[2, ends[0] + 1], hurt_dy[2, ends[0]] = NAN, INF
    found = pb.discounted_sum(hurt, discount, done=done, initial=behind)
    assert found[2, : ends[0] + 1].tobytes() == y[2, : ends[0] + 1].tobytes()
    found = pb.discounted_sum_backward(hurt_dy, discount=discount, done=done)
    assert found[2, ends[0] + 1 :].tobytes() == dx[2, ends[0] + 1 :].tobytes()


def test_a_number_and_an_array_of_discounts():
    x = np.random.default_rng(11).standard_normal((2, 600)).astype(np.float32)
    for each in (np.full(x.shape, 0.5, np.float32), np.full(600, 0.5, np.float32)):
        assert pb.discounted_sum(x, each).tobytes() == pb.discounted_sum(x, 0.5).tobytes()
        dx = pb.discounted_sum_backward(x, discount=each)
        assert dx.tobytes() == pb.discounted_sum_backward(x, discount=0.5).tobytes()


@pytest.mark.parametrize(("with_terminated", "with_truncated"), WAYS)
def test_gae(with_terminated, with_truncated):
    """Beside a loop. A value behind a terminated step is not read; behind a truncated one it is."""
    rng = np.random.default_rng(12)
    rewards, values, following = rng.standard_normal((3, 2, 600))
    terminated, truncated = rng.random((2, 2, 600)) < 0.05
    how = {}
    if with_terminated:
        how["terminated"] = terminated
        following[terminated] = NAN
    if with_truncated:
        how["truncated"] = truncated
    gamma, lam = 0.97, 0.9
    expected = np.empty(rewards.shape)
    for r in range(2):
        ahead = 0.0
        for t in reversed(range(600)):
            ends = with_terminated and terminated[r, t]
            cut = ends or (with_truncated and truncated[r, t])
            delta = rewards[r, t] + (0.0 if ends else gamma * following[r, t]) - values[r, t]
            ahead = expected[r, t] = delta + (0.0 if cut else gamma * lam * ahead)
    advantages, returns = pb.gae(rewards, values, following, gamma=gamma, lam=lam, **how)
    np.testing.assert_allclose(advantages, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(returns, expected + values, rtol=1e-12, atol=1e-12)


# What is refused, and by which name.


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda x: pb.cumsum(x, offsets=np.array([0, 5, 3, 6])), "offsets"),
        (lambda x: pb.cumsum(x, offsets=np.array([1, 6])), "offsets"),
        (lambda x: pb.cumsum(x, offsets=np.array([0, 5])), "offsets"),
        (lambda x: pb.cumsum(x, offsets=np.array([0, 7])), "offsets"),
        (lambda x: pb.cumsum(x, offsets=np.array([[0, 6]])), "offsets"),
        (lambda x: pb.cumsum(x, offsets=np.array([], np.int64)), "offsets"),
        (lambda x: pb.cumsum(x, resets=np.zeros(5, bool)), "resets"),
        (lambda x: pb.cumsum(x, resets=np.zeros((1, 2, 6), bool)), "resets"),
        (lambda x: pb.cumsum(x, resets=np.zeros(6, bool), offsets=np.array([0, 6])), "resets"),
        (lambda x: pb.linear_recurrence(x, x[:, :5]), "b"),
        (lambda x: pb.linear_recurrence(x, x, resets=np.zeros((3, 6), bool)), "resets"),
        (lambda x: pb.linear_recurrence(x, x, initial=np.zeros(3)), "initial"),
        (lambda x: pb.linear_recurrence_backward(x, a=x, y=x, d_final=np.zeros(6)), "d_final"),
        (lambda x: pb.discounted_sum(x, np.ones(5)), "discount"),
        (lambda x: pb.discounted_sum(x, 0.5, done=np.zeros((3, 1), bool)), "done"),
        (lambda x: pb.gae(x, x, x, gamma=1.5, lam=0.5), "gamma"),
        (lambda x: pb.gae(x, x, x, gamma=0.5, lam=-0.1), "lam"),
        (lambda x: pb.gae(x, x[:1], x, gamma=0.5, lam=0.1), "values"),
    ],
)
def test_bad_problems(call, named):
    with pytest.raises(pb.InvalidProblemError, match=rf"\b{named}\b"):
        call(np.ones((2, 6)))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda x: pb.cumsum(x, resets=np.zeros(6, np.int64)), "resets"),
        (lambda x: pb.cumsum(x, offsets=np.array([0.0, 6.0])), "offsets"),
        (lambda x: pb.linear_recurrence(x, x.astype(np.float32)), "b"),
        (lambda x: pb.linear_recurrence(x, x, initial=np.zeros(2, np.float32)), "initial"),
        (lambda x: pb.linear_recurrence(x + 0j, x + 0j), "a"),
        (lambda x: pb.discounted_sum(x, 0.5, done=np.zeros((2, 6))), "done"),
        (lambda x: pb.gae(x, x, x, gamma=0.5, lam=0.5, truncated=np.zeros(6, "u1")), "truncated"),
    ],
)
def test_bad_types(call, named):
    with pytest.raises(pb.PullbackError, match=rf"\b{named}\b"):
        call(np.ones((2, 6)))


def test_a_refused_call_writes_nothing():
    x, out = np.ones((2, 6)), np.full((2, 6), 7.0)
    with pytest.raises(pb.InvalidProblemError):
        pb.cumsum(x, offsets=np.array([0, 5, 3, 6]), out=out)
    with pytest.raises(pb.InvalidProblemError):
        pb.linear_recurrence(x, x, initial=np.zeros(3), out=out)
    assert (out == 7.0).all()
