"""Every planted fault, by what it is in."""

from __future__ import annotations

from . import calls, cutting, formulas, frameworks, kernels
from .record import Fault

FAULTS: tuple[Fault, ...] = (
    *formulas.FAULTS,
    *kernels.FAULTS,
    *calls.FAULTS,
    *frameworks.FAULTS,
    *cutting.FAULTS,
)

__all__ = ["FAULTS", "Fault"]
