"""Where a running extreme sits: the indices that torch's cummax and cummin return.

With ties "last" an element holds the extreme if it equals the running extreme, with ties "first" if
the running extreme changes there. The index of a position is that of the last holder so far.
"""

from __future__ import annotations

from array import array

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as transforms_active
from torch._C import _len_torch_dispatch_stack as dispatch_modes
from torch.compiler import is_compiling

from ..threads import get_num_threads
from .arrays import ELEMENTS
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
    return _by_kernel(x.detach(), y.detach(), dim, reverse, ties)


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
    from ..cpu.pool import run
    from .positions_kernel import TILE, kernel_address

    last = ties == "last"
    x, y = (x.contiguous() if last else x), y.contiguous()
    result = torch.empty(x.shape, dtype=torch.int64, device="cpu")  # whatever the default is
    n = x.shape[dim]
    width = 1
    for size in x.shape[dim + 1 :]:
        width *= size
    tiles = -(-width // TILE)
    start, step = (n - 1, -1) if reverse else (0, 1)
    block = array(
        "q",
        (
            (x if last else y).data_ptr(),
            # Compared with: the running extreme here, or at the position before.
            y.data_ptr() - (0 if last else step * width * y.element_size()),
            result.data_ptr(),
            n,
            width,
            tiles,
            start,
            step,
            last,
            _INFINITY[x.dtype],
        ),
    )
    units = x.numel() // (n * width) * tiles
    traffic = x.numel() * (8 + (1 + last) * x.element_size())
    address = block.buffer_info()[0]
    kernel, owners = kernel_address(8 * x.element_size()), (block, x, y, result)
    run(kernel, address, units, traffic, get_num_threads(), owners)
    return result
