"""Data for a case: operands that every contender can take, and the saves of the forward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...api.functions import FUNCTIONS
from ...core.vocabulary import ElementKind
from . import plain
from .case import Case

SEED = 20240607


def dtype_of(element: str) -> np.dtype[Any]:
    """The NumPy dtype of an element type."""
    return ElementKind(element).numpy_dtype


def _normal(rng: np.random.Generator, shape: tuple[int, ...], element: str) -> np.ndarray:
    drawn = rng.standard_normal(shape, np.float64 if element == "f64" else np.float32)
    return drawn.astype(dtype_of(element), copy=False)


def _factors(rng: np.random.Generator, shape: tuple[int, ...], element: str, extent: int):
    """Factors of either sign whose product over the extent stays near 1."""
    spread = min(0.5, 1.0 / math.sqrt(max(1, extent)))
    drawn = 1.0 + spread * rng.standard_normal(shape, np.float32)
    drawn *= rng.choice(np.array([-1.0, 1.0], np.float32), shape)
    return drawn.astype(dtype_of(element))


def make_operands(
    case: Case, seed: int = SEED, save: Callable[[np.ndarray], np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Inputs of a case, with what the forward would have saved, rounded to the element.

    ``save`` makes y of x; without it the plain formula in float64 does.
    """
    rng = np.random.default_rng(seed)
    element = case.element
    made: dict[str, np.ndarray] = {}
    if case.family == "segment":
        ids = rng.integers(0, case.segments, case.shape[0], np.int64)
        made["segment_ids"] = np.sort(ids) if case.order == "sorted" else ids
    for name in case.op.inputs:
        if name in ("segment_ids", "y"):
            continue
        if name == "x" and case.op.kind in ("prod", "cumprod"):
            made[name] = _factors(rng, case.shape, element, case.extent)
        else:
            made[name] = _normal(rng, case.shape_of(name), element)
    if "y" in case.op.inputs:
        x = made.get("x")
        if x is None:
            x = _normal(rng, case.shape, element)
        made["y"] = save(x) if save else _saved(case, x)
    return {n: made[n] for n in case.op.inputs}


def _saved(case: Case, x: np.ndarray) -> np.ndarray:
    forward = plain.FORWARD.get(case.op.kind)
    if forward is not None:
        with np.errstate(all="ignore"):
            y = forward(x.astype(np.float64), case.axes, case.correction)
        return y.astype(x.dtype)
    keywords: dict[str, Any] = {"keepdims": True} if case.family == "reduce" else {}
    return FUNCTIONS[case.op.kind](x, case.axis, **keywords)


def make_outputs(case: Case) -> dict[str, np.ndarray]:
    """Outputs filled with NaN, so that an element that is never written shows."""
    dtype = dtype_of(case.element)
    return {n: np.full(case.shape_of(n), np.nan, dtype) for n in case.op.outputs}
