"""Operands made quickly, for comparing one run of the library with another."""

from __future__ import annotations

import numpy as np

from pullback.tools.case import Case
from pullback.tools.operands import make_operands


def quick_operands(case: Case, seed: int = 0) -> dict[str, np.ndarray]:
    """Normal numbers with a few zeros and ties; saves come from the library's own forward."""

    def numbers(case: Case, name: str, rng: np.random.Generator) -> np.ndarray:
        shape = case.shape_of(name)
        x = rng.standard_normal(shape)
        return np.where(rng.random(shape) < 0.02, np.round(x), x)

    return make_operands(case, seed, numbers)


def quick_run(case: Case, operands: dict[str, np.ndarray], **how) -> list[np.ndarray]:
    """Run by plan into new C arrays."""
    outputs = {n: np.empty(case.shape_of(n), case.dtype_of(n)) for n in case.outputs}
    case.run(operands, outputs, **how)
    return list(outputs.values())
