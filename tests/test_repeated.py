"""A function called again takes a shorter way, which must not show."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from pullback.api import calling
from pullback.cpu.array_words import fields_are_known
from pullback.tools.case import Case, cuts
from pullback.tools.operands import make_operands

DTYPES = ("f32", "f64", "f16", "bf16")
OPS = [op for op in pb.catalog() if not cuts(op)]


@pytest.fixture(autouse=True)
def nothing_remembered():
    calling.forget()


@pytest.fixture(params=["by native code", "in Python"])
def looked_at(request, monkeypatch):
    """How arrays are looked at: in Python where their fields are not known."""
    is_known = request.param == "by native code"
    monkeypatch.setattr("pullback.api.packed.fields_are_known", lambda: is_known)


def results_of(op, dtype, shape=(3, 40)) -> list[tuple[np.ndarray, ...]]:
    case = Case.of(op, dtype, shape, axis=1)
    operands = make_operands(case)
    results = [case.call(operands) for _ in range(3)]
    return [r if isinstance(r, tuple) else (r,) for r in results]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_again_gives_the_same_bytes_in_an_array_of_its_own(op, dtype):
    first, *others = results_of(op, dtype)
    assert any(f.calls for f in calling._made), "the call was not remembered"
    for again in others:
        for a, b in zip(first, again, strict=True):
            if a is None:
                assert b is None
                continue
            assert type(b) is np.ndarray
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert a.tobytes() == b.tobytes()
            assert not np.shares_memory(a, b)


def test_the_shorter_way_is_taken(monkeypatch):
    x = np.ones((2, 9), np.float32)
    pb.cumsum_backward(x)

    def no_view(*args):
        raise AssertionError("a view was made")

    monkeypatch.setattr("pullback.api.calling.view_of", no_view)
    assert pb.cumsum_backward(x).tolist() == [list(range(9, 0, -1))] * 2


def test_the_shorter_way_with_masks_and_states(monkeypatch):
    rng = np.random.default_rng(1)
    a, b = rng.random((2, 3, 40), np.float32)
    marks, initial = a > 0.8, rng.random(3)
    calls = (
        lambda: pb.linear_recurrence(a, b),
        lambda: pb.linear_recurrence(a, b, initial=initial, resets=marks, return_final=True),
        lambda: pb.linear_recurrence_backward(b, a=a, y=b, initial=initial),
        lambda: pb.gae(a, b, a, gamma=0.9, lam=0.9, terminated=marks, truncated=marks),
    )
    first = [call() for call in calls]
    with pytest.raises(pb.InvalidProblemError, match="initial: expected shape"):
        pb.linear_recurrence(a, b, initial=initial[:2], resets=marks, return_final=True)

    def no_view(*args):
        raise AssertionError("a view was made")

    monkeypatch.setattr("pullback.api.calling.view_of", no_view)
    for call, known in zip(calls, first, strict=True):
        again = call()
        pairs = zip(again, known, strict=True) if isinstance(known, tuple) else [(again, known)]
        for x, y in pairs:
            assert (x.dtype, x.tobytes()) == (y.dtype, y.tobytes())


@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_with_and_without_their_axes(keepdims):
    x = np.arange(1.0, 25.0).reshape(2, 3, 4)
    for axis in (None, 1, [0, 2], (0, 1, 2)):
        y = pb.norm2(x, axis=axis, keepdims=keepdims)
        again = pb.norm2(x, axis=axis, keepdims=keepdims)
        assert again.shape == y.shape
        assert again.tobytes() == y.tobytes()
        dx = pb.norm2_backward(np.ones_like(y), x=x, y=y, axis=axis)
        for dy in (np.ones_like(y), np.ones_like(y, order="F")):
            assert pb.norm2_backward(dy, x=x, y=y, axis=axis).tobytes() == dx.tobytes()
        mean = pb.mean_backward(np.ones_like(y), shape=x.shape, axis=axis)
        listed = pb.mean_backward(np.ones_like(y), shape=list(x.shape), axis=axis)
        assert mean.tobytes() == listed.tobytes()


def test_other_layouts_after_a_packed_call():
    rng = np.random.default_rng(0)
    dy, y = rng.random((2, 6, 8)), rng.random((2, 6, 8))
    expected = pb.softmax_backward(dy, y=y)
    for reorder in (np.asfortranarray, lambda a: a[:, :, ::-1][:, :, ::-1], lambda a: a.copy()):
        assert np.array_equal(pb.softmax_backward(reorder(dy), y=y), expected)
        assert np.array_equal(pb.softmax_backward(dy, y=reorder(y)), expected)
    transposed = pb.softmax_backward(dy.T, y=y.T, axis=0)
    assert np.array_equal(transposed.T, expected)


def test_out_is_written_and_returned():
    dy = np.arange(12.0).reshape(3, 4)
    expected = pb.cumsum_backward(dy)
    out = np.full((3, 4), np.nan)
    assert pb.cumsum_backward(dy, out=out) is out
    assert np.array_equal(out, expected)
    assert pb.cumsum_backward(dy, out=dy) is dy  # in place
    assert np.array_equal(dy, expected)


def read_only(shape) -> np.ndarray:
    array = np.zeros(shape)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.empty((4, 3)), "out: expected shape"),
        (np.empty((3, 4), np.float32), "out: expected element f64"),
        (read_only((3, 4)), "out: expected a writable output"),
        ("text", "out: expected a NumPy array"),
    ],
)
def test_a_bad_out_is_refused_again(out, message, looked_at):
    dy = np.ones((3, 4))
    pb.cumsum_backward(dy)
    for _ in range(2):
        with pytest.raises(pb.PullbackError, match=message):
            pb.cumsum_backward(dy, out=out)


def test_a_bad_operand_is_refused_again():
    dy, y = np.ones((3, 4)), np.ones((3, 4))
    pb.softmax_backward(dy, y=y)
    with pytest.raises(pb.InvalidProblemError, match="y: expected shape"):
        pb.softmax_backward(dy, y=np.ones((4, 3)))
    with pytest.raises(pb.InvalidProblemError, match="y: expected element f64"):
        pb.softmax_backward(dy, y=y.astype(np.float32))
    pb.norm2(dy, axis=1)
    with pytest.raises(pb.InvalidProblemError, match="out: expected shape"):
        pb.norm2(dy, axis=1, out=np.empty((3, 1)))
    with pytest.raises(pb.InvalidProblemError, match="axis"):
        pb.softmax_backward(dy, y=y, axis=2)


def test_a_misaligned_operand_is_refused_again(looked_at):
    dy, y = np.ones((3, 4)), np.ones((3, 4))
    pb.softmax_backward(dy, y=y)
    odd = np.ndarray((3, 4), np.float64, np.zeros(12 * 8 + 1, np.uint8), offset=1)
    with pytest.raises(pb.MisalignedOperandError, match="y: "):
        pb.softmax_backward(dy, y=odd)
    with pytest.raises(pb.MisalignedOperandError, match="out: "):
        pb.softmax_backward(dy, y=y, out=odd)
    assert not odd.any()


def test_an_output_over_an_operand_is_refused_again(looked_at):
    both = np.ones(16)
    dy, y, behind = both[:12].reshape(3, 4), np.ones((3, 4)), both[4:].reshape(3, 4)
    pb.softmax_backward(dy, y=y)
    for operands in ({"dy": dy, "y": y}, {"dy": y, "y": dy}):
        with pytest.raises(pb.InvalidProblemError, match="output apart from"):
            pb.softmax_backward(**operands, out=behind)
    pb.lerp_backward(y, weight=0.5)
    with pytest.raises(pb.InvalidProblemError, match="output apart from"):
        pb.lerp_backward(y, weight=0.5, out=(dy, behind))
    assert (both == 1).all()


def test_parameters_tell_calls_apart():
    x = np.array([[2.0, 2.0, 1.0]])
    dy, y = np.ones((1, 1)), np.array([[2.0]])
    for _ in range(2):
        assert pb.max_backward(dy, x=x, y=y, axis=1).tolist() == [[0.5, 0.5, 0.0]]
        assert pb.max_backward(dy, x=x, y=y, axis=1, ties="first").tolist() == [[1.0, 0.0, 0.0]]
        assert pb.var(x, axis=1, correction=0).item() == pytest.approx(2 / 9)
        assert pb.var(x, axis=1).item() == pytest.approx(1 / 3)
        a, b = pb.lerp_backward(np.ones(3), weight=0.25)
        assert (a.tolist(), b.tolist()) == ([0.75] * 3, [0.25] * 3)
        assert np.isnan(pb.lerp(np.ones(3), np.ones(3), float("nan"))).all()
        assert np.signbit(pb.lerp_backward(np.ones(3), weight=-0.0)[1]).all()
        assert not np.signbit(pb.lerp_backward(np.ones(3), weight=0.0)[1]).any()
        assert pb.cumsum(x, axis=1, reverse=True).tolist() == [[5.0, 3.0, 1.0]]
        assert pb.cumsum(x, axis=1).tolist() == [[2.0, 4.0, 5.0]]


def test_bfloat16_arrays_take_it_too(monkeypatch):
    x = np.ones((2, 9), ml_dtypes.bfloat16)
    pb.cumsum(x)
    monkeypatch.setattr("pullback.api.calling.view_of", None)
    assert pb.cumsum(x).dtype == x.dtype


def test_arrays_are_looked_at_in_python_where_their_fields_are_not_known(monkeypatch):
    x = np.random.default_rng(3).standard_normal((5, 40)).astype("f4")
    found = []
    for known in (True, False):
        monkeypatch.setattr("pullback.api.packed.fields_are_known", lambda known=known: known)
        plan = pb.SoftmaxPlan.select(pb.SoftmaxDescriptor("softmax", x.shape, 1, "f32"))
        y = np.empty_like(x)
        for _ in range(3):
            plan.run(x=x, y=y)
        found.append(y.tobytes())
        fixed = np.empty_like(x)
        fixed.flags.writeable = False
        room = np.zeros(6 * 40, "f4")
        here, overlapping = room[:200].reshape(5, 40), room[40:].reshape(5, 40)
        for given, out in ((x, fixed), (x, y.astype("f8")), (x, y[:4]), (here, overlapping)):
            with pytest.raises(pb.PullbackError):
                plan.run(x=given, y=out)
        flipped = np.empty_like(x)
        plan.run(x=x, y=flipped[:, ::-1])  # the long way
        assert flipped[:, ::-1].tobytes() == y.tobytes()
    assert found[0] == found[1]
    assert fields_are_known()
