"""Random shapes, axes, strides and special values against the oracle, by hypothesis."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cells import LAYOUTS, OPS, Cell, run_fenced
from grid import is_defined
from pullback.oracle import round_to
from tolerance import exp_argument, failure

INF, NAN = np.inf, np.nan
# Small sets make zeros, ties and infinities meet in one row.
PALETTES = {
    "integers": [-2.0, -1.0, 0.0, 1.0, 2.0],
    "fractions": [0.1, -0.3, 0.7, 1e-3, 3.0, -1e4],
    "minus inf": [-INF, -1.0, 0.0, 2.5],
    "nan": [NAN, -1.0, 0.0, 1.0],
}
# dx = P·R with an infinite P depends on where the product is taken.
NOT_FOR = {"cumprod": ("minus inf",), "prod": ("minus inf",)}

# Every element type and schedule is a kernel; two types and the layouts below keep them few.
memory = st.tuples(st.just("f32"), st.sampled_from(sorted(LAYOUTS))) | st.tuples(
    st.just("f64"), st.sampled_from(["C", "Fortran"])
)
shapes = st.lists(st.sampled_from([0, 1, 2, 3, 5, 9]), max_size=4).map(tuple)


def numbers(draw, shape, kind) -> np.ndarray:
    palette = draw(st.sampled_from([p for p in PALETTES if p not in NOT_FOR.get(kind, ())]))
    size = int(np.prod(shape))
    picks = draw(st.lists(st.sampled_from(PALETTES[palette]), min_size=size, max_size=size))
    return np.array(picks, np.float64).reshape(shape)


@st.composite
def problems(draw, family: str) -> tuple[Cell, dict[str, np.ndarray], str]:
    op = OPS[draw(st.sampled_from([n for n, o in OPS.items() if o.family == family]))]
    element, layout = draw(memory)
    fields = {}
    if family == "segment":
        shape = (draw(st.integers(0, 9)), draw(st.integers(0, 9)))
        fields["num_segments"] = draw(st.integers(1, 5))
        fields["is_sorted"] = draw(st.booleans())
        fields["out_of_range"] = draw(st.sampled_from(["raise", "drop"]))
    else:
        shape = draw(shapes)
        rank = max(len(shape), 1)
        fields["axis"] = draw(st.integers(-rank, rank - 1))
    if family == "scan":
        fields["reverse"] = draw(st.booleans())
    if family == "reduce":
        # Axes that do not merge are a kernel more.
        together = st.tuples(st.integers(0, rank), st.integers(0, rank)).map(
            lambda ends: tuple(range(*sorted(ends)))
        )
        anyhow = st.lists(st.sampled_from(range(rank)), unique=True).map(tuple)
        every = anyhow if element == "f32" else together
        fields["axis"] = draw(st.none() | st.just(fields["axis"]) | every)
        fields["correction"] = draw(st.sampled_from([0, 1, 2, 9]))
    if family == "lerp":
        fields["weight"] = draw(st.sampled_from([0.0, 0.25, 1.0, -3.0, 0.1]))
    # The other policies of max and min are one formula with the default's, tested in the grid.
    fields["ties"] = op.ties[0] if op.ties else None
    cell = Cell(op, element, shape, **fields)
    return cell, operands(draw, cell), layout


def operands(draw, cell: Cell) -> dict[str, np.ndarray]:
    op = cell.op
    if op.family == "segment":
        name = "input" if op.direction == "forward" else "d_output"
        low, high = (-1, cell.num_segments) if cell.out_of_range == "drop" else (
            0, cell.num_segments - 1
        )  # fmt: skip
        rows = cell.shape[0]
        ids = draw(st.lists(st.integers(low, high), min_size=rows, max_size=rows))
        ids = sorted(ids) if cell.is_sorted else ids
        x = numbers(draw, cell.shape_of(name), op.kind).astype(cell.dtype)
        return {name: x, "segment_ids": np.array(ids, np.int64)}
    made = {}
    for name in op.inputs:
        if name == "dy":
            size = int(np.prod(cell.shape_of("dy")))
            picks = draw(st.lists(st.integers(-3, 3), min_size=size, max_size=size))
            made["dy"] = np.array(picks, cell.dtype).reshape(cell.shape_of("dy"))
        elif name != "y":
            made[name] = numbers(draw, cell.shape, op.kind).astype(cell.dtype)
    if "y" in op.inputs:
        x = made.get("x", numbers(draw, cell.shape, op.kind).astype(cell.dtype))
        if cell.extent:
            exact = cell.forward().exact({"x": x})["y"].value
            made["y"] = round_to(exact, cell.element)
        else:
            made["y"] = np.zeros(cell.shape_of("y"), cell.dtype)
    return {n: made[n] for n in op.inputs}


@pytest.mark.parametrize("family", ["scan", "reduce", "softmax", "lerp", "segment"])
def test_random_problems(family):
    examples = {"scan": 150, "reduce": 200, "softmax": 60}.get(family, 40)

    @settings(max_examples=examples)
    @given(problems(family))
    def check(problem):
        cell, inputs, layout = problem
        if not is_defined(cell, "normal"):
            return
        results = run_fenced(cell, inputs, layout)
        exact = cell.exact(inputs)
        for output, result in results.items():
            found = failure(cell, result, exact[output], exp_argument(inputs))
            assert found is None, f"[{layout}] {output} of {found}"
        cell.cover(layout, "random")

    check()
