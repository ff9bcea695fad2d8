"""A launch as data: which kernel, how many programs, with which arguments and compiler options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .frame import Shape
from .starts import TWIN
from .tiles import WARP


def pointers_of(shape: Shape) -> tuple[tuple[str, str], ...]:
    """The operands of a kernel and the twins of those that have one, with the types they hold."""
    named = [(p.name, p.dtype) for p in shape.operands]
    return (*named, *((f"{TWIN}{p.name}", p.dtype) for p in shape.odd))


@dataclass(frozen=True)
class Step:
    """One kernel of a launch.

    Attributes
    ----------
    kernel
        The jitted function.
    programs
        How many run.
    pointers
        Names of the operands and of parts of the workspace, with the types they hold, in the
        kernel's order.
    numbers
        The arguments that follow them.
    meta
        Arguments that are compiled in.
    warps
        Warps of 32 threads in a program.
    is_large
        Whether the kernel scans, repeats a pass or has large states, which takes many registers.
    stages
        Blocks of a loop that are under way at once, where it is told; else 0.
    cores
        Of a cluster that runs a program together, on NVIDIA's GPUs from sm_90 on.
    """

    kernel: Any
    programs: int
    pointers: tuple[tuple[str, str], ...]
    numbers: tuple[int | float, ...]
    meta: Mapping[str, Any]
    warps: int
    is_large: bool = False
    stages: int = 0
    cores: int = 1

    def options(self, backend: str, lanes: int = WARP) -> dict[str, Any]:
        """Options of the compiler for ``"cuda"`` or ``"hip"``, with that many lanes in a warp."""
        warps = max(1, self.warps * WARP // lanes)
        # Without fusing a product into a sum, results are those of the formulas as written;
        # Triton's own default differs between its releases.
        found: dict[str, Any] = {"num_warps": warps, "enable_fp_fusion": False}
        if self.stages:
            # AMD's compiler keeps what is under way in registers, of which scans have none left.
            found["STAGES"] = self.stages if backend == "cuda" else 1
        if backend == "cuda":
            # Left alone, the assembler spills a few bytes to fit more programs on a core.
            most = 255 if self.is_large else 128
            found["maxnreg"] = min(most, 2**16 // (WARP * warps))
        if self.cores > 1:
            found["num_ctas"] = self.cores
        return found
