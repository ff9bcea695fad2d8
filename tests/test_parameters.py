"""What a parameter may be: the same whatever was called before, and errors that name it."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pullback as pb
from pullback.api import calling

X = np.array([[1.0, 3.0, 3.0], [2.0, 5.0, 4.0]])
ONES = np.ones(3)
IDS = np.array([1, 0])


class Word(str, enum.Enum):
    """Members that equal a policy and are none."""

    FIRST = "first"
    RAISE = "raise"


# By function and parameter: a call of it, and values that are allowed, which fill the caches.
CALLS: dict[tuple[str, str], tuple[Callable[[Any], Any], list[Any]]] = {
    ("cumsum", "axis"): (lambda v: pb.cumsum(X, axis=v), [0, 1]),
    ("cumsum", "reverse"): (lambda v: pb.cumsum(X, reverse=v), [False, True]),
    ("cummax_backward", "ties"): (
        lambda v: pb.cummax_backward(X, x=X, ties=v),
        ["first", "last", None],
    ),
    ("softmax", "axis"): (lambda v: pb.softmax(X, axis=v), [0, 1]),
    ("sum", "axis"): (lambda v: pb.sum(X, axis=v), [0, 1, (0, 1), None]),
    ("sum", "keepdims"): (lambda v: pb.sum(X, axis=1, keepdims=v), [False, True]),
    ("var", "correction"): (lambda v: pb.var(X, correction=v), [0, 1, 0.5]),
    ("sum_backward", "axis"): (
        lambda v: pb.sum_backward(ONES, shape=(1, 3), axis=v),
        [0, (0,)],
    ),
    ("sum_backward", "shape"): (
        lambda v: pb.sum_backward(ONES, shape=v, axis=0),
        [(1, 3), (2, 3)],
    ),
    ("max_backward", "ties"): (
        lambda v: pb.max_backward(ONES[:2], x=X, y=X[:, 1].copy(), axis=1, ties=v),
        ["split", "first"],
    ),
    ("lerp", "weight"): (lambda v: pb.lerp(X, -X, v), [0.0, 1.0, 0.5]),
    ("lerp_backward", "weight"): (lambda v: pb.lerp_backward(X, weight=v), [0.0, 1.0, 0.5]),
    ("segment_sum", "num_segments"): (lambda v: pb.segment_sum(X, IDS, v), [2]),
    ("segment_sum", "sorted"): (
        lambda v: pb.segment_sum(X, IDS[::-1].copy(), 2, sorted=v),
        [False, True],
    ),
    ("segment_sum", "out_of_range"): (
        lambda v: pb.segment_sum(X, IDS, 2, out_of_range=v),
        ["raise", "drop"],
    ),
    ("segment_sum_backward", "out_of_range"): (
        lambda v: pb.segment_sum_backward(X, IDS, out_of_range=v),
        ["raise", "drop"],
    ),
}

VALUES = [
    None, 0, 1, -1, 2, 7, True, False, 0.0, -0.0, 1.0, 0.5, 2.0, float("nan"), float("inf"), 1j,
    10**400, "0.5", "no", "", "first", "First", "last", "frist", "raise", "drop", b"first",
    np.int64(1), np.int8(0), np.float64(1.0), np.float32(0.5), np.bool_(True), np.bool_(False),
    np.str_("first"), np.array(1), np.array([0, 1]), np.array(0.5), (), (0,), (1,), (0, 1), (1, 0),
    (0.0, 1.0), (True, False), (0, 0), (1, 3), (1.0, 3.0), (True, 3), (np.int64(1), 3), (2, 3),
    (-1, 3), [], [0], [0, 1], [1, 3], [1.0], ["first"], {0}, {"a": 1}, ((0,), 1), object, len,
    Word.FIRST, Word.RAISE, pb.Ties.FIRST, pb.Ties.SPLIT, pb.OutOfRange.DROP, pb.ScanKind.CUMSUM,
]  # fmt: skip


def forget() -> None:
    """Clear what functions remember of earlier calls."""
    calling.forget()


def outcome(call: Callable[[Any], Any], value: Any) -> tuple[Any, ...]:
    """The bytes of a result, or the class and message of an error of ours."""
    try:
        results = call(value)
    except pb.PullbackError as error:
        return type(error), str(error)
    results = results if isinstance(results, tuple) else (results,)
    return tuple((r.shape, r.dtype, r.tobytes()) for r in results)


def fresh_and_warmed(key: tuple[str, str], value: Any) -> tuple[Any, Any]:
    call, allowed = CALLS[key]
    forget()
    fresh = outcome(call, value)
    forget()
    for good in allowed * 2:
        call(good)
    return fresh, outcome(call, value)


@pytest.mark.parametrize("key", CALLS, ids=" ".join)
def test_history_does_not_matter(key):
    for value in VALUES:
        fresh, warmed = fresh_and_warmed(key, value)
        assert fresh == warmed, repr(value)[:40]


numbers = st.one_of(st.integers(-3, 3), st.booleans(), st.floats(-2, 2), st.just(np.int32(1)))
anything = st.one_of(numbers, st.none(), st.text(max_size=3), st.lists(numbers, max_size=3))


@given(st.sampled_from(list(CALLS)), st.one_of(anything, st.lists(numbers, max_size=3).map(tuple)))
def test_history_does_not_matter_for_any_value(key, value):
    fresh, warmed = fresh_and_warmed(key, value)
    assert fresh == warmed


REFUSED = [
    ("cumsum", "axis", [1.0, True, None, (0, 1), [0], "0", 2, 10**400]),
    ("cumsum", "reverse", [1, 0, "no", None, [True]]),
    ("softmax", "axis", [1.0, True, None, (0, 1), [1], -3]),
    ("sum", "axis", [(0.0, 1.0), (True, False), True, 1.0, {0}, (0, 0), 5, [0.0]]),
    ("sum", "keepdims", ["no", 1, None, [False]]),
    (
        "sum_backward",
        "shape",
        [(True, 3), (1.0, 3.0), 3, "3", (-1, 3), (2**40, 2**40), np.array(3)],
    ),
    ("var", "correction", [[1], "1", True, None, float("nan"), float("inf"), 10**400, 1j]),
    ("lerp", "weight", ["0.5", 10**400, True, None, [0.5], 1j]),
    ("lerp_backward", "weight", ["half", 10**400, None, [1, 2]]),
    ("segment_sum", "sorted", ["no", 1, None]),
    ("segment_sum", "num_segments", [2.0, True, "2", -1, 2**62]),
]


@pytest.mark.parametrize(
    ("name", "parameter", "value"), [(n, p, v) for n, p, values in REFUSED for v in values]
)
def test_refused_by_name(name, parameter, value):
    with pytest.raises(pb.InvalidProblemError, match=rf"^{parameter}: expected"):
        CALLS[name, parameter][0](value)


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        ("cummax_backward", "ties"),
        ("max_backward", "ties"),
        ("segment_sum", "out_of_range"),
        ("segment_sum_backward", "out_of_range"),
    ],
)
def test_policies_are_refused_by_name(name, parameter):
    for value in (["first"], "frist", {}, 1, Word.FIRST, Word.RAISE, pb.ScanKind.CUMSUM):
        with pytest.raises(pb.UnsupportedError, match=rf"^{parameter}: expected one of"):
            CALLS[name, parameter][0](value)


def test_a_descriptor_names_its_own_fields():
    with pytest.raises(pb.InvalidProblemError, match=r"^scan_axis: "):
        pb.ScanDescriptor("cumsum", (2, 3), scan_axis=1.0)
    with pytest.raises(pb.InvalidProblemError, match=r"^reduce_axis: "):
        pb.ReduceDescriptor("sum", (2, 3), reduce_axis=(0, 5))
    with pytest.raises(pb.InvalidProblemError, match=r"^softmax_axis: "):
        pb.SoftmaxDescriptor("softmax", (2, 3), softmax_axis=None)
    for value in ("0.5", 10**400):
        with pytest.raises(pb.InvalidProblemError, match=r"^param: "):
            pb.BinaryParamDescriptor("lerp", (3,), "f64", value)
    with pytest.raises(pb.InvalidProblemError, match=r"^correction: "):
        pb.ReduceDescriptor("var", (3,), correction=10**400)


def test_numbers_of_numpy_are_welcome():
    assert np.array_equal(pb.cumsum(X, axis=np.int64(1)), pb.cumsum(X, axis=1))
    assert np.array_equal(pb.sum(X, axis=(np.int8(0), np.uint16(1))), pb.sum(X))
    assert np.array_equal(pb.cumsum(X, reverse=np.True_), pb.cumsum(X, reverse=True))
    assert np.array_equal(pb.lerp(X, -X, np.float32(0.5)), pb.lerp(X, -X, 0.5))
    assert np.array_equal(pb.var(X, correction=np.int64(0)), pb.var(X, correction=0.0))
