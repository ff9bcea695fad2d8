"""Gradient kernels: scans, recurrences, reductions, softmax, lerp, segment ops, cross entropy.

llvmlite, torch, JAX and Triton load when they are first needed, not here.
"""

from __future__ import annotations

from .api.by_family import DESCRIPTORS, PLANS
from .api.descriptors import Descriptor
from .api.functions import FUNCTIONS
from .api.plan import Plan
from .api.vjp import vjp
from .core.catalog import catalog
from .core.declare import Op
from .core.families import BinaryKind, ReduceKind, ScanKind, SegmentKind, SoftmaxKind
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

globals().update({**FUNCTIONS, **DESCRIPTORS, **PLANS})

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
    *DESCRIPTORS,
    *PLANS,
    *FUNCTIONS,
]
