"""Where a running extreme sits along a dimension that may be sharded over processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .exchange import bounds_of, gathered, levels_of, place_of


def positions_of_shards(
    x: Any, y: Any, dim: int, reverse: bool, ties: str, positions: Any, same: Any
) -> Any:
    """Indices as :func:`.positions.positions` gives them, of DTensors.

    A shard whose first positions hold nothing takes the last holder of the shards in front of it:
    one index of every row is gathered.
    """
    from torch.distributed.tensor import DTensor

    mesh = y.device_mesh
    x = x.redistribute(mesh, y.placements) if x.placements != y.placements else x
    own_x, own_y = x.to_local(), y.to_local()
    cutting = [m for m, p in enumerate(y.placements) if p.is_shard() and p.dim == dim]
    if not cutting:
        found = positions(own_x, own_y, dim, reverse, ties)
    else:
        levels = levels_of(mesh, cutting)
        bounds = bounds_of(y.shape[dim], [level.size for level in levels])
        found = _along(own_x, own_y, dim, reverse, ties, mesh, levels, bounds, same)
    return DTensor.from_local(
        found, mesh, y.placements, run_check=False, shape=y.shape, stride=y.stride()
    )


def _along(
    x: Tensor,
    y: Tensor,
    dim: int,
    reverse: bool,
    ties: str,
    mesh: Any,
    levels: Any,
    bounds: list[int],
    same: Any,
) -> Tensor:
    mine, n = place_of(levels), y.shape[dim]
    there = [k for k in range(len(bounds) - 1) if bounds[k] < bounds[k + 1]]
    ahead = [k for k in there if (k > mine if reverse else k < mine)]
    is_last = ties == "last"
    holds = same(x, y) if is_last else _begins(y, dim, reverse, mesh, levels, ahead, same)
    shape = [n if k == dim else 1 for k in range(y.dim())]
    index = (bounds[mine] + torch.arange(n)).view(shape)
    first = bounds[-1] - 1 if reverse else 0
    nothing = bounds[-1] if reverse else -1
    held = torch.where(holds, index, nothing)
    if reverse:
        running = torch.cummin(held.flip(dim), dim)[0].flip(dim)
    else:
        running = torch.cummax(held, dim)[0]
    edge = running.select(dim, 0 if reverse else n - 1) if n else running.sum(dim)
    carried = gathered(edge, mesh, levels)
    front = torch.full_like(edge, first)
    if ahead:
        some = carried[ahead]
        front = some.amin(0) if reverse else some.amax(0)
        front = torch.where(front == nothing, first, front)
    front = front.unsqueeze(dim)
    return torch.minimum(running, front) if reverse else torch.maximum(running, front)


def _begins(
    y: Tensor, dim: int, reverse: bool, mesh: Any, levels: Any, ahead: list[int], same: Any
) -> Tensor:
    """Where the running extreme is not that of the position before."""
    n = y.shape[dim]
    edge = y.select(dim, 0 if reverse else n - 1) if n else y.new_zeros(y.sum(dim).shape)
    edges = gathered(edge.double(), mesh, levels)
    if not n:
        return torch.zeros_like(y, dtype=torch.bool)
    if ahead:
        before = edges[ahead[0] if reverse else ahead[-1]].to(y.dtype)
        here = y.select(dim, n - 1 if reverse else 0)
        border = (~same(before, here)).unsqueeze(dim)
    else:
        border = torch.ones_like(y.narrow(dim, 0, 1), dtype=torch.bool)
    inside = ~same(y.narrow(dim, 0, n - 1), y.narrow(dim, 1, n - 1))
    return torch.cat((inside, border) if reverse else (border, inside), dim)
