"""Write docs/accuracy.md: errors of every op and dtype in units in the last place.

    python tools/ulp_table.py

Needs torch, whose errors on the same data stand beside ours.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from pullback import catalog
from pullback.core.declare import Op
from pullback.core.elements import FLOATS
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
error; where PyTorch has the op, its largest error on the same data follows in brackets.

The data: rows of {SHAPE[1]} standard normal numbers, shape {SHAPE}, along the last axis; factors
near ±1 for products; {ROWS[0]} rows of {ROWS[1]} in {SEGMENTS} segments. Saved
outputs are rounded to the storage type, and the exact gradient is taken from them as they are.

Everything is computed in float64 and rounded at the store, so float32, float16 and bfloat16 come
out within a hair of half an ULP. float64 has nothing wider to compute in: where positive and
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
    with np.errstate(all="ignore"):
        found = errors(case, result(case, operands), case.exact(operands))
        theirs = torch_errors(case, operands)
    largest, mean = describe(found)
    beside = "" if theirs is None else f" [{number(describe(theirs)[0])}]"
    return f"{number(largest)}, {number(mean)}{beside}"


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
    PAGE.write_text(f"{HEAD}\n{table()}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
