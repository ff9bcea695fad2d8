"""Data for a case: operands, with what the forward would have saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..core.declare import Role, Type
from .case import Case

SEED = 20240607

Rng = np.random.Generator
Arrays = dict[str, np.ndarray]
Draw = Callable[[Case, str, Rng], np.ndarray]
Save = Callable[[Case, Mapping[str, np.ndarray]], Mapping[str, Any]]


def ordinary(case: Case, name: str, rng: Rng) -> np.ndarray:
    """Normal numbers; of a product, factors of either sign whose product stays near 1."""
    shape = case.shape_of(name)
    wide = np.float64 if case.element == "f64" else np.float32
    drawn = rng.standard_normal(shape, wide)
    if case.has_products and case.op.direction == "forward":
        spread = min(0.5, 1.0 / math.sqrt(max(1, case.extent)))
        drawn = (1.0 + spread * drawn) * rng.choice(np.array([-1.0, 1.0], np.float32), shape)
    return drawn


def by_function(case: Case, operands: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
    """What the library's own forward saves."""
    with np.errstate(all="ignore"):
        return case.results(operands)


def exactly(case: Case, operands: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
    """What the oracle's forward saves, rounded once."""
    from ..oracle import round_to

    found = case.exact(operands)
    kinds = {n: "f64" if case.op.operand(n).type is Type.STATE else case.element for n in found}
    return {n: round_to(found[n].value, kinds[n]) for n in found}


def make_operands(
    case: Case, seed: int = SEED, draw: Draw = ordinary, save: Save = by_function
) -> Arrays:
    """Inputs of a case.

    Parameters
    ----------
    draw
        ``draw(case, name, rng)`` gives the numbers of an operand.
    save
        ``save(forward, operands)`` gives the outputs of the forward that the case wants.
    """
    rng = np.random.default_rng(seed)
    if case.pair_forward is None:
        return {n: _operand(case, n, rng, draw) for n in case.reads}
    forward = case.forward()
    saved = [n for n in case.reads if n not in case.cotangents]
    if forward.op.refuses_empty and not case.extent:  # nothing is read of what it would save
        return {n: np.zeros(case.shape_of(n), case.dtype_of(n)) for n in case.reads}
    made: dict[str, Any] = {}
    if saved:
        made = {n: _operand(forward, n, rng, draw) for n in forward.reads}
    if any(n in forward.op.outputs for n in saved):
        made |= save(forward, made)
    return {n: made[n] if n in made else _operand(case, n, rng, draw) for n in case.reads}


def _operand(case: Case, name: str, rng: Rng, draw: Draw) -> np.ndarray:
    operand, shape = case.op.operand(name), case.shape_of(name)
    if operand.type is Type.BOOL:
        drawn = rng.random(shape) < 0.7
        if min(shape, default=0) > 2:  # along either axis, a row without any
            drawn[:1] = drawn[..., :1] = False
        return drawn
    if operand.role is Role.IDS:
        return make_ids(case, rng)
    if operand.role is Role.OFFSETS:
        ends = np.sort(rng.integers(0, case.shape[0] + 1, shape[0]))
        ends[0], ends[-1] = 0, case.shape[0]
        return ends
    if operand.type is Type.INDEX:
        return rng.integers(0, max(1, case.extent), shape)
    with np.errstate(over="ignore"):
        return np.asarray(draw(case, name, rng)).astype(case.dtype_of(name), copy=False)


def make_ids(case: Case, rng: Rng) -> np.ndarray:
    """Segment ids, some of them out of range if those are dropped."""
    low, high = 0, case.segments or 0
    if case.get("out_of_range") == "drop":
        low, high = -2, high + 2
    ids = rng.integers(low, max(high, low + 1), case.shape[0])
    return np.sort(ids) if case.is_sorted else ids


def make_outputs(case: Case) -> Arrays:
    """Outputs filled with NaN, so that an element that is never written shows."""
    return {n: np.full(case.shape_of(n), np.nan, case.dtype_of(n)) for n in case.outputs}
