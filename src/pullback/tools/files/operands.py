"""The operands of a run: parts of files in memory, and what was written of them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from .blocks import chunks
from .files import AnyStored
from .transfer import flat_bytes, packed_like
from .zarrs import StoredZarr

# What is read at a time to compute a checksum.
CHECKED = 1 << 22


class Operands:
    """Operands in files, and buffers that serve one block after another.

    Parameters
    ----------
    inputs
        The inputs; outputs are added to ``stored`` when they are opened.
    """

    def __init__(self, inputs: Mapping[str, AnyStored]):
        self.stored: dict[str, AnyStored] = dict(inputs)
        self._inputs = list(inputs.values())
        self._buffers: dict[str, np.ndarray] = {}
        self._loaded: dict[str, tuple[Any, np.ndarray]] = {}

    def load(self, name: str, part: np.ndarray) -> np.ndarray:
        """A part of an input in memory, good until another part of it is loaded."""
        stored = self.stored[name]
        if not part.size or not np.may_share_memory(part, stored.array):
            return part
        key = (part.ctypes.data, part.shape, part.strides)
        known = self._loaded.get(name)
        if known is None or known[0] != key:
            self._loaded.pop(name, None)
            buffer = self.buffer(name, part)
            stored.load(part, buffer)
            known = self._loaded[name] = key, buffer
        return known[1]

    def buffer(self, name: str, part: np.ndarray) -> np.ndarray:
        """Memory for a part of an operand; the same for every block."""

        def take(size: int) -> np.ndarray:
            held = self._buffers.get(name)
            if held is None or held.size < size:
                self._buffers.pop(name, None)
                held = self._buffers[name] = np.empty(size, np.uint8)
            return held[:size]

        return packed_like(part, take)

    def buffers(self, parts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Memory for parts of several operands."""
        return {name: self.buffer(name, part) for name, part in parts.items()}

    def save(self, parts: Mapping[str, np.ndarray], buffers: Mapping[str, np.ndarray]) -> int:
        """Write parts of the outputs; gives the checksum of what was written."""
        checksum = 0
        for name, part in parts.items():
            self.stored[name].save(part, buffers[name])
            checksum = add_to(checksum, buffers[name])
        return checksum

    def checksum(self, parts: Mapping[str, np.ndarray]) -> int:
        """The checksum of parts of the outputs as they are in the files."""
        checksum = 0
        for name, part in parts.items():
            for chunk in chunks(part, CHECKED):
                buffer = self.buffer("checked", chunk)
                self.stored[name].load(chunk, buffer)
                checksum = add_to(checksum, buffer)
        return checksum

    def check_inputs(self) -> None:
        """Raise if an input is no longer what it was."""
        for stored in self._inputs:
            stored.file.check_unchanged()

    def check_chunks(self) -> None:
        """Raise if a chunk of an input in a zarr store is no longer what it was."""
        for stored in self._inputs:
            if isinstance(stored, StoredZarr):
                stored.file.check_chunks()


def add_to(checksum: int, buffer: np.ndarray) -> int:
    """A checksum continued with the bytes of a packed buffer, in the order of the file."""
    return zlib.crc32(flat_bytes(buffer).data, checksum) if buffer.size else checksum
