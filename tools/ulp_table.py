"""Write docs/accuracy.md: errors of every op and dtype in units in the last place.

    python tools/ulp_table.py

Needs torch, whose errors on the same data stand beside ours.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from pullback import catalog, set_precision
from pullback.core.declare import Op
from pullback.core.elements import FLOATS
from pullback.cpu.precision import is_in_float32
from pullback.precision import under
from pullback.tools.case import Case, cuts
from pullback.tools.check.accuracy import describe, errors, result, torch_errors
from pullback.tools.operands import make_operands

PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy.md"
# Several blocks of a scan and a ragged end.
SHAPE = (4, 600)
ROWS, SEGMENTS = (160, 7), 19

HEAD = f"""# Accuracy

Errors relative to the exact result, in units in the last place (ULP) of the storage type at the
exact value. A correctly rounded result has an error of at most 0.5. Each cell shows the largest and
the mean error with the precision "fast", the default. If "tight" computes differently, its largest
error follows after a semicolon. If PyTorch has the op, its largest error on the same data is in
brackets.

The data are rows of {SHAPE[1]} standard normal numbers, shape {SHAPE}, along the last axis; for
products, factors near ±1; for segment ops, {ROWS[0]} rows of {ROWS[1]} in {SEGMENTS} segments.
Saved outputs are rounded to the storage type, and the exact gradient is computed from these rounded
values. Errors of float64 states are given in units of the element type.

Sums, products and scans are carried in float64. With "fast", element-wise arithmetic of float32,
float16 and bfloat16 is done in float32 where that keeps float32 within 2 ULP. float16 and bfloat16
are rounded once from there, so their errors stay within a hair of half an ULP. With "tight",
everything is computed in float64 and rounded when it is stored, and all three stay within a hair of
half an ULP. For float64 there is no wider type to compute in: where positive and negative terms
cancel, the roundings of the terms are large compared with one ULP of a result near zero. The same
happens in float32 at one element of `logcumsumexp_backward`, which is less than a millionth of its
terms.

The tests use a bound that follows from the summation tree ([reduce](reduce.md), [scan](scan.md))
and is relative to the sum of absolute terms. `tools/ulp_table.py` measures this table with the
oracle in `pullback.oracle`.
"""


def case_of(op: Op, element: str) -> Case:
    return Case.of(op, element, ROWS if cuts(op) else SHAPE, segments=SEGMENTS, axis=-1)


def cell(op: Op, element: str) -> str:
    """Largest and mean error, and torch's largest."""
    case = case_of(op, element)
    operands = make_operands(case)
    tight = ""
    with np.errstate(all="ignore"):
        exact = case.exact(operands)
        found = errors(case, result(case, operands), exact)
        if is_in_float32(case.problem):
            with under("tight"):
                largest, _ = describe(errors(case, result(case, operands), exact))
            tight = f"; {number(largest)}"
        theirs = torch_errors(case, operands)
    largest, mean = describe(found)
    beside = "" if theirs is None else f" [{number(describe(theirs)[0])}]"
    return f"{number(largest)}, {number(mean)}{tight}{beside}"


def number(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.2f}" if value < 100 else f"{value:.1e}"


def table() -> str:
    lines = [f"| op | {' | '.join(FLOATS)} |", f"|---|{'---|' * len(FLOATS)}"]
    for op in catalog():
        print(op.name, file=sys.stderr)
        lines.append(f"| `{op.name}` | {' | '.join(cell(op, e) for e in FLOATS)} |")
    return "\n".join(lines)


def main() -> None:
    set_precision("fast")
    PAGE.write_text(f"{HEAD}\n{table()}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
