"""Where a running extreme sits: the indices that torch's cummax and cummin return.

With ties "last" an element holds the extreme if it equals the running extreme, with ties "first" if
the running extreme changes there. The index of a position is that of the last holder so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as transforms_active
from torch._C import _len_torch_dispatch_stack as dispatch_modes
from torch.compiler import is_compiling

from ..threads import get_num_threads
from .arrays import ELEMENTS
from .launches import readable
from .shard_positions import positions_of_shards
from .shards import is_sharded

_cummax, _cummin = torch.cummax, torch.cummin
# The bits of infinity, above which lie the NaNs.
_INFINITY = {
    torch.float32: 0x7F800000,
    torch.float64: 0x7FF0000000000000,
    torch.float16: 0x7C00,
    torch.bfloat16: 0x7F80,
}


def positions(x: Tensor, y: Tensor, dim: int, reverse: bool, ties: str) -> Tensor:
    """Index along ``dim`` of the element of ``x`` that holds the running extreme ``y``."""
    if x.dim() == 0:
        return torch.zeros((), dtype=torch.int64, device=x.device)
    if is_sharded(y):
        return positions_of_shards(x, y, dim, reverse, ties, positions, _same)
    if x.numel() == 0:
        return torch.empty(x.shape, dtype=torch.int64, device=x.device)
    if (
        is_compiling()
        or transforms_active()
        or dispatch_modes()
        or type(y) is not Tensor
        or not x.is_cpu
        or x.dtype not in ELEMENTS
    ):
        return _composed(x, y, dim, reverse, ties)
    return _by_kernel(x, y, dim, reverse, ties)


def _same(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | ((a != a) & (b != b))


def _composed(x: Tensor, y: Tensor, dim: int, reverse: bool, ties: str) -> Tensor:
    """In torch's ops, so that every transform understands it."""
    n = x.shape[dim]
    if ties == "last":
        holds = _same(x, y)
    else:
        before = y.narrow(dim, 1, n - 1) if reverse else y.narrow(dim, 0, n - 1)
        after = y.narrow(dim, 0, n - 1) if reverse else y.narrow(dim, 1, n - 1)
        begins = ~_same(before, after)
        edge = torch.ones_like(y.narrow(dim, 0, 1), dtype=torch.bool)
        holds = torch.cat((begins, edge) if reverse else (edge, begins), dim)
    shape = [n if k == dim else 1 for k in range(x.dim())]
    index = torch.arange(n, device=x.device).view(shape)
    if reverse:
        held = torch.where(holds, index, n - 1)
        return _cummin(held.flip(dim), dim)[0].flip(dim)
    return _cummax(torch.where(holds, index, 0), dim)[0]


def _by_kernel(x: Tensor, y: Tensor, dim: int, reverse: bool, ties: str) -> Tensor:
    """One pass over contiguous memory, rows or tiles of columns shared by the threads."""
    last, shape = ties == "last", tuple(y.shape)
    y = y if y.is_contiguous() else y.detach().contiguous()
    if last:
        x = readable(x if x.is_contiguous() else x.detach().contiguous())
    run, strides = _run_for(y.dtype, shape, dim, reverse, last, get_num_threads())
    result = y.new_empty_strided(shape, strides, dtype=torch.int64)
    run(((x if last else y).data_ptr(), y.data_ptr(), result.data_ptr()), (x, y, result))
    return result


@lru_cache(maxsize=512)
def _run_for(
    dtype: torch.dtype, shape: tuple[int, ...], dim: int, reverse: bool, last: bool, threads: int
) -> tuple[Callable[..., None], tuple[int, ...]]:
    """``run(addresses, owners)`` of what is looked at, the running extreme, and the indices.

    And the strides of these, which lie in memory as the others do.
    """
    from ..cpu.program import Patch, Phase, Program
    from .positions_kernel import TILE, kernel_of

    n, width, size = shape[dim], math.prod(shape[dim + 1 :]), dtype.itemsize
    strides = tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
    tiles, numel = -(-width // TILE), math.prod(shape)
    start, step = (n - 1, -1) if reverse else (0, 1)
    # Compared with: the running extreme here, or at the position before.
    before = 0 if last else -step * width * size
    patches = [Patch(0, "held"), Patch(1, "running", before), Patch(2, "indices")]
    template = [0, 0, 0, n, width, tiles, start, step, int(last), _INFINITY[dtype]]
    units, traffic = numel // (n * width) * tiles, numel * (8 + (1 + last) * size)
    phase = Phase(partial(kernel_of, 8 * size), units, traffic)
    operands = ("held", "running", "indices")
    return Program(template, patches, [phase], operands, 0, threads).run, strides
