"""Arrays on mapped files: ``.npy``, members of ``.npz``, and raw files of a known dtype."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidProblemError, UnsupportedError
from ..interop import DTYPES
from ..vocabulary import ElementKind

BFLOAT16 = ElementKind.BF16.numpy_dtype


@dataclass(frozen=True)
class Mapped:
    """An array, and the map it lies in (None where it is too small to map)."""

    array: np.ndarray
    map: mmap.mmap | None


def is_raw(path: Path) -> bool:
    """Whether a file has no header that tells dtype and shape."""
    return path.suffix.lower() not in (".npy", ".npz")


def map_input(
    path: Path, name: str, dtype: str | None, shape: tuple[int, ...] | None, stack: ExitStack
) -> Mapped:
    """Map an operand for reading.

    Parameters
    ----------
    path
        The file; the member of an ``.npz`` is the one called like the operand, or the only one.
    name
        The operand, for messages.
    dtype, shape
        Of a raw file. A dtype also tells what the 16-bit words of another file are.
    stack
        Closes and removes what had to be made.
    """
    if not path.is_file():
        what = "is not a file" if path.exists() else "no such file"
        raise InvalidProblemError(f"{name}: {path}: {what}")
    if path.suffix.lower() == ".npz":
        path = _extracted(path, name, stack)
    mapped = _map_raw(path, name, dtype, shape) if is_raw(path) else _map_npy(path, name)
    return Mapped(_with_dtype(mapped.array, name, dtype), mapped.map)


def _map_npy(path: Path, name: str) -> Mapped:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        if "Cannot mmap an empty" in str(error) or "empty" in str(error).lower():
            return Mapped(np.load(path, allow_pickle=False), None)
        if "greater than file size" in str(error):
            raise InvalidProblemError(
                f"{name}: {path}: the file is shorter than its header says"
            ) from None
        raise InvalidProblemError(f"{name}: {path}: not a .npy file: {error}") from None
    held = getattr(array, "_mmap", None)
    return Mapped(np.asarray(array).view(np.ndarray), held)


def _map_raw(path: Path, name: str, dtype: str | None, shape: tuple[int, ...] | None) -> Mapped:
    if dtype is None:
        raise InvalidProblemError(f"{name}: {path}: a raw file needs --dtype")
    kind = DTYPES[dtype]
    size = path.stat().st_size
    if size % kind.itemsize:
        raise InvalidProblemError(
            f"{name}: {path}: {size} bytes are no whole number of {dtype} elements"
        )
    if shape is None:
        shape = (size // kind.itemsize,)
    if int(np.prod(shape, dtype=np.int64)) * kind.itemsize != size:
        raise InvalidProblemError(
            f"{name}: {path}: expected {shape} of {dtype}, got a file of {size} bytes"
        )
    if not size:
        return Mapped(np.empty(shape, kind), None)
    with open(path, "rb") as file:
        held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return Mapped(np.ndarray(shape, kind, held), held)


def _with_dtype(array: np.ndarray, name: str, dtype: str | None) -> np.ndarray:
    """The array as an element type: NumPy writes bfloat16 as two plain bytes."""
    plain_bytes = array.dtype.kind == "V" and array.dtype.itemsize == 2
    if plain_bytes or (dtype == "bf16" and array.dtype == np.uint16):
        array = array.view(BFLOAT16)
    if array.dtype not in DTYPES.values():
        swapped = "" if array.dtype.isnative else " in another byte order"
        raise UnsupportedError(
            f"{name}: expected float32, float64, float16 or bfloat16, got "
            f"{array.dtype.newbyteorder('=')}{swapped}"
        )
    return array


def _extracted(path: Path, name: str, stack: ExitStack) -> Path:
    """A member of an archive as a file of its own, for as long as the stack is open."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [m for m in archive.namelist() if m.endswith(".npy")]
            names = (name, "segment_ids") if name == "ids" else (name,)
            wanted = next((f"{n}.npy" for n in names if f"{n}.npy" in members), None)
            if wanted is None and len(members) == 1:
                wanted = members[0]
            if wanted is None:
                held = ", ".join(m.removesuffix(".npy") for m in members) or "nothing"
                raise InvalidProblemError(f"{name}: {path}: holds {held}, not {name}")
            handle, made = tempfile.mkstemp(suffix=".npy", prefix="pullback-")
            stack.callback(Path(made).unlink, missing_ok=True)
            with os.fdopen(handle, "wb") as target, archive.open(wanted) as source:
                shutil.copyfileobj(source, target, 1 << 20)
    except OSError as error:
        # Which disk is full: that of the folder for temporary files, where it is unpacked.
        where = error.filename or tempfile.gettempdir()
        raise OSError(error.errno, error.strerror, where) from None
    except zipfile.BadZipFile as error:
        raise InvalidProblemError(f"{name}: {path}: not a .npz file: {error}") from None
    return Path(made)


def create(path: Path, shape: tuple[int, ...], element: str, raw: bool) -> None:
    """Make a file of the right size; all of its space is taken now, not when it is written."""
    dtype = DTYPES[element]
    fields = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }
    with open(path, "wb") as file:
        if not raw:
            np.lib.format.write_array_header_1_0(file, fields)
            file.flush()
        size = file.tell() + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size > file.tell():
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)


def map_output(path: Path, shape: tuple[int, ...], element: str, raw: bool) -> Mapped:
    """Map a file that ``create`` made for writing."""
    dtype = DTYPES[element]
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    offset = path.stat().st_size - size
    if not size or offset < 0 or (raw and offset):
        if size:
            raise InvalidProblemError(f"{path}: the partial file has another size")
        return Mapped(np.empty(shape, dtype), None)
    with open(path, "r+b") as file:
        held = mmap.mmap(file.fileno(), 0)
    return Mapped(np.ndarray(shape, dtype, held, offset), held)


def pack(parts: dict[str, Path], path: Path) -> None:
    """Put whole ``.npy`` files into one archive."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, part in parts.items():
            archive.write(part, f"{name}.npy")


def settle(path: Path) -> None:
    """See to it that what was written is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def describe(path: Path) -> list[Any]:
    """What tells whether a file is still the one that was read before."""
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]
