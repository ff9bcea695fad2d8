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

Errors against the exact result, in units in the last place (ULP) of the storage type at the exact
value. The best a correctly rounded result can do is 0.5. Each cell holds the largest and the mean
error with the precision "fast", the default; behind a semicolon the largest with "tight", where it
computes otherwise; and where PyTorch has the op, its largest error on the same data in brackets.

The data: rows of {SHAPE[1]} standard normal numbers, shape {SHAPE}, along the last axis; factors
near ±1 for products; {ROWS[0]} rows of {ROWS[1]} in {SEGMENTS} segments. Saved
outputs are rounded to the storage type, and the exact gradient is taken from them as they are.
A state that is float64 whatever the elements are is told in units of their type.

Sums, products and scans are carried in float64. With "fast", what is done to each element of
float32, float16 and bfloat16 is done in float32 where that keeps float32 within 2 ULP; float16 and
bfloat16 are rounded once from there, so they come out within a hair of half an ULP. With "tight"
everything is computed in float64 and rounded at the store: all three come out within a hair of half
an ULP. float64 has nothing wider to compute in: where positive and
negative terms cancel, one ULP of a result near zero is small beside the roundings of the terms.
So it is in float32 at the one element of `logcumsumexp_backward` that
is less than a millionth of its terms.
The bound the tests hold it to follows from the summation tree ([reduce](reduce.md),
[scan](scan.md)) and is relative to the sum of absolute terms. Measured by `tools/ulp_table.py`
with the oracle in `pullback.oracle`.
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
