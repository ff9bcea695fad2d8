"""pullback.jax on ops of other shapes than the catalog's first, declared by their rows alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import pullback as pb
from jax_ops import bytes_of
from jax_releases import enable_x64
from jax_rows import ROWS
from pullback.api.functions import make_function as make_plain
from pullback.core.catalog import OPS, register, unregister
from pullback.core.declare import Type
from pullback.jax import lowering
from pullback.jax.functions import make_function


@pytest.fixture(scope="module", autouse=True)
def registered():
    for one in ROWS:
        register(one)
    yield
    for one in ROWS:
        unregister(one.name)


@pytest.fixture(autouse=True)
def wide():
    with enable_x64(True):
        yield


def rng():
    return np.random.default_rng(3)


def numbers(*shape):
    return rng().permutation(np.linspace(0.3, 1.7, int(np.prod(shape)))).reshape(shape)


@dataclass
class Case:
    """A call of a kind.

    ``arrays`` are what gradients flow to, by the catalog's names; ``constants`` the other arrays;
    ``names`` what the plain functions call arguments that JAX calls otherwise.
    """

    kind: str
    arrays: dict[str, Any]
    constants: dict[str, Any] = field(default_factory=dict)
    keywords: dict[str, Any] = field(default_factory=dict)
    expected: Callable[..., Any] | None = None

    def function(self) -> Callable[..., Any]:
        made = make_function(OPS[self.kind])
        called = {"input": "data"}

        def call(*arrays):
            named = dict(zip(self.arrays, arrays, strict=True)) | self.constants
            return made(**{called.get(n, n): a for n, a in named.items()}, **self.keywords)

        return call

    def typed(self, dtype):
        return [
            a if OPS[self.kind].operand(n).type is Type.STATE else np.asarray(a, dtype)
            for n, a in self.arrays.items()
        ]


def recurrence_by_loop(a, b, initial=None, reverse=False):
    order = range(a.shape[1])
    now = np.zeros(a.shape[0]) if initial is None else initial
    y = np.empty(np.broadcast_shapes(a.shape, b.shape))
    for t in reversed(order) if reverse else order:
        now = y[:, t] = a[:, t] * now + b[:, t]
    return y, now


IDS, BORDERS = np.array([2, 0, 7, 2, -1, 0]), np.array([0, 2, 2, 5])
MASKED = np.array([[True, False, True, True], [False, False, False, False], [True] * 4])


def masked_by_hand(x, mask=None):
    e = np.where(True if mask is None else mask, np.exp(x), 0.0)
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1.0, total)


def largest(input, segment_ids=None, offsets=None):
    if offsets is None:
        rows = [input[segment_ids == s] for s in range(3)]
    else:
        rows = [input[i:j] for i, j in pairwise(offsets)]
    return np.stack([r.max(0, initial=-np.inf) for r in rows])


A, B = numbers(3, 4), numbers(3, 4)[::-1].copy()
CASES = {
    "recurrence": Case(
        "a_recurrence", {"a": A, "b": B}, expected=lambda a, b: recurrence_by_loop(a, b)[0]
    ),
    "recurrence with states": Case(
        "a_recurrence",
        {"a": A, "b": B, "initial": numbers(3)},
        keywords={"return_final": True, "reverse": True},
        expected=recurrence_by_loop,
    ),
    "softmax": Case("a_softmax", {"x": A}, expected=masked_by_hand),
    "softmax with a mask": Case("a_softmax", {"x": A}, {"mask": MASKED}, expected=masked_by_hand),
    "softmax with a row of a mask": Case(
        "a_softmax", {"x": A}, {"mask": MASKED[0]}, expected=masked_by_hand
    ),
    "segments by ids": Case(
        "a_segment_max", {"input": numbers(6, 2)}, {"segment_ids": IDS}, {"num_segments": 3},
        largest,
    ),
    "segments by offsets": Case(
        "a_segment_max", {"input": numbers(6, 2)}, {"offsets": BORDERS}, expected=largest
    ),
    "two outputs, linear": Case(
        "mean_and_total", {"x": A}, keywords={"axis": 1},
        expected=lambda x, axis: (x.mean(axis), x.sum(axis)),
    ),
    "two outputs": Case(
        "moments", {"x": A}, keywords={"axis": 1, "keepdims": True},
        expected=lambda x, axis, keepdims: (x.sum(1, keepdims=True), (x * x).sum(1, keepdims=True)),
    ),
    "inclusive": Case("a_cumsum", {"x": A}, expected=lambda x: x.cumsum(-1)),
    "exclusive": Case(
        "a_cumsum", {"x": A}, keywords={"exclusive": True},
        expected=lambda x, exclusive: x.cumsum(-1) - x,
    ),
    "a number": Case(
        "scale", {"x": A}, keywords={"weight": 0.25}, expected=lambda x, weight: x * weight
    ),
    "an array": Case(
        "scale", {"x": A, "weight": B}, expected=lambda x, weight: x * weight
    ),
    "integers": Case(
        "pick", {"x": A}, {"target": np.array([2, 0, 3])},
        expected=lambda x, target: x[np.arange(3), target] ** 2,
    ),
}  # fmt: skip


def leaves(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    case = CASES[name]
    how = {n: v for n, v in case.keywords.items() if n not in ("return_final", "num_segments")}
    expected = case.expected(**case.arrays, **case.constants, **how)
    for function in (case.function(), jax.jit(case.function())):
        found = function(*case.arrays.values())
        for ours, wanted in zip(leaves(found), leaves(expected), strict=True):
            np.testing.assert_allclose(ours, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_numerical_derivatives(name):
    """Reverse mode in first and second order, and forward mode, against differences."""
    case = CASES[name]
    function, arrays = jax.jit(case.function()), tuple(case.arrays.values())
    check_grads(function, arrays, order=2, modes=("rev",))
    check_grads(function, arrays, order=1, modes=("fwd",))


def plain_backward(case, arrays, results, cotangents):
    """The gradients by the function of the NumPy path."""
    op = OPS[f"{case.kind}_backward"]
    kept = dict(zip(OPS[case.kind].outputs, leaves(results), strict=False))
    held = {**kept, **dict(zip(case.arrays, arrays, strict=True)), **case.constants}
    known = {**case.keywords, **held, "shape": arrays[0].shape, "out_of_range": "drop"}
    by = {f"d_{n}": c for n, c in zip(kept, cotangents, strict=True)} | {"dy": cotangents[0]}
    wanted = [o.name for o in op.reads] + [p.name for p in op.parameters]
    given = {n: v for n, v in {**known, **by}.items() if n in wanted}
    found = make_plain(op)(**given)
    return [g for g in leaves(found) if g is not None]


@pytest.mark.parametrize("name", CASES)
def test_bytes_of_the_numpy_path(name):
    """Eagerly and under jit, by the handler and not by a callback; and every example of a batch."""
    case = CASES[name]
    arrays = case.typed(np.float32)

    def everything(*arrays):
        value, pull = jax.vjp(case.function(), *arrays)
        return value, pull(jax.tree.map(lambda v: v * 0 + 1.5, value))

    told = {n: v for n, v in case.keywords.items() if n != "sorted"}
    if case.kind == "a_segment_max":
        told["out_of_range"] = "drop"
    plain = make_plain(OPS[case.kind])
    text = jax.jit(everything).lower(*arrays).as_text()
    assert text.count(lowering.TARGET) >= 2
    assert "callback" not in text
    batch = [np.stack([a, a[::-1], a * a.dtype.type(0.5)]) for a in arrays]
    looped = []
    for k in range(4):
        one = arrays if k == 3 else [b[k] for b in batch]
        named = dict(zip(case.arrays, one, strict=True))
        value = plain(**named, **case.constants, **told)
        cotangents = [np.full_like(v, 1.5) for v in leaves(value)]
        looped.append((leaves(value), plain_backward(case, one, value, cotangents)))
    for function in (everything, jax.jit(everything)):
        value, pulled = function(*arrays)
        assert list(map(bytes_of, leaves(value))) == list(map(bytes_of, looped[3][0]))
        assert list(map(bytes_of, pulled)) == list(map(bytes_of, looped[3][1]))
    for at in (0, 1):
        moved = [np.ascontiguousarray(np.moveaxis(b, 0, at)) for b in batch]
        value, pulled = jax.jit(jax.vmap(everything, in_axes=at))(*moved)
        for k in range(3):
            assert [bytes_of(v[k]) for v in leaves(value)] == list(map(bytes_of, looped[k][0]))
            assert [bytes_of(v[k]) for v in pulled] == list(map(bytes_of, looped[k][1]))


@pytest.mark.parametrize("name", ["segments by ids", "segments by offsets", "integers"])
def test_batches_of_integers(name):
    case = CASES[name]
    ((called, constant),) = case.constants.items()
    (x,) = case.arrays.values()
    other = {"segment_ids": constant[::-1], "offsets": np.array([1, 1, 3, 6])}
    batch = np.stack([constant, other.get(called, constant % 2)])

    def pull(x, integers):
        function = replace(case, constants={called: integers}).function()
        value, back = jax.vjp(function, x)
        return value, back(value)[0]

    for axes, tables in (((None, 0), x), ((0, 0), np.stack([x, -x]))):
        found = jax.jit(jax.vmap(pull, axes))(tables, batch)
        for k in range(2):
            alone = pull(x if axes[0] is None else tables[k], batch[k])
            assert [bytes_of(v[k]) for v in found] == list(map(bytes_of, alone))


def test_a_batch_of_masks_and_of_shared_inputs():
    function = make_function(OPS["a_softmax"])
    masks = np.stack([MASKED, ~MASKED])
    found = jax.vmap(lambda m: function(A, mask=m))(masks)
    for k in range(2):
        assert bytes_of(found[k]) == bytes_of(function(A, mask=masks[k]))
    recurrence = make_function(OPS["a_recurrence"])

    bs = np.stack([B, B * 2])

    def batched(a, initial):
        return jax.vmap(lambda b: recurrence(a, b, initial=initial))(bs).sum()

    def one_by_one(a, initial):
        return sum(recurrence(a, b, initial=initial).sum() for b in bs)

    ours, looped = (jax.grad(f, (0, 1))(A, numbers(3)) for f in (batched, one_by_one))
    for one, other in zip(ours, looped, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_gradients_of_what_was_stretched_are_summed():
    recurrence = make_function(OPS["a_recurrence"])
    ours = jax.grad(lambda a: recurrence(a, B).sum())(A[:1])
    full = jax.grad(lambda a: recurrence(a, B).sum())(np.broadcast_to(A[:1], A.shape))
    np.testing.assert_allclose(ours, full.sum(0, keepdims=True), rtol=1e-12)
    scale = make_function(OPS["scale"])
    assert jax.grad(lambda w: scale(A, w).sum())(2.0) == pytest.approx(A.sum())


def test_only_cotangents_that_are_not_zero_are_given():
    """The gradient by one output of two: the other is left out where that may be."""
    moments = make_function(OPS["moments"])

    def lowered(k):
        return jax.jit(jax.grad(lambda x: moments(x, axis=1)[k].sum())).lower(A).as_text()

    assert "tensor<3x4xf64>) -> tensor<3x4xf64>" not in lowered(0)
    np.testing.assert_array_equal(
        jax.grad(lambda x: moments(x, axis=1)[0].sum())(A), np.ones_like(A)
    )
    np.testing.assert_allclose(jax.grad(lambda x: moments(x, axis=1)[1].sum())(A), 2 * A)
    recurrence = make_function(OPS["a_recurrence"])
    only_final = jax.grad(lambda b: recurrence(A, b, return_final=True)[1].sum())(B)
    expected = np.flip(np.cumprod(np.flip(A[:, 1:], 1), 1), 1)
    np.testing.assert_allclose(only_final, np.hstack([expected, np.ones((3, 1))]), rtol=1e-12)


def test_an_output_that_the_backward_reads_moves_too():
    """Second derivatives go through it, and its own are right though no kernel has them."""
    power = make_function(OPS["power"])
    for wanted in (slice(0, 1), slice(0, 2)):
        function = jax.jit(lambda x, s=wanted: power(x, axis=1)[s])
        check_grads(function, (A,), order=2, modes=("fwd", "rev"))
    (dx,) = jax.vjp(lambda x: power(x, axis=1)[0], A)[1](np.ones(3))
    _, size = make_plain(OPS["power"])(A, axis=1)
    plain = make_plain(OPS["power_backward"])(np.ones(3), x=A, size=size, axis=1)
    assert bytes_of(dx) == bytes_of(plain)
    shifts = np.array([0.0, 0.5])
    grown = jax.grad(lambda x: jax.vmap(lambda s: sum(power(x + s, axis=1)).sum())(shifts).sum())(A)
    sizes = [np.sum((A + s) ** 2, 1, keepdims=True) for s in shifts]
    expected = sum((4 * n + 2) * (A + s) for n, s in zip(sizes, shifts, strict=True))
    np.testing.assert_allclose(grown, expected, rtol=1e-12)


def test_without_a_backward_results_are_constants():
    constant = make_function(OPS["constant_cumsum"])
    x = np.arange(3.0)
    np.testing.assert_array_equal(constant(x), [0.0, 1.0, 3.0])
    pulled = jax.grad(lambda a: (constant(a) * a).sum())(x)
    np.testing.assert_array_equal(pulled, [0.0, 1.0, 3.0])
    _, tangent = jax.jvp(constant, (x,), (x,))
    np.testing.assert_array_equal(tangent, np.zeros(3))
    assert jax.jit(jax.vmap(constant))(np.stack([x, x])).shape == (2, 3)
    assert "No gradient" in constant.__doc__


def test_states_without_x64():
    """They are float32 at the border, whatever the element type."""
    recurrence = make_function(OPS["a_recurrence"])
    with enable_x64(False):
        for dtype in (jnp.float32, jnp.float16):
            a, b = jnp.asarray(A, dtype), jnp.asarray(B, dtype)
            y, final = recurrence(a, b, initial=np.ones(3), return_final=True)
            assert (y.dtype, final.dtype) == (dtype, jnp.float32)
            exact = recurrence_by_loop(np.float64(a), np.float64(b), np.ones(3))[1]
            np.testing.assert_allclose(final, exact, rtol=1e-6)
            pulled = jax.grad(lambda s, a=a, b=b: recurrence(a, b, initial=s).sum())(jnp.ones(3))
            assert pulled.dtype == jnp.float32


@pytest.mark.parametrize("name", ["recurrence with states", "segments by offsets", "integers"])
def test_callback_gives_the_same_bytes(name, monkeypatch):
    case = CASES[name]
    arrays = case.typed(np.float32)

    def everything(*arrays):
        value, pull = jax.vjp(case.function(), *arrays)
        return leaves(value), pull(value)

    expected = jax.jit(everything)(*arrays)
    monkeypatch.setattr(lowering, "ffi_problem", lambda: "forced")
    lowered = jax.jit(lambda *a: everything(*a)).lower(*arrays)
    assert lowering.TARGET not in lowered.as_text()
    found = lowered.compile()(*arrays)
    assert jax.tree.map(bytes_of, found) == jax.tree.map(bytes_of, expected)


def test_no_rows_and_no_steps():
    recurrence = make_function(OPS["a_recurrence"])
    none = np.zeros((3, 0))
    y, final = recurrence(none, none, initial=numbers(3), return_final=True)
    assert y.shape == (3, 0)
    np.testing.assert_array_equal(final, numbers(3))
    segments = make_function(OPS["a_segment_max"])
    assert np.all(segments(np.zeros((0, 2)), offsets=np.zeros(3, int)) == -np.inf)


def test_traced_offsets_never_lead_out_of_the_rows():
    segments = make_function(OPS["a_segment_max"])
    x = numbers(6, 2)
    wild = jnp.array([-5, 2, 1, 99])
    tamed = segments(x, offsets=np.array([0, 2, 2, 6]))
    assert bytes_of(jax.jit(lambda o: segments(x, offsets=o))(wild)) == bytes_of(tamed)
    with pytest.raises(pb.InvalidProblemError, match=r"offsets: expected offsets in \[0, 6\]"):
        segments(x, offsets=wild)


def test_errors_name_the_operand():
    softmax, recurrence = make_function(OPS["a_softmax"]), make_function(OPS["a_recurrence"])
    segments = make_function(OPS["a_segment_max"])
    with pytest.raises(pb.InvalidProblemError, match="mask: expected dtype bool, got float64"):
        softmax(A, mask=A)
    with pytest.raises(pb.InvalidProblemError, match=r"mask: expected a shape that stretches to"):
        softmax(A, mask=MASKED[:2])
    with pytest.raises(pb.InvalidProblemError, match=r"initial: expected shape \(3, 1\), got"):
        recurrence(A, B, initial=np.ones(2))
    with pytest.raises(pb.InvalidProblemError, match=r"a, b: expected shapes that broadcast"):
        recurrence(A, B[:2])
    with pytest.raises(pb.InvalidProblemError, match="expected segment_ids or offsets, got both"):
        segments(A, IDS[:3], offsets=BORDERS)
    with pytest.raises(pb.InvalidProblemError, match="got neither"):
        segments(A)
    with pytest.raises(pb.InvalidProblemError, match="num_segments: expected 3"):
        segments(numbers(6, 2), None, 2, offsets=BORDERS)
