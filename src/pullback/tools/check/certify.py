"""The checks of one op and element type, and the report over many."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np

from ...api.functions import FUNCTIONS
from ...core.declare import Op
from ..bench.case import Case
from ..bench.machine import describe
from ..bench.operands import make_operands
from .layouts import layout_results, same_bytes

SCHEMA = 1
THREADS = (1, 2, 3, 8)
# Several blocks of a scan and a ragged end; small enough for an oracle with 640 bits.
SHAPE = (2, 600)
SEGMENTS = ((160, 7), 19)
# Enough bytes in any element type that threads are really used: rows, and a row cut in blocks.
WIDE = ((24, 45_000), (2, 540_000))


def _case(op: Op, element: str, shape: tuple[int, ...] = SHAPE) -> Case:
    if op.family == "segment":
        rows, segments = SEGMENTS
        if shape != SHAPE:
            rows, segments = (shape[0] * shape[1] // 64, 64), 500
        return Case(op, element, rows, None, segments=segments, order="random")
    return Case(op, element, shape, None if op.family == "lerp" else -1)


def check_one(op: Op, element: str, with_torch: bool = True) -> dict[str, Any]:
    """All checks of an op for an element type."""
    from . import accuracy
    from .edges import edge_case

    case = _case(op, element)
    operands = make_operands(case)
    found: dict[str, Any] = {"op": op.name, "family": op.family, "dtype": element}
    reasons: list[str] = []
    every: list[np.ndarray] = []
    with np.errstate(all="ignore"):
        for variant in accuracy.variants(case):
            exact = accuracy.oracle(variant, operands)
            outputs = accuracy.result(variant, operands)
            errors = accuracy.errors(variant, outputs, exact)
            share = accuracy.worst_share(errors, accuracy.allowed(variant, operands, exact))
            if not share <= 1:
                reasons.append(f"{_ties(variant)}{errors.max():.3g} ulp from the oracle")
            every.append(errors)
            reasons += _edges(edge_case(variant))
        found["max_ulp"], found["mean_ulp"] = accuracy.describe(np.concatenate(every))
        theirs = accuracy.torch_errors(case, operands) if with_torch else None
        if theirs is not None:
            found["torch_max_ulp"], found["torch_mean_ulp"] = accuracy.describe(theirs)
        plain = accuracy.result(case, operands)
        found["layouts"] = layout_results(case, operands, plain)
        found["function"] = _function(case, operands, plain)
        found["threads"] = _threads(op, element)
    reasons += [f"bytes differ: {name}" for name, same in found["layouts"].items() if not same]
    if not found["function"]:
        reasons.append("bytes differ: function and plan")
    reasons += [f"bytes differ: {t} threads" for t, same in found["threads"].items() if not same]
    return found | {"ok": not reasons, "reasons": reasons}


def _ties(case: Case) -> str:
    return f"ties {case.ties!r}: " if case.ties else ""


def _edges(given: tuple[Case, dict[str, np.ndarray]] | None) -> list[str]:
    if given is None:
        return []
    from . import accuracy

    case, operands = given
    exact = accuracy.oracle(case, operands)
    errors = accuracy.errors(case, accuracy.result(case, operands), exact)
    share = accuracy.worst_share(errors, accuracy.allowed(case, operands, exact))
    return [] if share <= 1 else [f"{_ties(case)}edges: {errors.max():.3g} ulp from the oracle"]


def _function(case: Case, operands: Mapping[str, np.ndarray], expected: Mapping[str, Any]) -> bool:
    returned = case.call(operands)
    results = returned if isinstance(returned, tuple) else (returned,)
    return all(same_bytes(r, expected[n]) for r, n in zip(results, case.op.outputs, strict=True))


def _threads(op: Op, element: str) -> dict[str, bool]:
    """By thread count, whether the bytes are those of one thread."""
    from . import accuracy

    found: dict[str, bool] = {}
    for shape in WIDE[:1] if op.family == "segment" else WIDE:
        case = _case(op, element, shape)
        operands = _wide_operands(case)
        alone = accuracy.result(case, operands, 1)
        for threads in THREADS[1:]:
            shared = accuracy.result(case, operands, threads)
            same = all(same_bytes(shared[n], alone[n]) for n in alone)
            found[str(threads)] = found.get(str(threads), True) and same
    return found


def _wide_operands(case: Case) -> dict[str, np.ndarray]:
    """Operands of a large case; its saves come from the library's own forward, which is faster."""
    if "y" not in case.op.inputs:
        return make_operands(case)
    forward = FUNCTIONS[case.op.kind]
    plain = Case(case.op, case.element, case.shape, case.axis)
    return make_operands(plain, save=lambda x: forward(x, case.axis, **_keep(case)))


def _keep(case: Case) -> dict[str, bool]:
    return {"keepdims": True} if case.family == "reduce" else {}


def certify(
    ops: Sequence[Op],
    dtypes: Sequence[str],
    with_torch: bool | None = None,
    progress: Callable[[str, str, dict[str, Any] | None], None] | None = None,
) -> dict[str, Any]:
    """Check ops for element types.

    Parameters
    ----------
    ops, dtypes
        What to check.
    with_torch
        Measure torch's errors too; None for whether it is installed.
    progress
        Called with op and dtype before each, and with the result after.
    """
    if with_torch is None:
        with_torch = importlib.util.find_spec("torch") is not None
    results = []
    for op in ops:
        for element in dtypes:
            if element not in op.dtypes:
                continue
            if progress:
                progress(op.name, element, None)
            results.append(check_one(op, element, with_torch))
            if progress:
                progress(op.name, element, results[-1])
    return {
        "schema": SCHEMA,
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": describe(),
        "results": results,
        "ok": all(r["ok"] for r in results),
    }
