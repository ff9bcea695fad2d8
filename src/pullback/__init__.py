"""Gradient kernels: scans, recurrences, reductions, softmax, lerp, segment ops, cross entropy.

llvmlite, torch, JAX and Triton load when they are first needed, not here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .api.descriptors import Descriptor
from .api.functions import NAMED, function_named
from .api.plan import Plan
from .api.vjp import vjp
from .core.catalog import catalog
from .core.declare import Op
from .core.families import (
    FACES,
    BinaryKind,
    ReduceKind,
    ScanKind,
    SegmentKind,
    SoftmaxKind,
)
from .core.vocabulary import (
    BackendKind,
    ElementKind,
    KernelSku,
    MathPrecision,
    OpCategory,
    OutOfRange,
    PlanPreference,
    PrecisionGuarantee,
    Stream,
    Ties,
)
from .errors import (
    BufferTooSmallError,
    InvalidProblemError,
    MisalignedOperandError,
    PullbackError,
    UnsupportedError,
    WorkspaceTooSmallError,
)
from .memory.tensor_ref import TensorRef
from .precision import get_precision, set_precision
from .threads import get_num_threads, set_num_threads

__version__ = "0.2.0"

_BY_FAMILY = [
    f"{face.stem}{way}{kind}"
    for kind in ("Descriptor", "Plan")
    for face in FACES
    for way in ("", "Backward")
]

__all__ = [
    "BackendKind",
    "BinaryKind",
    "BufferTooSmallError",
    "Descriptor",
    "ElementKind",
    "InvalidProblemError",
    "KernelSku",
    "MathPrecision",
    "MisalignedOperandError",
    "Op",
    "OpCategory",
    "OutOfRange",
    "Plan",
    "PlanPreference",
    "PrecisionGuarantee",
    "PullbackError",
    "ReduceKind",
    "ScanKind",
    "SegmentKind",
    "SoftmaxKind",
    "Stream",
    "TensorRef",
    "Ties",
    "UnsupportedError",
    "WorkspaceTooSmallError",
    "catalog",
    "get_num_threads",
    "get_precision",
    "set_num_threads",
    "set_precision",
    "vjp",
    *_BY_FAMILY,
    *NAMED,
]


def __getattr__(name: str) -> Any:
    """Functions, and descriptors and plans of families, when they are first asked for."""
    if name in NAMED:
        found: Any = function_named(name)
    elif name in _BY_FAMILY:
        found = getattr(import_module(".api.by_family", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
