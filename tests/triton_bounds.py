"""How far results of the Triton backend may lie from the exact ones."""

from __future__ import annotations

import roundings
import tolerance
from pullback.gpu import tiles
from pullback.tools.case import Case

# Half the rounding unit of the compute type.
UNIT = {"f32": 2.0**-24, "f16": 2.0**-24, "bf16": 2.0**-24, "f64": 2.0**-53}
# A thread of a GPU adds its part of a tile, 64 elements at most, one after the other.
SERIAL = 64


def depth(extent: int) -> int:
    """Roundings on the longest path of a fold: lanes by themselves, a tree, carries, the last."""
    return tiles.STEPS + SERIAL + max(1, extent).bit_length() + 2


def depth_in_interpreter(extent: int) -> int:
    """The same, where nothing is added one after the other."""
    return depth(extent) - SERIAL


def bounds(cell: Case, argument: float = 0.0, element: str = "") -> tuple[float, float]:
    """``(ulps, relative)``: see ``tolerance``; sums are rounded to the compute type here.

    Two roundings more than on the CPU: exp is good to 2 ulps, and so is a float32 quotient.
    """
    ulps = 2.0
    if cell.element in tolerance.PRECISION:
        ulps = 0.5 + 2.0 * 2.0 ** -(24 - tolerance.PRECISION[cell.element])
    return ulps, (roundings.roundings(cell, argument) + 4) * UNIT[cell.element]


def wrong_with(cell: Case, given, results) -> list[str]:
    """What is wrong with results, by the oracle."""
    exact, argument = cell.exact(given), tolerance.exp_argument(cell, given)
    if "x" in given and "y" not in given:
        argument *= 2  # what x is compared with is another x
    found = (tolerance.failure(cell, n, r, exact[n], argument) for n, r in results.items())
    return [w for w in found if w]
