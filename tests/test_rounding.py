"""The one rounding at a store, float64 to float16 and bfloat16, seen between all neighbours."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from pullback.api.functions import make_function
from pullback.core import parse
from pullback.core.declare import Op, Operand, Parameter, Role, Text, Type
from pullback.formulas.primitives import where
from pullback.formulas.record import RowFormula
from scripts import run_script

# Bits of infinity: the finite numbers of one sign are all bits below.
INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80}
DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def stored(x, state):
    return where(x == 0, state, x)


STORE = Op(
    "store",
    "reduce",
    "store",
    "forward",
    Text("y = state"),
    (Operand("x"), Operand("state", Role.ROW, Type.STATE)),
    (Operand("y"),),
    lambda: RowFormula(apply=stored),
    (Parameter("axis", parse.axis, -1, is_positional=True),),
)


def rounded(values: np.ndarray, name: str, axis: int = 0) -> np.ndarray:
    """Bits of float64 numbers as a kernel stores them."""
    shape = (2, len(values)) if axis == 0 else (len(values), 2)
    y = make_function(STORE)(np.zeros(shape, DTYPES[name]), values, axis).view(np.uint16)
    assert np.array_equal(y.take(0, axis), y.take(1, axis))
    return y.take(0, axis)


def around_every_midpoint(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers at, and by little or by more beside, all that halves a gap; and their bits."""
    low = np.arange(INFINITY[name], dtype=np.uint16)
    numbers = np.concatenate([low, low[-1:] + 1]).view(DTYPES[name]).astype(np.float64)
    numbers[-1] = 2 * numbers[-2] - numbers[-3]  # overflow begins as if there were one more
    middle = (numbers[:-1] + numbers[1:]) / 2  # exact
    even = low + low % 2
    cases = [(numbers[:-1], low), (middle, even)]
    for step in (2.0**-52, 2.0**-40, 2.0**-30, 2.0**-26, 2.0**-24, 2.0**-22, 2.0**-14):
        cases += [(middle * (1 - step), low), (middle * (1 + step), low + 1)]
    beside = np.nextafter(numbers[1:], 0), np.nextafter(numbers[:-1], np.inf)
    cases += [(beside[0], low + 1), (beside[1], low)]
    values, bits = (np.concatenate(parts) for parts in zip(*cases, strict=True))
    return np.concatenate([values, -values]), np.concatenate([bits, bits | 0x8000])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", DTYPES)
def test_float64_is_rounded_once(name, axis):
    """Down columns, sixteen at a time where that is done; along rows, one by one."""
    values, bits = around_every_midpoint(name)
    if axis == 1:
        values, bits = values[::17], bits[::17]
    found = rounded(values, name, axis)
    wrong = np.flatnonzero(found != bits)
    assert not wrong.size, [(values[i].hex(), hex(found[i]), hex(bits[i])) for i in wrong[:5]]


@pytest.mark.parametrize("name", DTYPES)
def test_beyond_the_range(name):
    tiny, huge = 2.0**-1074, np.finfo(np.float64).max
    values = np.array([0.0, tiny, 2.0**-149, 2.0**-150, huge, 2.0**128, np.inf])
    bits = np.array([0, 0, 0, 0, *[INFINITY[name]] * 3], np.uint16)
    found = rounded(np.concatenate([values, -values]), name)
    assert np.array_equal(found, np.concatenate([bits, bits | 0x8000]))


@pytest.mark.parametrize("name", DTYPES)
def test_no_nan_becomes_a_number(name):
    """Whatever it carries: all bits set, or only the lowest."""
    carried = [0x7FF8 << 48, (1 << 63) - 1, (0x7FF << 52) + 1, (0x7FF << 52) + (1 << 51) - 1]
    bits = np.array([c | sign << 63 for c in carried for sign in (0, 1)], np.uint64)
    found = rounded(np.repeat(bits.view(np.float64), 3), name)
    assert ((found & 0x7FFF) > INFINITY[name]).all(), found


def test_a_result_that_float32_would_round_first():
    weight = 2.0**-11 + 2.0**-40
    one, two = (np.full(40, v, np.float16) for v in (1.0, 2.0))
    assert (pb.lerp(one, two, weight) == np.float16(1.0009766)).all()


# What a target without instructions for float16 makes of them.
SOFT = """
import hashlib
from test_rounding import DTYPES, around_every_midpoint, rounded
for name in DTYPES:
    print(hashlib.sha256(rounded(around_every_midpoint(name)[0], name).tobytes()).hexdigest())
"""


def test_the_same_bits_without_instructions_for_float16():
    assert run_script(SOFT, PULLBACK_CPU="generic") == run_script(SOFT)


@pytest.mark.quick
def test_products_that_are_not_exact_are_rounded():
    """Only those of narrow numbers may be taken in by a sum as they are."""
    a, b = np.full(9, -1.0), np.full(9, 2.0**-30)
    assert (pb.lerp(a, b, 1 + 2.0**-30) == 2.0**-29).all()
