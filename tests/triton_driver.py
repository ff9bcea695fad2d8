"""A driver for Triton that stands where a GPU's would: kernels are compiled, and launches noted.

All that the host does before a launch is real but for torch's switch of devices; tensors are the
CPU's, and nothing is computed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import triton

from pullback.gpu import backend
from pullback.gpu.device import Device
from pullback.gpu.offline import TARGETS


class Driver:
    """What Triton asks of a driver, for a GPU of some architecture."""

    def __init__(self, target: str = "sm_90"):
        self._target = TARGETS[target]
        self.launches: list[tuple[Any, ...]] = []
        self.utils = SimpleNamespace(
            # Without a module there is none to unload.
            load_binary=lambda *a: (None, 1, 32, 0, 1024),
            get_device_properties=lambda device: {"max_shared_mem": 2**17},
        )

    def get_current_device(self) -> int:
        # Not one that is there: Triton keeps kernels by the device.
        return 99

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self._target

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        name = metadata.name

        def launch(x, y, z, stream, function, packed, metadata, enter, leave, *args):
            self.launches.append((name, x, args))

        return launch


def install(monkeypatch: Any, target: str = "sm_90") -> Driver:
    """Have plans of CPU tensors go through a driver that notes launches."""
    driver = Driver(target)
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    monkeypatch.setattr(backend, "current_device", lambda: Device("cpu", target, "cuda"))
    return driver
