"""Ops inside ``jax.shard_map`` whose axis is cut over devices, with their gradients."""

from __future__ import annotations

from typing import Any

import jax

from .pairs import Pair
from .pieces import CutCall
from .primitives import dtype_of, varying_alike
from .segment_pieces import SegmentCutCall

Shape = tuple[int, ...]


def run_shard(
    pair: Pair,
    operands: dict[str, Any],
    names: tuple[Any, ...],
    count: int,
    axis: int,
    local: Shape,
) -> dict[str, Any]:
    """The outputs that are asked for, by name, of this device's shard.

    Parameters
    ----------
    pair
        The op and its backward on the uncut operands.
    operands
        Shards by name; those with one element for each row, or a row for each segment, are the
        same on all devices.
    names, count
        The mesh axes that cut the op's axis, and how many pieces they make.
    axis, local
        The dimension that is cut, and the shape of a shard.
    """

    def direction(
        name: str, inputs: tuple[str, ...], outputs: tuple[str, ...]
    ) -> CutCall | SegmentCutCall:
        problem = pair.problem(name, inputs)
        how = (problem, inputs, outputs, local, names, count)
        dtypes = [dtype_of(problem, n) for n in outputs]
        if problem.is_segmented:
            return SegmentCutCall(*how, dtypes)
        return CutCall(*how, dtypes, axis, True)

    def forward(*arrays: Any) -> tuple[Any, ...]:
        return tuple(direction("forward", pair.reads, pair.outputs).run(arrays))

    def keep(*arrays: Any) -> Any:
        results = forward(*arrays)
        return results, (arrays, results)

    def pull(kept: Any, cotangents: Any) -> Any:
        arrays, results = kept
        held = dict(zip((*pair.reads, *pair.outputs), (*arrays, *results), strict=True))
        by = dict(zip(pair.outputs, cotangents, strict=True))
        held |= {c: by[o] for c, o in pair.cotangents.items()}
        inputs = pair.inputs("backward", held)
        wanted = tuple(pair.gradients.values())
        found = direction("backward", inputs, wanted).run([held[n] for n in inputs])
        grads = dict(zip(pair.gradients, found, strict=True))
        return tuple(
            varying_alike(grads[n], a)[0] if n in grads else None
            for n, a in zip(pair.reads, arrays, strict=True)
        )

    arrays = [operands[n] for n in pair.reads]
    if pair.backward is None:
        results = forward(*map(jax.lax.stop_gradient, arrays))
    else:
        call = jax.custom_vjp(forward)
        call.defvjp(keep, pull)
        results = call(*arrays)
    made = dict(zip(pair.outputs, results, strict=True))
    return {n: made[n] for n in pair.asked}
