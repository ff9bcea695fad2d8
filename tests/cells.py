"""Operands laid out in memory, and a count of the cells that were checked.

Every tensor lives in a larger buffer whose bytes are all 0xFF, which is NaN in each of the float
types. After a call the bytes around an output, and between its strided elements, must still be
0xFF, and none of its own elements may be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.core.catalog import OPS
from pullback.core.elements import ELEMENTS as ELEMENT_TYPES
from pullback.core.elements import FLOATS
from pullback.tools.case import Case

__all__ = ["OPS"]

ELEMENTS = FLOATS
DTYPES = {name: ELEMENT_TYPES[name].dtype for name in ELEMENTS}

# (op, element, direction, layout, edge) of everything that was checked; see conftest.
COVERED: set[tuple[str, str, str, str, str]] = set()


def cover(case: Case, layout: str, edge: str) -> None:
    """Count a cell."""
    COVERED.add((case.op.name, case.element, case.op.direction, layout, edge))


POISON = 0xFF
# Elements in front of and behind a tensor: more than a vector, and odd, so that an address is
# aligned to the element and to nothing more.
GUARD = 67


def as_tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


@dataclass(frozen=True)
class Layout:
    """How the elements of a tensor lie: order of the axes, steps between them, and their signs."""

    order: str = "C"
    step: int = 1
    signs: tuple[int, ...] = (1,)

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """In elements, without the signs."""
        rank = len(shape)
        axes = list(range(rank))
        if self.order == "F":
            axes.reverse()
        elif self.order == "rolled":
            axes = axes[1:] + axes[:1]
        strides = [0] * rank
        span = 1
        for a in reversed(axes):
            strides[a] = span * self.step
            span = strides[a] * max(shape[a], 1) + self.step - 1
        return tuple(strides)


LAYOUTS = {
    "C": Layout(),
    "Fortran": Layout("F"),
    "transposed": Layout("rolled"),
    "sliced": Layout(step=2),
    "negative": Layout(signs=(-1,)),
    "mixed": Layout("F", step=3, signs=(-1, 1)),
}


class Fenced:
    """A tensor of some layout in the middle of a poisoned buffer."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype,
        layout: str = "C",
        values: np.ndarray | None = None,
        guard: int = GUARD,
    ):
        form = LAYOUTS[layout]
        steps = form.strides(shape)
        signs = [form.signs[a % len(form.signs)] for a in range(len(shape))]
        reach = [max(n - 1, 0) * s for n, s in zip(shape, steps, strict=True)]
        first = guard + sum(r for r, sign in zip(reach, signs, strict=True) if sign < 0)
        item = dtype.itemsize
        self.bytes = np.full((guard + sum(reach) + 1 + guard) * item, POISON, np.uint8)
        self._place = {
            "offset": first * item,
            "strides": tuple(s * sign * item for s, sign in zip(steps, signs, strict=True)),
        }
        self.array: np.ndarray = np.ndarray(shape, dtype, self.bytes, **self._place)
        if values is not None:
            self.array[...] = values

    def is_untouched(self) -> bool:
        """Whether every byte is still poison."""
        return bool((self.bytes == POISON).all())

    def check(self) -> str | None:
        """What is wrong with the memory after a call that should have written the tensor."""
        own = np.frombuffer(self.array.tobytes(), np.uint8).reshape(-1, self.array.itemsize)
        missed = int((own == POISON).all(axis=1).sum())
        if missed:
            return f"{missed} of {len(own)} elements not written"
        around = self.bytes.copy()
        inside = np.ndarray(self.array.shape, self.array.dtype, around, **self._place)
        inside[...] = np.frombuffer(bytes([POISON]) * inside.itemsize, inside.dtype)[0]
        broken = int((around != POISON).sum())
        return f"{broken} bytes around the output were changed" if broken else None


def outputs_for(case: Case, layout: str = "C") -> dict[str, Fenced]:
    return {n: Fenced(case.shape_of(n), case.dtype_of(n), layout) for n in case.outputs}


def arrays_of(fenced: dict[str, Fenced]) -> dict[str, np.ndarray]:
    return {n: f.array for n, f in fenced.items()}


def lies_anyhow(case: Case, operand: str) -> bool:
    """Whether an operand may have any strides: ids and offsets are packed."""
    return len(case.shape_of(operand)) == len(case.shape)


def run_fenced(
    case: Case, operands: dict[str, np.ndarray], layout: str = "C", **how: Any
) -> dict[str, np.ndarray]:
    """Run by plan with fenced operands of a layout; the outputs as C arrays."""
    fenced = {
        n: Fenced(a.shape, a.dtype, layout if lies_anyhow(case, n) else "C", a)
        for n, a in operands.items()
    }
    before = {n: f.bytes.copy() for n, f in fenced.items()}
    outputs = outputs_for(case, layout)
    case.run(arrays_of(fenced), arrays_of(outputs), **how)
    for name, f in outputs.items():
        wrong = f.check()
        assert wrong is None, f"{case} {layout} {name}: {wrong}"
    for name, f in fenced.items():
        assert np.array_equal(f.bytes, before[name]), f"{case} {layout}: input {name} was written"
    return {n: f.array.copy(order="C") for n, f in outputs.items()}


def same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
