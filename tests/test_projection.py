"""sparsemax and entmax15: who is in the support, to the last digit, and how they are found."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import pullback as pb
from cells import DTYPES, OPS, same_bytes
from machines import assume
from pullback.core.declare import Role
from pullback.core.problem import describe
from pullback.formulas import projection
from pullback.formulas.array_rows import Rows
from pullback.formulas.arrays import evaluate
from pullback.formulas.exact import exact_product, exact_sum
from pullback.formulas.namespaces import NUMPY
from pullback.oracle import reference, round_to

# torch's own, at the first use of forward mode.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

INF, NAN = np.inf, np.nan
KINDS = ("sparsemax", "entmax15")
POWER = {"sparsemax": 1, "entmax15": 2}


def support(row: np.ndarray, kind: str) -> list[bool]:
    """By the definition: what those above an element exceed it by is less than 1."""
    power, exact = POWER[kind], [Fraction(float(v)) for v in row if v > -INF]
    members: list[Fraction] = []
    for v in sorted(exact, reverse=True):
        if sum(((u - v) / power) ** power for u in members) >= 1:
            break
        members.append(v)
    return [bool(v > -INF) and Fraction(float(v)) >= members[-1] for v in row]


def near_the_threshold(kind: str, element: str) -> list[list[float]]:
    """Rows with elements at the threshold of the others, and a digit of the type beside it."""
    dtype = DTYPES[element]
    # (1 + 0.75 − 1)/2, and 2/2 − 1.
    others, edge = ([1.0, 0.75], 0.375) if kind == "sparsemax" else ([2.0], 0.0)
    below, above = (float(np.nextafter(dtype.type(edge), dtype.type(v))) for v in (-9.0, 9.0))
    rows = [[*others, v, v, -3.0] for v in (edge, below, above)]
    # With three in the support the threshold is a third of a digit beside numbers of the type.
    digit = above - edge
    return [*rows, [*others, edge + 4 * digit, edge + digit, edge + 2 * digit, edge]]


@pytest.mark.parametrize("element", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_support_is_exact(kind, element):
    for row in near_the_threshold(kind, element):
        x = np.array(row).astype(DTYPES[element])
        exact = reference(kind, {"x": x}, axis=-1)["y"].value
        assert [bool(v > 0) for v in exact] == support(x, kind)
        # What is in may still be too small a number for the type.
        rounded = round_to(exact, element)
        assert np.array_equal(getattr(pb, kind)(x) > 0, rounded > 0), row


def test_digits_far_below_the_others_decide():
    """1 and 2**-60: the second is in, by half of itself, which x less its largest does not hold."""
    y = pb.sparsemax(np.array([[1.0, 2.0**-60], [1.0, -(2.0**-60)], [1.0, 0.0]]))
    assert y.tolist() == [[1.0, 2.0**-61], [1.0, 0.0], [1.0, 0.0]]
    y = pb.entmax15(np.array([[2.0, 2.0**-40], [2.0, -(2.0**-40)], [2.0, 0.0]]))
    assert y[0, 1] == pytest.approx(2.0**-82, rel=1e-9)
    assert y[1:].tolist() == [[1.0, 0.0], [1.0, 0.0]]


@pytest.mark.parametrize("kind", KINDS)
def test_edges(kind):
    function, backward = getattr(pb, kind), getattr(pb, f"{kind}_backward")
    rows = {
        (NAN, 1.0, 2.0): [NAN] * 3,
        (-INF, -INF, -INF): [NAN] * 3,
        (INF, 1.0, -INF): [1.0, 0.0, 0.0],
        (INF, INF, 1e300): [0.5, 0.5, 0.0],
        (INF, NAN, 0.0): [NAN] * 3,
        (-INF, 3.0, -INF): [0.0, 1.0, 0.0],
        (5.0, 5.0, -INF): [0.5, 0.5, 0.0],
        (1e308, -1e308, 0.0): [1.0, 0.0, 0.0],
        (-1e308, -1e308, -1e308): [1 / 3] * 3,
        (5e-324, 0.0, -5e-324): [1 / 3] * 3,
    }
    for order in ("C", "F"):
        y = function(np.array(list(rows), order=order), 1)
        np.testing.assert_array_max_ulp(y, np.array(list(rows.values())), 1)
    assert function(np.array([7.0])).tolist() == [1.0]
    assert function(np.array(7.0)).tolist() == 1.0
    assert function(np.zeros((3, 0))).shape == (3, 0)
    assert function(np.zeros((0, 3))).shape == (0, 3)
    # What lies outside of the support is not read, and a row of NaN has no gradient.
    dy = np.array([[1.0, 3.0, INF, NAN], [1.0, 1.0, 1.0, 1.0]])
    y = np.array([[0.5, 0.5, 0.0, 0.0], [NAN] * 4])
    dx = backward(dy, y=y)
    weight = 1.0 if kind == "sparsemax" else math.sqrt(0.5)
    assert dx[0].tolist() == [-weight, weight, 0.0, 0.0]
    assert np.isnan(dx[1]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_columns_that_come_to_rest_at_different_times(kind):
    """A row at rest stays as it is while others beside it move; so it is with rows of arrays."""
    rng = np.random.default_rng(3)
    scale = np.geomspace(1e-6, 1e3, 41)[:, None]
    x = (rng.standard_normal((41, 257)) * scale).astype(np.float32)
    alone = np.stack([getattr(pb, kind)(row) for row in x])
    together = getattr(pb, kind)(np.asfortranarray(x), 1)
    assert same_bytes(np.ascontiguousarray(together), alone)
    problem = describe(OPS[kind], "f32", x.shape, {"axis": 1})
    (second,) = evaluate(problem, {"x": x})
    assert np.array_equal(second > 0, alone > 0)
    np.testing.assert_array_max_ulp(second, alone, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_row_is_the_same_on_any_number_of_threads(kind, monkeypatch):
    """Cut at its blocks, with what a pass gives kept in the workspace from time to time."""
    assume(monkeypatch, l2=0)
    x = np.random.default_rng(4).standard_normal((1, 100_000)).astype(np.float32)
    plan = {
        threads: pb.Plan.select(
            pb.Descriptor(kind, x.shape, "f32"), pb.PlanPreference(threads=threads)
        )
        for threads in (1, 2, 3)
    }
    found = {}
    for threads, made in plan.items():
        found[threads] = np.full_like(x, NAN)
        made.run(x=x, y=found[threads])
    assert same_bytes(found[1], found[2])
    assert same_bytes(found[1], found[3])
    assert abs(found[1].astype(float).sum() - 1.0) < 1e-6
    sparse = np.flatnonzero(found[1])
    assert 0 < sparse.size < 100
    assert x[0, sparse].min() > np.delete(x, sparse).max()


def steps_taken(kind: str, x: np.ndarray) -> int:
    """How often the pass is taken."""
    counted = []

    class Counting(type(NUMPY)):  # type: ignore[misc]
        def until_rest(self, step, values, moving, most):
            def counting(held):
                counted.append(1)
                return step(held)

            return super().until_rest(counting, values, moving, most)

    record = getattr(projection, kind.upper())
    namespace = Counting(np, NUMPY._bind._primitives)
    with np.errstate(all="ignore"):
        rows = Rows(namespace, record, x, x.shape, reverse=False)
        rows.run({"x": x}, {}, {"extent": float(x.shape[1])})[Role.ELEMENT]
    return len(counted)


@pytest.mark.parametrize("kind", KINDS)
def test_number_of_steps_is_bounded(kind):
    n = 3000
    steep = np.geomspace(1, 2.0**-40, n)
    rng = np.random.default_rng(5)
    hard = [
        steep, -steep, steep**2, np.log(np.arange(1, n + 1)), -np.sqrt(np.arange(n)),
        rng.standard_normal(n), 1e-3 * rng.standard_normal(n), rng.random(n), np.zeros(n),
    ]  # fmt: skip
    for row in hard:
        taken = steps_taken(kind, row[None])
        assert taken <= (3 * math.log2(n) + 107) / 2 < projection.MOST_STEPS
        assert taken <= 20


def test_sums_and_products_with_their_errors():
    a, b = 1.0 + 2.0**-52, 2.0**-30 + 2.0**-70
    assert Fraction(a) + Fraction(b) == sum(map(Fraction, exact_sum(a, b)))
    assert Fraction(a) * Fraction(b) == sum(map(Fraction, exact_product(a, b)))


def rows_for_derivatives() -> np.ndarray:
    """Rows with some in the support and none within 0.05 of the threshold."""
    return np.array([[0.9, 0.4, -2.0, 0.6, -3.0], [0.0, 1.9, 0.3, -1.0, -4.5]])


@pytest.mark.parametrize("kind", KINDS)
def test_torch(kind):
    torch = pytest.importorskip("torch")
    import pullback.torch as pt

    function = getattr(pt, kind)
    x = torch.tensor(rows_for_derivatives(), requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: function(v, -1), x)
    assert torch.autograd.gradcheck(lambda v: function(v, 0), x)
    assert torch.autograd.gradgradcheck(lambda v: function(v, -1), x)
    plain = x.detach()
    y = function(plain, -1)
    assert same_bytes(y.numpy(), getattr(pb, kind)(plain.numpy()))
    jacobian = torch.func.jacrev(lambda v: function(v, -1))(plain[0])
    ahead = torch.func.jacfwd(lambda v: function(v, -1))(plain[0])
    assert torch.allclose(jacobian, ahead, atol=1e-14)
    assert torch.allclose(jacobian, jacobian.T, atol=1e-14)
    batched = torch.func.vmap(lambda v: function(v, -1))(plain)
    assert torch.equal(batched, y)
    compiled = torch.compile(lambda v: function(v, -1) * 2, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(plain), 2 * y)


@pytest.mark.parametrize("kind", KINDS)
def test_jax(kind):
    jax = pytest.importorskip("jax")
    import pullback.jax as pj
    from jax_releases import enable_x64

    function = getattr(pj, kind)
    x = jax.numpy.asarray(rows_for_derivatives(), jax.numpy.float32)
    y = jax.jit(function)(x)
    assert same_bytes(np.asarray(y), getattr(pb, kind)(np.asarray(x)))
    assert same_bytes(np.asarray(jax.vmap(function)(x)), np.asarray(y))
    back, ahead = jax.jacrev(function)(x[0]), jax.jacfwd(function)(x[0])
    np.testing.assert_allclose(back, ahead, atol=1e-6)
    with enable_x64(True):
        wide = jax.numpy.asarray(rows_for_derivatives()[0])
        step = 1e-6
        shifted = [
            (function(wide.at[k].add(step)) - function(wide.at[k].add(-step))) / (2 * step)
            for k in range(5)
        ]
        np.testing.assert_allclose(np.stack(shifted, 1), jax.jacrev(function)(wide), atol=1e-8)

        def loss(v):
            return (function(v) ** 3).sum()

        slopes = [
            (jax.grad(loss)(wide.at[k].add(step)) - jax.grad(loss)(wide.at[k].add(-step)))
            / (2 * step)
            for k in range(5)
        ]
        np.testing.assert_allclose(np.stack(slopes, 1), jax.hessian(loss)(wide), atol=1e-7)
