"""The two JAX primitives and their rules.

``pullback`` runs one direction of a pair on the kernels. ``pullback_tangent`` is the derivative of
the forward, a linear map: JAX transposes it into a run of the backward kernel for reverse mode, and
evaluates it only for forward mode. Operands are named by position, in the order of the catalog; of
an operand that does not vary along a dimension the length there may be 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..core.declare import Role, Type
from ..core.elements import ELEMENTS
from ..core.problem import Problem
from ..errors import UnsupportedError
from ..formulas.arrays import evaluate
from . import lowering, partition
from .arrays import JAX
from .pairs import Pair, batched, repeated

run_p = Primitive("pullback")
run_p.multiple_results = True
tangent_p = Primitive("pullback_tangent")
tangent_p.multiple_results = True


def run(pair: Pair, direction: str, operands: dict[str, Any], outputs: tuple[str, ...]) -> Any:
    """Some outputs of one direction, as a list."""
    inputs = pair.inputs(direction, operands)
    arguments = [operands[name] for name in inputs]
    return run_p.bind(*arguments, pair=pair, direction=direction, inputs=inputs, outputs=outputs)


def varying_alike(*arrays: Any) -> list[Any]:
    """Arrays that vary over the same mesh axes, as ops inside ``jax.shard_map`` must have them."""
    axes = [_varying(a) for a in arrays]
    everywhere = frozenset().union(*axes)
    missing = [tuple(everywhere - own) for own in axes]
    return [_vary(a, more) if more else a for a, more in zip(arrays, missing, strict=True)]


def _varying(array: Any) -> frozenset[Any]:
    if not hasattr(jax, "typeof"):
        return frozenset()  # jax before 0.6 does not keep track of it
    aval = _aval(array)
    # The set has been called vma and, since jax 0.10, sits in the type of the manual axes.
    kind = getattr(aval, "manual_axis_type", None)
    return getattr(aval, "vma", frozenset()) if kind is None else kind.varying


def _aval(array: Any) -> Any:
    return jax.typeof(array) if hasattr(jax, "typeof") else jax.core.get_aval(array)


def _vary(array: Any, axes: tuple[Any, ...]) -> Any:
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, axes, to="varying")
    return jax.lax.pvary(array, axes)


def dtype_of(problem: Problem, name: str) -> np.dtype[Any]:
    """The type of an operand; without x64 states are float32 too."""
    kind = problem.op.operand(name).type
    if kind is Type.ELEMENT:
        return ELEMENTS[problem.element].dtype
    named = {Type.BOOL: np.bool_, Type.INDEX: np.int64, Type.STATE: np.float64}[kind]
    return np.dtype(jax.dtypes.canonicalize_dtype(named))


def _abstract(
    problem: Problem, outputs: Sequence[str], like: Any, shardings: Sequence[Any]
) -> list[Any]:
    found = []
    for n, sharding in zip(outputs, shardings, strict=True):
        more = {} if sharding is None else {"sharding": sharding}
        dtype = dtype_of(problem, n)
        found.append(like.update(shape=problem.shape_of(n), dtype=dtype, weak_type=False, **more))
    return found


@run_p.def_abstract_eval
def _run_abstract(*operands, pair, direction, inputs, outputs):
    shardings = partition.Rules(pair, direction, inputs, outputs).typed(operands)
    return _abstract(pair.problem(direction, inputs), outputs, operands[0], shardings)


@tangent_p.def_abstract_eval
def _tangent_abstract(*operands, pair, variables):
    names = (*variables, *pair.residuals)
    shardings = partition.Rules(pair, "forward", names, pair.moves).typed(operands)
    return _abstract(pair.forward, pair.moves, operands[0], shardings)


def _compiled(primitive: Primitive, pair: Pair, **parameters: Any) -> Any:
    """The primitive as a jitted function, so that an eager call costs one dispatch."""
    key = (primitive.name, *parameters.values())
    function = pair.compiled.get(key)
    if function is None:
        function = jax.jit(lambda *a: primitive.bind(*a, pair=pair, **parameters))
        pair.compiled[key] = function
    return function


@run_p.def_impl
def _run_impl(*operands, pair, direction, inputs, outputs):
    return _compiled(run_p, pair, direction=direction, inputs=inputs, outputs=outputs)(*operands)


@tangent_p.def_impl
def _tangent_impl(*operands, pair, variables):
    return _compiled(tangent_p, pair, variables=variables)(*operands)


def _pushed(*operands, pair: Pair, variables: tuple[str, ...]) -> list[Any]:
    """The tangent of the forward: the backward, transposed; a linear forward is its own."""
    moved = dict(zip(variables, operands, strict=False))
    held = dict(zip(pair.residuals, operands[len(variables) :], strict=True))
    if pair.linear:
        rest = [n for n in pair.variables if n not in moved]
        still = _full(pair.forward, rest, 0, operands[0])
        return run(pair, "forward", {**held, **moved, **still}, pair.moves)

    def pull(cotangents):
        results = _evaluated(pair.backward, {**held, **cotangents})
        return [results[pair.gradients[n]] for n in variables]

    # A gradient is linear in its cotangents, so it is its own derivative, at whatever cotangents.
    # Formulas look whether one is zero, which rules out jax.linear_transpose, and zero itself.
    anything = _full(pair.backward, pair.cotangents, 1, operands[0])
    full = [jnp.broadcast_to(t, pair.forward.shape_of(n)) for n, t in moved.items()]
    (found,) = jax.vjp(pull, anything)[1](full)
    results = [found[n] for n in pair.cotangents]
    if pair.hidden:
        outputs, at = _hidden(pair, held, variables)
        results += jax.jvp(outputs, at, full)[1]
    return results


def _hidden(pair: Pair, held: dict[str, Any], variables: tuple[str, ...]) -> tuple[Any, list[Any]]:
    """What the backward reads of the forward without taking a gradient by it: a function of the
    variables, and where they are."""

    def outputs(*values):
        found = _evaluated(pair.forward, {**held, **dict(zip(variables, values, strict=True))})
        return [found[n] for n in pair.hidden]

    return outputs, [jnp.broadcast_to(held[n], pair.forward.shape_of(n)) for n in variables]


def _full(problem: Any, names: Iterable[str], value: float, like: Any) -> dict[str, Any]:
    """Operands of one number that vary over mesh axes as another does."""
    return {
        n: varying_alike(jnp.full(problem.shape_of(n), value, dtype_of(problem, n)), like)[0]
        for n in names
    }


def _evaluated(problem: Any, operands: dict[str, Any]) -> dict[str, Any]:
    """All outputs of a problem by its formula, as ordinary JAX code."""
    names = [o.name for o in problem.writes]
    return dict(zip(names, evaluate(problem, operands, JAX), strict=True))


def _run_jvp(primals, tangents, *, pair, direction, inputs, outputs):
    how = {"pair": pair, "direction": direction, "inputs": inputs, "outputs": outputs}
    results = run_p.bind(*primals, **how)
    held = dict(zip(inputs, primals, strict=True))
    moved = {n: t for n, t in zip(inputs, tangents, strict=True) if type(t) is not ad.Zero}
    # A number may move that the backward gives no gradient for; then the formula itself does.
    told = pair.backward is None or moved.keys() <= {*pair.variables}
    if direction == "forward" and told:
        variables = tuple(n for n in pair.variables if n in moved)
        changes: dict[str, Any] = {}
        if variables:
            saved = {**held, **dict(zip(outputs, results, strict=True))}
            arguments = [*(moved[n] for n in variables), *(saved[n] for n in pair.residuals)]
            found = tangent_p.bind(*arguments, pair=pair, variables=variables)
            changes = dict(zip(pair.moves, found, strict=True))
        # Where no gradient flows to or from, the result is a constant.
        return results, [
            changes[n] if n in changes else ad.Zero(_aval(r).to_tangent_aval())
            for n, r in zip(outputs, results, strict=True)
        ]
    if direction == "backward" and pair.linear:
        cotangents = [n for n in inputs if n in pair.cotangents]
        still = [n for n in cotangents if n not in moved]
        zeros = {n: jnp.zeros_like(held[n]) for n in still}
        return results, run(pair, direction, {**held, **moved, **zeros}, outputs)
    problem = pair.problem(direction, inputs)

    def pull(varying):
        found = _evaluated(problem, {**held, **varying})
        return [found[n] for n in outputs]

    _, changes = jax.jvp(pull, ({n: held[n] for n in moved},), (moved,))
    return results, changes


def _tangent_jvp(primals, tangents, *, pair, variables):
    count = len(variables)
    results = tangent_p.bind(*primals, pair=pair, variables=variables)
    if all(type(t) is ad.Zero for t in tangents[count:]):
        moved = [ad.instantiate_zeros(t) for t in tangents[:count]]
        changes = tangent_p.bind(*moved, *primals[count:], pair=pair, variables=variables)
        return results, changes
    places = [k for k, t in enumerate(tangents) if type(t) is not ad.Zero]

    def push(*varying):
        operands = list(primals)
        for k, v in zip(places, varying, strict=True):
            operands[k] = v
        return _pushed(*operands, pair=pair, variables=variables)

    primal, moved = ([values[k] for k in places] for values in (primals, tangents))
    _, changes = jax.jvp(push, primal, moved)
    return results, changes


def _tangent_transpose(cotangents, *operands, pair, variables):
    count = len(pair.cotangents)
    given = _cotangents_of(pair, dict(zip(pair.cotangents, cotangents, strict=False)))
    held = dict(zip(pair.residuals, operands[len(variables) :], strict=True))
    results: Any = [None] * len(variables)
    if given:
        wanted = tuple(pair.gradients[n] for n in variables)
        results = run(pair, "backward", {**held, **given}, wanted)
    if any(type(c) is not ad.Zero for c in cotangents[count:]):
        outputs, at = _hidden(pair, held, variables)
        more = jax.vjp(outputs, *at)[1]([ad.instantiate_zeros(c) for c in cotangents[count:]])
        results = [m if r is None else r + m for r, m in zip(results, more, strict=True)]
    summed = [r if r is None else _summed(r, x) for r, x in zip(results, operands, strict=False)]
    return [*summed, *[None] * len(pair.residuals)]


def _summed(result: Any, operand: Any) -> Any:
    """A gradient by an operand that did not vary along some dimensions."""
    wanted = operand.aval.shape
    axes = tuple(d for d, n in enumerate(wanted) if n != result.shape[d])
    return jnp.sum(result, axes, keepdims=True) if axes else result


def _cotangents_of(pair: Pair, cotangents: dict[str, Any]) -> dict[str, Any]:
    """The cotangents that a backward is given: all it must have, and others that are not zero.

    None where all are zero.
    """
    given = {n: c for n, c in cotangents.items() if type(c) is not ad.Zero}
    if not given:
        return {}
    optional = pair.backward.op.optional  # type: ignore[union-attr]
    return {
        n: ad.instantiate_zeros(c) for n, c in cotangents.items() if n in given or n not in optional
    }


def _run_transpose(cotangents, *operands, pair, direction, inputs, outputs):
    """The transpose of one direction of a linear pair is the other direction."""
    if not pair.linear:
        raise UnsupportedError(f"{pair.forward.op.kind}: not a linear function, so not transposed")
    if all(type(c) is ad.Zero for c in cotangents):
        return [None] * len(operands)
    held = dict(zip(inputs, operands, strict=True))
    asked = [n for n in inputs if ad.is_undefined_primal(held[n])]
    held = {n: v for n, v in held.items() if n not in asked}
    given = dict(zip(outputs, cotangents, strict=True))
    if direction == "forward":
        by = {c: given[o] for c, o in pair.cotangents.items() if o in given}
        wanted = tuple(pair.gradients[n] for n in asked)
        results = run(pair, "backward", {**held, **_cotangents_of(pair, by)}, wanted)
    else:
        by = {n: ad.instantiate_zeros(given[g]) for n, g in pair.gradients.items() if g in given}
        rest = [n for n in pair.variables if n not in by]
        by |= _full(pair.forward, rest, 0, next(iter(by.values())))
        wanted = tuple(pair.cotangents[n] for n in asked)
        results = run(pair, "forward", {**held, **by}, wanted)
    found = dict(zip(asked, results, strict=True))
    return [
        _summed(found[n], x) if n in found else None for n, x in zip(inputs, operands, strict=True)
    ]


def _batch(bind, names: Sequence[str], operands, dims, pair: Pair):
    """One more dimension for every operand.

    One that does not vary along it keeps length 1 there and is not copied.
    """
    if pair.forward.is_segmented:
        return _batch_segments(bind, names, operands, dims, pair)
    at, size = next((d, x.shape[d]) for x, d in zip(operands, dims, strict=True) if d is not None)
    moved = [
        jnp.expand_dims(x, at) if d is None else jnp.moveaxis(x, d, at)
        for x, d in zip(operands, dims, strict=True)
    ]
    results = bind(*moved, pair=batched(pair, at, size))
    return results, [at] * len(results)


def _batch_segments(bind, names: Sequence[str], operands, dims, pair: Pair):
    """All operands but what cuts them are tables, of rows or of segments."""
    cut = pair.forward.cut_by
    place = list(names).index(cut.name)
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
    ids = jnp.moveaxis(ids, ids_at, 0)
    if cut.role is Role.OFFSETS:
        # Rows between the runs of one batch and the next belong to none: one batch at a time.
        tables.insert(place, ids)
        results = jax.lax.map(lambda each: bind(*each, pair=pair), tables)
        return results, [0] * len(results)
    segments = pair.forward.num_segments
    if size * segments > jnp.iinfo(ids.dtype).max:
        raise UnsupportedError(
            f"{cut.name}: {size} batches of {segments} segments do not fit {ids.dtype}"
        )
    first = segments * jnp.arange(size, dtype=ids.dtype)[:, None]
    ids = jnp.where((ids >= 0) & (ids < segments), ids + first, -1)
    moved = [x.reshape(size * x.shape[1], width) for x in tables]
    moved.insert(place, ids.reshape(-1))
    results = bind(*moved, pair=repeated(pair, rows=size, columns=1))
    rows = [r.shape[0] // size if size else 0 for r in results]
    shaped = [r.reshape(size, n, width) for r, n in zip(results, rows, strict=True)]
    return shaped, [0] * len(results)


def _run_batch(operands, dims, *, pair, direction, inputs, outputs):
    def bind(*moved, pair):
        return run_p.bind(*moved, pair=pair, direction=direction, inputs=inputs, outputs=outputs)

    return _batch(bind, inputs, operands, dims, pair)


def _tangent_batch(operands, dims, *, pair, variables):
    def bind(*moved, pair):
        return tangent_p.bind(*moved, pair=pair, variables=variables)

    return _batch(bind, (*variables, *pair.residuals), operands, dims, pair)


ad.primitive_jvps[run_p] = _run_jvp
ad.primitive_jvps[tangent_p] = _tangent_jvp
ad.primitive_transposes[run_p] = _run_transpose
ad.primitive_transposes[tangent_p] = _tangent_transpose
batching.primitive_batchers[run_p] = _run_batch
batching.primitive_batchers[tangent_p] = _tangent_batch
partition.tell_devices(run_p)
mlir.register_lowering(run_p, lowering.lower_elsewhere)
mlir.register_lowering(run_p, lowering.lower_on_cpu, platform="cpu")
mlir.register_lowering(tangent_p, mlir.lower_fun(_pushed, multiple_results=True))
