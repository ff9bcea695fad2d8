"""Formulas on whole arrays against the oracle: a second opinion on every record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from cell_data import operands
from cells import OPS
from grid import default, has_axes, is_defined, kinds_at, shapes, variants
from pullback.api.functions import make_function
from pullback.core import parse
from pullback.core.declare import Op, Operand, Parameter, Role, Text, Type
from pullback.core.problem import describe
from pullback.formulas.arrays import evaluate
from pullback.formulas.folds import TOTAL
from pullback.formulas.namespaces import NUMPY
from pullback.formulas.primitives import where
from pullback.formulas.record import Pass, RowFormula
from pullback.tools.case import Case
from pullback.tools.choices import chosen
from test_segment_records import OPS as SEGMENT_OPS
from tolerance import wrong_with


def small_cases(op) -> Iterator[tuple[Case, str]]:
    """Every selection and direction on several axes, kinds of data by turns, on few elements."""
    places = [((3, 9), -1), ((6, 4), 0)]
    if has_axes(op):
        places.append(((3, 2, 4), (0, 2)))
    for turn, (variant, (shape, axis)) in enumerate(product(variants(op), places)):
        for kind in kinds_at(turn, len(places)):
            yield chosen(default(op, "f64", shape, axis), variant), kind
    for shape, axis, _ in shapes(op, "f64"):
        yield default(op, "f64", shape, axis), "normal"


@pytest.mark.parametrize("name", OPS)
def test_equals_the_oracle(name):
    """Folds by halving and scans by pairs take no more roundings than the kernels' own order."""
    wrong = []
    for case, kind in small_cases(OPS[name]):
        if not is_defined(case, kind):
            continue
        given = operands(case, kind)
        named = zip(case.problem.writes, evaluate(case.problem, given), strict=True)
        results = {o.name: r for o, r in named if o.name in case.outputs}
        for output, result in results.items():
            assert result.shape == case.shape_of(output)
            assert result.dtype == case.dtype_of(output)
        wrong += [f"[{kind}] {w}" for w in wrong_with(case, given, results)]
    assert not wrong, f"{len(wrong)} cells:\n" + "\n".join(wrong[:20])


# Rows that ids or offsets cut, on every library: beside the kernels, and differentiated.

SEGMENT_KINDS = [
    ("made_max", {}),
    ("made_max_backward", {"ties": "split"}),
    ("made_max_backward", {"ties": "first"}),
    ("made_mean", {}),
    ("made_prod", {}),
    ("made_softmax", {}),
    ("made_softmax_backward", {}),
    ("made_two", {}),
    ("made_places", {}),
    ("offset_sum", {}),
    ("offset_softmax", {}),
    ("offset_sum_backward", {}),
]
CUTS = {
    Role.IDS: np.array([2, 0, 7, 2, -1, 0, 2, 4], np.int32),
    Role.OFFSETS: np.array([1, 3, 3, 6, 6, 7]),
}
SEGMENTS = 5


def numpy_arrays(arrays):
    return NUMPY, arrays


def torch_arrays(arrays):
    torch = pytest.importorskip("torch")
    from pullback.torch.arrays import TORCH

    return TORCH, {n: torch.from_numpy(a) for n, a in arrays.items()}


def jax_arrays(arrays):
    jnp = pytest.importorskip("jax.numpy")
    from pullback.jax.arrays import JAX

    return JAX, {n: jnp.asarray(a) for n, a in arrays.items()}


LIBRARIES = {"numpy": numpy_arrays, "torch": torch_arrays, "jax": jax_arrays}


def segment_case(name, keywords, rows=8):
    """A segment problem and its operands; multiples of 1/4, so that there are ties."""
    op = SEGMENT_OPS[name]
    problem = describe(
        op, "f32", (rows, 3), {"out_of_range": "drop", **keywords}, op.optional, SEGMENTS
    )
    rng = np.random.default_rng(1)
    cut = CUTS[problem.cut_by.role]
    cut = cut[:rows] if problem.cut_by.role is Role.IDS else np.minimum(cut, rows)
    given = {
        o.name: rng.integers(1, 6, problem.shape_of(o.name)).astype(np.float32) / 4
        for o in problem.reads
        if o.type is Type.ELEMENT
    }
    return problem, given, {problem.cut_by.name: cut}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("name", "keywords"), SEGMENT_KINDS)
def test_segments_have_what_the_kernels_give(name, keywords, library):
    """Segments without rows and rows without a segment among them, and no rows at all."""
    for rows in (8, 0):
        problem, given, cut = segment_case(name, keywords, rows)
        namespace, arrays = LIBRARIES[library]({**given, **cut})
        results = evaluate(problem, arrays, namespace)
        known = {**keywords, "num_segments": SEGMENTS, "num_inputs": rows, "out_of_range": "drop"}
        told = {p.name for p in problem.op.parameters}
        expected = make_function(problem.op)(
            **given, **cut, **{n: v for n, v in known.items() if n in told}
        )
        expected = expected if isinstance(expected, tuple) else (expected,)
        for result, wanted in zip(results, expected, strict=True):
            assert str(result.dtype).endswith("float32")
            if library == "jax":  # where a quotient by zero is 0, see Number
                wanted = np.where(np.isnan(wanted), 0.0, wanted)
            np.testing.assert_allclose(np.asarray(result), wanted, rtol=1e-6, atol=1e-7)


DIFFERENTIATED = ["made_softmax", "made_softmax_backward", "made_prod", "offset_softmax"]


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_segments_differentiate_in_torch(name):
    torch = pytest.importorskip("torch")
    problem, given, cut = segment_case(name, {})
    namespace, arrays = torch_arrays({**given, **cut})
    (by,) = cut
    tensors = [arrays[n].double().requires_grad_() for n in given]

    def function(*tensors):
        named = dict(zip(given, tensors, strict=True))
        return evaluate(problem, {**named, by: arrays[by]}, namespace)

    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors)


@pytest.mark.parametrize("name", ["made_softmax_backward", "offset_softmax"])
def test_segments_differentiate_and_batch_in_jax(name):
    jax = pytest.importorskip("jax")
    from jax.test_util import check_grads

    from jax_releases import enable_x64

    problem, given, cut = segment_case(name, {})
    with enable_x64(True):
        namespace, arrays = jax_arrays({**given, **cut})
        (by,) = cut
        tables = [arrays[n].astype("float64") for n in given]

        @jax.jit
        def function(ids, *tables):
            named = dict(zip(given, tables, strict=True))
            return evaluate(problem, {**named, by: ids}, namespace)

        check_grads(lambda *t: function(arrays[by], *t), tables, order=2, modes=("rev",))
        other = arrays[by][::-1] if problem.cut_by.role is Role.IDS else arrays[by] // 2
        batch = jax.numpy.stack([arrays[by], other])
        both = jax.vmap(lambda ids: function(ids, *tables))(batch)
        for k in range(2):
            for result, alone in zip(both, function(batch[k], *tables), strict=True):
                np.testing.assert_allclose(result[k], alone, rtol=1e-12, atol=1e-14)


# Operands that may be left out or are stretched, outputs that are not made, states.


def weighted(x, scale):
    return where(scale, x, 0.0)


def total_and_extent(total, extent):
    return total, extent


def plain_total(total):
    return total


def by_scale(scale):
    if scale:
        return RowFormula((Pass(replace(TOTAL, lift=weighted)),), finish=total_and_extent)
    return RowFormula((Pass(TOTAL),), finish=plain_total)


OPTIONAL = Op(
    "optional_total",
    "reduce",
    "optional_total",
    "forward",
    Text(""),
    (Operand("x"), Operand("scale", type=Type.BOOL, optional=True, broadcasts=True)),
    (
        Operand("total", Role.ROW, Type.STATE),
        Operand("size", Role.ROW, asked_by="scale"),
    ),
    by_scale,
    (Parameter("axis", parse.axes, None),),
)


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_left_out_stretched_and_asked_for(library):
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    scale = np.array([True, False, True, True])
    without = describe(OPTIONAL, "f32", x.shape, {"axis": 2})
    namespace, arrays = LIBRARIES[library]({"x": x, "scale": scale})
    (total,) = evaluate(without, arrays, namespace)
    assert str(total.dtype).endswith("float32" if library == "jax" else "float64")
    np.testing.assert_array_equal(total, x.sum(2, keepdims=True))
    given = describe(OPTIONAL, "f32", x.shape, {"axis": 2}, ("scale",))
    total, size = evaluate(given, arrays, namespace)
    np.testing.assert_array_equal(total, (x * scale).sum(2, keepdims=True))
    np.testing.assert_array_equal(size, np.full((2, 3, 1), 4.0))
