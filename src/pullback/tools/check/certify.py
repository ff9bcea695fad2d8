"""The checks of one op and element type, and the report over many."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np

from ...core.declare import Op
from ...precision import under
from ..bench.machine import describe
from ..case import Case, cuts
from ..choices import selections
from ..operands import make_operands
from .layouts import layout_results, same_bytes

SCHEMA = 1
THREADS = (1, 2, 3, 8)
# Several blocks of a scan and a ragged end; small enough for an oracle with 640 bits.
SHAPE = (2, 600)
SEGMENTS = ((160, 7), 19)
# Enough bytes in any element type that threads are really used: rows, and a row cut in blocks.
WIDE = ((24, 45_000), (2, 540_000))


def _case(op: Op, element: str, shape: tuple[int, ...] = SHAPE) -> Case:
    segments = SEGMENTS[1]
    if cuts(op):
        rows, segments = SEGMENTS if shape == SHAPE else ((shape[0] * shape[1] // 64, 64), 500)
        shape = rows
    return Case.of(op, element, shape, segments=segments, axis=-1)


def check_one(op: Op, element: str, with_torch: bool = True) -> dict[str, Any]:
    """All checks of an op for an element type, in both precisions where they differ."""
    found: dict[str, Any] = {"op": op.name, "family": op.family, "dtype": element}
    with under("fast"):
        found |= _check(op, element, with_torch)
        computed = _case(op, element).plan().precision_guarantee.math_precision
    if computed == "f32":
        with under("tight"):
            found["tight"] = _check(op, element, with_torch=False)
        reasons = found["reasons"] + [f"tight: {reason}" for reason in found["tight"]["reasons"]]
        found |= {"ok": not reasons, "reasons": reasons}
    return found


def _check(op: Op, element: str, with_torch: bool) -> dict[str, Any]:
    """All checks in the precision at hand."""
    from . import accuracy
    from .edges import edge_case

    case = _case(op, element)
    operands = make_operands(case)
    found: dict[str, Any] = {}
    reasons: list[str] = []
    every: list[np.ndarray] = []
    found["of_allowed"] = 0.0
    with np.errstate(all="ignore"):
        for variant in selections(case):
            given = (variant, make_operands(variant))
            for what, held in (("", given), ("edges: ", edge_case(variant))):
                errors, share = _errors(held)
                found["of_allowed"] = float(max(found["of_allowed"], share))
                if not share <= 1:
                    worst = f"{errors.max():.3g} ulp from the oracle"
                    reasons.append(f"{_chosen(variant)}{what}{worst}")
                every += [] if what else [errors]
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


def _chosen(case: Case) -> str:
    """What is not as usual, for a message."""
    return "" if case.is_plain else f"{case.axis_label.partition(' ')[2]}: "


def _errors(given: tuple[Case, Mapping[str, np.ndarray]] | None) -> tuple[np.ndarray, float]:
    """Errors in ulps, and the largest as a share of what is allowed there."""
    from . import accuracy

    if given is None:
        return np.zeros(1), 0.0
    case, operands = given
    exact = case.exact(operands)
    errors = accuracy.errors(case, accuracy.result(case, operands), exact)
    return errors, accuracy.worst_share(errors, accuracy.allowed(case, operands, exact))


def _function(case: Case, operands: Mapping[str, np.ndarray], expected: Mapping[str, Any]) -> bool:
    results = case.results(operands)
    return all(same_bytes(results[n], expected[n]) for n in expected)


def _threads(op: Op, element: str) -> dict[str, bool]:
    """By thread count, whether the bytes are those of one thread."""
    from . import accuracy

    found: dict[str, bool] = {}
    for shape in WIDE[:1] if cuts(op) else WIDE:
        case = _case(op, element, shape)
        operands = make_operands(case)
        alone = accuracy.result(case, operands, 1)
        for threads in THREADS[1:]:
            shared = accuracy.result(case, operands, threads)
            same = all(same_bytes(shared[n], alone[n]) for n in alone)
            found[str(threads)] = found.get(str(threads), True) and same
    return found


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
