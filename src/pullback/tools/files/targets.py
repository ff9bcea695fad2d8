"""The names that a run writes to: what may have them before, and who is writing to them now."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import socket
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ...errors import InvalidProblemError
from .zarrs import holds_array, is_zarr

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def partial_path(target: Path) -> Path:
    """Where an output is written before it has its name."""
    return target.with_name(f".{target.name}.partial")


def note_path(target: Path) -> Path:
    """Where a run keeps what it has finished."""
    return target.with_name(f".{target.name}.resume")


def _lock_path(target: Path) -> Path:
    return target.with_name(f".{target.name}.lock")


def check_target(target: Path, force: bool) -> None:
    """Refuse a name that a file cannot or should not get."""
    folder = target.parent
    if not folder.is_dir():
        raise InvalidProblemError(f"{target}: the folder {folder} does not exist")
    try:
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise InvalidProblemError(
            f"{target}: is a symbolic link to {os.readlink(target)}; name the file itself"
        )
    if stat.S_ISDIR(mode) and is_zarr(target) and not holds_array(target):
        raise InvalidProblemError(f"{target}: is a folder that holds no zarr array")
    if not stat.S_ISREG(mode) and not (stat.S_ISDIR(mode) and is_zarr(target)):
        raise InvalidProblemError(f"{target}: is {_KINDS.get(stat.S_IFMT(mode), 'no file')}")
    if not force:
        raise InvalidProblemError(f"{target}: exists already; --force replaces it")
    if not os.access(target, os.W_OK):
        raise InvalidProblemError(f"{target}: is not writable")


def check_apart(targets: Iterable[Path], inputs: Mapping[str, Path]) -> None:
    """Refuse to write to an input, or to a name that the unfinished output of another has."""
    targets = list(targets)
    for target in targets:
        for name, path in inputs.items():
            if _same(target, path):
                raise InvalidProblemError(
                    f"{target}: is the input {name} ({path}); write to another file"
                )
        own = [f(target) for f in (partial_path, note_path, _lock_path)]
        for path in (*inputs.values(), *targets):
            if any(_same(path, used) or path.absolute() == used.absolute() for used in own):
                raise InvalidProblemError(f"{path}: is where the unfinished {target} is kept")


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samestat(os.stat(one), os.stat(other))
    except OSError:
        return False


@contextmanager
def held(targets: Iterable[Path]) -> Iterator[None]:
    """Keep other runs from the same targets, in this process and in others.

    The lock is the system's and goes with the process, so that a run that was killed blocks nobody;
    the file that carries it only tells who has it.
    """
    with ExitStack() as stack:
        for target in sorted(set(targets)):
            stack.enter_context(_held(target))
        yield


@contextmanager
def _held(target: Path) -> Iterator[None]:
    path = _lock_path(target)
    handle = _locked(target, path)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(handle)


def _locked(target: Path, path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            handle = os.open(path, flags, 0o666)
        except OSError as error:
            # The user knows the name of the output, not that of the lock.
            raise OSError(error.errno, error.strerror, str(target)) from None
        try:
            _lock(handle)
            # The run before may have removed the file between the two calls.
            if is_at(path, handle):
                return handle
        except BlockingIOError:
            owner = _owner(handle)
            os.close(handle)
            raise InvalidProblemError(f"{target}: {owner} is writing it now") from None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _lock(handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Some network file systems have no locks. A run that meets another there still publishes
        # no file but its own.
        if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
            raise


def is_at(path: Path, handle: int) -> bool:
    """Whether a name still is that of an open file."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _owner(handle: int) -> str:
    words = os.pread(handle, 300, 0).decode(errors="replace").split()
    if len(words) != 2 or not words[0].isdigit():
        return "another run"
    return f"another run (process {words[0]} on {words[1]})"


def remove(path: Path) -> None:
    """Remove what a run has made, a file or the folder of an array, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def give_name(part: Path, target: Path) -> None:
    """Give a finished output its name; what had the name before goes."""
    if not target.is_dir():
        os.replace(part, target)
        return
    # A folder that holds something is not replaced in one step.
    old = target.with_name(f".{target.name}.replaced")
    remove(old)
    os.rename(target, old)
    try:
        os.rename(part, target)
    except OSError:
        os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let an interrupt from the keyboard wait until a few steps that belong together are done."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    waiting: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *what: waiting.append(what))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting and callable(before):
            before(*waiting[0])
