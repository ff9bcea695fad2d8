"""What torch has of its own for each kind of the catalog.

A counterpart takes tensors and the parameters of :mod:`.families` and is made of torch ops alone,
so it is right under every transform. It serves where a kernel cannot: second derivatives, forward
mode, tensors without memory of their own, dtypes beyond the four. References are taken when this
module is imported, so patching torch does not reach them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Dims = tuple[int, ...]

_flip = torch.Tensor.flip
_amax, _amin, _linalg_norm, _lerp = torch.amax, torch.amin, torch.linalg.vector_norm, torch.lerp
_prod, _softmax_backward = torch.prod, torch._softmax_backward_data
_log_softmax_backward = torch._log_softmax_backward_data


@dataclass(frozen=True)
class Counterpart:
    """One kind as torch has it.

    Attributes
    ----------
    run
        The kind in torch ops.
    name
        torch's name, where it is not the catalog's.
    ties
        How torch breaks ties.
    takes_dtype
        Whether torch's function has a ``dtype`` argument.
    needs_dim
        Whether torch's function wants ``dim``.
    backward
        The backward in torch ops, for kinds whose backward does not read the input.
    rough_backward
        torch's backward cannot be differentiated by the gradient where that is 0.
    result
        The type torch returns with indices beside the values.
    homes
        Where torch keeps the function, for :func:`pullback.torch.patch`.
    """

    run: Callable[..., Tensor]
    name: str | None = None
    ties: str | None = None
    takes_dtype: bool = False
    needs_dim: bool = False
    backward: Callable[..., Tensor] | None = None
    rough_backward: bool = False
    result: Callable[..., Any] | None = None
    homes: tuple[str, ...] = ()


def _scan(name: str, **facts: Any) -> Counterpart:
    function = getattr(torch, name)

    def run(x: Tensor, dim: int, reverse: bool, ties: str | None = None) -> Tensor:
        mirrored = reverse and x.dim() > 0
        result = function(_flip(x, (dim,)) if mirrored else x, dim)
        y: Tensor = result if isinstance(result, Tensor) else result[0]
        return _flip(y, (dim,)) if mirrored else y

    homes = (f"torch.{name}", f"torch.Tensor.{name}")
    return Counterpart(run, needs_dim=True, homes=homes, **facts)


def _reduction(function: Callable[..., Tensor], *homes: str, **facts: Any) -> Counterpart:
    def run(x: Tensor, dim: Dims, keepdim: bool, *rest: Any) -> Tensor:
        if not dim:  # none, where torch would take () for all
            return function(x[..., None], (-1,), False, *rest)
        return function(x, dim, keepdim, *rest)

    return Counterpart(run, homes=homes, **facts)


def _plain(name: str) -> Callable[..., Tensor]:
    function = getattr(torch, name)

    def run(x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
        y: Tensor = function(x, dim=dim, keepdim=keepdim)
        return y

    return run


def _corrected(name: str) -> Callable[..., Tensor]:
    function = getattr(torch, name)

    def run(x: Tensor, dim: Dims, keepdim: bool, correction: float) -> Tensor:
        y: Tensor = function(x, dim=dim, keepdim=keepdim, correction=correction)
        return y

    return run


def _prod_over(x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    for d in sorted(dim, reverse=True):
        x = _prod(x, d, keepdim)
    return x


def _norm2(x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    return _linalg_norm(x, 2, dim, keepdim)


def _extreme(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(x: Tensor, dim: Dims, keepdim: bool, ties: str) -> Tensor:
        return function(x, dim, keepdim)

    return run


def _softmax(name: str, backward: Callable[..., Tensor]) -> Counterpart:
    function = getattr(torch, name)

    def run(x: Tensor, dim: int) -> Tensor:
        y: Tensor = function(x, dim)
        return y

    def run_backward(dy: Tensor, y: Tensor, dim: int) -> Tensor:
        return backward(dy, y, dim, y.dtype)

    return Counterpart(
        run,
        takes_dtype=True,
        needs_dim=True,
        backward=run_backward,
        homes=(
            f"torch.{name}",
            f"torch.Tensor.{name}",
            f"torch.nn.functional.{name}",
            f"torch.special.{name}",
        ),
    )


def _segment_sum(
    input: Tensor, segment_ids: Tensor, num_segments: int, is_sorted: bool, out_of_range: str
) -> Tensor:
    rows = num_segments
    if out_of_range == "drop":
        inside = (segment_ids >= 0) & (segment_ids < num_segments)
        segment_ids = torch.where(inside, segment_ids, num_segments)
        rows += 1
    total = input.new_zeros((rows, *input.shape[1:])).index_add(0, segment_ids, input)
    return total[:num_segments]


def _homes(*names: str) -> tuple[str, ...]:
    return tuple(f"torch.{prefix}{name}" for name in names for prefix in ("", "Tensor."))


COUNTERPARTS: dict[str, Counterpart] = {
    "cumsum": _scan("cumsum", takes_dtype=True),
    "cumprod": _scan("cumprod", takes_dtype=True),
    "cummax": _scan("cummax", ties="last", result=torch.return_types.cummax),
    "cummin": _scan("cummin", ties="last", result=torch.return_types.cummin),
    "logcumsumexp": _scan("logcumsumexp", rough_backward=True),
    "sum": _reduction(_plain("sum"), *_homes("sum"), takes_dtype=True),
    "mean": _reduction(_plain("mean"), *_homes("mean"), takes_dtype=True),
    "max": _reduction(_extreme(_amax), *_homes("amax"), name="amax", ties="split"),
    "min": _reduction(_extreme(_amin), *_homes("amin"), name="amin", ties="split"),
    "prod": _reduction(_prod_over, *_homes("prod"), takes_dtype=True),
    "norm2": _reduction(_norm2, "torch.linalg.vector_norm", takes_dtype=True),
    "logsumexp": _reduction(
        _plain("logsumexp"), *_homes("logsumexp"), "torch.special.logsumexp", needs_dim=True
    ),
    "var": _reduction(_corrected("var"), *_homes("var")),
    "std": _reduction(_corrected("std"), *_homes("std")),
    "softmax": _softmax("softmax", _softmax_backward),
    "log_softmax": _softmax("log_softmax", _log_softmax_backward),
    "lerp": Counterpart(_lerp, homes=_homes("lerp")),
    "segment_sum": Counterpart(_segment_sum),
}
