"""Errors in units in the last place, and how large they may be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...core.declare import Type
from ...core.elements import ELEMENTS
from ...formulas.record import ScanFormula
from ...oracle import Reference, ulp_error
from ...oracle.ulp import FORMATS
from ..bench.verify import CPU, Backend
from ..case import Case
from ..operands import make_outputs

Arrays = Mapping[str, np.ndarray]


def result(case: Case, operands: Arrays, threads: int = 1) -> dict[str, np.ndarray]:
    """What a plan writes, into buffers that held NaN."""
    outputs = make_outputs(case)
    case.plan(threads).run(**operands, **outputs)
    return outputs


def _element(case: Case, output: str) -> str:
    return "f64" if case.op.operand(output).type is Type.STATE else case.element


def errors(case: Case, outputs: Arrays, exact: Mapping[str, Reference]) -> np.ndarray:
    """Errors of outputs in ulps, flat; none where the definition leaves a result open.

    A state is float64, and told in units of the op's element type as the other outputs are.
    """
    found = []
    for n in [n for n in case.outputs if n in outputs]:
        error = ulp_error(outputs[n], exact[n], _element(case, n))
        if _element(case, n) != case.element:
            value = _floats(exact[n].value)
            error = error * (_unit(value, "f64") / _unit(value, case.element))
        is_open = np.isnan(_floats(exact[n].value)) & np.isinf(_floats(exact[n].magnitude))
        found.append(np.where(is_open, 0.0, error).ravel())
    return np.concatenate(found)


def allowed(
    case: Case, operands: Arrays, exact: Mapping[str, Reference], backend: Backend = CPU
) -> np.ndarray:
    """Errors that the stated precision allows, in ulps, flat.

    One ulp, or two where float32 is computed in float32; the roundings of the backend along the
    axis, relative to the sum of absolute terms; and the error of exp with that of its argument. A
    logarithm turns a relative error into an absolute one, so there the sum counts 1 more.
    """
    relative = backend.rounding(case, 1 if case.is_pointwise else case.extent)
    if case.calls("exp"):
        wide = [operands[n].astype(np.float64) for n in case.floats if n not in case.cotangents]
        finite = [a[np.isfinite(a)] for a in wide]
        relative += 2 * backend.unit(case) * sum(float(np.abs(a).max(initial=0.0)) for a in finite)
        # Exps that multiply each other along a row have arguments that add up to its range.
        chained = isinstance(case.formula, ScanFormula)
        rise = max((float(np.ptp(a)) for a in finite if a.size), default=0.0)
        relative += (1 + 3 * rise if chained else 2.0) * backend.exp_error(case)
    shift = 1.0 if case.calls("log") else 0.0
    found = []
    for name in case.outputs:
        value = _floats(exact[name].value)
        size = _floats(exact[name].magnitude) + shift
        with np.errstate(all="ignore"):
            extra = np.where(np.isfinite(size), relative * size, 0.0)
            most = case.ulps * _unit(value, _element(case, name)) + extra
            found.append((most / _unit(value, case.element)).ravel())
    return np.concatenate(found)


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

    from ..bench.peers import (
        NotOffered,
        TorchPeer,
        to_torch,
        torch_forward,
        torch_leaves,
        torch_means,
    )

    given = {n: to_torch(torch, a) for n, a in operands.items()}
    try:
        raw = getattr(torch.ops.aten, f"_{case.op.kind}_backward_data", None)
        if case.op.direction == "backward" and raw is not None:
            dy = given["dy"]
            got: Any = [raw(dy, given["y"], case.axes[0], dy.dtype)]
        else:
            got = TorchPeer().prepare(case, operands)()
            got = got if isinstance(got, (list, tuple)) else [got]
            if case.op.direction == "backward" and "y" in operands:
                forward = torch_forward(torch, case, given)
                operands = {**operands, "y": from_torch(forward(*torch_leaves(torch, case, given)))}
    except (NotOffered, RuntimeError):
        return None
    # Of several outputs torch may have the first alone.
    outputs = dict(zip(case.outputs, map(from_torch, got), strict=False))
    case = case.but(**torch_means(case))
    return errors(case, outputs, case.exact(operands))


def from_torch(tensor: Any) -> np.ndarray:
    """A NumPy array of a torch tensor; bfloat16 goes through its bits."""
    import torch

    tensor = tensor.detach().contiguous()
    if tensor.dtype is torch.bfloat16:
        bits: np.ndarray = tensor.view(torch.int16).numpy()
        return bits.view(ELEMENTS["bf16"].dtype)
    array: np.ndarray = tensor.numpy()
    return array


def describe(found: np.ndarray) -> tuple[float, float]:
    """The largest and the mean error; infinite where a value is wrong altogether."""
    if not found.size:
        return 0.0, 0.0
    mean = float(found.mean()) if math.isfinite(float(found.max())) else math.inf
    return float(found.max()), mean
