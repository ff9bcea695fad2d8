"""Ops by segment, under a mask and of targets, as one writes them in torch and in JAX.

Where a framework has the op, that is it (``index_add``, ``scatter_reduce``, ``segment_reduce``,
``jax.ops``, ``cross_entropy``); the rest is what graph and attention layers are made of there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...core.declare import Role, Type
from ...formulas.record import RowFormula
from ..case import Case, cuts

Function = Callable[..., Any]

# torch's names of reductions by index.
_REDUCTIONS = {
    "segment_mean": "mean",
    "segment_max": "amax",
    "segment_min": "amin",
    "segment_prod": "prod",
}
# torch.segment_reduce's, of rows that lie side by side.
_RANGES = {"segment_sum": "sum", **_REDUCTIONS, "segment_max": "max", "segment_min": "min"}


def with_ids(case: Case, operands: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """The operands, with ids beside offsets: a caller of ops by id would keep them, too."""
    by = {o.role: o.name for o in cuts(case.op)}
    offsets = operands.get(by.get(Role.OFFSETS, ""))
    if offsets is None:
        return operands
    return {**operands, by[Role.IDS]: np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))}


def ids_of(case: Case, given: Mapping[str, Any]) -> Any:
    """The ids of a case that is plain but for what cuts its rows, else None."""
    cutting = [o.name for o in cuts(case.op)]
    if not cutting or not case.but(given=cutting[:1]).is_plain:
        return None
    return given.get(cutting[0])


def are_sorted(case: Case) -> bool:
    """Whether rows lie in the order of their segments."""
    by_ids = case.op.names(Role.IDS)
    return case.is_sorted or not set(by_ids) & set(case.given)


def torch_by_ids(torch: Any, case: Case, given: Mapping[str, Any]) -> Function | None:
    """An op by segment in torch, of its rows."""
    ids, count, kind = ids_of(case, given), case.segments, case.op.kind
    if ids is None:
        return None

    def table(x: Any) -> Any:
        return x.new_zeros(count, *x.shape[1:])

    def added(x: Any) -> Any:
        return table(x).index_add_(0, ids, x)

    def reduced(x: Any, how: str) -> Any:
        full = ids[:, None].expand_as(x)
        return table(x).scatter_reduce_(0, full, x, how, include_self=False)

    def peak(x: Any) -> Any:
        return reduced(x.detach(), "amax")

    def logsumexp(x: Any) -> Any:
        most = peak(x)
        return added((x - most[ids]).exp()).log() + most

    def softmax(x: Any) -> Any:
        weight = (x - peak(x)[ids]).exp()
        return weight / added(weight)[ids]

    if kind in _REDUCTIONS:
        return lambda x: reduced(x, _REDUCTIONS[kind])
    return {
        "segment_sum": added,
        "segment_logsumexp": logsumexp,
        "segment_softmax": softmax,
        "segment_log_softmax": lambda x: x - logsumexp(x)[ids],
    }.get(kind)


def torch_by_ranges(torch: Any, case: Case, given: Mapping[str, Any]) -> Function | None:
    """``torch.segment_reduce`` of rows in the order of their segments; None where it has none."""
    ids, how = ids_of(case, given), _RANGES.get(case.op.kind)
    if ids is None or how is None or not are_sorted(case):
        return None
    lengths = torch.bincount(ids, minlength=case.segments)
    return lambda x: torch.segment_reduce(x, how, lengths=lengths, axis=0, unsafe=True)


def jax_by_ids(jax: Any, case: Case, given: Mapping[str, Any]) -> Function | None:
    """An op by segment in JAX, of its rows."""
    ids, kind, jnp = ids_of(case, given), case.op.kind, jax.numpy
    if ids is None:
        return None
    how = {"num_segments": case.segments, "indices_are_sorted": are_sorted(case)}

    def by(name: str, x: Any) -> Any:
        return getattr(jax.ops, name)(x, ids, **how)

    def mean(x: Any) -> Any:
        count = by("segment_sum", jnp.ones(len(x), x.dtype))
        return by("segment_sum", x) / jnp.maximum(count, 1)[:, None]

    def peak(x: Any) -> Any:
        most = jax.lax.stop_gradient(by("segment_max", x))
        return jnp.where(jnp.isfinite(most), most, 0)

    def logsumexp(x: Any) -> Any:
        most = peak(x)
        return jnp.log(by("segment_sum", jnp.exp(x - most[ids]))) + most

    def softmax(x: Any) -> Any:
        weight = jnp.exp(x - peak(x)[ids])
        return weight / by("segment_sum", weight)[ids]

    if hasattr(jax.ops, kind):
        return lambda x: by(kind, x)
    return {
        "segment_mean": mean,
        "segment_logsumexp": logsumexp,
        "segment_softmax": softmax,
        "segment_log_softmax": lambda x: x - logsumexp(x)[ids],
    }.get(kind)


def target_of(case: Case, given: Mapping[str, Any]) -> Any:
    """The integers that name a position in each row; None where a case has none."""
    names = [o.name for o in case.op.reads if o.role is Role.ROW and o.type is Type.INDEX]
    return given.get(names[0]) if names else None


def torch_loss(torch: Any, case: Case, given: Mapping[str, Any]) -> Function | None:
    """The loss of each row, with its axis kept."""
    target = target_of(case, given)
    if target is None or case.op.kind != "cross_entropy":
        return None
    (axis,) = case.axes
    of = torch.nn.functional.cross_entropy
    flat = target.squeeze(axis)
    # torch wants the classes in the second dimension, or the first of a vector.
    place = min(1, len(case.shape) - 1)
    return lambda x: of(x.movedim(axis, place), flat, reduction="none").unsqueeze(axis)


def jax_loss(jax: Any, case: Case, given: Mapping[str, Any]) -> Function | None:
    """The loss of each row, with its axis kept."""
    target = target_of(case, given)
    if target is None or case.op.kind != "cross_entropy":
        return None
    (axis,) = case.axes

    def loss(x: Any) -> Any:
        picked = jax.numpy.take_along_axis(x, target, axis)
        return jax.nn.logsumexp(x, axis=axis, keepdims=True) - picked

    return loss


def mask_of(case: Case, given: Mapping[str, Any]) -> Any:
    """The mask of a case that is plain but for it, else None."""
    if not isinstance(case.op.record(), RowFormula):
        return None
    masks = [o.name for o in case.op.reads if o.type is Type.BOOL and o.broadcasts]
    only = [n for n in case.given if n in masks]
    return given[only[0]] if len(only) == 1 and case.given == tuple(only) else None


# What stands in for an element that does not count.
_NEUTRAL = {"sum": 0.0, "prod": 1.0, "norm2": 0.0}
_INF = float("inf")
# No value does in those that divide by how many count.
COUNTING = ("mean", "var", "std")


def filled(case: Case, mask: Any, function: Function, fill: Function) -> Function:
    """A masked op as frameworks have it: of an array with a neutral value where nothing counts."""
    value = _NEUTRAL.get(case.op.kind, _INF if case.op.kind == "min" else -_INF)
    return lambda x: function(fill(x, ~mask, value))


def torch_counting(torch: Any, case: Case, mask: Any) -> Function:
    """``torch.masked.mean``, ``var`` or ``std``."""
    function = getattr(torch.masked, case.op.kind)
    how = {} if case.op.kind == "mean" else {"unbiased": bool(case.get("correction"))}
    return lambda x: function(x, case.axes, keepdim=True, mask=mask, **how)


def jax_counting(jax: Any, case: Case, mask: Any) -> Function:
    """``jax.numpy.mean``, ``var`` or ``std`` with ``where``."""
    function = getattr(jax.numpy, case.op.kind)
    how = {} if case.op.kind == "mean" else {"ddof": case.get("correction")}
    return lambda x: function(x, axis=case.axes, keepdims=True, where=mask, **how)
