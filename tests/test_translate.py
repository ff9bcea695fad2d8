"""Functions that are translated to native code do what Python does."""

from __future__ import annotations

import ctypes
from array import array

import pytest

from pullback.cpu.codegen.functions import inner
from pullback.cpu.codegen.memory import room_for, set_word, word
from pullback.cpu.emit import object_code
from pullback.cpu.loader import Code, caller_machine

THREE = 3
_room = room_for(4)


def native(function, arguments):
    kind = ctypes.CFUNCTYPE(*[ctypes.c_int64] * (arguments + 1))
    return kind(Code(object_code(function.function, caller_machine())).address)


def arithmetic(a, b):
    total = a + 2 * b - (a & b)
    total += -THREE
    return total + a // b


@inner
def is_even(n):
    return n // 2 * 2 == n


@inner
def choices(a, b):
    found = 0
    if a > b and not is_even(a):
        found = 1
    elif a == b or is_even(b):
        found = 2
    else:
        found += 4
    larger = max(a, b) if found != 2 else min(a, b)
    return 10 * larger + found


@inner
def loops(limit, skipped):
    total, k = 0, 0
    while k < limit:
        k += 1
        if k == skipped:
            continue
        for j in range(k):
            if j > THREE:
                break
            total += j
    return total


@inner
def first_above(block, count, least):
    for k in range(count):
        if word(block, k) > least:
            return k
    return -1


@inner
def boxed(a, b):
    box = _room()
    set_word(box, 0, a)
    set_word(box, 3, b)
    return word(box, 0) - word(box, 3)


@inner
def decides_early(block, at):
    return at != 0 and word(block, at) != 0


PAIRS = [(7, 2), (-7, 2), (7, -2), (-7, -2), (6, 3), (0, 5), (5, 5), (1 << 40, 3)]


@pytest.mark.quick
@pytest.mark.parametrize("pair", PAIRS)
def test_arithmetic(pair):
    assert native(inner(arithmetic), 2)(*pair) == arithmetic(*pair)


@pytest.mark.quick
@pytest.mark.parametrize("pair", PAIRS)
def test_choices(pair, monkeypatch):
    expected = native(choices, 2)(*pair)
    monkeypatch.setitem(choices.function.__globals__, "is_even", _plain_is_even)
    assert expected == choices.function(*pair)


def _plain_is_even(n):
    return n // 2 * 2 == n


@pytest.mark.quick
@pytest.mark.parametrize(("limit", "skipped"), [(0, 0), (1, 5), (9, 4), (9, 9)])
def test_loops(limit, skipped):
    assert native(loops, 2)(limit, skipped) == loops.function(limit, skipped)


@pytest.mark.quick
def test_memory():
    words = array("q", (3, 1, 8, 2))
    find = native(first_above, 3)
    at = words.buffer_info()[0]
    assert [find(at, 4, least) for least in (0, 3, 8)] == [0, 2, -1]
    assert native(boxed, 2)(5, 9) == -4


@pytest.mark.quick
def test_what_is_not_needed_is_not_computed():
    # The address is none: reading it would end the process.
    assert native(decides_early, 2)(0, 0) == 0


def floats(a):
    return a * 0.5


def many(a):
    return [a]


def unknown(a):
    return print(a)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("function", "part"), [(floats, "0.5"), (many, "[a]"), (unknown, "print(a)")]
)
def test_anything_else_is_refused(function, part):
    with pytest.raises(TypeError) as refused:
        object_code(function, caller_machine())
    assert function.__name__ in str(refused.value)
    assert part in str(refused.value)


@pytest.mark.quick
def test_is_not_called_by_python():
    with pytest.raises(TypeError, match="is_even is compiled, not called"):
        is_even(4)
