"""Functions that are translated to native code do what Python does."""

from __future__ import annotations

import ctypes
from array import array

import pytest

from pullback.cpu.codegen.functions import inlined, inner
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
@pytest.mark.parametrize("pair", PAIRS)
def test_tuples(pair):
    assert native(tuples, 2)(*pair) == in_python(*pair)


@pytest.mark.quick
@pytest.mark.parametrize("pair", [(0, 10), (-4, 3), (5, 5), (7, 2), (1, 40)])
def test_ranges(pair):
    assert native(ranges, 2)(*pair) == ranges.function(*pair)


@pytest.mark.quick
def test_a_division_by_zero_is_one_by_one():
    assert native(no_division_ends_the_process, 2)(7, 0) == 7


@pytest.mark.quick
def test_no_value_is_zero():
    found = native(nothing_at_the_end, 1)
    assert [found(a) for a in (1, 2, -1, -9)] == [1, 0, 0, -9]


@pytest.mark.quick
def test_a_source_that_was_edited_is_refused(tmp_path):
    path = tmp_path / "edited.py"
    path.write_text("def f(a):\n    return a + 1\n")
    found = {}
    exec(compile(path.read_text(), str(path), "exec"), found)
    path.write_text("def f(a):\n    return a - 1\n")
    with pytest.raises(TypeError, match=r"edited\.py has changed since it was imported"):
        object_code(found["f"], caller_machine())


@pytest.mark.quick
def test_without_a_source_it_is_said_what_is_missing():
    found = {}
    exec(compile("def f(a):\n    return a\n", "nowhere.py", "exec"), found)
    with pytest.raises(TypeError, match=r"nowhere\.py, to be compiled, cannot be read"):
        object_code(found["f"], caller_machine())


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


@inlined
def larger_by(step, pair):
    """``step`` is known where it is called with a number, which decides at once."""
    if step is None:
        return pair
    first, second = pair
    return first + step, second + step


@inner
def swapped(pair, nothing):
    first, second = pair
    if first > second:
        return second, first
    return first, second


@inner
def tuples(a, b):
    low, high = swapped(larger_by(THREE, (a, b)), (None, None))
    same = larger_by(None, (low, high))
    total = 0
    for weight, value in ((1, same[0]), (10, same[-1])):
        total += weight * value
    return total + len(same) * 1000


def in_python(a, b):
    low, high = sorted((a + THREE, b + THREE))
    return low + 10 * high + 2000


@inner
def ranges(first, last):
    total = 0
    for k in range(first, last, THREE):
        total += k
    for k in range(last, first, -2):
        total -= k
    step = THREE - 1
    for k in range(first, last, step + first * 0):
        total = total ^ k << 1
    return total if -10 < total <= last else ~total


@inner
def no_division_ends_the_process(a, b):
    return a // b + a % b


@inner
def nothing_at_the_end(a):
    if a > 0:
        return a == 1
    if a < -5:
        return a
    return None


def floats(a):
    return a * 0.5


def many(a):
    return [a]


def unknown(a):
    return print(a)


def of_two_lengths(a):
    pair = (a, a)
    pair = pair + pair[:1]
    return pair[0]


def bool_and_integer(a):
    found = a == 1
    if found:
        found = a
    return found


def by_keyword(a):
    return swapped(pair=(a, a))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("function", "part"),
    [
        (floats, "0.5"),
        (many, "[a]"),
        (unknown, "print(a)"),
        (of_two_lengths, "two types"),
        (bool_and_integer, "two types"),
        (by_keyword, "swapped(pair=(a, a))"),
    ],
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
