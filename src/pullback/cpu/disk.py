"""Kernels on disk: one file each, in a folder that nobody else can write to.

What is loaded becomes machine code of this process. So a file is read only where it and every
folder above it belong to this user or to root and are closed to the writing of others; and before
anything in it is loaded, its header must name the very kernel that is asked for, and a digest
must confirm the rest. A file that fails is compiled over. A disk that is full or read-only costs
the time of compiling, nothing else.

A file holds ``MAGIC``, the length of the identity, the SHA-256 of identity and payload, the
identity, the payload. The identity is the text of everything that the machine code depends on, and
the name of the file its digest.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
import struct
import tempfile
import time
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

MAGIC = b"pullback kernel\n"
SUFFIX = ".kernel"
_HEADER = struct.Struct(f"<{len(MAGIC)}sI32s")
_OPEN_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a pipe of that name must not wait for a writer
    | getattr(os, "O_BINARY", 0)
)
_HOUR, _DAY = 3600, 86400
# Folders of other sources, such as an earlier version's, go when no process has used them so long.
UNUSED_DAYS = 30
_FOLDER_NAME = re.compile(r"[0-9a-f]{16}")

_warned: set[str] = set()


class _RefusedError(Exception):
    """Something on the way to a kernel that another user could have put there."""


def cache_directory() -> Path | None:
    """Where kernels are kept: ``PULLBACK_CACHE_DIR``, else a folder of the user's cache.

    None where there is neither that nor a home: a folder named after a variable that is not set
    would appear wherever the process happens to stand.
    """
    chosen = os.environ.get("PULLBACK_CACHE_DIR")
    if chosen:
        chosen = os.path.expanduser(chosen)
        return None if chosen.startswith("~") else Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "pullback"
    home = _home()
    return home / ".cache" / "pullback" if home else None


def _home() -> Path | None:
    """The home that the environment names; None without one, or where it is the root."""
    named = os.environ.get("HOME", "") if os.name == "posix" else os.path.expanduser("~")
    if not os.path.isabs(named):
        return None
    home = Path(os.path.realpath(named))
    return None if home == home.parent else home


def folder_for(source: str) -> Path | None:
    """The folder for kernels of these sources, made if need be; None if there can be none.

    Warns once about a place that others could write to.
    """
    try:
        return _made(source)
    except _RefusedError as refusal:
        _warn(
            f"kernels are compiled in memory and not kept: {refusal}; PULLBACK_CACHE_DIR can name "
            "a folder that only you can write to"
        )
    except OSError:
        pass
    return None


def objection(source: str) -> str | None:
    """Why the folder for kernels of these sources would not be used; nothing is made."""
    try:
        folder = _resolved(source)
        if folder is not None:
            _check(folder)
    except _RefusedError as refused:
        return str(refused)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None


def _resolved(source: str) -> Path | None:
    base = cache_directory()
    return None if base is None else Path(os.path.realpath(base)) / source


def _made(source: str) -> Path | None:
    folder = _resolved(source)
    if folder is None:
        return None
    info = _check(folder)
    if info is None:
        for part in reversed((folder, *folder.parents)):
            if not os.path.lexists(part):
                with contextlib.suppress(FileExistsError):  # another process made it meanwhile
                    os.mkdir(part, 0o700)
        info = _check(folder)
        _remove_unused(folder)
    if info is not None and time.time() - info.st_mtime > _DAY:
        with contextlib.suppress(OSError):
            os.utime(folder)
    return folder


def _check(folder: Path) -> os.stat_result | None:
    """Refuse a folder that others can change; None if it does not exist.

    Symbolic links are resolved before, so that only what the path goes through counts. Everything
    up to the home is looked at, or up to the root from outside of it.
    """
    home = _home()
    found = None
    for part in (folder, *folder.parents):
        try:
            info = os.lstat(part)
        except FileNotFoundError:
            continue
        if part == folder:
            found = info
        if not stat.S_ISDIR(info.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "is not a folder", str(part))
        reason = _distrust(info, sticky=part != folder)
        if reason:
            below = f" (for {folder.parent})" if part != folder else ""
            raise _RefusedError(f"{part} {reason}{below}")
        if part == home:
            break
    return found


def _distrust(info: os.stat_result, sticky: bool = False) -> str | None:
    """Why a file or folder could have come from another user; None if it could not.

    In a folder that is ``sticky`` others may add, but neither rename nor remove what is not theirs.
    """
    if not hasattr(os, "getuid"):
        return None
    if info.st_uid not in (os.getuid(), 0):
        return f"belongs to user {info.st_uid}, not to user {os.getuid()} or root"
    if sticky and info.st_mode & stat.S_ISVTX:
        return None
    mode = stat.S_IMODE(info.st_mode)
    if mode & stat.S_IWOTH:
        return f"can be written to by every user (mode {mode:04o})"
    if mode & stat.S_IWGRP and info.st_gid != _private_group():
        return f"can be written to by group {info.st_gid} (mode {mode:04o})"
    return None


@cache
def _private_group() -> int | None:
    """The group that has the user's name and no other member, where systems give one to each.

    There a umask of 002 is usual, which leaves everything writable for that group.
    """
    try:
        import grp
        import pwd

        user = pwd.getpwuid(os.getuid())
        group = grp.getgrgid(user.pw_gid)
    except (ImportError, KeyError):
        return None
    alone = group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    return group.gr_gid if alone else None


def _warn(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def read(folder: Path, identity: str) -> bytes | None:
    """The payload kept under an identity; None if there is none that can be trusted."""
    try:
        with open(_path(folder, identity), "rb", opener=_open) as file:
            reason = _distrust(os.fstat(file.fileno()))
            if reason is None:
                return _payload(file.read(), identity)
    except OSError:
        return None
    _warn(f"a kernel is compiled anew: {file.name} {reason}")
    return None


def write(folder: Path, identity: str, payload: bytes) -> None:
    """Keep a payload under an identity; where that cannot be, nothing is left behind."""
    named = identity.encode()
    head = _HEADER.pack(MAGIC, len(named), hashlib.sha256(named + payload).digest())
    with contextlib.suppress(OSError):
        _remove_leftovers(folder)
        # A name of its own, so that two processes never write to one file; mkstemp makes it 0600.
        handle, partial = tempfile.mkstemp(dir=folder, prefix=".", suffix=SUFFIX + ".partial")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(head + named + payload)
            os.replace(partial, _path(folder, identity))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise


def kernels(folder: Path) -> Iterator[os.DirEntry]:
    """The kernels in a folder."""
    with os.scandir(folder) as entries:
        yield from (e for e in entries if e.name.endswith(SUFFIX))


def folders(base: Path) -> Iterator[Path]:
    """The folders of all sources in a cache directory."""
    with os.scandir(base) as entries:
        for entry in entries:
            if _FOLDER_NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)


def _path(folder: Path, identity: str) -> str:
    return os.path.join(folder, hashlib.sha256(identity.encode()).hexdigest()[:32] + SUFFIX)


def _open(path: str, _flags: int) -> int:
    handle = os.open(path, _OPEN_FLAGS)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path} is not a regular file")
    return handle


def _payload(data: bytes, identity: str) -> bytes | None:
    """What stands behind a header that is right in every part."""
    named = identity.encode()
    start = _HEADER.size + len(named)
    if len(data) < start:
        return None
    magic, length, digest = _HEADER.unpack_from(data)
    if magic != MAGIC or length != len(named) or data[_HEADER.size : start] != named:
        return None
    if hashlib.sha256(memoryview(data)[_HEADER.size :]).digest() != digest:
        return None
    return data[start:]


def _remove_leftovers(folder: Path) -> None:
    """Remove what processes that were killed while writing left behind."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX + ".partial"):
                with contextlib.suppress(OSError):
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime > _HOUR:
                        os.unlink(entry.path)


def _remove_unused(new: Path) -> None:
    """Remove kernels of other sources that no process has used for long."""
    for folder in list(folders(new.parent)):
        with contextlib.suppress(OSError):
            info = os.lstat(folder)
            if _distrust(info) is None and time.time() - info.st_mtime > UNUSED_DAYS * _DAY:
                for entry in list(kernels(folder)):
                    os.unlink(entry.path)
                folder.rmdir()
