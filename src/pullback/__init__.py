"""Gradient kernels: backward and forward of scans, reductions, softmax, lerp and segment sums.

Numba, torch, JAX and Triton load when they are first needed, not here.
"""

from __future__ import annotations

from .api.descriptors import (
    BinaryParamBackwardDescriptor,
    BinaryParamDescriptor,
    ReduceBackwardDescriptor,
    ReduceDescriptor,
    ScanBackwardDescriptor,
    ScanDescriptor,
    SegmentSumBackwardDescriptor,
    SegmentSumDescriptor,
    SoftmaxBackwardDescriptor,
    SoftmaxDescriptor,
    UnsortedSegmentSumBackwardDescriptor,
    UnsortedSegmentSumDescriptor,
)
from .api.functions import FUNCTIONS
from .api.plan import (
    BinaryParamBackwardPlan,
    BinaryParamPlan,
    ReduceBackwardPlan,
    ReducePlan,
    ScanBackwardPlan,
    ScanPlan,
    SegmentSumBackwardPlan,
    SegmentSumPlan,
    SoftmaxBackwardPlan,
    SoftmaxPlan,
    UnsortedSegmentSumBackwardPlan,
    UnsortedSegmentSumPlan,
)
from .core.catalog import catalog
from .core.declare import Op
from .core.vocabulary import (
    BackendKind,
    BinaryKind,
    ElementKind,
    KernelSku,
    MathPrecision,
    OpCategory,
    OutOfRange,
    PlanPreference,
    PrecisionGuarantee,
    ReduceKind,
    ScanKind,
    SegmentKind,
    SoftmaxKind,
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
from .threads import get_num_threads, set_num_threads

__version__ = "0.1.0"

globals().update(FUNCTIONS)

__all__ = [
    "BackendKind",
    "BinaryKind",
    "BinaryParamBackwardDescriptor",
    "BinaryParamBackwardPlan",
    "BinaryParamDescriptor",
    "BinaryParamPlan",
    "BufferTooSmallError",
    "ElementKind",
    "InvalidProblemError",
    "KernelSku",
    "MathPrecision",
    "MisalignedOperandError",
    "Op",
    "OpCategory",
    "OutOfRange",
    "PlanPreference",
    "PrecisionGuarantee",
    "PullbackError",
    "ReduceBackwardDescriptor",
    "ReduceBackwardPlan",
    "ReduceDescriptor",
    "ReduceKind",
    "ReducePlan",
    "ScanBackwardDescriptor",
    "ScanBackwardPlan",
    "ScanDescriptor",
    "ScanKind",
    "ScanPlan",
    "SegmentKind",
    "SegmentSumBackwardDescriptor",
    "SegmentSumBackwardPlan",
    "SegmentSumDescriptor",
    "SegmentSumPlan",
    "SoftmaxBackwardDescriptor",
    "SoftmaxBackwardPlan",
    "SoftmaxDescriptor",
    "SoftmaxKind",
    "SoftmaxPlan",
    "Stream",
    "TensorRef",
    "Ties",
    "UnsortedSegmentSumBackwardDescriptor",
    "UnsortedSegmentSumBackwardPlan",
    "UnsortedSegmentSumDescriptor",
    "UnsortedSegmentSumPlan",
    "UnsupportedError",
    "WorkspaceTooSmallError",
    "catalog",
    "get_num_threads",
    "set_num_threads",
    *FUNCTIONS,
]
