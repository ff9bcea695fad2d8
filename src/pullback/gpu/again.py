"""Runs on tensors that lie as those of an earlier run did, of which only the addresses are new.

Shapes, types, strides and devices the earlier run has checked. Whether outputs overlap operands
hangs on the addresses: where spans of memory meet at all, the run goes the long way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..memory.view import View
from .starts import TWIN


def lie_of(tensors: Sequence[Any], kind: Any) -> tuple[tuple[Any, ...], list[int]] | None:
    """How plain tensors lie, as a key, and where; None if one of them is something else."""
    key: list[Any] = []
    addresses = []
    for t in tensors:
        if type(t) is not kind:
            return None
        try:
            address = t.data_ptr()
            key += (t.dtype, t.shape, t.stride(), t.device, address % 16, t.requires_grad)
        except (RuntimeError, NotImplementedError):
            return None
        if not address or t.is_neg():
            return None
        addresses.append(address)
    return tuple(key), addresses


class Again:
    """A launch whose kernels are ready, for operands that lie as some views do."""

    def __init__(self, launch: Any, views: Mapping[str, View], outputs: Sequence[str]):
        self.launch, self._names = launch, list(views)
        self._reach = [
            sum((n - 1) * s for n, s in zip(v.shape, v.strides, strict=True)) + v.itemsize
            for v in views.values()
        ]
        self._written = [k for k, n in enumerate(views) if n in outputs]
        self._odd = [(TWIN + n, k) for k, n in enumerate(views) if views[n].address % 16]

    def fits(self, addresses: Sequence[int]) -> bool:
        """Whether the outputs lie apart from all else."""
        for out in self._written:
            first, last = addresses[out], addresses[out] + self._reach[out]
            for k, address in enumerate(addresses):
                if k != out and address < last and first < address + self._reach[k]:
                    return False
        return True

    def held(self, addresses: Sequence[int]) -> dict[str, Any]:
        """What kernels are given: addresses, and those of the twins of odd ones."""
        found: dict[str, Any] = dict(zip(self._names, addresses, strict=True))
        for twin, k in self._odd:
            found[twin] = addresses[k] - addresses[k] % 16
        return found
