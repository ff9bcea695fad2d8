"""A launch in words: the one way from operands to kernels, whoever calls.

A program holds a parameter block but for addresses (the template), which words of it are addresses
of which operands (the patches), and the kernels to run on it (the phases). A native function fills
a block and runs the phases; NumPy and PyTorch call it with addresses, XLA calls one of its own with
buffers (``jax/handler.py``).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import pool
from .builtin import MOST_WORDS, builtin
from .compile import Kernel

# Words of a program: a head, then the phases, the patches and the template. The last word of the
# head is the address of the word by which the workers of this process are found, or 0.
PHASES, PATCHES, LENGTH, BOARD, HEAD = 0, 1, 2, 3, 4
# Of a phase: the address of its kernel, or 0 while it is not compiled; its units; how many threads
# should share them, or 0; the word of the block that must not be 0 for it to run, or 0 where it
# always runs; units that a thread claims at a time; 1 where it is worth waking workers for.
KERNEL, UNITS, THREADS, CONDITION, CHUNK, WAKES, PHASE_WORDS = 0, 1, 2, 3, 4, 5, 6
# Of a patch: the word of the block; which operand; bytes to add to its address; the size of a new
# result that is worth large pages, or 0.
PLACE, OPERAND, OFFSET, NEW_BYTES, PATCH_WORDS = 0, 1, 2, 3, 4
# Longer blocks, of very many dimensions, are not filled on the stack.
LONGEST_BLOCK = 512

WORKSPACE = "workspace"


class Patch(NamedTuple):
    """A word of the block that holds an address: whose, and how far from its start."""

    place: int
    operand: str
    offset: int = 0


class Phase:
    """A kernel run over its units, after the phase before it.

    Attributes
    ----------
    units, traffic
        How many units there are, and the bytes that they read and write.
    condition
        Word of the block that must not be 0 for the phase to run; 0 if it always runs.
    """

    __slots__ = ("_kernel", "_make", "condition", "traffic", "units")

    def __init__(self, make: Callable[[], Kernel], units: int, traffic: int, condition: int = 0):
        self._make, self.units, self.traffic = make, units, traffic
        self.condition = condition
        self._kernel: Kernel | None = None

    @property
    def kernel(self) -> Kernel:
        """The kernel, compiled when it is first wanted."""
        if self._kernel is None:
            self._kernel = self._make()
        return self._kernel


class Program:
    """What runs on operands at any addresses.

    Attributes
    ----------
    operands
        Whose addresses :meth:`run` takes, in that order.
    workspace
        Bytes of workspace.
    phases, threads
        The kernels to run, and how many threads may share them.
    words, address
        The program in words, and where they are.
    is_prompt
        Whether one native call runs it, in which nobody looks for signals.
    """

    def __init__(
        self,
        template: Iterable[int],
        patches: Sequence[Patch],
        phases: Sequence[Phase],
        operands: Iterable[str],
        workspace: int,
        threads: int,
    ):
        self.operands, self.workspace = tuple(operands), workspace
        self.phases, self.threads = phases, threads
        self._template, self._patches = list(template), patches
        self._shares = [pool.threads_for(p.units, p.traffic, threads) for p in phases]
        self.words = array("q", self.in_words([0] * len(phases)))
        self.address = self.words.buffer_info()[0]
        self.words[BOARD] = pool.pool.place
        fits = len(self.operands) + 2 < MOST_WORDS and len(self._template) <= LONGEST_BLOCK
        shared = [p.traffic for p, share in zip(phases, self._shares, strict=True) if share]
        self.is_prompt = fits and max(shared, default=0) < pool.SLICE_BYTES

    def in_words(self, kernels: Sequence[int], new: Mapping[str, int] | None = None) -> list[int]:
        """The program with these words for kernels, and the sizes of new results."""
        places = {name: k for k, name in enumerate((*self.operands, WORKSPACE))}
        words = [len(self.phases), len(self._patches), len(self._template), 0]
        for phase, kernel, share in zip(self.phases, kernels, self._shares, strict=True):
            chunk = pool.chunk_of(phase.units, phase.traffic, max(1, share))
            wakes = int(pool.wakes(phase.traffic))
            words += [kernel, phase.units, share, phase.condition, chunk, wakes]
        for place, operand, offset in self._patches:
            words += [place, places[operand], offset, (new or {}).get(operand, 0)]
        return words + self._template

    def mark_new(self, sizes: Mapping[str, int]) -> None:
        """Ask for large pages for operands of these sizes, which are new at every run."""
        at = HEAD + PHASE_WORDS * len(self.phases)
        for k, patch in enumerate(self._patches):
            self.words[at + PATCH_WORDS * k + NEW_BYTES] = sizes.get(patch.operand, 0)

    def run(self, addresses: Sequence[int], owners: Any, workspace: int = 0, size: int = 0) -> None:
        """Run on operands at these addresses, which ``owners`` keep alive.

        Too small a workspace is replaced by an own one.
        """
        if self.workspace:
            if self.workspace > size:
                own = np.empty(-(-self.workspace // 8), np.int64)
                workspace, owners = own.ctypes.data, (owners, own)
            addresses = (*addresses, workspace)
        if not self.is_prompt:
            self._share(addresses, owners)
        elif builtin("run_program")(self.address, *addresses):
            self.run_again(*addresses)

    def run_again(self, *addresses: int) -> None:
        """Run from the start with what a native run lacked: kernels, or threads.

        Whoever calls keeps the operands alive.
        """
        while (missing := builtin("run_program")(self.address, *addresses)) > 0:
            at = HEAD + PHASE_WORDS * (missing - 1) + KERNEL
            self.words[at] = self.phases[missing - 1].kernel.address
        if missing:
            self._share(addresses, None)

    def _share(self, addresses: Sequence[int], owners: Any) -> None:
        block = array("q", bytes(8 * len(self._template)))
        p = block.buffer_info()[0]
        builtin("fill_block")(self.address, p, *addresses)
        held = (block, owners)
        for phase in self.phases:
            if not phase.condition or block[phase.condition]:
                kernel = phase.kernel.address
                pool.run(kernel, p, phase.units, phase.traffic, self.threads, held)
