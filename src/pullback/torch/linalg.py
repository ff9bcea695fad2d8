"""``torch.linalg``, as far as it is served here."""

from __future__ import annotations

import torch
from torch import Tensor

from .composed import Dims, is_two, norm2

__all__ = ["vector_norm"]

_vector_norm = torch.linalg.vector_norm


def vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``torch.linalg.vector_norm``: the 2-norm on pullback's kernels, others torch's own.

    Examples
    --------
    >>> import torch, pullback.torch as pt
    >>> pt.linalg.vector_norm(torch.tensor([3.0, 4.0]))
    tensor(5.)
    """
    if is_two(ord):
        found: Tensor = norm2(x, dim, keepdim, dtype=dtype, out=out)
        return found
    return _vector_norm(x, ord, dim, keepdim, dtype=dtype, out=out)
