from collections.abc import Sequence

import torch
from torch import Tensor

from .patching import Patch as Patch
from .patching import patch as patch

_Dims = int | Sequence[int] | None

def cumsum(
    input: Tensor, dim: int, *, dtype: torch.dtype | None = None, reverse: bool = False
) -> Tensor: ...
def cumprod(
    input: Tensor, dim: int, *, dtype: torch.dtype | None = None, reverse: bool = False
) -> Tensor: ...
def cummax(
    input: Tensor, dim: int, *, reverse: bool = False, ties: str = "last"
) -> torch.return_types.cummax: ...
def cummin(
    input: Tensor, dim: int, *, reverse: bool = False, ties: str = "last"
) -> torch.return_types.cummin: ...
def logcumsumexp(input: Tensor, dim: int, *, reverse: bool = False) -> Tensor: ...
def sum(
    input: Tensor, dim: _Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor: ...
def mean(
    input: Tensor, dim: _Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor: ...
def amax(
    input: Tensor, dim: _Dims = None, keepdim: bool = False, *, ties: str = "split"
) -> Tensor: ...
def amin(
    input: Tensor, dim: _Dims = None, keepdim: bool = False, *, ties: str = "split"
) -> Tensor: ...
def prod(
    input: Tensor, dim: _Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor: ...
def norm2(
    input: Tensor, dim: _Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor: ...
def logsumexp(input: Tensor, dim: _Dims, keepdim: bool = False) -> Tensor: ...
def var(
    input: Tensor,
    dim: _Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor: ...
def std(
    input: Tensor,
    dim: _Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor: ...
def softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor: ...
def log_softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor: ...
def lerp(input: Tensor, end: Tensor, weight: float | Tensor) -> Tensor: ...
def segment_sum(
    input: Tensor,
    segment_ids: Tensor,
    num_segments: int,
    *,
    sorted: bool = False,
    out_of_range: str = "raise",
) -> Tensor: ...
