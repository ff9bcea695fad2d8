"""What torch has of its own for each kind of the catalog: the one table of facts about torch.

A counterpart takes tensors and parameters as the catalog names them and is made of torch ops alone,
so it is right under every transform. It serves where a kernel cannot: second derivatives, forward
mode, tensors without memory of their own, dtypes beyond the four. References are taken when this
module is imported, so patching torch does not reach them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ..errors import InvalidProblemError
from .positions import positions

Dims = tuple[int, ...]

_flip = torch.Tensor.flip
_linalg_norm, _lerp = torch.linalg.vector_norm, torch.lerp
_prod, _softmax_backward = torch.prod, torch._softmax_backward_data
_log_softmax_backward = torch._log_softmax_backward_data


@dataclass(frozen=True)
class Counterpart:
    """One kind as torch has it.

    Attributes
    ----------
    run
        The kind in torch ops: tensors, then ``takes``.
    takes
        The parameters it takes, as the catalog names them. With others than their defaults, or with
        other operands that may be left out, torch does not have the kind.
    name
        torch's name, where it is not the catalog's.
    names
        torch's names of arguments, where they are not those of every function here.
    ties
        How torch breaks ties.
    dtype
        Whether torch's function has a ``dtype`` argument: "keyword" or "position".
    needs_dim
        Whether torch's function wants ``dim``.
    takes_unbiased
        Whether torch's function has the older form of a correction.
    means_otherwise
        ``means_otherwise(extent, **takes)``: where torch gives another result than the kernel.
    backward
        The backward in torch ops, for kinds whose backward does not read the input.
    rough_backward
        torch's backward cannot be differentiated by the gradient where that is 0.
    result
        ``result(x, y, **takes)``: what torch returns with more than the values.
    homes
        Where torch keeps the function, for :func:`pullback.torch.patch`.
    routed
        Takes what torch's function takes and returns what ours is to be called with after the
        input, or None where torch's own has to do it. A call that does not fit raises TypeError.
    """

    run: Callable[..., Any]
    takes: tuple[str, ...] = ()
    name: str | None = None
    names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    ties: str | None = None
    dtype: str = ""
    needs_dim: bool = False
    takes_unbiased: bool = False
    means_otherwise: Callable[..., bool] | None = None
    backward: Callable[..., Tensor] | None = None
    rough_backward: bool = False
    result: Callable[..., Any] | None = None
    homes: tuple[str, ...] = ()
    routed: Callable[..., Any] | None = None


# How torch's functions take their arguments.


def _is_dim(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_dims(value: Any) -> bool:
    if value is None or _is_dim(value):
        return True
    return isinstance(value, (tuple, list)) and all(map(_is_dim, value))


def _with_dtype(dtype: Any) -> dict[str, Any]:
    return {} if dtype is None else {"dtype": dtype}


def _routed_scan(input: Any, dim: Any, *, dtype: Any = None) -> Any:
    return ((dim,), _with_dtype(dtype)) if _is_dim(dim) else None


def _routed_softmax(input: Any, dim: Any, dtype: Any = None, *, _stacklevel: int = 3) -> Any:
    return _routed_scan(input, dim, dtype=dtype)


def _routed_reduction(
    input: Any, dim: Any = None, keepdim: Any = False, *, dtype: Any = None
) -> Any:
    if not _are_dims(dim) or not isinstance(keepdim, bool):
        return None
    return (dim, keepdim), _with_dtype(dtype)


def _routed_over_dims(input: Any, dim: Any, keepdim: Any = False) -> Any:
    return _routed_reduction(input, dim, keepdim) if dim is not None else None


def _routed_corrected(
    input: Any, dim: Any = None, *, correction: Any = 1, keepdim: Any = False
) -> Any:
    if not _are_dims(dim) or not isinstance(keepdim, bool) or correction is None:
        return None
    return (dim,), {"correction": correction, "keepdim": keepdim}


def _routed_norm(
    x: Any, ord: Any = 2, dim: Any = None, keepdim: Any = False, *, dtype: Any = None
) -> Any:
    return _routed_reduction(x, dim, keepdim, dtype=dtype) if ord == 2 else None


def _routed_lerp(input: Any, end: Any, weight: Any) -> Any:
    return ((end, weight), {}) if isinstance(weight, (int, float)) else None


# The functions.


def _scan(name: str, **facts: Any) -> Counterpart:
    function = getattr(torch, name)

    def run(x: Tensor, axis: int, reverse: bool) -> Tensor:
        mirrored = reverse and x.dim() > 0
        result = function(_flip(x, (axis,)) if mirrored else x, axis)
        y: Tensor = result if isinstance(result, Tensor) else result[0]
        return _flip(y, (axis,)) if mirrored else y

    homes = (f"torch.{name}", f"torch.Tensor.{name}")
    return Counterpart(
        run, ("axis", "reverse"), needs_dim=True, homes=homes, routed=_routed_scan, **facts
    )


def _running_extreme(name: str) -> Counterpart:
    pair = getattr(torch.return_types, name)

    def result(x: Tensor, y: Tensor, axis: int, reverse: bool, ties: str) -> Any:
        return pair((y, positions(x, y, axis, reverse, ties)))

    return _scan(name, ties="last", result=result)


def _reduction(
    function: Callable[..., Tensor], *homes: str, takes: tuple[str, ...] = (), **facts: Any
) -> Counterpart:
    def run(x: Tensor, axis: Dims, keepdims: bool, **rest: Any) -> Tensor:
        if not axis:  # none, where torch would take () for all
            return function(x[..., None], (-1,), False, **rest)
        return function(x, axis, keepdims, **rest)

    facts.setdefault("routed", _routed_reduction)
    return Counterpart(run, ("axis", "keepdims", *takes), homes=homes, **facts)


def _plain(name: str) -> Callable[..., Tensor]:
    function = getattr(torch, name)

    def run(x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
        y: Tensor = function(x, dim=dim, keepdim=keepdim)
        return y

    return run


def _corrected(name: str) -> Counterpart:
    function = getattr(torch, name)

    def run(x: Tensor, dim: Dims, keepdim: bool, correction: float) -> Tensor:
        y: Tensor = function(x, dim=dim, keepdim=keepdim, correction=correction)
        return y

    def divides_by_less_than_one(extent: int, axis: Any, keepdims: Any, correction: float) -> bool:
        return bool(extent - correction < 1)  # the kernel divides by 1 then

    return _reduction(
        run,
        *_homes(name),
        takes=("correction",),
        takes_unbiased=True,
        means_otherwise=divides_by_less_than_one,
        routed=_routed_corrected,
    )


def _prod_over(x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    for d in sorted(dim, reverse=True):
        x = _prod(x, d, keepdim)
    return x


class _OfNothingError(InvalidProblemError, RuntimeError, IndexError):
    """A maximum of nothing: a RuntimeError in torch, or an IndexError if dims were named."""


def _extreme(name: str) -> Callable[..., Tensor]:
    function = getattr(torch, name)

    def run(x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
        if not is_compiling() and len(dim) == x.dim() and x.numel() == 0:
            raise _OfNothingError(
                f"{name}(): expected at least one element, got shape {tuple(x.shape)}"
            )
        y: Tensor = function(x, dim, keepdim)
        return y

    return run


def _norm2(x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    return _linalg_norm(x, 2, dim, keepdim)


def _softmax(name: str, backward: Callable[..., Tensor]) -> Counterpart:
    function = getattr(torch, name)

    def run(x: Tensor, axis: int) -> Tensor:
        y: Tensor = function(x, axis)
        return y

    def run_backward(dy: Tensor, y: Tensor, axis: int) -> Tensor:
        return backward(dy, y, axis, y.dtype)

    return Counterpart(
        run,
        ("axis",),
        dtype="position",
        needs_dim=True,
        backward=run_backward,
        homes=(
            f"torch.{name}",
            f"torch.Tensor.{name}",
            f"torch.nn.functional.{name}",
            f"torch.special.{name}",
        ),
        routed=_routed_softmax,
    )


def _segment_sum(
    input: Tensor, segment_ids: Tensor, num_segments: int, sorted: bool, out_of_range: str
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
    "cumsum": _scan("cumsum", dtype="keyword"),
    "cumprod": _scan("cumprod", dtype="keyword"),
    "cummax": _running_extreme("cummax"),
    "cummin": _running_extreme("cummin"),
    "logcumsumexp": _scan("logcumsumexp", rough_backward=True),
    "sum": _reduction(_plain("sum"), *_homes("sum"), dtype="keyword"),
    "mean": _reduction(_plain("mean"), *_homes("mean"), dtype="keyword"),
    "max": _reduction(_extreme("amax"), *_homes("amax"), name="amax", ties="split"),
    "min": _reduction(_extreme("amin"), *_homes("amin"), name="amin", ties="split"),
    "prod": _reduction(_prod_over, *_homes("prod"), dtype="keyword"),
    "norm2": _reduction(_norm2, "torch.linalg.vector_norm", dtype="keyword", routed=_routed_norm),
    "logsumexp": _reduction(
        _plain("logsumexp"),
        *_homes("logsumexp"),
        "torch.special.logsumexp",
        needs_dim=True,
        routed=_routed_over_dims,
    ),
    "var": _corrected("var"),
    "std": _corrected("std"),
    "softmax": _softmax("softmax", _softmax_backward),
    "log_softmax": _softmax("log_softmax", _log_softmax_backward),
    "lerp": Counterpart(
        _lerp,
        ("weight",),
        names=MappingProxyType({"a": "input", "b": "end"}),
        homes=_homes("lerp"),
        routed=_routed_lerp,
    ),
    "segment_sum": Counterpart(_segment_sum, ("num_segments", "sorted", "out_of_range")),
}
