"""Errors in units in the last place, and how large they may be."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...oracle import Reference, reference, ulp_error
from ...oracle.ulp import FORMATS
from ..bench.case import Case
from ..bench.operands import make_outputs
from ..bench.plain import EXPS, FORWARD_EXPS
from ..bench.verify import EXP_ERROR, rounding

Arrays = Mapping[str, np.ndarray]


def oracle(case: Case, operands: Arrays) -> dict[str, Reference]:
    """The exact outputs of a case."""
    options: dict[str, Any] = {}
    if case.family in ("scan", "reduce", "softmax"):
        options["axis"] = case.axis
    if case.family == "scan":
        options["reverse"] = case.reverse
    if case.op.kind in ("var", "std"):
        options["correction"] = case.correction
    if case.op.ties and case.ties:
        options["ties"] = case.ties
    if case.family == "lerp":
        options["weight"] = case.weight
    if case.family == "segment" and case.op.direction == "forward":
        options["num_segments"] = case.segments
    if case.op.name in ("sum_backward", "mean_backward"):
        options["shape"] = case.shape
    return reference(case.op.name, operands, **options)


def result(case: Case, operands: Arrays, threads: int = 1) -> dict[str, np.ndarray]:
    """What a plan writes, into buffers that held NaN."""
    outputs = make_outputs(case)
    case.plan(threads).run(**operands, **outputs)
    return outputs


def variants(case: Case) -> list[Case]:
    """The case under each of its ties policies."""
    return [dataclasses.replace(case, ties=t) for t in case.op.ties] or [case]


def errors(case: Case, outputs: Arrays, exact: Mapping[str, Reference]) -> np.ndarray:
    """Errors of all outputs in ulps, flat."""
    found = [ulp_error(outputs[n], exact[n], case.element).ravel() for n in case.op.outputs]
    return np.concatenate(found)


def allowed(case: Case, operands: Arrays, exact: Mapping[str, Reference]) -> np.ndarray:
    """Errors that the stated precision allows, in ulps, flat.

    One ulp; four float64 roundings for each element along the axis, relative to the sum of absolute
    terms; and the error of exp with that of its argument. A logarithm turns a relative error into
    an absolute one, so there the sum counts 1 more.
    """
    kind, forward = case.op.kind, case.op.direction == "forward"
    exponentials = kind in FORWARD_EXPS if forward else kind in EXPS
    relative: Any = rounding(_terms(case))
    if exponentials:
        finite = [np.abs(a[np.isfinite(a)]).max(initial=0.0) for a in _wide(operands)]
        relative += 2.0**-52 * sum(map(float, finite))
        count = 2.0 if forward else 1.0
        if case.op.name == "logcumsumexp_backward":
            y = operands["y"].astype(np.float64)
            count = 1 + 3 * _rise(y)
        relative += count * EXP_ERROR[case.element]
    shift = 1.0 if exponentials and forward else 0.0
    found = []
    for name in case.op.outputs:
        value = _floats(exact[name].value)
        size = _floats(exact[name].magnitude) + shift
        with np.errstate(all="ignore"):
            extra = np.where(np.isfinite(size), relative * size, 0.0)
            found.append(1.0 + (extra / _unit(value, case.element)).ravel())
    return np.concatenate(found)


def _terms(case: Case) -> int:
    if case.family == "lerp":
        return 1
    return case.shape[0] if case.family == "segment" else case.extent


def _wide(operands: Arrays) -> list[np.ndarray]:
    return [a.astype(np.float64) for n, a in operands.items() if n in ("x", "y")]


def _rise(y: np.ndarray) -> float:
    finite = y[np.isfinite(y)]
    return float(np.ptp(finite)) if finite.size else 0.0


def _floats(values: np.ndarray) -> np.ndarray:
    return np.array([float(v) for v in values.reshape(-1)]).reshape(values.shape)


def _unit(value: np.ndarray, element: str) -> np.ndarray:
    """One ulp at each exact value."""
    form = FORMATS[element]
    _, exponent = np.frexp(np.where(np.isfinite(value), value, 1.0))
    exponent = np.clip(np.where(value == 0, form.emin, exponent - 1), form.emin, form.emax)
    return np.ldexp(1.0, exponent - (form.precision - 1))


def worst_share(found: np.ndarray, limits: np.ndarray) -> float:
    """The largest error as a share of what is allowed there."""
    return float((found / limits).max(initial=0.0)) if found.size else 0.0


def torch_errors(case: Case, operands: Arrays) -> np.ndarray | None:
    """Errors of torch on the same data, given its own saves; None where torch has no such op.

    A forward's y that torch rounds otherwise than pullback is not an error of its backward, so the
    exact gradient is taken from the y that torch saved.
    """
    import torch

    from ..bench.peers import NotOffered, TorchPeer, to_torch, torch_forward

    given = {n: to_torch(torch, a) for n, a in operands.items()}
    try:
        if case.op.name in ("softmax_backward", "log_softmax_backward"):
            raw = getattr(torch.ops.aten, f"_{case.op.kind}_backward_data")
            dy = given["dy"]
            got: Any = [raw(dy, given["y"], case.axes[0], dy.dtype)]
        else:
            got = TorchPeer().prepare(case, operands)()
            if not isinstance(got, list):
                got = [got]
        if case.op.direction == "backward" and "y" in operands and "x" in operands:
            saved = from_torch(torch_forward(torch, case)(given["x"]))
            operands = {**operands, "y": saved}
    except (NotOffered, RuntimeError):
        return None
    outputs = dict(zip(case.op.outputs, map(from_torch, got), strict=True))
    if case.op.kind in ("cummax", "cummin"):
        case = dataclasses.replace(case, ties="last")
    return errors(case, outputs, oracle(case, operands))


def from_torch(tensor: Any) -> np.ndarray:
    """A NumPy array of a torch tensor; bfloat16 goes through its bits."""
    import torch

    tensor = tensor.detach().contiguous()
    if tensor.dtype is torch.bfloat16:
        from ..bench.operands import dtype_of

        bits: np.ndarray = tensor.view(torch.int16).numpy()
        return bits.view(dtype_of("bf16"))
    array: np.ndarray = tensor.numpy()
    return array


def describe(found: np.ndarray) -> tuple[float, float]:
    """The largest and the mean error; infinite where a value is wrong altogether."""
    if not found.size:
        return 0.0, 0.0
    mean = float(found.mean()) if math.isfinite(float(found.max())) else math.inf
    return float(found.max()), mean
