"""``torch.nn.functional``, as far as it is served here."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidProblemError
from .arrays import ELEMENTS
from .functions import make_function

__all__ = ["cross_entropy"]

_cross_entropy = torch.nn.functional.cross_entropy
# Made here, not in a call: torch.compile would look into the making.
_with_lse, _sum = make_function("cross_entropy"), make_function("sum")


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """``torch.nn.functional.cross_entropy``: of classes on pullback's kernels.

    With weights, probabilities as the target or the older forms of ``reduction`` it is torch's own.

    Examples
    --------
    >>> import torch, pullback.torch as pt
    >>> logits, target = torch.zeros(2, 4), torch.tensor([3, -100])
    >>> pt.functional.cross_entropy(logits, target)
    tensor(1.3863)
    >>> pt.functional.cross_entropy(logits, target, reduction="none")
    tensor([1.3863, 0.0000])
    """
    is_old = size_average is not None or reduce is not None
    if weight is None and not is_old and _is_served(input, target, reduction):
        try:
            return _of_classes(input, target, ignore_index, reduction, label_smoothing)
        except InvalidProblemError:
            pass  # a class out of range, which torch has its own error for
    return _cross_entropy(
        input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
    )


def _of_classes(
    input: Tensor, target: Tensor, ignore_index: int, reduction: str, label_smoothing: float
) -> Tensor:
    how = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    loss: Tensor = _with_lse(input, target, min(1, input.dim() - 1), **how)[0]
    if reduction == "none":
        return loss
    total: Tensor = _sum(loss)
    return total if reduction == "sum" else total / (target != ignore_index).sum()


def _is_served(input: Any, target: Any, reduction: str) -> bool:
    """Whether there is a class for every row, and something to do."""
    if not isinstance(input, Tensor) or not isinstance(target, Tensor):
        return False
    if input.dtype not in ELEMENTS or target.dtype is not torch.int64:
        return False
    if torch.is_autocast_enabled(input.device.type) or reduction not in ("none", "mean", "sum"):
        return False
    rows = (*input.shape[:1], *input.shape[2:]) if input.dim() > 1 else ()
    return bool(input.dim()) and input.numel() > 0 and tuple(target.shape) == rows
