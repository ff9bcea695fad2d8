"""Windows on mapped files: a kernel may walk a file of any size, only so many windows are open.

All pages of the maps are closed to begin with. Touching one raises a fault, whose handler opens the
window around it and closes the one that has been open longest, handing its pages back to the
system. So the memory that the maps occupy is bounded whatever a kernel does and however the threads
are scheduled. A thread that still needs a closed window faults again and gets it back; the contents
are those of the file, written or not.

A page that the file no longer has, because another process cut it, raises a fault of another kind.
The page is then replaced by an empty one, and the loss is noted for whoever runs the kernel.

Works on Linux, where the handler can tell the address of a fault.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import ctypes
import mmap
import platform
import signal
import sys
import threading
from collections.abc import Iterable
from functools import cache
from types import TracebackType
from typing import Any

import numpy as np

SMALLEST_WINDOW = 1 << 18
MOST_WINDOWS = 4096
# Threads times operands times the places a kernel reads at once: fewer windows would thrash.
FEWEST_WINDOWS = 64

PROT_NONE, PROT_READ, PROT_WRITE = 0, 1, 2
MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS = 2, 16, 32
SA_SIGINFO, SA_RESTART = 4, 0x10000000
FAULT_ADDRESS = 16  # of siginfo_t, in bytes

# Words of the state that the handler works on.
LOCK, WINDOW, CAPACITY, MAPS, RING, HEAD, USED, OPENED, LOST, TABLE = range(10)
# Words of a map in the table: where it is, how it may be used, and a byte for each window.
BASE, LENGTH, PROTECTION, OPEN, MAP_WORDS = range(5)
MOST_MAPS = 8

_state = np.zeros(TABLE + MOST_MAPS * MAP_WORDS, np.int64)
# There is one state, so that one pager is entered at a time.
_entered = threading.Lock()


def supported() -> bool:
    """Whether faults can be handled here."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")


class _SigAction(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint8 * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


@cache
def _libc() -> Any:
    found = ctypes.CDLL(None, use_errno=True)
    found.mprotect.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
    found.madvise.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
    found.mprotect.restype = found.madvise.restype = ctypes.c_int
    found.mmap.argtypes = (
        *[ctypes.c_size_t] * 2,
        *[ctypes.c_int] * 3,
        ctypes.c_ssize_t,
    )
    found.mmap.restype = ctypes.c_size_t
    found.signal.argtypes = (ctypes.c_int, ctypes.c_size_t)
    found.signal.restype = ctypes.c_size_t
    return found


@cache
def fault_handler() -> Any:
    """The handler of a fault, as native code: it must not need the interpreter."""
    from llvmlite import ir
    from numba import cfunc, types
    from numba.extending import intrinsic

    word, byte = ir.IntType(64), ir.IntType(8)

    def pointer(builder: Any, address: Any, kind: Any) -> Any:
        return builder.inttoptr(address, kind.as_pointer())

    @intrinsic
    def load(context: Any, address: Any) -> Any:
        def codegen(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.load(pointer(builder, args[0], word))

        return types.int64(types.int64), codegen

    @intrinsic
    def store(context: Any, address: Any, value: Any) -> Any:
        def codegen(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            builder.store(args[1], pointer(builder, args[0], word))
            return ctx.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    @intrinsic
    def load_byte(context: Any, address: Any) -> Any:
        def codegen(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.zext(builder.load(pointer(builder, args[0], byte)), word)

        return types.int64(types.int64), codegen

    @intrinsic
    def store_byte(context: Any, address: Any, value: Any) -> Any:
        def codegen(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            builder.store(builder.trunc(args[1], byte), pointer(builder, args[0], byte))
            return ctx.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    @intrinsic
    def exchange(context: Any, address: Any, value: Any) -> Any:
        def codegen(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.atomic_rmw("xchg", pointer(builder, args[0], word), args[1], "seq_cst")

        return types.int64(types.int64, types.int64), codegen

    libc = _libc()
    mprotect, madvise, set_signal, new_map = libc.mprotect, libc.madvise, libc.signal, libc.mmap
    state, dont_need, page = _state.ctypes.data, mmap.MADV_DONTNEED, mmap.PAGESIZE
    beyond_end, default = int(signal.SIGBUS), int(signal.SIG_DFL)
    read_write, anonymous = PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS

    @cfunc("void(int32, int64, int64)")
    def handle(number: int, info: int, context: int) -> None:
        address = load(info + FAULT_ADDRESS)
        window = load(state + 8 * WINDOW)
        for k in range(load(state + 8 * MAPS)):
            entry = state + 8 * (TABLE + MAP_WORDS * k)
            base = load(entry + 8 * BASE)
            length = load(entry + 8 * LENGTH)
            if address < base or address >= base + length:
                continue
            if number == beyond_end:
                store(state + 8 * LOST, 1)
                new_map(address // page * page, page, read_write, anonymous, -1, 0)
                return
            index = (address - base) // window
            while exchange(state + 8 * LOCK, 1) != 0:
                pass
            flag = load(entry + 8 * OPEN) + index
            if load_byte(flag) == 0:
                ring = load(state + 8 * RING)
                head = load(state + 8 * HEAD)
                used = load(state + 8 * USED)
                capacity = load(state + 8 * CAPACITY)
                slot = ring + 16 * ((head + used) % capacity)
                if used == capacity:
                    slot = ring + 16 * head
                    old = state + 8 * (TABLE + MAP_WORDS * load(slot))
                    start = load(old + 8 * BASE) + load(slot + 8) * window
                    end = load(old + 8 * BASE) + load(old + 8 * LENGTH)
                    size = min(window, end - start)
                    mprotect(start, size, PROT_NONE)
                    madvise(start, size, dont_need)
                    store_byte(load(old + 8 * OPEN) + load(slot + 8), 0)
                    store(state + 8 * HEAD, (head + 1) % capacity)
                else:
                    store(state + 8 * USED, used + 1)
                store(slot, k)
                store(slot + 8, index)
                start = base + index * window
                size = min(window, base + length - start)
                mprotect(start, size, load(entry + 8 * PROTECTION))
                store_byte(flag, 1)
                store(state + 8 * OPENED, load(state + 8 * OPENED) + 1)
            exchange(state + 8 * LOCK, 0)
            return
        set_signal(number, default)  # not ours: let it strike again, for good

    return handle


class Pager:
    """Bounds the memory of maps while it is entered.

    Parameters
    ----------
    maps
        Pairs of a map and whether it is written.
    budget
        Bytes that the maps may occupy together.

    Attributes
    ----------
    lost
        After it was left: whether a page was touched that its file no longer has.
    """

    def __init__(self, maps: Iterable[tuple[mmap.mmap, bool]], budget: int):
        self._maps = list(maps)[:MOST_MAPS]
        page = mmap.PAGESIZE
        window = max(SMALLEST_WINDOW, -(-budget // MOST_WINDOWS))
        if budget // window < FEWEST_WINDOWS:
            window = budget // FEWEST_WINDOWS
        self.window = max(page, window // page * page)
        self.capacity = max(FEWEST_WINDOWS, budget // self.window)
        self._ring = np.zeros(2 * self.capacity, np.int64)
        self._open = [np.zeros(-(-len(m) // self.window), np.uint8) for m, _ in self._maps]
        # A map whose buffer is exported cannot be closed or moved under the handler.
        self._views = [np.frombuffer(m, np.uint8) for m, _ in self._maps]
        self._before = {fault: _SigAction() for fault in (signal.SIGSEGV, signal.SIGBUS)}
        self.lost = False

    @property
    def touched(self) -> int:
        """Bytes of the windows opened so far, those opened again included."""
        return int(_state[OPENED]) * self.window

    def __enter__(self) -> Pager:
        handler = fault_handler()
        _entered.acquire()
        _state[:] = 0
        _state[[WINDOW, CAPACITY, MAPS]] = self.window, self.capacity, len(self._maps)
        _state[RING] = self._ring.ctypes.data
        for k, ((_, written), view) in enumerate(zip(self._maps, self._views, strict=True)):
            at = TABLE + MAP_WORDS * k
            _state[at + BASE] = view.ctypes.data
            _state[at + LENGTH] = -(-view.size // mmap.PAGESIZE) * mmap.PAGESIZE
            _state[at + PROTECTION] = PROT_READ | (PROT_WRITE if written else 0)
            _state[at + OPEN] = self._open[k].ctypes.data
        action = _SigAction(handler=handler.address, flags=SA_SIGINFO | SA_RESTART)
        for fault, before in self._before.items():
            if _libc().sigaction(int(fault), ctypes.byref(action), ctypes.byref(before)):
                raise OSError(ctypes.get_errno(), "sigaction")
        self._protect(False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._protect(True)
        for fault, before in self._before.items():
            _libc().sigaction(int(fault), ctypes.byref(before), None)
        self.lost = bool(_state[LOST])
        _entered.release()

    def _protect(self, usable: bool) -> None:
        for k, _ in enumerate(self._maps):
            base, length, usual = (
                int(v) for v in _state[TABLE + MAP_WORDS * k : TABLE + MAP_WORDS * k + OPEN]
            )
            if _libc().mprotect(base, length, usual if usable else PROT_NONE):
                raise OSError(ctypes.get_errno(), "mprotect")
            _libc().madvise(base, length, mmap.MADV_DONTNEED)
