"""The shortest way from plain NumPy arrays to a kernel.

A repeated call on small arrays is all overhead. Where every operand is a C-ordered ndarray of the
plan's own dtype and shape, apart from the others, there is nothing to find out: the launch is the
one made for packed operands. Whatever is different goes the long way, which also says what is
wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .interop import DTYPES, address_of
from .problem import Problem


class PackedCall:
    """A plan's launch for packed operands."""

    def __init__(self, problem: Problem, runner: Any, threads: int):
        op = problem.op
        self._dtype = DTYPES[problem.element]
        item = self._dtype.itemsize
        names = (*op.inputs, *op.outputs)
        self._operands = [
            (n, shape, _c_strides(shape, item))
            for n, shape in ((n, problem.shape_of(n)) for n in names)
        ]
        sizes = [item * int(np.prod(shape)) for _, shape, _ in self._operands]
        first = len(op.inputs)
        # Pairs of an output and another operand that must lie apart, and how far each reaches.
        self._apart = [
            (o, k, sizes[o], sizes[k])
            for o in range(first, len(names))
            for k in range(len(names))
            if k < first or k > o
        ]
        self._outputs = op.outputs
        self._misaligned = item - 1
        self.threads = threads
        self._launch = runner.launch_for({n: s for n, _, s in self._operands}, threads)
        self._places = [names.index(n) for n in self._launch.sources]
        self.usable = not self._launch.workspace

    @classmethod
    def of(cls, problem: Any, runner: Any, threads: int, on_gpu: bool) -> PackedCall:
        """The call of a plan; it declines everything where the short way does not exist."""
        if on_gpu or not isinstance(problem, Problem) or 0 in problem.shape:
            return _Declines(threads)
        call = cls(problem, runner, threads)
        return call if call.usable else _Declines(threads)

    def run(self, operands: dict[str, Any]) -> bool:
        """Run if the operands are as expected; False, with nothing done, if they are not."""
        dtype = self._dtype
        addresses = []
        for name, shape, strides in self._operands:
            a = operands[name]
            if (
                type(a) is not np.ndarray
                or a.dtype is not dtype
                or a.shape != shape
                or a.strides != strides
            ):
                return False
            addresses.append(address_of(a))
        for o, k, reach, other in self._apart:
            if addresses[k] < addresses[o] + reach and addresses[o] < addresses[k] + other:
                return False
        for address in addresses:
            if address & self._misaligned:
                return False
        for name in self._outputs:
            if not operands[name].flags.writeable:
                return False
        self._launch.run_at(self._places, addresses, self.threads)
        return True


class _Declines(PackedCall):
    def __init__(self, threads: int):
        self.threads = threads

    def run(self, operands: dict[str, Any]) -> bool:
        return False


def _c_strides(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    strides = []
    step = item
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))
