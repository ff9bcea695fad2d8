"""What processes along the dimensions of a mesh send each other, and which shard each of them has.

Levels are mesh dimensions that cut one dimension of a tensor, from the outermost: each cuts what
those before it left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..cut import moves


class Level(NamedTuple):
    """A mesh dimension, its size, and the place of this process along it."""

    dim: int
    size: int
    coordinate: int


def levels_of(mesh: Any, mesh_dims: Sequence[int]) -> list[Level]:
    """Mesh dimensions with the place of this process along each."""
    coordinates = mesh.get_coordinate()
    assert coordinates is not None
    return [Level(m, mesh.size(m), coordinates[m]) for m in mesh_dims]


def bounds_of(n: int, sizes: Sequence[int]) -> list[int]:
    """Where the shards of nested mesh dimensions begin, and where the last one ends."""
    if not sizes:
        return [0, n]
    found = [0]
    chunk = -(-n // sizes[0])
    for k in range(sizes[0]):
        low, high = min(k * chunk, n), min((k + 1) * chunk, n)
        found += [low + b for b in bounds_of(high - low, sizes[1:])[1:]]
    return found


def place_of(levels: Sequence[Level]) -> int:
    """The place of this process among the shards of nested mesh dimensions."""
    place = 0
    for level in levels:
        place = place * level.size + level.coordinate
    return place


def length_of(n: int, levels: Sequence[Level]) -> int:
    """How much of a dimension this process has."""
    bounds, mine = bounds_of(n, [v.size for v in levels]), place_of(levels)
    return bounds[mine + 1] - bounds[mine]


def gathered(own: Tensor, mesh: Any, levels: Sequence[Level]) -> Tensor:
    """What all processes along some levels have, in their order."""
    from torch.distributed import _functional_collectives as collectives

    # torch before 2.13 calls it otherwise.
    gather = getattr(collectives, "all_gather_single", None) or collectives.all_gather_tensor
    found = own[None].contiguous()
    for level in reversed(levels):
        found = _arrived(gather(found, 0, (mesh, level.dim)))
    return found


def sent_from(place: int, own: Tensor, mesh: Any, levels: Sequence[Level]) -> Tensor:
    """What the process at a place has, on all of them: one broadcast along every level."""
    from torch.distributed import _functional_collectives as collectives

    for level in reversed(levels):
        place, root = divmod(place, level.size)
        own = _arrived(collectives.broadcast(own, root, (mesh, level.dim)))
    return own


def moved(
    t: Tensor, mesh: Any, levels: Sequence[Level], source: Sequence[int], target: Sequence[int]
) -> Tensor:
    """Positions of the last dimension as other bounds have them: neighbours exchange the rest.

    Along several levels everything goes first to the process that has the right place along the
    first of them, from there along the second, and so on: one exchange for each level.
    """
    travels = moves(source, target)
    if not travels:
        return t
    mine = place_of(levels)
    first, start = source[mine], max(source[mine], target[mine])
    stop = max(start, min(source[mine + 1], target[mine + 1]))
    kept = t[..., start - first : stop - first]
    held = {
        k: t[..., m.start - first : m.stop - first]
        for k, m in enumerate(travels)
        if m.source == mine
    }
    places = [m.source for m in travels]
    stride = math.prod(level.size for level in levels)
    for level in levels:
        stride //= level.size
        at = [p // stride % level.size for p in places]
        to = [m.target // stride % level.size for m in travels]
        steps = [p + (b - a) * stride for p, a, b in zip(places, at, to, strict=True)]
        # By the process at the other end, and then in order.
        leaving = sorted((to[k], k) for k in held if steps[k] != mine)
        coming = sorted((at[k], k) for k, p in enumerate(places) if steps[k] == mine != p)
        if at != to:
            lengths = [m.stop - m.start for m in travels]
            sends, takes = (
                [sum(lengths[k] for other, k in side if other == c) for c in range(level.size)]
                for side in (leaving, coming)
            )
            parts = torch.cat([t[..., :0], *(held.pop(k) for _, k in leaving)], -1)
            came = _exchanged(parts.movedim(-1, 0), mesh, level, sends, takes).movedim(0, -1)
            arrived = came.split([lengths[k] for _, k in coming], -1)
            held |= {k: part for (_, k), part in zip(coming, arrived, strict=True)}
        places = steps
    ordered = sorted([(start, -1), *((travels[k].start, k) for k in held)])
    # Rows that lie as one, as kernels like them.
    return torch.cat([kept if k < 0 else held[k] for _, k in ordered], -1)


def resharded(t: Tensor, mesh: Any, level: Level, source: int, target: int, length: int) -> Tensor:
    """A shard along one dimension, exchanged for one along another.

    Parameters
    ----------
    t
        This process's shard.
    level
        The mesh dimension whose shards they are.
    source, target
        The dimensions that are sharded before and after it.
    length
        Of dimension ``source``, on all processes along the level together.
    """
    has = [b - a for a, b in itertools.pairwise(bounds_of(length, [level.size]))]
    wants = [b - a for a, b in itertools.pairwise(bounds_of(t.shape[target], [level.size]))]
    width = wants[level.coordinate]
    others = [d for d in range(t.dim()) if d not in (source, target)]
    order = [target, source, *others]
    leaving = t.permute(order).flatten(0, 1)
    sends, takes = [n * t.shape[source] for n in wants], [width * n for n in has]
    came = _exchanged(leaving, mesh, level, sends, takes).split(takes)
    rest = [t.shape[d] for d in others]
    parts = [part.reshape(width, n, *rest) for n, part in zip(has, came, strict=True)]
    return torch.cat(parts, 1).permute([order.index(d) for d in range(t.dim())])


def _exchanged(
    leaving: Tensor, mesh: Any, level: Level, sends: Sequence[int], takes: Sequence[int]
) -> Tensor:
    """What comes along a level: so many entries go to each of its processes, so many come."""
    from torch.distributed import _functional_collectives as collectives

    rest = tuple(leaving.shape[1:])
    flat = leaving.reshape(-1).view(torch.uint8)
    flat = flat.reshape(sum(sends), math.prod(rest) * leaving.element_size())
    group = (mesh, level.dim)
    came = _arrived(collectives.all_to_all_single(flat, list(takes), list(sends), group))
    return came.reshape(-1).view(leaving.dtype).reshape(sum(takes), *rest)


def _arrived(t: Any) -> Tensor:
    found: Tensor = t.wait() if hasattr(t, "wait") else t
    return found
