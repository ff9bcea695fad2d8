"""Arrays in zarr stores, formats 2 and 3: folders of chunks on a disk."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import math
import mmap
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InvalidProblemError, UnsupportedError
from ...memory.view import DTYPES
from .boxes import Box, boxes
from .transfer import packed_like

# Bytes of chunks that are read or written together, beside the buffer they come from or go to.
TOGETHER = 1 << 23
# What such a call holds at most, in units of the larger of that and a chunk: as it lies in the
# store, decoded, and put together; and what the threads of the library keep of all calls.
COPIES, KEPT = 3, 1 << 26
_METADATA = ("zarr.json", ".zarray")


def is_zarr(path: Path) -> bool:
    """Whether a name is that of an array in a zarr store: ``x.zarr``, ``group.zarr/x``."""
    names = (path, *path.parents)
    return any(p.suffix.lower() == ".zarr" for p in names) or path.is_dir()


def holds_array(path: Path) -> bool:
    """Whether a folder is an array in a store, and not a group of such."""
    if (path / ".zarray").is_file():
        return True
    try:
        return bool(json.loads((path / "zarr.json").read_bytes())["node_type"] != "group")
    except OSError:
        return False
    except (ValueError, TypeError, LookupError):  # a damaged one, of which the library tells more
        return True


def library() -> Any:
    """The zarr package, or an error that says how to get it."""
    try:
        import zarr
    except ModuleNotFoundError as error:
        if error.name != "zarr":
            raise
        raise UnsupportedError("zarr files need the package zarr: pip install zarr") from None
    return zarr


@dataclass
class ZarrFolder:
    """The folder of an array, and what it was like when it was opened.

    Every chunk is a file. After each block those files are asked for that tell what the array is;
    all of them when the run begins and ends.
    """

    path: Path
    name: str

    def __post_init__(self) -> None:
        self._seen = self._stat_metadata()
        self._described: tuple[int, int, str] | None = None

    def _stat_metadata(self) -> list[tuple[int, int]]:
        found = []
        for name in _METADATA:
            try:
                status = os.stat(self.path / name)
            except FileNotFoundError:
                continue
            found.append((status.st_size, status.st_mtime_ns))
        return found

    def describe(self) -> tuple[int, int, str]:
        """Size and last modification of all chunks, and a digest of their names and times."""
        size, latest, digest = 0, 0, hashlib.sha256()
        for path in files_below(self.path):
            status = os.stat(path)
            size, latest = size + status.st_size, max(latest, status.st_mtime_ns)
            told = (str(path.relative_to(self.path)), status.st_size, status.st_mtime_ns)
            digest.update(repr(told).encode())
        self._described = size, latest, digest.hexdigest()[:32]
        return self._described

    def check_unchanged(self) -> None:
        """Raise if what tells shape and type was written to since it was opened."""
        if self._stat_metadata() != self._seen:
            raise InvalidProblemError(f"{self.name}: was changed during the run")

    def check_chunks(self) -> None:
        """Raise if a chunk was written to since it was described."""
        before = self._described
        if before is not None and self.describe() != before:
            raise InvalidProblemError(f"{self.name}: was changed during the run")


def files_below(folder: Path) -> Iterator[Path]:
    """All files of a folder, in an order that does not change."""
    for base, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            yield Path(base) / name


@dataclass(frozen=True)
class StoredZarr:
    """An array in a zarr store; like :class:`.files.Stored` for those who read and write parts.

    Attributes
    ----------
    array
        Has the addresses that the array would have as a whole, and no memory behind them: where a
        part of it lies tells its place.
    map
        What keeps the addresses, or None.
    file
        The folder.
    store
        The array of the library.
    """

    array: np.ndarray
    map: mmap.mmap | None
    file: ZarrFolder
    store: Any

    @property
    def grain(self) -> tuple[int, ...]:
        """Lengths of what is read and written as one."""
        return tuple(getattr(self.store, "shards", None) or self.store.chunks)

    @property
    def beside(self) -> int:
        """Bytes that a call takes beside its buffer."""
        chunk = math.prod(self.grain) * self.array.itemsize
        return KEPT + COPIES * max(chunk, TOGETHER)

    @cached_property
    def _steps(self) -> list[int]:
        """Elements from one place to the next, along every dimension."""
        return [math.prod(self.array.shape[d + 1 :]) for d in range(self.array.ndim)]

    def _places(self, part: np.ndarray) -> Iterator[tuple[Box, Box]]:
        """Boxes of the array, and of the part with its dimensions as they lie in the array.

        A part may be of the array in another shape, with dimensions that are one in their order.
        """
        assert self.map is not None
        shape, item = self.array.shape, self.array.itemsize
        offset = int(part.ctypes.data - np.frombuffer(self.map, np.uint8).ctypes.data) // item
        start = [offset // step % n for step, n in zip(self._steps, shape, strict=True)]
        order = sorted(range(part.ndim), key=lambda k: -part.strides[k])
        choices: list[list[tuple[int, Box, slice]]] = []
        for k in order:
            n, step = part.shape[k], part.strides[k] // item
            if n == 1:
                choices.append([(0, (), slice(0, 1))])
                continue
            last = max(d for d, s in enumerate(self._steps) if s == step and shape[d] > 1)
            first, at = last, start[last]
            while math.prod(shape[first : last + 1]) < at + n:
                first -= 1
                at += start[first] * math.prod(shape[first + 1 : last + 1])
            found, done = [], 0
            for box in boxes(shape[first : last + 1], at, at + n):
                size = math.prod(s.stop - s.start for s in box)
                found.append((first, box, slice(done, done + size)))
                done += size
            choices.append(found)
        for chosen in itertools.product(*choices):
            where = [slice(s, s + 1) for s in start]
            for first, box, _ in chosen:
                where[first : first + len(box)] = box
            yield tuple(where), tuple(span for *_, span in chosen)

    def _together(self, where: Box) -> Iterator[Box]:
        """Parts of a box that are whole chunks and small, in order."""
        lengths = [s.stop - s.start for s in where]
        if math.prod(lengths) * self.array.itemsize <= TOGETHER:
            yield where
            return
        for d, (span, grain) in enumerate(zip(where, self.grain, strict=True)):
            if span.start // grain == (span.stop - 1) // grain:
                continue
            middle = (span.start // grain + (span.stop - 1) // grain + 1) // 2 * grain
            for half in (slice(span.start, middle), slice(middle, span.stop)):
                yield from self._together((*where[:d], half, *where[d + 1 :]))
            return
        yield where

    def _transfer(self, part: np.ndarray, buffer: np.ndarray) -> Iterator[tuple[Box, np.ndarray]]:
        """Boxes of the array, each with the memory that belongs to it, in the box's shape."""
        order = sorted(range(part.ndim), key=lambda k: -part.strides[k])
        ordered = buffer.transpose(order)
        for where, span in self._places(part):
            memory = ordered[span].reshape([s.stop - s.start for s in where])
            assert np.may_share_memory(memory, buffer)
            for box in self._together(where):
                inside = tuple(
                    slice(b.start - w.start, b.stop - w.start)
                    for b, w in zip(box, where, strict=True)
                )
                yield box, memory[inside] if inside else memory

    def load(self, part: np.ndarray, buffer: np.ndarray) -> None:
        """Read a part of the array into a buffer of the same shape, laid out by ``packed_like``."""
        try:
            for box, memory in self._transfer(part, buffer) if part.size else ():
                memory[...] = np.asarray(self.store[box if box else ...]).view(memory.dtype)
        except OSError:
            raise
        except Exception as error:  # a damaged chunk fails as its codec does
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InvalidProblemError(f"{self.file.name}: cannot be read: {reason[:200]}") from None

    def whole(self) -> np.ndarray:
        """All of the array, in memory."""
        buffer = packed_like(self.array, lambda size: np.empty(size, np.uint8))
        self.load(self.array, buffer)
        return buffer

    def save(self, part: np.ndarray, buffer: np.ndarray, shared: bool = False) -> None:
        """Write a buffer laid out by ``packed_like`` to a part of the array.

        Where others write to it too, a part must be of whole chunks.
        """
        if not holds_array(self.file.path):
            raise InvalidProblemError(f"{self.file.name}: was removed during the run")
        if part.size:
            for box, memory in self._transfer(part, buffer):
                self.store[box if box else ...] = memory.view(self.store.dtype)

    def settle(self) -> None:
        """See to it that what was written is on the disk."""
        settle_all(self.file.path)

    def is_at(self, path: Path) -> bool:
        """Whether a name still is that of this array."""
        return path.absolute() == self.file.path.absolute() and holds_array(path)


def settle_all(folder: Path) -> None:
    """See to it that all files of a folder are on the disk: one call for the whole file system."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if sync is None:
            os.sync()
        elif sync(handle):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(folder))
    finally:
        os.close(handle)


def _opened(path: Path, name: str, mode: str) -> Any:
    zarr = library()
    try:
        with _quietly():
            return zarr.open_array(store=str(path), mode=mode)
    except OSError:
        raise
    except Exception as error:  # metadata may be wrong in as many ways as JSON
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidProblemError(f"{name}: not a zarr array: {reason[:200]}") from None


def _member(path: Path, operand: str) -> Path:
    """The array that a path names; of a group, the one called like the operand, or the only one."""
    if holds_array(path):
        return path
    if not path.is_dir():
        raise InvalidProblemError(f"{operand}: {path}: no such file")
    names = (operand, "segment_ids") if operand == "ids" else (operand,)
    held = sorted(p.name for p in path.iterdir() if p.is_dir() and holds_array(p))
    wanted = next((n for n in names if n in held), held[0] if len(held) == 1 else None)
    if wanted is None:
        told = f"{', '.join(held)}, not {operand}" if held else "no zarr array"
        raise InvalidProblemError(f"{operand}: {path}: holds {told}")
    return path / wanted


def open_input(path: Path, operand: str, element: Any) -> StoredZarr:
    """Open an operand for reading; ``element`` gives the element type of a type in a store."""
    path = _member(path, operand)
    folder = ZarrFolder(path, f"{operand}: {path}")
    store = _opened(path, folder.name, "r")
    return _stored(folder, store, element(store.dtype))


def _stored(folder: ZarrFolder, store: Any, kind: Any) -> StoredZarr:
    shape = tuple(store.shape)
    size = math.prod(shape) * kind.itemsize
    if not size:
        return StoredZarr(np.empty(shape, kind), None, folder, store)
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        held = mmap.mmap(-1, size, flags=flags, prot=mmap.PROT_READ)
        array: np.ndarray = np.ndarray(shape, kind, held)
    except (ValueError, OSError, OverflowError) as error:
        raise InvalidProblemError(f"{folder.name}: {error}") from None
    return StoredZarr(array, held, folder, store)


@dataclass(frozen=True)
class ZarrForm:
    """What an output in a zarr store is made of.

    Attributes
    ----------
    shape, element
        Of the array.
    chunks, shards
        Lengths of its chunks, and of what holds several of them, if anything does; None for the
        library's choice.
    format
        2 or 3.
    """

    shape: tuple[int, ...]
    element: str
    chunks: tuple[int, ...] | None = None
    shards: tuple[int, ...] | None = None
    format: int = 3

    @property
    def _dtype(self) -> Any:
        # As .npy has bfloat16: two plain bytes.
        return np.dtype("V2") if self.element == "bf16" else DTYPES[self.element]

    def rechunked(self, chunks: tuple[int, ...]) -> ZarrForm:
        """The same array in chunks of these lengths."""
        return replace(self, chunks=chunks, shards=None)

    def create(self, path: Path) -> None:
        """Make the folder; its name must be free."""
        path.mkdir(mode=0o777)
        with _quietly():
            library().create_array(
                store=str(path),
                shape=self.shape,
                dtype=self._dtype,
                chunks="auto" if self.chunks is None else self.chunks,
                shards=self.shards,
                zarr_format=self.format,
                fill_value=np.zeros((), self._dtype)[()],
            )

    def open(self, path: Path, stack: ExitStack) -> StoredZarr:
        """Open what ``create`` made for writing, or say what has become of it."""
        if path.is_symlink() or not holds_array(path):
            raise InvalidProblemError(f"{path}: is missing")
        folder = ZarrFolder(path, str(path))
        store = _opened(path, str(path), "r+")
        wanted = (self.shape, self._dtype, self.format)
        if (tuple(store.shape), store.dtype, store.metadata.zarr_format) != wanted:
            raise InvalidProblemError(f"{path}: is another array than the run made")
        return _stored(folder, store, DTYPES[self.element])


def form_like(
    inputs: Iterable[Any], shape: tuple[int, ...], element: str, wanted: int | None
) -> ZarrForm:
    """The form of an output: chunks of the first input in a store that has its shape."""
    stores = [s.store for s in inputs if isinstance(s, StoredZarr)]
    found = wanted or (stores[0].metadata.zarr_format if stores else 3)
    for store in stores:
        if tuple(store.shape) == shape:
            shards = getattr(store, "shards", None) if found == 3 else None
            return ZarrForm(shape, element, tuple(store.chunks), shards, found)
    return ZarrForm(shape, element, None, None, found)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without warnings about types that other readers may not know."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
