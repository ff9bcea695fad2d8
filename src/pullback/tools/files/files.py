"""Arrays in files: ``.npy``, members of ``.npz``, zarr, and raw files of a known dtype."""

from __future__ import annotations

import hashlib
import io
import math
import mmap
import os
import shutil
import stat
import tempfile
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ...core.vocabulary import ElementKind
from ...errors import InvalidProblemError, UnsupportedError
from ...memory.view import DTYPES
from . import zarrs
from .targets import is_at
from .transfer import packed_like, read_box, read_exactly, write_box
from .zarrs import StoredZarr, ZarrForm

BFLOAT16 = ElementKind.BF16.numpy_dtype
# Bytes that a file of this process could have, and elements that NumPy could count.
LARGEST = 2**63 - 1
# What is read of an input to recognise it: so many pieces of so many bytes.
SAMPLES, SAMPLE_BYTES = 64, 4096


@dataclass(frozen=True)
class OpenFile:
    """A file that stays open, and what it was like when it was opened.

    ``source`` is the file that the user named: the archive, where ``handle`` is of a member.
    """

    handle: int
    source: int
    name: str
    size: int
    mtime: int

    @classmethod
    def of(cls, handle: int, source: int, name: str) -> OpenFile:
        """A file as it is now."""
        status = os.fstat(handle)
        return cls(handle, source, name, status.st_size, status.st_mtime_ns)

    def describe(self) -> tuple[int, int, str]:
        """Size, modification time and a digest of samples of the file that the user named."""
        status = os.fstat(self.source)
        digest = hashlib.sha256()
        last = max(0, status.st_size - SAMPLE_BYTES)
        for k in range(SAMPLES):
            start = last * k // (SAMPLES - 1)
            length = min(SAMPLE_BYTES, status.st_size - start)
            try:
                digest.update(read_exactly(self.source, start, length))
            except EOFError:
                raise InvalidProblemError(f"{self.name}: was cut while it was read") from None
        return status.st_size, status.st_mtime_ns, digest.hexdigest()[:32]

    def check_unchanged(self) -> None:
        """Raise if the file was written to or cut since it was opened."""
        now = os.fstat(self.handle)
        if now.st_size < self.size:
            raise InvalidProblemError(
                f"{self.name}: was cut from {self.size} to {now.st_size} bytes during the run"
            )
        if (now.st_size, now.st_mtime_ns) != (self.size, self.mtime):
            raise InvalidProblemError(f"{self.name}: was changed during the run")


@dataclass(frozen=True)
class Stored:
    """An array in an open file.

    Its elements are read and written with calls that report an error. ``array`` lies on a map of
    the file, since its address tells where a part of it lies in the file; nobody touches it, which
    could end in a signal if another process cuts the file.

    Attributes
    ----------
    array
        The array as it lies in the file; without elements it lies in none.
    map
        The map, or None.
    file
        The file.
    """

    array: np.ndarray
    map: mmap.mmap | None
    file: OpenFile
    # Lengths of what is read as one, and bytes that reading takes beside a buffer.
    grain: ClassVar[tuple[int, ...]] = ()
    beside: ClassVar[int] = 0

    def _offset(self, part: np.ndarray) -> int:
        assert self.map is not None
        return int(part.ctypes.data - np.frombuffer(self.map, np.uint8).ctypes.data)

    def load(self, part: np.ndarray, buffer: np.ndarray) -> None:
        """Read a part of the array into a buffer of the same shape, laid out by ``packed_like``."""
        if part.size:
            try:
                read_box(self.file.handle, self._offset(part), part, buffer)
            except EOFError:
                self.file.check_unchanged()
                raise InvalidProblemError(f"{self.file.name}: ends too early") from None

    def whole(self) -> np.ndarray:
        """All of the array, in memory."""
        buffer = packed_like(self.array, lambda size: np.empty(size, np.uint8))
        self.load(self.array, buffer)
        return buffer

    def save(self, part: np.ndarray, buffer: np.ndarray, shared: bool = False) -> None:
        """Write a buffer laid out by ``packed_like`` to a part of the array.

        Where it is ``shared``, others write to what lies beside the part.
        """
        if os.fstat(self.file.handle).st_size != self.file.size:
            # Writing on would make it as long as it was, with zeros where it was cut.
            raise InvalidProblemError(f"{self.file.name}: was cut or extended during the run")
        if part.size:
            write_box(self.file.handle, self._offset(part), part, buffer, shared)

    def settle(self) -> None:
        """See to it that what was written is on the disk."""
        os.fsync(self.file.handle)

    def is_at(self, path: Path) -> bool:
        """Whether a name still is that of the file."""
        return is_at(path, self.file.handle)


AnyStored = Stored | StoredZarr


def is_raw(path: Path) -> bool:
    """Whether a file has no header that tells dtype and shape."""
    return path.suffix.lower() not in (".npy", ".npz")


def open_input(
    path: Path, name: str, dtype: str | None, shape: tuple[int, ...] | None, stack: ExitStack
) -> AnyStored:
    """Open an operand for reading.

    Parameters
    ----------
    path
        The file; the member of an ``.npz`` or of a group in a zarr store is the one called like the
        operand, or the only one.
    name
        The operand, for messages.
    dtype, shape
        Of a raw file. A dtype also tells what the 16-bit words of another file are.
    stack
        Closes the file.
    """
    if zarrs.is_zarr(path):
        return zarrs.open_input(path, name, lambda found: _element(found, name, dtype))
    archived = path.suffix.lower() == ".npz"
    source = _open(path, name, stack)
    handle = _extracted(source, path, name, stack) if archived else source
    file = OpenFile.of(handle, source, f"{name}: {path}")
    if is_raw(path):
        found, shape, order, offset = _raw_layout(file, dtype, shape)
    else:
        found, shape, order, offset = _npy_layout(file)
    kind = _element(found, name, dtype)
    size = math.prod(shape) * kind.itemsize
    if size > LARGEST:
        raise InvalidProblemError(f"{file.name}: {_short(shape)} is larger than any file")
    if offset + size > file.size:
        raise InvalidProblemError(
            f"{file.name}: the file is shorter than its header says: {file.size} bytes, "
            f"expected {offset + size}"
        )
    return _stored(file, kind, shape, order, offset, mmap.ACCESS_READ)


def _stored(
    file: OpenFile, kind: Any, shape: tuple[int, ...], order: Any, offset: int, access: int
) -> Stored:
    size = math.prod(shape) * kind.itemsize
    try:
        if not size:
            return Stored(np.empty(shape, kind, order), None, file)
        held = mmap.mmap(file.handle, offset + size, access=access)
        return Stored(np.ndarray(shape, kind, held, offset, order=order), held, file)
    except ValueError as error:  # cut since it was measured, or more dimensions than NumPy has
        raise InvalidProblemError(f"{file.name}: {error}") from None


def _open(path: Path, name: str, stack: ExitStack) -> int:
    try:
        # Without O_NONBLOCK the opening of a pipe would wait for its writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise InvalidProblemError(f"{name}: {path}: no such file") from None
    stack.callback(os.close, handle)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise InvalidProblemError(f"{name}: {path}: is not a file")
    return handle


def _npy_layout(file: OpenFile) -> tuple[Any, tuple[int, ...], str, int]:
    """The dtype, shape, order and offset that the header of a ``.npy`` file tells."""
    with open(os.dup(file.handle), "rb") as header:
        header.seek(0)
        try:
            version = np.lib.format.read_magic(header)
            if version == (1, 0):
                shape, fortran, dtype = np.lib.format.read_array_header_1_0(header)
            elif version == (2, 0):
                shape, fortran, dtype = np.lib.format.read_array_header_2_0(header)
            else:
                raise ValueError(f"version {version[0]}.{version[1]} of the format")
        except OSError:
            raise
        except Exception as error:  # the header is a Python literal, and fails in as many ways
            reason = " ".join(str(error).split())
            raise InvalidProblemError(f"{file.name}: not a .npy file: {reason[:200]}") from None
        offset = header.tell()
    if not all(type(n) is int and n >= 0 for n in shape):
        raise InvalidProblemError(f"{file.name}: expected lengths from 0 on, got {_short(shape)}")
    return dtype, shape, "F" if fortran else "C", offset


def _raw_layout(
    file: OpenFile, dtype: str | None, shape: tuple[int, ...] | None
) -> tuple[Any, tuple[int, ...], str, int]:
    if dtype is None:
        raise InvalidProblemError(f"{file.name}: a raw file needs --dtype")
    kind = DTYPES[dtype]
    if file.size % kind.itemsize:
        raise InvalidProblemError(
            f"{file.name}: {file.size} bytes are no whole number of {dtype} elements"
        )
    if shape is None:
        shape = (file.size // kind.itemsize,)
    if math.prod(shape) * kind.itemsize != file.size:
        raise InvalidProblemError(
            f"{file.name}: expected {_short(shape)} of {dtype}, got a file of {file.size} bytes"
        )
    return kind, shape, "C", 0


def _short(shape: tuple[Any, ...]) -> str:
    text = str(shape)
    return text if len(text) <= 100 else f"{text[:100]}…"


def _element(found: Any, name: str, dtype: str | None) -> Any:
    """The dtype as an element type: NumPy writes bfloat16 as two plain bytes."""
    plain_bytes = found.kind == "V" and found.itemsize == 2 and not found.names
    if (plain_bytes and found.subdtype is None) or (dtype == "bf16" and found == np.uint16):
        return BFLOAT16
    if found not in DTYPES.values():
        what = "named fields" if found.names else str(found.newbyteorder("="))
        swapped = "" if found.isnative or found.names else " in another byte order"
        raise UnsupportedError(
            f"{name}: expected float32, float64, float16 or bfloat16, got {what[:100]}{swapped}"
        )
    return found


def _extracted(source: int, path: Path, name: str, stack: ExitStack) -> int:
    """A member of an archive as a file of its own, which has no name and goes when it is closed."""
    try:
        handle, made = tempfile.mkstemp(prefix="pullback-")
        stack.callback(os.close, handle)
        os.unlink(made)
        with open(os.dup(source), "rb") as archived, zipfile.ZipFile(archived) as archive:
            members = [m for m in archive.namelist() if m.endswith(".npy")]
            names = (name, "segment_ids") if name == "ids" else (name,)
            wanted = next((f"{n}.npy" for n in names if f"{n}.npy" in members), None)
            if wanted is None and len(members) == 1:
                wanted = members[0]
            if wanted is None:
                held = ", ".join(m.removesuffix(".npy") for m in members) or "nothing"
                raise InvalidProblemError(f"{name}: {path}: holds {held}, not {name}")
            with archive.open(wanted) as member, open(os.dup(handle), "wb") as target:
                shutil.copyfileobj(member, target, 1 << 20)
    except OSError as error:
        # Which disk is full: that of the folder for temporary files, where it is unpacked.
        where = error.filename or tempfile.gettempdir()
        raise OSError(error.errno, error.strerror, where) from None
    except InvalidProblemError:
        raise
    except Exception as error:  # a damaged archive fails as zlib, lzma, struct and others do
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidProblemError(f"{name}: {path}: not a .npz file: {reason[:200]}") from None
    return handle


@dataclass(frozen=True)
class Form:
    """What an output file is made of: its header, which a raw file has none of, and its array."""

    shape: tuple[int, ...]
    element: str
    raw: bool

    @property
    def header(self) -> bytes:
        """The bytes before the array."""
        if self.raw:
            return b""
        fields = {
            "descr": np.lib.format.dtype_to_descr(DTYPES[self.element]),
            "fortran_order": False,
            "shape": self.shape,
        }
        made = io.BytesIO()
        np.lib.format.write_array_header_1_0(made, fields)
        return made.getvalue()

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.header) + math.prod(self.shape) * DTYPES[self.element].itemsize

    def create(self, path: Path) -> None:
        """Make the file; its name must be free."""
        create(path, self)

    def open(self, path: Path, stack: ExitStack) -> Stored:
        """Open what ``create`` made for writing, or say what has become of it."""
        return open_output(path, self, stack)


AnyForm = Form | ZarrForm


def create(path: Path, form: Form) -> None:
    """Make a file of the right size; all of its space is taken now, not when it is written.

    The name must be free: whatever has it, a link too, belongs to somebody else.
    """
    if form.size > LARGEST:
        raise InvalidProblemError(f"{path}: {_short(form.shape)} is larger than any file")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o666), "r+b") as file:
        file.write(form.header)
        file.flush()
        if form.size > len(form.header):
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, form.size)
            else:
                file.truncate(form.size)


def open_output(path: Path, form: Form, stack: ExitStack) -> Stored:
    """Open a file that ``create`` made for writing, or say what has become of it."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise InvalidProblemError(f"{path}: is missing") from None
    stack.callback(os.close, handle)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise InvalidProblemError(f"{path}: is not a file")
    file = OpenFile.of(handle, handle, str(path))
    header = form.header
    if file.size != form.size:
        raise InvalidProblemError(
            f"{path}: has {file.size} bytes, expected {form.size} as the run made it"
        )
    if read_exactly(handle, 0, len(header)) != header:
        raise InvalidProblemError(f"{path}: begins with another header than the run wrote")
    kind = DTYPES[form.element]
    return _stored(file, kind, form.shape, "C", len(header), mmap.ACCESS_WRITE)


def pack(parts: dict[str, Path], path: Path) -> None:
    """Put whole ``.npy`` files into one archive, and see to it that it is on the disk."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o666), "w+b") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, part in parts.items():
                archive.write(part, f"{name}.npy")
        file.flush()
        os.fsync(file.fileno())


def settle(path: Path) -> None:
    """See to it that what was written is on the disk; of a folder, the names in it."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
