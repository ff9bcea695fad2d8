"""Random shapes, axes, strides and special values against the oracle, by hypothesis."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cells import LAYOUTS, OPS, cover, run_fenced
from grid import NUMBERS, default, has_axes, has_axis, is_defined, is_segmented
from pullback.core import parse
from pullback.tools.case import Case
from pullback.tools.choices import chosen, selectors
from pullback.tools.operands import exactly, make_operands
from tolerance import wrong_with

INF, NAN = np.inf, np.nan
# Small sets make zeros, ties and infinities meet in one row.
PALETTES = {
    "integers": [-2.0, -1.0, 0.0, 1.0, 2.0],
    "fractions": [0.1, -0.3, 0.7, 1e-3, 3.0, -1e4],
    "minus inf": [-INF, -1.0, 0.0, 2.5],
    "nan": [NAN, -1.0, 0.0, 1.0],
}
# Every element type and schedule is a kernel; two types and the layouts below keep them few.
memory = st.tuples(st.just("f32"), st.sampled_from(sorted(LAYOUTS))) | st.tuples(
    st.just("f64"), st.sampled_from(["C", "Fortran"])
)
shapes = st.lists(st.sampled_from([0, 1, 2, 3, 5, 9]), max_size=4).map(tuple)


@st.composite
def problems(draw, name: str) -> tuple[Case, dict[str, np.ndarray], str]:
    op = OPS[name]
    element, layout = draw(memory)
    shape = draw(shapes)
    fields: dict = {}
    if is_segmented(op):
        shape = (draw(st.integers(0, 9)), draw(st.integers(0, 9)))
        fields = {"segments": draw(st.integers(1, 5)), "is_sorted": draw(st.booleans())}
    rank = max(len(shape), 1)
    axis = st.integers(-rank, rank - 1)
    if has_axes(op):
        # Axes that do not merge are a kernel more.
        together = st.tuples(st.integers(0, rank), st.integers(0, rank)).map(
            lambda ends: tuple(range(*sorted(ends)))
        )
        anyhow = st.lists(st.sampled_from(range(rank)), unique=True).map(tuple)
        axis = st.none() | axis | (anyhow if element == "f32" else together)
    if has_axis(op):
        fields["axis"] = draw(axis)
    for p in op.parameters:
        if p.parse is parse.flag and p.name not in ("keepdims", "sorted") and not p.choices:
            fields[p.name] = draw(st.booleans())
        elif p.parse is parse.out_of_range:
            fields[p.name] = draw(st.sampled_from(["raise", "drop"]))
        elif p.parse in NUMBERS:
            fields[p.name] = draw(st.sampled_from(NUMBERS[p.parse]))
    # Selections of other records are kernels of their own, tested in the grid; operands that may
    # be left out are given at times.
    choice = {n: v[0] for n, v in selectors(op).items()}
    # A plan for an extreme of nothing is refused before it sees a mask.
    if draw(st.integers(0, 3)) == 0 and not (op.refuses_empty and 0 in shape):
        choice |= {n: True for n in choice if n[0] == "+"}
    case = chosen(default(op, element, shape), choice).but(**fields)
    # inf times a sum that cancels depends on where the product is taken.
    palettes = [p for p in PALETTES if p != "minus inf" or not case.has_products]
    return case, operands(draw, case, PALETTES[draw(st.sampled_from(palettes))]), layout


# What states are multiplied by: infinite, it is that inf.
FACTORS = ("a", "discount")


def operands(draw, case: Case, palette: list[float]) -> dict[str, np.ndarray]:
    def numbers(one: Case, name: str, rng: np.random.Generator) -> np.ndarray:
        shape = one.shape_of(name)
        size = int(np.prod(shape))
        is_factor = one.op.family == "recurrence" and name in FACTORS
        held = [v for v in palette if not is_factor or np.abs(v) != INF]
        values = st.integers(-3, 3) if name in one.cotangents else st.sampled_from(held)
        picks = draw(st.lists(values, min_size=size, max_size=size))
        return np.array(picks, np.float64).reshape(shape)

    if not is_defined(case, "normal"):
        return {}
    return make_operands(case, draw(st.integers(0, 99)), numbers, exactly)


def kinds_of_ops() -> dict[str, list[str]]:
    """Ops by family, so that one test is none too long."""
    found: dict[str, list[str]] = {}
    for name, op in OPS.items():
        found.setdefault(op.family, []).append(name)
    return found


@pytest.mark.parametrize("family", kinds_of_ops())
def test_random_problems(family):
    names = kinds_of_ops()[family]

    @settings(max_examples=20 + 10 * len(names))
    @given(st.sampled_from(names).flatmap(problems))
    def check(problem):
        case, inputs, layout = problem
        if not is_defined(case, "normal"):
            return
        wrong = wrong_with(case, inputs, run_fenced(case, inputs, layout))
        assert not wrong, f"[{layout}] {wrong[0]}"
        cover(case, layout, "random")

    check()
