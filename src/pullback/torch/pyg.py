"""PyTorch Geometric's ``scatter``, ``segment`` and ``softmax`` on pullback's kernels.

Names, arguments and conventions are those of ``torch_geometric.utils``; PyTorch Geometric itself is
not needed. ``from pullback.torch.pyg import softmax`` instead of ``from torch_geometric.utils
import softmax``, and layers stay as they are.

The maximum and minimum of nothing are 0, as there. No epsilon is added to a denominator. An index
out of range raises. Results have the same bytes for any number of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.catalog import find
from .arrays import ELEMENTS
from .functions import make_function

__all__ = ["scatter", "segment", "softmax"]

# The catalog's kind of a reduction, and torch's name for it.
_KINDS = {
    "sum": ("segment_sum", "sum"),
    "add": ("segment_sum", "sum"),
    "mean": ("segment_mean", "mean"),
    "mul": ("segment_prod", "prod"),
    "min": ("segment_min", "amin"),
    "max": ("segment_max", "amax"),
    "amin": ("segment_min", "amin"),
    "amax": ("segment_max", "amax"),
}


def scatter(
    src: Tensor, index: Tensor, dim: int = 0, dim_size: int | None = None, reduce: str = "sum"
) -> Tensor:
    """Reduce all values of `src` that have the same index along a dimension.

    Parameters
    ----------
    src : Tensor
        The values. float32, float64, float16 and bfloat16 run on kernels, other dtypes are torch's.
    index : Tensor
        One integer for every position along `dim`.
    dim : int, default 0
        The dimension.
    dim_size : int, optional
        Length of `dim` in the result; without it the largest index and one more.
    reduce : {"sum", "add", "mean", "mul", "min", "max", "amin", "amax"}
        The reduction.

    Examples
    --------
    >>> import torch
    >>> from pullback.torch.pyg import scatter
    >>> scatter(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 0, 2]), reduce="max")
    tensor([2., 0., 4.])
    """
    kind, torchs = _kind(reduce)
    dim = _dim(src, dim)
    _check_vector("index", index)
    size = _size(index, dim_size)
    if src.dtype not in ELEMENTS:
        shape = (*src.shape[:dim], size, *src.shape[dim + 1 :])
        full = index.view([-1 if d == dim else 1 for d in range(src.dim())]).expand_as(src)
        start = src.new_full(shape, int(torchs == "prod"))
        return start.scatter_reduce(dim, full.long(), src, torchs, include_self=torchs == "prod")
    return _reduced(kind, src.movedim(dim, 0), index, size).movedim(0, dim)


def segment(src: Tensor, ptr: Tensor, reduce: str = "sum") -> Tensor:
    """Reduce the values in the first dimension of `src` within the ranges of `ptr`.

    Parameters
    ----------
    src : Tensor
        The values.
    ptr : Tensor
        Where each range begins, ascending from 0, and where the last one ends.
    reduce : {"sum", "add", "mean", "mul", "min", "max", "amin", "amax"}
        The reduction.

    Examples
    --------
    >>> import torch
    >>> from pullback.torch.pyg import segment
    >>> segment(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 1, 1, 3]), reduce="mean")
    tensor([1., 0., 3.])
    """
    kind, _ = _kind(reduce)
    _check_vector("ptr", ptr)
    if src.dtype not in ELEMENTS:
        return scatter(src, _index_of(ptr), 0, ptr.numel() - 1, reduce)
    return _reduced(kind, src, None, None, offsets=ptr)


def softmax(
    src: Tensor,
    index: Tensor | None = None,
    ptr: Tensor | None = None,
    num_nodes: int | None = None,
    dim: int = 0,
) -> Tensor:
    """Softmax among the values that have the same index along a dimension.

    Parameters
    ----------
    src : Tensor
        The values.
    index : Tensor, optional
        One integer for every position along `dim`.
    ptr : Tensor, optional
        Instead of an index: where each range begins, ascending from 0, and where the last one ends.
        If both are given, `index` is not read.
    num_nodes : int, optional
        One more than the largest index there may be.
    dim : int, default 0
        The dimension.

    Examples
    --------
    >>> import torch
    >>> from pullback.torch.pyg import softmax
    >>> src = torch.ones(4)
    >>> softmax(src, torch.tensor([0, 0, 1, 2]))
    tensor([0.5000, 0.5000, 1.0000, 1.0000])
    >>> softmax(src, ptr=torch.tensor([0, 2, 3, 4]))
    tensor([0.5000, 0.5000, 1.0000, 1.0000])
    """
    dim = _dim(src, dim)
    run = make_function("segment_softmax")
    rows = src.movedim(dim, 0)
    if ptr is not None:
        _check_vector("ptr", ptr)
        found: Tensor = run(rows, offsets=ptr)
    elif index is not None:
        _check_vector("index", index)
        found = run(rows, index, _size(index, num_nodes))
    else:
        raise NotImplementedError("softmax: expected index or ptr, got neither")
    return found.movedim(0, dim)


def _kind(reduce: str) -> tuple[str, str]:
    if reduce not in _KINDS:
        raise ValueError(f"reduce: expected one of {', '.join(_KINDS)}, got {reduce!r}")
    return _KINDS[reduce]


def _dim(src: Tensor, dim: int) -> int:
    found = dim + src.dim() if dim < 0 else dim
    if not 0 <= found < src.dim():
        raise ValueError(f"dim: expected a dimension of {src.dim()}, got {dim}")
    return found


def _check_vector(name: str, values: Tensor) -> None:
    if values.dim() != 1:
        raise ValueError(f"{name}: expected one dimension, got {values.dim()}")


def _size(index: Tensor, size: int | None) -> int:
    if size is not None:
        return size
    return int(index.max()) + 1 if index.numel() else 0


def _index_of(ptr: Tensor) -> Tensor:
    return torch.arange(ptr.numel() - 1, device=ptr.device).repeat_interleave(ptr.diff())


def _reduced(
    kind: str, rows: Tensor, index: Tensor | None, size: int | None, **cut: Tensor
) -> Tensor:
    nothing = {"empty": 0.0} if find(kind, "forward").parameter("empty") else {}
    found: Tensor = make_function(kind)(rows, index, size, **cut, **nothing)
    return found
