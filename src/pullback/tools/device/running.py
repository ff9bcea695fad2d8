"""Cases on a GPU: operands moved there and back, and how far results may lie from exact ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.vocabulary import Stream
from ...formulas.bind import primitives_of
from ...formulas.record import ScanFormula
from ...gpu.device import Device, current_device, import_torch
from ...gpu.tiles import STEPS
from ...memory.tensor_ref import TensorRef
from ..bench.peers import to_torch
from ..bench.verify import Arrays, Backend
from ..case import Case, monoids
from ..check.accuracy import from_torch
from ..operands import make_outputs

# What a thread adds up one after the other: STEPS tiles, and its part of one.
SERIAL = STEPS + 64


@dataclass(frozen=True)
class Placed:
    """An array in memory of a device, laid out as it was.

    Attributes
    ----------
    data
        The memory that it is part of, flat.
    array
        What it is a copy of.
    offset
        Elements in front of its first.
    """

    data: Any
    array: np.ndarray
    offset: int

    @property
    def ref(self) -> TensorRef:
        """What a plan takes."""
        steps = tuple(s // self.array.itemsize for s in self.array.strides)
        return TensorRef(self.data, self.array.shape, steps, self.offset)

    def fetch(self) -> np.ndarray:
        """What is there now, in C order."""
        flat, item = from_torch(self.data.cpu()), self.array.itemsize
        like = self.array
        found: np.ndarray = np.ndarray(
            like.shape, like.dtype, flat, self.offset * item, like.strides
        )
        return np.array(found, order="C")


def place(array: np.ndarray, device: str, shift: int = 0) -> Placed:
    """Copy an array, and the memory it is a view of, to an address shifted by some elements."""
    torch = import_torch()
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    first = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    flat = to_torch(torch, np.array(root.ravel("K")))
    room = torch.empty(flat.numel() + shift, dtype=flat.dtype, device=device)
    room[shift:].copy_(flat)
    return Placed(room, array, first // array.itemsize + shift)


class Gpu(Backend):
    """The Triton backend on the current device: a GPU, or the interpreter."""

    def __init__(self) -> None:
        self.device: Device = current_device()
        self.is_card = self.device.backend != "interpreter"

    def run(
        self,
        case: Case,
        operands: Mapping[str, Placed],
        outputs: Mapping[str, Placed],
        stream: Any = None,
    ) -> None:
        """Run a plan; nothing waits for it."""
        given = {n: p.ref for n, p in (*operands.items(), *outputs.items())}
        self.plan(case).run(**given, stream=None if stream is None else Stream(cuda=stream))

    def plan(self, case: Case) -> Any:
        """A plan for a case."""
        return case.plan(backend="triton")

    def placed(self, arrays: Arrays, shift: int = 0) -> dict[str, Placed]:
        """Arrays on the device."""
        return {n: place(a, self.device.name, shift) for n, a in arrays.items()}

    def result(self, case: Case, operands: Arrays, shift: int = 0) -> dict[str, np.ndarray]:
        """What a plan writes into memory that held NaN."""
        outputs = self.placed(make_outputs(case), shift)
        self.run(case, self.placed(operands, shift), outputs)
        return {n: p.fetch() for n, p in outputs.items()}

    def wait(self) -> None:
        """Wait for the device, and raise what has gone wrong there."""
        if self.is_card:
            import_torch().cuda.synchronize(self.device.name)

    def unit(self, case: Case) -> float:
        """Half an ulp of what is computed in."""
        return 2.0**-53 if case.element == "f64" else 2.0**-24

    def rounding(self, case: Case, terms: int) -> float:
        """Four roundings for each step of the longest path, and a few more.

        A tree over what threads have summed up; every element of a product or a recurrence.
        """
        path = terms if _is_chain(case) else min(terms, SERIAL + terms.bit_length() + 2)
        return (4 * path + 16) * self.unit(case)

    def exp_error(self, case: Case) -> float:
        """Two ulps."""
        return 4 * self.unit(case)


def _is_chain(case: Case) -> bool:
    """Whether roundings add up along a row in whatever order it is taken."""
    formula = case.formula
    recurs = isinstance(formula, ScanFormula) and len(formula.monoid.state) > 1
    scales = any("exp" in primitives_of(m.combine) for m in monoids(formula))
    return case.has_products or recurs or scales
