"""torch's functions that are a kind of the catalog for some of their arguments, or two kinds.

What kernels do not do is torch's own, called as it was called here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from torch import Tensor

from .functions import make_function

_max, _min, _norm = torch.max, torch.min, torch.norm
# Made here, not in a call: torch.compile would look into the making.
_amax, _amin, _mean, norm2, _var, _std = map(
    make_function, ("max", "min", "mean", "norm2", "var", "std")
)

Dims = int | Sequence[int] | None


@overload
def max(input: Tensor) -> Tensor: ...
@overload
def max(
    input: Tensor, dim: int, keepdim: bool = False, *, out: Any = None
) -> torch.return_types.max: ...
@overload
def max(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor: ...
def max(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """``torch.max``: of all elements on pullback's kernels; along a dimension, with indices, and
    of two tensors it is torch's own. ``amax`` has the values along dimensions.

    Examples
    --------
    >>> import torch, pullback.torch as pt
    >>> x = torch.tensor([[1.0, 3.0], [4.0, 2.0]])
    >>> pt.max(x)
    tensor(4.)
    >>> pt.max(x, 1).indices
    tensor([1, 0])
    """
    return _max(input, *args, **kwargs) if args or kwargs else _amax(input)


@overload
def min(input: Tensor) -> Tensor: ...
@overload
def min(
    input: Tensor, dim: int, keepdim: bool = False, *, out: Any = None
) -> torch.return_types.min: ...
@overload
def min(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor: ...
def min(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """``torch.min``: of all elements on pullback's kernels; along a dimension, with indices, and
    of two tensors it is torch's own. ``amin`` has the values along dimensions.

    Examples
    --------
    >>> import torch, pullback.torch as pt
    >>> pt.min(torch.tensor([3.0, 1.0, 2.0]))
    tensor(1.)
    """
    return _min(input, *args, **kwargs) if args or kwargs else _amin(input)


def var_mean(
    input: Tensor,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """``torch.var_mean``: what ``var`` gives, and what ``mean`` gives, in a pass each.

    Examples
    --------
    >>> import torch, pullback.torch as pt
    >>> pt.var_mean(torch.tensor([1.0, 3.0]))
    (tensor(2.), tensor(2.))
    """
    return _with_mean(_var, input, dim, unbiased, keepdim, correction, axis, keepdims)


def std_mean(
    input: Tensor,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """``torch.std_mean``: what ``std`` gives, and what ``mean`` gives, in a pass each.

    Examples
    --------
    >>> import torch, pullback.torch as pt
    >>> pt.std_mean(torch.tensor([1.0, 3.0]), correction=0)
    (tensor(1.), tensor(2.))
    """
    return _with_mean(_std, input, dim, unbiased, keepdim, correction, axis, keepdims)


def _with_mean(
    spread: Callable[..., Tensor],
    input: Tensor,
    dim: Any,
    unbiased: Any,
    keepdim: Any,
    correction: Any,
    axis: Any,
    keepdims: Any,
) -> tuple[Tensor, Tensor]:
    alike = {"axis": axis, "keepdims": keepdims}
    dims = None if isinstance(dim, bool) else dim  # a bool there is torch's older form of unbiased
    found = spread(input, dim, unbiased, keepdim, correction=correction, **alike)
    return found, _mean(input, dims, keepdim, **alike)


def norm(
    input: Tensor,
    p: float | str | None = "fro",
    dim: Dims = None,
    keepdim: bool = False,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """``torch.norm``: the 2-norm, which "fro" is too, on pullback's kernels, others torch's own.

    Examples
    --------
    >>> import torch, pullback.torch as pt
    >>> pt.norm(torch.tensor([3.0, 4.0]))
    tensor(5.)
    """
    if p is None or p == "fro" or is_two(p):
        found: Tensor = norm2(input, dim, keepdim, dtype=dtype, out=out)
        return found
    return _norm(input, p, dim, keepdim, out, dtype)


def is_two(order: Any) -> bool:
    """Whether the order of a norm is 2."""
    return isinstance(order, (int, float)) and order == 2
