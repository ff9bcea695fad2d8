"""The checks of one op and element type on a GPU.

Values are compared with the oracle: small problems under every selection and at the edges, rows
that are walked in blocks and, in float32, rows that programs share and long ones that are held.
Bytes are compared between runs, addresses, streams, rows of a batch and a CUDA graph. Other strides
may have another order of the sum: there it is values again, unless the plan promises bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...core.declare import Op, Role
from ...gpu.device import import_torch
from ..bench.verify import Arrays
from ..case import Case, cuts
from ..check import accuracy
from ..check.edges import edge_case
from ..check.layouts import LAYOUTS, same_bytes
from ..choices import selections
from ..operands import make_operands, make_outputs
from .running import Gpu, Placed, place

# Rows of a table and segments.
SHAPE, SEGMENTS = (2, 600), ((160, 7), 19)
# The interpreter takes a millisecond for an element.
SMALL, SMALL_SEGMENTS = (2, 24), ((20, 3), 4)
# Several blocks for every kind of work, and a row that programs share, which float32 is enough for.
BLOCKS, SHARED = (1, 9000), (1, 70_000)
HUB = ((6000, 2), 3)
# Rows that several cores hold, or one in part, and as many as it takes for that.
HELD = (128, 40_000)


def case_of(op: Op, element: str, shape: tuple[int, ...], table: Any) -> Case:
    """An op along the last axis, or on a table of rows."""
    if cuts(op):
        return Case.of(op, element, table[0], segments=table[1])
    return Case.of(op, element, shape, axis=-1)


def check_one(op: Op, element: str, gpu: Gpu) -> dict[str, Any]:
    """All checks of an op for an element type."""
    usual = (SHAPE, SEGMENTS) if gpu.is_card else (SMALL, SMALL_SEGMENTS)
    case = case_of(op, element, *usual)
    reasons: list[str] = []
    worst = 0.0
    with np.errstate(all="ignore"):
        for what, one, operands in _problems(case, gpu):
            error, share = _error(gpu, one, operands, gpu.result(one, operands))
            if not what.startswith("edges"):
                worst = max(worst, error)
            if not share <= 1:
                reasons.append(f"{what}: {error:.3g} ulp from the oracle")
        operands = make_operands(case)
        plain = gpu.result(case, operands)
        layouts, bits = _layouts(gpu, case, operands, plain), _bits(gpu, case, operands, plain)
        if gpu.is_card and element == "f32" and not cuts(op):
            reasons += _held(gpu, op, element)
    reasons += [f"wrong in another layout: {n}" for n, same in layouts.items() if not same]
    reasons += [f"bytes differ: {n}" for n, same in bits.items() if not same]
    found = {"op": op.name, "family": op.family, "dtype": element, "max_ulp": worst}
    return {**found, "layouts": layouts, "bytes": bits, "ok": not reasons, "reasons": reasons}


def _problems(case: Case, gpu: Gpu) -> Iterator[tuple[str, Case, Arrays]]:
    for variant in selections(case):
        named = "" if variant.is_plain else f" {variant.axis_label}"
        yield f"values{named}", variant, make_operands(variant)
        edges = edge_case(variant)
        if edges is not None:
            yield f"edges{named}", *edges
    if not gpu.is_card:
        return
    longer = [BLOCKS, SHARED] if case.element == "f32" else [BLOCKS]
    for shape in longer if not cuts(case.op) else [BLOCKS]:
        one = case_of(case.op, case.element, shape, HUB)
        yield one.shape_label, one, make_operands(one)


def _held(gpu: Gpu, op: Op, element: str) -> list[str]:
    """What is wrong with a long row, many times over."""
    one, many = (case_of(op, element, shape, None) for shape in ((1, HELD[1]), HELD))
    operands = make_operands(one)
    repeated = {n: np.array(np.broadcast_to(a, many.shape_of(n))) for n, a in operands.items()}
    results = gpu.result(many, repeated)
    error, share = _error(gpu, one, operands, {n: r[:1] for n, r in results.items()})
    wrong = [] if share <= 1 else [f"{many.shape_label}: {error:.3g} ulp from the oracle"]
    alike = all(same_bytes(r[k], r[0]) for r in results.values() for k in range(len(r)))
    return wrong if alike else [*wrong, f"bytes differ: rows of {many.shape_label}"]


def _error(gpu: Gpu, case: Case, operands: Arrays, outputs: Arrays) -> tuple[float, float]:
    """The largest error in ulps, and as a share of what is allowed."""
    exact = case.exact(operands)
    errors = accuracy.errors(case, outputs, exact)
    limits = accuracy.allowed(case, operands, exact, gpu)
    return float(errors.max(initial=0.0)), accuracy.worst_share(errors, limits)


def _layouts(gpu: Gpu, case: Case, operands: Arrays, plain: Arrays) -> dict[str, bool]:
    """By layout, whether results are right, or the same to the bit where that is promised."""
    promised = gpu.plan(case).precision_guarantee.bit_stable_across_layouts
    found = {}
    for name, lay in LAYOUTS.items():
        outputs = gpu.placed({n: lay(a) for n, a in make_outputs(case).items()})
        gpu.run(case, gpu.placed({n: lay(a) for n, a in operands.items()}), outputs)
        results = {n: p.fetch() for n, p in outputs.items()}
        if promised:
            found[name] = _same(results, plain)
        else:
            found[name] = _error(gpu, case, operands, results)[1] <= 1
    return found


def _same(results: Arrays, plain: Arrays) -> bool:
    return all(same_bytes(results[n], plain[n]) for n in plain)


def _bits(gpu: Gpu, case: Case, operands: Arrays, plain: Arrays) -> dict[str, bool]:
    """By what should change no bit, whether it does not."""
    found = {"again": _same(gpu.result(case, operands), plain)}
    shifted = [_same(gpu.result(case, operands, shift), plain) for shift in (1, 2, 3)]
    found["addresses"] = all(shifted)
    if case.op.parameter("axis"):
        found["rows"] = _rows(gpu, case, operands)
    if not gpu.is_card:
        return found
    for name, run in (("streams", _stream), ("graph", _graph), ("function", _function)):
        results = run(gpu, case, operands)
        if results is not None:
            found[name] = _same(results, plain)
    return found


def _rows(gpu: Gpu, case: Case, operands: Arrays) -> bool:
    """Equal rows of a batch have equal results."""
    equal = {n: np.array(a) for n, a in operands.items()}
    for n, a in equal.items():
        if case.role(n) in (Role.ELEMENT, Role.ROW):
            a[:] = a[:1]
    results = gpu.result(case, equal)
    return all(same_bytes(r[k], r[0]) for r in results.values() for k in range(len(r)))


def _stream(gpu: Gpu, case: Case, operands: Arrays) -> Arrays:
    """A run on a stream of its own, where the host must not wait."""
    torch = import_torch()
    given, outputs = gpu.placed(operands), gpu.placed(make_outputs(case))
    stream = torch.cuda.Stream(gpu.device.name)
    stream.wait_stream(torch.cuda.current_stream())
    plan = gpu.plan(case)
    refs = {n: p.ref for n, p in (*given.items(), *outputs.items())}
    from ...core.vocabulary import Stream

    with no_waiting():
        plan.run(**refs, stream=Stream(cuda=stream))
    stream.synchronize()
    return {n: p.fetch() for n, p in outputs.items()}


@contextmanager
def no_waiting() -> Iterator[None]:
    """torch raises where the host waits for a device."""
    import warnings

    torch = import_torch()
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        # That it does not see everything.
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _graph(gpu: Gpu, case: Case, operands: Arrays) -> Arrays:
    """A run captured into a CUDA graph, and replayed."""
    torch = import_torch()
    given, outputs = gpu.placed(operands), gpu.placed(make_outputs(case))
    plan = gpu.plan(case)
    refs = {n: p.ref for n, p in (*given.items(), *outputs.items())}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(**refs)
    graph.replay()
    return {n: p.fetch() for n, p in outputs.items()}


def _function(gpu: Gpu, case: Case, operands: Arrays) -> Arrays | None:
    """The function on tensors of the device."""
    given: Mapping[str, Placed] = {n: place(a, gpu.device.name) for n, a in operands.items()}
    tensors = {n: p.data.view(p.array.shape) for n, p in given.items()}
    results = case.results(tensors)
    return {n: accuracy.from_torch(t.cpu()) for n, t in results.items() if n in case.outputs}
