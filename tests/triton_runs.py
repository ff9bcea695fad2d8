"""Running a case on the Triton backend: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

import roundings
import tolerance
from pullback.tools.case import Case
from triton_bounds import bounds, depth, depth_in_interpreter

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"

if INTERPRETED:
    import triton_interpreter

    triton_interpreter.install()
elif not torch.cuda.is_available():
    pytest.skip("neither a GPU nor TRITON_INTERPRET=1", allow_module_level=True)

TORCH = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}
roundings.tree_depth = roundings.scan_depth = depth_in_interpreter if INTERPRETED else depth
tolerance.bounds = bounds


def to_torch(array: np.ndarray) -> torch.Tensor:
    """A contiguous tensor on the device; bfloat16 by way of its bits."""
    array = np.array(array, order="C")
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(DEVICE)
    return torch.from_numpy(array).to(DEVICE)


def to_numpy(tensor: torch.Tensor, cell: Case) -> np.ndarray:
    tensor = tensor.cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(cell.dtype)
    return tensor.numpy()


def plan_of(cell: Case) -> Any:
    return cell.plan(backend="triton")


def run(cell: Case, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run by plan into outputs that start as NaN."""
    outputs = {
        n: to_torch(np.full(cell.shape_of(n), np.nan, cell.dtype_of(n))) for n in cell.outputs
    }
    plan = plan_of(cell)
    plan.run(**{n: to_torch(a) for n, a in given.items()}, **outputs)
    if cell.is_segmented:
        plan.raise_for_ids()
    return {n: to_numpy(t, cell) for n, t in outputs.items()}
