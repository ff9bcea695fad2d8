"""Kernels of a launch on a device: what Triton has compiled for the first run is kept for others.

Triton finds the compiled kernel anew at every call, from the types, values and alignments of all
arguments. In a launch those are the same but for addresses, whose alignment it is made for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError
from .device import Device

if TYPE_CHECKING:
    from .steps import Step

# What stands before the name of an operand for its twin at an even address.
TWIN = "even "


def most_programs(backend: str, threads: int) -> int:
    """Programs of so many threads that one launch may have."""
    # HIP counts threads, in 32 bits.
    return (2**32 - 1) // threads if backend == "hip" else 2**31 - 1


class Start:
    """One kernel of a launch.

    ``operands`` names those whose alignment the launch is made for. Raises for more programs than
    a launch may have.
    """

    def __init__(self, step: Step, device: Device, operands: Collection[str]):
        self._step = step
        self._options = step.options(device.backend, device.lanes)
        most = most_programs(device.backend, self._options["num_warps"] * device.lanes)
        if step.programs * step.cores > most:
            raise UnsupportedError(
                f"{step.programs} programs are more than the {most} that a GPU launches at once"
            )
        self._names = [n for n, _ in step.pointers]
        self._others = [n for n in self._names if n not in operands]
        self._compiled: Any = None
        self._rest: list[Any] = []

    @property
    def is_ready(self) -> bool:
        """Whether addresses are all that another run needs."""
        return self._compiled is not None or not self._step.programs

    def __call__(self, held: Mapping[str, Any]) -> None:
        """Start the kernel on tensors or, once it is ready, on addresses."""
        step = self._step
        if not step.programs:
            return
        given = [held[n] for n in self._names]
        aligned = all(held[n].data_ptr() % 16 == 0 for n in self._others)
        if self._compiled is not None and aligned:
            self._compiled(*given, *self._rest)
            return
        made = step.kernel[(step.programs,)](*given, *step.numbers, **step.meta, **self._options)
        # The interpreter compiles nothing.
        if made is not None and aligned:
            named = {**step.meta, **self._options}
            names = step.kernel.arg_names[len(given) + len(step.numbers) :]
            self._rest = [*step.numbers, *(named[n] for n in names)]
            self._compiled = made[(step.programs, 1, 1)]
