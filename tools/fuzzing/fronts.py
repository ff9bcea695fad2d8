"""The differentiable functions of torch and JAX beside the library's own: the same bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import pullback as pb
from cells import OPS, as_tuple
from fuzzing.calls import Memory, Wrong, as_torch, from_torch
from fuzzing.cases import Case
from fuzzing.compare import same_results


def _parameters(cell: Any, axis: str, keepdims: str) -> dict[str, Any]:
    op, keys = cell.op, {}
    if op.parameter("axis"):
        keys[axis] = cell.get("axis")
    if op.parameter("keepdims"):
        keys[keepdims] = True
    for name in ("reverse", "correction"):
        if op.parameter(name):
            keys[name] = cell.get(name)
    return keys


def _gradient(cell: Any, x: dict[str, Any], y: Any, dy: Any, ties: str | None) -> tuple[Any, ...]:
    """What the library's own functions give."""
    op = OPS[f"{cell.op.kind}_backward"]
    backward = cell.but(op=op, **({"ties": ties} if ties else {}))
    made = {"dy": dy, "d_output": dy, "y": y, **x}
    result: tuple[Any, ...] = as_tuple(backward.call({n: made[n] for n in op.inputs}))
    return result


def _arguments(cell: Any) -> list[Any]:
    if cell.op.parameter("weight"):
        return [cell.get("weight")]
    return [cell.segments] if cell.is_segmented else []


def _torch(case: Case, arrays: dict[str, Any], dy: Any, ties: str | None) -> Any:
    import torch

    import pullback.torch as pt

    cell = case.cell
    tensors = [as_torch(a) for a in arrays.values()]
    if any(t is None for t in tensors):  # torch has no negative strides
        tensors = [as_torch(np.array(a)) for a in arrays.values()]
    leaves = [t.requires_grad_() for t in tensors if t.is_floating_point()]
    keys = _parameters(cell, "dim", "keepdim")
    if ties:
        keys["ties"] = ties
    if cell.is_segmented:
        keys["sorted"] = cell.is_sorted
    function = getattr(pt, {"max": "amax", "min": "amin"}.get(cell.op.kind, cell.op.kind))
    y = function(*tensors, *_arguments(cell), **keys)
    y = y if isinstance(y, torch.Tensor) else y[0]
    gradients = torch.autograd.grad(y, leaves, as_torch(np.array(dy)))
    return [from_torch(t.detach(), cell.dtype) for t in (y, *gradients)]


def _jax(case: Case, arrays: dict[str, Any], dy: Any, ties: str | None) -> Any:
    import jax

    import pullback.jax as pj

    cell = case.cell
    keys = _parameters(cell, "axis", "keepdims")
    if ties:
        keys["ties"] = ties
    if cell.is_segmented:
        keys |= {"indices_are_sorted": cell.is_sorted, "out_of_range": "drop"}
    floats = [np.array(a) for n, a in arrays.items() if n != "segment_ids"]
    others = [np.array(a) for n, a in arrays.items() if n == "segment_ids"]
    function = getattr(pj, cell.op.kind)

    def both(values: Any, dy: Any) -> Any:
        y, back = jax.vjp(lambda *v: function(*v, *others, *_arguments(cell), **keys), *values)
        return y, *back(dy)

    return [np.asarray(a) for a in jax.jit(both)(floats, dy)]


def run(case: Case, memory: Memory) -> None:
    """Raise :class:`Wrong` where a front end's value or gradients differ from the library's."""
    cell = case.cell
    rng = np.random.default_rng(case.hostile)
    policies = OPS[f"{cell.op.kind}_backward"].ties
    ties = str(rng.choice(policies)) if policies else None
    inputs, _ = memory.place(replace(case, in_place=None))
    arrays = {n: p.array for n, p in inputs.items()}
    pb.set_num_threads(case.threads)
    y = np.asarray(cell.call(arrays))
    dy = np.asarray(rng.standard_normal(y.shape)).astype(cell.dtype)
    own = [y, *_gradient(cell, arrays, y, dy, ties)]
    front = _torch if case.form == "pullback.torch" else _jax
    for k, (a, b) in enumerate(zip(own, front(case, arrays, dy, ties), strict=True)):
        if not same_results(np.asarray(a), np.asarray(b)):
            what = f"gradient {k}" if k else "value"
            raise Wrong(f"the {what} by {case.form} has other bytes than by pullback, ties={ties}")
    if any(not p.is_unchanged() for p in inputs.values()):
        raise Wrong(f"an input was written by {case.form}")
