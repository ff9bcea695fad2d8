"""Operands made quickly, for comparing one run of the library with another."""

from __future__ import annotations

import numpy as np

from cells import Cell, as_tuple


def quick_operands(cell: Cell, seed: int = 0) -> dict[str, np.ndarray]:
    """Normal numbers with a few zeros and ties; y comes from the library's own forward."""
    op, dtype, rng = cell.op, cell.dtype, np.random.default_rng(seed)

    def numbers(shape: tuple[int, ...]) -> np.ndarray:
        x = rng.standard_normal(shape)
        x = np.where(rng.random(shape) < 0.02, np.round(x), x)
        return np.asarray(x).astype(dtype)

    if op.family == "segment":
        name = "input" if op.direction == "forward" else "d_output"
        low, high = 0, max(cell.num_segments, 1)
        if cell.out_of_range == "drop":
            low, high = low - 1, high + 1
        ids = rng.integers(low, high, cell.shape[0])
        ids = np.sort(ids) if cell.is_sorted else ids
        return {name: numbers(cell.shape_of(name)), "segment_ids": ids}
    if op.direction == "forward":
        return {n: numbers(cell.shape) for n in op.inputs}
    made = {n: numbers(cell.shape_of(n)) for n in op.inputs}
    if "y" in op.needs:
        x = made.get("x", numbers(cell.shape))
        (made["y"],) = as_tuple(cell.forward().run_function({"x": x}))
    return made


def quick_run(cell: Cell, operands: dict[str, np.ndarray], **how) -> list[np.ndarray]:
    """Run by plan into new C arrays."""
    outputs = {n: np.empty(cell.shape_of(n), cell.dtype) for n in cell.op.outputs}
    cell.run_plan(operands, outputs, **how)
    return list(outputs.values())
