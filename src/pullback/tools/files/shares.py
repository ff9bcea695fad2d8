"""Parts of files that tasks on other machines read and write.

A task gets the name of a file and a place in it. What it reads is in memory while it runs and no
longer: a graph that goes over a tensor twice reads it twice.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import files
from .boxes import Box
from .operands import add_to
from .transfer import packed_like


def _part(array: np.ndarray, where: Box) -> np.ndarray:
    everywhere: tuple[Any, ...] = (*where, ...)  # keeps an array without dimensions an array
    found: np.ndarray = array[everywhere]
    return found


def _memory(size: int) -> np.ndarray:
    return np.empty(size, np.uint8)


@dataclass(frozen=True)
class Source:
    """An operand in a file, by what :func:`.files.open_input` takes."""

    path: str
    name: str
    dtype: str | None
    shape: tuple[int, ...] | None

    def read(self, where: Box) -> np.ndarray:
        """A part of it, in memory."""
        with ExitStack() as stack:
            stored = files.open_input(Path(self.path), self.name, self.dtype, self.shape, stack)
            part = _part(stored.array, where)
            buffer = packed_like(part, _memory)
            stored.load(part, buffer)
            return buffer


class Share:
    """A chunk of a dask array that is read from its file whenever a task asks for it."""

    def __init__(self, source: Source, where: Box, order: tuple[int, ...] | None = None):
        self._source, self._where = source, where
        self._order = tuple(range(len(where))) if order is None else order

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the part."""
        lengths = [s.stop - s.start for s in self._where]
        return tuple(lengths[d] for d in self._order)

    def __len__(self) -> int:
        return self.shape[0]

    def transpose(self, axes: tuple[int, ...]) -> Share:
        """The same part with its dimensions in another order."""
        return Share(self._source, self._where, tuple(self._order[a] for a in axes))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        found: np.ndarray = self._source.read(self._where).transpose(self._order)
        return found if dtype is None else found.astype(dtype, copy=False)

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]


@dataclass(frozen=True)
class Target:
    """An output in a file that its form has made."""

    path: str
    form: files.AnyForm

    def write(self, where: Box, values: Any) -> tuple[int, int]:
        """Write a part of it; gives how many bytes, and their checksum."""
        with ExitStack() as stack:
            stored = self.form.open(Path(self.path), stack)
            part = _part(stored.array, where)
            buffer = packed_like(part, _memory)
            buffer[...] = values
            stored.save(part, buffer, shared=True)
            return part.nbytes, add_to(0, buffer)

    def checksum(self, where: Box) -> int:
        """The checksum of a part as it is in the file."""
        with ExitStack() as stack:
            stored = self.form.open(Path(self.path), stack)
            part = _part(stored.array, where)
            buffer = packed_like(part, _memory)
            stored.load(part, buffer)
            return add_to(0, buffer)


def write(target: Target, where: Box, values: Any) -> tuple[int, int]:
    """A task that writes a chunk."""
    return target.write(where, values)


def checksum(target: Target, where: Box) -> int:
    """A task that looks at a chunk that was written."""
    return target.checksum(where)
