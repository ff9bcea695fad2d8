"""linear_recurrence, beside plain loops and byte for byte."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from pullback.cpu.loops.scan_parts import SCAN_BLOCK
from runs import borders, f64, shown

INF, NAN = np.inf, np.nan


@pytest.fixture
def threads():
    before = pb.get_num_threads()
    yield pb.set_num_threads
    pb.set_num_threads(before)


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


def test_offsets_are_resets():
    """Empty runs, at the front and behind too; the same runs for every row."""
    a, b, dy, initial, d_final, _ = problem((2, 1100), np.float32, 15)
    marks = np.zeros(1100, bool)
    marks[[0, 3, 700]] = True
    for reverse in (False, True):
        found = []
        for runs in ({"offsets": np.array([0, 0, 3, 3, 700, 1100, 1100])}, {"resets": marks}):
            how = {"initial": initial, "reverse": reverse, **runs}
            y, final = pb.linear_recurrence(a, b, return_final=True, **how)
            back = pb.linear_recurrence_backward(dy, a=a, y=y, d_final=d_final, **how)
            found.append([v.tobytes() for v in (y, final, *back)])
        assert found[0] == found[1]


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
