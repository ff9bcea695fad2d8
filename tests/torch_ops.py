"""What the torch tests share: every function beside torch's own, and cases of every convention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import pullback as pb
import pullback.torch as pt
from pullback.torch.counterparts import COUNTERPARTS

EVERY_KIND = [op.kind for op in pb.catalog() if op.direction == "forward"]
# Those that torch has too.
KINDS = [kind for kind in EVERY_KIND if kind in COUNTERPARTS]
FAMILY = {op.kind: op.family for op in pb.catalog()}
PUBLIC = {"max": "amax", "min": "amin"}
DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}
WITH_INDICES = ("cummax", "cummin")
CORRECTED = ("var", "std")
# One kind of each family, and of each way to save.
FAMILIES = ("logcumsumexp", "cummax", "mean", "max", "softmax", "lerp", "segment_sum")
EXTREMES = ("cummax", "cummin", "max", "min")
IDS = torch.tensor([2, 0, 3])
SEGMENTS = 4
WEIGHT = 0.375


def function(kind: str) -> Callable[..., Any]:
    """The function under test."""
    return getattr(pt, PUBLIC.get(kind, kind))


def _norm(x, dim=None, keepdim=False):
    return torch.linalg.vector_norm(x, 2, dim, keepdim)


def _prod(x, dim=None, keepdim=False, dtype=None):
    x = x if dtype is None else x.to(dtype)
    dims = range(x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    for d in sorted([d % x.dim() for d in dims], reverse=True) if x.dim() else ():
        x = torch.prod(x, d, keepdim)
    return x


def _logsumexp(x, dim=None, keepdim=False):
    return torch.logsumexp(x, tuple(range(x.dim())) if dim is None else dim, keepdim)


def _segment_sum(x, ids, count):
    return x.new_zeros(count, *x.shape[1:]).index_add(0, ids, x)


def peer(kind: str) -> Callable[..., Any]:
    """torch's own, with the same arguments."""
    special = {
        "norm2": _norm,
        "prod": _prod,
        "logsumexp": _logsumexp,
        "segment_sum": _segment_sum,
    }
    return special.get(kind) or getattr(torch, PUBLIC.get(kind, kind))


def values(result: Any) -> Tensor:
    """Results without indices."""
    return result if isinstance(result, Tensor) else result[0]


@dataclass(frozen=True)
class Simple:
    """A kind as a function of one tensor of shape (3, 4): ours, and torch's."""

    kind: str

    def _run(self, of: Callable[..., Any], x: Tensor) -> Tensor:
        if self.kind == "lerp":
            return of(x, x.flip(0) * 2, WEIGHT)
        if self.kind == "segment_sum":
            return of(x, IDS, SEGMENTS)
        result = of(x, 1)
        return result[0] if self.kind in WITH_INDICES else result

    def ours(self, x: Tensor) -> Tensor:
        return self._run(function(self.kind), x)

    def torchs(self, x: Tensor) -> Tensor:
        return self._run(peer(self.kind), x)


SIMPLE = [Simple(kind) for kind in KINDS]


def data(shape: tuple[int, ...] = (3, 4), dtype: torch.dtype = torch.float64, seed: int = 0):
    """Numbers of either sign, away from zero, in no order."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.rand(shape, dtype=torch.float64, generator=generator) + 0.5
    sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    return (size * sign).to(dtype)


def leaf(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """The same, and a gradient is wanted by it."""
    return data(shape or (3, 4), dtype, seed).requires_grad_()


def cases(kind: str) -> list[tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]]]:
    """Shapes with the arguments after the input, as torch itself takes them."""
    cube = (3, 5, 4)
    match FAMILY[kind]:
        case "scan" | "softmax":
            return [
                (cube, (1,), {}),
                (cube, (-1,), {}),
                (cube, (0,), {}),
                ((7,), (-1,), {}),
                ((1, 1), (0,), {}),
                ((), (0,), {}),
                ((), (-1,), {}),
                ((0,), (0,), {}),
                ((2, 0, 3), (1,), {}),
                ((2, 0, 3), (-1,), {}),
            ]
        case "reduce":
            found: list[tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]]] = [
                (cube, (), {"dim": 1}),
                (cube, (), {"dim": -1, "keepdim": True}),
                (cube, (), {"dim": (1, 2)}),
                (cube, (), {"dim": (-2, 0), "keepdim": True}),
                (cube, (), {"dim": [0, 2]}),
                (cube, (), {"dim": None}),
                ((7,), (-1,), {}),
            ]
            if kind in CORRECTED:  # of no elements torch warns
                return [
                    *found,
                    (cube, (1,), {"correction": 0}),
                    (cube, (1,), {"correction": 2.5, "keepdim": True}),
                    ((), (), {"correction": 0}),
                ]
            found += [
                ((), (), {"dim": None}),
                ((2, 0, 3), (), {"dim": 0}),
                ((2, 0, 3), (), {"dim": -1, "keepdim": True}),
            ]
            if kind not in ("max", "min"):
                found.append(((2, 0, 3), (), {"dim": 1}))
            return found
        case "lerp":
            return [(cube, (WEIGHT,), {}), ((), (WEIGHT,), {}), ((0, 2), (-1.5,), {})]
    return [((3, 4), (IDS, SEGMENTS), {}), ((3,), (IDS, SEGMENTS), {}), ((3, 0), (IDS, 4), {})]


def few_cases(kind: str) -> list[tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]]]:
    """Those along the last dimension, which share their kernels."""
    if FAMILY[kind] in ("lerp", "segment"):
        return cases(kind)
    return [c for c in cases(kind) if -1 in (*c[1], c[2].get("dim", 0))]


def operands(kind: str, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """The tensors a gradient is wanted by."""
    count = 2 if kind == "lerp" else 1
    return [leaf(*shape, dtype=dtype, seed=k) if shape else leaf_0d(dtype, k) for k in range(count)]


def leaf_0d(dtype: torch.dtype, seed: int) -> Tensor:
    return data((), dtype, seed).requires_grad_()
