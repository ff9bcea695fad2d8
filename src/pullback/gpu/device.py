"""Whether Triton can run here, where, and what it runs on. Imports Triton and torch when asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidProblemError, UnsupportedError
from .tiles import ALONE, MOST_CORES, Room, room_of

_INSTALL = "install it with: pip install 'pullback[gpu]'"


@dataclass(frozen=True)
class Device:
    """Where a plan runs.

    Attributes
    ----------
    name
        As torch spells it, e.g. ``"cuda:0"``; ``"cpu"`` for the interpreter.
    arch
        Compute capability (``"sm_90"``), AMD's name of it (``"gfx942"``), or ``"interpreter"``.
    backend
        ``"cuda"``, ``"hip"`` or ``"interpreter"``.
    lanes
        Threads of a warp.
    is_small
        Whether it may have too few cores for a cluster, as a slice of a GPU.
    """

    name: str
    arch: str
    backend: str
    lanes: int = 32
    is_small: bool = False

    @property
    def room(self) -> Room:
        """What it has for rows that are held, as far as Triton can use it."""
        room = room_of(self.arch)
        if room.cores > 1 and (self.is_small or not folds_in_clusters()):
            return ALONE
        return room


def folds_in_clusters() -> bool:
    """Whether this release of Triton compiles a fold over the blocks of a cluster: from 3.9 on."""
    import triton

    return tuple(int(n) for n in triton.__version__.split(".")[:2]) >= (3, 9)


def import_torch() -> Any:
    """Torch, or an error that says how to get it."""
    try:
        import torch
    except ImportError as error:
        raise UnsupportedError(f"backend: 'triton' runs on torch tensors; {_INSTALL}") from error
    return torch


def interprets() -> bool:
    """Whether kernels are interpreted on the CPU, as Triton was told when it was imported."""
    try:
        import triton
    except ImportError as error:
        raise UnsupportedError(
            f"backend: 'triton' is not installed ({error}); {_INSTALL}"
        ) from error
    from .primitives import where

    return not isinstance(where, triton.JITFunction)


def current_device() -> Device:
    """The device that torch would use now."""
    torch = import_torch()
    if interprets():
        return Device("cpu", "interpreter", "interpreter")
    if not torch.cuda.is_available():
        raise UnsupportedError(
            "backend: 'triton' needs a GPU and torch sees none here (torch "
            f"{torch.__version__}); leave the backend out to run on the CPU, or install a torch "
            "built for CUDA or ROCm"
        )
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip:
        arch = properties.gcnArchName.partition(":")[0]
        return Device(f"cuda:{index}", arch, "hip", properties.warp_size)
    major, minor = torch.cuda.get_device_capability(index)
    small = properties.multi_processor_count < 2 * MOST_CORES
    return Device(f"cuda:{index}", f"sm_{major}{minor}", "cuda", is_small=small)


def is_current(device: Device) -> bool:
    """Whether torch's current device is this one."""
    if device.name == "cpu":
        return True
    current: int = import_torch().cuda.current_device()
    return device.name == f"cuda:{current}"


@contextlib.contextmanager
def on_device(name: str) -> Iterator[None]:
    """Make a device torch's current one."""
    if name == "cpu":
        yield
        return
    with import_torch().cuda.device(name):
        yield


@contextlib.contextmanager
def on_stream(device: Device, stream: Any) -> Iterator[None]:
    """Launch on a device and on a ``torch.cuda.Stream``, or its current one if None."""
    with on_device(device.name):
        if stream is None or device.name == "cpu":
            yield
            return
        torch = import_torch()
        if not isinstance(stream, torch.cuda.Stream):
            raise InvalidProblemError(
                f"stream: expected a torch.cuda.Stream, got {type(stream).__name__}"
            )
        if str(stream.device) != device.name:
            raise InvalidProblemError(
                f"stream: expected one of {device.name}, where this plan runs, got one of "
                f"{stream.device}"
            )
        with torch.cuda.stream(stream):
            yield


def finish(device: Device) -> None:
    """Wait until a device has done what all streams have asked of it."""
    if device.name != "cpu":
        import_torch().cuda.synchronize(device.name)


def outlives_stream(tensor: Any) -> None:
    """Keep the memory of a tensor, once it is dropped, until the current stream is done with it."""
    if tensor.is_cuda:
        tensor.record_stream(import_torch().cuda.current_stream(tensor.device))
