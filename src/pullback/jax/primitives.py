"""The two JAX primitives and their rules.

``pullback`` runs one direction of a pair on the kernels. ``pullback_tangent`` is the derivative of
the forward, a linear map: JAX transposes it into a run of the backward kernel for reverse mode, and
evaluates it only for forward mode. Operands are named by position, in the order of the catalog; of
an operand that does not vary along a dimension the length there may be 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..errors import UnsupportedError
from ..formulas.arrays import evaluate
from . import lowering
from .arrays import JAX
from .pairs import IDS, Pair, batched, repeated

run_p = Primitive("pullback")
run_p.multiple_results = True
tangent_p = Primitive("pullback_tangent")
tangent_p.multiple_results = True


def run(pair: Pair, direction: str, operands: dict[str, Any], outputs: tuple[str, ...] = ()) -> Any:
    """The outputs of one direction (all of them, where none is named) as a list."""
    outputs = outputs or pair.problem(direction).op.outputs
    arguments = [operands[name] for name in pair.reads(direction)]
    return run_p.bind(*arguments, pair=pair, direction=direction, outputs=outputs)


def varying_alike(*arrays: Any) -> list[Any]:
    """Arrays that vary over the same mesh axes, as ops inside ``jax.shard_map`` must have them."""
    axes = [_varying(a) for a in arrays]
    everywhere = frozenset().union(*axes)
    missing = [tuple(everywhere - own) for own in axes]
    return [_vary(a, more) if more else a for a, more in zip(arrays, missing, strict=True)]


def _varying(array: Any) -> frozenset[Any]:
    if not hasattr(jax, "typeof"):
        return frozenset()  # jax before 0.6 does not keep track of it
    aval = jax.typeof(array)
    # The set has been called vma and, since jax 0.10, sits in the type of the manual axes.
    kind = getattr(aval, "manual_axis_type", None)
    return getattr(aval, "vma", frozenset()) if kind is None else kind.varying


def _vary(array: Any, axes: tuple[Any, ...]) -> Any:
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, axes, to="varying")
    return jax.lax.pvary(array, axes)


def _abstract(problem: Any, outputs: Sequence[str], like: Any) -> list[Any]:
    return [like.update(shape=problem.shape_of(n), weak_type=False) for n in outputs]


@run_p.def_abstract_eval
def _run_abstract(*operands, pair, direction, outputs):
    return _abstract(pair.problem(direction), outputs, operands[0])


@tangent_p.def_abstract_eval
def _tangent_abstract(*operands, pair, variables):
    return _abstract(pair.forward, pair.forward.op.outputs, operands[0])


def _compiled(primitive: Primitive, pair: Pair, **parameters: Any) -> Any:
    """The primitive as a jitted function, so that an eager call costs one dispatch."""
    key = (primitive.name, *parameters.values())
    function = pair.compiled.get(key)
    if function is None:
        function = jax.jit(lambda *a: primitive.bind(*a, pair=pair, **parameters))
        pair.compiled[key] = function
    return function


@run_p.def_impl
def _run_impl(*operands, pair, direction, outputs):
    return _compiled(run_p, pair, direction=direction, outputs=outputs)(*operands)


@tangent_p.def_impl
def _tangent_impl(*operands, pair, variables):
    return _compiled(tangent_p, pair, variables=variables)(*operands)


def _pushed(*operands, pair: Pair, variables: tuple[str, ...]) -> list[Any]:
    """The tangent of the forward: the backward, transposed; a linear forward is its own."""
    given = dict(zip(variables, operands, strict=False))
    saved = dict(zip(pair.saves, operands[len(variables) :], strict=True))
    like = operands[0]
    tangents = {n: given[n] if n in given else jnp.zeros_like(like) for n in pair.variables}
    if pair.linear:
        return run(pair, "forward", {**saved, **tangents})

    def pull(cotangent):
        return _pulled(pair, {**saved, pair.cotangent: cotangent})

    # A gradient is linear in its cotangent, so it is its own derivative, at whatever cotangent.
    # Formulas look whether it is zero, which rules out jax.linear_transpose, and zero itself.
    shape = pair.forward.shape_of(pair.forward.op.outputs[0])
    anything, _ = varying_alike(jnp.ones(shape, like.dtype), like)
    full = tuple(jnp.broadcast_to(t, pair.forward.shape) for t in tangents.values())
    return list(jax.vjp(pull, anything)[1](full))


def _pulled(pair: Pair, operands: dict[str, Any]) -> tuple[Any, ...]:
    return evaluate(pair.backward, operands, JAX)


def _run_jvp(primals, tangents, *, pair, direction, outputs):
    results = run_p.bind(*primals, pair=pair, direction=direction, outputs=outputs)
    held = dict(zip(pair.reads(direction), primals, strict=True))
    moved = dict(zip(pair.reads(direction), tangents, strict=True))
    if direction == "forward":
        variables = tuple(n for n in pair.variables if type(moved[n]) is not ad.Zero)
        saved = {**held, **dict(zip(outputs, results, strict=True))}
        arguments = [*(moved[n] for n in variables), *(saved[n] for n in pair.saves)]
        return results, tangent_p.bind(*arguments, pair=pair, variables=variables)
    if pair.linear:
        operands = {**held, pair.cotangent: moved[pair.cotangent]}
        return results, run(pair, direction, operands, outputs)

    def pull(*operands):
        given = dict(zip(pair.reads(direction), operands, strict=True))
        return list(_pulled(pair, given))

    _, changes = jax.jvp(pull, tuple(primals), tuple(map(ad.instantiate_zeros, tangents)))
    return results, changes


def _tangent_jvp(primals, tangents, *, pair, variables):
    def push(*operands):
        return _pushed(*operands, pair=pair, variables=variables)

    results = tangent_p.bind(*primals, pair=pair, variables=variables)
    if all(type(t) is ad.Zero for t in tangents[len(variables) :]):
        moved = [ad.instantiate_zeros(t) for t in tangents[: len(variables)]]
        saved = primals[len(variables) :]
        return results, tangent_p.bind(*moved, *saved, pair=pair, variables=variables)
    _, changes = jax.jvp(push, tuple(primals), tuple(map(ad.instantiate_zeros, tangents)))
    return results, changes


def _tangent_transpose(cotangents, *operands, pair, variables):
    (cotangent,) = cotangents
    if type(cotangent) is ad.Zero:
        return [None] * len(operands)
    names = pair.backward.op.outputs
    wanted = tuple(names[pair.variables.index(n)] for n in variables)
    saved = dict(zip(pair.saves, operands[len(variables) :], strict=True))
    results = run(pair, "backward", {**saved, pair.cotangent: cotangent}, wanted)
    return [*results, *[None] * len(pair.saves)]


def _run_transpose(cotangents, *operands, pair, direction, outputs):
    """The transpose of one direction of a linear pair is the other direction."""
    if not pair.linear:
        raise UnsupportedError(f"{pair.forward.op.kind}: not a linear function, so not transposed")
    if all(type(c) is ad.Zero for c in cotangents):
        return [None] * len(operands)
    names = pair.reads(direction)
    held = dict(zip(names, operands, strict=True))
    given = dict(zip(outputs, map(ad.instantiate_zeros, cotangents), strict=True))
    towards = dict(zip(pair.variables, pair.backward.op.outputs, strict=True))
    if direction == "forward":
        held[pair.cotangent] = given[outputs[0]]
        asked = [n for n in pair.variables if ad.is_undefined_primal(held[n])]
        results = run(pair, "backward", held, tuple(towards[n] for n in asked))
    else:
        like = next(iter(given.values()))
        for name, output in towards.items():
            held[name] = given[output] if output in given else jnp.zeros_like(like)
        asked, results = [pair.cotangent], run(pair, "forward", held)
    found = dict(zip(asked, results, strict=True))
    return [found.get(n) for n in names]


def _batch(bind, names: Sequence[str], linear: Sequence[str], operands, dims, pair: Pair):
    """One more dimension for every operand.

    One that does not vary along it keeps length 1 there and is not copied, unless the call is
    linear in it: its transpose would have to sum.
    """
    if IDS in names:
        return _batch_segments(bind, names.index(IDS), operands, dims, pair)
    at, size = next((d, x.shape[d]) for x, d in zip(operands, dims, strict=True) if d is not None)
    moved = []
    for name, x, d in zip(names, operands, dims, strict=True):
        if d is not None:
            moved.append(jnp.moveaxis(x, d, at))
        elif name in linear:
            moved.append(jnp.repeat(jnp.expand_dims(x, at), size, axis=at))
        else:
            moved.append(jnp.expand_dims(x, at))
    results = bind(*moved, pair=batched(pair, at, size))
    return results, [at] * len(results)


def _batch_segments(bind, place: int, operands, dims, pair: Pair):
    """The ids are the operand at ``place``; all others are tables, of rows or of segments."""
    ids, ids_at = operands[place], dims[place]
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    along = 1 if ids_at is None else 0
    tables = [
        jnp.repeat(jnp.expand_dims(x, along), size, axis=along)
        if d is None
        else jnp.moveaxis(x, d, along)
        for k, (x, d) in enumerate(zip(operands, dims, strict=True))
        if k != place
    ]
    width = tables[0].shape[2]
    if ids_at is None:
        # The same rows go the same way in every batch: only the rows get longer.
        moved = [x.reshape(x.shape[0], size * width) for x in tables]
        moved.insert(place, ids)
        results = bind(*moved, pair=repeated(pair, rows=1, columns=size))
        return [r.reshape(r.shape[0], size, width) for r in results], [1] * len(results)
    segments = pair.forward.num_segments
    if size * segments > jnp.iinfo(ids.dtype).max:
        raise UnsupportedError(
            f"segment_ids: {size} batches of {segments} segments do not fit {ids.dtype}"
        )
    ids = jnp.moveaxis(ids, ids_at, 0)
    first = segments * jnp.arange(size, dtype=ids.dtype)[:, None]
    ids = jnp.where((ids >= 0) & (ids < segments), ids + first, -1)
    moved = [x.reshape(size * x.shape[1], width) for x in tables]
    moved.insert(place, ids.reshape(-1))
    results = bind(*moved, pair=repeated(pair, rows=size, columns=1))
    rows = [r.shape[0] // size if size else 0 for r in results]
    shaped = [r.reshape(size, n, width) for r, n in zip(results, rows, strict=True)]
    return shaped, [0] * len(results)


def _run_batch(operands, dims, *, pair, direction, outputs):
    def bind(*moved, pair):
        return run_p.bind(*moved, pair=pair, direction=direction, outputs=outputs)

    names = pair.reads(direction)
    return _batch(bind, names, names if pair.linear else (), operands, dims, pair)


def _tangent_batch(operands, dims, *, pair, variables):
    def bind(*moved, pair):
        return tangent_p.bind(*moved, pair=pair, variables=variables)

    return _batch(bind, (*variables, *pair.saves), variables, operands, dims, pair)


ad.primitive_jvps[run_p] = _run_jvp
ad.primitive_jvps[tangent_p] = _tangent_jvp
ad.primitive_transposes[run_p] = _run_transpose
ad.primitive_transposes[tangent_p] = _tangent_transpose
batching.primitive_batchers[run_p] = _run_batch
batching.primitive_batchers[tangent_p] = _tangent_batch
mlir.register_lowering(run_p, lowering.lower_elsewhere)
mlir.register_lowering(run_p, lowering.lower_on_cpu, platform="cpu")
mlir.register_lowering(tangent_p, mlir.lower_fun(_pushed, multiple_results=True))
