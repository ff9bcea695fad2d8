"""Torch's tensors for the formulas of the catalog: differentiable, under every transform.

They serve where torch has no function of its own, or one that cannot be differentiated again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..core import elements
from ..formulas.namespaces import Namespace
from ..formulas.primitives import NOWHERE

ELEMENTS = {getattr(torch, e.dtype.name): e.name for e in elements.ELEMENTS.values() if e.is_float}


class _Tensors(Namespace):
    differentiates = True

    def cast(self, array: Tensor, dtype: torch.dtype) -> Tensor:
        return array.to(dtype)

    def full(self, like: Tensor, value: Any, shape: tuple[int, ...]) -> Tensor:
        return like.new_full(shape, value)

    def counting(self, like: Tensor, length: int) -> Tensor:
        return torch.arange(length, dtype=like.dtype, device=like.device)

    def transposed(self, array: Tensor, order: Sequence[int]) -> Tensor:
        return array.permute(tuple(order))


def _tensor(value: Any, like: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value
    return torch.as_tensor(value, dtype=torch.float64, device=like.device)


def _where(condition: Any, a: Any, b: Any) -> Any:
    if not isinstance(condition, Tensor):
        return a if condition else b
    return torch.where(condition, _tensor(a, condition), _tensor(b, condition))


def _maximum(a: Any, b: Any) -> Any:
    like = a if isinstance(a, Tensor) else b
    if not isinstance(like, Tensor):
        return max(a, b)
    return torch.maximum(_tensor(a, like), _tensor(b, like))


def _exponent(v: Tensor) -> Tensor:
    e = torch.frexp(v).exponent.to(v.dtype)
    e = torch.where(torch.isfinite(v), e, 0.0)
    return torch.where(v == 0, NOWHERE, e)


def _power_of_two(e: Tensor) -> Tensor:
    return torch.exp2(torch.clamp(e, -1022.0, 1023.0))


def _ldexp(v: Tensor, e: Tensor) -> Tensor:
    held = torch.clamp(e, -2040.0, 2040.0)
    half = torch.trunc(held / 2)
    return v * torch.exp2(half) * torch.exp2(held - half)


TORCH = _Tensors(
    torch,
    {
        "where": _where,
        "isnan": lambda v: v != v,
        "exp": torch.exp,
        "log": torch.log,
        "sqrt": torch.sqrt,
        "absolute": torch.abs,
        "maximum": _maximum,
        "mantissa": lambda v: torch.frexp(v).mantissa,
        "exponent": _exponent,
        "power_of_two": _power_of_two,
        "ldexp": _ldexp,
    },
)
